package ledger_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// What is removed after a day.
var (
	eventsOnly   = agent.Retention{Events: 24 * time.Hour}
	payloadsOnly = agent.Retention{Payloads: 24 * time.Hour}
	everything   = agent.Retention{Events: 24 * time.Hour, Payloads: 24 * time.Hour, Output: 24 * time.Hour}
)

// did is a run in a conversation, or in a new one, with one committed command.
func (b *bench) did(t testing.TB, conversationID, result string) agent.Run {
	t.Helper()
	run := b.acceptedIn(t, conversationID, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, result)
	return run
}

// ended is did whose run ended days ago.
func (b *bench) ended(t testing.TB, conversationID string, status agent.Status, result string) agent.Run {
	t.Helper()
	run := b.did(t, conversationID, result)
	b.finish(t, run, status)
	b.ages(t, run)
	return run
}

func (b *bench) ages(t testing.TB, run agent.Run) {
	t.Helper()
	b.exec(t, `UPDATE agent_executions SET finished_at = finished_at - interval '3 days' WHERE run_id = $1`, run.RunID)
}

func (b *bench) retains(t testing.TB, r agent.Retention) agent.RemovedCounts {
	t.Helper()
	would, err := b.Retain(t.Context(), r, true)
	require.NoError(t, err)
	did, err := b.Retain(t.Context(), r, false)
	require.NoError(t, err)
	require.Equal(t, would, did, "a dry run says what a round does")
	again, err := b.Retain(t.Context(), r, false)
	require.NoError(t, err)
	require.Zero(t, again)
	return did
}

func (b *bench) oldest(t testing.TB, run agent.Run) int64 {
	t.Helper()
	x, err := b.Extent(t.Context(), agent.LogScope{ConversationID: run.ConversationID})
	require.NoError(t, err)
	return x.Oldest
}

func (b *bench) agrees(t testing.TB, run agent.Run) agent.Verification {
	t.Helper()
	record, err := b.RunRecord(t.Context(), run.RunID)
	require.NoError(t, err)
	v := agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured})
	require.Empty(t, v.Differences)
	return v
}

func requireGone(t testing.TB, err error, runID string, oldest int64) {
	t.Helper()
	var gone *agent.GoneError
	require.ErrorAs(t, err, &gone)
	require.Equal(t, runID, gone.RunID)
	require.Equal(t, oldest, gone.Oldest)
}

func TestOldRunsLoseTheirEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.ended(t, "", agent.FailedStatus, `{"v":1}`)
	through := b.last(t, old)
	fresh := b.did(t, old.ConversationID, `{"v":2}`)
	b.finish(t, fresh, agent.FailedStatus)

	n := b.retains(t, eventsOnly)
	require.EqualValues(t, 1, n.Conversations)
	require.EqualValues(t, 1, n.Runs)
	require.Equal(t, through, n.Events)
	require.Positive(t, n.Checkpoints)
	require.Equal(t, through+1, b.oldest(t, old))

	// The log goes on from there, and says where it begins.
	all := agent.LogScope{ConversationID: old.ConversationID}
	events, err := b.Events(t.Context(), all, through, 100)
	require.NoError(t, err)
	require.Equal(t, through+1, events[0].Sequence)
	_, err = b.Events(t.Context(), all, through-1, 100)
	requireGone(t, err, "", through+1)
	_, err = b.Events(t.Context(), agent.LogScope{ConversationID: old.ConversationID, RunID: old.RunID}, 0, 100)
	requireGone(t, err, old.RunID, through+1)
	require.NotEmpty(t, b.events(t, fresh), "from 0 on: none of this run's are gone")

	news, err := b.News(t.Context(), []agent.LogCursor{{ConversationID: old.ConversationID, After: through - 1}, {ConversationID: old.ConversationID, After: through},
		{ConversationID: newID()}}, 100)
	require.NoError(t, err)
	require.True(t, news[0].Gone)
	require.False(t, news[1].Gone)
	require.NotEmpty(t, news[1].Events)
	require.True(t, news[2].Gone, "there is no such conversation")

	// The run is there, and what wants its record is told that it is not.
	run, err := b.Run(t.Context(), owner, old.RunID)
	require.NoError(t, err)
	require.NotNil(t, run.Removed.EventsAt)
	require.Nil(t, run.Removed.PayloadsAt)
	_, err = b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: old.RunID})
	requireGone(t, err, old.RunID, through+1)
	_, err = b.PlanFork(t.Context(), agent.Fork{Owner: owner, Source: old.RunID})
	requireGone(t, err, old.RunID, through+1)
	_, err = b.ReplayContext(t.Context(), old.RunID)
	requireGone(t, err, old.RunID, through+1)
	require.JSONEq(t, `{"v":1}`, string(b.row(t, command{run: old, id: "a"}).Result), "payloads are kept")
	require.Zero(t, value[int](t, b, `SELECT count(*) FROM intents WHERE run_id = $1`, old.RunID))

	// What is kept still proves itself, and goes on: the younger run can be resumed, and the history has what was said before.
	require.NotNil(t, b.agrees(t, old).Removed)
	require.Nil(t, b.agrees(t, fresh).Removed)
	history, err := b.History(t.Context(), old.ConversationID, fresh.StartSequence)
	require.NoError(t, err)
	require.Len(t, history, 1)
	_, err = b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: fresh.RunID})
	require.NoError(t, err)
	b.agrees(t, fresh)
}

