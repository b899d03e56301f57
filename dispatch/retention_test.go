package dispatch_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/dispatch"
)

// retainer notes when it is asked.
type retainer struct {
	began time.Time
	asked []time.Duration
}

func (r *retainer) Retain(_ context.Context, keep agent.Retention, dryRun bool) (agent.RemovedCounts, error) {
	if dryRun || keep.Events != time.Hour {
		panic("asked for something else")
	}
	r.asked = append(r.asked, time.Since(r.began))
	if len(r.asked) == 2 {
		return agent.RemovedCounts{}, errors.New("the ledger is away")
	}
	return agent.RemovedCounts{Events: 3}, nil
}

// TestOnlyTheLeaderRetains: rounds go on after one that failed, and end with the leadership.
func TestOnlyTheLeaderRetains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &retainer{began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		o := newOutbox()
		d := dispatch.Dispatcher{Outbox: o, Temporal: &temporal{}, Log: slog.New(slog.DiscardHandler),
			Retention: &dispatch.Retention{Ledger: r, Keep: agent.Retention{Events: time.Hour}, Every: time.Minute, Log: slog.New(slog.DiscardHandler)}}
		go func() {
			defer close(done)
			d.Run(ctx)
		}()
		synctest.Wait()
		<-time.After(150 * time.Second)
		cancel()
		<-done
		require.Equal(t, []time.Duration{0, time.Minute, 2 * time.Minute}, r.asked)
	})
}
