package worker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
	"runledger/tool/builtin"
	"runledger/worker"
	"runledger/workflows"
)

// counted is an HTTP server that counts requests by idempotency key.
type counted struct {
	*httptest.Server
	mu   sync.Mutex
	keys map[string]int
}

func countRequests(t testing.TB) *counted {
	t.Helper()
	c := &counted{keys: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.keys[r.Header.Get("Idempotency-Key")]++
		_, _ = w.Write([]byte("hello"))
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *counted) requests() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys
}

func httpTool(t testing.TB) tool.Tool {
	t.Helper()
	request, err := builtin.HTTPRequest(builtin.HTTPConfig{AllowHosts: []string{"127.0.0.1:*"}})
	require.NoError(t, err)
	return request
}

// saying is a model that says done.
func saying() model.Client {
	return replies(func(model.Request) (model.Reply, error) {
		return model.Reply{Text: "done", Finish: model.FinishStop}, nil
	})
}

type receipt struct {
	At     time.Time `json:"at"`
	ID     string    `json:"id"`
	X      float64   `json:"x"`
	Answer string    `json:"answer"`
}

// R2-15 to R2-18: a run through Temporal whose tool has effects, and is executed twice.
func TestRunWithRecordedEffects(t *testing.T) {
	t.Parallel()
	server := countRequests(t)
	var mu sync.Mutex
	var seen []receipt
	pay, err := tool.New(tool.Spec{Name: "pay", Description: "pays", Effect: agent.Idempotent},
		func(ctx context.Context, in number, call tool.Call) (r receipt, err error) {
			if r.At, err = call.Effects.Now(ctx); err != nil {
				return r, err
			}
			if r.ID, err = call.Effects.UUID(ctx); err != nil {
				return r, err
			}
			if r.X, err = call.Effects.Random(ctx); err != nil {
				return r, err
			}
			response, err := call.Effects.HTTP(ctx, "charge", tool.HTTPRequest{Method: "POST", URL: server.URL, JSON: json.RawMessage(`{}`)})
			if err != nil {
				return r, err
			}
			r.Answer = string(response.Body())
			mu.Lock()
			defer mu.Unlock()
			if seen = append(seen, r); call.Attempt == 1 {
				return r, agent.Transient(agent.CodeToolFailed, "busy")
			}
			return r, nil
		})
	require.NoError(t, err)
	s := start(t, saying(), pay, httpTool(t))
	run := s.accept(t, agent.ModePlan, "pay", &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "pay", Args: json.RawMessage(`{"n": 1}`)}}})
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	for i, e := range events {
		require.EqualValues(t, i+1, e.Sequence)
	}
	var ofA []agent.EventType
	for _, e := range events {
		if e.NodeID == "a" {
			ofA = append(ofA, e.Type)
		}
	}
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted,
		agent.TimerFired, agent.UUIDRecorded, agent.RandomRecorded, agent.CommandEmitted, agent.HTTPRecorded, agent.CommandCommitted,
		agent.AttemptDiscarded, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, ofA)
	require.Len(t, seen, 2)
	require.Equal(t, seen[0], seen[1])
	require.Equal(t, "hello", seen[0].Answer)
	require.Equal(t, map[string]int{run.RunID + "/a/charge": 1}, server.requests())
	// The fold of the log is what the checkpoints hold.
	checkpoints, err := s.ledger.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	for _, c := range checkpoints {
		folded, err := agent.Fold(events[:c.Sequence-1])
		require.NoError(t, err)
		require.Equal(t, folded, c.State)
	}
}

// settlement is a workflow of a user's that belongs to a run.
func settlement(ctx workflow.Context, n workflows.Node, url string) (r receipt, err error) {
	ctx = workflows.WithNode(ctx, n)
	fx := workflows.NewEffects(n)
	if r.At, err = fx.Now(ctx); err != nil {
		return r, err
	}
	if r.ID, err = fx.UUID(ctx); err != nil {
		return r, err
	}
	if r.X, err = fx.Random(ctx); err != nil {
		return r, err
	}
	response, err := fx.HTTP(ctx, "charge", agent.HTTPRequest{Method: "POST", URL: url, JSON: json.RawMessage(`{}`)})
	r.Answer = string(response.Body())
	return r, err
}

