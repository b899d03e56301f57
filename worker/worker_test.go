package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdkworker "go.temporal.io/sdk/worker"

	"runledger/agent"
	"runledger/devstack"
	"runledger/internal/pgtest"
	"runledger/ledger"
	"runledger/model"
	"runledger/tool"
	"runledger/worker"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	}))
}

// replies is a model that answers by a function of the request.
type replies func(model.Request) (model.Reply, error)

func (f replies) Generate(_ context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	reply, err := f(req)
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

// stack is a worker on servers of its own.
type stack struct {
	ledger   *ledger.Ledger
	tools    *tool.Set
	counting *counting
}

func start(t *testing.T, client model.Client) *stack {
	t.Helper()
	ctx := t.Context()
	temporal, err := devstack.StartTemporal(ctx, devstack.TemporalConfig{DataDir: t.TempDir(), UIPort: -1, InMemory: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = temporal.Stop(context.WithoutCancel(ctx)) })
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, err := ledger.Open(ctx, pgtest.Database(t), ledger.Options{Log: log})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	c, err := worker.Dial(ctx, temporal.Address(), temporal.Namespace(), log)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	s := &stack{ledger: store, counting: &counting{calls: map[string]int{}}}
	s.tools, err = tool.NewSet(s.counting.tool(t))
	require.NoError(t, err)
	stop, done := runWorker(ctx, worker.Config{Ledger: store, Temporal: c, Tools: s.tools, Log: log,
		Models: func(string) model.Client { return client }, PanicPolicy: sdkworker.FailWorkflow})
	t.Cleanup(func() { stop(); require.NoError(t, <-done) })
	return s
}

func runWorker(ctx context.Context, cfg worker.Config) (stop func(), done chan error) {
	ctx, stop = context.WithCancel(context.WithoutCancel(ctx))
	done = make(chan error, 1)
	go func() { done <- worker.Run(ctx, cfg) }()
	return stop, done
}

// accept makes a run durable, as the API does.
func (s *stack) accept(t testing.TB, mode agent.Mode, input string, plan *agent.Plan) agent.Run {
	t.Helper()
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	a := agent.Acceptance{Owner: "local", NewConversation: true, Run: agent.Run{RunID: id(), ConversationID: id(), MessageID: id(),
		RequestID: id(), Epoch: 1, Input: input}}
	a.Run.RootRunID = a.Run.RunID
	var err error
	a.Run.Definition, err = agent.Blueprint{Name: "default", Mode: mode, Model: agent.ModelRef{Name: "default"}, Tools: []string{"*"}}.Resolve(s.tools.Refs())
	require.NoError(t, err)
	switch {
	case mode == agent.ModeReact:
		a.Plan, a.PlanSource = agent.ReactPlan(), "react"
	case plan != nil:
		check, err := tool.CheckPlans(a.Run.Definition.Tools)
		require.NoError(t, err)
		a.Plan, err = agent.Compile(plan, check)
		require.NoError(t, err)
		a.PlanSource = "caller"
	}
	run, created, err := s.ledger.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	return run
}

// events waits until the run has ended and returns its log.
func (s *stack) events(t testing.TB, run agent.Run) []agent.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	news, stop := s.ledger.Subscribe(run.ConversationID)
	defer stop()
	for {
		events, err := s.ledger.Events(ctx, agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 10000)
		require.NoError(t, err)
		if events[len(events)-1].Type.Terminal() {
			return events
		}
		select {
		case <-news:
		case <-ctx.Done():
			t.Fatalf("the run does not end; last event: %s", events[len(events)-1].Type)
		}
	}
}

func types(events []agent.Event, commandOrNode string) (names []agent.EventType) {
	for _, e := range events {
		if e.CommandID == commandOrNode || e.NodeID == commandOrNode {
			names = append(names, e.Type)
		}
	}
	return names
}

