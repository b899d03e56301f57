package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"runledger/agent"
	"runledger/devstack"
	"runledger/internal/pgtest"
	"runledger/ledger"
	"runledger/model"
	"runledger/replay"
	"runledger/tool"
	"runledger/worker"
)

func TestMain(m *testing.M) {
	worker.WatchSources() // before anything of this process is at work
	os.Exit(pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	}))
}

// temporalServer is the one of this test binary. Every test has a task queue of its own on it.
type temporalServer struct {
	settings []string
	once     sync.Once
	server   *devstack.Temporal
	err      error
}

// shared is the state of this process; testing gives a TestMain no other place to keep it.
var shared temporalServer

// brief is another one, which suggests to continue as new after a few events.
var brief = temporalServer{settings: []string{"limit.historyCount.suggestContinueAsNew=60"}}

func (s *temporalServer) start() (*devstack.Temporal, error) {
	s.once.Do(func() {
		var dir string
		if dir, s.err = pgtest.Folder(s.stop); s.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // it may have to be built
		defer cancel()
		s.server, s.err = devstack.StartTemporal(ctx, devstack.TemporalConfig{DataDir: dir, UIPort: -1, InMemory: true, DynamicConfig: s.settings})
	})
	return s.server, s.err
}

func (s *temporalServer) stop(ctx context.Context) error {
	if s.server == nil {
		return nil
	}
	return s.server.Stop(ctx)
}

// replies is a model that answers by a function of the request.
type replies func(model.Request) (model.Reply, error)

func (f replies) Generate(_ context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	reply, err := f(model.WithoutMarks(req))
	if err == nil && emit != nil {
		emit(model.Delta{Channel: model.Text, Text: reply.Text})
	}
	reply.Model = "test"
	return reply, err
}

type number struct {
	N int `json:"n"`
}

// counting is a tool that counts its executions by key and doubles its input. The input 13 is bad luck.
type counting struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counting) tool(t testing.TB) tool.Tool {
	t.Helper()
	double, err := tool.New(tool.Spec{Name: "double", Description: "doubles a number", Effect: agent.Idempotent},
		func(_ context.Context, in number, call tool.Call) (number, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls[call.Key]++
			if in.N == 13 {
				return number{}, agent.Failed(agent.CodeToolFailed, "bad luck")
			}
			return number{N: 2 * in.N}, nil
		})
	require.NoError(t, err)
	return double
}

// stack is a worker with a database and a task queue of its own.
type stack struct {
	url      string // of the database
	ledger   *ledger.Ledger
	limits   agent.Limits // of the runs
	temporal client.Client
	tools    *tool.Set
	counting *counting
	config   worker.Config
	stop     func() // returns when the worker has stopped
}

func start(t *testing.T, client model.Client, more ...tool.Tool) *stack {
	t.Helper()
	return startOn(t, &shared, client, more...)
}

func startOn(t *testing.T, on *temporalServer, client model.Client, more ...tool.Tool) *stack {
	t.Helper()
	ctx := t.Context()
	temporal, err := on.start()
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	url := pgtest.Database(t)
	store, err := ledger.Open(ctx, url, ledger.Options{Log: log})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	c, err := worker.Dial(ctx, temporal.Address(), temporal.Namespace(), log)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	s := &stack{url: url, ledger: store, temporal: c, counting: &counting{calls: map[string]int{}}}
	s.tools, err = tool.NewSet(append(more, s.counting.tool(t))...)
	require.NoError(t, err)
	s.config = worker.Config{Ledger: store, Temporal: c, TaskQueue: uuid.NewString(), Tools: s.tools, Log: log,
		Models: func(string) model.Client { return client }, PanicPolicy: sdkworker.FailWorkflow, Strict: true} // as the programs run it
	s.run(t)
	t.Cleanup(func() { s.stop() })
	return s
}

// run starts a worker and returns when it is at work; the one before it must have stopped.
func (s *stack) run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	s.config.Published = ready
	go func() { done <- worker.Run(ctx, s.config) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stop the worker: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("start the worker: %v", err)
	}
}

