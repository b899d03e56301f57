package ledger_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// age moves everything a run has written into the past.
func (b *bench) age(t testing.TB, run agent.Run, by time.Duration) {
	t.Helper()
	b.exec(t, `UPDATE agent_execution_events SET created_at = created_at - $2::bigint * interval '1 ms' WHERE run_id = $1`, run.RunID, by.Milliseconds())
}

// quiet lists the runs that wrote nothing for a minute.
func (b *bench) quiet(t testing.TB) []ledger.QuietRun {
	t.Helper()
	runs, err := b.QuietRuns(t.Context(), time.Minute, "", 100)
	require.NoError(t, err)
	return runs
}

// looked is a run as the watcher sees it now, however long it has been quiet.
func (b *bench) looked(t testing.TB, run agent.Run) ledger.QuietRun {
	t.Helper()
	// An event that was stamped by memory may be of a moment that is still to come.
	runs, err := b.QuietRuns(t.Context(), -time.Second, "", 100)
	require.NoError(t, err)
	for _, q := range runs {
		if q.RunID == run.RunID {
			return q
		}
	}
	t.Fatal("the run is not open, or something is on its way to it")
	return ledger.QuietRun{}
}

func (b *bench) standing(t testing.TB, run agent.Run) (agent.Status, *agent.Error) {
	t.Helper()
	now, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	return now.Status, now.Error
}

func (b *bench) stick(t testing.TB, run agent.Run) {
	t.Helper()
	marked, err := b.MarkStuck(t.Context(), b.looked(t, run), &agent.Error{Code: agent.CodeStuck, Message: "it\x00 panics"})
	require.NoError(t, err)
	require.True(t, marked)
	status, failure := b.standing(t, run)
	require.Equal(t, agent.Stuck, status)
	require.Equal(t, &agent.Error{Code: agent.CodeStuck, Message: "it\uFFFD panics"}, failure)
}

func TestQuietRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	require.Empty(t, b.quiet(t), "it has just written")
	b.age(t, run, 59*time.Second)
	require.Empty(t, b.quiet(t))
	b.age(t, run, time.Second)
	want := ledger.QuietRun{RunID: run.RunID, Epoch: 1, Status: agent.Running, Sequence: b.last(t, run), Started: true}
	require.Equal(t, []ledger.QuietRun{want}, b.quiet(t))

	// Another run of the conversation does not speak for this one.
	other := b.acceptedIn(t, run.ConversationID, nil)
	require.Equal(t, []ledger.QuietRun{want}, b.quiet(t))
	b.finish(t, other, agent.FailedStatus)

	// What is on its way may yet wake it.
	_, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
	require.NoError(t, err)
	require.Empty(t, b.quiet(t))
	require.NoError(t, b.IntentDelivered(t.Context(), b.claim(t)[0]))
	want.Status = agent.Cancelling
	require.Equal(t, []ledger.QuietRun{want}, b.quiet(t), "a run that is being cancelled is open")

	// A child that its parent started has no start of its own in the outbox.
	b.exec(t, `DELETE FROM intents WHERE run_id = $1 AND kind = 'start'`, run.RunID)
	want.Started = false
	require.Equal(t, []ledger.QuietRun{want}, b.quiet(t))

	b.finish(t, run, agent.Cancelled)
	b.age(t, run, time.Hour)
	require.Empty(t, b.quiet(t), "it has ended")
}

func TestQuietRunsComePageAfterPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want, got []string
	for range 5 {
		want = append(want, b.accepted(t, nil).RunID)
	}
	for after := ""; ; {
		page, err := b.QuietRuns(t.Context(), 0, after, 2)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		require.LessOrEqual(t, len(page), 2)
		for _, q := range page {
			require.Greater(t, q.RunID, after)
			after = q.RunID
			got = append(got, q.RunID)
		}
	}
	require.ElementsMatch(t, want, got)
}