func TestPlanRun(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		if req.SchemaName == "plan" {
			return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [
				{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}},
				{"id": "b", "kind": "tool", "tool": "double", "args": {"n": {"$from": "/nodes/a/output/n"}}}]}`}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: "it is 8: " + req.Messages[len(req.Messages)-1].Text}, nil
	}))
	run := s.accept(t, agent.ModePlan, "double 2 twice", nil)
	events := s.events(t, run)
	for i, e := range events {
		require.EqualValues(t, i+1, e.Sequence)
	}
	last := events[len(events)-1]
	require.Equal(t, agent.RunCompleted, last.Type, "%s", last.Data)
	var done agent.RunCompletedData
	require.NoError(t, json.Unmarshal(last.Data, &done))
	require.Contains(t, done.FinalOutput, `{"b":{"n":8}}`)
	require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded, agent.PlanStarted, agent.CommandEmitted, agent.CommandCommitted,
		agent.PlanGenerated, agent.CheckpointSaved}, eventTypes(events[:7]))
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, types(events, "a"))
	require.Equal(t, map[string]int{run.RunID + "/a": 1, run.RunID + "/b": 1}, s.counting.calls)

	checkpoints, err := s.ledger.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	for _, c := range checkpoints {
		folded, err := agent.Fold(events[:c.Sequence-1])
		require.NoError(t, err)
		require.Equal(t, folded, c.State)
	}
}

func eventTypes(events []agent.Event) (names []agent.EventType) {
	for _, e := range events {
		names = append(names, e.Type)
	}
	return names
}

func TestReactRun(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		last := req.Messages[len(req.Messages)-1]
		if last.Role == model.User {
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{
				{ID: "x", Name: "double", Arguments: `{"n": 21}`}, {ID: "y", Name: "double", Arguments: `{"n": 13}`}, {ID: "z", Name: "double", Arguments: `{"n": "no"`}}}, nil
		}
		text := ""
		for _, m := range req.Messages {
			if m.Role == model.ToolRole {
				text += m.ToolCallID + "=" + m.Text + ";"
			}
		}
		return model.Reply{Finish: model.FinishStop, Text: text}, nil
	}))
	run := s.accept(t, agent.ModeReact, "double", nil)
	events := s.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunCompleted, last.Type, "%s", last.Data)
	var done agent.RunCompletedData
	require.NoError(t, json.Unmarshal(last.Data, &done))
	require.Contains(t, done.FinalOutput, `x={"n":42};y=The call failed. TOOL_FAILED: bad luck;z=The call failed. INVALID_ARGUMENTS`)
	messages, _, err := s.ledger.Messages(t.Context(), run.ConversationID, 0, 100)
	require.NoError(t, err)
	require.Len(t, messages, 6) // user, assistant with calls, three answers, assistant
	require.Equal(t, 1, s.counting.calls[run.RunID+"/main#1.0"])
}

func TestFailuresAndTheirHandling(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		text := req.Messages[len(req.Messages)-1].Text
		return model.Reply{Finish: model.FinishStop, Text: text}, nil
	}))
	bad := json.RawMessage(`{"n": 13}`)
	for name, c := range map[string]struct {
		plan *agent.Plan
		end  agent.EventType
		want string
	}{
		"fail": {&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad}}}, agent.RunFailed, "bad luck"},
		"retry": {&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad, Retry: &agent.Retry{MaxAttempts: 2}}}},
			agent.RunFailed, `a~2`},
		"continue": {&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad, OnError: agent.OnErrorContinue}}},
			agent.RunCompleted, "TOOL_FAILED"},
		"skip": {&agent.Plan{Nodes: []agent.Node{
			{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad, OnError: agent.OnErrorSkip},
			{ID: "b", Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": 1}`), DependsOn: []string{"a"}},
		}}, agent.RunCompleted, `{\"b\":null}`},
		"reference": {&agent.Plan{Nodes: []agent.Node{
			{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": 1}`)},
			{ID: "b", Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": {"$from": "/nodes/a/output/m"}}`)},
		}}, agent.RunFailed, "REFERENCE_FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			events := s.events(t, s.accept(t, agent.ModePlan, "x", c.plan))
			last := events[len(events)-1]
			require.Equal(t, c.end, last.Type, "%s", last.Data)
			require.Contains(t, string(last.Data), c.want)
		})
	}
}

func TestTransientFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := 0
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked < 3 {
			return model.Reply{}, agent.Transient(agent.CodeModelUnavailable, "503")
		}
		return model.Reply{Finish: model.FinishStop, Text: "at last"}, nil
	}))
	run := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}}})
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.AttemptDiscarded, agent.AttemptDiscarded, agent.CommandCommitted,
		agent.NodeFinished, agent.CheckpointSaved}, types(events, "say"))
}

func TestCancel(t *testing.T) {
	t.Parallel()
	started := make(chan struct{}, 1)
	s := start(t, blocking{started})
	run := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}}})
	<-started
	_, err := s.ledger.RequestCancel(t.Context(), "local", run.RunID, "me", "enough")
	require.NoError(t, err)
	events := s.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunCancelled, last.Type)
	require.JSONEq(t, `{"by": "me", "reason": "enough"}`, string(last.Data))
	require.Contains(t, eventTypes(events), agent.CommandAbortType)
	var conflict *agent.ConflictError
	_, err = s.ledger.RequestCancel(t.Context(), "local", run.RunID, "me", "again")
	require.True(t, errors.As(err, &conflict))
}

// blocking is a model that answers when its context ends.
type blocking struct{ started chan struct{} }

func (b blocking) Generate(ctx context.Context, _ model.Request, _ func(model.Delta)) (model.Reply, error) {
	b.started <- struct{}{}
	<-ctx.Done()
	return model.Reply{}, agent.Transient(agent.CodeModelUnavailable, "stopped: %w", context.Cause(ctx))
}
