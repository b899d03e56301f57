package scripted_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/scripted"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, func(t *testing.T, s modeltest.Scenario) model.Client {
		switch {
		case s.Vendor:
			t.Skip("there is no vendor that could break")
		case s.Name == "refusal":
			t.Skip("it refuses only when a hook tells it to")
		}
		return scripted.New(scripted.Options{})
	})
}

func TestConformanceOfScripts(t *testing.T) {
	t.Parallel()
	answers := map[string]scripted.Step{
		"tools": scripted.Calls(scripted.Call("calculator", `{"expression":"19 * 23"}`),
			scripted.Call("everything/echo", map[string]string{"message": "hello"})),
		"tool_results": scripted.Text("It is 437, and hello."),
		"structured":   scripted.JSON(map[string]any{"verdict": "accept", "score": 1, "reasons": []string{}}),
		"length":       {Reply: model.Reply{Text: "one two", Finish: model.FinishLength}},
		"thinking":     {Reply: model.Reply{Text: "It is not.", Thinking: "Seven times 13."}},
		"refusal":      {Reply: model.Reply{Text: "No.", Finish: model.FinishFiltered}},
	}
	modeltest.Run(t, func(t *testing.T, s modeltest.Scenario) model.Client {
		if s.Vendor {
			t.Skip("there is no vendor that could break")
		}
		step, ok := answers[s.Name]
		if !ok {
			step = scripted.Text("Once upon a time.")
		}
		return scripted.Replies(step.Forever())
	})
}

func tool(name, schema string) model.Tool {
	return model.Tool{Name: name, Description: "A tool.", InputSchema: json.RawMessage(schema)}
}

// offered are tools as Runledger has them: built in, and of MCP servers.
func offered() []model.Tool {
	return []model.Tool{
		tool("calculator", `{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}`),
		tool("clock", `{"type":"object","properties":{"timezone":{"type":"string"}}}`),
		tool("http_request", `{"type":"object","properties":{"method":{"type":"string"},"url":{"type":"string"},"body":{"type":"string"}}}`),
		tool("everything/echo", `{"type":"object","properties":{"message":{"type":"string"}},"required":["message"]}`),
		tool("everything/get-sum", `{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}`),
		tool("everything/fetch", `{"type":"object","properties":{"url":{"type":"string","format":"uri"},"raw":{"type":"boolean"}},"required":["url","raw"]}`),
		tool("notes/find", `{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer","minimum":5}},"required":["query","limit"]}`),
		tool("weather", `{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["celsius","fahrenheit"]},"days":{"type":"array","items":{"type":"integer"}}},"required":["city","unit"]}`),
		tool("tags", `{"type":"object","properties":{"labels":{"type":"array","items":{"type":"string"}},"counts":{"type":"array","items":{"type":"integer"}}},"required":["labels"]}`),
		tool("notes/list", `{"type":"object","properties":{"filter":{"type":"string"}}}`),
		tool("odd", `{"type":"object","properties":{"anything":true},"required":["anything"]}`),
	}
}

func generate(t testing.TB, req model.Request) model.Reply {
	t.Helper()
	reply, err := scripted.New(scripted.Options{}).Generate(t.Context(), req, nil)
	require.NoError(t, err)
	return reply
}

func ask(text string) []model.Message { return []model.Message{{Role: model.User, Text: text}} }

// plan asks for a plan and compiles it, as a planner does.
func plan(t testing.TB, req model.Request) *agent.Plan {
	t.Helper()
	if req.Schema == nil {
		req.Schema = json.RawMessage(`{"type":"object"}`)
	}
	req.SchemaName = "plan"
	var p agent.Plan
	decoder := json.NewDecoder(strings.NewReader(generate(t, req).Text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&p))
	known := map[string]bool{}
	for _, o := range offered() {
		known[o.Name] = true
	}
	compiled, err := agent.Compile(&p, agent.PlanChecks{Arguments: func(name string, _ json.RawMessage) ([]agent.PlanFault, bool) { return nil, known[name] }})
	require.NoError(t, err)
	require.Len(t, compiled.Nodes, len(p.Nodes), "the last node answers; none had to be added")
	return compiled
}

