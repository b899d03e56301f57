package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// tail reads a conversation's events as a stream does: subscribe, read until there is no more, wait, read. It has no poll
// behind it, so that a wake-up that is missing shows.
func tail(ctx context.Context, l *ledger.Ledger, conversationID string, until func(seen []agent.Event) bool) (seen []agent.Event, err error) {
	news, cancel := l.Subscribe(conversationID)
	defer cancel()
	const page = 50
	for {
		for {
			events, err := l.Events(ctx, agent.LogScope{ConversationID: conversationID}, int64(len(seen)), page)
			if err != nil {
				return seen, err
			}
			for _, e := range events {
				if e.Sequence != int64(len(seen)+1) {
					return seen, fmt.Errorf("number %d after number %d", e.Sequence, len(seen))
				}
				seen = append(seen, e)
			}
			if len(events) < page {
				break
			}
		}
		if until(seen) {
			return seen, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return seen, fmt.Errorf("after number %d: %w", len(seen), context.Cause(ctx))
		}
	}
}

// R3-12, R3-3, R3-29, R0-21: 32 writers on one conversation give the numbers 1 to n, and readers who follow meanwhile, in
// this process and in another, see each of them once and in order.
func TestThirtyTwoWritersOnOneConversation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const writers, commands = 32, 8
	writer := open(t, b.url, writers)
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	first := b.accepted(t, twoStep(t))
	runs := []agent.Run{first}
	for range writers - 1 {
		runs = append(runs, b.acceptedIn(t, first.ConversationID, twoStep(t)))
	}
	done := func(seen []agent.Event) bool {
		ended := 0
		for _, e := range seen {
			if e.Type.Terminal() {
				ended++
			}
		}
		return ended == writers
	}
	var group sync.WaitGroup
	tails := make([][]agent.Event, 2)
	for i, reader := range []*ledger.Ledger{b.Ledger, writer} {
		group.Go(func() {
			var err error
			if tails[i], err = tail(ctx, reader, first.ConversationID, done); err != nil {
				t.Error(err)
			}
		})
	}
	for _, run := range runs {
		group.Go(func() {
			for i := range commands {
				c := command{run: run, id: fmt.Sprint("n", i), index: i}
				begun, err := writer.Begin(ctx, c.begin())
				if err == nil {
					_, err = writer.Commit(ctx, c.commit(begun.DispatchNo, `{"v":1}`))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			_, err := writer.Finish(ctx, agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Cancelled})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	const n = writers * (4 + commands*5 + 1)
	for _, seen := range tails {
		require.Len(t, seen, n)
	}
	require.Equal(t, tails[0], tails[1])
	require.Equal(t, int64(n), b.last(t, first))
	for i, e := range tails[0][1:] {
		require.False(t, e.CreatedAt.Before(tails[0][i].CreatedAt), "time goes with the numbers")
	}
	// The runs of a conversation keep their own order: each one's log is whole.
	for _, run := range runs {
		require.Len(t, b.events(t, run), n/writers)
		state, err := b.State(ctx, run.RunID)
		require.NoError(t, err)
		require.Equal(t, commands, state.Finished.Count())
		require.Equal(t, agent.Cancelled, state.Status)
	}
}

func TestSubscribeIntents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := open(t, b.url, 0)
	news, cancel := other.SubscribeIntents()
	defer cancel()
	awaitListening(t, b, 2)
	drain(news)
	run, _, err := b.Accept(t.Context(), acceptance(nil))
	require.NoError(t, err)
	awaitClosed(t, news) // a wake-up
	b.claim(t)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "", "")
	require.NoError(t, err)
	awaitClosed(t, news)
}

// Nobody knows what was missed while the connection was away, so its return wakes everybody; after that, news comes again.
func TestListenerComesBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	quiet := newID()
	news, cancel := b.Subscribe(quiet)
	defer cancel()
	own, cancelOwn := b.Subscribe(run.ConversationID)
	defer cancelOwn()
	intents, cancelIntents := b.SubscribeIntents()
	defer cancelIntents()
	for range 2 {
		awaitListening(t, b, 1)
		b.begins(t, command{run: run, id: newID(), inner: true})
		awaitClosed(t, own)
		drain(news)
		drain(intents)
		b.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
		awaitClosed(t, news)
		awaitClosed(t, intents)
	}
}

func TestSubscribeIsByConversation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mine, other := b.accepted(t, nil), b.accepted(t, nil)
	awaitListening(t, b, 1)
	news, cancel := b.Subscribe(mine.ConversationID)
	second, cancelSecond := b.Subscribe(mine.ConversationID)
	foreign, cancelForeign := b.Subscribe(other.ConversationID)
	defer cancelForeign()
	defer cancelSecond()
	drain(news)
	for range 3 {
		b.begins(t, command{run: mine, id: newID(), inner: true})
	}
	awaitClosed(t, news)
	awaitClosed(t, second)
	cancel()
	cancel()
	drain(second)
	b.begins(t, command{run: mine, id: newID(), inner: true})
	awaitClosed(t, second)
	b.begins(t, command{run: other, id: newID(), inner: true})
	awaitClosed(t, foreign)
	require.LessOrEqual(t, len(news), 1, "one wake-up at most is waiting")
}

// Closing sends what waits to be sent.
func TestCloseNotifies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	awaitListening(t, b, 1)
	news, cancel := b.Subscribe(run.ConversationID)
	defer cancel()
	other := open(t, b.url, 0)
	awaitListening(t, b, 2)
	drain(news)
	_, err := other.Begin(t.Context(), command{run: run, id: "a"}.begin())
	require.NoError(t, err)
	other.Close()
	awaitClosed(t, news)
	other.Close()
	require.Error(t, other.Ping(t.Context()))
	require.NoError(t, b.Ping(t.Context()))
}

// awaitListening waits until n ledgers listen on the database.
func awaitListening(t testing.TB, b *bench, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var listening int
		err := b.db.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND query = 'LISTEN runledger_intents' AND state = 'idle'`).Scan(&listening)
		return err == nil && listening == n
	}, soon, 2*time.Millisecond)
}

func drain(news <-chan struct{}) {
	select {
	case <-news:
	default:
	}
}