// TestTheChainGoesOnBehindWhatWasRemoved: a change of what is kept, or of what was kept before it was removed, still shows.
func TestTheChainGoesOnBehindWhatWasRemoved(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		before, after string
	}{
		"kept":    {after: `UPDATE agent_execution_events SET event_data = event_data || '{"x":1}' WHERE run_id = $1 AND event_type = 'command_emitted'`},
		"removed": {before: `UPDATE agent_execution_events SET event_data = event_data || '{"x":1}' WHERE run_id <> $1 AND event_type = 'command_emitted'`},
		"anchor":  {after: `UPDATE conversations SET removed_chain = sha256(removed_chain) FROM agent_executions r WHERE r.run_id = $1 AND id = r.conversation_id`},
		"number":  {after: `UPDATE conversations SET removed_through = removed_through - 1 FROM agent_executions r WHERE r.run_id = $1 AND id = r.conversation_id`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			old := b.ended(t, "", agent.Cancelled, `1`)
			run := b.did(t, old.ConversationID, `2`)
			if change.before != "" {
				b.exec(t, change.before, run.RunID)
			}
			b.retains(t, eventsOnly)
			if change.after != "" {
				b.exec(t, change.after, run.RunID)
			}
			record, err := b.RunRecord(t.Context(), run.RunID)
			require.NoError(t, err)
			require.NotEmpty(t, agent.VerifyRun(record, agent.Testimony{}).Differences)
		})
	}
}

// TestWhatSomebodyMayNeedIsKept: age alone removes nothing.
func TestWhatSomebodyMayNeedIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doubt := b.did(t, "", `1`)
	pay := command{run: doubt, id: "b", index: 1, effect: agent.External}
	no := b.begins(t, pay)
	_, err := b.Conclude(t.Context(), pay.conclude(no, agent.CommandInDoubt, agent.Failed(agent.CodeInDoubt, "who knows")))
	require.NoError(t, err)
	b.finish(t, doubt, agent.FailedStatus)
	b.ages(t, doubt)

	open := b.did(t, "", `1`)
	young := b.did(t, "", `1`)
	b.finish(t, young, agent.FailedStatus)

	// Side by side in one conversation: the ended one began first and ended last, so that the log cannot begin between them.
	outer := b.did(t, "", `1`)
	inner := b.did(t, outer.ConversationID, `1`)
	b.runs(t, command{run: outer, id: "b", index: 1, kind: agent.ModelCommand}, `{"text":"x"}`)
	b.finish(t, outer, agent.Cancelled)
	b.ages(t, outer)

	n := b.retains(t, eventsOnly)
	require.Zero(t, n)
	for _, run := range []agent.Run{doubt, open, young, outer, inner} {
		require.EqualValues(t, 1, b.oldest(t, run))
		b.agrees(t, run)
	}
	require.EqualValues(t, 1, b.retains(t, payloadsOnly).PayloadRuns, "of the outer one: payloads need no order")

	b.finish(t, inner, agent.Cancelled)
	b.ages(t, inner)
	require.EqualValues(t, 2, b.retains(t, eventsOnly).Runs)
	require.Equal(t, b.last(t, outer)+1, b.oldest(t, outer))
	b.agrees(t, outer)
	b.agrees(t, inner)

	// Another run of a conversation without events: it counts on.
	next := b.did(t, outer.ConversationID, `3`)
	require.Equal(t, b.oldest(t, outer), next.StartSequence)
	b.agrees(t, next)
}

