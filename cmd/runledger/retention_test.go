package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestRetentionConfig(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]byte("retention: {events: 720h, output: 24h}"))
	require.NoError(t, err)
	require.Equal(t, agent.Retention{Events: 720 * time.Hour, Output: 24 * time.Hour}, cfg.Retention.retention())
	cfg, err = parseConfig(nil)
	require.NoError(t, err)
	require.False(t, cfg.Retention.retention().Any(), "everything is kept unless said otherwise")
	_, err = parseConfig([]byte("retention: {events: 5s}"))
	require.ErrorContains(t, err, "retention.events: 5s; want at least 1m0s")
	_, err = parseConfig([]byte("retention: {payloads: -1h}"))
	require.ErrorContains(t, err, "must not be negative")
}

func TestPrintRemoved(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printRemoved(&out, agent.Retention{Events: time.Hour, Output: time.Minute}, agent.RemovedCounts{Events: 7, Runs: 2, Conversations: 1, Output: 4}, true)
	require.Equal(t, "events older than 1h0m0s: would remove 7 events and 0 checkpoints of 2 runs in 1 conversations\noutput older than 1m0s: would remove 4 pieces\n", out.String())
}
