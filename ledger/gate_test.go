package ledger_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// R0-18, R1-2 to R1-6, R1-13 to R1-15: emitted, executed, committed, finished, checkpoint, by consecutive numbers.
func TestGateWritesTheOrderOfTheRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	first := b.last(t, run) + 1

	a := command{run: run, id: "a"}
	begun := b.begin(t, a)
	require.Equal(t, agent.MayExecute, begun.Verdict)
	require.Equal(t, 1, begun.DispatchNo)
	require.Equal(t, time.Minute, begun.Remaining)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted}, b.types(t, run, first), "on record before the effect")
	row := b.row(t, a)
	require.Equal(t, agent.Dispatched, row.State)
	require.Equal(t, `{"n":1.0}`, string(row.Input))

	b.commits(t, a, 1, `{"v": 1.50}`)
	b.runs(t, command{run: run, id: "b", index: 1, kind: agent.ModelCommand, schedule: 2}, `{"text":"said"}`)
	order := []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}
	require.Equal(t, append(order, order...), b.types(t, run, first))

	events := b.events(t, run)
	for i, e := range events {
		require.Equal(t, int64(i+1), e.Sequence, "consecutive")
	}
	emitted := data[agent.CommandEmittedData](t, events[5])
	require.Equal(t, run.RunID+"/a", emitted.IdempotencyKey)
	require.Equal(t, agent.Idempotent, emitted.Effect)
	require.WithinDuration(t, events[5].CreatedAt.Add(time.Minute), emitted.Deadline, 0)
	require.Equal(t, 1, events[5].Attempt)
	committed := data[agent.CommandCommittedData](t, events[6])
	require.Equal(t, ledger.ResultHash([]byte(`{"v": 1.50}`)), committed.Hash)
	require.Equal(t, int64(7), committed.LatencyMS)
	require.Equal(t, "a", events[6].CommandID)
	require.Equal(t, "a", events[6].NodeID)
	finished := data[agent.NodeFinishedData](t, events[12])
	require.Equal(t, "b", finished.ResultCommand)
	require.Equal(t, `"said"`, string(finished.Output.JSON))

	row = b.row(t, a)
	require.Equal(t, agent.Committed, row.State)
	require.Equal(t, int64(7), row.Sequence)
	require.Equal(t, `{"v": 1.50}`, string(row.Result), "exact bytes")
	require.Equal(t, committed.Hash, row.ResultHash)
	require.NotNil(t, row.DecidedAt)

	checkpoints, err := b.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Len(t, checkpoints, 2)
	require.Equal(t, agent.NodeBoundary, checkpoints[0].Type)
	require.Equal(t, 1, checkpoints[0].Step)
	require.Equal(t, int64(9), checkpoints[0].Sequence)
	require.Equal(t, int64(8), checkpoints[0].State.Sequence, "everything before it")
	require.Equal(t, "a", checkpoints[0].State.Cursor)
	require.Equal(t, checkpoints[0].CheckpointID, data[agent.CheckpointSavedData](t, events[8]).CheckpointID)
	require.Equal(t, 2, checkpoints[1].State.Finished.Count())
}

// R0-3, R1-11, R1-12: a committed command is injected; no event, no execution.
func TestGateInjectsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a", schedule: 2}
	b.runs(t, a, `{"v":1}`)
	last := b.last(t, run)
	for name, again := range map[string]command{
		"the same dispatch": a,
		"a newer attempt":   {run: run, id: "a", schedule: 2, attempt: 2},
		"a newer schedule":  {run: run, id: "a", schedule: 9},
		"an older schedule": {run: run, id: "a"},
	} {
		begun := b.begin(t, again)
		require.Equal(t, agent.Inject, begun.Verdict, name)
		require.Equal(t, `{"v":1}`, string(begun.Row.Result), name)
		require.Equal(t, agent.ToolCommand, begun.Row.Kind)
	}
	require.Equal(t, last, b.last(t, run), "nothing is written")
}

// R0-16: a committed command whose node never finished gets its node_finished and checkpoint when it is met again.
func TestGateFinishesTheNodeOfAnInjectedCommand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a", inner: true}, `{"v":1}`)
	from := b.last(t, run) + 1
	again := command{run: run, id: "a", attempt: 2}
	begun := b.begin(t, again)
	require.Equal(t, agent.Inject, begun.Verdict)
	require.Equal(t, []agent.EventType{agent.NodeFinished, agent.CheckpointSaved}, b.types(t, run, from))
	b.begin(t, again)
	require.Equal(t, from+1, b.last(t, run), "once")
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.True(t, state.Finished.Has(0))
}

