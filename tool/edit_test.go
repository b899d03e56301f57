package tool_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

func TestEditedArguments(t *testing.T) {
	t.Parallel()
	ref := agent.ToolRef{Name: "pay", InputSchema: json.RawMessage(`{"type": "object", "required": ["amount"], "additionalProperties": false, "properties": {
		"amount": {"type": "number", "maximum": 100}, "token": {"type": "string", "writeOnly": true}, "note": {"type": "string"},
		"cards": {"type": "array", "items": {"type": "object", "properties": {"pin": {"type": "string", "format": "password"}, "name": {"type": "string"}}}}}}`)}
	const asked = `{"amount": 99, "token": "s3cret", "cards": [{"pin": "1234", "name": "a"}]}`
	for by, want := range map[string]struct{ edited, shown, pointer, fault string }{
		`{"amount": 5}`: {edited: `{"amount": 5}`, shown: `{"amount": 5}`},
		`{"amount": 5, "token": "[redacted]", "cards": [{"pin": "[redacted]", "name": "b"}]}`: {edited: `{"amount": 5, "token": "s3cret", "cards": [{"pin": "1234", "name": "b"}]}`,
			shown: `{"amount": 5, "token": "[redacted]", "cards": [{"pin": "[redacted]", "name": "b"}]}`},
		`{"amount": 5, "token": "another"}`:                   {edited: `{"amount": 5, "token": "another"}`, shown: `{"amount": 5, "token": "[redacted]"}`},
		`{"amount": 5, "note": "[redacted]"}`:                 {edited: `{"amount": 5, "note": "[redacted]"}`, shown: `{"amount": 5, "note": "[redacted]"}`},
		`{"amount": 500}`:                                     {pointer: "/amount", fault: "100"},
		`{"token": "[redacted]"}`:                             {pointer: "/amount", fault: "required"},
		`{"amount": 5, "who": "me"}`:                          {pointer: "/who", fault: "is unknown"},
		`{"amount": {"$from": "/nodes/a/x"}}`:                 {pointer: "/amount", fault: "number"},
		`{"amount": 5, "token": 7}`:                           {pointer: "/token", fault: "not shown"},
		`{"amount": 5, "cards": [{}, {"pin": "[redacted]"}]}`: {pointer: "/cards/1/pin", fault: "there was no secret here"},
		`[1]`: {fault: "want an object"},
	} {
		edited, shown, faults, err := tool.EditCall(ref, json.RawMessage(asked), json.RawMessage(by))
		require.NoError(t, err)
		if want.fault != "" {
			require.NotEmpty(t, faults, by)
			require.Equal(t, want.pointer, faults[0].Pointer, by)
			require.Contains(t, faults[0].Message, want.fault, by)
			require.Nil(t, edited)
			continue
		}
		require.Empty(t, faults, by)
		require.JSONEq(t, want.edited, string(edited))
		require.JSONEq(t, want.shown, string(shown))
	}
	_, _, _, err := tool.EditCall(agent.ToolRef{Name: "odd", InputSchema: json.RawMessage(`[]`)}, nil, nil)
	require.ErrorContains(t, err, "tool odd: input schema")
}
