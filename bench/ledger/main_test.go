package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two writers for a moment, by the same measure.
func TestCommandsAreMeasured(t *testing.T) {
	t.Parallel()
	r, err := measure(t.Context(), options{writers: []int{2}, rounds: 1, each: 200 * time.Millisecond})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(r.Figures), 3)
	for _, f := range r.Figures {
		if f.Unit == "us/command" {
			continue // counted in ticks of 10 ms, which so short a time may not have
		}
		require.Positive(t, f.Value, f.Name)
		require.Positive(t, f.Limit, f.Name)
	}
	require.Contains(t, r.Notes[0], "a command writes 8 rows")
}