// The end of a lost run settles what it left open: what may have happened is in doubt, the rest did not count.
func TestEndLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.begins(t, command{run: run, id: "a"})
	b.begins(t, command{run: run, id: "b", index: 1, effect: agent.External})
	from := b.last(t, run) + 1
	lost := &agent.Error{Code: agent.CodeExecutionLost, Message: "terminated"}
	ended, err := b.EndLost(t.Context(), b.looked(t, run), agent.FailedStatus, lost)
	require.NoError(t, err)
	require.True(t, ended)
	require.Equal(t, []agent.EventType{agent.CommandAbortType, agent.CommandDoubtType, agent.RunFailed}, b.types(t, run, from))
	events := b.events(t, run)
	require.Equal(t, lost, data[agent.RunFailedData](t, events[len(events)-1]).Error)
	status, failure := b.standing(t, run)
	require.Equal(t, agent.FailedStatus, status)
	require.Equal(t, lost, failure)

	again, err := b.EndLost(t.Context(), ledger.QuietRun{RunID: run.RunID, Epoch: 1, Sequence: b.last(t, run)}, agent.FailedStatus, lost)
	require.NoError(t, err)
	require.False(t, again, "once")
	_, err = b.Commit(t.Context(), command{run: run, id: "a"}.commit(1, `1`))
	requireCode(t, err, agent.CodeStaleEpoch)
}

func TestEndLostAsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	there := &agent.Error{Code: agent.CodeCancelled, Message: "cancelled in Temporal"}
	for _, asked := range []bool{false, true} {
		run := b.accepted(t, nil)
		want := agent.RunCancelledData{Reason: there.Message}
		if asked {
			_, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
			require.NoError(t, err)
			require.NoError(t, b.IntentDelivered(t.Context(), b.claim(t)[0]))
			want = agent.RunCancelledData{By: "me", Reason: "enough"}
		}
		ended, err := b.EndLost(t.Context(), b.looked(t, run), agent.Cancelled, there)
		require.NoError(t, err)
		require.True(t, ended)
		events := b.events(t, run)
		require.Equal(t, want, data[agent.RunCancelledData](t, events[len(events)-1]))
	}
}

// What the watcher saw holds only while the run is as it was then.
func TestARunThatHasMovedIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lost := &agent.Error{Code: agent.CodeExecutionLost, Message: "terminated"}
	for name, move := range map[string]func(run agent.Run){
		"it wrote":             func(run agent.Run) { b.begins(t, command{run: run, id: "a"}) },
		"it has another epoch": func(run agent.Run) { b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, run.RunID) },
		"it has ended":         func(run agent.Run) { b.finish(t, run, agent.Cancelled) },
	} {
		run := b.accepted(t, twoStep(t))
		q := b.looked(t, run)
		move(run)
		last := b.last(t, run)
		status, failure := b.standing(t, run)
		ended, err := b.EndLost(t.Context(), q, agent.FailedStatus, lost)
		require.NoError(t, err, name)
		require.False(t, ended, name)
		marked, err := b.MarkStuck(t.Context(), q, lost)
		require.NoError(t, err, name)
		require.False(t, marked, name)
		require.Equal(t, last, b.last(t, run), name)
		nowStatus, nowFailure := b.standing(t, run)
		require.Equal(t, status, nowStatus, name)
		require.Equal(t, failure, nowFailure, name)
	}
}

// A write that is under way when the watcher decides comes first: the watcher waits for it, and then sees it.
func TestTheWatcherWaitsForAWrite(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lost := &agent.Error{Code: agent.CodeStuck, Message: "missing"}
	for _, decide := range []func(q ledger.QuietRun) (bool, error){
		func(q ledger.QuietRun) (bool, error) { return b.MarkStuck(t.Context(), q, lost) },
		func(q ledger.QuietRun) (bool, error) { return b.EndLost(t.Context(), q, agent.FailedStatus, lost) },
	} {
		run := b.accepted(t, twoStep(t))
		q := b.looked(t, run)
		release := b.hold(t, run.ConversationID)
		wrote, decided := make(chan error, 1), make(chan error, 1)
		did := true
		go func() {
			_, err := b.Begin(t.Context(), command{run: run, id: "a"}.begin())
			wrote <- err
		}()
		b.awaitBlocked(t, 1) // the write holds the run's row and waits for the counter
		go func() {
			var err error
			did, err = decide(q)
			decided <- err
		}()
		b.awaitBlocked(t, 2)
		release()
		require.NoError(t, <-wrote)
		require.NoError(t, <-decided)
		require.False(t, did)
		status, _ := b.standing(t, run)
		require.Equal(t, agent.Running, status)
	}
}

