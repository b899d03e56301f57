package activities

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// records is a ledger that holds results.
type records struct {
	Ledger
	nodes, commands map[string]agent.CommandResult
	asked           []string
	err             error
}

func (r *records) NodeResults(_ context.Context, _ string, ids []string) (map[string]agent.CommandResult, error) {
	r.asked = append(r.asked, ids...)
	return r.nodes, r.err
}

func (r *records) Results(_ context.Context, _ string, ids []string) (map[string]agent.CommandResult, error) {
	r.asked = append(r.asked, ids...)
	return r.commands, r.err
}

func committed(kind agent.CommandKind, result string) agent.CommandResult {
	return agent.CommandResult{Kind: kind, State: agent.Committed, Result: json.RawMessage(result)}
}

func failedAs(code agent.Code) agent.CommandResult {
	return agent.CommandResult{Kind: agent.ToolCommand, State: agent.CommandFailed, Error: &agent.Error{Code: code, Message: "m"}}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	ended := map[string]agent.CommandResult{
		"tool": committed(agent.ToolCommand, `{"n": 1.50, "list": [{"a/b": "x"}], "nothing": null}`),
		"say":  committed(agent.ModelCommand, `{"text": "hello \u00e9", "finish_reason": "stop"}`),
		"bad":  failedAs(agent.CodeToolFailed),
	}
	run := &agent.Run{RunID: "run", Input: "the \"input\"", Metadata: json.RawMessage(`{"k": {"a/b": [1, 2]}}`)}
	for name, c := range map[string]struct {
		value string
		node  string // n when empty
		want  string
		fault string // instead of a value
		asked []string
	}{
		"no references":                {value: `{"b": [1, {"c": "$from"}], "a": 2}`, want: `{"a":2,"b":[1,{"c":"$from"}]}`},
		"the input":                    {value: `{"$from": "/input"}`, want: `"the \"input\""`},
		"metadata":                     {value: `{"v": {"$from": "/metadata/k/a~1b/1"}}`, want: `{"v":2}`},
		"all metadata":                 {value: `{"$from": "/metadata"}`, want: `{"k": {"a/b": [1, 2]}}`},
		"a whole output":               {value: `{"$from": "/nodes/tool/output"}`, want: `{"n": 1.50, "list": [{"a/b": "x"}], "nothing": null}`, asked: []string{"tool"}},
		"a number, digit for digit":    {value: `{"v": {"$from": "/nodes/tool/output/n"}}`, want: `{"v":1.50}`, asked: []string{"tool"}},
		"deep inside":                  {value: `[{"$from": "/nodes/tool/output/list/0/a~1b"}]`, want: `["x"]`, asked: []string{"tool"}},
		"a null that is there":         {value: `{"$from": "/nodes/tool/output/nothing"}`, want: `null`, asked: []string{"tool"}},
		"a model's text":               {value: `{"$from": "/nodes/say/output"}`, want: `"hello é"`, asked: []string{"say"}},
		"the same node is read once":   {value: `[{"$from": "/nodes/say/output"}, {"$from": "/nodes/say/output"}]`, want: `["hello é","hello é"]`, asked: []string{"say"}},
		"an error":                     {value: `{"$from": "/nodes/bad/error/code"}`, want: `"TOOL_FAILED"`, asked: []string{"bad"}},
		"no error":                     {value: `{"$from": "/nodes/tool/error"}`, want: `null`, asked: []string{"tool"}},
		"the output of what failed":    {value: `{"$from": "/nodes/bad/output"}`, want: `null`, asked: []string{"bad"}},
		"the answer reads the error":   {value: `{"$from": "/nodes/bad/output"}`, node: "answer", want: `{"error":{"code":"TOOL_FAILED","message":"m"}}`, asked: []string{"bad"}},
		"the answer of what was cut":   {value: `{"$from": "/nodes/cut/output"}`, node: "answer", want: `null`, asked: []string{"cut"}},
		"what was skipped":             {value: `{"$from": "/nodes/cut/output"}`, want: `null`, asked: []string{"cut"}},
		"below what was skipped":       {value: `{"v": {"$from": "/nodes/cut/output/a/b"}}`, want: `{"v":null}`, asked: []string{"cut"}},
		"nothing there":                {value: `{"$from": "/nodes/tool/output/m"}`, fault: "reference /nodes/tool/output/m: nothing at /m", asked: []string{"tool"}},
		"past the end of a list":       {value: `{"$from": "/nodes/tool/output/list/1"}`, fault: "the list has 1 items", asked: []string{"tool"}},
		"below a plain value":          {value: `{"$from": "/nodes/tool/output/n/x"}`, fault: "below a plain value", asked: []string{"tool"}},
		"below a model's text":         {value: `{"$from": "/nodes/say/output/x"}`, fault: "below a plain value", asked: []string{"say"}},
		"not a reference to the graph": {value: `{"$from": "/elsewhere"}`, fault: "want /nodes/ID/output"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger := &records{nodes: ended}
			a := &Activities{ledger: ledger}
			node := &agent.Node{ID: "n"}
			if c.node != "" {
				node.ID = c.node
			}
			value, fault, err := a.resolve(t.Context(), run, &agent.Plan{}, node, json.RawMessage(c.value))
			require.NoError(t, err)
			require.Equal(t, c.asked, ledger.asked)
			if c.fault != "" {
				require.ErrorContains(t, fault, c.fault)
				e, ok := agent.AsError(fault)
				require.True(t, ok)
				require.Equal(t, agent.CodeReference, e.Code)
				require.Equal(t, agent.FaultDefinite, e.Fault, "it is put on record")
				return
			}
			require.NoError(t, fault)
			require.Equal(t, c.want, string(value))
		})
	}
}

