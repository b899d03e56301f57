package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"

	"runledger/activities"
	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
	"runledger/model"
	"runledger/tool"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	}))
}

// lab is a ledger on a database of its own, with tools and a model that do what a test says.
type lab struct {
	*ledger.Ledger
	db    *pgxpool.Pool
	tools *tool.Set
	// models answers; tests that need no model leave it nil.
	models model.Client
	probe  *probe
	// policy is that of the runs that are accepted.
	policy *agent.Policy
	// history is the budget of their prompts.
	history agent.History
}

func setup(t testing.TB) *lab {
	t.Helper()
	url := pgtest.Database(t)
	store, err := ledger.Open(context.Background(), url, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	db, err := pgxpool.New(context.Background(), url)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	l := &lab{Ledger: store, db: db, probe: &probe{}}
	l.tools, err = tool.NewSet(l.probe.tool("add", agent.Deterministic), l.probe.tool("put", agent.Idempotent), l.probe.tool("mail", agent.External))
	require.NoError(t, err)
	return l
}

// toolOf is the name of the tool of a class.
func toolOf(class agent.EffectClass) string {
	return map[agent.EffectClass]string{agent.Deterministic: "add", agent.Idempotent: "put", agent.External: "mail"}[class]
}

// probe counts the effects that took place, by idempotency key.
type probe struct {
	mu      sync.Mutex
	effects map[string][]int // the attempts
}

func (p *probe) happened(key string, attempt int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.effects == nil {
		p.effects = map[string][]int{}
	}
	p.effects[key] = append(p.effects[key], attempt)
}

// of are the attempts in which a command's effect took place.
func (p *probe) of(run agent.Run, commandID string) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.effects[agent.IdempotencyKey(run.RunID, commandID)]
}

// said is what a tool's arguments may ask of it.
type said struct {
	N int `json:"n"`
}

// hook is called in the middle of a call, after the effect has taken place.
type hook func(ctx context.Context, call tool.Call) (json.RawMessage, error)

type hookKey struct{}

// probeTool is a tool whose calls are counted.
type probeTool struct {
	spec  tool.Spec
	probe *probe
}

func (p *probe) tool(name string, class agent.EffectClass) *probeTool {
	return &probeTool{probe: p, spec: tool.Spec{Name: name, Description: "counts", Effect: class, InputSchema: json.RawMessage(
		`{"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false}`)}}
}

func (p *probeTool) Spec() tool.Spec { return p.spec }

func (p *probeTool) Call(ctx context.Context, call tool.Call) (json.RawMessage, error) {
	hooks, _ := ctx.Value(hookKey{}).(hooks)
	if hooks.before != nil {
		if out, err := hooks.before(ctx, call); out != nil || err != nil {
			return out, err
		}
	}
	p.probe.happened(call.Key, call.Attempt)
	if hooks.after != nil {
		return hooks.after(ctx, call)
	}
	var in said
	if err := json.Unmarshal(call.Arguments, &in); err != nil {
		return nil, err
	}
	return json.Marshal(said{2 * in.N})
}

// hooks are what a tool does besides; they travel in the context of its activity.
type hooks struct {
	before, after hook
}

// answering is a model that answers by a function of the request, and whose calls are counted.
type answering struct {
	probe  *probe
	answer func(model.Request) (model.Reply, error)
}

func (a answering) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	hooks, _ := ctx.Value(hookKey{}).(hooks)
	if hooks.before != nil {
		if _, err := hooks.before(ctx, tool.Call{}); err != nil {
			return model.Reply{}, err
		}
	}
	a.probe.happened(req.Key, 0)
	if hooks.after != nil {
		if _, err := hooks.after(ctx, tool.Call{}); err != nil {
			return model.Reply{}, err
		}
	}
	reply, err := a.answer(req)
	if err == nil && emit != nil {
		emit(model.Delta{Channel: model.Text, Text: reply.Text})
	}
	reply.Model = "test"
	return reply, err
}

// accept makes a run and lets it be at work. The mode is react when there is no plan and none is to be made.
func (l *lab) accept(t testing.TB, mode agent.Mode, plan string) agent.Run {
	t.Helper()
	return l.acceptIn(t, "", mode, plan)
}

