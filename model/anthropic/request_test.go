package anthropic

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// sent is the body of the request that a client makes.
func sent(t *testing.T, o Options, req model.Request) map[string]any {
	t.Helper()
	c, ok := open(t, o).(*Client)
	require.True(t, ok)
	params, err := c.params(req, wire.NewNames(req))
	require.NoError(t, err)
	raw, err := json.Marshal(params)
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal(raw, &body))
	return body
}

// messages is what a request says of a transcript, in JSON.
func messages(t *testing.T, all ...model.Message) (system, said string) {
	t.Helper()
	body := sent(t, Options{}, model.Request{Model: "m", Messages: all})
	raw, err := json.Marshal(body["messages"])
	require.NoError(t, err)
	first, err := json.Marshal(body["system"])
	require.NoError(t, err)
	return string(first), string(raw)
}

func TestTranscript(t *testing.T) {
	t.Parallel()
	call := func(id, arguments string) model.ToolCall {
		return model.ToolCall{ID: id, Name: "a/b", Arguments: arguments}
	}
	tests := map[string]struct {
		messages []model.Message
		want     string
	}{
		"turns of one role are one message": {
			[]model.Message{{Role: model.User, Text: "a"}, {Role: model.User, Text: "b"}, {Role: model.Assistant, Text: "c"}},
			`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":[{"type":"text","text":"c"}]}]`,
		},
		"an answer comes first": {
			[]model.Message{{Role: model.Assistant, Text: "c"}, {Role: model.User, Text: "a"}},
			`[{"role":"user","content":[{"type":"text","text":"` + wire.CutOff + `"}]},{"role":"assistant","content":[{"type":"text","text":"c"}]},{"role":"user","content":[{"type":"text","text":"a"}]}]`,
		},
		"nothing was said": {
			[]model.Message{{Role: model.User, Text: " "}, {Role: model.Assistant}, {Role: model.User, Text: "a"}},
			`[{"role":"user","content":[{"type":"text","text":"` + wire.SaidNothing + `"}]},{"role":"assistant","content":[{"type":"text","text":"` + wire.SaidNothing + `"}]},{"role":"user","content":[{"type":"text","text":"a"}]}]`,
		},
		"results of a turn's calls and what the user said then; ids of another vendor, arguments that are no object": {
			[]model.Message{
				{Role: model.User, Text: "a"}, {Role: model.Assistant, Text: "c \n", ToolCalls: []model.ToolCall{call("x.1", `{"n":1.0}`), call("y", `[`)}},
				{Role: model.ToolRole, ToolCallID: "x.1", Text: "one"}, {Role: model.ToolRole, ToolCallID: "y"}, {Role: model.User, Text: "b"},
			},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},
			 {"role":"assistant","content":[{"type":"text","text":"c"},{"type":"tool_use","id":"x_1","name":"a__b","input":{"n":1.0}},{"type":"tool_use","id":"y","name":"a__b","input":{"malformed_arguments":"["}}]},
			 {"role":"user","content":[{"type":"tool_result","tool_use_id":"x_1","content":[{"type":"text","text":"one"}]},{"type":"tool_result","tool_use_id":"y"},{"type":"text","text":"b"}]}]`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			system, said := messages(t, append([]model.Message{{Role: model.System, Text: "be kind"}, {Role: model.System, Text: " "}}, tt.messages...)...)
			require.JSONEq(t, tt.want, said)
			require.JSONEq(t, `[{"type":"text","text":"be kind"}]`, system)
		})
	}
}

func TestLimitOfTheAnswer(t *testing.T) {
	t.Parallel()
	req := model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "a"}}}
	require.EqualValues(t, DefaultMaxTokens, sent(t, Options{}, req)["max_tokens"])
	require.EqualValues(t, 100, sent(t, Options{MaxTokens: 100}, req)["max_tokens"])
	req.MaxTokens = 7
	require.EqualValues(t, 7, sent(t, Options{MaxTokens: 100}, req)["max_tokens"])
}

func TestInputSchema(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ schema, want string }{
		"none":            {"", `{"type":"object","properties":{}}`},
		"empty":           {"{}", `{"type":"object","properties":{}}`},
		"all of it stays": {`{"type":"object","properties":{"b":{"const":1.0},"a":{}},"required":["a"],"$defs":{"x":{}},"additionalProperties":false}`, `{"type":"object","properties":{"b":{"const":1.0},"a":{}},"required":["a"],"$defs":{"x":{}},"additionalProperties":false}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema, err := inputSchema(json.RawMessage(tt.schema))
			require.NoError(t, err)
			raw, err := json.Marshal(schema)
			require.NoError(t, err)
			require.JSONEq(t, tt.want, string(raw))
		})
	}
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	said := []model.Message{{Role: model.User, Text: "a"}}
	for name, tt := range map[string]struct {
		req  model.Request
		want string
	}{
		"unknown role":            {model.Request{Messages: []model.Message{{Role: "oracle"}}}, "oracle"},
		"tool schema, not JSON":   {model.Request{Messages: said, Tools: []model.Tool{{Name: "t", InputSchema: json.RawMessage(`[`)}}}, `tool "t"`},
		"answer schema, an array": {model.Request{Messages: said, Schema: json.RawMessage(`{"type":"array"}`)}, "type object only"},
		"answer schema, not JSON": {model.Request{Messages: said, Schema: json.RawMessage(`{`)}, "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, vendor := openOn(t, 200, "")
			_, _, err := ask(t, c, tt.req)
			require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelFailed})
			require.ErrorContains(t, err, tt.want)
			require.Empty(t, vendor.Received())
		})
	}
}
