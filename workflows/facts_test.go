package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// carried are the facts of every activity, in the order of their scheduling, by what was scheduled.
func carried(w *world) map[string][]int {
	m := map[string][]int{}
	for _, c := range w.calls {
		key := c.name
		if c.command != "" && c.name != string(agent.SettleCommand) {
			key = c.command
		}
		m[key] = c.facts
	}
	return m
}

func TestFactsAreCarriedUntilTheyAreAcknowledged(t *testing.T) {
	t.Parallel()
	// f1 fails at 1 h: fact 1 (its failure) is recorded. Its dependents are skipped: facts 2 and 3. p and q, scheduled after
	// that and at once, carry both; p acknowledges them, and what comes after p carries them no more.
	w := run(t, input(graph(
		work("f").onError(agent.OnErrorSkip), work("s", "f"), work("t", "f"),
		work("first"), work("p", "first"), work("q", "first"),
		work("after", "p"), say("answer", "s", "t", "after", "q"))),
		script{"f": {{ends: fails}}, "first": {{takes: 2 * time.Hour}}, "q": {{takes: 9 * time.Hour}}})
	require.NoError(t, w.err)
	require.Equal(t, map[string][]int{"f": nil, "first": nil, "Record": {1}, "p": {2, 3}, "q": {2, 3}, "after": nil, "answer": nil, "Finish": nil}, carried(w))
	require.Equal(t, 3, w.lastFact)
	require.Less(t, w.at(agent.NodeFailed, "f"), w.at(agent.NodeSkipped, "s"))
	require.Less(t, w.at(agent.NodeSkipped, "s"), w.at(agent.NodeSkipped, "t"))
	for _, id := range []string{"s", "t"} {
		require.Equal(t, []agent.EventType{agent.NodeSkipped}, w.types(id))
	}
}

func TestFactsOfAnActivityThatFailedGoWithTheNext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    []effect
		want []int // what the settling carries
	}{
		"before its begin": {[]effect{{ends: refused}, {}}, []int{2}},
		"after its begin":  {[]effect{{ends: unheard}}, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(graph(work("f").onError(agent.OnErrorSkip), work("s", "f"), work("p"), work("r", "p"), say("answer", "s", "r"))),
				script{"f": {{ends: fails}}, "p": {{takes: 3 * time.Hour}}, "r": c.p})
			require.NoError(t, w.err)
			require.Equal(t, c.want, carried(w)["SettleCommand"])
			require.Nil(t, carried(w)["Finish"])
			require.Equal(t, []agent.EventType{agent.NodeSkipped}, w.types("s"))
		})
	}
}

func TestRecordThatFailsLeavesItsFactsToTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(work("f").onError(agent.OnErrorContinue), say("answer", "f"))), script{"f": {{ends: fails}}})
	w.refuseRecord = true
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, map[string][]int{"f": nil, "Record": {1}, "answer": {1}, "Finish": nil}, carried(w))
	require.Less(t, w.at(agent.NodeFailed, "f"), w.at(agent.NodeStarted, "answer"))
}

func TestLastFactsGoWithTheFinish(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), say("b", "a"))), script{"a": {{ends: fails}}})
	require.Error(t, w.err)
	require.Equal(t, []int{1}, carried(w)["Finish"])
	require.Equal(t, 0, count(w, agent.Record), "no activity only for what the finish carries")
	require.Less(t, w.at(agent.NodeFailed, "a"), w.at(agent.RunFailed, "a"))
}

func TestFactsGoWithTheRecordOfDoubt(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(send("a"), work("f").onError(agent.OnErrorSkip), work("s", "f"), say("answer", "a", "s"))),
		script{"a": {{ends: doubts, begun: later}}, "f": {{ends: fails, takes: 5 * time.Hour}}})
	w.requireCancelled()
	require.Equal(t, []int{2}, carried(w)["Record"])
	require.Equal(t, agent.InDoubt, w.calls[inDoubt(w)].status)
}
