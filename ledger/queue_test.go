package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// comes accepts a run that meets what its conversation has at work.
func (b *bench) comes(t testing.TB, conversationID string, s agent.Strategy) agent.Run {
	t.Helper()
	a := acceptance(twoStep(t))
	a.NewConversation, a.Run.ConversationID, a.Strategy = false, conversationID, s
	run, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	return run
}

// refusal is the conflict that a run meets in its conversation.
func (b *bench) refusal(t testing.TB, conversationID string, s agent.Strategy) *agent.ConflictError {
	t.Helper()
	a := acceptance(nil)
	a.NewConversation, a.Run.ConversationID, a.Strategy = false, conversationID, s
	_, _, err := b.Accept(t.Context(), a)
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	return conflict
}

func (b *bench) release(t testing.TB) int {
	t.Helper()
	n, err := b.ReleaseQueued(t.Context())
	require.NoError(t, err)
	return n
}

// starts are the runs that the outbox has to start, in order.
func (b *bench) starts(t testing.TB) (runIDs []string) {
	t.Helper()
	for _, i := range b.claim(t) {
		require.Equal(t, "start", string(i.Kind))
		require.NoError(t, b.IntentDelivered(t.Context(), i))
		runIDs = append(runIDs, i.RunID)
	}
	return runIDs
}

func (b *bench) ahead(t testing.TB, run agent.Run) []agent.RunAhead {
	t.Helper()
	ahead, err := b.QueuedBehind(t.Context(), run.RunID)
	require.NoError(t, err)
	return ahead
}

var opened = []agent.EventType{agent.RunStarted, agent.MessageAdded, agent.PlanStarted, agent.PlanGenerated}

// A run in the queue is durable, and no part of the conversation's history: that grows until its turn has come.
func TestEnqueuedRunWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.accepted(t, twoStep(t))
	last := b.last(t, first)
	run := b.comes(t, first.ConversationID, agent.Enqueue)
	require.Equal(t, agent.Queued, run.Status)
	require.Equal(t, last+1, run.StartSequence, "where its events can begin at the earliest")

	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, run, read)
	require.Empty(t, b.events(t, run))
	require.Equal(t, last, b.last(t, run))
	require.Empty(t, b.claim(t))
	require.Equal(t, []agent.RunAhead{{RunID: first.RunID, Status: agent.Running}}, b.ahead(t, run))
	messages, _, err := b.Messages(t.Context(), run.ConversationID, 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 1, "only what the first run was asked")
	for _, q := range b.quiet(t) {
		require.NotEqual(t, run.RunID, q.RunID)
	}
	b.requireVerifies(t, run)
	b.requireVerifies(t, first)
	require.Zero(t, b.release(t), "a run is at work")

	b.runs(t, command{run: first, id: "a"}, `1`)
	b.runs(t, command{run: first, id: "b", index: 1, kind: agent.ModelCommand}, `{"text": "the answer"}`)
	status, err := b.ExecutionStatus(t.Context(), run.ConversationID)
	require.NoError(t, err)
	require.Equal(t, first.MessageID, *status.CurrentMessageID)
	b.finish(t, first, agent.Completed)
	status, err = b.ExecutionStatus(t.Context(), run.ConversationID)
	require.NoError(t, err)
	require.True(t, status.IsRunning, "one is queued")
	require.Equal(t, run.MessageID, *status.CurrentMessageID)
	for _, scope := range []agent.LogScope{{ConversationID: run.ConversationID}, {ConversationID: run.ConversationID, RunID: run.RunID}} {
		extent, err := b.Extent(t.Context(), scope)
		require.NoError(t, err)
		require.True(t, extent.Open)
	}
	require.Empty(t, b.ahead(t, run))

	last = b.last(t, run)
	require.Equal(t, 1, b.release(t))
	require.Zero(t, b.release(t), "once")
	require.Equal(t, opened, b.types(t, run, 1))
	events := b.events(t, run)
	require.Equal(t, last+1, events[0].Sequence)
	require.Equal(t, run.Input, data[agent.RunStartedData](t, events[0]).Input)
	read, err = b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, events[0].Sequence, read.StartSequence)
	require.Equal(t, []string{run.RunID}, b.starts(t))
	history, err := b.History(t.Context(), run.ConversationID, read.StartSequence)
	require.NoError(t, err)
	require.Equal(t, "the answer", history[len(history)-1].Content)
	messages, _, err = b.Messages(t.Context(), run.ConversationID, last, 10)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.Equal(t, run.MessageID, messages[0].MessageID)
	require.Equal(t, events[1].Sequence, messages[0].Sequence)
	b.requireVerifies(t, run)
	b.requireChain(t, run)
}

