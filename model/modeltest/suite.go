package modeltest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"runledger/agent"
	"runledger/model"
)

// Scenario is one situation that a client must handle.
type Scenario struct {
	// Name is the name of the subtest and of a provider's recording.
	Name string
	// Request is what the suite will ask.
	Request model.Request
	// Key is the credential to configure the client with. No error may show it.
	Key string
	// Vendor is set for situations that a vendor's server brings about: errors, broken streams. A client without a vendor
	// skips them.
	Vendor bool

	check func(t *testing.T, c model.Client, s Scenario)
}

// patience bounds how long a client may hang before its test fails. Nothing waits for it to pass.
const patience = 30 * time.Second

// Run asks a client for everything that [model.Client] promises, one subtest for each [Scenario]. It calls open once per
// scenario; open returns a client in the scenario's situation, or skips the test where the client cannot get there.
func Run(t *testing.T, open func(t *testing.T, s Scenario) model.Client) {
	t.Helper()
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.check(t, open(t, s), s)
		})
	}
}

// Scenarios lists what Run asks, for tests of the recordings themselves.
func Scenarios() []Scenario {
	calculator := model.Tool{
		Name: "calculator", Description: "Evaluates an arithmetic expression.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"],"additionalProperties":false}`),
	}
	echo := model.Tool{
		Name: "everything/echo", Description: "Says what it is told.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"message":{"type":"string"}},"required":["message"]}`),
	}
	const ask = "What is 19 * 23? Also use everything/echo to say hello."
	answered := []model.Message{
		{Role: model.System, Text: "You are a careful assistant."},
		{Role: model.User, Text: ask},
		{Role: model.Assistant, ToolCalls: []model.ToolCall{
			{ID: "call_a", Name: "calculator", Arguments: `{"expression":"19 * 23"}`},
			{ID: "call_b", Name: "everything/echo", Arguments: `{"message":"hello"}`},
		}},
		{Role: model.ToolRole, ToolCallID: "call_a", ToolName: "calculator", Text: `{"result":437}`},
		{Role: model.ToolRole, ToolCallID: "call_b", ToolName: "everything/echo", Text: `{"text":"hello"}`},
	}
	schema := json.RawMessage(`{"type":"object","properties":{"verdict":{"type":"string","enum":["accept","reject"]},"score":{"type":"integer"},"reasons":{"type":"array","items":{"type":"string"}}},"required":["verdict","score","reasons"],"additionalProperties":false}`)

	plain := request(user("Say in one sentence what a ledger is."))
	withTools := request(user(ask))
	withTools.Tools = []model.Tool{calculator, echo}
	afterTools := request(answered...)
	afterTools.Tools = withTools.Tools
	structured := request(user("Judge this answer: four."))
	structured.Schema, structured.SchemaName = schema, "verdict"
	structured.Tools = withTools.Tools
	limited := request(user("Count to one hundred in words."))
	limited.MaxTokens = 8

	all := []Scenario{
		{Name: "text", Request: plain, check: checkText},
		{Name: "emit_nil", Request: plain, check: checkNoEmit},
		{Name: "concurrent", Request: plain, check: checkConcurrent},
		{Name: "tools", Request: withTools, check: checkTools},
		{Name: "tool_results", Request: afterTools, check: checkToolResults},
		{Name: "structured", Request: structured, check: checkStructured},
		{Name: "length", Request: limited, check: checkLength},
		{Name: "thinking", Request: request(user("Think before you answer: is 91 prime?")), check: checkThinking},
		{Name: "refusal", Request: request(user("Explain how to do something terrible.")), check: checkRefusal},
		{Name: "cancel", Request: request(user("Tell a very long story.")), check: checkCancel},
		{Name: "ended_before", Request: plain, check: checkEndedBefore},
	}
	for _, f := range []struct {
		name  string
		code  agent.Code
		fault agent.Fault
		after time.Duration
	}{
		{"rate_limited", agent.CodeModelUnavailable, agent.FaultTransient, 7 * time.Second},
		{"rate_limited_ms", agent.CodeModelUnavailable, agent.FaultTransient, 1500 * time.Millisecond},
		{"rate_limited_date", agent.CodeModelUnavailable, agent.FaultTransient, 90 * time.Second},
		{"overloaded", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"conflict", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"request_timeout", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"gateway_page", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"unreachable", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"reset", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"stream_ended", agent.CodeModelStream, agent.FaultTransient, 0},
		{"stream_cut", agent.CodeModelStream, agent.FaultTransient, 0},
		{"stream_overloaded", agent.CodeModelUnavailable, agent.FaultTransient, 0},
		{"stream_invalid", agent.CodeModelFailed, agent.FaultDefinite, 0},
		{"bad_request", agent.CodeModelFailed, agent.FaultDefinite, 0},
		{"unauthorized", agent.CodeModelFailed, agent.FaultDefinite, 0},
		{"forbidden", agent.CodeModelFailed, agent.FaultDefinite, 0},
		{"not_found", agent.CodeModelFailed, agent.FaultDefinite, 0},
		{"unprocessable", agent.CodeModelFailed, agent.FaultDefinite, 0},
	} {
		all = append(all, Scenario{Name: f.name, Request: plain, Vendor: true, check: func(t *testing.T, c model.Client, s Scenario) {
			t.Helper()
			e := generateError(t, t.Context(), c, s)
			if e.Code != f.code || e.Fault != f.fault || e.RetryAfter != f.after {
				t.Errorf("got %s, %s, retry after %s; want %s, %s, %s (%v)", e.Code, e.Fault, e.RetryAfter, f.code, f.fault, f.after, e)
			}
		}})
	}
	for i := range all {
		all[i].Key = "sk-conformance-0123456789abcdef"
	}
	return all
}

