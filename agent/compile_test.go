package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// checks take any arguments, the workflow w on q, and a condition that is the ids of nodes.
var checks = agent.PlanChecks{Arguments: knowsAll, Workflow: func(queue, name string) bool { return queue == "q" && name == "w" }, When: func(condition string) ([]string, error) {
	if condition == "!" {
		return nil, errors.New("not a condition")
	}
	return strings.Fields(condition), nil
}}

// knowsAll checks no arguments and knows every tool but "unknown".
func knowsAll(tool string, args json.RawMessage) ([]agent.PlanFault, bool) {
	if strings.Contains(string(args), `"bad"`) {
		return []agent.PlanFault{{Pointer: "/bad", Message: "is bad"}}, true
	}
	return nil, tool != "unknown"
}

// planOf decodes a plan as the API and the planner do.
func planOf(t testing.TB, doc string) *agent.Plan {
	t.Helper()
	p := new(agent.Plan)
	require.NoError(t, json.Unmarshal([]byte(doc), p))
	return p
}

func compiledOf(t testing.TB, doc string) *agent.Plan {
	t.Helper()
	p, err := agent.Compile(planOf(t, doc), checks)
	require.NoError(t, err)
	return p
}

func nodeIDs(p *agent.Plan) []string {
	ids := make([]string, len(p.Nodes))
	for i, n := range p.Nodes {
		ids[i] = n.ID
	}
	return ids
}

