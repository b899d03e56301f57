package gemini

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/modeltest"
)

var update = flag.Bool("update", false, "write the expected requests anew")

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, func(t *testing.T, s modeltest.Scenario) model.Client {
		if s.Name == "unreachable" {
			return open(t, Options{BaseURL: modeltest.Nowhere(t), APIKey: s.Key})
		}
		vendor := modeltest.NewVendor(t, filepath.Join("testdata", s.Name+".http"))
		// After the scenario: what went over the wire is what the vendor's API wants.
		t.Cleanup(func() { checkRequest(t, s, vendor.Received()) })
		return open(t, Options{BaseURL: vendor.URL, APIKey: s.Key})
	})
}

func checkRequest(t *testing.T, s modeltest.Scenario, received []modeltest.Received) {
	t.Helper()
	for _, r := range received {
		require.Equal(t, "/v1beta/models/test-model:streamGenerateContent", r.Path)
		require.Equal(t, s.Key, r.Header.Get("X-Goog-Api-Key"))
		require.Empty(t, r.Header.Get("Authorization"))
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

func sse(chunks ...string) string {
	return "data: " + strings.Join(chunks, "\n\ndata: ") + "\n\n"
}

func ask(t testing.TB, c model.Client, more ...model.Request) (model.Reply, []model.Delta, error) {
	t.Helper()
	var deltas []model.Delta
	req := model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}}
	for _, r := range more {
		req = r
	}
	reply, err := c.Generate(t.Context(), req, func(d model.Delta) { deltas = append(deltas, d) })
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
				{ID: "call_AbC123_0", Name: "calculator", Arguments: `{"expression": "19 * 23"}`, Signature: "c2lnbmVk"},
				{ID: "k2", Name: "everything/echo", Arguments: `{"message": "hello"}`},
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
	seen := 0
	for _, s := range modeltest.Scenarios() {
		expected, ok := want[s.Name]
		if !ok {
			continue
		}
		seen++
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			expected.ID, expected.Model = "AbC123", "test-model-001"
			vendor := modeltest.NewVendor(t, filepath.Join("testdata", s.Name+".http"))
			reply, err := open(t, Options{BaseURL: vendor.URL}).Generate(t.Context(), s.Request, nil)
			require.NoError(t, err)
			require.Equal(t, expected, reply)
		})
	}
	require.Len(t, want, seen)
}

const (
	begun    = `{"candidates":[{"content":{"parts":[{"text":"Hi"}]}}],"modelVersion":"m1","responseId":"r1"}`
	callsOne = `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"one","args":{"id":12345678901234567890}}}]}}],"responseId":"r1","modelVersion":"m1"}`
)

func stops(reason string) string {
	return `{"candidates":[{"finishReason":"` + reason + `","finishMessage":"so"}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2}}`
}

