package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// later cancels the run when everything that can go on has come to rest.
func later(w *world) { w.env.RegisterDelayedCallback(func() { w.cancel(time.Second) }, 1000*time.Hour) }

// inDoubt is when the run was recorded as in doubt: the number of activities scheduled before, -1 for never.
func inDoubt(w *world) int {
	at := -1
	for i, c := range w.calls {
		if c.name == string(agent.Record) && c.status == agent.InDoubt {
			require.Equal(w.t, -1, at, "recorded once")
			at = i
		}
	}
	return at
}

func TestDoubtParksItsDependentsOnly(t *testing.T) {
	t.Parallel()
	for name, doubtful := range map[string]effect{
		"said by the gate":   {ends: doubts, begun: later},
		"lost and settled":   {ends: lost, code: agent.CodeTimeout, begun: later},
		"lost without words": {ends: lost, begun: later},
	} {
		for limit, how := range map[int]string{1: "one at a time", 2: "two at a time", 8: "side by side"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				w := run(t, parallel(input(graph(send("a"), work("b", "a"), work("c"), work("d", "c"), say("e", "b", "d"))), limit),
					script{"a": {doubtful}})
				w.requireCancelled()
				require.ElementsMatch(t, []string{"a", "c", "d"}, w.commands(), "c and d go on, b and e do not")
				require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandDoubtType}, w.types("a"))
				require.Less(t, w.at(agent.NodeFinished, "d"), w.at(agent.RunCancelled, ""))
				require.Equal(t, len(w.calls)-2, inDoubt(w), "when nothing else could go on: %v", w.activities())
			})
		}
	}
}

func TestDoubtOfEverySort(t *testing.T) {
	t.Parallel()
	doubtful := effect{ends: doubts, begun: later}
	for name, c := range map[string]struct {
		in       agent.RunInput
		script   script
		want     []string
		recorded bool
	}{
		"the only node": {input(graph(send("a"), say("b", "a"))), script{"a": {doubtful}}, []string{"a"}, true},
		"two of them":   {input(graph(send("a"), send("b"), say("c", "a", "b"))), script{"a": {doubtful}, "b": {doubtful}}, []string{"a", "b"}, true},
		"two of them, one at a time": {parallel(input(graph(send("a"), send("b"), say("c", "a", "b"))), 1),
			script{"a": {doubtful}, "b": {{ends: doubts}}}, []string{"a", "b"}, true},
		"a failure beside it": {input(graph(send("a"), work("b").onError(agent.OnErrorSkip), work("c", "b"), say("d", "a", "c"))),
			script{"a": {doubtful}, "b": {{ends: fails, takes: 2 * time.Hour}}}, []string{"a", "b"}, true},
		"a try beside it": {input(graph(send("a"), work("b").tries(2), say("d", "a", "b"))),
			script{"a": {doubtful}, "b": {{ends: fails, takes: 2 * time.Hour}}}, []string{"a", "b", "b~2"}, true},
		"a tool of a turn": {react(), script{"main#1": {asks(3)}, "main#1.1": {doubtful}}, []string{"main#1", "main#1.0", "main#1.1", "main#1.2"}, true},
		"a tool of a turn, one at a time": {parallel(react(), 1), script{"main#1": {asks(3)}, "main#1.0": {doubtful}},
			[]string{"main#1", "main#1.0", "main#1.1", "main#1.2"}, true},
		"all tools of a turn, two at a time": {parallel(react(), 2), script{"main#1": {asks(3)}, "main#1.0": {doubtful}, "main#1.1": {doubtful}, "main#1.2": {doubtful}},
			[]string{"main#1", "main#1.0", "main#1.1", "main#1.2"}, true},
		"a turn":      {react(), script{"main#1": {doubtful}}, []string{"main#1"}, true},
		"the planner": {input(nil), script{"plan": {doubtful}}, []string{"plan"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			w.requireCancelled()
			require.Equal(t, c.want, w.commands())
			require.Equal(t, c.recorded, inDoubt(w) >= 0)
		})
	}
}

func TestDoubtIsNotTheRunsWhileItCanGoOn(t *testing.T) {
	t.Parallel()
	var during agent.Status
	w := run(t, input(graph(send("a"), work("b"), say("c", "a", "b"))), script{
		"a": {{ends: doubts, begun: later}},
		"b": {{takes: 500 * time.Hour, begun: func(w *world) {
			w.env.RegisterDelayedCallback(func() { during = w.status }, 400*time.Hour)
		}}},
	})
	w.requireCancelled()
	require.Equal(t, agent.Running, during)
	require.Equal(t, []string{"CallTool", "CallTool", "Record", "Finish"}, w.activities())
}

func TestFailureEndsARunInDoubt(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(send("a"), work("b"), say("c", "a", "b"))), script{
		"a": {{ends: doubts}},
		"b": {{ends: fails, code: agent.CodeToolFailed, takes: 5 * time.Hour}},
	})
	require.Equal(t, agent.CodeToolFailed, w.failure())
	require.Equal(t, agent.FailedStatus, w.finish.Status)
	require.Equal(t, -1, inDoubt(w))
}
