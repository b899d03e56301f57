package workflows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// bits is a set of node indexes.
func bits(indexes ...int) (b agent.Bits) {
	for _, i := range indexes {
		b = b.With(i)
	}
	return b
}

// resumed starts a later execution of a run, from where its record stands.
func resumed(in agent.RunInput, s agent.State) agent.RunInput {
	s.Epoch, s.Status = 2, agent.Running
	in.Epoch, in.State = 2, s
	return in
}

func TestResume(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b", "a"), work("c"), say("d", "b", "c"))
	handled := graph(work("a").onError(agent.OnErrorSkip), work("b", "a"), work("c").onError(agent.OnErrorContinue), say("answer", "b", "c"))
	for name, c := range map[string]struct {
		plan  *agent.Shape
		state agent.State
		want  []string
		opens []string // those whose node_started is not on record
	}{
		"nothing done":     {plan, agent.State{}, []string{"a", "c", "b", "d"}, []string{"a", "c", "b", "d"}},
		"one node done":    {plan, agent.State{Started: bits(0), Finished: bits(0), Cursor: "a"}, []string{"b", "c", "d"}, []string{"b", "c", "d"}},
		"a node begun":     {plan, agent.State{Started: bits(0, 1), Finished: bits(0), Cursor: "a"}, []string{"b", "c", "d"}, []string{"c", "d"}},
		"all but the last": {plan, agent.State{Started: bits(0, 1, 2), Finished: bits(0, 1, 2), Cursor: "b"}, []string{"d"}, []string{"d"}},
		"a later node done before an earlier one": {plan, agent.State{Started: bits(2), Finished: bits(2), Cursor: "c"}, []string{"a", "b", "d"}, []string{"a", "b", "d"}},
		"a failure that ended the run":            {plan, agent.State{Started: bits(0, 2), Finished: bits(2), Failed: bits(0)}, []string{"a", "b", "d"}, []string{"b", "d"}},
		"failures that the plan went on with":     {handled, agent.State{Started: bits(0, 2), Failed: bits(0, 2), Skipped: bits(1)}, []string{"answer"}, []string{"answer"}},
		"a skip that was not recorded":            {handled, agent.State{Started: bits(0, 2), Failed: bits(0, 2)}, []string{"answer"}, []string{"answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, resumed(input(c.plan), c.state), nil)
			require.NoError(t, w.err)
			require.Equal(t, c.want, w.commands())
			require.Zero(t, count(w, agent.CallPlanner))
			opens := []string{}
			for _, call := range w.calls {
				if call.opens {
					opens = append(opens, call.command)
				}
			}
			require.Equal(t, c.opens, opens)
			for i, n := range c.plan.Nodes {
				if c.state.Finished.Has(i) {
					require.Empty(t, w.types(n.ID), "no new events of a node that has finished")
				}
			}
		})
	}
}

func TestResumeOfARunThatOnlyLacksItsEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in    agent.RunInput
		state agent.State
		want  string
	}{
		"a plan": {input(graph(work("a"), say("b", "a"))), agent.State{Started: bits(0, 1), Finished: bits(0, 1), Cursor: "b"}, "b"},
		"a loop": {react(), agent.State{Started: bits(0), Finished: bits(0), Cursor: "main", Turns: map[string]int{"main": 3}}, "main#3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, resumed(c.in, c.state), nil)
			require.NoError(t, w.err)
			require.Equal(t, []string{"Finish"}, w.activities())
		})
	}
}

func TestResumeWithoutAPlanPlans(t *testing.T) {
	t.Parallel()
	w := run(t, resumed(input(nil), agent.State{Sequence: 2}), script{"plan": {{plan: graph(say("a"))}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"plan", "a"}, w.commands())
}

func TestEveryActivityNamesItsExecution(t *testing.T) {
	t.Parallel()
	// The fake refuses another run and another epoch than the input's.
	w := run(t, resumed(input(graph(work("a").onError(agent.OnErrorContinue), work("b"), say("c", "a", "b"))), agent.State{}),
		script{"a": {{ends: fails}}, "b": {{ends: refused}, {}}})
	require.NoError(t, w.err)
	require.Equal(t, 1, count(w, agent.Record))
	require.Equal(t, 1, count(w, agent.SettleCommand))
}
