// Command runledger is the one binary of Runledger: the local stack, the API, the worker and the terminal client.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
)

// commands are the subcommands. Each is a struct whose fields are its flags and whose Run does the work.
type commands struct {
	Dev       devCmd       `cmd:"" help:"Run everything on this machine: Postgres, Temporal, API and worker."`
	API       apiCmd       `cmd:"" name:"api" help:"Run the HTTP API."`
	Worker    workerCmd    `cmd:"" help:"Run a worker."`
	Migrate   migrateCmd   `cmd:"" help:"Bring the database to the newest schema."`
	Run       runCmd       `cmd:"" help:"Start a run over the API and print it as it happens."`
	Events    eventsCmd    `cmd:"" help:"Print the events of a run."`
	Replay    replayCmd    `cmd:"" help:"Hold recorded runs to the workflow of this binary."`
	Verify    verifyCmd    `cmd:"" help:"Check a run's record against its own rules and against Temporal's history; exit status 3 when they differ."`
	Recover   recoverCmd   `cmd:"" help:"Resume the runs that Temporal has lost, as after the loss of its database."`
	Retention retentionCmd `cmd:"" help:"Remove what the configuration keeps no longer, once, and print how much that was."`
	Version   versionCmd   `cmd:"" help:"Print the version."`

	LogLevel slog.Level `help:"debug, info, warn or error." default:"info" env:"RUNLEDGER_LOG_LEVEL"`
}

// exitError ends the program with a code and without another message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	var cli commands
	parser, err := kong.New(&cli, kong.Name("runledger"), kong.Description("Durable AI-agent execution on Temporal and Postgres."), kong.UsageOnError())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	parsed, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: cli.LogLevel}))
	parsed.BindTo(ctx, (*context.Context)(nil))
	parsed.Bind(log)
	err = parsed.Run()
	stop()
	var code exitError
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case err != nil:
		fmt.Fprintln(os.Stderr, "runledger:", err)
		os.Exit(1)
	}
}

type versionCmd struct{}

// Run prints the module's version and the commit it was built from.
func (versionCmd) Run() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this binary holds no build information")
	}
	commit := ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = " " + s.Value
		}
	}
	fmt.Printf("runledger %s%s %s\n", info.Main.Version, commit, info.GoVersion)
	return nil
}
