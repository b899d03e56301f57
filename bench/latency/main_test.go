package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A few runs, by the same measure: every event and every word is seen, and after it was written or said.
func TestRunsAreWatched(t *testing.T) {
	t.Parallel()
	r, err := measure(t.Context(), options{runs: 3, nodes: 2, words: 4, every: 5 * time.Millisecond})
	require.NoError(t, err)
	require.Len(t, r.Figures, 4)
	for _, f := range r.Figures {
		require.Positive(t, f.Value, f.Name)
	}
}
