package agenttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model"
	"runledger/model/scripted"
	"runledger/policy"
	"runledger/tool"
)

type number struct {
	N int `json:"n"`
}

// double is a tool of a class; 13 is bad luck.
func double(effect agent.EffectClass) tool.Tool {
	return tool.MustNew(tool.Spec{Name: "double", Description: "doubles", Effect: effect},
		func(_ context.Context, in number, _ tool.Call) (number, error) {
			if in.N == 13 {
				return number{}, agent.Failed(agent.CodeToolFailed, "bad luck")
			}
			return number{N: 2 * in.N}, nil
		})
}

func node(id, args string, more func(*agent.Node)) agent.Node {
	n := agent.Node{ID: id, Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(args)}
	if more != nil {
		more(&n)
	}
	return n
}

// one is a harness with a plan of one tool call, and its answer.
func one(t testing.TB, effect agent.EffectClass) *agenttest.Harness {
	t.Helper()
	return agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(effect)}, Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{"n": 2}`, nil)}},
		Model: scripted.Replies(scripted.Text("done").Forever())})
}

func TestAPlannedRun(t *testing.T) {
	t.Parallel()
	script := scripted.Replies(
		scripted.JSON(agent.Plan{Nodes: []agent.Node{node("a", `{"n": 2}`, nil), node("b", `{"n": {"$from": "/nodes/a/output/n"}}`, nil)}}),
		scripted.Text("it is 8"))
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double("")}, Model: script, Instructions: "Be brief."})
	res := h.Run("double 2 twice")
	res.RequireOutput("it is 8")
	res.RequireCalls("double", 2)
	res.RequireReplays()
	require.JSONEq(t, `{"n": 4}`, string(res.Calls("double")[1].Arguments))
	require.JSONEq(t, `{"n": 8}`, string(res.ToolCalls[1].Output))
	require.Equal(t, res.RunID+"/b", res.ToolCalls[1].Key)
	require.Contains(t, script.Requests()[1].Messages[0].Text, "Be brief.")
	for i, e := range res.Events {
		require.EqualValues(t, i+1, e.Sequence)
	}
	state, err := agent.Fold(res.Events)
	require.NoError(t, err)
	require.Equal(t, agent.Completed, state.Status)
}

// The runs of a harness are one conversation.
func TestAConversation(t *testing.T) {
	t.Parallel()
	script := scripted.Replies(scripted.Text("hello ada"), scripted.Text("you are ada"))
	h := agenttest.New(t, agenttest.Config{Mode: agent.ModeReact, Model: script})
	h.Run("I am ada").RequireOutput("hello ada")
	second := h.Run("who am I?")
	second.RequireOutput("you are ada")
	require.Equal(t, []model.Message{{Role: model.User, Text: "I am ada"}, {Role: model.Assistant, Text: "hello ada"}, {Role: model.User, Text: "who am I?"}},
		script.Requests()[1].Messages)
	require.Greater(t, second.Events[0].Sequence, int64(1))
}

// TestCrashes: what a lost worker means for each class of effect, at each boundary of the gate. A committed command is never
// executed again.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		effect agent.EffectClass
		at     agent.Boundary
		calls  int
		status agent.Status
		no     int
	}{
		{agent.Idempotent, agent.BeforeBegin, 1, agent.Completed, 1},
		{agent.Idempotent, agent.AfterBegin, 1, agent.Completed, 2},
		{agent.Idempotent, agent.AfterEffect, 2, agent.Completed, 2},
		{agent.Idempotent, agent.AfterCommit, 1, agent.Completed, 1},
		{agent.External, agent.BeforeBegin, 1, agent.Completed, 1},
		{agent.External, agent.AfterBegin, 0, agent.FailedStatus, 1}, // in doubt until the time limit
		{agent.External, agent.AfterEffect, 1, agent.FailedStatus, 1},
		{agent.External, agent.AfterCommit, 1, agent.Completed, 1},
	} {
		t.Run(fmt.Sprint(c.effect, " ", c.at), func(t *testing.T) {
			t.Parallel()
			h := one(t, c.effect)
			h.Crash("a", c.at)
			res := h.Run("go")
			res.RequireStatus(c.status)
			res.RequireCalls("double", c.calls)
			res.RequireReplays()
			if c.status == agent.Completed {
				res.RequireCommitted("a", c.no)
				return
			}
			require.Equal(t, agent.CodeLimit, res.Error.Code)
			command, _ := res.Command("a")
			require.Equal(t, agent.CommandInDoubt, command.State)
		})
	}
}

// A worker may be lost again and again; the gate bounds the executions.
func TestCrashesUntilTheGateGivesUp(t *testing.T) {
	t.Parallel()
	h := one(t, agent.Idempotent)
	for range agent.MaxDispatches {
		h.Crash("a", agent.AfterEffect)
	}
	res := h.Run("go")
	res.RequireStatus(agent.FailedStatus)
	require.Equal(t, agent.CodeTooManyTries, res.Error.Code)
	res.RequireCalls("double", agent.MaxDispatches)
}

func TestADoubtIsResolved(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[agent.Outcome]struct {
		status agent.Status
		calls  int
	}{
		agent.OutcomeCommitted: {agent.Completed, 1},
		agent.OutcomeFailed:    {agent.FailedStatus, 1},
		agent.OutcomeRetry:     {agent.Completed, 2},
	} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			h := one(t, agent.External)
			h.Crash("a", agent.AfterEffect)
			h.Resolve("a", agent.Resolution{Outcome: outcome, Result: json.RawMessage(`{"n": 4}`), By: "ada"})
			res := h.Run("go")
			res.RequireStatus(want.status)
			res.RequireCalls("double", want.calls)
			res.RequireReplays()
			var types []agent.EventType
			for _, e := range res.Events {
				if e.CommandID == "a" {
					types = append(types, e.Type)
				}
			}
			require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.CommandDoubtType, agent.CommandResolved}, types[:3])
		})
	}
}

func TestACancelledRun(t *testing.T) {
	t.Parallel()
	var h *agenttest.Harness
	stop := tool.MustNew(tool.Spec{Name: "stop", Description: "stops the run", Effect: agent.Idempotent},
		func(context.Context, struct{}, tool.Call) (string, error) {
			h.Cancel("me", "enough")
			h.Cancel("me", "again") // changes nothing
			return "stopped", nil
		})
	h = agenttest.New(t, agenttest.Config{Tools: []tool.Tool{stop}, Plan: &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "stop"}}},
		Model: scripted.Replies()})
	res := h.Run("go")
	res.RequireStatus(agent.Cancelled)
	res.RequireCalls("stop", 1)
	res.RequireReplays()
	last := res.Events[len(res.Events)-1]
	require.Equal(t, agent.RunCancelled, last.Type)
	require.JSONEq(t, `{"by": "me", "reason": "enough"}`, string(last.Data))
}

func TestFailuresRetriesAndPolicies(t *testing.T) {
	t.Parallel()
	plan := &agent.Plan{Nodes: []agent.Node{
		node("a", `{"n": 13}`, func(n *agent.Node) { n.OnError, n.Retry = agent.OnErrorContinue, &agent.Retry{MaxAttempts: 2} }),
		node("b", `{"n": 1}`, func(n *agent.Node) { n.DependsOn = []string{"a"} })}}
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.Idempotent)}, Plan: plan, Model: scripted.Replies(scripted.Text("b worked"))})
	res := h.Run("go")
	res.RequireOutput("b worked")
	res.RequireCalls("double", 3)
	res.RequireReplays()

	h = agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.Idempotent)}, Plan: plan, Model: scripted.Replies(scripted.Text("nothing worked")),
		Policy: &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"double"}, Decision: policy.Forbid, Reason: "not today"}}}})
	res = h.Run("go")
	res.RequireStatus(agent.FailedStatus)
	res.RequireCalls("double", 0)
	require.Equal(t, agent.CodeRefused, res.Error.Code)
	require.Equal(t, "b", res.Error.NodeID)
	res.RequireReplays()

	// A transient failure is tried again, with backoff on a clock that jumps.
	tries := 0
	flaky := tool.MustNew(tool.Spec{Name: "double", Description: "doubles at last", Effect: agent.External},
		func(_ context.Context, in number, call tool.Call) (number, error) {
			if tries++; tries < 4 {
				return number{}, agent.Transient(agent.CodeToolFailed, "busy")
			}
			return in, nil
		})
	h = agenttest.New(t, agenttest.Config{Tools: []tool.Tool{flaky}, Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{"n": 1}`, nil)}},
		Model: scripted.Replies(scripted.Text("done"))})
	begun := time.Now()
	res = h.Run("go")
	res.RequireOutput("done")
	res.RequireCommitted("a", 4)
	require.Less(t, time.Since(begun), 20*time.Second)
}