func TestResolveTellsAFaultOfTheRecordApart(t *testing.T) {
	t.Parallel()
	a := &Activities{ledger: &records{err: errors.New("away")}}
	_, fault, err := a.resolve(t.Context(), &agent.Run{}, nil, &agent.Node{ID: "n"}, json.RawMessage(`{"$from": "/nodes/x/output"}`))
	require.EqualError(t, err, "away")
	require.NoError(t, fault)
}

func TestAskedFor(t *testing.T) {
	t.Parallel()
	two := committed(agent.ModelCommand, `{"text": "", "tool_calls": [{"id": "x", "name": "put", "arguments": "{}"}, {"id": "y", "name": "mail", "arguments": "{\"n\": 1}"}]}`)
	for name, c := range map[string]struct {
		record map[string]agent.CommandResult
		index  int
		want   *model.ToolCall
	}{
		"the first":          {map[string]agent.CommandResult{"main#1": two}, 0, &model.ToolCall{ID: "x", Name: "put", Arguments: "{}"}},
		"the second":         {map[string]agent.CommandResult{"main#1": two}, 1, &model.ToolCall{ID: "y", Name: "mail", Arguments: `{"n": 1}`}},
		"one too many":       {map[string]agent.CommandResult{"main#1": two}, 2, nil},
		"no answer":          {nil, 0, nil},
		"an answer no calls": {map[string]agent.CommandResult{"main#1": committed(agent.ModelCommand, `{"text": "x"}`)}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger := &records{commands: c.record}
			got, err := (&Activities{ledger: ledger}).askedFor(t.Context(), agent.ToolCall{FromCommand: "main#1", FromIndex: c.index})
			require.Equal(t, []string{"main#1"}, ledger.asked)
			if c.want == nil {
				require.ErrorContains(t, err, "no tool call")
				return
			}
			require.NoError(t, err)
			require.Equal(t, *c.want, got)
		})
	}
}

func TestJSONIn(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"plain":                   `{"nodes": []}`,
		"spaced":                  " \n{\"nodes\": []}\n ",
		"fenced":                  "```json\n{\"nodes\": []}\n```",
		"fenced without language": "```\n{\"nodes\": []}\n```",
		"introduced":              "Here is the plan:\n{\"nodes\": []}\nI hope it helps.",
	} {
		require.Equal(t, `{"nodes": []}`, string(jsonIn(text)), name)
	}
	require.Equal(t, "no json", string(jsonIn("no json ")))
	require.Equal(t, "} {", string(jsonIn("} {")))
	require.Empty(t, jsonIn(""))
}

func TestInputHash(t *testing.T) {
	t.Parallel()
	require.Equal(t, inputHash("tool", "put", json.RawMessage(`{}`)), inputHash("tool", "put", json.RawMessage(`{}`)))
	seen := map[string]bool{}
	for _, parts := range [][]any{{"ab", "c"}, {"a", "bc"}, {"abc"}, {"abc", ""}, {"", "abc"}, {json.RawMessage("ab"), "d"}} {
		h := inputHash(parts...)
		require.Len(t, h, 64)
		require.False(t, seen[h], parts)
		seen[h] = true
	}
}

func TestRecordable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{`{"n": 1}`: `{"n": 1}`, `{"n": `: `"{\"n\": "`, "": `""`, "\xff": `"\ufffd"`} {
		require.Equal(t, want, string(recordable(json.RawMessage(in))))
	}
}

func noTools(t testing.TB) *tool.Set {
	t.Helper()
	set, err := tool.NewSet()
	require.NoError(t, err)
	return set
}