// Those that wait go in the order they came, one at a time; one that interrupts goes before them, the newest first, and stops those
// that had begun when it came.
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.accepted(t, twoStep(t))
	in := at.ConversationID
	a, c := b.comes(t, in, agent.Enqueue), b.comes(t, in, agent.Enqueue)
	first := b.comes(t, in, agent.Interrupt)
	later := b.acceptedIn(t, in, nil)
	second := b.comes(t, in, agent.Interrupt)
	beside := b.acceptedIn(t, in, nil)
	last := b.comes(t, in, agent.Enqueue)
	var order []string
	for _, r := range b.ahead(t, last) {
		order = append(order, r.RunID)
	}
	require.Equal(t, []string{at.RunID, later.RunID, beside.RunID, second.RunID, first.RunID, a.RunID, c.RunID}, order)

	for range 2 { // asked again, nothing changes
		require.Zero(t, b.release(t))
		require.Equal(t, agent.Cancelling, b.status(t, at))
		require.Equal(t, agent.Cancelling, b.status(t, later))
		require.Equal(t, agent.Running, b.status(t, beside), "it came after those that interrupt")
		require.Equal(t, agent.Queued, b.status(t, a), "those that wait go on waiting")
		require.Equal(t, 2, value[int](t, b, `SELECT count(*)::int FROM intents WHERE kind = 'cancel'`))
	}
	require.Equal(t, "interrupted by run "+first.RunID, value[string](t, b, `SELECT payload ->> 'reason' FROM intents WHERE run_id = $1 AND kind = 'cancel'`, at.RunID))
	require.Equal(t, "interrupted by run "+second.RunID, value[string](t, b, `SELECT payload ->> 'reason' FROM intents WHERE run_id = $1 AND kind = 'cancel'`, later.RunID))
	for _, run := range []agent.Run{at, later, beside} {
		require.Zero(t, b.release(t))
		b.finish(t, run, agent.Cancelled)
	}
	b.exec(t, `UPDATE intents SET delivered_at = now()`)
	var released []string
	for range 5 {
		require.Equal(t, 1, b.release(t))
		require.Zero(t, b.release(t))
		started := b.starts(t)
		require.Len(t, started, 1)
		released = append(released, started[0])
		b.finish(t, agent.Run{RunID: started[0], Epoch: 1}, agent.FailedStatus)
	}
	require.Equal(t, []string{second.RunID, first.RunID, a.RunID, c.RunID, last.RunID}, released)
	require.Zero(t, b.release(t))
	for _, run := range []agent.Run{a, c, first, second, last} {
		b.requireVerifies(t, run)
	}
	b.requireChain(t, at)
}

// Every strategy starts a run at once where nothing is at work, and behind nothing but the queue where only that is there.
func TestStrategiesAtRest(t *testing.T) {
	t.Parallel()
	for _, s := range []agent.Strategy{agent.SideBySide, agent.Reject, agent.Enqueue, agent.Interrupt, agent.Steer} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ended := b.accepted(t, twoStep(t))
			b.finish(t, ended, agent.Cancelled)
			run := b.comes(t, ended.ConversationID, s)
			require.Equal(t, opened, b.types(t, run, 1))
			require.Equal(t, []string{run.RunID}, b.starts(t))
		})
	}
	for s, want := range map[agent.Strategy]bool{agent.Enqueue: false, agent.Interrupt: true, agent.Steer: false} {
		t.Run("only the queue, "+string(s), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := b.accepted(t, twoStep(t))
			waits := b.comes(t, at.ConversationID, agent.Enqueue)
			b.finish(t, at, agent.Cancelled)
			conflict := b.refusal(t, at.ConversationID, agent.Reject)
			require.Equal(t, agent.ConflictRunOpen, conflict.Reason)
			require.Contains(t, conflict.Detail, waits.RunID)
			run := b.comes(t, at.ConversationID, s)
			require.Equal(t, 1, b.release(t))
			first := waits
			if want {
				first = run
			}
			require.Equal(t, []string{first.RunID}, b.starts(t))
		})
	}
}

func TestStrategiesRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.accepted(t, twoStep(t))
	for s, want := range map[agent.Strategy]string{agent.Reject: agent.ConflictRunOpen, agent.Steer: agent.ConflictSteer} {
		conflict := b.refusal(t, at.ConversationID, s)
		require.Equal(t, want, conflict.Reason)
		require.Contains(t, conflict.Detail, at.RunID)
	}
	for range agent.MaxEnqueued {
		b.comes(t, at.ConversationID, agent.Enqueue)
	}
	for _, s := range []agent.Strategy{agent.Enqueue, agent.Interrupt} {
		require.Equal(t, agent.ConflictQueueFull, b.refusal(t, at.ConversationID, s).Reason)
	}
	require.Equal(t, 1+agent.MaxEnqueued, value[int](t, b, `SELECT count(*)::int FROM agent_executions`), "nothing was stored")
	b.comes(t, at.ConversationID, agent.SideBySide)
}