func TestGateInjectsFailures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	reason := &agent.Error{Code: agent.CodeToolFailed, Message: "no\x00pe", NodeID: "a", CommandID: "a"}
	decided, err := b.Conclude(t.Context(), a.conclude(b.begins(t, a), agent.CommandFailed, reason))
	require.NoError(t, err)
	require.True(t, decided.Mine)
	events := b.events(t, run)
	failed := data[agent.CommandFailedData](t, events[len(events)-1])
	require.Equal(t, agent.CodeToolFailed, failed.Error.Code)
	require.Equal(t, "no\uFFFDpe", failed.Error.Message)

	begun := b.begin(t, command{run: run, id: "a", attempt: 2})
	require.Equal(t, agent.InjectFailure, begun.Verdict)
	require.Equal(t, agent.CodeToolFailed, begun.Row.Error.Code)
	require.Equal(t, events[len(events)-1].Sequence, begun.Row.Sequence)
}

func TestGateRefusesAnotherInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	b.begins(t, a)
	other := command{run: run, id: "a", attempt: 2, hash: "another"}
	begun := b.begin(t, other)
	require.Equal(t, agent.Mismatch, begun.Verdict)
	require.Equal(t, "input", begun.Row.InputHash)
	b.commits(t, a, 1, `1`)
	require.Equal(t, agent.Mismatch, b.begin(t, other).Verdict)
}

// A lost reply to begin: the same dispatch begins again and goes on, without a second event.
func TestGateLostReplyToBegin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, effect := range []agent.EffectClass{agent.Idempotent, agent.External} {
		c := command{run: run, id: "c-" + string(effect), effect: effect, inner: true}
		b.begins(t, c)
		last := b.last(t, run)
		b.expire(t, c)
		begun := b.begin(t, c)
		require.Equal(t, agent.MayProceed, begun.Verdict)
		require.Equal(t, 1, begun.DispatchNo)
		require.LessOrEqual(t, begun.Remaining, time.Minute)
		require.Equal(t, last, b.last(t, run))
		b.commits(t, c, 1, `1`)
	}
}

