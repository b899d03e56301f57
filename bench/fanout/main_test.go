package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/bench"
)

func TestMain(m *testing.M) {
	bench.Part(parts())
	os.Exit(m.Run())
}

// A few clients and commands, by the same measure: all of them get everything that is waited for, from either server.
func TestEveryClientIsWaitedFor(t *testing.T) {
	t.Parallel()
	r, err := measure(t.Context(), options{clients: []int{20}, commands: 3, pause: time.Millisecond})
	require.NoError(t, err)
	require.Len(t, r.Figures, 4)
	for _, f := range r.Figures[:2] {
		require.Positive(t, f.Value, f.Name)
		require.Positive(t, f.Limit, f.Name)
	}
}
