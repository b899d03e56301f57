package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestPlanIsMadeOnce(t *testing.T) {
	t.Parallel()
	w := run(t, input(nil), script{"plan": {{plan: graph(work("a"), say("b", "a"))}}})
	require.NoError(t, w.err)
	require.Equal(t, agent.Completed, w.out.Status)
	require.EqualValues(t, len(w.events), w.out.Sequence)
	require.Equal(t, []string{"plan", "a", "b"}, w.commands())
	require.Equal(t, []string{"CallPlanner", "CallTool", "CallModel", "Finish"}, w.activities())
}

func TestPlanThatIsBroughtIsNotMade(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), say("b", "a"))), nil)
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b"}, w.commands())
	require.Equal(t, "2 of 2 nodes finished", w.finish.Summary)
}

func TestPlannerEndings(t *testing.T) {
	t.Parallel()
	plan := graph(say("a"))
	for name, c := range map[string]struct {
		planner []effect
		ends    agent.Status
		code    agent.Code
		settled int
		planned int
	}{
		"no plan to be had":      {planner: []effect{{ends: fails, code: agent.CodeInvalidPlan}}, ends: agent.FailedStatus, code: agent.CodeInvalidPlan, planned: 1},
		"the reply is lost":      {planner: []effect{{ends: unheard, plan: plan}}, ends: agent.Completed, settled: 1, planned: 1},
		"refused, then made":     {planner: []effect{{ends: refused}, {plan: plan}}, ends: agent.Completed, settled: 1, planned: 2},
		"the worker is lost":     {planner: []effect{{ends: lost, code: agent.CodeTimeout}}, ends: agent.FailedStatus, code: agent.CodeTimeout, settled: 1, planned: 1},
		"committed, but no plan": {planner: []effect{{}}, ends: agent.FailedStatus, code: agent.CodeInternal, planned: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(nil), script{"plan": c.planner})
			require.Equal(t, c.ends, w.finish.Status)
			require.Equal(t, c.settled, count(w, agent.SettleCommand))
			require.Equal(t, c.planned, count(w, agent.CallPlanner))
			if c.code != "" {
				require.Equal(t, c.code, w.failure())
				require.Equal(t, c.code, w.finish.Error.Code)
			}
		})
	}
}

func TestIndependentNodesRunAtOnce(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b"), work("c"), work("d"), work("e"), say("f", "a", "b", "c", "d", "e"))
	for name, c := range map[string]struct{ limit, most int }{
		"one at a time":        {1, 1},
		"two at a time":        {2, 2},
		"four at a time":       {4, 4},
		"all that there are":   {5, 5},
		"never more than that": {100, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, parallel(input(plan), c.limit), nil)
			require.NoError(t, w.err)
			require.Equal(t, c.most, w.most)
			require.Equal(t, []string{"a", "b", "c", "d", "e", "f"}, w.commands())
		})
	}
}

func TestNodeWaitsForItsDependenciesAndForNothingElse(t *testing.T) {
	t.Parallel()
	// b takes long; d must not wait for it, e must.
	w := run(t, input(graph(work("a"), work("b"), work("c", "a"), work("d", "c"), say("e", "b", "d"))),
		script{"b": {{takes: 10 * time.Hour}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, w.commands())
	require.Less(t, w.at(agent.NodeFinished, "d"), w.at(agent.NodeFinished, "b"))
	for _, dep := range []struct{ on, node string }{{"a", "c"}, {"c", "d"}, {"b", "e"}, {"d", "e"}} {
		require.Less(t, w.at(agent.NodeFinished, dep.on), w.at(agent.NodeStarted, dep.node), "%s before %s", dep.on, dep.node)
	}
}

func TestSlotIsGivenToTheFirstNodeOfThePlan(t *testing.T) {
	t.Parallel()
	w := run(t, parallel(input(graph(work("a"), work("b"), work("c"), work("d", "a"), say("e", "b", "c", "d"))), 2),
		script{"b": {{takes: 10 * time.Hour}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, w.commands())
}

func TestCommandOpensItsNodeOnceAndEndsIt(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a").tries(2), say("b", "a"))), script{"a": {{ends: fails}}})
	require.NoError(t, w.err)
	for i, want := range []struct {
		command string
		opens   bool
	}{{"a", true}, {"a~2", false}, {"b", true}} {
		require.Equal(t, want.command, w.calls[i].command)
		require.Equal(t, want.opens, w.calls[i].opens, want.command)
		require.True(t, w.calls[i].ends, want.command)
		require.Equal(t, i+1, w.calls[i].schedule)
	}
}

func TestOrderOfTheRecord(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), work("b"), say("c", "a", "b"))), nil)
	require.NoError(t, w.err)
	for _, node := range []string{"a", "b", "c"} {
		require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished}, w.types(node))
	}
	require.Equal(t, agent.RunCompleted, w.events[len(w.events)-1].Type)
	require.Equal(t, "Finish", w.calls[len(w.calls)-1].name)
}

func TestUnknownNodeKindFailsTheRun(t *testing.T) {
	t.Parallel()
	odd := say("a")
	odd.Kind = "dream"
	w := run(t, input(graph(odd)), nil)
	require.Equal(t, agent.CodeInvalidPlan, w.failure())
	require.Empty(t, w.commands())
	require.Equal(t, []agent.EventType{agent.NodeFailed, agent.RunFailed}, w.types("a"))
}

func TestSnapshotShowsWhereTheRunStands(t *testing.T) {
	t.Parallel()
	var before, during map[string]string
	statuses := func(w *world) map[string]string {
		m := map[string]string{}
		for _, n := range w.snapshot().Nodes {
			m[n.ID] = n.Status
		}
		return m
	}
	plan := graph(work("a"), work("b").onError(agent.OnErrorSkip), work("c", "b"), work("d", "a"), say("answer", "c", "d"))
	w := newWorld(t, input(nil), script{
		"plan": {{plan: plan, begun: func(w *world) { before = statuses(w) }}},
		"b":    {{ends: fails, takes: 10 * time.Minute}},
		"a":    {{takes: 20 * time.Minute}},
		"d":    {{begun: func(w *world) { during = statuses(w) }}},
	}).run()
	require.NoError(t, w.err)
	require.Empty(t, before)
	require.Equal(t, map[string]string{"a": "finished", "b": "failed", "c": "skipped", "d": "running", "answer": "waiting"}, during)
	after := w.snapshot()
	require.Equal(t, "run", after.RunID)
	require.Equal(t, 1, after.Epoch)
	require.Equal(t, agent.Completed, after.State.Status)
	require.Equal(t, map[string]string{"a": "finished", "b": "failed", "c": "skipped", "d": "finished", "answer": "finished"}, statuses(w))
	require.Equal(t, agent.ToolNode, after.Nodes[0].Kind)
	require.Equal(t, string(agent.Idempotent), after.Nodes[0].Tool)
}
