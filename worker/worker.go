package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"runledger/activities"
	"runledger/agent"
	"runledger/dispatch"
	"runledger/ledger"
	"runledger/model"
	"runledger/policy"
	"runledger/tool"
)

// DefaultTaskQueue is where runs are executed unless configured otherwise.
const DefaultTaskQueue = "runledger"

// Config of a worker.
type Config struct {
	// Ledger is open and migrated. The worker does not close it.
	Ledger *ledger.Ledger
	// Temporal is a connected client. The worker does not close it.
	Temporal client.Client
	// TaskQueue is DefaultTaskQueue when empty.
	TaskQueue string
	// Models finds a client by the name of a configured model.
	Models func(name string) model.Client
	// Tools are those that the worker begins with. What comes on ToolChanges, if it is set, takes their place and is published again.
	Tools       *tool.Set
	ToolChanges <-chan *tool.Set
	// Retriever searches documents for retrieval nodes; nil is the ledger, with the documents that the API was given.
	Retriever activities.Retriever
	// Policy, if set, is a policy in Go code: it is asked before a command that no rule of its run refuses.
	Policy policy.Func
	Log    *slog.Logger
	// MaxConcurrentActivities bounds the effects at work at once; 0 means 200.
	MaxConcurrentActivities int
	// PanicPolicy is for tests. In production a workflow that is not deterministic blocks, and shows as stuck.
	PanicPolicy worker.WorkflowPanicPolicy
	// At, if set, is called at the boundaries of the commit gate. It is for tests that break things there.
	At func(ctx context.Context, at agent.Boundary, call agent.Call)
	// Strict refuses workflow code whose effects leave no record, see [StrictInterceptor].
	Strict bool
	// Retention says how long what runs leave behind is kept; the zero value keeps everything. Of the workers on a database the one that
	// dispatches sees to it, so give all of them the same.
	Retention agent.Retention
	// Published, if set, is closed when the tools are known to the API.
	Published chan<- struct{}
}

const (
	// stopTimeout is what effects at work get to end when the worker stops, the gate's grace and a commit included.
	stopTimeout = 12 * time.Second
	// heartbeatThrottle is how soon an activity hears of a cancellation.
	heartbeatThrottle = time.Second
)

// Run publishes the tools, works until ctx ends, and returns when everything has stopped: at once where nothing is at work,
// after 12 s at most.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Ledger == nil || cfg.Temporal == nil {
		return errors.New("worker: a ledger and a Temporal client are needed")
	}
	if cfg.TaskQueue == "" {
		cfg.TaskQueue = DefaultTaskQueue
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.MaxConcurrentActivities == 0 {
		cfg.MaxConcurrentActivities = 200
	}
	if cfg.Retriever == nil {
		cfg.Retriever = cfg.Ledger
	}
	acts, err := activities.New(activities.Config{Ledger: cfg.Ledger, Models: cfg.Models, Tools: cfg.Tools, Retriever: cfg.Retriever, Workflows: starter{cfg.Temporal}, Policy: cfg.Policy,
		Log: cfg.Log, Stopping: ctx.Done(), At: cfg.At})
	if err != nil {
		return err
	}
	fatal := make(chan error, 1)
	var interceptors []interceptor.WorkerInterceptor
	if cfg.Strict {
		interceptors = append(interceptors, StrictInterceptor())
	}
	w := worker.New(cfg.Temporal, cfg.TaskQueue, worker.Options{
		Interceptors:                       interceptors,
		MaxConcurrentActivityExecutionSize: cfg.MaxConcurrentActivities,
		WorkerStopTimeout:                  stopTimeout,
		MaxHeartbeatThrottleInterval:       heartbeatThrottle,
		DefaultHeartbeatThrottleInterval:   heartbeatThrottle,
		WorkflowPanicPolicy:                cfg.PanicPolicy,
		OnFatalError:                       func(err error) { fatal <- err },
	})
	Register(w, acts)
	if err := w.Start(); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	if err := cfg.Ledger.PublishTools(ctx, cfg.TaskQueue, cfg.Tools.Refs()); err != nil {
		w.Stop()
		if ctx.Err() != nil {
			return nil // it was stopped, and that is no failure
		}
		return err
	}
	if cfg.Published != nil {
		close(cfg.Published)
	}
	followed := make(chan struct{})
	followCtx, stopFollowing := context.WithCancel(ctx)
	go func() {
		defer close(followed)
		followTools(followCtx, cfg, acts)
	}()
	dispatched := make(chan struct{})
	dispatchCtx, stopDispatch := context.WithCancel(ctx)
	go func() {
		defer close(dispatched)
		d := dispatch.Dispatcher{Outbox: cfg.Ledger, Temporal: cfg.Temporal, TaskQueue: cfg.TaskQueue, Log: cfg.Log,
			Watcher: &dispatch.Watcher{Runs: cfg.Ledger, Temporal: cfg.Temporal, Quiet: dispatch.WatchQuiet, Every: dispatch.WatchEvery, Log: cfg.Log}}
		if cfg.Retention.Any() {
			d.Retention = &dispatch.Retention{Ledger: cfg.Ledger, Keep: cfg.Retention, Every: dispatch.RetainEvery, Log: cfg.Log}
		}
		d.Run(dispatchCtx)
	}()
	select {
	case <-ctx.Done():
		err = nil
	case err = <-fatal:
		err = fmt.Errorf("worker: %w", err)
	}
	stopFollowing()
	<-followed
	stopDispatch()
	<-dispatched
	w.Stop()
	return err
}

// publishRetry is between two tries to publish tools.
const publishRetry = 2 * time.Second

// followTools works with the tools that come on ToolChanges, and publishes them, until ctx ends. Calls have them before the API tells
// of them.
func followTools(ctx context.Context, cfg Config, acts *activities.Activities) {
	var unpublished *tool.Set
	for {
		var again <-chan time.Time
		if unpublished != nil {
			again = time.After(publishRetry)
		}
		select {
		case <-ctx.Done():
			return
		case set := <-cfg.ToolChanges:
			if err := acts.UseTools(set); err != nil {
				cfg.Log.ErrorContext(ctx, "the worker keeps its tools: others cannot be used", "error", err)
				continue
			}
			unpublished = set
		case <-again:
		}
		if unpublished == nil {
			continue
		}
		if err := cfg.Ledger.PublishTools(ctx, cfg.TaskQueue, unpublished.Refs()); err != nil {
			if ctx.Err() == nil {
				cfg.Log.WarnContext(ctx, "changed tools are not published yet", "error", err, "retry_after", publishRetry)
			}
			continue
		}
		cfg.Log.InfoContext(ctx, "changed tools are published", "tools", unpublished.Len())
		unpublished = nil
	}
}

// DialLazy makes a client that connects when it is first used, for a process that has to come up while Temporal is away.
func DialLazy(address, namespace string, logger *slog.Logger) (client.Client, error) {
	c, err := client.NewLazyClient(client.Options{HostPort: address, Namespace: namespace, Logger: log.NewStructuredLogger(logger)})
	if err != nil {
		return nil, fmt.Errorf("client of Temporal at %s: %w", address, err)
	}
	return c, nil
}

// Dial connects to Temporal with the logger that the worker uses.
func Dial(ctx context.Context, address, namespace string, logger *slog.Logger) (client.Client, error) {
	c, err := client.DialContext(ctx, client.Options{HostPort: address, Namespace: namespace, Logger: log.NewStructuredLogger(logger)})
	if err != nil {
		return nil, fmt.Errorf("connect to Temporal at %s: %w", address, err)
	}
	return c, nil
}