// TestTasks holds for plans and turns alike: both come from the same reading of the text.
func TestTasks(t *testing.T) {
	t.Parallel()
	const calc, clock, web, echo = "calculator ", "clock ", "http_request ", "everything/echo "
	tests := map[string][]string{
		"What is 19 * 23?":    {calc + `{"expression":"19 * 23"}`},
		"What time is it?":    {clock + `{}`},
		"tell me the time":    {clock + `{}`},
		"What's the date?":    {clock + `{}`},
		"which day is it":     {clock + `{}`},
		"is it quitting time": nil,
		"It took all the time. The time complexity is bad.": nil,
		"What time is it in Europe/Berlin and Asia/Tokyo?":  {clock + `{"timezone":"Europe/Berlin"}`, clock + `{"timezone":"Asia/Tokyo"}`},
		"Read https://example.org/a(b).json?x=1+1, please.": {web + `{"method":"GET","url":"https://example.org/a(b).json?x=1+1"}`},
		"(see http://[::1]:8080/x)":                         {web + `{"method":"GET","url":"http://[::1]:8080/x"}`},
		"Read the post http://x/z":                          {web + `{"method":"GET","url":"http://x/z"}`},
		"DELETE http://x/y":                                 {web + `{"method":"DELETE","url":"http://x/y"}`},
		`POST to http://x/y with the JSON body {"a": [1, 2]}`: {
			web + `{"body":"{\"a\": [1, 2]}","method":"POST","url":"http://x/y"}`,
		},
		"What is 2+2, what time is it, and what does http://x/ say?": {calc + `{"expression":"2 + 2"}`, clock + `{}`, web + `{"method":"GET","url":"http://x/"}`},
		"2+2 and again 2 + 2": {calc + `{"expression":"2 + 2"}`},

		"use everything/echo to say hello":                  {echo + `{"message":"hello"}`},
		"everything/echo hello world":                       {echo + `{"message":"hello world"}`},
		"Call everything__echo with the message 'hi there'": {echo + `{"message":"hi there"}`},
		"use the echo tool to repeat abc.":                  {echo + `{"message":"abc"}`},
		"There is an echo in here.":                         nil,
		"see https://x.org/everything/echo":                 {web + `{"method":"GET","url":"https://x.org/everything/echo"}`},
		`everything/echo "a. b; and then compute 1+1" and 2+2?`: {
			echo + `{"message":"a. b; and then compute 1+1"}`,
		},
		`everything/echo {"message": "a } b"}, then 3*3`:         {echo + `{"message": "a } b"}`, calc + `{"expression":"3 * 3"}`},
		"use everything/echo to say hello and compute 2+2":       {echo + `{"message":"hello"}`, calc + `{"expression":"2 + 2"}`},
		"everything/echo one. everything/echo two":               {echo + `{"message":"one"}`, echo + `{"message":"two"}`},
		"everything/get-sum with 2 and -3.5":                     {`everything/get-sum {"a":2,"b":-3.5}`},
		"everything/get-sum b=2, a=3":                            {`everything/get-sum {"a":3,"b":2}`},
		"everything/get-sum 7":                                   {`everything/get-sum {"a":7,"b":1}`},
		"use everything/fetch on https://x.org/a.":               {`everything/fetch {"raw":true,"url":"https://x.org/a"}`},
		"everything/fetch https://x.org/a, not raw":              {`everything/fetch {"raw":false,"url":"https://x.org/a"}`},
		"notes/find for ledgers":                                 {`notes/find {"limit":5,"query":"ledgers"}`},
		"use weather in Berlin in fahrenheit":                    {`weather {"city":"Berlin","unit":"fahrenheit"}`},
		"use the weather tool for Paris":                         {`weather {"city":"Paris","unit":"celsius"}`},
		"The weather is fine.":                                   nil,
		"use tags for red, green and blue":                       {`tags {"labels":["red","green","blue"]}`},
		`tags tool: labels=["a"] counts=[1,2]`:                   {`tags {"counts":[1,2],"labels":["a"]}`},
		"use notes/list":                                         {`notes/list {}`},
		"use notes/list with old ones":                           {`notes/list {"filter":"old ones"}`},
		"use odd on this":                                        {`odd {"anything":"this"}`},
		"Look at this.\n\nAttachment a.txt (text/plain):\n5 + 5": nil,
		"Hello!": nil,
	}
	for text, want := range tests {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			p := plan(t, model.Request{Messages: ask(text), Tools: offered()})
			var got []string
			for _, n := range p.Nodes[:len(p.Nodes)-1] {
				got = append(got, n.Tool+" "+string(n.Args))
			}
			require.Equal(t, want, compacted(t, got, want))

			var called []string
			for turns, messages := 0, ask(text); turns < 5; turns++ {
				reply := generate(t, model.Request{Messages: messages, Tools: offered()})
				if len(reply.ToolCalls) == 0 {
					break
				}
				messages = append(messages, model.Message{Role: model.Assistant, Text: reply.Text, ToolCalls: reply.ToolCalls})
				for _, call := range reply.ToolCalls {
					called = append(called, call.Name+" "+call.Arguments)
					messages = append(messages, model.Message{Role: model.ToolRole, ToolCallID: call.ID, ToolName: call.Name, Text: `{}`})
				}
			}
			require.Equal(t, want, called)
		})
	}
}

