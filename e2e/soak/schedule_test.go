package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// A seed is a plan: the same one again, and another one for another seed.
func TestScheduleIsTheSeeds(t *testing.T) {
	t.Parallel()
	o := options{runs: 20, kills: 20, workers: 3, seed: 7, gap: time.Second}
	require.Equal(t, newSchedule(o), newSchedule(o))
	other := o
	other.seed = 8
	require.NotEqual(t, newSchedule(o).runs, newSchedule(other).runs)
	require.NotEqual(t, newSchedule(o).kills, newSchedule(other).kills)
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	s := newSchedule(options{runs: 200, kills: 50, workers: 3, seed: 1, gap: time.Second})
	require.Len(t, s.runs, 200)
	require.Len(t, s.kills, 50)
	counts := map[victim]int{}
	for _, k := range s.kills {
		counts[k.victim]++
		require.Less(t, k.worker, 3)
		if k.victim == stopTemporal {
			require.Equal(t, longStop, k.away)
		}
	}
	require.Len(t, counts, 6, "every kind of kill")
	require.Greater(t, counts[killWorker], 20)
	methods := map[string]int{}
	fast := 0
	for i, r := range s.runs {
		require.Less(t, r.joins, i)
		require.Len(t, r.nodes, commandsPerRun)
		if r.fast {
			fast++
			require.Equal(t, agent.FastLane, r.body("http://127.0.0.1:9", "")["plan"].(object)["nodes"].([]object)[0]["lane"])
		}
		for n, node := range r.nodes {
			methods[node.method]++
			require.False(t, node.method == "GET" && node.takes > longestRepeatable)
			for _, d := range node.deps {
				require.Less(t, d, n)
			}
		}
	}
	require.InDelta(t, 100, fast, 25, "half of them in the fast lane")
	for _, m := range []string{"", "GET", "POST"} {
		require.Greater(t, methods[m], 300, "a mix of classes")
	}
	// However few the kills are, there are exactly as many.
	for n := range 12 {
		require.Len(t, newSchedule(options{runs: 1, kills: n, workers: 1, gap: time.Second}).kills, n)
	}
}
