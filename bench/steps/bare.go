package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/bench"
)

const (
	bareQueue       = "bare"
	bareWorkflow    = "Bare"
	activityCommits = "TwoCommits"
	activityNothing = "Nothing"
)

// bare is Temporal without us: a worker with one workflow and two activities.
type bare struct {
	temporal client.Client
	worker   worker.Worker
	pool     *pgxpool.Pool
}

func startBare(ctx context.Context, s *bench.Stack) (*bare, error) {
	cfg, err := pgxpool.ParseConfig(s.DatabaseURL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 16 // as the ledger's
	b := &bare{temporal: s.Temporal}
	if b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if _, err := b.pool.Exec(ctx, `CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)`); err != nil {
		b.pool.Close()
		return nil, err
	}
	// The options of worker.Run, for those that matter while nothing fails.
	b.worker = worker.New(s.Temporal, bareQueue, worker.Options{MaxConcurrentActivityExecutionSize: 200, WorkerStopTimeout: 12 * time.Second,
		MaxHeartbeatThrottleInterval: time.Second, DefaultHeartbeatThrottleInterval: time.Second})
	b.worker.RegisterWorkflowWithOptions(runBare, workflow.RegisterOptions{Name: bareWorkflow})
	b.worker.RegisterActivityWithOptions(b.twoCommits, activity.RegisterOptions{Name: activityCommits})
	b.worker.RegisterActivityWithOptions(func(_ context.Context, n int) (int, error) { return n, nil }, activity.RegisterOptions{Name: activityNothing})
	if err := b.worker.Start(); err != nil {
		b.pool.Close()
		return nil, fmt.Errorf("start the bare worker: %w", err)
	}
	return b, nil
}

func (b *bare) stop() {
	b.worker.Stop()
	b.pool.Close()
}

// row is what is written, of the size of a small event.
var row = strings.Repeat("r", 200)

func (b *bare) twoCommits(ctx context.Context, n int) (int, error) {
	for range 2 {
		if _, err := b.pool.Exec(ctx, `INSERT INTO bare (body) VALUES ($1)`, row); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// runBare calls an activity so many times, one after the other, with the options of a command's activity.
func runBare(ctx workflow.Context, name string, times int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 2 * time.Minute, HeartbeatTimeout: 25 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second}, WaitForCancellation: true})
	for i := range times {
		var n int
		if err := workflow.ExecuteActivity(ctx, name, i).Get(ctx, &n); err != nil {
			return err
		}
	}
	return nil
}

// run starts a workflow and waits for its end.
func (b *bare) run(activity string, times int) func(context.Context) error {
	return func(ctx context.Context) error {
		run, err := b.temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: bareQueue}, bareWorkflow, activity, times)
		if err != nil {
			return err
		}
		return run.Get(ctx, nil)
	}
}
