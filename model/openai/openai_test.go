package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/wire"
)

var update = flag.Bool("update", false, "write the expected requests anew")

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, func(t *testing.T, s modeltest.Scenario) model.Client {
		if s.Name == "unreachable" {
			return open(t, Options{BaseURL: modeltest.Nowhere(t) + "/v1", APIKey: s.Key})
		}
		vendor := modeltest.NewVendor(t, filepath.Join("testdata", s.Name+".http"))
		// After the scenario: what went over the wire is what the vendor's API wants.
		t.Cleanup(func() { checkRequest(t, s, vendor.Received()) })
		return open(t, Options{BaseURL: vendor.URL + "/v1", APIKey: s.Key})
	})
}

func checkRequest(t *testing.T, s modeltest.Scenario, received []modeltest.Received) {
	t.Helper()
	for _, r := range received {
		require.Equal(t, "/v1/chat/completions", r.Path)
		require.Equal(t, "Bearer "+s.Key, r.Header.Get("Authorization"))
		require.Equal(t, s.Request.Key, r.Header.Get("Idempotency-Key"))
		require.Equal(t, "0", r.Header.Get("X-Stainless-Retry-Count"))
	}
	switch s.Name {
	case "ended_before":
		require.Empty(t, received)
		return
	case "concurrent":
		require.Len(t, received, 9)
		return
	}
	require.Len(t, received, 1, "one request, no retries")
	name := s.Name
	if s.Vendor || s.Name == "emit_nil" {
		name = "text" // they ask the same
	}
	golden := filepath.Join("testdata", name+".request.json")
	var pretty bytes.Buffer
	require.NoError(t, json.Indent(&pretty, received[0].Body, "", "  "))
	if *update && name == s.Name {
		require.NoError(t, os.WriteFile(golden, append(bytes.TrimSpace(pretty.Bytes()), '\n'), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.JSONEq(t, string(want), pretty.String())
}

func open(t testing.TB, o Options) model.Client {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	return c
}

// openOn opens a client on a recording that is made for this test.
func openOn(t testing.TB, status int, body string, headers ...string) (model.Client, *modeltest.Vendor) {
	t.Helper()
	vendor := modeltest.NewVendor(t, modeltest.Recording(t, status, body, headers...))
	return open(t, Options{BaseURL: vendor.URL, APIKey: "sk-0123456789"}), vendor
}

func sse(events ...string) string {
	return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n"
}

func ask(t testing.TB, c model.Client) (model.Reply, []model.Delta, error) {
	t.Helper()
	var deltas []model.Delta
	reply, err := c.Generate(t.Context(), model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}},
		func(d model.Delta) { deltas = append(deltas, d) })
	return reply, deltas, err
}

func TestReplyInFull(t *testing.T) {
	t.Parallel()
	want := map[string]model.Reply{
		"text": {
			Text: "A ledger is an append-only record — of what “happened” ✓.", Finish: model.FinishStop,
			Usage: model.Usage{InputTokens: 16, OutputTokens: 12, CachedTokens: 8},
		},
		"tools": {
			ToolCalls: []model.ToolCall{
				{ID: "call_k1", Name: "calculator", Arguments: `{"expression":"19 * 23"}`},
				{ID: "call_k2", Name: "everything/echo", Arguments: `{"message":"hello"}`},
			},
			Finish: model.FinishTools, Usage: model.Usage{InputTokens: 121, OutputTokens: 43},
		},
		"thinking": {
			Text: "No, it is not.", Thinking: "7 times 13 is 91.", Finish: model.FinishStop,
			Usage: model.Usage{InputTokens: 17, OutputTokens: 21, ReasoningTokens: 15},
		},
		"refusal": {
			Text: "I can't help with that.", Finish: model.FinishFiltered, Usage: model.Usage{InputTokens: 15, OutputTokens: 9},
		},
	}
	for _, s := range modeltest.Scenarios() {
		expected, ok := want[s.Name]
		if !ok {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			expected.ID, expected.Model = "chatcmpl-AbC123", "test-model-2026-08-07"
			vendor := modeltest.NewVendor(t, filepath.Join("testdata", s.Name+".http"))
			reply, err := open(t, Options{BaseURL: vendor.URL}).Generate(t.Context(), s.Request, nil)
			require.NoError(t, err)
			require.Equal(t, expected, reply)
		})
	}
}