// memo is a tool with every optional power.
type memo struct {
	tool.Tool
	sent map[string]bool
}

func (m memo) EffectOf(args json.RawMessage) agent.EffectClass {
	if strings.Contains(string(args), "1") {
		return agent.Idempotent
	}
	return agent.External
}

func (m memo) Call(ctx context.Context, call tool.Call) (json.RawMessage, error) {
	m.sent[call.Key] = true
	return m.Tool.Call(ctx, call)
}

func (m memo) Reconcile(_ context.Context, call tool.Call) (tool.Finding, error) {
	return tool.Finding{Found: m.sent[call.Key], Output: json.RawMessage(`{"n": 6}`)}, nil
}

func TestToolsKeepTheirPowers(t *testing.T) {
	t.Parallel()
	m := memo{Tool: double(agent.External), sent: map[string]bool{}}
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{m}, Model: scripted.Replies(scripted.Text("done")),
		Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{"n": 1}`, nil), node("b", `{"n": 3}`, nil)}}})
	h.Crash("b", agent.AfterEffect)
	res := h.Run("go")
	res.RequireOutput("done")
	res.RequireCalls("double", 2)
	a, _ := res.Command("a")
	b, _ := res.Command("b")
	require.Equal(t, []agent.EffectClass{agent.Idempotent, agent.External}, []agent.EffectClass{a.Effect, b.Effect})
	require.JSONEq(t, `{"n": 6}`, string(b.Result), "the tool found what it had done")
	res.RequireReplays()

	tx := &book{}
	h = agenttest.New(t, agenttest.Config{Tools: []tool.Tool{inTx{double("")}}, Tx: tx, Model: scripted.Replies(scripted.Text("done")),
		Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{"n": 1}`, nil)}}})
	res = h.Run("go")
	res.RequireOutput("done")
	res.RequireCalls("double", 1)
	require.Equal(t, []string{"INSERT"}, tx.statements)
}

