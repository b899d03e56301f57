package modeltest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/openai"
	"runledger/model/scripted"
)

func client(t testing.TB, url, key string) model.Client {
	t.Helper()
	c, err := openai.New(openai.Options{BaseURL: url, APIKey: key})
	require.NoError(t, err)
	return c
}

// The deterministic model at the far end, the real client at this one, HTTP between them.
func TestConformanceOverHTTP(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, func(t *testing.T, s modeltest.Scenario) model.Client {
		if s.Vendor {
			t.Skip("recordings of the vendor show this better")
		}
		if s.Name == "refusal" {
			no := scripted.Replies(scripted.Step{Reply: model.Reply{Text: "No.", Finish: model.FinishFiltered}})
			return client(t, modeltest.NewServer(t, no).URL, s.Key)
		}
		return client(t, modeltest.NewServer(t, scripted.New(scripted.Options{})).URL, s.Key)
	})
}

func tools() []model.Tool {
	return []model.Tool{
		{Name: "calculator", Description: "Computes.", InputSchema: json.RawMessage(`{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}`)},
		{Name: "everything/echo", InputSchema: json.RawMessage(`{"type":"object","properties":{"message":{"type":"string"}},"required":["message"]}`)},
		{Name: "clock"},
	}
}

func TestLoopOverHTTP(t *testing.T) {
	t.Parallel()
	server := modeltest.NewServer(t, scripted.New(scripted.Options{}))
	c := client(t, server.URL, "")
	req := model.Request{
		Model: "m", Key: "run-1/main#1", Tools: tools(),
		Messages: []model.Message{{Role: model.User, Text: "What is 2+2? Use everything/echo to say größer ✓."}},
	}
	args := ""
	first, err := c.Generate(t.Context(), req, func(d model.Delta) {
		if d.Channel == model.ToolArgs {
			args += d.Text
		}
	})
	require.NoError(t, err)
	require.Len(t, first.ToolCalls, 2)
	require.Equal(t, "everything/echo", first.ToolCalls[1].Name)
	require.JSONEq(t, `{"message":"größer ✓"}`, first.ToolCalls[1].Arguments)
	require.Equal(t, first.ToolCalls[0].Arguments+first.ToolCalls[1].Arguments, args)

	req.Key = "run-1/main#2"
	req.Messages = append(req.Messages,
		model.Message{Role: model.Assistant, Text: first.Text, ToolCalls: first.ToolCalls},
		model.Message{Role: model.ToolRole, ToolCallID: first.ToolCalls[0].ID, ToolName: first.ToolCalls[0].Name, Text: `{"result":"4","exact":true}`},
		model.Message{Role: model.ToolRole, ToolCallID: first.ToolCalls[1].ID, ToolName: first.ToolCalls[1].Name, Text: `"größer ✓"`})
	last, err := c.Generate(t.Context(), req, nil)
	require.NoError(t, err)
	require.Contains(t, last.Text, "2 + 2 = 4")
	require.Contains(t, last.Text, "größer ✓")
	require.Equal(t, map[string]int{"run-1/main#1": 1, "run-1/main#2": 1}, server.CallsByKey())
	require.True(t, server.Calls()[1].Done)
	require.Equal(t, last.Text, server.Calls()[1].Reply.Text)
}

// A vendor is not told of the tools when JSON is asked for; the planner's prompt names them.
func TestPlanOverHTTP(t *testing.T) {
	t.Parallel()
	listed, err := json.Marshal(tools())
	require.NoError(t, err)
	server := modeltest.NewServer(t, scripted.New(scripted.Options{}))
	reply, err := client(t, server.URL, "").Generate(t.Context(), model.Request{
		Model: "m", Tools: tools(), Schema: json.RawMessage(`{"type":"object"}`), SchemaName: "plan",
		Messages: []model.Message{
			{Role: model.System, Text: "Use only these tools:\n" + string(listed)},
			{Role: model.User, Text: "What is 2+2? everything/echo hi"},
		},
	}, nil)
	require.NoError(t, err)
	var p agent.Plan
	require.NoError(t, json.Unmarshal([]byte(reply.Text), &p))
	require.Len(t, p.Nodes, 3)
	require.Equal(t, "everything/echo", p.Nodes[1].Tool)
}