// accept makes a run durable, as the API does.
func (s *stack) accept(t testing.TB, mode agent.Mode, input string, plan *agent.Plan) agent.Run {
	t.Helper()
	return s.acceptWith(t, mode, input, plan, nil)
}

func (s *stack) acceptWith(t testing.TB, mode agent.Mode, input string, plan *agent.Plan, policy *agent.Policy) agent.Run {
	t.Helper()
	return s.acceptBy(t, mode, input, plan, func(a *agent.Acceptance) { a.Run.Definition.Policy = policy })
}

// acceptBy is accept with something of it changed.
func (s *stack) acceptBy(t testing.TB, mode agent.Mode, input string, plan *agent.Plan, change func(*agent.Acceptance)) agent.Run {
	t.Helper()
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	a := agent.Acceptance{Owner: "local", NewConversation: true, Run: agent.Run{RunID: id(), ConversationID: id(), MessageID: id(),
		RequestID: id(), Epoch: 1, Input: input}}
	a.Run.RootRunID = a.Run.RunID
	var err error
	a.Run.Definition, err = agent.Blueprint{Name: "default", Mode: mode, Model: agent.ModelRef{Name: "default"}, Tools: []string{"*"}, Limits: s.limits, Workflows: []string{"*"}}.Resolve(s.tools.Refs())
	require.NoError(t, err)
	switch {
	case mode == agent.ModeReact:
		a.Plan, a.PlanSource = agent.ReactPlan(), "react"
	case plan != nil:
		check, err := tool.CheckPlans(a.Run.Definition.Tools)
		require.NoError(t, err)
		check.Workflow = a.Run.Definition.MayStart
		a.Plan, err = agent.Compile(plan, check)
		require.NoError(t, err)
		a.PlanSource = "caller"
	}
	change(&a)
	run, created, err := s.ledger.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	return run
}

// events waits until the run has ended and returns its log.
func (s *stack) events(t testing.TB, run agent.Run) []agent.Event {
	t.Helper()
	return s.await(t, run, agent.EventType.Terminal)
}

// await waits until the run's last event is of a type, and returns its log.
func (s *stack) await(t testing.TB, run agent.Run, wanted func(agent.EventType) bool) []agent.Event {
	t.Helper()
	return s.awaitLog(t, run, func(events []agent.Event) bool { return wanted(events[len(events)-1].Type) })
}

// awaitLog waits until the run's log is as wanted, and returns it.
func (s *stack) awaitLog(t testing.TB, run agent.Run, wanted func([]agent.Event) bool) []agent.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	news, stop := s.ledger.Subscribe(run.ConversationID)
	defer stop()
	for {
		events, err := s.ledger.Events(ctx, agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 10000)
		require.NoError(t, err)
		if wanted(events) {
			return events
		}
		select {
		case <-news:
		case <-ctx.Done():
			t.Fatalf("what is waited for does not come; last event: %s; Temporal's last:\n%s", events[len(events)-1].Type, s.lastOfTemporal(run))
		}
	}
}

// lastOfTemporal is the end of the histories of a run's newest executions, for a test that waits in vain.
func (s *stack) lastOfTemporal(run agent.Run) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	histories, err := replay.FetchHistories(ctx, s.temporal, run.RunID)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, h := range histories[:min(2, len(histories))] {
		for _, e := range h.Events[max(0, len(h.Events)-40):] {
			fmt.Fprintf(&b, "%d %s %s", e.EventId, e.EventTime.AsTime().Format("05.000"), e.EventType)
			if e.EventType == enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED {
				a := e.GetWorkflowExecutionSignaledEventAttributes()
				fmt.Fprintf(&b, " %s %s", a.SignalName, a.Input.Payloads[0].Data)
			}
			if e.EventType == enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED {
				fmt.Fprintf(&b, " %s", e.GetWorkflowTaskFailedEventAttributes().String())
			}
			b.WriteString("\n")
		}
		b.WriteString("before:\n")
	}
	return b.String()
}

func types(events []agent.Event, commandOrNode string) (names []agent.EventType) {
	for _, e := range events {
		if e.CommandID == commandOrNode || e.NodeID == commandOrNode {
			names = append(names, e.Type)
		}
	}
	return names
}