func TestStreamsOfCompatibleServers(t *testing.T) {
	t.Parallel()
	call := func(index int, id, name, arguments string) string {
		return fmt.Sprintf(`{"id":"r1","choices":[{"index":0,"delta":{"tool_calls":[{"index":%d,"id":%q,"function":{"name":%q,"arguments":%q}}]}}]}`, index, id, name, arguments)
	}
	const stop = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	tests := map[string]struct {
		body string
		want model.Reply
	}{
		"end of the body after a finish reason, no DONE": {
			sse(`{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`),
			model.Reply{Text: "Hi", Finish: model.FinishStop, Model: "m"},
		},
		"DONE without a finish reason": {
			sse(`{"choices":[{"index":0,"delta":{"content":"Hi"}}]}`, `[DONE]`),
			model.Reply{Text: "Hi", Finish: model.FinishStop, Model: "m"},
		},
		"null error in every chunk": {
			sse(`{"error":null,"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`, `[DONE]`),
			model.Reply{Text: "Hi", Finish: model.FinishStop, Model: "m"},
		},
		"comments, carriage returns and no space after the colon": {
			": OPENROUTER PROCESSING\r\n\r\ndata:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\r\n\r\ndata:[DONE]\r\n\r\n",
			model.Reply{Text: "Hi", Finish: model.FinishStop, Model: "m"},
		},
		"calls that all have index 0 and end with stop": {
			sse(call(0, "a", "one", `{}`), call(0, "b", "two", `{"x":1}`), stop, `[DONE]`),
			model.Reply{
				ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{}`}, {ID: "b", Name: "two", Arguments: `{"x":1}`}},
				Finish:    model.FinishTools, Model: "m", ID: "r1",
			},
		},
		"a fresh id in every fragment of one call": {
			sse(call(0, "a", "one", `{"x"`), call(0, "b", "", `:1}`), stop, `[DONE]`),
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{"x":1}`}}, Finish: model.FinishTools, Model: "m", ID: "r1"},
		},
		"the name repeated with every fragment": {
			sse(call(0, "a", "one", `{"x"`), call(0, "a", "one", `:1}`), stop, `[DONE]`),
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{"x":1}`}}, Finish: model.FinishTools, Model: "m", ID: "r1"},
		},
		"no ids, one id twice, no arguments": {
			sse(call(0, "", "one", ``), call(1, "x", "two", `{}`), call(2, "x", "three", `{}`), stop, `[DONE]`),
			model.Reply{
				ToolCalls: []model.ToolCall{
					{ID: "call_r1_0", Name: "one", Arguments: `{}`}, {ID: "x", Name: "two", Arguments: `{}`}, {ID: "call_r1_2", Name: "three", Arguments: `{}`},
				},
				Finish: model.FinishTools, Model: "m", ID: "r1",
			},
		},
		"a tool that nobody offered": {
			sse(call(0, "a", "made__up", `{}`), stop, `[DONE]`),
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "made__up", Arguments: `{}`}}, Finish: model.FinishTools, Model: "m", ID: "r1"},
		},
		"calls cut by the limit": {
			sse(call(0, "a", "one", `{"x`), `{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`, `[DONE]`),
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{"x`}}, Finish: model.FinishLength, Model: "m", ID: "r1"},
		},
		"reasoning sent under both names, usage in every chunk, cache hits in DeepSeek's words": {
			sse(`{"choices":[{"index":0,"delta":{"reasoning":"hm","reasoning_content":"hm"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
				`{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_cache_hit_tokens":2}}`, `[DONE]`),
			model.Reply{Text: "Hi", Thinking: "hm", Finish: model.FinishStop, Model: "m", Usage: model.Usage{InputTokens: 3, OutputTokens: 2, CachedTokens: 2}},
		},
		"reasoning as plain reasoning": {
			sse(`{"choices":[{"index":0,"delta":{"content":"","reasoning":"hm"}}]}`, `{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`, `[DONE]`),
			model.Reply{Text: "Hi", Thinking: "hm", Finish: model.FinishStop, Model: "m"},
		},
		"content in parts": {
			sse(`{"choices":[{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"Hi"}]},"finish_reason":"stop"}]}`, `[DONE]`),
			model.Reply{Text: "Hi", Thinking: "hm", Finish: model.FinishStop, Model: "m"},
		},
		"another choice is not ours": {
			sse(`{"choices":[{"index":1,"delta":{"content":"No"},"finish_reason":"stop"},{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`, `[DONE]`),
			model.Reply{Text: "Hi", Finish: model.FinishStop, Model: "m"},
		},
		"an empty answer that ended properly": {
			sse(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}`, `[DONE]`),
			model.Reply{Finish: model.FinishStop, Model: "m"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := openOn(t, http.StatusOK, tt.body, "Content-Type", "text/event-stream")
			reply, _, err := ask(t, c)
			require.NoError(t, err)
			require.Equal(t, tt.want, reply)
		})
	}
}

func TestServerThatDoesNotStream(t *testing.T) {
	t.Parallel()
	c, _ := openOn(t, http.StatusOK, `{"id":"r1","model":"n","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":"Hi",
		"tool_calls":[{"id":"a","type":"function","function":{"name":"one","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"two","arguments":"{\"x\":1}"}}]}}],
		"usage":{"prompt_tokens":3,"completion_tokens":2}}`, "Content-Type", "application/json")
	reply, deltas, err := ask(t, c)
	require.NoError(t, err)
	require.Equal(t, model.Reply{
		Text: "Hi", Finish: model.FinishTools, Model: "n", ID: "r1", Usage: model.Usage{InputTokens: 3, OutputTokens: 2},
		ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{}`}, {ID: "b", Name: "two", Arguments: `{"x":1}`}},
	}, reply)
	require.Equal(t, model.Delta{Channel: model.Text, Text: "Hi"}, deltas[0])
}