func user(text string) model.Message { return model.Message{Role: model.User, Text: text} }

func request(messages ...model.Message) model.Request {
	return model.Request{Model: "test-model", Messages: messages, Key: "run-1/node-1"}
}

// stream is what came through emit.
type stream struct {
	deltas []model.Delta
}

func (s *stream) emit(d model.Delta) { s.deltas = append(s.deltas, d) }

func (s *stream) text(channel model.Channel) string {
	var b strings.Builder
	for _, d := range s.deltas {
		if d.Channel == channel {
			b.WriteString(d.Text)
		}
	}
	return b.String()
}

// generate asks and checks what holds for every reply.
func generate(t *testing.T, c model.Client, s Scenario) (model.Reply, *stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got stream
	reply, err := c.Generate(ctx, s.Request, got.emit)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	if text := got.text(model.Text); text != reply.Text {
		t.Errorf("text deltas say %q, the reply %q", text, reply.Text)
	}
	if thinking := got.text(model.Thinking); thinking != reply.Thinking {
		t.Errorf("thinking deltas say %q, the reply %q", thinking, reply.Thinking)
	}
	for i, d := range got.deltas {
		if d.Text == "" {
			t.Errorf("delta %d is empty", i)
		}
	}
	if reply.Model == "" {
		t.Error("the reply does not name its model")
	}
	if reply.Usage.InputTokens <= 0 || reply.Usage.OutputTokens <= 0 {
		t.Errorf("usage %+v", reply.Usage)
	}
	return reply, &got
}

func checkText(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	reply, got := generate(t, c, s)
	if reply.Text == "" || reply.Finish != model.FinishStop || len(reply.ToolCalls) != 0 {
		t.Errorf("got %+v, want a text that ended by itself", reply)
	}
	if len(got.deltas) < 2 {
		t.Errorf("%d deltas; a text must stream", len(got.deltas))
	}
}

func checkNoEmit(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if reply, err := c.Generate(ctx, s.Request, nil); err != nil || reply.Text == "" {
		t.Errorf("got %+v, %v", reply, err)
	}
}

func checkConcurrent(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	want, _ := generate(t, c, s)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var got stream
			reply, err := c.Generate(t.Context(), s.Request, got.emit)
			if err != nil || reply.Text != want.Text || got.text(model.Text) != want.Text {
				t.Errorf("got %+v, %v", reply, err)
			}
		})
	}
	wg.Wait()
}

