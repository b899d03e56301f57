package anthropic

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
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
		require.Equal(t, "/v1/messages", r.Path)
		require.Equal(t, s.Key, r.Header.Get("X-Api-Key"))
		require.Equal(t, "2023-06-01", r.Header.Get("Anthropic-Version"))
		require.Equal(t, s.Request.Key, r.Header.Get("Idempotency-Key"))
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

// sse writes events, each with its type as the event's name.
func sse(t testing.TB, events ...string) string {
	t.Helper()
	var b strings.Builder
	for _, e := range events {
		var typed struct {
			Type string `json:"type"`
		}
		require.NoError(t, json.Unmarshal([]byte(e), &typed))
		b.WriteString("event: " + typed.Type + "\ndata: " + e + "\n\n")
	}
	return b.String()
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
				{ID: "toolu_k1", Name: "calculator", Arguments: `{"expression":"19 * 23"}`},
				{ID: "toolu_k2", Name: "everything/echo", Arguments: `{"message":"hello"}`},
			},
			Finish: model.FinishTools, Usage: model.Usage{InputTokens: 121, OutputTokens: 43},
		},
		"structured": {
			Text: `{"verdict":"accept","score":4,"reasons":["short"]}`, Finish: model.FinishStop,
			Usage: model.Usage{InputTokens: 90, OutputTokens: 30},
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
			expected.ID, expected.Model = "msg_01AbC123", "test-model-20260807"
			vendor := modeltest.NewVendor(t, filepath.Join("testdata", s.Name+".http"))
			reply, err := open(t, Options{BaseURL: vendor.URL}).Generate(t.Context(), s.Request, nil)
			require.NoError(t, err)
			require.Equal(t, expected, reply)
		})
	}
	require.Len(t, want, seen)
}

const (
	begun     = `{"type":"message_start","message":{"id":"r1","model":"m","usage":{"input_tokens":3,"output_tokens":1}}}`
	saysHi    = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}`
	callsOne  = `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"one","input":{}}}`
	halfACall = `{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"x"}}`
)

func stops(reason string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `"},"usage":{"output_tokens":2}}`
}

