package agent_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// R0-2, R0-4 to R0-11, R0-14, R0-15, R0-20.
func TestBuildFromEventsGivesPlanSetsCursorAndResults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawRecord(t)
		rc, err := agent.BuildFromEvents(d.records)
		require.NoError(t, err)
		state, err := agent.Fold(d.events())
		require.NoError(t, err)
		require.Equal(t, state, rc.State)
		want, err := json.Marshal(d.plan)
		require.NoError(t, err)
		graph, err := json.Marshal(rc.TaskGraph)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(graph))
		require.Equal(t, append([]string{}, d.finished...), rc.CompletedNodeIDs)
		require.ElementsMatch(t, d.commandsIn("committed"), rc.CompletedCommandIDs)
		require.Equal(t, d.cursor, rc.CursorNode)
		require.Equal(t, d.results, rc.CommandResults)

		// The outputs at each node_finished are those of the nodes that had finished by then.
		outputs := map[string]json.RawMessage{}
		for _, id := range d.finished {
			switch {
			case d.old:
				outputs[id] = json.RawMessage(`"old"`)
			case id == agent.MainNodeID:
				outputs[id] = text(t, d.results[agent.TurnCommandID(id, d.turns[id])])
			default:
				node, ok := d.plan.Node(id)
				require.True(t, ok)
				outputs[id] = d.results[id]
				if node.Kind == agent.LLMNode {
					outputs[id] = text(t, d.results[id])
				}
			}
			require.Equal(t, outputs, rc.PayloadResultsByNode[id])
		}
		require.Equal(t, outputs, rc.PayloadResults)

		if d.plan == nil {
			require.Zero(t, rc.StartIndex())
			return
		}
		start := slices.IndexFunc(d.plan.Nodes, func(n agent.Node) bool { return !slices.Contains(rc.CompletedNodeIDs, n.ID) })
		if start < 0 {
			start = len(d.plan.Nodes)
		}
		require.Equal(t, start, rc.StartIndex())
	})
}

func text(t require.TestingT, result json.RawMessage) json.RawMessage {
	var reply struct{ Text string }
	require.NoError(t, json.Unmarshal(result, &reply))
	doc, err := json.Marshal(reply.Text)
	require.NoError(t, err)
	return doc
}

// R1-8, R1-9: of a linear plan, the checkpoint's completed set is the nodes up to the cursor, and the first incomplete node
// is the one after it.
func TestStartIndexOfALinearPlanIsTheOneAfterTheCursor(t *testing.T) {
	t.Parallel()
	plan := compiledOf(t, `{"nodes": [{"id": "a", "kind": "tool", "tool": "t"}, {"id": "b", "kind": "tool", "tool": "t", "depends_on": ["a"]},
		{"id": "c", "kind": "llm", "prompt": "x", "depends_on": ["b"]}]}`)
	records := []agent.Recorded{
		recorded(t, 1, agent.RunStarted, "", "", agent.RunStartedData{}),
		recorded(t, 2, agent.PlanGenerated, "plan", "", agent.PlanGeneratedData{TaskGraph: plan}),
	}
	for i, n := range append(plan.Nodes, agent.Node{}) {
		rc, err := agent.BuildFromEvents(records)
		require.NoError(t, err)
		require.Equal(t, i, rc.StartIndex())
		require.Equal(t, i, rc.State.Step())
		for k := range plan.Nodes {
			require.Equal(t, k < i, rc.State.Finished.Has(k))
		}
		if i > 0 {
			require.Equal(t, plan.Nodes[i-1].ID, rc.CursorNode)
		}
		records = append(records, recorded(t, int64(3+i), agent.NodeFinished, n.ID, "", agent.NodeFinishedData{Index: i, Output: agent.ShowValue(json.RawMessage(`1`))}))
	}
}

