package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"runledger/replay"
	"runledger/worker"
)

type replayCmd struct {
	serverFlags
	RunID  string        `name:"run" xor:"what" required:"" help:"Replay the executions of this run, the newest first."`
	Since  time.Duration `xor:"what" required:"" help:"Replay every execution that was started since then, e.g. 24h."`
	Ledger bool          `help:"With --run: audit the run instead, from the ledger alone."`
	File   string        `type:"existingfile" xor:"what" required:"" help:"Replay a history from a file, as the temporal command or the Web UI write it."`
}

const (
	// replaysAtOnce bounds the histories in memory.
	replaysAtOnce = 4
	// exitDiverged is the exit code when a history does not replay.
	exitDiverged = exitError(3)
)

// Run replays and prints a line for each run: its id, the length of its history, and ok or where the code leaves it.
func (c *replayCmd) Run(ctx context.Context, log *slog.Logger) error {
	report := replayReport{out: os.Stdout}
	if c.Ledger {
		return c.audit(ctx, log, &report)
	}
	if c.File != "" {
		history, err := replay.ReadHistory(c.File)
		report.add(c.File, replayed(history, err))
		return report.end()
	}
	if c.RunID == "" && c.Since <= 0 {
		return fmt.Errorf("--since %s: want a time back, e.g. 24h", c.Since)
	}
	if c.TemporalAddress == "" {
		return errors.New("TEMPORAL_ADDRESS is not set; --file needs no server")
	}
	temporal, err := worker.Dial(ctx, c.TemporalAddress, c.TemporalNamespace, log)
	if err != nil {
		return err
	}
	defer temporal.Close()
	if c.RunID != "" {
		histories, err := replay.FetchHistories(ctx, temporal, c.RunID)
		if err != nil {
			report.add(c.RunID, replayOne{err: err})
		}
		for _, history := range histories {
			report.add(c.RunID, replayed(history, nil))
		}
		return report.end()
	}
	executions, err := replay.Started(ctx, temporal, c.TemporalNamespace, time.Now().Add(-c.Since))
	if err != nil {
		return err
	}
	report.addAll(ctx, temporal, executions)
	return report.end()
}

func (c *replayCmd) audit(ctx context.Context, log *slog.Logger, report *replayReport) error {
	if c.RunID == "" {
		return errors.New("--ledger audits one run; name it with --run")
	}
	store, err := c.open(ctx, log)
	if err != nil {
		return err
	}
	defer store.Close()
	audit, err := replay.Ledger(ctx, store, c.RunID)
	report.addAudit(c.RunID, audit, err)
	return report.end()
}

// replayOne is what became of one history.
type replayOne struct {
	outcome replay.Outcome
	err     error
}

func replayed(history *historypb.History, err error) replayOne {
	if err != nil {
		return replayOne{err: err}
	}
	outcome, err := replay.History(history)
	return replayOne{outcome: outcome, err: err}
}

// replayReport prints results and counts them.
type replayReport struct {
	out                  io.Writer
	ok, diverged, unread int
}

// addAll replays executions, a few at a time, and prints them in their order.
func (r *replayReport) addAll(ctx context.Context, temporal client.Client, executions []replay.Execution) {
	slots := make(chan struct{}, replaysAtOnce)
	results := make([]chan replayOne, len(executions))
	for i := range results {
		results[i] = make(chan replayOne, 1)
	}
	go func() {
		for i, e := range executions {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				results[i] <- replayed(replay.FetchHistory(ctx, temporal, e.WorkflowID, e.RunID))
			}()
		}
	}()
	for i, e := range executions {
		r.add(e.WorkflowID, <-results[i])
	}
}

func (r *replayReport) add(name string, one replayOne) {
	epoch := ""
	if one.outcome.Epoch > 1 {
		epoch = fmt.Sprintf("  epoch %d", one.outcome.Epoch)
	}
	switch {
	case one.err != nil:
		r.unread++
		fmt.Fprintf(r.out, "%s  cannot be read: %v\n", name, one.err)
	case one.outcome.Divergence != nil:
		r.diverged++
		fmt.Fprintf(r.out, "%s%s  %d events  diverges at %s\n", one.outcome.RunID, epoch, one.outcome.Events, one.outcome.Divergence)
	default:
		r.ok++
		fmt.Fprintf(r.out, "%s%s  %d events  ok\n", one.outcome.RunID, epoch, one.outcome.Events)
	}
}

func (r *replayReport) addAudit(name string, audit replay.Audit, err error) {
	switch {
	case err != nil:
		r.unread++
		fmt.Fprintf(r.out, "%s  cannot be audited: %v\n", name, err)
	case !audit.OK():
		r.diverged++
		fmt.Fprintf(r.out, "%s  %d commands  diverges: %s\n", name, audit.Commands, audit)
	default:
		r.ok++
		fmt.Fprintf(r.out, "%s  %d commands  ok: %s\n", name, audit.Commands, audit.Replayed.Status)
	}
}

// end prints the figures. A history that diverges outweighs one that cannot be read.
func (r *replayReport) end() error {
	fmt.Fprintf(r.out, "%d replayed, %d diverged", r.ok+r.diverged, r.diverged)
	if r.unread > 0 {
		fmt.Fprintf(r.out, ", %d not read", r.unread)
	}
	fmt.Fprintln(r.out)
	switch {
	case r.diverged > 0:
		return exitDiverged
	case r.unread > 0:
		return exitError(1)
	}
	return nil
}