func TestCompileFaults(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 65)
	deep := strings.Repeat("[", 101) + strings.Repeat("]", 101)
	for name, tc := range map[string]struct {
		plan     string
		pointers []string
		message  string // of the first fault
	}{
		"no nodes":                {`{}`, []string{"/nodes"}, "at least one node"},
		"empty nodes":             {`{"nodes": []}`, []string{"/nodes"}, "at least one node"},
		"no id":                   {`{"nodes": [{"kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "not a node id"},
		"long id":                 {`{"nodes": [{"id": "` + long + `", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "not a node id"},
		"id with a dot":           {`{"nodes": [{"id": "a.b", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "not a node id"},
		"id of a command":         {`{"nodes": [{"id": "a#1", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "not a node id"},
		"id not in ASCII":         {`{"nodes": [{"id": "ä", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "not a node id"},
		"reserved id plan":        {`{"nodes": [{"id": "plan", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "reserved"},
		"reserved id answer":      {`{"nodes": [{"id": "answer", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "reserved"},
		"reserved id main":        {`{"nodes": [{"id": "main", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/0/id"}, "reserved"},
		"id twice":                {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x"}, {"id": "a", "kind": "llm", "prompt": "x"}]}`, []string{"/nodes/1/id"}, "node 0 already"},
		"no kind":                 {`{"nodes": [{"id": "a"}]}`, []string{"/nodes/0/kind"}, "not a node kind"},
		"unknown kind":            {`{"nodes": [{"id": "a", "kind": "shell"}]}`, []string{"/nodes/0/kind"}, "not a node kind"},
		"react in a plan":         {`{"nodes": [{"id": "a", "kind": "react"}]}`, []string{"/nodes/0/kind"}, "cannot be part of a plan"},
		"llm without prompt":      {`{"nodes": [{"id": "a", "kind": "llm", "prompt": " \n"}]}`, []string{"/nodes/0/prompt"}, "needs a prompt"},
		"llm with tool":           {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "tool": "t"}]}`, []string{"/nodes/0/tool"}, "has no tool"},
		"llm with args":           {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "args": {}}]}`, []string{"/nodes/0/args"}, "use inputs"},
		"tool with prompt":        {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "prompt": "x"}]}`, []string{"/nodes/0/prompt"}, "has no prompt"},
		"tool with inputs":        {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "inputs": {}}]}`, []string{"/nodes/0/inputs"}, "use args"},
		"tool without tool":       {`{"nodes": [{"id": "a", "kind": "tool"}]}`, []string{"/nodes/0/tool"}, "needs a tool"},
		"unknown tool":            {`{"nodes": [{"id": "a", "kind": "tool", "tool": "unknown"}]}`, []string{"/nodes/0/tool"}, "no tool \"unknown\""},
		"args not an object":      {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": [1]}]}`, []string{"/nodes/0/args"}, "want an object"},
		"args of the schema":      {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": {"bad": 1}}]}`, []string{"/nodes/0/args/bad"}, "is bad"},
		"args too deep":           {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": {"x": ` + deep + `}}]}`, []string{"/nodes/0/args"}, "nested deeper"},
		"inputs too deep":         {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"a/b": ` + deep + `}}]}`, []string{"/nodes/0/inputs/a~1b"}, "nested deeper"},
		"unknown dependency":      {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "depends_on": ["b"]}]}`, []string{"/nodes/0/depends_on/0"}, "no node \"b\""},
		"depends on itself":       {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "depends_on": ["a"]}]}`, []string{"/nodes/0/depends_on/0"}, "on itself"},
		"timeout too long":        {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "timeout": "24h1s"}]}`, []string{"/nodes/0/timeout"}, "longer than"},
		"workflow without name":   {`{"nodes": [{"id": "a", "kind": "workflow", "task_queue": "q"}]}`, []string{"/nodes/0/workflow"}, "needs the name"},
		"workflow without queue":  {`{"nodes": [{"id": "a", "kind": "workflow", "workflow": "w"}]}`, []string{"/nodes/0/task_queue"}, "needs the task queue"},
		"workflow not allowed":    {`{"nodes": [{"id": "a", "kind": "workflow", "workflow": "other", "task_queue": "q"}]}`, []string{"/nodes/0/workflow"}, "may not start \"other\" on \"q\""},
		"workflow with a text":    {`{"nodes": [{"id": "a", "kind": "workflow", "workflow": "w", "task_queue": "q", "args": "x"}]}`, []string{"/nodes/0/args"}, "want an object, or a list"},
		"workflow with a prompt":  {`{"nodes": [{"id": "a", "kind": "workflow", "workflow": "w", "task_queue": "q", "prompt": "x"}]}`, []string{"/nodes/0"}, "has a workflow, a task_queue and args"},
		"workflow of a tool":      {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "workflow": "w"}]}`, []string{"/nodes/0"}, "only a workflow node"},
		"condition of nobody":     {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "when": "b"}]}`, []string{"/nodes/0/when"}, "no node \"b\""},
		"condition of itself":     {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "when": "a"}]}`, []string{"/nodes/0/when"}, "the node itself"},
		"condition that is wrong": {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "when": "!"}]}`, []string{"/nodes/0/when"}, "not a condition"},
		"condition down the graph": {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "when": "b"}, {"id": "b", "kind": "tool", "tool": "t", "depends_on": ["a"]}]}`,
			[]string{"/nodes/0/when"}, "not an ancestor"},
		"condition of the output": {`{"output": "b", "nodes": [{"id": "a", "kind": "tool", "tool": "t"}, {"id": "b", "kind": "tool", "tool": "t", "when": "a"}]}`,
			[]string{"/nodes/1/when"}, "output cannot have a condition"},
		"retrieval without query": {`{"nodes": [{"id": "a", "kind": "retrieval", "query": null}]}`, []string{"/nodes/0/query"}, "needs a query"},
		"query of an object":      {`{"nodes": [{"id": "a", "kind": "retrieval", "query": {"text": {"$from": "/input"}}}]}`, []string{"/nodes/0/query"}, "want a text"},
		"query of a number":       {`{"nodes": [{"id": "a", "kind": "retrieval", "query": 7}]}`, []string{"/nodes/0/query"}, "want a text"},
		"query too long":          {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "` + strings.Repeat("x", agent.MaxQueryBytes) + `"}]}`, []string{"/nodes/0/query"}, "a query may have"},
		"query of nobody":         {`{"nodes": [{"id": "a", "kind": "retrieval", "query": {"$from": "/nodes/b/output"}}]}`, []string{"/nodes/0/query/$from"}, "no node \"b\""},
		"limit too high":          {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "x", "limit": 51}]}`, []string{"/nodes/0/limit"}, "1 to 50"},
		"negative limit":          {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "x", "limit": -1}]}`, []string{"/nodes/0/limit"}, "1 to 50"},
		"filter of a list":        {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "x", "filter": ["y"]}]}`, []string{"/nodes/0/filter"}, "want an object"},
		"filter of nobody":        {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "x", "filter": {"k": {"$from": "/nodes/b/output"}}}]}`, []string{"/nodes/0/filter/k/$from"}, "no node \"b\""},
		"retrieval with a tool":   {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "x", "tool": "t"}]}`, []string{"/nodes/0"}, "nothing else to do"},
		"retrieval in a lane":     {`{"nodes": [{"id": "a", "kind": "retrieval", "query": "x", "lane": "fast"}]}`, []string{"/nodes/0/lane"}, "for a tool node"},
		"tool with a query":       {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "query": "x"}]}`, []string{"/nodes/0"}, "only a retrieval node"},
		"no tries":                {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "retry": {"max_attempts": 0}}]}`, []string{"/nodes/0/retry/max_attempts"}, "1 to 10"},
		"too many tries":          {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "retry": {"max_attempts": 11}}]}`, []string{"/nodes/0/retry/max_attempts"}, "1 to 10"},
		"unknown on_error":        {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "on_error": "ignore"}]}`, []string{"/nodes/0/on_error"}, "want fail, continue"},
		"malformed reference":     {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"k": [{"$from": "nodes"}]}}]}`, []string{"/nodes/0/inputs/k/0/$from"}, "JSON pointer"},
		"reference no string":     {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": {"k": {"$from": 1}}}]}`, []string{"/nodes/0/args/k/$from"}, "want a string"},
		"reference to nobody":     {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": {"k": {"$from": "/nodes/b/output"}}}]}`, []string{"/nodes/0/args/k/$from"}, "no node \"b\""},
		"reference to itself":     {`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": {"$from": "/nodes/a/output"}}]}`, []string{"/nodes/0/args/$from"}, "refer to itself"},
		"reference to answer":     {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"k": {"$from": "/nodes/answer/output"}}}]}`, []string{"/nodes/0/inputs/k/$from"}, "no node \"answer\""},
		"escaped reference":       {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"k": {"\u0024from": "/nodes/b/output"}}}]}`, []string{"/nodes/0/inputs/k/$from"}, "no node \"b\""},
		"reference down the graph": {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"k": {"$from": "/nodes/b/output"}}},
			{"id": "b", "kind": "llm", "prompt": "x", "depends_on": ["a"]}]}`, []string{"/nodes/0/inputs/k/$from"}, "not an ancestor"},
		"two that refer to each other": {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"k": {"$from": "/nodes/b/output"}}},
			{"id": "b", "kind": "llm", "prompt": "x", "inputs": {"k": {"$from": "/nodes/a/output"}}}]}`, []string{"/nodes/1/inputs/k/$from"}, "not an ancestor"},
		"error of a node that fails its run": {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x"},
			{"id": "b", "kind": "llm", "prompt": "x", "inputs": {"k": {"$from": "/nodes/a/error"}}}]}`, []string{"/nodes/1/inputs/k/$from"}, "has no error"},
		"cycle": {`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "depends_on": ["b"]}, {"id": "b", "kind": "llm", "prompt": "x", "depends_on": ["c"]},
			{"id": "c", "kind": "llm", "prompt": "x", "depends_on": ["a"]}, {"id": "d", "kind": "llm", "prompt": "x", "depends_on": ["c"]}]}`,
			[]string{"/nodes/0/depends_on", "/nodes/1/depends_on", "/nodes/2/depends_on"}, "part of a cycle"},
		"all at once, in the order of the nodes": {`{"nodes": [{"id": "a", "kind": "llm"}, {"id": "a", "kind": "tool"}, {"id": "c", "kind": "tool", "tool": "unknown", "depends_on": ["x", "y"]}]}`,
			[]string{"/nodes/1/id", "/nodes/0/prompt", "/nodes/1/tool", "/nodes/2/tool", "/nodes/2/depends_on/0", "/nodes/2/depends_on/1"}, "node 0 already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := agent.Compile(planOf(t, tc.plan), checks)
			var invalid *agent.PlanError
			require.ErrorAs(t, err, &invalid)
			pointers := make([]string, len(invalid.Faults))
			for i, f := range invalid.Faults {
				pointers[i] = f.Pointer
			}
			require.Equal(t, tc.pointers, pointers)
			require.Contains(t, invalid.Faults[0].Message, tc.message)
			require.Contains(t, err.Error(), invalid.Faults[0].Pointer)
		})
	}
}

func TestCompileBoundsTheNumberOfNodes(t *testing.T) {
	t.Parallel()
	plan := &agent.Plan{}
	for i := range agent.MaxPlanNodes {
		plan.Nodes = append(plan.Nodes, agent.Node{ID: fmt.Sprint("n", i), Kind: agent.ToolNode, Tool: "t"})
	}
	compiled, err := agent.Compile(plan, checks)
	require.NoError(t, err)
	require.Len(t, compiled.Nodes, agent.MaxPlanNodes+1)

	plan.Nodes = append(plan.Nodes, agent.Node{ID: "more", Kind: agent.ToolNode, Tool: "t"})
	_, err = agent.Compile(plan, checks)
	require.ErrorContains(t, err, "/nodes: 201 nodes")
}

func TestCompile(t *testing.T) {
	t.Parallel()
	const llm, tool = `"kind": "llm", "prompt": "x"`, `"kind": "tool", "tool": "t"`
	for name, tc := range map[string]struct {
		plan string
		want string
	}{
		"the only sink is an llm node: it answers": {
			`{"nodes": [{"id": "a", ` + tool + `}, {"id": "b", ` + llm + `, "depends_on": ["a"]}]}`,
			`{"nodes": [{"id": "a", ` + tool + `, "args": {}, "on_error": "fail"}, {"id": "b", ` + llm + `, "depends_on": ["a"], "on_error": "fail"}]}`,
		},
		"the only sink is a tool node: an answer is appended": {
			`{"nodes": [{"id": "a", ` + tool + `, "args": null}]}`,
			`{"nodes": [{"id": "a", ` + tool + `, "args": {}, "on_error": "fail"}, {"id": "answer", "kind": "llm",
				"prompt": "Answer the user from these results.", "inputs": {"a": {"$from": "/nodes/a/output"}}, "depends_on": ["a"], "on_error": "fail"}]}`,
		},
		"two sinks: an answer over both is appended": {
			`{"nodes": [{"id": "b", ` + llm + `}, {"id": "a", ` + llm + `, "args": null}], "constraints": ["be brief"]}`,
			`{"nodes": [{"id": "b", ` + llm + `, "on_error": "fail"}, {"id": "a", ` + llm + `, "on_error": "fail"}, {"id": "answer", "kind": "llm",
				"prompt": "Answer the user from these results.", "inputs": {"a": {"$from": "/nodes/a/output"}, "b": {"$from": "/nodes/b/output"}},
				"depends_on": ["b", "a"], "on_error": "fail"}], "constraints": ["be brief"]}`,
		},
		"a reference implies the dependency": {
			`{"nodes": [{"id": "z", ` + llm + `, "inputs": {"v": {"$from": "/nodes/a/output/x"}, "i": {"$from": "/input"}}}, {"id": "a", ` + tool + `}]}`,
			`{"nodes": [{"id": "a", ` + tool + `, "args": {}, "on_error": "fail"}, {"id": "z", ` + llm + `,
				"inputs": {"v": {"$from": "/nodes/a/output/x"}, "i": {"$from": "/input"}}, "depends_on": ["a"], "on_error": "fail"}]}`,
		},
		"an error may be referred to where the plan goes on": {
			`{"nodes": [{"id": "a", ` + tool + `, "on_error": "continue"}, {"id": "b", ` + llm + `, "inputs": {"e": {"$from": "/nodes/a/error/message"}}}]}`,
			`{"nodes": [{"id": "a", ` + tool + `, "args": {}, "on_error": "continue"}, {"id": "b", ` + llm + `,
				"inputs": {"e": {"$from": "/nodes/a/error/message"}}, "depends_on": ["a"], "on_error": "fail"}]}`,
		},
		"null where a planner has nothing to say": {
			`{"nodes": [{"id": "a", ` + llm + `, "args": null, "tool": null, "inputs": null, "timeout": null, "retry": null, "depends_on": null, "on_error": null}]}`,
			`{"nodes": [{"id": "a", ` + llm + `, "on_error": "fail"}]}`,
		},
		"a dependency named twice is one": {
			`{"nodes": [{"id": "a", ` + tool + `}, {"id": "b", ` + llm + `, "depends_on": ["a", "a"], "inputs": {"v": {"$from": "/nodes/a/output"}}}]}`,
			`{"nodes": [{"id": "a", ` + tool + `, "args": {}, "on_error": "fail"}, {"id": "b", ` + llm + `, "depends_on": ["a"],
				"inputs": {"v": {"$from": "/nodes/a/output"}}, "on_error": "fail"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := json.Marshal(compiledOf(t, tc.plan))
			require.NoError(t, err)
			require.JSONEq(t, tc.want, string(got))
		})
	}
}