// R0-16: a committed command without node_finished leaves its node open and its result at hand.
func TestBuildFromEventsCommittedWithoutNodeFinished(t *testing.T) {
	t.Parallel()
	plan := compiledOf(t, `{"nodes": [{"id": "a", "kind": "tool", "tool": "t"}, {"id": "b", "kind": "llm", "prompt": "x", "depends_on": ["a"]}]}`)
	committed := recorded(t, 3, agent.CommandCommitted, "a", "a", agent.CommandCommittedData{Kind: agent.ToolCommand})
	committed.Result = json.RawMessage(`{"v":1.50}`)
	rc, err := agent.BuildFromEvents([]agent.Recorded{
		recorded(t, 1, agent.RunStarted, "", "", agent.RunStartedData{}),
		recorded(t, 2, agent.PlanGenerated, "plan", "", agent.PlanGeneratedData{TaskGraph: plan}),
		committed,
	})
	require.NoError(t, err)
	require.Zero(t, rc.StartIndex())
	require.Empty(t, rc.CompletedNodeIDs)
	require.Equal(t, []string{"a"}, rc.CompletedCommandIDs)
	require.Equal(t, `{"v":1.50}`, string(rc.CommandResults["a"]), "exact bytes")
	require.Empty(t, rc.PayloadResults)
}

func TestBuildFromEventsRefusesABrokenRecord(t *testing.T) {
	t.Parallel()
	committed := recorded(t, 1, agent.CommandCommitted, "a", "a", agent.CommandCommittedData{Kind: agent.ModelCommand})
	committed.Result = json.RawMessage(`{"text":"x"}`)
	twice := committed
	twice.Sequence = 2
	_, err := agent.BuildFromEvents([]agent.Recorded{committed, twice})
	require.ErrorContains(t, err, "event 2: command a is committed twice")

	noResult := committed
	noResult.Result = nil
	_, err = agent.BuildFromEvents([]agent.Recorded{noResult, recorded(t, 2, agent.NodeFinished, "a", "", agent.NodeFinishedData{ResultCommand: "a"})})
	require.ErrorContains(t, err, "event 2: node a: result of a model command")

	_, err = agent.BuildFromEvents([]agent.Recorded{recorded(t, 1, agent.NodeFinished, "a", "", map[string]any{"node_index": 9999})})
	require.ErrorContains(t, err, "node_index 9999")
}

func TestReplayContextJSON(t *testing.T) {
	t.Parallel()
	rc, err := agent.BuildFromEvents(nil)
	require.NoError(t, err)
	doc, err := json.Marshal(rc)
	require.NoError(t, err)
	require.JSONEq(t, `{"state": {}, "task_graph": null, "completed_node_ids": [], "completed_command_ids": [], "command_results": {},
		"cursor_node": "", "payload_results": {}}`, string(doc))
}

func TestNodeOutput(t *testing.T) {
	t.Parallel()
	out, err := agent.NodeOutput(agent.ModelCommand, json.RawMessage(`{"text": "a\u0000<b>", "tool_calls": []}`))
	require.NoError(t, err)
	var said string
	require.NoError(t, json.Unmarshal(out, &said))
	require.Equal(t, "a\x00<b>", said)
	out, err = agent.NodeOutput(agent.ToolCommand, json.RawMessage(`{"v": 1.0}`))
	require.NoError(t, err)
	require.Equal(t, `{"v": 1.0}`, string(out))
	_, err = agent.NodeOutput(agent.ModelCommand, json.RawMessage(`[]`))
	require.Error(t, err)
	_, err = agent.NodeOutput("", json.RawMessage(`{}`))
	require.ErrorContains(t, err, "has no output")
}

func recorded(t testing.TB, sequence int64, typ agent.EventType, nodeID, commandID string, data any) agent.Recorded {
	t.Helper()
	raw, err := json.Marshal(data)
	require.NoError(t, err)
	return agent.Recorded{Event: agent.Event{Sequence: sequence, Type: typ, NodeID: nodeID, CommandID: commandID, Epoch: 1, Data: raw}}
}

