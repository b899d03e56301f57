package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A smaller run than the benchmark's, on a server that suggests to continue as new earlier, by the same measure.
func TestLongRunsAreHandedOver(t *testing.T) {
	t.Parallel()
	reports, err := measure(t.Context(), options{turns: 60, calls: 4, nodes: 100, timeout: 5 * time.Minute,
		settings: []string{"limit.historyCount.suggestContinueAsNew=300"}})
	require.NoError(t, err)
	require.Len(t, reports, 2)
	require.Equal(t, 301, reports[0].commands)
	require.Equal(t, 101, reports[1].commands)
	for _, r := range reports {
		require.True(t, r.verified.OK)
		require.Greater(t, r.Executions, 1)
		require.Equal(t, r.Executions-1, r.verified.Temporal.HandOvers)
		for _, e := range r.Each {
			require.Less(t, e.Events, 500)
		}
	}
}
