package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/devstack"
	"runledger/ledger"
	"runledger/model"
	"runledger/tool"
	"runledger/worker"
)

// Config says what the worker of a stack works with.
type Config struct {
	Model model.Client
	Tools []tool.Tool
	// TemporalDynamicConfig are settings of Temporal's server, "key=value"; none in a benchmark whose figures are told.
	TemporalDynamicConfig []string
	// NoWorker leaves the worker to the benchmark. Tools are those of its runs all the same.
	NoWorker bool
	// Progress hears, in lines for a person, what takes longer than a moment. Nil: nobody.
	Progress io.Writer
}

// Stack is a Postgres, with durable writes, a Temporal and a worker, all of them for this benchmark alone.
type Stack struct {
	Ledger   *ledger.Ledger
	Temporal client.Client
	// DatabaseURL is that of the Postgres.
	DatabaseURL string

	tools   *tool.Set
	servers *devstack.Stack
	dir     string
	worked  chan error
	end     context.CancelFunc
}

// stopTimeout bounds the stop of the servers.
const stopTimeout = 20 * time.Second

// Start starts everything. It returns when the worker is at work; ctx bounds the start and the worker's life.
func Start(ctx context.Context, cfg Config) (_ *Stack, err error) {
	s := &Stack{worked: make(chan error, 1), end: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.dir, err = TempDir(); err != nil {
		return s, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if s.servers, err = devstack.Start(ctx, devstack.Config{DataDir: s.dir, Progress: cfg.Progress, TemporalDynamicConfig: cfg.TemporalDynamicConfig}); err != nil {
		return s, err
	}
	s.DatabaseURL = s.servers.DatabaseURL
	if _, err = ledger.Migrate(ctx, s.servers.DatabaseURL); err != nil {
		return s, err
	}
	if s.Ledger, err = ledger.Open(ctx, s.servers.DatabaseURL, ledger.Options{Log: log}); err != nil {
		return s, err
	}
	if s.Temporal, err = worker.Dial(ctx, s.servers.TemporalAddress, s.servers.TemporalNamespace, log); err != nil {
		return s, err
	}
	if s.tools, err = tool.NewSet(cfg.Tools...); err != nil {
		return s, err
	}
	if cfg.NoWorker {
		close(s.worked)
		return s, nil
	}
	return s, s.work(ctx, worker.Config{Ledger: s.Ledger, Temporal: s.Temporal, Tools: s.tools, Log: log,
		Models: func(string) model.Client { return cfg.Model }})
}

// Servers are the database's URL, Temporal's address and its namespace, for a worker in another process.
func (s *Stack) Servers() string {
	return s.DatabaseURL + " " + s.servers.TemporalAddress + " " + s.servers.TemporalNamespace
}

// work starts the worker and returns when it is at work.
func (s *Stack) work(ctx context.Context, cfg worker.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	s.end = func() {
		cancel()
		<-s.worked
	}
	ready := make(chan struct{})
	cfg.Published = ready
	failed := make(chan error, 1)
	go func() {
		defer close(s.worked)
		if err := worker.Run(ctx, cfg); err != nil {
			failed <- err
		}
	}()
	select {
	case <-ready:
		return nil
	case err := <-failed:
		return err
	case <-s.worked:
		return errors.New("bench: the worker stopped while it was started")
	}
}

// Stop ends everything and removes its data.
func (s *Stack) Stop() error {
	s.end()
	if s.Temporal != nil {
		s.Temporal.Close()
	}
	if s.Ledger != nil {
		s.Ledger.Close()
	}
	var err error
	if s.servers != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err = s.servers.Stop(ctx)
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// Run is what a run is accepted with.
type Run struct {
	// ConversationID is that of an earlier run; empty makes a conversation.
	ConversationID string
	Input          string
	Mode           agent.Mode
	Limits         agent.Limits
	History        agent.History
	// Plan is what a caller would bring, not yet compiled.
	Plan *agent.Plan
}

// Accept accepts a run, as the API would.
func (s *Stack) Accept(ctx context.Context, r Run) (agent.Run, error) {
	a, err := Acceptance(r, s.tools)
	if err != nil {
		return agent.Run{}, err
	}
	run, _, err := s.Ledger.Accept(ctx, a)
	return run, err
}

// Do accepts a run and waits for its end. A run that does not complete is an error.
func (s *Stack) Do(ctx context.Context, r Run) (agent.Run, error) {
	run, err := s.Accept(ctx, r)
	if err != nil {
		return run, err
	}
	return s.Wait(ctx, run)
}

// Wait waits for a run's end. A run that does not complete is an error.
func (s *Stack) Wait(ctx context.Context, run agent.Run) (_ agent.Run, err error) {
	news, stop := s.Ledger.Subscribe(run.ConversationID)
	defer stop()
	for {
		// As the API does it.
		extent, err := s.Ledger.Extent(ctx, agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID})
		if err != nil {
			return run, err
		}
		if !extent.Open {
			break
		}
		select {
		case <-news:
		case <-ctx.Done():
			return run, fmt.Errorf("run %s: %w", run.RunID, ctx.Err())
		}
	}
	if run, _, err = s.Ledger.WorkerRun(ctx, run.RunID); err != nil {
		return run, err
	}
	if run.Status != agent.Completed {
		return run, fmt.Errorf("run %s: %s: %w", run.RunID, run.Status, run.Error)
	}
	return run, nil
}

// Acceptance is what a ledger accepts a run with, whose agent has some tools.
func Acceptance(r Run, tools *tool.Set) (agent.Acceptance, error) {
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	a := agent.Acceptance{Owner: "local", NewConversation: r.ConversationID == "", Run: agent.Run{RunID: id(), ConversationID: r.ConversationID, MessageID: id(),
		RequestID: id(), Epoch: 1, Input: r.Input}}
	a.Run.RootRunID = a.Run.RunID
	if a.NewConversation {
		a.Run.ConversationID = id()
	}
	var err error
	a.Run.Definition, err = agent.Blueprint{Name: "bench", Mode: r.Mode, Model: agent.ModelRef{Name: "default", Provider: "bench", Model: "bench"},
		Tools: []string{"*"}, Limits: r.Limits, History: r.History}.Resolve(tools.Refs())
	if err != nil {
		return a, err
	}
	switch {
	case r.Mode == agent.ModeReact:
		a.Plan, a.PlanSource = agent.ReactPlan(), "react"
	case r.Plan != nil:
		check, err := tool.CheckPlans(a.Run.Definition.Tools)
		if err != nil {
			return a, err
		}
		a.Plan, err = agent.Compile(r.Plan, check)
		a.PlanSource = "caller"
		return a, err
	}
	return a, nil
}
