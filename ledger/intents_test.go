package ledger_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

func (b *bench) claim(t testing.TB) []ledger.Intent {
	t.Helper()
	intents, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	return intents
}

func TestIntentsAreClaimedInOrderPerRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var runs []agent.Run
	for range 3 {
		run, _, err := b.Accept(t.Context(), acceptance(nil))
		require.NoError(t, err)
		runs = append(runs, run)
	}
	intents := b.claim(t)
	require.Len(t, intents, 3)
	for i, intent := range intents {
		require.Equal(t, runs[i].RunID, intent.RunID, "oldest first")
		require.Equal(t, ledger.StartIntent, intent.Kind)
		require.Equal(t, 1, intent.Attempts)
		require.Equal(t, 1, intent.Epoch)
	}
	two, err := b.ClaimIntents(t.Context(), 2)
	require.NoError(t, err)
	require.Len(t, two, 2)
	require.Equal(t, 2, two[0].Attempts, "a claim that came to nothing is claimed again")

	// A cancel waits behind the start of its run, and only behind that.
	_, err = b.RequestCancel(t.Context(), owner, runs[0].RunID, "me", "enough")
	require.NoError(t, err)
	require.NoError(t, b.IntentDelivered(t.Context(), intents[1]))
	require.NoError(t, b.IntentFailed(t.Context(), intents[2], time.Hour, errors.New("no\x00 Temporal")))
	again := b.claim(t)
	require.Len(t, again, 1)
	require.Equal(t, intents[0].ID, again[0].ID)
	require.NoError(t, b.IntentDelivered(t.Context(), again[0]))
	last := b.claim(t)
	require.Len(t, last, 1)
	require.Equal(t, ledger.CancelIntent, last[0].Kind)
	require.JSONEq(t, `{"id": 0, "by": "me", "reason": "enough", "after": 2}`, string(last[0].Payload))
	require.NoError(t, b.IntentDelivered(t.Context(), last[0]))
	require.Empty(t, b.claim(t))
	require.Equal(t, "no\uFFFD Temporal", value[string](t, b, `SELECT last_error FROM intents WHERE id = $1`, intents[2].ID))

	require.NoError(t, b.IntentFailed(t.Context(), intents[2], -time.Second, errors.New("x")))
	require.Len(t, b.claim(t), 1, "due again")
}

func TestIntentDeliveredStartsAQueuedRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, _, err := b.Accept(t.Context(), acceptance(nil))
	require.NoError(t, err)
	intent := b.claim(t)[0]
	require.NoError(t, b.IntentDelivered(t.Context(), intent))
	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.Running, read.Status)
	require.NotNil(t, read.StartedAt)

	// A run may be further than its start intent: the mark is late, the status stays.
	b.finish(t, run, agent.FailedStatus)
	require.NoError(t, b.IntentDelivered(t.Context(), intent))
	again, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.FailedStatus, again.Status)
	require.Equal(t, read.StartedAt, again.StartedAt)
}

func TestNextIntent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	next := func() (time.Duration, bool) {
		due, waits, err := b.NextIntent(t.Context())
		require.NoError(t, err)
		return due, waits
	}
	_, waits := next()
	require.False(t, waits)
	run, _, err := b.Accept(t.Context(), acceptance(nil))
	require.NoError(t, err)
	due, waits := next()
	require.True(t, waits)
	require.Zero(t, due)

	intent := b.claim(t)[0]
	require.NoError(t, b.IntentFailed(t.Context(), intent, time.Hour, errors.New("x")))
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "", "")
	require.NoError(t, err)
	require.Empty(t, b.claim(t))
	due, waits = next()
	require.True(t, waits)
	require.Greater(t, due, 59*time.Minute, "what waits behind a start that was put off is not due: nobody could claim it")
	require.LessOrEqual(t, due, time.Hour)
}

// A run that was never handed to Temporal ends at once, and its start is taken back.
func TestCancelBeforeTheStartIsClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted, _, err := b.Accept(t.Context(), acceptance(twoStep(t)))
	require.NoError(t, err)
	run, err := b.RequestCancel(t.Context(), owner, accepted.RunID, "me", "enough")
	require.NoError(t, err)
	require.Equal(t, agent.Cancelled, run.Status)
	require.NotNil(t, run.FinishedAt)
	require.Nil(t, run.StartedAt, "it never started")
	events := b.events(t, run)
	end := events[len(events)-1]
	require.Equal(t, agent.RunCancelled, end.Type)
	require.Equal(t, agent.RunCancelledData{Reason: "enough", By: "me"}, data[agent.RunCancelledData](t, end))
	require.Empty(t, b.claim(t))
	_, waits, err := b.NextIntent(t.Context())
	require.NoError(t, err)
	require.False(t, waits)
	extent, err := b.Extent(t.Context(), agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID})
	require.NoError(t, err)
	require.False(t, extent.Open)
}

func TestCancelAfterTheStartWasClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted, _, err := b.Accept(t.Context(), acceptance(nil))
	require.NoError(t, err)
	start := b.claim(t)[0]
	for range 2 {
		run, err := b.RequestCancel(t.Context(), owner, accepted.RunID, "me", "enough")
		require.NoError(t, err)
		require.Equal(t, agent.Cancelling, run.Status)
		require.Nil(t, run.FinishedAt)
	}
	require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded}, b.types(t, accepted, 1))
	require.NoError(t, b.IntentDelivered(t.Context(), start))
	read, err := b.Run(t.Context(), owner, accepted.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.Cancelling, read.Status)
	intents := b.claim(t)
	require.Len(t, intents, 1, "asked for twice, told once")
	require.Equal(t, ledger.CancelIntent, intents[0].Kind)
	b.finish(t, accepted, agent.Cancelled)
}

// Whoever comes first wins: a claimed start is told to stop, an unclaimed one never starts. Never both, never neither.
func TestCancelRacesWithTheClaim(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 25 {
		accepted, _, err := b.Accept(t.Context(), acceptance(nil))
		require.NoError(t, err)
		var group sync.WaitGroup
		var claimed []ledger.Intent
		var run agent.Run
		group.Go(func() {
			var err error
			if claimed, err = b.ClaimIntents(t.Context(), 10); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			var err error
			if run, err = b.RequestCancel(t.Context(), owner, accepted.RunID, "", ""); err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		started := false
		for _, i := range claimed {
			started = started || i.RunID == accepted.RunID && i.Kind == ledger.StartIntent
		}
		if started {
			require.Equal(t, agent.Cancelling, run.Status)
		} else {
			require.Equal(t, agent.Cancelled, run.Status)
		}
		for _, i := range append(claimed, b.claim(t)...) {
			require.NoError(t, b.IntentDelivered(t.Context(), i))
		}
		for _, i := range b.claim(t) {
			require.NoError(t, b.IntentDelivered(t.Context(), i))
		}
	}
}

// One dispatcher per database: the place is given free at once by release, and when the connection is lost.
func TestLead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := open(t, b.url, 0)
	lost, release, ok, err := b.Lead(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	for _, l := range []*ledger.Ledger{b.Ledger, other} {
		_, _, ok, err = l.Lead(t.Context())
		require.NoError(t, err)
		require.False(t, ok, "somebody leads")
	}
	select {
	case <-lost:
		t.Fatal("lost for no reason")
	default:
	}
	release()
	<-lost
	release()

	for range 20 {
		_, release, ok, err = other.Lead(t.Context())
		require.NoError(t, err)
		require.True(t, ok, "release gives the place free before it returns")
		release()
	}
	lost, release, ok, err = other.Lead(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	b.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	awaitClosed(t, lost)
	release()
	// A server that is told to end a session says so before it gives the session's locks free.
	require.Eventually(t, func() bool {
		_, release, ok, err := b.Lead(context.Background())
		if ok {
			release()
		}
		return err == nil && ok
	}, soon, 2*time.Millisecond)
}

// A process that stands still loses its place, although its connection lives.
func TestLeaderThatStandsStill(t *testing.T) {
	t.Parallel()
	b := setup(t)
	still, release, ok, err := ledger.LeadFor(b.Ledger, t.Context(), 200*time.Millisecond, time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
	awaitClosed(t, still)
	release()
	lost, release, ok, err := ledger.LeadFor(open(t, b.url, 0), t.Context(), 200*time.Millisecond, 20*time.Millisecond)
	require.NoError(t, err)
	require.True(t, ok, "the place is free")
	// One that stirs keeps its place: another session of the same timeout, which does nothing, is ended by the server first.
	idle, err := pgx.Connect(t.Context(), b.url)
	require.NoError(t, err)
	_, err = idle.Exec(t.Context(), `SET idle_session_timeout = '400ms'`)
	require.NoError(t, err)
	_, err = idle.WaitForNotification(t.Context())
	require.Error(t, err)
	select {
	case <-lost:
		t.Fatal("lost although it stirred")
	default:
	}
	release()
}

func TestLeadIsPerDatabase(t *testing.T) {
	t.Parallel()
	for range 2 {
		_, release, ok, err := setup(t).Lead(t.Context())
		require.NoError(t, err)
		require.True(t, ok)
		t.Cleanup(release)
	}
}

func awaitClosed(t testing.TB, done <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatal("nothing came")
	}
}

// deadlocked reports the error that two transactions get which lock in different orders.
func deadlocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40P01"
}

// A run that was cancelled while its start was being tried, in vain, ends without an execution.
func TestEndUnstarted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, _, err := b.Accept(t.Context(), acceptance(twoStep(t)))
	require.NoError(t, err)
	claimed, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.NoError(t, b.IntentFailed(t.Context(), claimed[0], time.Millisecond, errors.New("refused")))
	ended, err := b.EndUnstarted(t.Context(), claimed[0])
	require.NoError(t, err)
	require.False(t, ended, "nobody has cancelled it")
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "ada", "enough")
	require.NoError(t, err)
	ended, err = b.EndUnstarted(t.Context(), claimed[0])
	require.NoError(t, err)
	require.True(t, ended)
	events := b.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunCancelled, last.Type)
	require.Equal(t, agent.RunCancelledData{Reason: "enough", By: "ada"}, data[agent.RunCancelledData](t, last))
	_, waiting, err := b.NextIntent(t.Context())
	require.NoError(t, err)
	require.False(t, waiting)
}