// acceptIn is accept in a conversation that is there, a new one when it is "".
func (l *lab) acceptIn(t testing.TB, conversationID string, mode agent.Mode, plan string) agent.Run {
	t.Helper()
	a := agent.Acceptance{Owner: "local", NewConversation: true, Run: agent.Run{RunID: uuid.NewString(), ConversationID: uuid.NewString(),
		MessageID: uuid.NewString(), RequestID: "request", Epoch: 1, Input: "do it", Metadata: json.RawMessage(`{"k": {"a/b": [1, 2]}}`)}}
	a.Run.RootRunID = a.Run.RunID
	if conversationID != "" {
		a.NewConversation, a.Run.ConversationID = false, conversationID
	}
	var err error
	a.Run.Definition, err = agent.Blueprint{Name: "default", Mode: mode, Model: agent.ModelRef{Name: "default", Model: "m"}, Tools: []string{"*"},
		Instructions: "be kind", Limits: agent.Limits{MaxSteps: 5}, Policy: l.policy, History: l.history, Workflows: []string{"orders/*"}}.Resolve(l.tools.Refs())
	require.NoError(t, err)
	switch {
	case plan != "":
		check, err := tool.CheckPlans(a.Run.Definition.Tools)
		require.NoError(t, err)
		var p agent.Plan
		require.NoError(t, json.Unmarshal([]byte(plan), &p))
		check.Workflow = func(string, string) bool { return true } // what comes to the activity is up to it
		a.Plan, err = agent.Compile(&p, check)
		require.NoError(t, err)
		a.PlanSource = "caller"
	case mode == agent.ModeReact:
		a.Plan, a.PlanSource = agent.ReactPlan(), "react"
	}
	run, _, err := l.Accept(t.Context(), a)
	require.NoError(t, err)
	l.exec(t, `UPDATE intents SET delivered_at = now(), attempts = 1 WHERE run_id = $1`, run.RunID)
	l.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, run.RunID)
	return run
}