func serve(t testing.TB, c model.Client, o modeltest.EndpointOptions) (*modeltest.Endpoint, string) {
	t.Helper()
	e := modeltest.NewEndpoint(c, o)
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return e, s.URL
}

func TestErrorsOverHTTP(t *testing.T) {
	t.Parallel()
	busy := agent.Transient(agent.CodeModelUnavailable, "busy")
	busy.RetryAfter = 1500 * time.Millisecond
	tests := map[string]struct {
		step scripted.Step
		want agent.Error
	}{
		"rate limit":        {scripted.Fail(busy), agent.Error{Code: agent.CodeModelUnavailable, Fault: agent.FaultTransient, RetryAfter: 2 * time.Second}},
		"overloaded":        {scripted.Fail(agent.Transient(agent.CodeModelUnavailable, "busy")), agent.Error{Code: agent.CodeModelUnavailable, Fault: agent.FaultTransient}},
		"refused":           {scripted.Fail(agent.Failed(agent.CodeModelFailed, "busy")), agent.Error{Code: agent.CodeModelFailed, Fault: agent.FaultDefinite}},
		"no end mark":       {scripted.Step{Reply: model.Reply{Text: "half"}, Err: agent.Transient(agent.CodeModelStream, "busy")}, agent.Error{Code: agent.CodeModelStream, Fault: agent.FaultTransient}},
		"silent, no end":    {scripted.Fail(agent.Transient(agent.CodeModelStream, "busy")), agent.Error{Code: agent.CodeModelStream, Fault: agent.FaultTransient}},
		"event, transient":  {scripted.Step{Reply: model.Reply{Text: "half"}, Err: agent.Transient(agent.CodeModelUnavailable, "busy")}, agent.Error{Code: agent.CodeModelUnavailable, Fault: agent.FaultTransient}},
		"event, definite":   {scripted.Step{Reply: model.Reply{Text: "half"}, Err: agent.Failed(agent.CodeModelFailed, "busy")}, agent.Error{Code: agent.CodeModelFailed, Fault: agent.FaultDefinite}},
		"of no known class": {scripted.Fail(io.ErrUnexpectedEOF), agent.Error{Code: agent.CodeModelFailed, Fault: agent.FaultDefinite}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, scripted.Replies(tt.step), modeltest.EndpointOptions{})
			_, err := client(t, url, "").Generate(t.Context(), model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}}, nil)
			e, ok := agent.AsError(err)
			require.True(t, ok)
			require.Equal(t, tt.want.Code, e.Code, "%v", e)
			require.Equal(t, tt.want.Fault, e.Fault, "%v", e)
			require.Equal(t, tt.want.RetryAfter, e.RetryAfter)
		})
	}
}

func TestBeforeAndKeys(t *testing.T) {
	t.Parallel()
	e, url := serve(t, scripted.New(scripted.Options{}), modeltest.EndpointOptions{
		APIKey: "sk-right-0123456789",
		Before: func(number int, _ *http.Request, _ model.Request) error {
			if number == 1 {
				return agent.Transient(agent.CodeModelUnavailable, "not yet")
			}
			return nil
		},
	})
	req := model.Request{Model: "m", Key: "k", Messages: []model.Message{{Role: model.User, Text: "Hi"}}}
	_, err := client(t, url, "sk-wrong-0123456789").Generate(t.Context(), req, nil)
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelFailed})
	require.NotContains(t, err.Error(), "sk-wrong")
	require.Empty(t, e.Calls(), "who is not let in is not counted")

	c := client(t, url, "sk-right-0123456789")
	_, err = c.Generate(t.Context(), req, nil)
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelUnavailable})
	_, err = c.Generate(t.Context(), req, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"k": 2}, e.CallsByKey())
	require.False(t, e.Calls()[0].Done)
	require.True(t, e.Calls()[1].Done)
}