func TestStreams(t *testing.T) {
	t.Parallel()
	used := model.Usage{InputTokens: 3, OutputTokens: 2}
	schema := model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}, Schema: json.RawMessage(`{"type":"object"}`), SchemaName: "one"}
	tests := map[string]struct {
		events []string
		req    []model.Request
		want   model.Reply
	}{
		"no end mark after a stop reason": {
			[]string{begun, saysHi, stops("end_turn")}, nil,
			model.Reply{Text: "Hi", Finish: model.FinishStop, Usage: used},
		},
		"a call cut by the limit": {
			[]string{begun, saysHi, callsOne, halfACall, stops("max_tokens")}, nil,
			model.Reply{Text: "Hi", ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{"x`}}, Finish: model.FinishLength, Usage: used},
		},
		"a call without arguments": {
			[]string{begun, callsOne, stops("tool_use")}, nil,
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{}`}}, Finish: model.FinishTools, Usage: used},
		},
		"arguments whole, with the start": {
			[]string{begun, `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"one","input":{"x":1}}}`, stops("tool_use")}, nil,
			model.Reply{ToolCalls: []model.ToolCall{{ID: "a", Name: "one", Arguments: `{"x":1}`}}, Finish: model.FinishTools, Usage: used},
		},
		"an event nobody knows, the context's end": {
			[]string{begun, `{"type":"news"}`, saysHi, stops("model_context_window_exceeded")}, nil,
			model.Reply{Text: "Hi", Finish: model.FinishLength, Usage: used},
		},
		"cache written and read, counted anew at the end": {
			[]string{begun, saysHi, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":5,"cache_creation_input_tokens":7,"cache_read_input_tokens":11,"output_tokens":2}}`}, nil,
			model.Reply{Text: "Hi", Finish: model.FinishStop, Usage: model.Usage{InputTokens: 23, OutputTokens: 2, CachedTokens: 11}},
		},
		"a schema, words beside the answer": {
			[]string{begun, saysHi, callsOne, `{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}`, stops("tool_use")}, []model.Request{schema},
			model.Reply{Text: "{}", Finish: model.FinishStop, Usage: used},
		},
		"a schema, refused in words": {
			[]string{begun, saysHi, stops("refusal")}, []model.Request{schema},
			model.Reply{Text: "Hi", Finish: model.FinishFiltered, Usage: used},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := openOn(t, http.StatusOK, sse(t, tt.events...), "Content-Type", "text/event-stream")
			reply, deltas, err := ask(t, c, tt.req...)
			require.NoError(t, err)
			tt.want.ID, tt.want.Model = "r1", "m"
			require.Equal(t, tt.want, reply)
			var text strings.Builder
			for _, d := range deltas {
				if d.Channel == model.Text {
					text.WriteString(d.Text)
				}
			}
			require.Equal(t, reply.Text, text.String())
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
		"nothing at all":     {200, "", stream, agent.CodeModelStream, agent.FaultTransient, "end mark"},
		"an event cut":       {200, sse(t, begun) + "event: content_block_delta\ndata: {\"type\":\"cont", stream, agent.CodeModelStream, agent.FaultTransient, "end mark"},
		"an event of junk":   {200, sse(t, begun) + "event: content_block_delta\ndata: junk\n\n", stream, agent.CodeModelStream, agent.FaultTransient, "not JSON"},
		"end without a stop": {200, sse(t, begun, `{"type":"message_stop"}`), stream, agent.CodeModelStream, agent.FaultTransient, "end mark"},
		"a page of a portal": {200, "<html>log in</html>", []string{"Content-Type", "text/html"}, agent.CodeModelFailed, agent.FaultDefinite, "base URL"},
		"too much":           {413, `{"type":"error","error":{"type":"request_too_large","message":"too large"}}`, nil, agent.CodeModelFailed, agent.FaultDefinite, "too large"},
		"no credit":          {200, sse(t, `{"type":"error","error":{"type":"billing_error","message":"pay first"}}`), stream, agent.CodeModelFailed, agent.FaultDefinite, "pay first"},
		"rate in a stream":   {200, sse(t, begun, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`), stream, agent.CodeModelUnavailable, agent.FaultTransient, "slow down"},
		"error in words":     {200, "event: error\ndata: boom\n\n", stream, agent.CodeModelUnavailable, agent.FaultTransient, "boom"},
		"redirect":           {308, "", []string{"Location", "https://elsewhere.example/v1?key=secret"}, agent.CodeModelFailed, agent.FaultDefinite, "redirects to https://elsewhere.example/v1"},
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

// The environment is Anthropic's; another server must not get its key.
func TestNothingIsTakenFromTheEnvironment(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-from-the-environment")
	t.Setenv("ANTHROPIC_AUTH_TOKEN", "token-from-the-environment")
	t.Setenv("ANTHROPIC_BASE_URL", modeltest.Nowhere(t))
	t.Setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Custom: yes")
	vendor := modeltest.NewVendor(t, filepath.Join("testdata", "text.http"))
	_, _, err := ask(t, open(t, Options{BaseURL: vendor.URL + "?beta=true"}))
	require.NoError(t, err)
	header := vendor.Received()[0].Header
	require.Empty(t, header.Get("X-Api-Key"))
	require.Empty(t, header.Get("Authorization"))
	require.Empty(t, header.Get("X-Custom"))
}

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"no scheme":           {BaseURL: "localhost:11434"},
		"broken":              {BaseURL: "http://user:pass word@host\x7f/"},
		"key of two lines":    {APIKey: "sk-1\nX-Other: 2"},
		"less than no tokens": {MaxTokens: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(o)
			require.ErrorContains(t, err, "anthropic: ")
			require.NotContains(t, err.Error(), "pass word")
		})
	}
	_, err := New(Options{APIKey: " sk-1\n"})
	require.NoError(t, err, "an address by default, white space around the key dropped")
}
