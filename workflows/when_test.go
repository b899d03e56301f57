package workflows_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// A node whose condition does not hold is skipped, and that is no failure: what depends on others too goes on, and so does the run.
func TestWhen(t *testing.T) {
	t.Parallel()
	// a, then b or c, then d of both; e after c alone.
	branches := graph(work("a"), work("b", "a").when(), work("c", "a").when(), work("d", "b", "c"), work("e", "c"), say("answer", "d", "e"))
	for name, c := range map[string]struct {
		plan  *agent.Shape
		unmet []string
		want  []string
		skips map[string]string
	}{
		"all hold":      {branches, nil, []string{"a", "b", "c", "d", "e", "answer"}, nil},
		"one of two":    {branches, []string{"b"}, []string{"a", "c", "d", "e", "answer"}, map[string]string{"b": "its condition does not hold"}},
		"the other one": {branches, []string{"c"}, []string{"a", "b", "d", "answer"}, map[string]string{"c": "its condition does not hold", "e": "all that it depends on was skipped"}},
		"none of them": {branches, []string{"b", "c"}, []string{"a", "answer"}, map[string]string{"b": "its condition does not hold", "c": "its condition does not hold",
			"d": "all that it depends on was skipped", "e": "all that it depends on was skipped"}},
		"a condition goes before what it depends on": {graph(work("a").when(), work("b", "a").when(), say("answer", "b")), []string{"a"}, []string{"b", "answer"},
			map[string]string{"a": "its condition does not hold"}},
		"what the run ends with runs in any case": {graph(work("a").when(), work("b", "a")), []string{"a"}, []string{"b"}, map[string]string{"a": "its condition does not hold"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, parallel(input(c.plan), 1), nil)
			w.unmet = c.unmet
			w.run()
			require.Equal(t, agent.Completed, w.finish.Status)
			require.ElementsMatch(t, c.want, w.commands())
			skips := map[string]string{}
			for _, e := range w.events {
				if e.Type == agent.NodeSkipped {
					var d agent.NodeSkippedData
					require.NoError(t, json.Unmarshal(e.Data, &d))
					require.True(t, d.Unmet)
					skips[e.NodeID] = d.Reason
				}
			}
			if c.skips == nil {
				c.skips = map[string]string{}
			}
			require.Equal(t, c.skips, skips)
			require.Equal(t, w.fold().Unmet, w.snapshot().State.Unmet)
		})
	}
}

// A failure cuts off what a condition does not.
func TestWhenBesideAFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(work("a").when(), work("b").onError(agent.OnErrorSkip), work("c", "a", "b"), say("answer", "c"))),
		script{"b": {{ends: fails, code: agent.CodeToolFailed}}})
	w.unmet = []string{"a"}
	w.run()
	require.Equal(t, agent.Completed, w.finish.Status)
	require.Equal(t, []string{"b", "answer"}, w.commands())
	require.Equal(t, []agent.EventType{agent.NodeSkipped}, w.types("c"))
}

// A condition that cannot be evaluated fails its node, as its on_error says.
func TestWhenItCannotBeTold(t *testing.T) {
	t.Parallel()
	for then, ends := range map[agent.OnError]agent.Status{agent.OnErrorFail: agent.FailedStatus, agent.OnErrorContinue: agent.Completed, agent.OnErrorSkip: agent.Completed} {
		w := newWorld(t, input(graph(work("a").when().onError(then), work("b", "a"), say("answer", "b"))), nil)
		w.unknown = []string{"a"}
		w.run()
		require.Equal(t, ends, w.finish.Status, then)
		require.Positive(t, w.at(agent.NodeFailed, "a"), then)
		require.Zero(t, w.at(agent.CommandEmitted, "a"), then)
		if ends == agent.FailedStatus {
			require.Equal(t, agent.CodeReference, w.failure())
		}
	}
}

// Nodes with a condition do not share a segment before it is known whether they run at all.
func TestWhenInTheFastLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(work("a").fast(), work("b", "a").when().fast(), work("c", "b").fast(), say("answer", "c"))), nil)
	w.unmet = []string{"b"}
	w.run()
	require.Equal(t, agent.Completed, w.finish.Status)
	require.Equal(t, []int{1}, w.shares())
	require.Positive(t, w.at(agent.CommandCommitted, "a"))
	for _, id := range []string{"b", "c"} {
		require.Equal(t, []agent.EventType{agent.NodeSkipped}, w.types(id))
	}
}