// compacted brings what a plan says to the spelling that is wanted: a plan's JSON is compact.
func compacted(t testing.TB, got, want []string) []string {
	t.Helper()
	for i := range got {
		if i < len(want) {
			name, args, _ := strings.Cut(want[i], " ")
			if gotName, gotArgs, _ := strings.Cut(got[i], " "); gotName == name {
				require.JSONEq(t, args, gotArgs)
				got[i] = want[i]
			}
		}
	}
	return got
}

func TestOnlyOfferedToolsAreUsed(t *testing.T) {
	t.Parallel()
	const text = "What is 2+2, what time is it, what is at http://x/y and use everything/echo to say hi?"
	for _, tools := range [][]model.Tool{nil, {tool("clock", `{}`)}, {tool("http_request", `{}`), tool("other", `{}`)}} {
		p := plan(t, model.Request{Messages: ask(text), Tools: tools})
		require.Len(t, p.Nodes, 1+min(len(tools), 1))
		for _, n := range p.Nodes {
			if n.Kind == agent.ToolNode {
				require.Equal(t, tools[0].Name, n.Tool)
			}
		}
	}
	reply := generate(t, model.Request{Messages: ask(text), Tools: []model.Tool{tool("other", `{}`)}})
	require.Empty(t, reply.ToolCalls)
}

func TestPlanInFull(t *testing.T) {
	t.Parallel()
	reply := generate(t, model.Request{
		Schema: json.RawMessage(`{}`), SchemaName: "plan", Tools: offered(),
		Messages: ask("What is 2+2 and 3*4? Then use everything/echo to say done."),
	})
	require.JSONEq(t, `{
		"nodes": [
			{"id": "calculator", "kind": "tool", "tool": "calculator", "args": {"expression": "2 + 2"}, "expected_output": "the value of 2 + 2"},
			{"id": "calculator_2", "kind": "tool", "tool": "calculator", "args": {"expression": "3 * 4"}, "expected_output": "the value of 3 * 4"},
			{"id": "everything_echo", "kind": "tool", "tool": "everything/echo", "args": {"message": "done"},
				"depends_on": ["calculator", "calculator_2"], "expected_output": "what everything/echo gives"},
			{"id": "reply", "kind": "llm", "prompt": "Answer the user's request from the results.",
				"inputs": {"2 + 2": {"$from": "/nodes/calculator/output"}, "3 * 4": {"$from": "/nodes/calculator_2/output"},
					"everything/echo": {"$from": "/nodes/everything_echo/output"}},
				"depends_on": ["calculator", "calculator_2", "everything_echo"], "expected_output": "a short answer that holds every result"}
		],
		"constraints": ["Every result comes from a tool."]}`, reply.Text)
}

