package activities

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
)

func showProgressOn(t *testing.T, s *shown) *liveProgress {
	a, err := New(Config{Ledger: s, Models: func(string) model.Client { return nil }, Tools: noTools(t)})
	require.NoError(t, err)
	s.began = time.Now()
	return a.showProgress(t.Context(), "run", "a", 3)
}

// The first report is shown at once, and of the others one a second: the last.
func TestProgressIsCoalesced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{}
		live := showProgressOn(t, s)
		for i := range 25 { // one every 110 ms
			live.report(fmt.Sprintf("%d of 25", i))
			synctest.Wait()
			<-time.After(110 * time.Millisecond)
		}
		live.close()
		live.report("too late")
		synctest.Wait()
		require.Equal(t, []string{"progress:0 of 25\n", "progress:9 of 25\n", "progress:18 of 25\n"}, s.texts)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, s.at)
		for i, c := range s.all {
			require.Equal(t, i+1, c.Chunk)
			require.Equal(t, agent.ProgressChannel, c.Channel)
		}
	})
}

// However much a tool says, what is kept of it is bounded, and the tool never waits.
func TestProgressIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{slow: time.Minute}
		live := showProgressOn(t, s)
		began := time.Now()
		for range 1000 {
			live.report(strings.Repeat("x", 10_000))
		}
		require.Zero(t, time.Since(began))
		for range maxProgressReports + 5 {
			<-time.After(2 * time.Minute)
			live.report(strings.Repeat("x", 10_000))
		}
		live.close()
		require.Len(t, s.all, maxProgressReports)
		for _, c := range s.all {
			require.LessOrEqual(t, len(c.Text), maxProgressBytes+len("…\n"))
		}
	})
}

func TestProgressOfACallThatSaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{}
		showProgressOn(t, s).close()
		require.Empty(t, s.all)
	})
}
