package openai

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/wire"
)

func TestStrictSchema(t *testing.T) {
	t.Parallel()
	object := func(properties, required, more string) string {
		return fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false%s}`, properties, required, more)
	}
	deep := `{"type":"string"}`
	for range 10 {
		deep = object(`"a":`+deep, `"a"`, "")
	}
	tests := map[string]struct {
		schema string
		want   bool
	}{
		"closed, all required":            {object(`"a":{"type":"string"}`, `"a"`, ""), true},
		"no properties":                   {object("", "", ""), true},
		"nested, arrays, null":            {object(`"a":{"type":"array","items":`+object(`"b":{"type":["string","null"]}`, `"b"`, "")+`}`, `"a"`, ""), true},
		"references":                      {object(`"a":{"$ref":"#/$defs/n"}`, `"a"`, `,"$defs":{"n":`+object("", "", "")+`}`), true},
		"anyOf below the root":            {object(`"a":{"anyOf":[{"type":"string"},{"type":"null"}]}`, `"a"`, ""), true},
		"enum, const, format, bounds":     {object(`"a":{"enum":["x"]},"b":{"const":1},"c":{"type":"string","format":"date-time"},"d":{"type":"integer","minimum":1}`, `"a","b","c","d"`, ""), true},
		"open object":                     {`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, false},
		"additional properties by schema": {`{"type":"object","properties":{},"required":[],"additionalProperties":{"type":"string"}}`, false},
		"an optional property":            {object(`"a":{"type":"string"}`, "", ""), false},
		"requires what is not there":      {object(`"a":{"type":"string"}`, `"a","b"`, ""), false},
		"free form object below":          {object(`"a":{"type":"object"}`, `"a"`, ""), false},
		"oneOf":                           {object(`"a":{"oneOf":[{"type":"string"}]}`, `"a"`, ""), false},
		"default":                         {object(`"a":{"type":"string","default":"x"}`, `"a"`, ""), false},
		"unknown format":                  {object(`"a":{"type":"string","format":"uri"}`, `"a"`, ""), false},
		"empty schema":                    {object(`"a":{}`, `"a"`, ""), false},
		"true as a schema":                {object(`"a":true`, `"a"`, ""), false},
		"array of anything":               {object(`"a":{"type":"array"}`, `"a"`, ""), false},
		"root is an array":                {`{"type":"array","items":{"type":"string"}}`, false},
		"root is anyOf":                   {`{"type":"object","anyOf":[]}`, false},
		"too deep":                        {deep, false},
		"not JSON":                        {`{`, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, strictSchema(json.RawMessage(tt.schema)))
		})
	}
}

// sent is the body of the request that a client makes.
func sent(t *testing.T, base string, req model.Request) map[string]any {
	t.Helper()
	c, ok := open(t, Options{BaseURL: base}).(*Client)
	require.True(t, ok)
	params, err := c.params(req, wire.NewNames(req))
	require.NoError(t, err)
	raw, err := json.Marshal(params)
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal(raw, &body))
	return body
}

func TestLimitOfTheAnswer(t *testing.T) {
	t.Parallel()
	const older, newer = "max_tokens", "max_completion_tokens"
	tests := []struct{ base, model, want string }{
		{"http://127.0.0.1:11434/v1", "llama3", older},
		{"https://api.mistral.ai/v1", "mistral-large", older},
		{"https://api.openai.com/v1", "gpt-4o", newer},
		{"https://eu.api.openai.com/v1", "anything", newer},
		{"https://me.openai.azure.com/openai/v1", "deployment", newer},
		{"https://notopenai.com/v1", "o10", older},
		{"https://openrouter.ai/api/v1", "openai/gpt-5-mini", newer},
		{"https://gateway.example/v1", "o3", newer},
		{"https://gateway.example/v1", "gpt-5.2", newer},
		{"https://gateway.example/v1", "gpt-50", older},
	}
	for _, tt := range tests {
		t.Run(tt.base+" "+tt.model, func(t *testing.T) {
			t.Parallel()
			body := sent(t, tt.base, model.Request{Model: tt.model, MaxTokens: 9})
			require.InDelta(t, 9, body[tt.want], 0)
			require.Len(t, body, 3, "model, stream_options and the one limit")
		})
	}
}

func TestToolParameters(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ schema, want string }{
		"none":          {``, `{"type":"object","properties":{}}`},
		"null":          {`null`, `{"type":"object","properties":{}}`},
		"no properties": {`{"type":"object","additionalProperties":false}`, `{"type":"object","properties":{},"additionalProperties":false}`},
		"as it is":      {`{"type":"object","properties":{"n":{"type":"integer","maximum":9223372036854775807}}}`, `{"type":"object","properties":{"n":{"type":"integer","maximum":9223372036854775807}}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ok := open(t, Options{}).(*Client)
			require.True(t, ok)
			req := model.Request{Tools: []model.Tool{{Name: "x", InputSchema: json.RawMessage(tt.schema)}}}
			params, err := c.params(req, wire.NewNames(req))
			require.NoError(t, err)
			raw, err := json.Marshal(params.Tools[0].GetFunction().Parameters)
			require.NoError(t, err)
			require.JSONEq(t, tt.want, string(raw))
			if strings.Contains(tt.want, "9223372036854775807") {
				require.Contains(t, string(raw), "9223372036854775807", "numbers keep their digits")
			}
		})
	}
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]model.Request{
		"role":        {Messages: []model.Message{{Role: "narrator"}}},
		"tool schema": {Tools: []model.Tool{{Name: "x", InputSchema: json.RawMessage(`[]`)}}},
		"schema":      {Schema: json.RawMessage(`{`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := open(t, Options{BaseURL: modeltest.Nowhere(t)}).Generate(t.Context(), req, nil)
			e, ok := agent.AsError(err)
			require.True(t, ok)
			require.Equal(t, agent.CodeModelFailed, e.Code)
			require.Equal(t, agent.FaultDefinite, e.Fault)
		})
	}
}

var vendorName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func TestSchemaName(t *testing.T) {
	t.Parallel()
	require.Equal(t, "answer", schemaName(""))
	require.Equal(t, "plan", schemaName("plan"))
	require.Regexp(t, vendorName, schemaName("a plan / of ß"))
}
