package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"runledger/agent"
	"runledger/ledger"
	"runledger/sse"
)

// standingTimeout bounds what a scrape waits for the database.
const standingTimeout = 3 * time.Second

// Ledger is what is shown of a ledger.
type Ledger interface {
	Stats() ledger.Stats
	Standing(ctx context.Context) (ledger.Standing, error)
}

// ShowLedger shows the counts of a process's ledger, and what its database holds that is not over.
func (m *Metrics) ShowLedger(l Ledger) {
	m.registry.MustRegister(numbers[ledger.Stats]{read: l.Stats, of: []number[ledger.Stats]{
		counted("runledger_notifications_total", "Batches of notifications that were sent.", func(s ledger.Stats) float64 { return float64(s.Notified) }),
		counted("runledger_notification_failures_total", "Batches of notifications that were not sent at first, and are sent again.", func(s ledger.Stats) float64 { return float64(s.NotifyFailed) }),
		counted("runledger_listener_connects_total", "How often the listening connection was made; the first time is no loss.", func(s ledger.Stats) float64 { return float64(s.ListenConnects) }),
		counted("runledger_gate_recalled_total", "Transactions of the gate that were written by what the process remembered of the run.", func(s ledger.Stats) float64 { return float64(s.Recalled) }),
		counted("runledger_gate_trips_total", "Round trips that took transactions to the database that went by memory; several share one while many are under way.", func(s ledger.Stats) float64 { return float64(s.Trips) }),
		counted("runledger_gate_moved_total", "Transactions of the gate that were done the general way after all: the run was not as remembered, or memory was not enough.", func(s ledger.Stats) float64 { return float64(s.Moved) }),
		gauged("runledger_pool_max_connections", "Connections that the pool may have.", func(s ledger.Stats) float64 { return float64(s.MaxConns) }),
		gauged("runledger_pool_in_use_connections", "Connections that are at work.", func(s ledger.Stats) float64 { return float64(s.InUse) }),
		gauged("runledger_pool_idle_connections", "Connections that wait for work.", func(s ledger.Stats) float64 { return float64(s.Idle) }),
		counted("runledger_pool_acquires_total", "How often a connection was taken.", func(s ledger.Stats) float64 { return float64(s.Acquired) }),
		counted("runledger_pool_waits_total", "How often none was free when one was wanted.", func(s ledger.Stats) float64 { return float64(s.Waited) }),
		counted("runledger_pool_wait_seconds_total", "How long was waited for one, together.", func(s ledger.Stats) float64 { return s.WaitTime.Seconds() }),
	}})
	m.registry.MustRegister(standing{l})
}

// ShowStreams shows the counts of a process's streams.
func (m *Metrics) ShowStreams(read func() sse.Stats) {
	m.registry.MustRegister(numbers[sse.Stats]{read: read, of: []number[sse.Stats]{
		gauged("runledger_streams_open", "Streams that are open.", func(s sse.Stats) float64 { return float64(s.Open) }),
		counted("runledger_streams_opened_total", "Streams that were opened.", func(s sse.Stats) float64 { return float64(s.Opened) }),
		counted("runledger_stream_frames_total", "Frames that were sent.", func(s sse.Stats) float64 { return float64(s.Frames) }),
		counted("runledger_stream_bytes_total", "Bytes that were sent, heartbeats among them.", func(s sse.Stats) float64 { return float64(s.Bytes) }),
		counted("runledger_stream_behind_total", "How often a stream lagged so far that it went back to the ledger.", func(s sse.Stats) float64 { return float64(s.Behind) }),
	}})
}

// numbers are metrics that are read together.
type numbers[T any] struct {
	read func() T
	of   []number[T]
}

type number[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(T) float64
}

func counted[T any](name, help string, get func(T) float64) number[T] {
	return number[T]{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, get}
}

func gauged[T any](name, help string, get func(T) float64) number[T] {
	return number[T]{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, get}
}

func (n numbers[T]) Describe(to chan<- *prometheus.Desc) {
	for _, one := range n.of {
		to <- one.desc
	}
}

func (n numbers[T]) Collect(to chan<- prometheus.Metric) {
	now := n.read()
	for _, one := range n.of {
		to <- prometheus.MustNewConstMetric(one.desc, one.kind, one.get(now))
	}
}

// standing reads the database at every scrape.
type standing struct{ ledger Ledger }

var (
	openRuns      = prometheus.NewDesc("runledger_runs", "Runs of the database that have not ended, by status.", []string{"status"}, nil)
	inDoubt       = prometheus.NewDesc("runledger_commands_in_doubt", "Commands of the database that somebody has to resolve.", nil, nil)
	enqueued      = prometheus.NewDesc("runledger_runs_enqueued", "Runs of the database that wait for others of their conversation; they are among the queued.", nil, nil)
	pending       = prometheus.NewDesc("runledger_intents_pending", "Intents of the database that are not delivered to Temporal yet.", nil, nil)
	oldestPending = prometheus.NewDesc("runledger_intents_pending_oldest_seconds", "How long the oldest of them has waited.", nil, nil)
	reachable     = prometheus.NewDesc("runledger_database_up", "Whether the database answered this scrape.", nil, nil)
)

func (s standing) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{openRuns, inDoubt, enqueued, pending, oldestPending, reachable} {
		to <- d
	}
}

func (s standing) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), standingTimeout)
	defer cancel()
	now, err := s.ledger.Standing(ctx)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if err != nil {
		gauge(reachable, 0)
		return
	}
	gauge(reachable, 1)
	for _, status := range []agent.Status{agent.Queued, agent.Running, agent.Waiting, agent.Paused, agent.InDoubt, agent.LimitReached, agent.Stuck, agent.Cancelling} {
		gauge(openRuns, float64(now.Open[status]), string(status))
	}
	gauge(inDoubt, float64(now.InDoubt))
	gauge(enqueued, float64(now.Enqueued))
	gauge(pending, float64(now.Pending))
	gauge(oldestPending, now.OldestPending.Seconds())
}