// drawPlan draws a valid plan: nodes written in any order, dependencies and references without cycles.
func drawPlan(t *rapid.T) *agent.Plan {
	n := rapid.IntRange(1, 12).Draw(t, "nodes")
	order := rapid.Permutation(indexes(n)).Draw(t, "order") // order[i] may depend on order[:i]
	plan := &agent.Plan{Nodes: make([]agent.Node, n)}
	for at, i := range order {
		node := agent.Node{ID: fmt.Sprint("n", i), Kind: agent.LLMNode, Prompt: "x"}
		if rapid.Bool().Draw(t, "tool") {
			node = agent.Node{ID: node.ID, Kind: agent.ToolNode, Tool: "t"}
		}
		var refs []string
		for _, dep := range order[:at] {
			switch rapid.IntRange(0, 4).Draw(t, "edge") {
			case 0:
				node.DependsOn = append(node.DependsOn, fmt.Sprint("n", dep))
			case 1:
				refs = append(refs, fmt.Sprintf(`{"$from": "/nodes/n%d/output"}`, dep))
			}
		}
		values := json.RawMessage("[" + strings.Join(refs, ",") + "]")
		if node.Kind == agent.ToolNode {
			node.Args = json.RawMessage(`{"refs": ` + string(values) + `}`)
		} else {
			node.Inputs = map[string]json.RawMessage{"refs": values}
		}
		plan.Nodes[i] = node
	}
	return plan
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// R0-13: the steps of a run are the compiled plan, the same at every compilation.
func TestCompileIsDeterministicAndTopological(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plan := drawPlan(t)
		before, err := json.Marshal(plan)
		require.NoError(t, err)
		first, err := agent.Compile(plan, checks)
		require.NoError(t, err)
		second, err := agent.Compile(plan, checks)
		require.NoError(t, err)
		require.Equal(t, first, second)
		after, err := json.Marshal(plan)
		require.NoError(t, err)
		require.Equal(t, string(before), string(after), "the plan that is compiled is not changed")

		place := map[string]int{}
		sinks := map[string]bool{}
		for at, n := range first.Nodes {
			require.NotContains(t, place, n.ID)
			for i, dep := range n.DependsOn {
				require.Contains(t, place, dep, "%s stands before what it depends on", n.ID)
				require.True(t, i == 0 || place[n.DependsOn[i-1]] < place[dep], "dependencies in the order of the plan")
				delete(sinks, dep)
			}
			place[n.ID], sinks[n.ID] = at, true
		}
		require.Len(t, sinks, 1)
		last := first.Nodes[len(first.Nodes)-1]
		require.True(t, sinks[last.ID])
		require.Equal(t, agent.LLMNode, last.Kind)

		// Of the nodes that may come next, the one that was written first does.
		for at, n := range first.Nodes[:len(plan.Nodes)] {
			for _, later := range first.Nodes[at+1 : len(plan.Nodes)] {
				free := !slices.ContainsFunc(later.DependsOn, func(dep string) bool { return place[dep] >= at })
				if free {
					require.Less(t, written(t, n.ID), written(t, later.ID), "%s could have come before %s", later.ID, n.ID)
				}
			}
		}

		// An answer is there exactly when the plan has no single llm node at its end.
		inner := map[string]bool{}
		for _, n := range first.Nodes[:len(plan.Nodes)] {
			for _, dep := range n.DependsOn {
				inner[dep] = true
			}
		}
		var ends []agent.Node
		for _, n := range first.Nodes[:len(plan.Nodes)] {
			if !inner[n.ID] {
				ends = append(ends, n)
			}
		}
		answers := len(ends) == 1 && ends[0].Kind == agent.LLMNode
		require.Equal(t, answers, last.ID != agent.AnswerNodeID)
		if !answers {
			require.Len(t, last.DependsOn, len(ends))
		}
	})
}

