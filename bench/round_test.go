package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// So many at a time: each waits until it has met another one, and none ever sees a third.
func TestRunsAreTakenSideBySide(t *testing.T) {
	t.Parallel()
	meet := make(chan struct{})
	var together, crowded atomic.Int32
	r, err := TakeRuns(t.Context(), 2, 8, func(ctx context.Context) error {
		if together.Add(1) > 2 {
			crowded.Add(1)
		}
		defer together.Add(-1)
		select { // the two of a pair: one gives, one takes
		case meet <- struct{}{}:
		case <-meet:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	require.NoError(t, err)
	require.Len(t, r.Times, 8)
	require.Positive(t, r.Wall)
	require.Zero(t, crowded.Load())
}

func TestTheFirstRunThatFailsEndsTheRound(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var begun atomic.Int32
	_, err := TakeRuns(t.Context(), 2, 100, func(ctx context.Context) error {
		if begun.Add(1) == 2 {
			return broken
		}
		<-ctx.Done() // what is at work is told
		return ctx.Err()
	})
	require.ErrorIs(t, err, broken)
	require.EqualValues(t, 2, begun.Load())
}