func TestErrors(t *testing.T) {
	t.Parallel()
	stream := []string{"Content-Type", "text/event-stream"}
	asJSON := []string{"Content-Type", "application/json"}
	const begun = `{"choices":[{"index":0,"delta":{"content":"Hi"}}]}`
	tests := map[string]struct {
		status  int
		body    string
		headers []string
		code    agent.Code
		fault   agent.Fault
		message string
	}{
		"only DONE":            {200, "data: [DONE]\n\n", stream, agent.CodeModelStream, agent.FaultTransient, "without an answer"},
		"nothing at all":       {200, "", stream, agent.CodeModelStream, agent.FaultTransient, "end mark"},
		"a chunk cut in two":   {200, sse(begun) + "data: {\"choices\":[{\"ind", stream, agent.CodeModelStream, agent.FaultTransient, "end mark"},
		"a chunk of rubbish":   {200, sse(begun, "not json"), stream, agent.CodeModelStream, agent.FaultTransient, "not JSON"},
		"finish reason error":  {200, sse(`{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}`), stream, agent.CodeModelStream, agent.FaultTransient, "reports an error"},
		"a page of a portal":   {200, "<html>log in</html>", []string{"Content-Type", "text/html"}, agent.CodeModelFailed, agent.FaultDefinite, "base URL"},
		"error in 200 JSON":    {200, `{"error":{"message":"no such model","code":404}}`, asJSON, agent.CodeModelFailed, agent.FaultDefinite, "404 Not Found: no such model"},
		"JSON of another kind": {200, `{"hello":"world"}`, asJSON, agent.CodeModelStream, agent.FaultTransient, "no completion"},
		"event with a number":  {200, sse(begun, `{"error":{"message":"bad gateway","code":502}}`), stream, agent.CodeModelUnavailable, agent.FaultTransient, "502 Bad Gateway"},
		"event with 400":       {200, sse(begun, `{"error":{"message":"too long","type":"BadRequestError","code":400}}`), stream, agent.CodeModelFailed, agent.FaultDefinite, "too long"},
		"event error string":   {200, sse(begun, `{"error":"boom"}`), stream, agent.CodeModelUnavailable, agent.FaultTransient, "boom"},
		"event: error":         {200, "event: error\ndata: {\"message\":\"boom\",\"type\":\"invalid_request_error\"}\n\n", stream, agent.CodeModelFailed, agent.FaultDefinite, "boom"},
		"event: error, text":   {200, "event: error\ndata: boom\n\n", stream, agent.CodeModelUnavailable, agent.FaultTransient, "boom"},
		"quota in a stream":    {200, sse(`{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}`), stream, agent.CodeModelFailed, agent.FaultDefinite, "quota"},
		"rate in a stream":     {200, sse(`{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`), stream, agent.CodeModelUnavailable, agent.FaultTransient, "slow down"},
		"list of one error":    {400, `[{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}]`, asJSON, agent.CodeModelFailed, agent.FaultDefinite, "API key not valid"},
		"plain text":           {404, "404 page not found", []string{"Content-Type", "text/plain"}, agent.CodeModelFailed, agent.FaultDefinite, "404 page not found"},
		"no body":              {401, "", nil, agent.CodeModelFailed, agent.FaultDefinite, "401 Unauthorized"},
		"error without words":  {400, `{"error":{"message":"","type":"invalid_request_error","code":null}}`, asJSON, agent.CodeModelFailed, agent.FaultDefinite, "invalid_request_error"},
		"payment":              {402, `{"error":{"message":"Insufficient Balance"}}`, asJSON, agent.CodeModelFailed, agent.FaultDefinite, "Insufficient Balance"},
		"redirect":             {308, "", []string{"Location", "https://elsewhere.example/v1?key=secret"}, agent.CodeModelFailed, agent.FaultDefinite, "redirects to https://elsewhere.example/v1"},
		"too early":            {425, "", nil, agent.CodeModelUnavailable, agent.FaultTransient, "425"},
		"overloaded, 529":      {529, `{"error":{"message":"Overloaded"}}`, asJSON, agent.CodeModelUnavailable, agent.FaultTransient, "Overloaded"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, vendor := openOn(t, tt.status, tt.body, tt.headers...)
			_, _, err := ask(t, c)
			e, ok := agent.AsError(err)
			require.True(t, ok, "%v", err)
			require.Equal(t, tt.code, e.Code, "%v", err)
			require.Equal(t, tt.fault, e.Fault, "%v", err)
			require.Contains(t, e.Message, tt.message)
			require.NotContains(t, e.Message, "secret")
			require.Len(t, vendor.Received(), 1)
		})
	}
}

