package metrics

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"runledger/agent"
	"runledger/ledger"
)

// Metrics counts for one process. It is the Meter of its ledger.
type Metrics struct {
	registry *prometheus.Registry
	log      *slog.Logger

	gate     *prometheus.HistogramVec
	gateErrs *prometheus.CounterVec
	accepted prometheus.Counter
	ended    *prometheus.CounterVec
	commands *prometheus.CounterVec
	intents  *prometheus.CounterVec
}

var _ ledger.Meter = (*Metrics)(nil)

// New makes the metrics of a process. Give them to ledger.Open as its Meter, and then what else there is to show.
func New(log *slog.Logger) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(), log: log,
		gate: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "runledger_gate_seconds",
			Help:    "Time of the commit gate's transactions, waits for a connection and for locks included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"call"}),
		gateErrs: counter("runledger_gate_failures_total", "Transactions of the commit gate that the database failed. The caller tries them again.", "call"),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{Name: "runledger_runs_accepted_total", Help: "Runs that this process has accepted."}),
		ended:    counter("runledger_runs_ended_total", "Runs that this process has seen to their end, by status; a run that was resumed ends again.", "status"),
		commands: counter("runledger_commands_total", "Commands that were decided through this process. The class is unknown of those that ended with their run.",
			"kind", "effect_class", "outcome"),
		intents: counter("runledger_intents_total", "Tries of this process to bring an intent to Temporal, by result: delivered or put_off.", "kind", "result"),
	}
	m.registry.MustRegister(m.gate, m.gateErrs, m.accepted, m.ended, m.commands, m.intents, buildInfo(),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// What can happen is there from the beginning, so that a rate of it does not begin with a hole.
	for _, call := range []ledger.GateCall{ledger.GateBegin, ledger.GateCommit, ledger.GateConclude, ledger.GateSettle} {
		m.gate.WithLabelValues(string(call))
		m.gateErrs.WithLabelValues(string(call))
	}
	for _, status := range []agent.Status{agent.Completed, agent.FailedStatus, agent.Cancelled} {
		m.ended.WithLabelValues(string(status))
	}
	return m
}

func buildInfo() prometheus.Collector {
	version, commit, goVersion := "unknown", "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version, goVersion = info.Main.Version, info.GoVersion
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "runledger_build_info", Help: "1, with what this binary was built from.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "go_version": goVersion}}, func() float64 { return 1 })
}

// Handler answers with all metrics in the format that the client asks for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
		// A database that is away hides its own series only.
		ErrorHandling: promhttp.ContinueOnError})
}

// Gate counts a transaction of the commit gate.
func (m *Metrics) Gate(call ledger.GateCall, took time.Duration, err error) {
	m.gate.WithLabelValues(string(call)).Observe(took.Seconds())
	if _, answer := agent.AsError(err); err != nil && !answer {
		m.gateErrs.WithLabelValues(string(call)).Inc()
	}
}

// RunAccepted counts a new run.
func (m *Metrics) RunAccepted() { m.accepted.Inc() }

// RunEnded counts a terminal event.
func (m *Metrics) RunEnded(status agent.Status) { m.ended.WithLabelValues(string(status)).Inc() }

// CommandDecided counts an outcome.
func (m *Metrics) CommandDecided(kind agent.CommandKind, effect agent.EffectClass, outcome agent.CommandState) {
	class := "unknown"
	switch effect {
	case agent.Deterministic, agent.Idempotent, agent.External:
		class = string(effect)
	}
	m.commands.WithLabelValues(string(kind), class, string(outcome)).Inc()
}

// IntentTried counts a delivery.
func (m *Metrics) IntentTried(kind ledger.IntentKind, delivered bool) {
	result := "put_off"
	if delivered {
		result = "delivered"
	}
	m.intents.WithLabelValues(string(kind), result).Inc()
}