func TestStreams(t *testing.T) {
	t.Parallel()
	used := model.Usage{InputTokens: 3, OutputTokens: 2}
	call := func(id string) model.ToolCall {
		return model.ToolCall{ID: id, Name: "one", Arguments: `{"id":12345678901234567890}`}
	}
	tests := map[string]struct {
		body string
		want model.Reply
	}{
		"carriage returns, comments, no space after the colon": {
			": ping\r\n\r\ndata:" + begun + "\r\n\r\ndata:" + stops("STOP") + "\r\n\r\n",
			model.Reply{Text: "Hi", Finish: model.FinishStop, Usage: used},
		},
		"one tool twice, large numbers": {
			sse(callsOne, callsOne, stops("STOP")),
			model.Reply{ToolCalls: []model.ToolCall{call("call_r1_0"), call("call_r1_1")}, Finish: model.FinishTools, Usage: used},
		},
		"a call without arguments": {
			sse(`{"candidates":[{"content":{"parts":[{"functionCall":{"id":"a","name":"one"}}]}}],"responseId":"r1","modelVersion":"m1"}`, stops("STOP")),
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: "{}"}}, Finish: model.FinishTools, Usage: used},
		},
		"calls, cut by the limit": {
			sse(callsOne, stops("MAX_TOKENS")),
			model.Reply{ToolCalls: []model.ToolCall{call("call_r1_0")}, Finish: model.FinishLength, Usage: used},
		},
		"a reason of next year": {
			sse(begun, callsOne, stops("HERESY")),
			model.Reply{Text: "Hi", Finish: model.FinishFiltered, Usage: used},
		},
		"the prompt is blocked": {
			sse(`{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT","blockReasonMessage":"no"},"usageMetadata":{"promptTokenCount":3},"modelVersion":"m1","responseId":"r1"}`),
			model.Reply{Text: "no", Finish: model.FinishFiltered, Usage: model.Usage{InputTokens: 3}},
		},
		"another candidate is not ours": {
			sse(begun, `{"candidates":[{"index":1,"content":{"parts":[{"text":"No"}]},"finishReason":"STOP"}]}`, stops("STOP")),
			model.Reply{Text: "Hi", Finish: model.FinishStop, Usage: used},
		},
		"a break after the last chunk": {
			sse(begun, stops("STOP")) + ": cut\n",
			model.Reply{Text: "Hi", Finish: model.FinishStop, Usage: used},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, vendor := openOn(t, http.StatusOK, tt.body, "Content-Type", "text/event-stream")
			reply, _, err := ask(t, c)
			require.NoError(t, err)
			tt.want.ID, tt.want.Model = "r1", "m1"
			require.Equal(t, tt.want, reply)
			require.Len(t, vendor.Received(), 1)
		})
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	stream := []string{"Content-Type", "text/event-stream"}
	tests := map[string]struct {
		status  int
		body    string
		headers []string
		code    agent.Code
		fault   agent.Fault
		message string
	}{
		"nothing at all":      {200, "", stream, agent.CodeModelStream, agent.FaultTransient, "finish reason"},
		"a chunk of junk":     {200, sse(begun, "junk"), stream, agent.CodeModelStream, agent.FaultTransient, "not JSON"},
		"a call gone wrong":   {200, sse(begun, stops("MALFORMED_FUNCTION_CALL")), stream, agent.CodeModelStream, agent.FaultTransient, "MALFORMED_FUNCTION_CALL so"},
		"to be continued":     {200, sse(begun, stops("CONTINUATION")), stream, agent.CodeModelStream, agent.FaultTransient, "CONTINUATION"},
		"a page of a portal":  {200, "<html>log in</html>", []string{"Content-Type", "text/html"}, agent.CodeModelFailed, agent.FaultDefinite, "base URL"},
		"key of another kind": {400, `[{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}]`, nil, agent.CodeModelFailed, agent.FaultDefinite, "API key not valid"},
		"redirect":            {308, "", []string{"Location", "https://elsewhere.example/v1?key=secret"}, agent.CodeModelFailed, agent.FaultDefinite, "redirects to https://elsewhere.example/v1"},
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

// The environment is Google's; another server must not get its key.
func TestNothingIsTakenFromTheEnvironment(t *testing.T) {
	t.Setenv("GEMINI_API_KEY", "key-from-the-environment")
	t.Setenv("GOOGLE_API_KEY", "key-from-the-environment")
	t.Setenv("GOOGLE_GEMINI_BASE_URL", modeltest.Nowhere(t))
	t.Setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	defer server.Close()
	_, _, err := ask(t, open(t, Options{BaseURL: server.URL + "/google?tenant=a"}))
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelStream})
	require.Equal(t, "/google/v1beta/models/m:streamGenerateContent?alt=sse&tenant=a", got.URL.RequestURI())
	require.Empty(t, got.Header.Get("X-Goog-Api-Key"))
}

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"no scheme":        {BaseURL: "localhost:11434"},
		"broken":           {BaseURL: "http://user:pass word@host\x7f/"},
		"key of two lines": {APIKey: "sk-1\nX-Other: 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(o)
			require.ErrorContains(t, err, "gemini: ")
			require.NotContains(t, err.Error(), "pass word")
		})
	}
	_, err := New(Options{APIKey: " key\n"})
	require.NoError(t, err, "an address by default, white space around the key dropped")
}