func TestPlanReadsTheSystemMessageWhenNoToolsAreOffered(t *testing.T) {
	t.Parallel()
	listed, err := json.Marshal(offered())
	require.NoError(t, err)
	messages := append([]model.Message{{
		Role: model.System,
		Text: "Write a task graph as JSON: {\"nodes\": [...]}. Ids are [A-Za-z0-9_-]. Use only these tools:\n" + string(listed) + "\n\nBe brief [always].",
	}}, ask("everything/echo hi and 1+1")...)
	p := plan(t, model.Request{Messages: messages})
	require.Equal(t, "everything/echo", p.Nodes[0].Tool)
}

func TestPlanAfterARefusedPlanIsForTheSameWish(t *testing.T) {
	t.Parallel()
	messages := append(ask("What is 1+1?"), ask("What is 2+2?")...)
	messages = append(messages, model.Message{Role: model.Assistant, Text: `{"nodes":[{"id":"x"}]}`}, model.Message{Role: model.User, Text: "invalid plan: 9+9"})
	p := plan(t, model.Request{Messages: messages, Tools: offered()})
	require.JSONEq(t, `{"expression":"2 + 2"}`, string(p.Nodes[0].Args))
}

func TestPlanOfManyTasksAndOddNames(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "%d + 1, ", i)
	}
	p := plan(t, model.Request{Messages: ask(text.String()), Tools: offered()})
	require.Len(t, p.Nodes, 41)

	reserved := scripted.New(scripted.Options{})
	reply, err := reserved.Generate(t.Context(), model.Request{
		Schema: json.RawMessage(`{}`), SchemaName: "plan", Messages: ask("use plan on a; use answer on b; use reply on c"),
		Tools: []model.Tool{tool("plan", `{}`), tool("answer", `{}`), tool("reply", `{}`)},
	}, nil)
	require.NoError(t, err)
	var odd agent.Plan
	require.NoError(t, json.Unmarshal([]byte(reply.Text), &odd))
	_, err = agent.Compile(&odd, agent.PlanChecks{Arguments: func(string, json.RawMessage) ([]agent.PlanFault, bool) { return nil, true }})
	require.NoError(t, err)
	require.Len(t, odd.Nodes, 4)
}

