package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/policy"
)

// after does something when the run has come to rest.
func after(d time.Duration, do func(*world)) effect {
	return effect{ends: doubts, begun: func(w *world) { w.env.RegisterDelayedCallback(func() { do(w) }, d) }}
}

func resolves(id string, outcome agent.Outcome) func(*world) {
	return func(w *world) { w.resolve(id, outcome, time.Minute) }
}

func TestResolved(t *testing.T) {
	t.Parallel()
	const rest = 100 * time.Hour
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		want   []string // the commands that are scheduled
		fails  agent.Code
	}{
		"committed": {input(graph(send("a"), say("b", "a"))), script{"a": {after(rest, resolves("a", agent.OutcomeCommitted)), {}}}, []string{"a", "a", "b"}, ""},
		"failed":    {input(graph(send("a"), say("b", "a"))), script{"a": {after(rest, resolves("a", agent.OutcomeFailed)), {}}}, []string{"a", "a"}, agent.CodeToolFailed},
		"failed, and the plan goes on": {input(graph(send("a").onError(agent.OnErrorContinue), say("b", "a"))),
			script{"a": {after(rest, resolves("a", agent.OutcomeFailed)), {}}}, []string{"a", "a", "b"}, ""},
		"failed, and tried again": {input(graph(send("a").tries(2), say("b", "a"))),
			script{"a": {after(rest, resolves("a", agent.OutcomeFailed)), {}}}, []string{"a", "a", "a~2", "b"}, ""},
		"retry": {input(graph(send("a"), say("b", "a"))), script{"a": {after(rest, resolves("a", agent.OutcomeRetry)), {}}}, []string{"a", "a", "b"}, ""},
		"retry, and in doubt again": {input(graph(send("a"), say("b", "a"))), script{"a": {after(rest, resolves("a", agent.OutcomeRetry)),
			after(rest, resolves("a", agent.OutcomeCommitted)), {}}}, []string{"a", "a", "a", "b"}, ""},
		"one of two": {input(graph(send("a"), send("c"), say("b", "a", "c"))), script{"a": {after(rest, resolves("a", agent.OutcomeCommitted)), {}},
			"c": {after(2*rest, resolves("c", agent.OutcomeRetry)), {}}}, []string{"a", "c", "a", "c", "b"}, ""},
		"one of two, one at a time": {parallel(input(graph(send("a"), send("c"), say("b", "a", "c"))), 1), script{"a": {after(rest, resolves("a", agent.OutcomeCommitted)), {}},
			"c": {after(2*rest, resolves("c", agent.OutcomeCommitted)), {}}}, []string{"a", "c", "a", "c", "b"}, ""},
		"while others are at work": {parallel(input(graph(send("a"), work("c"), work("d", "a"), say("b", "a", "c", "d"))), 1),
			script{"a": {after(2*time.Hour, resolves("a", agent.OutcomeCommitted)), {}}, "c": {{takes: rest}}}, []string{"a", "c", "a", "d", "b"}, ""},
		"tools of a turn": {parallel(react(), 1), script{"main#1": {asks(2)}, "main#1.0": {after(rest, resolves("main#1.0", agent.OutcomeFailed)), {}},
			"main#1.1": {after(2*rest, resolves("main#1.1", agent.OutcomeRetry)), {}}},
			[]string{"main#1", "main#1.0", "main#1.1", "main#1.0", "main#1.1", "main#2"}, ""},
		"before the reply that calls it in doubt": {input(graph(send("a"), say("b", "a"))),
			script{"a": {{ends: lost, code: agent.CodeTimeout, begun: func(w *world) {
				w.env.RegisterDelayedCallback(func() { // the gate said so already, and a person was quick
					w.decide(w.rows["a"], agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, Message: "lost"})
					w.resolve("a", agent.OutcomeRetry, 0)
					w.rows["a"].State, w.rows["a"].Error = agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt}
				}, time.Minute)
				w.env.RegisterDelayedCallback(func() { w.rows["a"].State, w.rows["a"].Error = agent.Released, nil }, time.Hour+3*time.Second)
			}}, {}}}, []string{"a", "a", "b"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			require.Equal(t, c.want, w.commands(), "%v", eventTypes(w))
			if c.fails != "" {
				require.Equal(t, c.fails, w.failure())
				return
			}
			require.NoError(t, w.err)
			require.Equal(t, agent.Completed, w.out.Status)
			require.Equal(t, agent.Completed, w.status)
			require.LessOrEqual(t, w.most, max(c.in.Limits.MaxParallel, 1)+1, "a resolved command may join those at work")
		})
	}
}

// The status is in doubt whenever nothing can go on, and only then.
func TestDoubtComesAndGoes(t *testing.T) {
	t.Parallel()
	var seen []agent.Status
	w := newWorld(t, input(graph(send("a"), send("c", "a"), say("b", "c"))), script{
		"a": {after(100*time.Hour, func(w *world) { seen = append(seen, w.status); w.resolve("a", agent.OutcomeCommitted, 0) }), {}},
		"c": {after(100*time.Hour, func(w *world) { seen = append(seen, w.status); w.resolve("c", agent.OutcomeRetry, 0) }),
			{begun: func(w *world) { seen = append(seen, w.status) }}},
	}).run()
	require.NoError(t, w.err)
	require.Equal(t, []agent.Status{agent.InDoubt, agent.InDoubt, agent.Running}, seen)
	require.Equal(t, 2, count(w, agent.Record))
}

