package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// One small run of each shape, by the same measure. What Temporal keeps of a command is bounded, whatever the shape.
func TestCommandsAreWeighed(t *testing.T) {
	t.Parallel()
	r, err := measure(t.Context(), options{commands: 8, runs: 1})
	require.NoError(t, err)
	require.Len(t, r.Figures, 12)
	require.Len(t, r.Notes, 3)
	for _, f := range r.Figures {
		require.GreaterOrEqual(t, f.Value, 0.0, f.Name) // Postgres counts pages, which so little may not fill
		if f.Unit == "bytes/command" && f.Limit > 0 {
			require.Positive(t, f.Value, f.Name)
			require.Less(t, f.Value, 4000.0, f.Name)
		}
	}
}
