package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// chatter is a conversation into which many clients talk at once, while its runs start, work and end.
type chatter struct {
	t  testing.TB
	b  *bench
	id string

	mu   sync.Mutex
	runs []agent.Run
	// interrupts says of a run that it interrupts.
	interrupts map[string]bool
}

func (c *chatter) fail(err error) {
	if err != nil {
		c.t.Error(err)
	}
}

// client sends messages one after the other, interrupts with some, and takes some of anybody's back.
func (c *chatter) client(ctx context.Context, random *rand.Rand, messages int) {
	for range messages {
		a := acceptance(twoStep(c.t))
		a.NewConversation, a.Run.ConversationID, a.Strategy = false, c.id, agent.Enqueue
		if random.IntN(6) == 0 {
			a.Strategy = agent.Interrupt
		}
		run, created, err := c.b.Accept(ctx, a)
		if err != nil || !created {
			c.fail(fmt.Errorf("created %v: %w", created, err))
			return
		}
		c.mu.Lock()
		c.runs = append(c.runs, run)
		c.interrupts[run.RunID] = a.Strategy == agent.Interrupt
		victim := c.runs[random.IntN(len(c.runs))]
		c.mu.Unlock()
		if random.IntN(4) > 0 {
			continue
		}
		run, err = c.b.RequestCancel(ctx, owner, victim.RunID, "me", "")
		var ended *agent.ConflictError
		if err != nil && !errors.As(err, &ended) {
			c.fail(err)
		}
	}
}

// release is what the leader does, and one that is about to lose its place and does not know yet.
func (c *chatter) release(ctx context.Context, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
			_, err := c.b.ReleaseQueued(ctx)
			if !errors.Is(err, context.DeadlineExceeded) { // on a busy machine one of its turns may be too long; there is a next one
				c.fail(err)
			}
		}
	}
}

// work takes what the outbox has to its end until every run has ended.
func (c *chatter) work(ctx context.Context, random *rand.Rand, done <-chan struct{}) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-done:
			return
		default:
		}
		intents, err := c.b.ClaimIntents(ctx, 10)
		c.fail(err)
		for _, i := range intents {
			c.fail(c.b.IntentDelivered(ctx, i))
			completes := random.IntN(2) == 0
			group.Go(func() { c.end(ctx, i, completes) })
		}
	}
}

func (c *chatter) end(ctx context.Context, i ledger.Intent, completes bool) {
	run := agent.Run{RunID: i.RunID, Epoch: 1}
	status := agent.FailedStatus
	if i.Kind == ledger.CancelIntent {
		status = agent.Cancelled
	} else if completes {
		status = agent.Completed
		for _, cmd := range []command{{run: run, id: "a"}, {run: run, id: "b", index: 1, kind: agent.ModelCommand}} {
			begun, err := c.b.Begin(ctx, cmd.begin())
			if err == nil && begun.Verdict == agent.MayExecute {
				_, err = c.b.Commit(ctx, cmd.commit(begun.DispatchNo, `{"text": "`+i.RunID+`"}`))
			}
			if stopped, ok := agent.AsError(err); ok && (stopped.Code == agent.CodeCancelled || stopped.Code == agent.CodeStaleEpoch) {
				return // its cancel intent ends it
			}
			c.fail(err)
		}
	}
	_, err := c.b.Finish(ctx, agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: status, Error: agent.Failed(agent.CodeNodeFailed, "x")})
	c.fail(err)
}

// Whatever clients do at once: every message that was accepted is answered or cancelled, no two runs are at work side by side, those
// that were enqueued go in the order they were accepted, and one that interrupts lets none pass but newer ones of its kind.
func TestQueueUnderRaces(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ended := b.accepted(t, twoStep(t))
			b.finish(t, ended, agent.Cancelled)
			c := &chatter{t: t, b: b, id: ended.ConversationID, interrupts: map[string]bool{}}
			ctx := context.WithoutCancel(t.Context())
			var clients, servers sync.WaitGroup
			done := make(chan struct{})
			servers.Go(func() { c.work(ctx, rand.New(rand.NewPCG(seed, 100)), done) })
			for range 2 {
				servers.Go(func() { c.release(ctx, done) })
			}
			for i := range uint64(8) {
				clients.Go(func() { c.client(ctx, rand.New(rand.NewPCG(seed, i)), 10) })
			}
			clients.Wait()
			require.Eventually(t, func() bool {
				var open int
				err := b.db.QueryRow(ctx, `SELECT count(*) FROM agent_executions WHERE finished_at IS NULL`).Scan(&open)
				return err == nil && open == 0
			}, soon, 5*time.Millisecond)
			close(done)
			servers.Wait()
			c.check()
		})
	}
}

// turned is a run that had its turn: it was started.
type turned struct {
	agent.Run
	accepted   int64 // the number that came next when it was accepted
	first, end int64
	interrupts bool
}

func (c *chatter) check() {
	t, b := c.t, c.b
	require.Len(t, c.runs, 80)
	var order []turned
	for _, run := range c.runs {
		events := b.events(t, run)
		b.requireVerifies(t, run)
		last := events[len(events)-1]
		require.True(t, last.Type.Terminal())
		if value[int](t, b, `SELECT count(*)::int FROM intents WHERE run_id = $1 AND kind = 'start'`, run.RunID) > 0 {
			order = append(order, turned{run, run.StartSequence, events[0].Sequence, last.Sequence, c.interrupts[run.RunID]})
		}
	}
	require.Greater(t, len(order), 20)
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM enqueued`))
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM messages WHERE sequence_number IS NULL`))
	slices.SortFunc(order, func(a, z turned) int { return cmp.Compare(a.first, z.first) })
	var enqueued []turned
	for i, run := range order {
		if i > 0 {
			require.Greater(t, run.first, order[i-1].end, "two runs side by side")
		}
		if !run.interrupts {
			enqueued = append(enqueued, run)
			continue
		}
		for _, before := range order[:i] {
			if before.first >= run.accepted {
				require.True(t, before.interrupts && before.CreatedAt.After(run.CreatedAt), "it passed one that interrupts")
			}
		}
	}
	require.True(t, slices.IsSortedFunc(enqueued, func(a, z turned) int { return a.CreatedAt.Compare(z.CreatedAt) }), "in the order they were accepted")
	b.requireChain(t, c.runs[0])
}
