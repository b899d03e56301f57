package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/policy"
	"runledger/predicate"
	"runledger/replay"
	"runledger/tool"
	"runledger/worker"
)

// Config describes an agent under test.
type Config struct {
	Tools []tool.Tool
	// Retriever searches documents for retrieval nodes, which fail without one.
	Retriever activities.Retriever
	// Model answers; see package model/scripted.
	Model model.Client
	// Mode is agent.ModePlan when empty.
	Mode         agent.Mode
	Instructions string
	// Plan is what a caller would bring. Without one, the model plans (mode plan).
	Plan *agent.Plan
	// Limits that are zero are the defaults.
	Limits agent.Limits
	// History is the budget of what a prompt tells of the conversation; zero is the default.
	History agent.History
	// Policy are the agent's rules, PolicyFunc what a worker asks in code.
	Policy     *agent.Policy
	PolicyFunc policy.Func
	// ApprovalTimeout is how long an approval is waited for; zero is the default. See [Harness.Answer].
	ApprovalTimeout agent.Duration
	// Tx is what tools with the power [tool.TxTool] get for a transaction. Undoing it is the test's business.
	Tx agent.Tx
}

// Harness runs an agent. Its runs belong to one conversation, one after the other.
type Harness struct {
	t      testing.TB
	cfg    Config
	ledger *memory
	acts   *activities.Activities
	def    agent.Definition

	mu      sync.Mutex
	calls   []ToolCall
	crashes []crash
	mayMiss bool
	// early are inputs for the next run, planned those that come to it at their time.
	early   []agent.Input
	planned []plannedInput
	// env is that of the run at work, nil when there is none.
	env   *testsuite.TestWorkflowEnvironment
	runID string
}

// plannedInput is an input that comes to a run some time after its start.
type plannedInput struct {
	after time.Duration
	agent.Input
}

// crash is the loss of a worker that is still to come.
type crash struct {
	commandID string
	at        agent.Boundary
}

// lost is what a crash panics with. The SDK makes an error of it, and Temporal tries the activity again.
type lost struct{ crash }

func (l lost) String() string {
	return fmt.Sprintf("the worker was lost %s of command %s", l.at, l.commandID)
}

const (
	// patience is the real time in which a run must get on.
	patience = time.Minute
	// answerAfter is how long a command is in doubt before the test's word on it comes, on the environment's clock.
	answerAfter = time.Minute
)

// New makes a harness. A configuration that cannot be used fails the test.
func New(t testing.TB, cfg Config) *Harness {
	t.Helper()
	h := &Harness{t: t, cfg: cfg}
	if cfg.Mode == "" {
		h.cfg.Mode = agent.ModePlan
	}
	h.ledger = newMemory(cfg.Tx)
	watched := make([]tool.Tool, len(cfg.Tools))
	for i, one := range cfg.Tools {
		watched[i] = h.watch(one)
	}
	tools, err := tool.NewSet(watched...)
	if err != nil {
		t.Fatalf("agenttest: tools: %v", err)
	}
	if cfg.Model == nil {
		t.Fatal("agenttest: Config.Model is not set")
	}
	h.ledger.edited = h.edited(tools)
	for _, check := range []func(*agent.Policy) error{policy.Check, predicate.CheckPolicy} {
		if err := check(cfg.Policy); err != nil {
			t.Fatalf("agenttest: policy: %v", err)
		}
	}
	h.acts, err = activities.New(activities.Config{Ledger: h.ledger, Tools: tools, Retriever: cfg.Retriever, Policy: cfg.PolicyFunc, At: h.at,
		Models: func(string) model.Client { return cfg.Model }})
	if err != nil {
		t.Fatalf("agenttest: %v", err)
	}
	blueprint := agent.Blueprint{Name: "test", Mode: h.cfg.Mode, Model: agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"},
		Instructions: cfg.Instructions, Tools: []string{"*"}, Limits: cfg.Limits, History: cfg.History,
		Policy: cfg.Policy, ApprovalTimeout: cfg.ApprovalTimeout}
	if h.def, err = blueprint.Resolve(tools.Refs()); err != nil {
		t.Fatalf("agenttest: %v", err)
	}
	// Nobody comes to help a test: unless it says otherwise, a run that waits for somebody ends at its time limit.
	h.def.Limits.OnLimit = cfg.Limits.OnLimit
	return h
}