func TestTurns(t *testing.T) {
	t.Parallel()
	messages := append([]model.Message{{Role: model.System, Text: "Be brief."}}, ask("What is 1+1?")...)
	messages = append(messages, model.Message{Role: model.Assistant, Text: "2"}) // an earlier run of the conversation
	messages = append(messages, ask("What is 2+2 and what time is it? Then compute 3*3.")...)
	req := model.Request{Messages: messages, Tools: offered()}

	first := generate(t, req)
	require.Equal(t, model.FinishTools, first.Finish)
	require.Len(t, first.ToolCalls, 2, "what has no order runs at once")
	require.Equal(t, "Let me find out: 2 + 2, the time.", first.Text)

	req.Messages = append(req.Messages,
		model.Message{Role: model.Assistant, Text: first.Text, ToolCalls: first.ToolCalls},
		model.Message{Role: model.ToolRole, ToolCallID: first.ToolCalls[0].ID, ToolName: "calculator", Text: `{"result":"4","value":4,"exact":true}`})
	half := generate(t, req)
	require.Len(t, half.ToolCalls, 1, "one is not answered yet")
	require.Equal(t, "clock", half.ToolCalls[0].Name)

	req.Messages = append(req.Messages, model.Message{
		Role: model.ToolRole, ToolCallID: first.ToolCalls[1].ID, ToolName: "clock",
		Text: `{"time":"2026-11-21T14:05:09Z","unix":1795266309,"timezone":"UTC","weekday":"Saturday"}`,
	})
	second := generate(t, req)
	require.Len(t, second.ToolCalls, 1)
	require.NotEqual(t, first.ToolCalls[0].ID, second.ToolCalls[0].ID)

	req.Messages = append(req.Messages,
		model.Message{Role: model.Assistant, Text: second.Text, ToolCalls: second.ToolCalls},
		model.Message{Role: model.ToolRole, ToolCallID: second.ToolCalls[0].ID, ToolName: "calculator", Text: "The call failed. TOOL_FAILED: division by zero"})
	last := generate(t, req)
	require.Empty(t, last.ToolCalls)
	require.Equal(t, model.FinishStop, last.Finish)
	require.Equal(t, "Here is what I found:\n- 2 + 2 = 4\n- the time is Saturday 2026-11-21T14:05:09Z\n- 3 * 3 failed: TOOL_FAILED: division by zero", last.Text)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	const request = "Answer the user's request from the results.\n\nThe user's request:\nWhat {is} it?"
	tests := map[string]struct{ text, want string }{
		"one input":        {request + "\n\nInputs:\n" + `{"2 + 2":{"result":"4","value":4,"exact":true}}`, "Here is the answer: 2 + 2 = 4."},
		"rounded":          {request + "\n\nInputs:\n" + `{"1 / 3":{"result":"0.3333","exact":false}}`, "Here is the answer: 1 / 3 = 0.3333 (rounded)."},
		"several":          {request + "\n\nInputs:\n" + `{"b":"two","a":1,"c":{"x":[1, 2]}}`, "Here is what I found:\n- a: 1\n- b: two\n- c: {\"x\":[1,2]}"},
		"an HTTP answer":   {request + "\n\nInputs:\n" + `{"GET http://x/":{"status":200,"headers":{},"json":{"expr": "1+1"},"text":"ignored"}}`, `Here is the answer: GET http://x/: status 200, {"expr":"1+1"}.`},
		"an HTTP text":     {request + "\n\nInputs:\n" + `{"page":{"status":200,"headers":{},"text":" a\n b "}}`, `Here is the answer: page: status 200, a b.`},
		"an MCP answer":    {request + "\n\nInputs:\n" + `{"everything/echo":{"content":[{"type":"text","text":"Echo: hi"}]}}`, "Here is the answer: everything/echo: Echo: hi."},
		"one field":        {request + "\n\nInputs:\n" + `{"x":{"text":"hi"}}`, "Here is the answer: x: hi."},
		"an error":         {request + "\n\nInputs:\n" + `{"x":{"error":{"code":"TOOL_FAILED","message":"no"}}}`, `Here is the answer: x: it failed, {"code":"TOOL_FAILED","message":"no"}.`},
		"null":             {request + "\n\nInputs:\n" + `{"x":null}`, "Here is the answer: x: null."},
		"bare JSON at end": {"Explain {this}: " + `{"x":{"y":1}}`, `Here is the answer: x: {"y":1}.`},
		"very long":        {request + "\n\nInputs:\n" + `{"x":"` + strings.Repeat("ä", 1000) + `"}`, "Here is the answer: x: " + strings.Repeat("ä", 300) + " ...."},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, generate(t, model.Request{Messages: ask(tt.text)}).Text)
		})
	}
	for name, text := range map[string]string{"prompt": request, "plain": "What {is} it?"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, generate(t, model.Request{Messages: ask(text)}).Text, "You said: “What {is} it?”.")
		})
	}
	require.Contains(t, generate(t, model.Request{}).Text, "did not say anything")
}