// What a request has taken is taken while its run waits too: the key, and the id of its message.
func TestEnqueuedRunHoldsItsKeyAndMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.accepted(t, twoStep(t))
	for i, s := range []agent.Strategy{agent.Enqueue, agent.Interrupt} {
		a := acceptance(nil)
		a.NewConversation, a.Run.ConversationID, a.Strategy, a.Key, a.RequestHash = false, at.ConversationID, s, string(s), "hash"
		run, created, err := b.Accept(t.Context(), a)
		require.NoError(t, err)
		require.True(t, created)
		again := a
		again.Run.RunID, again.Run.MessageID = newID(), newID()
		same, created, err := b.Accept(t.Context(), again)
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, run, same)
		require.Equal(t, i+1, value[int](t, b, `SELECT count(*)::int FROM enqueued`))

		taken := acceptance(nil)
		taken.Run.MessageID, taken.Run.ConversationID, taken.NewConversation = run.MessageID, run.ConversationID, false
		_, _, err = b.Accept(t.Context(), taken)
		var conflict *agent.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, agent.ConflictMessageID, conflict.Reason)
	}
}

// One that is cancelled while it waits begins and ends in one step, and is never started.
func TestEnqueuedRunIsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.accepted(t, twoStep(t))
	gone, next := b.comes(t, at.ConversationID, agent.Interrupt), b.comes(t, at.ConversationID, agent.Enqueue)
	run, err := b.RequestCancel(t.Context(), owner, gone.RunID, "me", "never mind")
	require.NoError(t, err)
	require.Equal(t, agent.Cancelled, run.Status)
	require.Nil(t, run.StartedAt)
	events := b.events(t, gone)
	require.Equal(t, append(opened[:len(opened):len(opened)], agent.RunCancelled), b.types(t, gone, 1))
	require.Equal(t, agent.RunCancelledData{By: "me", Reason: "never mind"}, data[agent.RunCancelledData](t, events[len(events)-1]))
	require.Equal(t, events[0].Sequence, run.StartSequence)
	b.requireVerifies(t, gone)
	require.Zero(t, b.release(t))
	require.Equal(t, agent.Running, b.status(t, at), "nobody interrupts it any more")
	_, err = b.RequestCancel(t.Context(), owner, gone.RunID, "me", "")
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictRunEnded, conflict.Reason)
	require.Equal(t, []agent.RunAhead{{RunID: at.RunID, Status: agent.Running}}, b.ahead(t, next))
	b.finish(t, at, agent.Cancelled)
	require.Equal(t, 1, b.release(t))
	require.Equal(t, []string{next.RunID}, b.starts(t))
	b.requireChain(t, at)
}

// A run that stands still has not ended: those behind it wait, and see why. One that interrupts is the way out.
func TestARunAtRestHoldsTheQueue(t *testing.T) {
	t.Parallel()
	for _, status := range []agent.Status{agent.Queued, agent.Waiting, agent.Paused, agent.InDoubt, agent.LimitReached, agent.Stuck, agent.Cancelling} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := b.accepted(t, twoStep(t))
			b.exec(t, `UPDATE agent_executions SET status = $2, status_before = CASE $2 WHEN 'stuck' THEN 'cancelling' END WHERE run_id = $1`, at.RunID, status)
			run := b.comes(t, at.ConversationID, agent.Enqueue)
			require.Zero(t, b.release(t))
			require.Equal(t, []agent.RunAhead{{RunID: at.RunID, Status: status}}, b.ahead(t, run))
			first := b.comes(t, at.ConversationID, agent.Interrupt)
			require.Zero(t, b.release(t))
			if status != agent.Stuck {
				require.Equal(t, agent.Cancelling, b.status(t, at))
			}
			b.finish(t, at, agent.Cancelled)
			require.Equal(t, 1, b.release(t))
			b.exec(t, `UPDATE intents SET delivered_at = now() WHERE run_id = $1`, at.RunID)
			require.Equal(t, []string{first.RunID}, b.starts(t))
		})
	}
}