func checkTools(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	reply, got := generate(t, c, s)
	if reply.Finish != model.FinishTools {
		t.Errorf("finish reason %q", reply.Finish)
	}
	ids, names := map[string]bool{}, map[string]bool{}
	for _, call := range reply.ToolCalls {
		ids[call.ID], names[call.Name] = true, true
		var arguments map[string]any
		if err := json.Unmarshal([]byte(call.Arguments), &arguments); err != nil {
			t.Errorf("arguments of %s: %v in %q", call.Name, err, call.Arguments)
		}
	}
	if !names["calculator"] || !names["everything/echo"] || len(ids) != len(reply.ToolCalls) || ids[""] {
		t.Errorf("want parallel calls of both tools under their own names, each with its id; got %+v", reply.ToolCalls)
	}
	if got.text(model.ToolArgs) == "" {
		t.Error("the arguments did not stream")
	}
}

func checkToolResults(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	reply, _ := generate(t, c, s)
	if reply.Finish != model.FinishStop || len(reply.ToolCalls) != 0 {
		t.Errorf("want an answer once all calls are answered; got %+v", reply)
	}
	for _, result := range []string{"437", "hello"} {
		if !strings.Contains(reply.Text, result) {
			t.Errorf("the answer does not use the result %s: %q", result, reply.Text)
		}
	}
}

func checkStructured(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	reply, _ := generate(t, c, s)
	var answer struct {
		Verdict *string   `json:"verdict"`
		Score   *int      `json:"score"`
		Reasons *[]string `json:"reasons"`
	}
	decoder := json.NewDecoder(strings.NewReader(reply.Text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&answer); err != nil {
		t.Fatalf("%v in %q", err, reply.Text)
	}
	if answer.Verdict == nil || *answer.Verdict != "accept" && *answer.Verdict != "reject" || answer.Score == nil || answer.Reasons == nil {
		t.Errorf("%s does not fit the schema", reply.Text)
	}
	if len(reply.ToolCalls) != 0 || reply.Finish != model.FinishStop {
		t.Errorf("a request with a schema got %s and the calls %+v", reply.Finish, reply.ToolCalls)
	}
}

func checkLength(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	if reply, _ := generate(t, c, s); reply.Finish != model.FinishLength {
		t.Errorf("finish reason %q", reply.Finish)
	}
}

func checkThinking(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	reply, _ := generate(t, c, s)
	if reply.Thinking == "" || reply.Text == "" || strings.Contains(reply.Text, reply.Thinking) {
		t.Errorf("want thoughts apart from the text; got %+v", reply)
	}
}

func checkRefusal(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	if reply, _ := generate(t, c, s); reply.Finish != model.FinishFiltered || reply.Text == "" {
		t.Errorf("want a filtered reply that says why; got %+v", reply)
	}
}

func checkCancel(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	deltas := 0
	e := generateErrorWith(t, ctx, c, s, func(model.Delta) {
		deltas++
		cancel()
	})
	if deltas == 0 {
		t.Error("the answer had not begun to stream")
	}
	if !errors.Is(e, context.Canceled) {
		t.Errorf("%v does not wrap the context's error", e)
	}
}

func checkEndedBefore(t *testing.T, c model.Client, s Scenario) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	e := generateErrorWith(t, ctx, c, s, func(d model.Delta) { t.Errorf("emitted %+v after the deadline", d) })
	if !errors.Is(e, context.DeadlineExceeded) || e.Code != agent.CodeTimeout {
		t.Errorf("%v does not wrap the context's error", e)
	}
}

func generateError(t *testing.T, ctx context.Context, c model.Client, s Scenario) *agent.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return generateErrorWith(t, ctx, c, s, func(model.Delta) {})
}

func generateErrorWith(t *testing.T, ctx context.Context, c model.Client, s Scenario, emit func(model.Delta)) *agent.Error {
	t.Helper()
	type result struct {
		reply model.Reply
		err   error
	}
	done := make(chan result, 1)
	go func() {
		reply, err := c.Generate(ctx, s.Request, emit)
		done <- result{reply, err}
	}()
	select {
	case got := <-done:
		e, ok := agent.AsError(got.err)
		if !ok {
			t.Fatalf("got %+v and %v, want an *agent.Error", got.reply, got.err)
		}
		for err := got.err; err != nil; err = errors.Unwrap(err) {
			if strings.Contains(err.Error(), s.Key) {
				t.Error("the error shows the API key")
			}
		}
		return e
	case <-time.After(2 * patience):
		t.Fatal("the client does not come back")
	}
	return nil
}