// When the client goes away, so does the model's work.
func TestCancelOverHTTP(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	_, url := serve(t, watched{scripted.New(scripted.Options{}), ended}, modeltest.EndpointOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := client(t, url, "").Generate(ctx, model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "[[wait]]"}}},
		func(model.Delta) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
}

type watched struct {
	model.Client
	ended chan error
}

func (w watched) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	reply, err := w.Client.Generate(ctx, req, emit)
	w.ended <- err
	return reply, err
}

func post(t testing.TB, e http.Handler, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func TestEndpointWithoutAStream(t *testing.T) {
	t.Parallel()
	e := modeltest.NewEndpoint(scripted.New(scripted.Options{}), modeltest.EndpointOptions{})
	status, body := post(t, e, "/v1/chat/completions", `{"model":"m","messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"What is "},{"type":"text","text":"1+1?"}]}],
		"tools":[{"type":"function","function":{"name":"calculator","parameters":{"type":"object","properties":{}}}}]}`)
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"id":"chatcmpl-endpoint","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"finish_reason":"tool_calls",
		"message":{"role":"assistant","content":"Let me find out: 1 + 1.","tool_calls":[{"id":"call_2_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\":\"1 + 1\"}"}}]}}],
		"usage":{"prompt_tokens":6,"completion_tokens":11,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}`, body)
}

func TestEndpointRefusesWhatVendorsRefuse(t *testing.T) {
	t.Parallel()
	const user = `{"role":"user","content":"Hi"}`
	called := func(id, name string) string {
		return `{"role":"assistant","tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"` + name + `","arguments":"{}"}}]}`
	}
	tests := map[string]struct {
		body string
		want string
	}{
		"not JSON":                    {`{`, "parse the JSON"},
		"no model":                    {`{"messages":[` + user + `]}`, "model parameter"},
		"no messages":                 {`{"model":"m"}`, "messages"},
		"role":                        {`{"model":"m","messages":[{"role":"narrator","content":""}]}`, "narrator"},
		"content":                     {`{"model":"m","messages":[{"role":"user","content":7}]}`, "messages[0].content"},
		"picture":                     {`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "image_url"},
		"tool name":                   {`{"model":"m","messages":[` + user + `],"tools":[{"type":"function","function":{"name":"everything/echo"}}]}`, "does not match pattern"},
		"tool twice":                  {`{"model":"m","messages":[` + user + `],"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}]}`, "twice"},
		"tool schema":                 {`{"model":"m","messages":[` + user + `],"tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object"}}}]}`, "missing properties"},
		"call without answer":         {`{"model":"m","messages":[` + user + `,` + called("1", "a") + `,` + user + `]}`, "must be followed by tool messages"},
		"call without answer, at end": {`{"model":"m","messages":[` + user + `,` + called("1", "a") + `]}`, "must be followed by tool messages"},
		"answer without call":         {`{"model":"m","messages":[` + user + `,{"role":"tool","tool_call_id":"1","content":""}]}`, "must be a response"},
		"call without id":             {`{"model":"m","messages":[` + user + `,` + called("", "a") + `]}`, "invalid tool call"},
		"assistant says nothing":      {`{"model":"m","messages":[{"role":"assistant"}]}`, "expected 'content' or 'tool_calls'"},
		"both limits":                 {`{"model":"m","messages":[` + user + `],"max_tokens":1,"max_completion_tokens":1}`, "max_completion_tokens"},
		"usage without a stream":      {`{"model":"m","messages":[` + user + `],"stream_options":{"include_usage":true}}`, "stream_options"},
		"schema without a name":       {`{"model":"m","messages":[` + user + `],"response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`, "response_format"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := modeltest.NewEndpoint(scripted.Replies(), modeltest.EndpointOptions{})
			status, body := post(t, e, "/v1/chat/completions", tt.body)
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, body, tt.want)
			require.Empty(t, e.Calls())
		})
	}
	e := modeltest.NewEndpoint(scripted.Replies(), modeltest.EndpointOptions{})
	status, _ := post(t, e, "/v1/embeddings", `{}`)
	require.Equal(t, http.StatusNotFound, status)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/models", nil))
	require.Contains(t, w.Body.String(), `"scripted"`)
}