func written(t require.TestingT, id string) int {
	i, err := strconv.Atoi(id[1:])
	require.NoError(t, err)
	return i
}

func TestShape(t *testing.T) {
	t.Parallel()
	plan := compiledOf(t, `{"nodes": [
		{"id": "e", "kind": "tool", "tool": "mail", "timeout": "7s", "retry": {"max_attempts": 3}, "on_error": "skip_dependents"},
		{"id": "i", "kind": "tool", "tool": "get"},
		{"id": "u", "kind": "tool", "tool": "gone"},
		{"id": "l", "kind": "llm", "prompt": "x", "depends_on": ["i", "e", "u"]}]}`)
	def := &agent.Definition{Tools: []agent.ToolRef{
		{Name: "mail", Effect: agent.External, Timeout: agent.Duration(time.Hour)},
		{Name: "get", Effect: agent.Idempotent, Timeout: agent.Duration(3 * time.Second)},
	}}
	shape := plan.Shape(def)
	require.Equal(t, []agent.ShapeNode{
		{ID: "e", Kind: agent.ToolNode, Tool: "mail", Effect: agent.External, Timeout: agent.Duration(7 * time.Second), Tries: 3, OnError: agent.OnErrorSkip},
		{ID: "i", Kind: agent.ToolNode, Tool: "get", Effect: agent.Idempotent, Timeout: agent.Duration(3 * time.Second), OnError: agent.OnErrorFail},
		// What nobody knows of is external: it is never repeated.
		{ID: "u", Kind: agent.ToolNode, Tool: "gone", Effect: agent.External, Timeout: agent.DefaultToolTimeout, OnError: agent.OnErrorFail},
		{ID: "l", Kind: agent.LLMNode, Effect: agent.Idempotent, DependsOn: []int{0, 1, 2}, Timeout: agent.DefaultModelTimeout, OnError: agent.OnErrorFail},
	}, shape.Nodes)
	require.Equal(t, 3, shape.Final())
	require.Equal(t, []string{"e", "i", "u", "l"}, nodeIDs(plan))

	doc, err := json.Marshal(shape)
	require.NoError(t, err)
	var again agent.Shape
	require.NoError(t, json.Unmarshal(doc, &again))
	require.Equal(t, *shape, again)
	require.NotContains(t, string(doc), "prompt", "a shape carries no content")
}