func TestStuckRunsAreFreed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, c := range map[string]struct {
		before agent.Status
		free   func(t *testing.T, run agent.Run)
		after  agent.Status
	}{
		"found healthy": {agent.InDoubt, func(t *testing.T, run agent.Run) {
			freed, err := b.Unstick(t.Context(), b.looked(t, run))
			require.NoError(t, err)
			require.True(t, freed)
			freed, err = b.Unstick(t.Context(), b.looked(t, run))
			require.NoError(t, err)
			require.False(t, freed)
		}, agent.InDoubt},
		"its worker writes":         {agent.Running, func(t *testing.T, run agent.Run) { b.begins(t, command{run: run, id: "a"}) }, agent.Running},
		"its worker says how it is": {agent.Running, func(t *testing.T, run agent.Run) { b.record(t, run, agent.Waiting) }, agent.Waiting},
		"its tool's transaction commits": {agent.Running, func(t *testing.T, run agent.Run) {
			a := command{run: run, id: "a"}
			no := b.begins(t, a)
			b.stick(t, run)
			_, err := b.CommitTx(t.Context(), a.commit(no, ""), func(context.Context, agent.Tx) (agent.Commit, error) { return a.commit(no, "1"), nil })
			require.NoError(t, err)
		}, agent.Running},
		"a doubt is resolved": {agent.InDoubt, func(t *testing.T, run agent.Run) {
			a := command{run: run, id: "a", effect: agent.External}
			no := b.begins(t, a)
			_, err := b.Conclude(t.Context(), a.conclude(no, agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, Message: "no answer"}))
			require.NoError(t, err)
			b.stick(t, run)
			b.resolve(t, a, agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage("1"), By: "me"})
		}, agent.Running},
		"a cancelled run goes on": {agent.Cancelling, func(t *testing.T, run agent.Run) { b.record(t, run, "", fact(1, agent.Progress, "", nil)) }, agent.Cancelling},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := b.accepted(t, twoStep(t))
			b.stick(t, run)
			b.exec(t, `UPDATE agent_executions SET status_before = $2 WHERE run_id = $1`, run.RunID, c.before)
			again, err := b.MarkStuck(t.Context(), b.looked(t, run), &agent.Error{Code: agent.CodeStuck, Message: "another reason"})
			require.NoError(t, err)
			require.False(t, again, "it is stuck already")
			c.free(t, run)
			status, failure := b.standing(t, run)
			require.Equal(t, c.after, status)
			require.Nil(t, failure)
		})
	}
}

func (b *bench) record(t testing.TB, run agent.Run, status agent.Status, facts ...agent.Fact) {
	t.Helper()
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: facts}, Status: status})
	require.NoError(t, err)
}

func (b *bench) cancel(t testing.TB, run agent.Run) {
	t.Helper()
	_, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
	require.NoError(t, err)
}

// A run that was asked to stop and is stuck executes nothing new when its worker comes back.
func TestTheGateKnowsWhatAStuckRunWas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.stick(t, run)
	b.exec(t, `UPDATE agent_executions SET status_before = 'cancelling' WHERE run_id = $1`, run.RunID)
	_, err := b.Begin(t.Context(), command{run: run, id: "a"}.begin())
	requireCode(t, err, agent.CodeCancelled)
	status, _ := b.standing(t, run)
	require.Equal(t, agent.Stuck, status, "nothing was written")
}

// TestCancellingAStuckRunEndsIt: its execution hears nothing. One that was asked to stop before it was stuck ends when it is asked
// again, and by the word of whoever asked first.
func TestCancellingAStuckRunEndsIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, asked := range map[string]bool{"at work before": false, "asked to stop before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := b.accepted(t, twoStep(t))
			a := command{run: run, id: "a"}
			b.runs(t, a, "1")
			b.begins(t, command{run: run, id: "b", index: 1, effect: agent.External})
			b.stick(t, run)
			if asked {
				b.exec(t, `INSERT INTO intents (run_id, epoch, kind, payload, delivered_at) VALUES ($1, 1, 'cancel', '{"by": "ann", "reason": "first"}', now())`, run.RunID)
				b.exec(t, `UPDATE agent_executions SET status_before = 'cancelling' WHERE run_id = $1`, run.RunID)
			}
			from := b.last(t, run) + 1
			now, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
			require.NoError(t, err)
			require.Equal(t, agent.Cancelled, now.Status)
			require.Nil(t, now.Error)
			require.Equal(t, []agent.EventType{agent.CommandDoubtType, agent.RunCancelled}, b.types(t, run, from))
			events := b.events(t, run)
			want := agent.RunCancelledData{By: "me", Reason: "enough"}
			if asked {
				want = agent.RunCancelledData{By: "ann", Reason: "first"}
			}
			require.Equal(t, want, data[agent.RunCancelledData](t, events[len(events)-1]))

			_, err = b.RequestCancel(t.Context(), owner, run.RunID, "me", "again")
			var conflict *agent.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Len(t, b.events(t, run), len(events), "once")
			kinds, _ := b.intents(t, run)
			require.Equal(t, []ledger.IntentKind{ledger.CancelIntent}, kinds, "an execution that is mended hears of it")
			// That execution finds the end that the run has.
			reply, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Cancelled})
			require.NoError(t, err)
			require.Equal(t, agent.FinishReply{Status: agent.Cancelled, Sequence: events[len(events)-1].Sequence, Witness: reply.Witness}, reply)
			_, err = b.Begin(t.Context(), command{run: run, id: "c"}.begin())
			requireCode(t, err, agent.CodeStaleEpoch)
			require.Equal(t, agent.Committed, b.row(t, a).State)
		})
	}
}

