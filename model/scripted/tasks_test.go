package scripted

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
)

// FuzzTasks reads any text against tools with any schema: what comes out is a plan that compiles, and turns that end.
func FuzzTasks(f *testing.F) {
	const schema = `{"properties":{"a":{"type":"string"},"n":{"type":"integer"},"e":{"enum":["x","y"]},"l":{"type":"array"},"b":true},"required":["a","n","e","l","b"]}`
	for _, text := range []string{
		"use everything/echo to say hello", `everything/echo {"a":"b"} then 1+1`, "use weather a=1 n=2 l=[1,2]; time in Europe/Berlin",
		"GET http://x/(y)? POST to http://x/y with body {\"a\":1}", "[[say x]] [[plan garble]] [[turn fail]]", "what time is it and then 2*3",
		"everything/echo “q” `r` \"s", "http://", "weather tool\x01\xff", "use use use the tool weather weather", "\n\nAttachment 1+1",
	} {
		f.Add(text, schema)
	}
	f.Add("use weather", `{"required":["toString"]}`)
	f.Add("use weather -5 1,000.5", `{"properties":{"a":{"type":["integer","null"]}},"required":["a"]}`)
	f.Fuzz(func(t *testing.T, text, schema string) {
		if len(text)+len(schema) > 4096 {
			return
		}
		tools := []model.Tool{{Name: "calculator"}, {Name: "clock"}, {Name: "http_request"}}
		for _, name := range []string{"everything/echo", "weather"} {
			tool := model.Tool{Name: name}
			if json.Valid([]byte(schema)) {
				tool.InputSchema = json.RawMessage(schema)
			}
			tools = append(tools, tool)
		}
		known := map[string]bool{}
		for _, tool := range tools {
			known[tool.Name] = true
		}
		for _, task := range tasks(text, tools) {
			var args map[string]any
			require.NoError(t, json.Unmarshal(task.args, &args))
			require.True(t, known[task.tool])
		}
		req := model.Request{Messages: []model.Message{{Role: model.User, Text: text}}, Tools: tools}
		var p agent.Plan
		require.NoError(t, json.Unmarshal([]byte(plan(req)), &p))
		for _, n := range p.Nodes {
			// Text that names references is the author's own doing.
			if strings.Contains(string(n.Args), "$from") {
				return
			}
		}
		_, err := agent.Compile(&p, agent.PlanChecks{Arguments: func(string, json.RawMessage) ([]agent.PlanFault, bool) { return nil, true }})
		require.NoError(t, err)
		checkTurnsEnd(t, req)
	})
}

func checkTurnsEnd(t *testing.T, req model.Request) {
	t.Helper()
	for range maxTasks + 1 {
		reply, more := turn(req)
		if !more {
			return
		}
		req.Messages = append(req.Messages, model.Message{Role: model.Assistant, ToolCalls: reply.ToolCalls})
		for _, call := range reply.ToolCalls {
			req.Messages = append(req.Messages, model.Message{Role: model.ToolRole, ToolCallID: call.ID, Text: "{}"})
		}
	}
	t.Fatal("the turns do not end")
}

func TestWordPieces(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                      nil,
		"one":                   {"one"},
		"one two  three\n":      {"one", " two", "  three", "\n"},
		"  x":                   {"  x"},
		strings.Repeat("ä", 50): {strings.Repeat("ä", 24), strings.Repeat("ä", 24), "ää"},
	} {
		got := wordPieces(text)
		require.Equal(t, want, got)
		require.Equal(t, text, strings.Join(got, ""))
	}
}