func TestSnapshotShowsDoubt(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(send("a"), say("b", "a"))), script{"a": {after(2*time.Hour, func(w *world) {
		require.Equal(w.t, "in doubt", w.snapshot().Nodes[0].Status)
		w.resolve("a", agent.OutcomeCommitted, 0)
	}), {}}})
	require.NoError(t, w.err)
	require.Equal(t, "finished", w.snapshot().Nodes[0].Status)
}

// R2-10: the policy is asked before every command; what it refuses reaches the gate with its reason and is not executed.
func TestPolicyIsAskedFirst(t *testing.T) {
	t.Parallel()
	no := &agent.Policy{Rules: []agent.PolicyRule{{Effects: []agent.EffectClass{agent.External}, Decision: policy.Forbid, Reason: "read only"}}}
	in := input(graph(send("a").onError(agent.OnErrorContinue), work("c"), say("b", "a", "c")))
	in.Policy = no
	w := run(t, in, script{})
	require.NoError(t, w.err)
	require.Equal(t, agent.CodeRefused, w.rows["a"].Error.Code)
	require.Equal(t, "read only", w.rows["a"].Error.Message)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandFailedType, agent.NodeFailed}, w.types("a"))
	require.Equal(t, agent.Committed, w.rows["c"].State)

	turn := react()
	turn.Policy = &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"*"}, Decision: policy.Ask}}}
	w = run(t, turn, script{"main#1": {asks(2)}})
	require.NoError(t, w.err, "the model reads that it may not, and answers")
	require.Equal(t, agent.CodeRefused, w.rows["main#1.0"].Error.Code)
	require.Equal(t, agent.CodeRefused, w.rows["main#1.1"].Error.Code)
}

// R2-8: an audit executes nothing; where the record ends, it says at which run and node.
func TestAuditForbidsWhatIsNotOnRecord(t *testing.T) {
	t.Parallel()
	in := input(graph(work("a"), work("c"), say("b", "a", "c")))
	in.Policy, in.Recorded = &agent.Policy{Replay: agent.AuditReplay}, []string{"a", "b"}
	w := run(t, in, script{})
	require.Equal(t, agent.CodeForbidden, w.failure())
	require.ErrorContains(t, w.err, "run "+in.RunID+", node c, command c")
	require.Equal(t, "c", w.finish.Error.NodeID)
	require.NotContains(t, w.commands(), "c", "not even scheduled")
	require.NotContains(t, w.commands(), "b")

	in.Recorded = []string{"a", "b", "c"}
	w = run(t, in, script{})
	require.NoError(t, w.err)

	planned := input(nil)
	planned.Policy = &agent.Policy{Replay: agent.AuditReplay}
	w = run(t, planned, script{})
	require.Equal(t, agent.CodeForbidden, w.failure())
	require.Empty(t, w.commands())

	turn := react()
	turn.Policy, turn.Recorded = &agent.Policy{Replay: agent.AuditReplay}, []string{"main#1", "main#2"}
	w = run(t, turn, script{"main#1": {asks(1)}})
	require.Equal(t, agent.CodeForbidden, w.failure(), "no model is told that a tool was forbidden")
	require.ErrorContains(t, w.err, "command main#1.0")
}

// A word that something has gone on by is used up: the same dispatch in doubt again waits for another.
func TestDoubtOfAResolvedDispatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(send("a"), say("b", "a"))), script{"a": {after(100*time.Hour, resolves("a", agent.OutcomeRetry)),
		{ends: refused, begun: func(w *world) {
			w.decide(w.rows["a"], agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt}) // the settle's word
			w.env.RegisterDelayedCallback(func() { w.cancel(0) }, 10*time.Minute)
		}}, {}}})
	w.run()
	require.LessOrEqual(t, len(w.commands()), 4, "scheduled again and again")
}

// Somebody else, the watcher, has ended the run: Finish tells of an end that it was not asked for.
func TestFinishOfARunThatHasFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(say("a"))), script{})
	w.had = &agent.FinishReply{Status: agent.FailedStatus, Sequence: 9}
	w.run()
	require.Error(t, w.err)
	require.NotContains(t, w.err.Error(), "nil pointer")
}

// One of two doubts is resolved while the status in doubt is on its way to the ledger: the status is set right.
func TestStatusWhenADoubtIsResolvedMeanwhile(t *testing.T) {
	t.Parallel()
	var during agent.Status
	w := newWorld(t, input(graph(send("a"), send("c"), say("b", "a", "c"))), script{
		"a": {{ends: doubts}, {takes: 10 * time.Hour, begun: func(w *world) {
			w.env.RegisterDelayedCallback(func() { during = w.status }, 5*time.Hour)
			w.env.RegisterDelayedCallback(func() { w.resolve("c", agent.OutcomeCommitted, 0) }, 6*time.Hour)
		}}},
		"c": {{ends: doubts}, {}},
	})
	w.recording = func(w *world) {
		w.recording = nil
		w.resolve("a", agent.OutcomeRetry, 0)
	}
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, agent.Running, during, "a is at work")
}

// A command that was committed before a deploy asks with another input stands as it is on record.
func TestMismatchAfterACommit(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), say("b", "a"))), script{"a": {{ends: unheard, code: agent.CodeMismatch}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b"}, w.commands())
	w = run(t, input(graph(work("a"), say("b", "a"))), script{"a": {{ends: lost, code: agent.CodeMismatch}}})
	require.Equal(t, agent.CodeMismatch, w.failure())
}
