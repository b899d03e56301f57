package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A few runs, by the same measure. How fast they are depends on the machine; that each side was measured does not.
func TestStepsAreMeasured(t *testing.T) {
	t.Parallel()
	r, err := measure(t.Context(), options{alone: 2, together: 4, at: 2, rounds: 1})
	require.NoError(t, err)
	require.Len(t, r.Figures, 12)
	for _, f := range r.Figures {
		require.Positive(t, f.Value, f.Name)
		require.Positive(t, f.Limit, f.Name)
	}
	require.Len(t, r.Notes, 7)
}