// Crash loses the worker when a command comes to a boundary of the commit gate, once; asking twice loses it twice. Its lease is
// over when the next attempt comes, as with a real loss. A crash that never came, since the run has no such command, fails the
// test at the end of the run.
func (h *Harness) Crash(commandID string, at agent.Boundary) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crashes = append(h.crashes, crash{commandID: commandID, at: at})
}

// at is told by the activities of every boundary.
func (h *Harness) at(_ context.Context, at agent.Boundary, call agent.Call) {
	h.mu.Lock()
	i := slices.Index(h.crashes, crash{commandID: call.CommandID, at: at})
	if i >= 0 {
		h.crashes = slices.Delete(h.crashes, i, i+1)
	}
	h.mu.Unlock()
	if i >= 0 {
		h.ledger.expire(call.RunID, call.CommandID)
		panic(lost{crash{commandID: call.CommandID, at: at}})
	}
}

// Resolve says what a person answers when a command comes to be in doubt, a minute after it has. Without an answer the run waits
// until its time limit.
func (h *Harness) Resolve(commandID string, r agent.Resolution) {
	h.t.Helper()
	switch r.Outcome {
	case agent.OutcomeCommitted:
		if !json.Valid(r.Result) {
			h.t.Fatalf("agenttest: Resolve %s: outcome committed needs a result, any JSON value", commandID)
		}
	case agent.OutcomeRetry, agent.OutcomeFailed:
	default:
		h.t.Fatalf("agenttest: Resolve %s: outcome %q: want committed, retry or failed", commandID, r.Outcome)
	}
	h.ledger.answer(commandID, r)
}

// Cancel asks the run that is at work to stop. Tools and models under test call it; it returns at once.
func (h *Harness) Cancel(by, reason string) {
	h.mu.Lock()
	env, runID := h.env, h.runID
	h.mu.Unlock()
	if env == nil {
		h.t.Error("agenttest: Cancel: no run is at work")
		return
	}
	if h.ledger.cancel(runID) {
		env.SignalWorkflow(agent.CancelSignal, agent.Intent{ID: 1, By: by, Reason: reason})
	}
}

// Signal sends an input for wait nodes of that name: to the run that is at work, where tools and models under test call it, else to
// the next run, which has it from its start. The value is any that can be written as JSON.
func (h *Harness) Signal(name string, value any) {
	h.t.Helper()
	in := h.input(name, value)
	h.mu.Lock()
	runID := h.runID
	if runID == "" {
		h.early = append(h.early, in)
	}
	h.mu.Unlock()
	if runID != "" {
		h.send(runID, in)
	}
}

// SignalAfter sends an input to the next run, that long after its start on the clock of its environment.
func (h *Harness) SignalAfter(after time.Duration, name string, value any) {
	h.t.Helper()
	in := h.input(name, value)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.planned = append(h.planned, plannedInput{after, in})
}

func (h *Harness) input(name string, value any) agent.Input {
	h.t.Helper()
	raw, err := json.Marshal(value)
	if err == nil {
		err = signalName(name)
	}
	if err != nil {
		h.t.Fatalf("agenttest: Signal: %v", err)
	}
	return agent.Input{Name: name, InputID: newID(), Value: raw, By: "test"}
}

func (h *Harness) send(runID string, in agent.Input) {
	if err := h.ledger.signal(runID, in); err != nil {
		h.t.Errorf("agenttest: Signal %s: %v", in.Name, err)
	}
}

// Say says something to the loop of the run that is at work, which reads it before its next turn. Tools and models under test call
// it. It reports false when the loop has ended; a server would begin a run with it then.
func (h *Harness) Say(text string) bool {
	h.mu.Lock()
	runID := h.runID
	h.mu.Unlock()
	said, err := h.ledger.steer(runID, "", text)
	if err != nil || h.cfg.Mode != agent.ModeReact {
		h.t.Errorf("agenttest: Say: only a react run at work can be told something: %v", err)
	}
	return said
}