// R2-14 to R2-18: workflow code has the same values in Temporal's replay and in another execution of its run.
func TestEffectsOfAUsersWorkflow(t *testing.T) {
	t.Parallel()
	server := countRequests(t)
	started := make(chan struct{}, 1)
	s := start(t, blocking{started}, httpTool(t))
	// The run is at work on a node; the workflow works for another one.
	run := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}}})
	<-started
	acts, err := activities.New(activities.Config{Ledger: s.ledger, Models: s.config.Models, Tools: s.tools})
	require.NoError(t, err)
	queue := uuid.NewString()
	own := sdkworker.New(s.temporal, queue, sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{worker.StrictInterceptor()}})
	worker.Register(own, acts)
	own.RegisterWorkflow(settlement)
	require.NoError(t, own.Start())
	t.Cleanup(own.Stop)

	var first, second receipt
	node := workflows.Node{RunID: run.RunID, Epoch: 1, NodeID: "settle"}
	execute := func(id string, into *receipt) {
		t.Helper()
		w, err := s.temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: queue}, settlement, node, server.URL)
		require.NoError(t, err)
		require.NoError(t, w.Get(t.Context(), into))
	}
	id := uuid.NewString()
	execute(id, &first)
	require.Equal(t, "hello", first.Answer)
	execute(uuid.NewString(), &second)
	require.Equal(t, first, second, "the ledger gives it again, without the old history")
	require.Equal(t, map[string]int{run.RunID + "/settle/charge": 1}, server.requests())

	replayer := sdkworker.NewWorkflowReplayer()
	replayer.RegisterWorkflow(settlement)
	require.NoError(t, replayer.ReplayWorkflowExecution(t.Context(), s.temporal.WorkflowService(), log.NewStructuredLogger(slog.New(slog.DiscardHandler)), "default",
		workflow.Execution{ID: id}))

	events, err := s.ledger.Events(t.Context(), agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 1000)
	require.NoError(t, err)
	require.Equal(t, []agent.EventType{agent.TimerFired, agent.UUIDRecorded, agent.RandomRecorded, agent.CommandEmitted, agent.HTTPRecorded,
		agent.CommandCommitted}, types(events, "settle"))
	rc, err := s.ledger.ReplayContext(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"settle/now-1", "settle/uuid-1", "settle/random-1", "settle/charge"}, rc.CompletedCommandIDs)
}

// sneaky is workflow code that does, once, what leaves no record, wherever a run's workflow calls its tools.
type sneaky struct {
	interceptor.InterceptorBase
	at    string
	times *atomic.Int64
}

func (s *sneaky) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	in := &sneakyInbound{s: s}
	in.Next = next
	return in
}

type sneakyInbound struct {
	interceptor.WorkflowInboundInterceptorBase
	s *sneaky
}

func (i *sneakyInbound) Init(next interceptor.WorkflowOutboundInterceptor) error {
	o := &sneakyOutbound{s: i.s}
	o.Next = next
	return i.Next.Init(o)
}

type sneakyOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	s *sneaky
}

func (o *sneakyOutbound) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	if call, ok := args[0].(agent.ToolCall); ok && call.NodeID == o.s.at {
		// Whoever wrote this does not look at what comes back.
		_ = workflow.SideEffect(ctx, func(workflow.Context) any { return o.s.times.Add(1) })
	}
	return o.Next.ExecuteActivity(ctx, name, args...)
}

// R2-14, R2-19: a run whose workflow code does what leaves no record fails, and its record names run and node.
func TestStrictGuardFailsTheRun(t *testing.T) {
	t.Parallel()
	s := start(t, saying())
	s.stop()
	temporal, err := shared.start()
	require.NoError(t, err)
	var times atomic.Int64
	c, err := client.Dial(client.Options{HostPort: temporal.Address(), Namespace: temporal.Namespace(), Logger: log.NewStructuredLogger(s.config.Log),
		Interceptors: []interceptor.ClientInterceptor{&sneaky{at: "b", times: &times}}})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	s.config.Temporal, s.config.Strict = c, true
	s.run(t)
	plan := func(ids ...string) *agent.Plan {
		p := &agent.Plan{}
		for i, id := range ids {
			p.Nodes = append(p.Nodes, double(id, "1", func(n *agent.Node) { n.OnError = agent.OnErrorContinue }, ids[:i]...))
		}
		return p
	}
	run := s.accept(t, agent.ModePlan, "x", plan("a", "b", "c"))
	events := s.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunFailed, last.Type, "%s", last.Data)
	var failed agent.RunFailedData
	require.NoError(t, json.Unmarshal(last.Data, &failed))
	require.Equal(t, agent.CodeUnrecorded, failed.Error.Code)
	require.Equal(t, "b", failed.Error.NodeID)
	require.Contains(t, failed.Error.Message, "run "+run.RunID+", node b: a side effect")
	require.Zero(t, times.Load(), "it did not happen")
	require.Empty(t, types(events, "c"), "nothing begins after it")
	err = s.temporal.GetWorkflow(t.Context(), run.RunID, "").Get(t.Context(), nil)
	require.ErrorContains(t, err, string(agent.CodeUnrecorded))

	clean := s.accept(t, agent.ModePlan, "x", plan("a", "c"))
	events = s.events(t, clean)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
}