// A condition implies dependencies, and a plan whose only sink may be skipped has an answer of its own.
func TestCompileConditions(t *testing.T) {
	t.Parallel()
	p, err := agent.Compile(planOf(t, `{"nodes": [{"id": "say", "kind": "llm", "prompt": "x", "when": "b a"}, {"id": "a", "kind": "tool", "tool": "t"}, {"id": "b", "kind": "tool", "tool": "t"}]}`), checks)
	require.NoError(t, err)
	ids := []string{}
	for _, n := range p.Nodes {
		ids = append(ids, n.ID)
	}
	require.Equal(t, []string{"a", "b", "say", agent.AnswerNodeID}, ids)
	require.Equal(t, []string{"a", "b"}, p.Nodes[2].DependsOn)
	require.Equal(t, []string{"say"}, p.Nodes[3].DependsOn)
	shape := p.Shape(&agent.Definition{})
	require.True(t, shape.Nodes[2].When)
	require.False(t, shape.Nodes[3].When)
}

// The arguments of a workflow are an object or a list, whose references imply dependencies.
func TestCompileWorkflows(t *testing.T) {
	t.Parallel()
	p, err := agent.Compile(planOf(t, `{"nodes": [{"id": "b", "kind": "workflow", "workflow": "w", "task_queue": "q", "args": [{"$from": "/nodes/a/output"}, 2]},
		{"id": "a", "kind": "workflow", "workflow": "w", "task_queue": "q"}]}`), checks)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, p.Nodes[1].DependsOn)
	shape := p.Shape(&agent.Definition{})
	require.Equal(t, agent.ShapeNode{ID: "a", Kind: agent.WorkflowNode, Tool: "w", Effect: agent.Idempotent, Timeout: agent.DefaultWorkflowTimeout, OnError: agent.OnErrorFail}, shape.Nodes[0])
}

func TestWhichWorkflowsAnAgentMayStart(t *testing.T) {
	t.Parallel()
	d := agent.Definition{Workflows: []string{"orders/ShipOrder", "billing/*"}}
	require.True(t, d.MayStart("orders", "ShipOrder"))
	require.False(t, d.MayStart("orders", "CancelOrder"))
	require.True(t, d.MayStart("billing", "Anything"))
	require.False(t, d.MayStart("other", "ShipOrder"))
	require.False(t, (&agent.Definition{}).MayStart("orders", "ShipOrder"))
	require.True(t, (&agent.Definition{Workflows: []string{"*"}}).MayStart("q", "w"))
}
