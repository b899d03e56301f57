package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"runledger/agent"
	"runledger/ledger"
)

// retentionConfig says how long what runs leave behind is kept, counted from their end; what is left out is kept for ever.
type retentionConfig struct {
	Events   agent.Duration `yaml:"events"`
	Output   agent.Duration `yaml:"output"`
	Payloads agent.Duration `yaml:"payloads"`
}

func (r retentionConfig) retention() agent.Retention {
	return agent.Retention{Events: time.Duration(r.Events), Output: time.Duration(r.Output), Payloads: time.Duration(r.Payloads)}
}

// minRetention keeps a slip of the pen from removing what people still look at.
const minRetention = agent.Duration(time.Minute)

func (r retentionConfig) check(bad func(format string, args ...any)) {
	for _, age := range []struct {
		name string
		age  agent.Duration
	}{{"events", r.Events}, {"output", r.Output}, {"payloads", r.Payloads}} {
		if age.age != 0 && age.age < minRetention {
			bad("retention.%s: %s; want at least %s, or nothing to keep it", age.name, time.Duration(age.age), time.Duration(minRetention))
		}
	}
}

type retentionCmd struct {
	DatabaseURL string `env:"DATABASE_URL" help:"Postgres to use."`
	Config      string `type:"path" help:"Configuration file; runledger.yaml in the working directory if there is one."`
	DryRun      bool   `help:"Say what would be removed, and remove nothing."`
}

// Run makes one round. Workers make one every ten minutes by themselves.
func (c *retentionCmd) Run(ctx context.Context, log *slog.Logger) error {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	keep := cfg.Retention.retention()
	if !keep.Any() {
		return errors.New("the configuration keeps everything: it has no retention")
	}
	if c.DatabaseURL == "" {
		return errors.New("DATABASE_URL is not set")
	}
	store, err := ledger.Open(ctx, c.DatabaseURL, ledger.Options{Log: log})
	if err != nil {
		return err
	}
	defer store.Close()
	n, err := store.Retain(ctx, keep, c.DryRun)
	printRemoved(os.Stdout, keep, n, c.DryRun) // also what was done before an error
	return err
}

// printRemoved prints a line for each part that is not kept for ever.
func printRemoved(out io.Writer, keep agent.Retention, n agent.RemovedCounts, dryRun bool) {
	did := "removed"
	if dryRun {
		did = "would remove"
	}
	if keep.Events > 0 {
		fmt.Fprintf(out, "events older than %s: %s %d events and %d checkpoints of %d runs in %d conversations\n", keep.Events, did, n.Events, n.Checkpoints, n.Runs, n.Conversations)
	}
	if keep.Payloads > 0 {
		fmt.Fprintf(out, "payloads older than %s: %s inputs and results of %d commands of %d runs, %d bytes, %d large results among them\n", keep.Payloads, did, n.Commands, n.PayloadRuns, n.Bytes, n.Payloads)
	}
	if keep.Output > 0 {
		fmt.Fprintf(out, "output older than %s: %s %d pieces\n", keep.Output, did, n.Output)
	}
}