// A lost reply to commit: the same dispatch commits again and is told that its word stands, without a second event.
func TestGateLostReplyToCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	no := b.begins(t, a)
	first := b.commits(t, a, no, `{"v":1}`)
	last := b.last(t, run)
	again := b.commits(t, a, no, `{"v":1}`)
	require.Equal(t, first, again)
	require.Equal(t, last, b.last(t, run))
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM execution_checkpoints`))

	// And a lost reply to a conclusion tells what was written.
	c := command{run: run, id: "c", inner: true}
	no = b.begins(t, c)
	reason := &agent.Error{Code: agent.CodeToolFailed, Message: "no"}
	for i := range 2 {
		decided, err := b.Conclude(t.Context(), c.conclude(no, agent.CommandFailed, reason))
		require.NoError(t, err)
		require.Equal(t, i == 0, decided.Mine)
		require.Equal(t, agent.CommandFailed, decided.Row.State)
	}
	require.Equal(t, last+2, b.last(t, run))
}

func TestGateWaitsForALease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, effect := range []agent.EffectClass{agent.Idempotent, agent.External} {
		c := command{run: run, id: "c-" + string(effect), effect: effect}
		b.begins(t, c)
		last := b.last(t, run)
		for _, other := range []command{{run: run, id: c.id, effect: effect, attempt: 2}, {run: run, id: c.id, effect: effect, schedule: 2}} {
			begun := b.begin(t, other)
			require.Equal(t, agent.MustWait, begun.Verdict)
			require.Greater(t, begun.Wait, agent.Lease/2)
			require.LessOrEqual(t, begun.Wait, agent.Lease)
		}
		require.Equal(t, last, b.last(t, run))
	}
}

// A worker is lost: what may be repeated is discarded and dispatched again with the same key; the lost worker's late
// result no longer counts.
func TestGateTakesOverALostWorkersCommand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	lost := command{run: run, id: "a"}
	b.begins(t, lost)
	b.expire(t, lost)
	from := b.last(t, run) + 1
	next := command{run: run, id: "a", attempt: 2}
	begun := b.begin(t, next)
	require.Equal(t, agent.MayExecuteAgain, begun.Verdict)
	require.Equal(t, 2, begun.DispatchNo)
	require.Equal(t, time.Minute, begun.Remaining, "a deadline of its own")
	events := b.events(t, run)
	require.Equal(t, []agent.EventType{agent.AttemptDiscarded}, b.types(t, run, from))
	require.Equal(t, 1, events[len(events)-1].Attempt, "the first dispatch is what is discarded")

	// The zombie: its dispatch no longer owns the command.
	decided, err := b.Commit(t.Context(), lost.commit(1, `"zombie"`))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, agent.Dispatched, decided.Row.State)
	require.Equal(t, 2, decided.Row.DispatchNo)
	decided, err = b.Conclude(t.Context(), lost.conclude(1, agent.Released, agent.Transient(agent.CodeToolFailed, "x")))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, agent.Refuse, b.begin(t, lost).Verdict, "nor may it begin again")
	require.Equal(t, from, b.last(t, run))

	b.commits(t, next, 2, `"mine"`)
	decided, err = b.Commit(t.Context(), lost.commit(1, `"zombie"`))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, `"mine"`, string(decided.Row.Result), "what stands comes back")
}

// R2-5: a lost external effect is never repeated by itself. It is in doubt until its own late result comes.
func TestGateExternalEffectIsInDoubtWhenItsWorkerIsLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	lost := command{run: run, id: "a", effect: agent.External}
	b.begins(t, lost)
	b.expire(t, lost)
	from := b.last(t, run) + 1
	next := command{run: run, id: "a", effect: agent.External, attempt: 2}
	begun := b.begin(t, next)
	require.Equal(t, agent.MustDoubt, begun.Verdict)
	require.Equal(t, agent.CommandInDoubt, begun.Row.State)
	require.Equal(t, agent.CodeInDoubt, begun.Row.Error.Code)
	require.Equal(t, from, begun.Row.Sequence)
	for _, c := range []command{lost, next, {run: run, id: "a", effect: agent.External, schedule: 2}} {
		require.Equal(t, agent.IsInDoubt, b.begin(t, c).Verdict)
	}
	require.Equal(t, []agent.EventType{agent.CommandDoubtType}, b.types(t, run, from))
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, state.InDoubt)

	// Another dispatch's word does not count, the late result of the owner does.
	decided, err := b.Commit(t.Context(), next.commit(1, `"of another"`))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	b.commits(t, lost, 1, `"late"`)
	require.Equal(t, []agent.EventType{agent.CommandDoubtType, agent.CommandResolved, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved},
		b.types(t, run, from))
	events := b.events(t, run)
	require.Equal(t, agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: agent.ByLateResult, Hash: ledger.ResultHash([]byte(`"late"`))},
		data[agent.CommandResolvedData](t, events[len(events)-4]))
	row := b.row(t, lost)
	require.Equal(t, agent.Committed, row.State)
	require.Nil(t, row.Error)
	state, err = b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Empty(t, state.InDoubt)
}

func TestGateConcludesInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a", effect: agent.External}
	no := b.begins(t, a)
	decided, err := b.Conclude(t.Context(), a.conclude(no, agent.CommandInDoubt, agent.Unknown(agent.CodeTimeout, "no answer")))
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.Equal(t, agent.IsInDoubt, b.begin(t, command{run: run, id: "a", effect: agent.External, schedule: 2}).Verdict)
	require.Equal(t, agent.CommandInDoubt, b.row(t, a).State)
}

// A released command is dispatched again, at most five times in all; then it fails.
func TestGateReleasesAtMostFiveDispatches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	want := []agent.EventType{agent.NodeStarted, agent.CommandEmitted}
	for i := 1; i <= agent.MaxDispatches; i++ {
		c := command{run: run, id: "a", attempt: int32(i)}
		require.Equal(t, i, b.begins(t, c))
		release := c.conclude(i, agent.Released, agent.Transient(agent.CodeModelUnavailable, "busy"))
		release.RetryAfter = 1500 * time.Millisecond
		decided, err := b.Conclude(t.Context(), release)
		require.NoError(t, err)
		require.True(t, decided.Mine)
		if i < agent.MaxDispatches {
			require.Equal(t, agent.Released, decided.Row.State)
			want = append(want, agent.AttemptDiscarded)
			events := b.events(t, run)
			discarded := data[agent.AttemptDiscardedData](t, events[len(events)-1])
			require.Equal(t, int64(1500), discarded.RetryAfterMS)
			require.Contains(t, discarded.Reason, "busy")
			continue
		}
		require.Equal(t, agent.CommandFailed, decided.Row.State)
		require.Equal(t, agent.CodeTooManyTries, decided.Row.Error.Code)
		require.Contains(t, decided.Row.Error.Message, "busy")
	}
	require.Equal(t, append(want, agent.CommandFailedType), b.types(t, run, from))
	require.Equal(t, agent.InjectFailure, b.begin(t, command{run: run, id: "a", attempt: 6}).Verdict)
}

// One attempt of Temporal may dispatch a command twice, when it let go in between: the first execution's word is old.
func TestGateTellsTheExecutionsOfOneAttemptApart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: "a"}
	_, err := b.Conclude(t.Context(), c.conclude(b.begins(t, c), agent.Released, agent.Transient(agent.CodeToolFailed, "x")))
	require.NoError(t, err)
	require.Equal(t, 2, b.begins(t, c))
	decided, err := b.Commit(t.Context(), c.commit(1, `"first"`))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	decided, err = b.Conclude(t.Context(), c.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "x")))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	b.commits(t, c, 2, `"second"`)
}

func TestGateGivesUpOnWorkersThatAreLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for i := 1; i <= agent.MaxDispatches; i++ {
		c := command{run: run, id: "a", attempt: int32(i)}
		require.Equal(t, i, b.begins(t, c))
		b.expire(t, c)
	}
	begun := b.begin(t, command{run: run, id: "a", attempt: 6})
	require.Equal(t, agent.GiveUp, begun.Verdict)
	require.Equal(t, agent.CommandFailed, begun.Row.State)
	require.Equal(t, agent.CodeTooManyTries, begun.Row.Error.Code)
	events := b.events(t, run)
	require.Equal(t, agent.CommandFailedType, events[len(events)-1].Type)
	require.Equal(t, agent.InjectFailure, b.begin(t, command{run: run, id: "a", attempt: 7}).Verdict)
}

// What runs in a cancelled run may end; nothing is executed (again).
func TestGateBeginsNothingInARunThatIsBeingCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	released, lost, atWork := command{run: run, id: "released", inner: true}, command{run: run, id: "lost", inner: true}, command{run: run, id: "atwork", inner: true}
	no := b.begins(t, released)
	_, err := b.Conclude(t.Context(), released.conclude(no, agent.Released, agent.Transient(agent.CodeToolFailed, "x")))
	require.NoError(t, err)
	b.begins(t, lost)
	b.expire(t, lost)
	b.begins(t, atWork)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
	require.NoError(t, err)
	last := b.last(t, run)
	for _, c := range []command{{run: run, id: "new"}, {run: run, id: "released", inner: true, attempt: 2}, {run: run, id: "lost", inner: true, attempt: 2}} {
		_, err := b.Begin(t.Context(), c.begin())
		requireCode(t, err, agent.CodeCancelled)
	}
	require.Equal(t, last, b.last(t, run))
	require.Equal(t, agent.MayProceed, b.begin(t, atWork).Verdict)
	b.commits(t, atWork, 1, `1`)
}

// Two dispatches that begin a command at once: one executes. Neither may find the command new because the other had not
// written its row when it looked.
func TestGateTwoThatBeginAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	release := b.hold(t, run.ConversationID)
	verdicts := make([]agent.Verdict, 3)
	var group sync.WaitGroup
	for i := range verdicts {
		group.Go(func() {
			begun, err := b.Begin(t.Context(), command{run: run, id: "a", effect: agent.External, attempt: int32(i + 1)}.begin())
			if err != nil {
				t.Error(err)
			}
			verdicts[i] = begun.Verdict
		})
	}
	b.awaitBlocked(t, len(verdicts))
	release()
	group.Wait()
	executes := 0
	for _, v := range verdicts {
		if v == agent.MayExecute {
			executes++
			continue
		}
		require.Contains(t, []agent.Verdict{agent.MustWait, agent.Refuse}, v)
	}
	require.Equal(t, 1, executes)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted}, b.types(t, run, from))
}

// A dispatch that waits while another one commits gets the whole result, a large one too.
func TestGateInjectsAfterWaitingForACommit(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]string{"small": `"x"`, "large": `"` + strings.Repeat("x", 100<<10) + `"`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			another := open(t, b.url, 0)
			run := b.accepted(t, twoStep(t))
			a := command{run: run, id: "a"}
			no := b.begins(t, a)
			release := b.hold(t, run.ConversationID)
			var group sync.WaitGroup
			group.Go(func() {
				if _, err := b.Commit(t.Context(), a.commit(no, result)); err != nil {
					t.Error(err)
				}
			})
			b.awaitBlocked(t, 1)
			var begun agent.Begun
			group.Go(func() {
				var err error
				if begun, err = another.Begin(t.Context(), command{run: run, id: "a", attempt: 2}.begin()); err != nil {
					t.Error(err)
				}
			})
			b.awaitBlocked(t, 2)
			release()
			group.Wait()
			require.Equal(t, agent.Inject, begun.Verdict)
			require.Equal(t, result, string(begun.Row.Result))
		})
	}
}

// Results stand as bytes; large ones once, by their hash, whoever has them.
func TestGateLargeResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	large := `{"z": 1.00, "a": "` + strings.Repeat("ä\\u0000", 20<<10) + `"}`
	for _, id := range []string{"a", "c"} {
		b.runs(t, command{run: run, id: id}, large)
	}
	edge := `"` + strings.Repeat("x", 32<<10-2) + `"`
	b.runs(t, command{run: run, id: "d"}, edge)
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM payloads`))
	for id, want := range map[string]string{"a": large, "c": large, "d": edge} {
		row := b.row(t, command{run: run, id: id})
		require.Equal(t, want, string(row.Result))
		require.Equal(t, int64(len(want)), row.ResultBytes)
		require.Equal(t, ledger.ResultHash([]byte(want)), row.ResultHash)
		begun := b.begin(t, command{run: run, id: id, attempt: 2})
		require.Equal(t, want, string(begun.Row.Result))
	}
	for _, e := range b.events(t, run) {
		require.Less(t, len(e.Data), 8<<10, "an event shows a large value by its size and beginning")
	}
	results, err := b.Results(t.Context(), run.RunID, []string{"a", "d", "none"})
	require.NoError(t, err)
	require.Len(t, results, 2)
	require.Equal(t, large, string(results["a"].Result))
	nodes, err := b.NodeResults(t.Context(), run.RunID, []string{"c", "none"})
	require.NoError(t, err)
	require.Equal(t, map[string]agent.CommandResult{"c": {Kind: agent.ToolCommand, State: agent.Committed, Result: json.RawMessage(large)}}, nodes)
}