// The end of a run is news for the dispatcher where others wait for it, however it ends.
func TestTheEndOfARunWakesTheQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	news, cancel := b.SubscribeIntents()
	defer cancel()
	awaitListening(t, b, 1)
	for name, end := range map[string]func(at agent.Run){
		"finished": func(at agent.Run) { b.finish(t, at, agent.FailedStatus) },
		"lost": func(at agent.Run) {
			ended, err := b.EndLost(t.Context(), b.looked(t, at), agent.FailedStatus, agent.Failed(agent.CodeExecutionLost, "x"))
			require.NoError(t, err)
			require.True(t, ended)
		},
	} {
		at := b.accepted(t, twoStep(t))
		run := b.comes(t, at.ConversationID, agent.Enqueue)
		// Notifications come in order: with the second of these, what came before has been told, and the next is the end's.
		own, done := b.Subscribe(run.ConversationID)
		for _, id := range []string{"a", "b"} {
			b.begins(t, command{run: at, id: id, inner: true})
			awaitClosed(t, own)
		}
		drain(news)
		end(at)
		awaitClosed(t, news)
		require.Equal(t, 1, b.release(t), name)
		done()
	}
}

// Any number of dispatchers at a time release a run once, and one that is lost in the middle of it has done nothing.
func TestReleaseIsOneStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.accepted(t, twoStep(t))
	run := b.comes(t, at.ConversationID, agent.Enqueue)
	b.finish(t, at, agent.Cancelled)

	release := b.hold(t, run.ConversationID)
	lost, kill := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := b.ReleaseQueued(lost)
		ended <- err
	}()
	b.awaitBlocked(t, 1)
	kill()
	require.ErrorIs(t, <-ended, context.Canceled)
	b.awaitBlocked(t, 0)
	require.Empty(t, b.events(t, run))
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM enqueued`))

	var group sync.WaitGroup
	var released atomic.Int64
	for range 6 {
		group.Go(func() {
			n, err := b.ReleaseQueued(context.WithoutCancel(t.Context()))
			if err != nil {
				t.Error(err)
			}
			released.Add(int64(n))
		})
	}
	b.awaitBlocked(t, 6)
	release()
	group.Wait()
	require.Equal(t, int64(1), released.Load())
	require.Equal(t, opened, b.types(t, run, 1))
	require.Equal(t, []string{run.RunID}, b.starts(t))
}

// The transactions of the queue lock the run before the counter, as all others do.
func TestLockOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, b *bench, run agent.Run) error{
		"release": func(ctx context.Context, b *bench, _ agent.Run) error {
			_, err := b.ReleaseQueued(ctx)
			return err
		},
		"cancel": func(ctx context.Context, b *bench, run agent.Run) error {
			_, err := b.RequestCancel(ctx, owner, run.RunID, "", "")
			return err
		},
	} {
		for i, lock := range locks[:2] {
			t.Run(fmt.Sprintf("%s waits for the %s", name, lock.name), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				at := b.accepted(t, twoStep(t))
				run := b.comes(t, at.ConversationID, agent.Enqueue)
				b.finish(t, at, agent.Cancelled)
				got := b.blocked(t, run.RunID, lock.row, "FOR SHARE", func(ctx context.Context) error { return do(ctx, b, run) })
				require.Equal(t, []string{"run", "counter"}[:i+1], got)
			})
		}
	}
}

// What comes while a run is about to be released counts: it is looked at again under the lock.
func TestReleaseLooksAgain(t *testing.T) {
	t.Parallel()
	for _, s := range []agent.Strategy{agent.SideBySide, agent.Interrupt} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := b.accepted(t, twoStep(t))
			run := b.comes(t, at.ConversationID, agent.Enqueue)
			b.finish(t, at, agent.Cancelled)
			a := acceptance(nil)
			a.NewConversation, a.Run.ConversationID, a.Strategy = false, at.ConversationID, s
			letGo := b.hold(t, run.ConversationID)
			accepted, released := make(chan error, 1), make(chan int, 1)
			go func() {
				_, _, err := b.Accept(context.WithoutCancel(t.Context()), a)
				accepted <- err
			}()
			b.awaitBlocked(t, 1)
			go func() {
				n, err := b.ReleaseQueued(context.WithoutCancel(t.Context()))
				if err != nil {
					t.Error(err)
				}
				released <- n
			}()
			b.awaitBlocked(t, 2) // behind the other, in the order they came
			letGo()
			require.NoError(t, <-accepted)
			require.Zero(t, <-released)
			require.Empty(t, b.events(t, run))
		})
	}
}

// A run that has not begun has no execution that could be lost: to resume the conversation is to resume the run before it.
func TestEnqueuedRunIsNotResumed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.accepted(t, twoStep(t))
	run := b.comes(t, at.ConversationID, agent.Enqueue)
	_, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1})
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictRunOpen, conflict.Reason)
	require.Equal(t, run.RunID, conflict.RunID)
	require.Empty(t, b.events(t, run))
	latest, _, err := b.LatestRun(t.Context(), at.ConversationID)
	require.NoError(t, err)
	require.Equal(t, at.RunID, latest)
}