// FuzzPlan decodes and compiles whatever comes: a plan that compiles runs, so what comes out obeys the rules.
func FuzzPlan(f *testing.F) {
	for _, seed := range []string{
		`{"nodes": [{"id": "fetch", "kind": "tool", "tool": "http_request", "args": {"method": "GET", "url": "https://example.org/a.json"}},
			{"id": "sum", "kind": "tool", "tool": "calculator", "args": {"expression": {"$from": "/nodes/fetch/output/json/expr"}}, "depends_on": ["fetch"]},
			{"id": "say", "kind": "llm", "prompt": "Explain", "inputs": {"result": {"$from": "/nodes/sum/output"}}, "depends_on": ["sum"]}]}`,
		`{"nodes": [{"id": "a", "kind": "llm", "prompt": "x", "depends_on": ["b"]}, {"id": "b", "kind": "llm", "prompt": "x", "depends_on": ["a"]}]}`,
		`{"nodes": [{"id": "a", "kind": "tool", "tool": "t", "args": {"a": {"a": {"a": [[[{"\u0024from": "/metadata"}]]]}}}, "timeout": "1s", "retry": {"max_attempts": 3}, "on_error": "continue"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		plan := new(agent.Plan)
		if json.Unmarshal(doc, plan) != nil {
			return
		}
		compiled, err := agent.Compile(plan, checks)
		if err != nil {
			var invalid *agent.PlanError
			require.ErrorAs(t, err, &invalid)
			require.NotEmpty(t, invalid.Faults)
			return
		}
		place := map[string]int{}
		for i, n := range compiled.Nodes {
			require.True(t, agent.ValidNodeID(n.ID))
			for _, dep := range n.DependsOn {
				require.Contains(t, place, dep)
			}
			require.NotContains(t, place, n.ID)
			place[n.ID] = i
		}
		require.Equal(t, agent.LLMNode, compiled.Nodes[len(compiled.Nodes)-1].Kind)
		shape := compiled.Shape(&agent.Definition{})
		require.Len(t, shape.Nodes, len(place))

		written, err := json.Marshal(compiled)
		require.NoError(t, err)
		again := new(agent.Plan)
		require.NoError(t, json.Unmarshal(written, again))
		rewritten, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(written), string(rewritten))
	})
}

func FuzzParseReference(f *testing.F) {
	for _, seed := range []string{"", "/", "/input", "/metadata/a~1b/0", "/nodes/a/output/x", "/nodes/a/error", "/nodes//output", "/nodes/a/output/~", "/nodes/a/output/~01"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, pointer string) {
		ref, err := agent.ParseReference(pointer)
		if err != nil {
			return
		}
		again, err := agent.ParseReference(ref.String())
		require.NoError(t, err)
		require.Equal(t, ref, again)
	})
}

// FuzzResolve: whatever a plan and a result hold, Resolve gives JSON or an error that is part of the record.
func FuzzResolve(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a": {"$from": "/nodes/n/output/x/0"}, "b": [1.0, "x"]}`, `{"x": [1e400]}`},
		{`{"$from": "/nodes/n/output"}`, `null`},
		{`{"\u0024from": "/nodes/n/output/a~1b"}`, `{"a/b": "\ud800"}`},
		{`[[[{"$from": 1}]]]`, `[]`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, value, result []byte) {
		if !json.Valid(value) || !json.Valid(result) {
			return
		}
		var references int
		agent.EachReference(value, func(string, agent.Reference, error) { references++ })
		got, err := agent.Resolve(value, func(agent.Reference) (json.RawMessage, error) { return result, nil })
		if err != nil {
			failure, ok := agent.AsError(err)
			require.True(t, ok)
			require.Equal(t, agent.CodeReference, failure.Code)
			require.NotZero(t, references)
			return
		}
		require.True(t, json.Valid(got))
		again, err := agent.Resolve(value, func(agent.Reference) (json.RawMessage, error) { return result, nil })
		require.NoError(t, err)
		require.Equal(t, string(got), string(again))
		if references == 0 {
			var want, have any
			require.NoError(t, json.Unmarshal(value, &want))
			require.NoError(t, json.Unmarshal(got, &have))
			require.Equal(t, want, have)
		}
	})
}

// The results of a node's command, and of its loop's, by kind of node: maps of the fold are not shared between states.
func TestPayloadResultsByNodeAreSnapshots(t *testing.T) {
	t.Parallel()
	rc, err := agent.BuildFromEvents([]agent.Recorded{
		recorded(t, 1, agent.NodeFinished, "a", "", agent.NodeFinishedData{Output: agent.ShowValue(json.RawMessage(`1`))}),
		recorded(t, 2, agent.NodeFinished, "b", "", agent.NodeFinishedData{Index: 1, Output: agent.ShowValue(json.RawMessage(`2`))}),
	})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, slices.Sorted(maps.Keys(rc.PayloadResultsByNode["a"])))
	require.Equal(t, []string{"a", "b"}, slices.Sorted(maps.Keys(rc.PayloadResultsByNode["b"])))
}