// TestALostRunThatWasAskedToStopIsCancelled, whatever the watcher takes its end for: it would be resumed by a recovery else.
func TestALostRunThatWasAskedToStopIsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	q := b.looked(t, run)
	b.cancel(t, run) // since the watcher has looked
	marked, err := b.MarkStuck(t.Context(), q, &agent.Error{Code: agent.CodeStuck, Message: "missing"})
	require.NoError(t, err)
	require.False(t, marked, "it is to end")
	ended, err := b.EndLost(t.Context(), q, agent.FailedStatus, &agent.Error{Code: agent.CodeExecutionLost, Message: "terminated"})
	require.NoError(t, err)
	require.True(t, ended)
	events := b.events(t, run)
	require.Equal(t, agent.RunCancelled, events[len(events)-1].Type)
	require.Equal(t, agent.RunCancelledData{By: "me", Reason: "enough"}, data[agent.RunCancelledData](t, events[len(events)-1]))
	found, err := b.Recoverable(t.Context(), "", 10)
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestStuckRunsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	b.stick(t, run)
	runs, _, err := b.Runs(t.Context(), agent.RunFilter{Owner: owner, Status: agent.Stuck, Limit: 10})
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.Equal(t, agent.CodeStuck, runs[0].Error.Code)
	b.finish(t, run, agent.Cancelled)
	status, failure := b.standing(t, run)
	require.Equal(t, agent.Cancelled, status)
	require.Nil(t, failure)
}

// Runs that Temporal may have lost: those without an end, and those that ended as lost.
func TestRecoverable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := map[string]ledger.QuietRun{}
	expect := func(run agent.Run, status agent.Status, started bool) {
		want[run.RunID] = ledger.QuietRun{RunID: run.RunID, Epoch: b.read(t, run).Epoch, Status: status, Started: started, Sequence: b.last(t, run)}
	}
	open := b.accepted(t, twoStep(t))
	expect(open, agent.Running, true)
	queued, _, err := b.Accept(t.Context(), acceptance(twoStep(t)))
	require.NoError(t, err)
	expect(queued, agent.Queued, false)
	stuck := b.accepted(t, twoStep(t))
	b.stick(t, stuck)
	expect(stuck, agent.Running, true)
	lost := b.accepted(t, twoStep(t))
	b.lose(t, lost)
	expect(lost, agent.FailedStatus, true)
	again := b.accepted(t, twoStep(t))
	b.lose(t, again)
	b.resume(t, again)
	expect(again, agent.Queued, false)
	cancelling := b.accepted(t, twoStep(t))
	_, err = b.RequestCancel(t.Context(), owner, cancelling.RunID, "", "")
	require.NoError(t, err)
	expect(cancelling, agent.Cancelling, true)
	for _, status := range []agent.Status{agent.FailedStatus, agent.Cancelled} {
		b.finish(t, b.accepted(t, twoStep(t)), status)
	}
	found := map[string]ledger.QuietRun{}
	after := ""
	for {
		page, err := b.Recoverable(t.Context(), after, 2)
		require.NoError(t, err)
		for _, q := range page {
			require.Greater(t, q.RunID, after)
			found[q.RunID], after = q, q.RunID
		}
		if len(page) < 2 {
			break
		}
	}
	require.Equal(t, want, found)
}