func TestJSONThatFits(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ schema, want string }{
		"kinds": {
			`{"type":"object","properties":{"s":{"type":"string"},"i":{"type":"integer","minimum":3},"b":{"type":"boolean"},"a":{"type":"array","minItems":2,"items":{"const":7}},"n":{"type":"null"},"x":true},"required":["s","i","b","a","n","x"]}`,
			`{"s":"Hi you","i":3,"b":true,"a":[7,7],"n":null,"x":"Hi you"}`,
		},
		"choices":          {`{"type":"object","properties":{"e":{"enum":["p","q"]},"o":{"anyOf":[{"type":"integer"},{"type":"null"}]},"d":{"type":"string","default":"z"}},"required":["e","o","d"]}`, `{"e":"p","o":0,"d":"z"}`},
		"formats":          {`{"type":"object","properties":{"t":{"type":"string","format":"date-time"},"u":{"type":"string","format":"uri"}},"required":["t","u"]}`, `{"t":"2000-01-01T00:00:00Z","u":"https://example.org/"}`},
		"reference":        {`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"string","minLength":8}},"required":["v"]}}}`, `{"v":"Hi you.."}`},
		"nothing needed":   {`{"type":"object","properties":{"v":{"type":"string"}}}`, `{"v":"Hi you"}`},
		"refers to itself": {`{"$ref":"#/$defs/n","$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"}}}}`, `[]`},
		"for ever":         {`{"$ref":"#/$defs/n","$defs":{"n":{"$ref":"#/$defs/n"}}}`, `null`},
		"not a schema":     {`7`, `"Hi you"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply := generate(t, model.Request{Messages: ask(" Hi  you"), Schema: json.RawMessage(tt.schema), SchemaName: "x"})
			require.JSONEq(t, tt.want, reply.Text)
		})
	}
}

func TestSameRequestSameReply(t *testing.T) {
	t.Parallel()
	for _, req := range []model.Request{
		{Messages: ask("Hello there")},
		{Messages: ask("What is 1+1 and the time?"), Tools: offered()},
		{Messages: ask("What is 1+1 and the time?"), Tools: offered(), Schema: json.RawMessage(`{}`), SchemaName: "plan"},
	} {
		first := generate(t, req)
		req.Key = "another/key"
		require.Equal(t, first, generate(t, req))
		req.Messages[0].Text += "!"
		require.NotEqual(t, first.ID, generate(t, req).ID)
	}
}

func TestUsageCountsWords(t *testing.T) {
	t.Parallel()
	reply := generate(t, model.Request{Messages: ask("two words [[say one two three]]")})
	require.Equal(t, "one two three", reply.Text)
	require.Equal(t, model.Usage{InputTokens: 6, OutputTokens: 3}, reply.Usage)
}

func TestDelayIsBetweenWordsAndEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := scripted.New(scripted.Options{Delay: 15 * time.Millisecond})
		req := model.Request{Messages: ask("[[words 11]]")}
		start := time.Now()
		_, err := c.Generate(t.Context(), req, nil)
		require.NoError(t, err)
		require.Equal(t, 150*time.Millisecond, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
		defer cancel()
		words := 0
		_, err = c.Generate(ctx, req, func(model.Delta) { words++ })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3, words)

		start = time.Now()
		req = model.Request{Messages: ask("What is 1+1?"), Tools: offered(), Schema: json.RawMessage(`{}`), SchemaName: "plan"}
		_, err = c.Generate(t.Context(), req, nil)
		require.NoError(t, err)
		require.Zero(t, time.Since(start), "nobody watches a plan being written")
	})
}

func TestHooks(t *testing.T) {
	t.Parallel()
	plain := func(text string) model.Request { return model.Request{Messages: ask(text)} }
	turn := func(text string) model.Request { return model.Request{Messages: ask(text), Tools: offered()} }
	planned := func(text string) model.Request {
		return model.Request{Messages: ask(text), Tools: offered(), Schema: json.RawMessage(`{}`), SchemaName: "plan"}
	}
	t.Run("what it says", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "this: {1}", generate(t, plain("Hello [[say this: {1}]] there")).Text)
		require.Equal(t, `{"a":[[1]]}`, generate(t, planned(`[[plan say {"a":[[1]]} ]]`)).Text)
		require.Len(t, strings.Fields(generate(t, plain("[[words 1000]]")).Text), 1000)
		require.Equal(t, "one", generate(t, plain("[[words many]]")).Text)
		refused := generate(t, plain("[[refuse]]"))
		require.Equal(t, model.FinishFiltered, refused.Finish)
		require.NotEmpty(t, refused.Text)
		require.NotEmpty(t, generate(t, plain("Think aloud, please.")).Thinking)
	})
	t.Run("garbled", func(t *testing.T) {
		t.Parallel()
		require.False(t, json.Valid([]byte(generate(t, planned("1+1 [[plan garble]]")).Text)))
		reply := generate(t, turn("1+1 [[turn garble]]"))
		require.False(t, json.Valid([]byte(reply.ToolCalls[0].Arguments)))
		// The tool refuses them, and the model goes on to answer.
		req := turn("1+1 [[turn garble]]")
		req.Messages = append(req.Messages, model.Message{Role: model.Assistant, ToolCalls: reply.ToolCalls},
			model.Message{Role: model.ToolRole, ToolCallID: reply.ToolCalls[0].ID, Text: "The call failed. INVALID_ARGUMENTS: no"})
		require.Contains(t, generate(t, req).Text, "failed: INVALID_ARGUMENTS: no")
	})
	t.Run("errors", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]struct {
			req   model.Request
			code  agent.Code
			fault agent.Fault
		}{
			"[[fail]]":                 {plain(""), agent.CodeModelFailed, agent.FaultDefinite},
			"[[unavailable]]":          {plain(""), agent.CodeModelUnavailable, agent.FaultTransient},
			"[[broken]]":               {plain(""), agent.CodeModelStream, agent.FaultTransient},
			"1+1 [[turn unavailable]]": {turn(""), agent.CodeModelUnavailable, agent.FaultTransient},
			"1+1 [[plan fail]]":        {planned(""), agent.CodeModelFailed, agent.FaultDefinite},
		} {
			want.req.Messages = ask(text)
			_, err := scripted.New(scripted.Options{}).Generate(t.Context(), want.req, nil)
			e, ok := agent.AsError(err)
			require.True(t, ok, text)
			require.Equal(t, want.code, e.Code)
			require.Equal(t, want.fault, e.Fault)
		}
	})
	t.Run("half is said before it breaks", func(t *testing.T) {
		t.Parallel()
		said := 0
		_, err := scripted.New(scripted.Options{}).Generate(t.Context(), plain("[[words 10]] [[broken]]"), func(model.Delta) { said++ })
		require.NoError(t, err, "the first hook of a scope counts")
		require.Equal(t, 10, said)
		said = 0
		_, err = scripted.New(scripted.Options{}).Generate(t.Context(), plain("[[broken]]"), func(model.Delta) { said++ })
		require.Error(t, err)
		require.Greater(t, said, 1)
	})
	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		said := 0
		_, err := scripted.New(scripted.Options{}).Generate(ctx, plain("[[wait]]"), func(model.Delta) {
			said++
			cancel()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, said)
	})
	t.Run("scopes leave each other alone", func(t *testing.T) {
		t.Parallel()
		const text = "1+1 [[plan fail]] [[turn fail]]"
		require.NotEmpty(t, generate(t, plain(text)).Text)
		require.NotEmpty(t, generate(t, turn("1+1 [[fail]]")).ToolCalls)
		require.Len(t, plan(t, planned("1+1 [[fail]] [[words 3*3]]")).Nodes, 2, "hooks are no tasks")
	})
	t.Run("what is no hook", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"[[link]]", "[[fail", "[[say {]]", "[[planning fail]]", "[fail]"} {
			require.Contains(t, generate(t, plain(text)).Text, "You said", text)
		}
	})
}
