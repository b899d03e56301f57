package metrics_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
	"runledger/metrics"
	"runledger/sse"
)

// store is a ledger that has done something, and whose database may be away.
type store struct{ err error }

func (store) Stats() ledger.Stats {
	return ledger.Stats{Notified: 7, NotifyFailed: 1, ListenConnects: 2, Recalled: 8, Trips: 5, Moved: 6, MaxConns: 16, InUse: 3, Idle: 4, Acquired: 90, Waited: 5, WaitTime: 1500 * time.Millisecond}
}

func (s store) Standing(context.Context) (ledger.Standing, error) {
	return ledger.Standing{Open: map[agent.Status]int64{agent.Running: 3, agent.Stuck: 1}, InDoubt: 2, Pending: 4, OldestPending: 2 * time.Second, Enqueued: 1}, s.err
}

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
	text, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return string(text)
}

func TestScrape(t *testing.T) {
	t.Parallel()
	m := metrics.New(slog.New(slog.DiscardHandler))
	m.ShowLedger(store{})
	m.ShowStreams(func() sse.Stats { return sse.Stats{Open: 2, Opened: 9, Frames: 100, Bytes: 4096, Behind: 1} })
	m.Gate(ledger.GateBegin, 2*time.Millisecond, nil)
	m.Gate(ledger.GateBegin, 3*time.Second, errors.New("connection reset"))
	m.Gate(ledger.GateCommit, time.Millisecond, agent.Failed(agent.CodeStaleEpoch, "replaced"))
	m.RunAccepted()
	m.RunEnded(agent.Completed)
	m.CommandDecided(agent.ToolCommand, agent.External, agent.Committed)
	m.CommandDecided(agent.ModelCommand, "made up", agent.CommandFailed)
	m.IntentTried(ledger.StartIntent, true)
	m.IntentTried(ledger.StartIntent, false)
	text := scrape(t, m)
	for _, line := range []string{
		`runledger_gate_recalled_total 8`,
		`runledger_gate_trips_total 5`,
		`runledger_gate_seconds_count{call="begin"} 2`,
		`runledger_gate_seconds_bucket{call="begin",le="0.0025"} 1`,
		`runledger_gate_seconds_count{call="settle"} 0`,
		`runledger_gate_failures_total{call="begin"} 1`,
		`runledger_gate_failures_total{call="commit"} 0`, // an answer, not a failure
		`runledger_runs_accepted_total 1`,
		`runledger_runs_ended_total{status="completed"} 1`,
		`runledger_runs_ended_total{status="failed"} 0`,
		`runledger_commands_total{effect_class="external",kind="tool",outcome="committed"} 1`,
		`runledger_commands_total{effect_class="unknown",kind="llm",outcome="failed"} 1`,
		`runledger_intents_total{kind="start",result="delivered"} 1`,
		`runledger_intents_total{kind="start",result="put_off"} 1`,
		`runledger_notifications_total 7`,
		`runledger_notification_failures_total 1`,
		`runledger_listener_connects_total 2`,
		`runledger_pool_in_use_connections 3`,
		`runledger_pool_wait_seconds_total 1.5`,
		`runledger_streams_open 2`,
		`runledger_stream_frames_total 100`,
		`runledger_stream_bytes_total 4096`,
		`runledger_stream_behind_total 1`,
		`runledger_database_up 1`,
		`runledger_runs{status="running"} 3`,
		`runledger_runs{status="queued"} 0`,
		`runledger_commands_in_doubt 2`,
		`runledger_intents_pending 4`,
		`runledger_intents_pending_oldest_seconds 2`,
		`runledger_runs_enqueued 1`,
		`runledger_build_info{`,
		`go_goroutines `,
	} {
		require.Contains(t, text, "\n"+line)
	}
}

// TestADatabaseThatIsAwayHidesItsOwnSeriesOnly: the process still tells of itself.
func TestADatabaseThatIsAwayHidesItsOwnSeriesOnly(t *testing.T) {
	t.Parallel()
	m := metrics.New(slog.New(slog.DiscardHandler))
	m.ShowLedger(store{err: errors.New("away")})
	text := scrape(t, m)
	require.Contains(t, text, "\nrunledger_database_up 0\n")
	require.Contains(t, text, "\nrunledger_pool_max_connections 16\n")
	require.NotContains(t, text, "runledger_intents_pending")
}
