package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"runledger/dispatch"
	"runledger/worker"
)

type recoverCmd struct {
	serverFlags
	DryRun bool `help:"Say what would be done, and do nothing."`
}

// Run recovers and prints a line for each run that has not ended, or ended because its execution was lost, and a summary.
func (c *recoverCmd) Run(ctx context.Context, log *slog.Logger) error {
	if c.TemporalAddress == "" {
		return errors.New("TEMPORAL_ADDRESS is not set: only Temporal can say which runs it has lost")
	}
	store, err := c.open(ctx, log)
	if err != nil {
		return err
	}
	defer store.Close()
	temporal, err := worker.Dial(ctx, c.TemporalAddress, c.TemporalNamespace, log)
	if err != nil {
		return err
	}
	defer temporal.Close()
	report := recoverReport{out: os.Stdout, dryRun: c.DryRun, count: map[dispatch.Recovering]int{}}
	recovery := dispatch.Recovery{Runs: store, Temporal: temporal, By: "runledger recover", DryRun: c.DryRun, Report: report.add}
	if err := recovery.Run(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return report.end()
}

// recoverReport prints what became of each run, and counts.
type recoverReport struct {
	out    io.Writer
	dryRun bool
	count  map[dispatch.Recovering]int
	failed int
}

func (r *recoverReport) add(run dispatch.Recovered) {
	r.count[run.What]++
	var what string
	switch run.What {
	case dispatch.Resumed:
		what = fmt.Sprintf("resumed in epoch %d from step %d", run.Epoch+1, run.Step)
		if r.dryRun {
			what = fmt.Sprintf("would be resumed in epoch %d", run.Epoch+1)
		}
	case dispatch.Ended:
		what = "ended as cancelled"
		if r.dryRun {
			what = "would end as cancelled"
		}
	case dispatch.LeftAlone:
		what = "left"
	}
	fmt.Fprintf(r.out, "%s  %s: %s\n", run.RunID, what, run.Why)
	if run.Err != nil {
		r.failed++
		fmt.Fprintf(r.out, "%s  failed: %v\n", run.RunID, run.Err)
	}
}

// end prints the figures. Workers start what was resumed.
func (r *recoverReport) end() error {
	would := ""
	if r.dryRun {
		would = "would be "
	}
	resumed, ended, left := r.count[dispatch.Resumed], r.count[dispatch.Ended], r.count[dispatch.LeftAlone]
	fmt.Fprintf(r.out, "%d runs: %d %sresumed, %d %scancelled, %d left", resumed+ended+left, resumed, would, ended, would, left)
	if r.failed > 0 {
		fmt.Fprintf(r.out, ", %d of them because of an error", r.failed)
	}
	fmt.Fprintln(r.out)
	if r.failed > 0 {
		return exitError(1)
	}
	return nil
}