// A tool whose package learns a new power must keep it under test as well: this says where to teach it.
func TestEveryPowerIsKnown(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../tool/*.go")
	require.NoError(t, err)
	var powers []string
	for _, name := range files {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^// (\w+) is an optional power`).FindAllStringSubmatch(string(source), -1) {
			powers = append(powers, found[1])
		}
	}
	require.ElementsMatch(t, []string{"EffectOf", "Reconciler", "TxTool", "HTTPSender"}, powers, "see Harness.watch")
}

// web is an http_request tool that sends to nobody.
type web struct {
	tool.Tool
	sent []string
}

func (w *web) Send(_ context.Context, key string, req tool.HTTPRequest) (tool.HTTPResponse, error) {
	w.sent = append(w.sent, key+" "+req.Method+" "+req.URL)
	return tool.HTTPResponse{Status: 200, Headers: map[string]string{}, JSON: json.RawMessage(`{"ok": true}`)}, nil
}

// TestRecordedEffects: a tool that is executed again is given what it was given before.
func TestRecordedEffects(t *testing.T) {
	t.Parallel()
	var seen []string
	ticket := tool.MustNew(tool.Spec{Name: "ticket", Description: "opens a ticket", Effect: agent.Idempotent},
		func(ctx context.Context, _ struct{}, call tool.Call) (string, error) {
			id, err := call.Effects.UUID(ctx)
			if err != nil {
				return "", err
			}
			at, err := call.Effects.Now(ctx)
			if err != nil {
				return "", err
			}
			_, err = call.Effects.HTTP(ctx, "open", tool.HTTPRequest{Method: "PUT", URL: "https://tickets.example.org/" + id})
			seen = append(seen, id+" "+at.String())
			return id, err
		})
	w := &web{Tool: tool.MustNew(tool.Spec{Name: tool.HTTPTool, Description: "requests"}, func(context.Context, struct{}, tool.Call) (string, error) { return "", nil })}
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{ticket, w}, Model: scripted.Replies(scripted.Text("done")),
		Plan: &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "ticket"}}}})
	h.Crash("a", agent.AfterEffect)
	res := h.Run("go")
	res.RequireOutput("done")
	res.RequireCalls("ticket", 2)
	require.Len(t, seen, 2)
	require.Equal(t, seen[0], seen[1])
	require.Len(t, w.sent, 1)
	require.Contains(t, w.sent[0], res.RunID+"/a/open PUT https://tickets.example.org/")
	res.RequireReplays()
}

// inTx is a tool that works in the ledger's transaction, book that transaction.
type inTx struct{ tool.Tool }

func (i inTx) CallTx(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
	if _, err := tx.Exec(ctx, "INSERT"); err != nil {
		return nil, err
	}
	return call.Arguments, nil
}

type book struct{ statements []string }

func (b *book) Exec(_ context.Context, sql string, _ ...any) (int64, error) {
	b.statements = append(b.statements, sql)
	return 1, nil
}

func (b *book) Query(context.Context, func(func(...any) error) error, string, ...any) error {
	return errors.New("not asked")
}

func TestReplayHistory(t *testing.T) {
	t.Parallel()
	agenttest.ReplayHistory(t, "../workflows/testdata/histories/react.json")
	for path, want := range map[string]string{
		"../workflows/testdata/histories-bad/wrong_order.json": "event 18: the history has ActivityTaskScheduled CallModel",
		"none.json": "none.json",
	} {
		f := fatally(func(t testing.TB) { agenttest.ReplayHistory(t, path) })
		require.Contains(t, f, want)
	}
}

// TestRequirementsFail: a check that never fails checks nothing.
func TestRequirementsFail(t *testing.T) {
	t.Parallel()
	for want, check := range map[string]func(*agenttest.Result){
		"the run is completed, want failed":                 func(r *agenttest.Result) { r.RequireStatus(agent.FailedStatus) },
		`the run answered "done", want "more"`:              func(r *agenttest.Result) { r.RequireOutput("more") },
		"tool double was called 1 times, want 2":            func(r *agenttest.Result) { r.RequireCalls("double", 2) },
		`tool double was called with {"n":2}, want {"n":3}`: func(r *agenttest.Result) { r.RequireCalledOnce("double", number{3}) },
		"want it committed after 2":                         func(r *agenttest.Result) { r.RequireCommitted("a", 2) },
		"command z:  after 0 dispatches":                    func(r *agenttest.Result) { r.RequireCommitted("z", 1) },
	} {
		said := fatally(func(t testing.TB) { check(one(t, agent.Idempotent).Run("go")) })
		require.Contains(t, said, want)
	}
	require.Contains(t, fatally(func(t testing.TB) { agenttest.New(t, agenttest.Config{}) }), "Config.Model is not set")
	require.Contains(t, fatally(func(t testing.TB) {
		agenttest.New(t, agenttest.Config{Model: scripted.Replies(), Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{}`, nil)}}}).Run("go")
	}), `there is no tool "double"`)
}

// fatally runs a check and returns what it fails with, "" if it does not.
func fatally(check func(testing.TB)) string {
	f := &failing{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(f)
	}()
	<-done
	return f.said
}

// failing is a test that keeps what it fails with.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

func (f *failing) Fatal(args ...any) {
	f.said = fmt.Sprint(args...)
	runtime.Goexit()
}