// Run runs the agent on an input to its end. A plan that is invalid fails the test; whatever else goes wrong is in the result.
func (h *Harness) Run(input string) *Result {
	h.t.Helper()
	plan, source := h.plan()
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	run := agent.Run{RunID: id(), MessageID: id(), RequestID: id(), Epoch: 1, Input: input, Definition: h.def}
	run.RootRunID = run.RunID
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(patience)
	env.SetWorkerOptions(sdkworker.Options{DeadlockDetectionTimeout: patience})
	worker.Register(env, h.acts)
	in, err := h.ledger.accept(run, plan, source, env.Now, func(signal string, intent agent.Intent, answer func() error) {
		env.RegisterDelayedCallback(func() {
			if err := answer(); err != nil {
				h.t.Errorf("agenttest: answer for command %s: %v", intent.CommandID, err)
			}
			env.SignalWorkflow(signal, intent)
		}, answerAfter)
	})
	if err != nil {
		h.t.Fatalf("agenttest: accept the run: %v", err)
	}
	h.mu.Lock()
	early, planned := h.early, h.planned
	h.early, h.planned = nil, nil
	h.mu.Unlock()
	for _, i := range early {
		h.send(run.RunID, i)
	}
	for _, p := range planned {
		env.RegisterDelayedCallback(func() { h.send(run.RunID, p.Input) }, p.after)
	}
	h.ledger.reach(run.RunID, func(signal string, i agent.Intent) { env.SignalWorkflow(signal, i) })
	h.begin(env, run.RunID)
	defer h.begin(nil, "")
	env.ExecuteWorkflow(agent.WorkflowName, in)
	return h.result(run.RunID, env.GetWorkflowError())
}

func (h *Harness) begin(env *testsuite.TestWorkflowEnvironment, runID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.env, h.runID, h.calls = env, runID, nil
}

// plan is the compiled plan that a run starts with, and who made it; nil when the model is to make it.
func (h *Harness) plan() (plan *agent.Plan, source string) {
	h.t.Helper()
	switch {
	case h.cfg.Mode == agent.ModeReact:
		return agent.ReactPlan(), "react"
	case h.cfg.Plan == nil:
		return nil, ""
	}
	check, err := tool.CheckPlans(h.def.Tools)
	if err == nil {
		check.Workflow = h.def.MayStart
		plan, err = agent.Compile(h.cfg.Plan, check)
	}
	if err != nil {
		h.t.Fatalf("agenttest: plan: %v", err)
	}
	return plan, "caller"
}

func (h *Harness) result(runID string, err error) *Result {
	h.t.Helper()
	ctx := context.Background()
	run, _, readErr := h.ledger.WorkerRun(ctx, runID)
	if readErr != nil {
		h.t.Fatalf("agenttest: %v", readErr)
	}
	if !run.Status.Terminal() {
		h.t.Fatalf("agenttest: the run did not come to its end: %v", err)
	}
	res := &Result{t: h.t, ledger: h.ledger, RunID: runID, Status: run.Status, Error: run.Error}
	if run.FinalOutput != nil {
		res.Output = *run.FinalOutput
	}
	res.Events, res.Commands = h.ledger.record(runID)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.crashes {
		if h.mayMiss {
			break
		}
		h.t.Errorf("agenttest: Crash: command %s never came to %s", c.commandID, c.at)
	}
	res.ToolCalls = slices.Clone(h.calls)
	return res
}

// ReplayHistory holds a history that a real server recorded to the workflow of this module, and fails the test where the workflow
// leaves it. The file is what `temporal workflow show --output json` or the Temporal Web UI wrote.
func ReplayHistory(t testing.TB, path string) {
	t.Helper()
	history, err := replay.ReadHistory(path)
	if err != nil {
		t.Fatalf("agenttest: %v", err)
	}
	out, err := replay.History(history)
	switch {
	case err != nil:
		t.Fatalf("agenttest: %s: %v", path, err)
	case out.Divergence != nil:
		t.Fatalf("agenttest: %s: run %s: %s", path, out.RunID, out.Divergence)
	}
}

// equalJSON compares documents by value.
func equalJSON(a, b json.RawMessage) bool {
	canonical := func(doc json.RawMessage) string {
		var v any
		if json.Unmarshal(doc, &v) != nil {
			return string(doc)
		}
		out, err := json.Marshal(v)
		if err != nil {
			return string(doc)
		}
		return string(out)
	}
	return canonical(a) == canonical(b)
}
