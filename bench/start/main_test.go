package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/bench"
)

func TestMain(m *testing.M) {
	bench.Part(parts())
	os.Exit(m.Run())
}

// One start and one killed worker of each kind, by the same measure: the run of a killed worker goes on.
func TestARunGoesOnAfterItsWorkerWasKilled(t *testing.T) {
	t.Parallel()
	r, err := measure(t.Context(), options{starts: 1, kills: 1})
	require.NoError(t, err)
	require.Len(t, r.Figures, 6)
	for _, f := range r.Figures {
		require.Positive(t, f.Value, f.Name)
	}
}