func TestWholeAnswerSurvivesABreakBeforeItsUsage(t *testing.T) {
	t.Parallel()
	c, _ := openOn(t, http.StatusOK, sse(`{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`)+": cut\n", "Content-Type", "text/event-stream")
	reply, _, err := ask(t, c)
	require.NoError(t, err)
	require.Equal(t, "Hi", reply.Text)
}

func TestConnectionErrorsAreWrapped(t *testing.T) {
	t.Parallel()
	_, _, err := ask(t, open(t, Options{BaseURL: modeltest.Nowhere(t)}))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelUnavailable})
}

// A timeout of the HTTP client must not look like the end of the caller's context: nobody would try again.
func TestTimeoutOfTheHTTPClient(t *testing.T) {
	t.Parallel()
	client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, fmt.Errorf("net/http: request canceled (Client.Timeout exceeded): %w", context.DeadlineExceeded)
	})}
	_, _, err := ask(t, open(t, Options{BaseURL: "http://vendor.example", HTTPClient: client}))
	e, ok := agent.AsError(err)
	require.True(t, ok)
	require.Equal(t, agent.FaultTransient, e.Fault)
	require.False(t, errors.Is(err, context.DeadlineExceeded))
	require.Contains(t, e.Message, "vendor.example")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestKeysStayOutOfErrors(t *testing.T) {
	t.Parallel()
	const long, short = "sk-very-long-key-that-vendors-echo", "none"
	tests := map[string]struct{ key, said, want string }{
		"quoted":                    {long, `{"error":{"message":"bad key ` + long + `!"}}`, "bad key [redacted]!"},
		"in plain text":             {long, "bad key " + long, "bad key [redacted]"},
		"where the message is cut":  {long, strings.Repeat("x", wire.MaxMessage-10) + long, strings.Repeat("x", wire.MaxMessage-10) + "[redacted]"},
		"short, as a word":          {short, "key none is bad", "key [redacted] is bad"},
		"short, within other words": {short, "nonexistent, anonenone", "nonexistent, anonenone"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vendor := modeltest.NewVendor(t, modeltest.Recording(t, http.StatusUnauthorized, tt.said))
			_, _, err := ask(t, open(t, Options{BaseURL: vendor.URL, APIKey: tt.key}))
			require.EqualError(t, err, "MODEL_FAILED: the model's vendor answered 401 Unauthorized: "+tt.want)
		})
	}
	t.Run("in an error of the transport", func(t *testing.T) {
		t.Parallel()
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "write", Err: errors.New("cannot send " + r.Header.Get("Authorization"))}
		})}
		_, _, err := ask(t, open(t, Options{BaseURL: "http://vendor.example?api-version=1&key=hidden", APIKey: long, HTTPClient: client}))
		for ; err != nil; err = errors.Unwrap(err) {
			require.NotContains(t, err.Error(), long)
			require.NotContains(t, err.Error(), "hidden")
		}
	})
}