func (l *lab) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := l.db.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// oneNode is a run of one tool node, a.
func (l *lab) oneNode(t testing.TB, class agent.EffectClass) agent.Run {
	t.Helper()
	return l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "`+toolOf(class)+`", "args": {"n": 21}}]}`)
}

// call is the scheduling of a command that opens and ends node a.
func call(run agent.Run, schedule int) agent.Call {
	return agent.Call{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, CommandID: "a", NodeID: "a", Schedule: schedule, Opens: true, Ends: true,
		Timeout: agent.Duration(time.Minute)}
}

// expire lets the lease of a command be over.
func (l *lab) expire(t testing.TB, run agent.Run) {
	t.Helper()
	l.exec(t, `UPDATE commands SET lease_until = now() - interval '1 ms' WHERE run_id = $1`, run.RunID)
}

func (l *lab) events(t testing.TB, run agent.Run) []agent.Event {
	t.Helper()
	events, err := l.Events(t.Context(), agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 10_000)
	require.NoError(t, err)
	return events
}

// types are the events of a run from its plan on.
func (l *lab) types(t testing.TB, run agent.Run) []agent.EventType {
	t.Helper()
	types := []agent.EventType{}
	for _, e := range l.events(t, run) {
		switch e.Type {
		case agent.RunStarted, agent.MessageAdded, agent.PlanStarted:
		case agent.PlanGenerated:
			types = nil
		default:
			types = append(types, e.Type)
		}
	}
	return types
}

func (l *lab) row(t testing.TB, run agent.Run, commandID string) agent.Command {
	t.Helper()
	row, err := l.Command(t.Context(), run.RunID, commandID)
	require.NoError(t, err)
	return row
}

// try is one attempt of Temporal to execute an activity.
type try struct {
	attempt int32 // 1 when zero
	hooks   hooks
	// stop is the worker's stop channel, leaves its first word of it.
	stop, leaves chan struct{}
	// ledger stands between the activities and the ledger, nil for nothing.
	ledger func(activities.Ledger) activities.Ledger
	// context is the activity's context as Temporal ends it.
	context func(context.Context) context.Context
	// heartbeats counts them, nil when nobody does.
	heartbeats func()
}

// errCrashed is what became of an activity whose worker died in the middle of it.
var errCrashed = errors.New("crashed")

// crash ends the worker's goroutine where it stands; nothing after it happens.
func crash() { runtime.Goexit() }

// attempt runs an activity once in Temporal's test environment.
func attempt[In, Out any](t testing.TB, l *lab, how try, pick func(*activities.Activities) func(context.Context, In) (Out, error), in In) (Out, error) {
	t.Helper()
	var store activities.Ledger = l.Ledger
	if how.ledger != nil {
		store = how.ledger(store)
	}
	return attemptOn(t, store, l.tools, l.models, how, pick, in)
}

func attemptOn[In, Out any](t testing.TB, store activities.Ledger, tools *tool.Set, client model.Client, how try,
	pick func(*activities.Activities) func(context.Context, In) (Out, error), in In,
) (out Out, err error) {
	t.Helper()
	return attemptWith(t, activities.Config{Ledger: store, Tools: tools, Models: func(string) model.Client { return client }}, how, pick, in)
}

func attemptWith[In, Out any](t testing.TB, cfg activities.Config, how try,
	pick func(*activities.Activities) func(context.Context, In) (Out, error), in In,
) (out Out, err error) {
	t.Helper()
	if cfg.Models == nil {
		cfg.Models = func(string) model.Client { return nil }
	}
	acts, err := activities.New(cfg)
	require.NoError(t, err)
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	if how.stop != nil {
		env.SetWorkerStopChannel(how.stop)
	}
	env.SetWorkerOptions(sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{&temporalSays{how: how}}})
	env.RegisterActivity(pick(acts))
	err = errCrashed
	done := make(chan struct{})
	go func() {
		defer close(done)
		value, failed := env.ExecuteActivity(pick(acts), in)
		if err = failed; err == nil {
			err = value.Get(&out)
		}
	}()
	<-done
	return out, err
}

// temporalSays lets a test decide what an activity hears of Temporal.
type temporalSays struct {
	interceptor.WorkerInterceptorBase
	how try
}

func (s *temporalSays) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	i := &inbound{how: s.how}
	i.Next = next
	return i
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	how try
}

func (i *inbound) Init(next interceptor.ActivityOutboundInterceptor) error {
	o := &outbound{how: i.how}
	o.Next = next
	return i.Next.Init(o)
}

func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	ctx = context.WithValue(ctx, hookKey{}, i.how.hooks)
	if i.how.context != nil {
		ctx = i.how.context(ctx)
	}
	return i.Next.ExecuteActivity(ctx, in)
}

type outbound struct {
	interceptor.ActivityOutboundInterceptorBase
	how try
}

func (o *outbound) GetInfo(ctx context.Context) activity.Info {
	info := o.Next.GetInfo(ctx)
	info.Attempt = max(o.how.attempt, 1)
	return info
}

func (o *outbound) RecordHeartbeat(ctx context.Context, details ...any) {
	if o.how.heartbeats != nil {
		o.how.heartbeats()
	}
	o.Next.RecordHeartbeat(ctx, details...)
}

func (l *lab) callTool(t testing.TB, how try, in agent.ToolCall) (agent.Reply, error) {
	t.Helper()
	return attempt(t, l, how, callTool, in)
}

func (l *lab) callModel(t testing.TB, how try, in agent.ModelCall) (agent.ModelReply, error) {
	t.Helper()
	return attempt(t, l, how, func(a *activities.Activities) func(context.Context, agent.ModelCall) (agent.ModelReply, error) {
		return a.CallModel
	}, in)
}

func (l *lab) callPlanner(t testing.TB, how try, in agent.PlannerCall) (agent.PlannerReply, error) {
	t.Helper()
	return attempt(t, l, how, func(a *activities.Activities) func(context.Context, agent.PlannerCall) (agent.PlannerReply, error) {
		return a.CallPlanner
	}, in)
}

func (l *lab) settle(t testing.TB, in agent.SettleCall) agent.SettleReply {
	t.Helper()
	reply, err := attempt(t, l, try{}, func(a *activities.Activities) func(context.Context, agent.SettleCall) (agent.SettleReply, error) {
		return a.SettleCommand
	}, in)
	require.NoError(t, err)
	return reply
}

func callTool(a *activities.Activities) func(context.Context, agent.ToolCall) (agent.Reply, error) {
	return a.CallTool
}

// requireCode says that an activity ended in an error of that code, and how Temporal takes it.
func requireCode(t testing.TB, err error, code agent.Code, retried bool) *temporal.ApplicationError {
	t.Helper()
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, code, agent.Code(app.Type()), "%v", err)
	require.Equal(t, retried, !app.NonRetryable(), "%v", err)
	return app
}