// A connection that is lost before the commit leaves nothing behind; trying again does the whole thing, once.
func TestGateLosesItsConnection(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	from := b.last(t, run) + 1
	lose := func(call func() error) {
		t.Helper()
		release := b.hold(t, run.ConversationID)
		failed := make(chan error, 1)
		go func() { failed <- call() }()
		b.awaitBlocked(t, 1)
		b.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		err := <-failed
		require.Error(t, err)
		_, definite := agent.AsError(err)
		require.False(t, definite, "to be tried again")
		release()
	}
	lose(func() error { _, err := b.Begin(t.Context(), a.begin()); return err })
	require.Equal(t, from-1, b.last(t, run))
	b.begins(t, a)
	lose(func() error { _, err := b.Commit(t.Context(), a.commit(1, `1`)); return err })
	require.Equal(t, agent.Dispatched, b.row(t, a).State)
	b.commits(t, a, 1, `1`)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved},
		b.types(t, run, from))
}

// A call that gives up, or is refused, takes no connection and no lock along.
func TestGateLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	one := open(t, b.url, 1)
	release := b.hold(t, run.ConversationID)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := one.Begin(ctx, command{run: run, id: "a"}.begin())
		failed <- err
	}()
	b.awaitBlocked(t, 1)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	release()
	for _, c := range []command{{run: run, id: "a", epoch: 7}, {run: agent.Run{RunID: newID()}, id: "a"}} {
		_, err := one.Begin(t.Context(), c.begin())
		require.Error(t, err)
	}
	_, err := one.Commit(t.Context(), command{run: run, id: "a"}.commit(1, `1`))
	require.ErrorContains(t, err, "never dispatched")
	b.begins(t, command{run: run, id: "a"})
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`))
	_, err = one.Begin(t.Context(), command{run: run, id: "b"}.begin())
	require.NoError(t, err)
}