// The environment is OpenAI's; a local server must not get its key.
func TestNothingIsTakenFromTheEnvironment(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-from-the-environment")
	t.Setenv("OPENAI_ORG_ID", "org")
	t.Setenv("OPENAI_BASE_URL", modeltest.Nowhere(t))
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-Custom: yes")
	vendor := modeltest.NewVendor(t, filepath.Join("testdata", "text.http"))
	_, _, err := ask(t, open(t, Options{BaseURL: vendor.URL + "/v1?api-version=1"}))
	require.NoError(t, err)
	header := vendor.Received()[0].Header
	require.Empty(t, header.Get("Authorization"))
	require.Empty(t, header.Get("OpenAI-Organization"))
	require.Empty(t, header.Get("X-Custom"))
}

func TestQueryOfTheBaseURLIsKept(t *testing.T) {
	t.Parallel()
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.RequestURI() }))
	defer server.Close()
	_, _, _ = ask(t, open(t, Options{BaseURL: server.URL + "/openai/v1?api-version=preview"}))
	require.Equal(t, "/openai/v1/chat/completions?api-version=preview", got)
}

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"no scheme":         {BaseURL: "localhost:11434"},
		"other scheme":      {BaseURL: "ftp://host/v1"},
		"no host":           {BaseURL: "http:///v1"},
		"broken":            {BaseURL: "http://user:pass word@host\x7f/"},
		"key of two lines":  {APIKey: "sk-1\nX-Other: 2"},
		"password and path": {BaseURL: "mailto:secret@host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(o)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "pass word")
		})
	}
	_, err := New(Options{APIKey: " sk-1\n"})
	require.NoError(t, err, "an address by default, white space around the key dropped")
}

func TestCancelWhileTheVendorIsSilent(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"before the first event": ": hang\n",
		"between events":         sse(`{"choices":[{"index":0,"delta":{"content":"Hi"}}]}`) + ": hang\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, vendor := openOn(t, http.StatusOK, body, "Content-Type", "text/event-stream")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := c.Generate(ctx, model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}}, nil)
				done <- err
			}()
			require.Eventually(t, func() bool { return len(vendor.Received()) == 1 }, 30*time.Second, time.Millisecond)
			cancel()
			err := <-done
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, &agent.Error{Code: agent.CodeCancelled})
		})
	}
}

// A model is not paid for what nobody reads: the vendor's end of the stream is closed.
func TestCancelClosesTheStream(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"before the first event": "", "between events": sse(`{"choices":[{"index":0,"delta":{"content":"Hi"}}]}`)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, gone := make(chan struct{}), make(chan struct{})
			vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, first)
				_ = http.NewResponseController(w).Flush()
				close(arrived)
				<-r.Context().Done()
				close(gone)
			}))
			t.Cleanup(vendor.Close)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-arrived; cancel() }()
			_, err := open(t, Options{BaseURL: vendor.URL}).Generate(ctx, model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}},
				func(model.Delta) {})
			require.ErrorIs(t, err, context.Canceled)
			<-gone
		})
	}
}
