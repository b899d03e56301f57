package main

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/bench"
)

func add(_ context.Context, n int) (int, error) { return n + 1, nil }

// additions calls an activity so many times, one after the other.
func additions(ctx workflow.Context, times int) (n int, err error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for range times {
		if err := workflow.ExecuteActivity(ctx, add, n).Get(ctx, &n); err != nil {
			return n, err
		}
	}
	return n, nil
}

// bareHistory is how many bytes an activity takes in the history of a workflow that does nothing else.
func bareHistory(ctx context.Context, s *bench.Stack, activities int) (bytes float64, stop func(), err error) {
	const queue = "bare"
	w := worker.New(s.Temporal, queue, worker.Options{})
	w.RegisterWorkflow(additions)
	w.RegisterActivity(add)
	if err := w.Start(); err != nil {
		return 0, nil, fmt.Errorf("start the bare worker: %w", err)
	}
	run, err := s.Temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queue}, additions, activities)
	if err == nil {
		err = run.Get(ctx, nil)
	}
	var h bench.Histories
	if err == nil {
		h, err = s.Histories(ctx, run.GetID())
	}
	if err != nil {
		w.Stop()
		return 0, nil, err
	}
	return float64(h.ServerBytes) / float64(activities), w.Stop, nil
}