func TestOldRunsLoseTheirPayloads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	shared, alone := `"`+strings.Repeat("s", 40_000)+`"`, `"`+strings.Repeat("a", 40_000)+`"`
	first, second := b.ended(t, "", agent.FailedStatus, shared), b.ended(t, "", agent.FailedStatus, alone)
	other := b.did(t, "", shared)
	payloads := func() int { return value[int](t, b, `SELECT count(*) FROM payloads`) }
	require.Equal(t, 2, payloads())

	n := b.retains(t, payloadsOnly)
	require.EqualValues(t, 2, n.PayloadRuns)
	require.EqualValues(t, 1, n.Payloads)
	require.Greater(t, n.Bytes, int64(80_000))
	require.Equal(t, 1, payloads())
	require.JSONEq(t, shared, string(b.row(t, command{run: other, id: "a"}).Result))
	c := b.row(t, command{run: second, id: "a"})
	require.Empty(t, c.Result)
	require.Empty(t, c.Input)
	require.NotEmpty(t, c.ResultHash)
	require.EqualValues(t, len(alone), c.ResultBytes)
	for _, run := range []agent.Run{first, second} {
		require.NotNil(t, b.agrees(t, run).Removed.PayloadsAt)
		require.NotEmpty(t, b.events(t, run))
		_, err := b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID})
		requireGone(t, err, run.RunID, 1)
	}
	b.finish(t, other, agent.FailedStatus)
	b.ages(t, other)
	require.EqualValues(t, 1, b.retains(t, payloadsOnly).Payloads)
	require.Zero(t, payloads())
}

// TestAForkKeepsWhatItAsksItsSourceFor: a fork that can go on must find the calls that it is not to make again.
func TestAForkKeepsWhatItAsksItsSourceFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.ended(t, "", agent.FailedStatus, `1`)
	fork := b.acceptedIn(t, "", nil)
	b.exec(t, `INSERT INTO fork_priors (run_id, command_id, source_run_id) VALUES ($1, 'a', $2)`, fork.RunID, source.RunID)
	require.Zero(t, b.retains(t, everything))
	b.finish(t, fork, agent.FailedStatus)
	require.Zero(t, b.retains(t, everything), "it can be resumed")
	b.ages(t, fork)
	require.EqualValues(t, 1, b.retainsOnce(t).PayloadRuns)
	require.EqualValues(t, 1, b.retainsOnce(t).PayloadRuns)
	require.Zero(t, b.retainsOnce(t))
}

func (b *bench) retainsOnce(t testing.TB) agent.RemovedCounts {
	t.Helper()
	n, err := b.Retain(t.Context(), everything, false)
	require.NoError(t, err)
	return n
}

func TestOldOutputGoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.did(t, "", `1`)
	say := command{run: run, id: "b", index: 1, kind: agent.ModelCommand}
	no := b.begins(t, say)
	chunks := func() int { return value[int](t, b, `SELECT count(*) FROM model_output`) }
	require.NoError(t, b.AppendOutput(t.Context(), run.RunID, "b", no, []agent.OutputChunk{{Chunk: 1, Channel: "text", Text: "he"}, {Chunk: 2, Channel: "text", Text: "llo"}}))
	b.exec(t, `UPDATE commands SET lease_until = now() - interval '2 days', emitted_at = now() - interval '2 days' WHERE command_id = 'b'`)
	require.Zero(t, b.retains(t, everything), "it is at work, however long")
	require.Equal(t, 2, chunks())

	// As after a crash: the command is no longer at work, and nobody has taken its output away.
	b.exec(t, `UPDATE commands SET state = 'released' WHERE command_id = 'b'`)
	require.EqualValues(t, 2, b.retains(t, everything).Output)
	require.Zero(t, chunks())
}

// TestAResumeComesFirst: a run that somebody resumes between the look and the lock keeps its record.
func TestAResumeComesFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.ended(t, "", agent.FailedStatus, `1`)
	tx, err := b.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE agent_executions SET finished_at = NULL, status = 'queued' WHERE run_id = $1`, run.RunID)
	require.NoError(t, err)
	done := make(chan agent.RemovedCounts, 1)
	go func() {
		n, err := b.Retain(context.WithoutCancel(t.Context()), everything, false)
		if err == nil {
			done <- n
		}
		close(done)
	}()
	b.awaitBlocked(t, 1)
	require.NoError(t, tx.Commit(t.Context()))
	n, ok := <-done
	require.True(t, ok)
	require.Zero(t, n)
	require.EqualValues(t, 1, b.oldest(t, run))
}

// TestABrokenSweepIsFinished: what was marked is deleted by a later round.
func TestABrokenSweepIsFinished(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.ended(t, "", agent.Cancelled, `1`)
	b.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	b.exec(t, `CREATE TRIGGER refuse BEFORE DELETE ON execution_checkpoints FOR EACH ROW EXECUTE FUNCTION refuse()`)
	_, err := b.Retain(t.Context(), eventsOnly, false)
	require.ErrorContains(t, err, run.ConversationID)
	require.Equal(t, b.last(t, run)+1, b.oldest(t, run))
	b.exec(t, `DROP TRIGGER refuse ON execution_checkpoints`)
	n, err := b.Retain(t.Context(), eventsOnly, false)
	require.NoError(t, err)
	require.Equal(t, b.last(t, run), n.Events)
	require.Zero(t, value[int](t, b, `SELECT count(*) FROM agent_execution_events`))
}
