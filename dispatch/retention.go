package dispatch

import (
	"context"
	"log/slog"
	"time"

	"runledger/agent"
)

// RetainEvery is the pause between two rounds of retention.
const RetainEvery = 10 * time.Minute

// Retainer is the ledger as retention sees it.
type Retainer interface {
	// Retain removes what is older than it is to be kept, and counts it; with dryRun it only counts.
	Retain(ctx context.Context, keep agent.Retention, dryRun bool) (agent.RemovedCounts, error)
}

// Retention removes what is kept no longer, round after round. It is for the one dispatcher at work on a database.
type Retention struct {
	Ledger Retainer
	Keep   agent.Retention
	// Every is RetainEvery outside of tests.
	Every time.Duration
	Log   *slog.Logger
}

// Run makes rounds until ctx ends. One that fails is made up for by the next.
func (r *Retention) Run(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := r.Ledger.Retain(ctx, r.Keep, false)
		if err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "retention has broken off its round", "error", err)
		}
		if n.Any() {
			r.Log.InfoContext(ctx, "removed what is kept no longer", "runs", n.Runs, "events", n.Events, "checkpoints", n.Checkpoints,
				"payload_runs", n.PayloadRuns, "commands", n.Commands, "payloads", n.Payloads, "bytes", n.Bytes, "output", n.Output)
		}
		wait(ctx, nil, r.Every)
	}
}
