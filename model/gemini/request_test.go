package gemini

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/wire"
)

func TestTranscript(t *testing.T) {
	t.Parallel()
	system := []model.Message{{Role: model.System, Text: "be kind"}, {Role: model.System, Text: " "}}
	tests := map[string]struct {
		messages []model.Message
		want     string
	}{
		"turns of one role are one content": {
			[]model.Message{{Role: model.User, Text: "a"}, {Role: model.User, Text: "b"}, {Role: model.Assistant, Text: "c"}},
			`[{"role":"user","parts":[{"text":"a"},{"text":"b"}]},{"role":"model","parts":[{"text":"c"}]}]`,
		},
		"an answer comes first, nothing was said": {
			[]model.Message{{Role: model.Assistant}, {Role: model.User}},
			`[{"role":"user","parts":[{"text":"` + wire.CutOff + `"}]},{"role":"model","parts":[{"text":"` + wire.SaidNothing + `"}]},{"role":"user","parts":[{"text":"` + wire.SaidNothing + `"}]}]`,
		},
		"results of a turn's calls, then the user; a signature, another vendor's": {
			[]model.Message{
				{Role: model.User, Text: "a"},
				{Role: model.Assistant, Text: "c", ToolCalls: []model.ToolCall{
					{ID: "x", Name: "a/b", Arguments: `{"n":1}`, Signature: "c2lnbmVk"}, {ID: "y", Name: "a/b", Arguments: `[`, Signature: "?"},
				}},
				{Role: model.ToolRole, ToolCallID: "x", ToolName: "a/b", Text: "one"}, {Role: model.ToolRole, ToolCallID: "y", ToolName: "a/b"},
				{Role: model.User, Text: "b"},
			},
			`[{"role":"user","parts":[{"text":"a"}]},
			 {"role":"model","parts":[{"text":"c"},{"functionCall":{"id":"x","name":"a__b","args":{"n":1}},"thoughtSignature":"c2lnbmVk"},{"functionCall":{"id":"y","name":"a__b","args":{"malformed_arguments":"["}}}]},
			 {"role":"user","parts":[{"functionResponse":{"id":"x","name":"a__b","response":{"output":"one"}}},{"functionResponse":{"id":"y","name":"a__b","response":{"output":""}}}]},
			 {"role":"user","parts":[{"text":"b"}]}]`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, vendor := openOn(t, 200, "")
			_, _, err := ask(t, c, model.Request{Model: "m", Messages: append(system[:2:2], tt.messages...)})
			require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelStream})
			var body struct {
				Contents json.RawMessage `json:"contents"`
				System   struct {
					Parts json.RawMessage `json:"parts"`
				} `json:"systemInstruction"`
			}
			require.NoError(t, json.Unmarshal(vendor.Received()[0].Body, &body))
			require.JSONEq(t, tt.want, string(body.Contents))
			require.JSONEq(t, `[{"text":"be kind"}]`, string(body.System.Parts))
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
		"unknown role":                   {model.Request{Model: "m", Messages: []model.Message{{Role: "oracle"}}}, "oracle"},
		"tool schema, not JSON":          {model.Request{Model: "m", Messages: said, Tools: []model.Tool{{Name: "t", InputSchema: json.RawMessage(`[`)}}}, `tool "t"`},
		"answer schema, not JSON":        {model.Request{Model: "m", Messages: said, Schema: json.RawMessage(`{`)}, "not JSON"},
		"a model's name that is a query": {model.Request{Model: "m?key=1", Messages: said}, "cannot be written"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vendor := modeltest.NewVendor(t, modeltest.Recording(t, 200, ""))
			_, _, err := ask(t, open(t, Options{BaseURL: vendor.URL}), tt.req)
			require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelFailed})
			require.ErrorContains(t, err, tt.want)
			require.Empty(t, vendor.Received())
		})
	}
}

// An id of many digits comes back to the model as it was written, or it would call the next tool with another.
func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	c, vendor := openOn(t, 200, "")
	_, _, err := ask(t, c, model.Request{Model: "m", Messages: []model.Message{
		{Role: model.Assistant, ToolCalls: []model.ToolCall{{ID: "x", Name: "one", Arguments: `{"id": 12345678901234567890}`}}},
	}})
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelStream})
	require.Contains(t, string(vendor.Received()[0].Body), `"args":{"id":12345678901234567890}`)
}
