package agenttest_test

import (
	"context"
	"encoding/json"
	"fmt"
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

// payer is an agent in a loop that pays, and says what it was told. Payments over 100 need an approval.
func payer(t testing.TB, amounts ...int) (*agenttest.Harness, *scripted.Script) {
	t.Helper()
	var calls []model.ToolCall
	for _, n := range amounts {
		calls = append(calls, scripted.Call("double", number{N: n}))
	}
	script := scripted.Replies(scripted.Calls(calls...), scripted.Text("done").Forever())
	return agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.External)}, Mode: agent.ModeReact, Model: script, ApprovalTimeout: agent.Duration(10 * time.Minute),
		Policy: &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"double"}, When: "args.n > 100", Decision: policy.Ask, Reason: "more than 100"}}}}), script
}

// toldOf is what the model read of a tool call.
func toldOf(t testing.TB, script *scripted.Script, index int) string {
	t.Helper()
	requests := script.Requests()
	for _, m := range requests[len(requests)-1].Messages {
		if m.Role == model.ToolRole {
			if index == 0 {
				return m.Text
			}
			index--
		}
	}
	t.Fatal("the model was told of no such call")
	return ""
}

func TestAnApproval(t *testing.T) {
	t.Parallel()
	edited := json.RawMessage(`{"n": 3}`)
	for name, c := range map[string]struct {
		answer *agent.ApprovalAnswer
		called []string
		told   string
		state  agent.CommandState
	}{
		"approved": {&agent.ApprovalAnswer{Approve: true, By: "ann"}, []string{`{"n":200}`}, `{"n":400}`, agent.Committed},
		"edited":   {&agent.ApprovalAnswer{Approve: true, By: "ann", Arguments: edited}, []string{`{"n":3}`}, `Somebody has changed the arguments of this call, which was made with {"n":3} instead. {"n":6}`, agent.Committed},
		"denied":   {&agent.ApprovalAnswer{By: "ann", Note: "ask the customer first"}, nil, "APPROVAL_DENIED: denied by ann: ask the customer first", agent.CommandFailed},
		"expired":  {nil, nil, "APPROVAL_EXPIRED: nobody answered in time whether the call may be made", agent.CommandFailed},
	} {
		for _, at := range []agent.Boundary{"", agent.BeforeBegin, agent.AfterCommit} {
			t.Run(fmt.Sprint(name, " ", at), func(t *testing.T) {
				t.Parallel()
				h, script := payer(t, 200)
				if c.answer != nil {
					h.Answer("main#1.0", *c.answer)
				}
				if at == agent.BeforeBegin || at != "" && c.state == agent.Committed {
					h.Crash("main#1.0", at)
				}
				res := h.Run("pay")
				res.RequireOutput("done")
				res.RequireReplays()
				require.Len(t, res.ToolCalls, len(c.called))
				for i, call := range res.ToolCalls {
					require.JSONEq(t, c.called[i], string(call.Arguments))
				}
				require.Contains(t, toldOf(t, script, 0), c.told)
				command, _ := res.Command("main#1.0")
				require.Equal(t, c.state, command.State)
			})
		}
	}
}

// The calls of a turn wait side by side, and those that nobody is asked about do not wait for them.
func TestApprovalsOfOneTurn(t *testing.T) {
	t.Parallel()
	h, script := payer(t, 200, 1, 300)
	h.Answer("main#1.2", agent.ApprovalAnswer{Approve: true, By: "ann"})
	h.Answer("main#1.0", agent.ApprovalAnswer{By: "bob"})
	res := h.Run("pay")
	res.RequireOutput("done")
	res.RequireReplays()
	res.RequireCalls("double", 2)
	require.Equal(t, "main#1.1", res.ToolCalls[0].CommandID)
	require.Equal(t, "main#1.2", res.ToolCalls[1].CommandID)
	require.Contains(t, toldOf(t, script, 0), "denied by bob")
	require.Contains(t, toldOf(t, script, 2), "600")
}

// A node's next try is another call, and asked about anew.
func TestApprovalsOfTries(t *testing.T) {
	t.Parallel()
	rules := &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"*"}, Decision: policy.Ask}}}
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.External)}, Policy: rules, Model: scripted.Replies(scripted.Text("done").Forever()),
		Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{"n": 13}`, func(n *agent.Node) { n.Retry = &agent.Retry{MaxAttempts: 2} })}}})
	h.Answer("a", agent.ApprovalAnswer{Approve: true, By: "ann"})
	h.Answer("a~2", agent.ApprovalAnswer{Approve: true, By: "ann", Arguments: json.RawMessage(`{"n": 2}`)})
	res := h.Run("go")
	res.RequireOutput("done")
	res.RequireReplays()
	res.RequireCalls("double", 2)
}

// A policy in code may want an approval too, for as long as the agent's approvals take.
func TestAPolicyInCodeAsks(t *testing.T) {
	t.Parallel()
	asks := scripted.Calls(scripted.Call("double", number{N: 2}))
	script := scripted.Replies(asks, scripted.Text("done"), asks, scripted.Text("done"))
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.External)}, Mode: agent.ModeReact, Model: script, ApprovalTimeout: agent.Duration(10 * time.Minute),
		PolicyFunc: func(_ context.Context, c policy.Command) (agent.Decision, string, error) {
			if c.Kind == agent.ToolCommand {
				return policy.Ask, "the code says so", nil
			}
			return policy.Execute, "", nil
		}})
	h.Run("go").RequireCalls("double", 0)
	require.Contains(t, toldOf(t, script, 0), "nobody answered in time")
	h.Answer("main#1.0", agent.ApprovalAnswer{Approve: true, By: "ann"})
	res := h.Run("go")
	res.RequireCalls("double", 1)
	for _, e := range res.Events {
		if e.Type == agent.ApprovalRequested {
			var d agent.ApprovalRequestedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			require.Equal(t, "the code says so", d.Reason)
			require.WithinDuration(t, e.CreatedAt.Add(10*time.Minute), d.ExpiresAt, time.Second)
		}
	}
}

// The worker is lost in the middle of an approved call: the next try has the arguments that were approved, and nobody is asked again.
func TestCrashOfAnApprovedCall(t *testing.T) {
	t.Parallel()
	rules := &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"*"}, Decision: policy.Ask}}}
	for _, effect := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
		for _, at := range []agent.Boundary{agent.BeforeBegin, agent.AfterBegin, agent.AfterEffect, agent.AfterCommit} {
			t.Run(fmt.Sprint(effect, " ", at), func(t *testing.T) {
				t.Parallel()
				h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(effect)}, Policy: rules, Model: scripted.Replies(scripted.Text("done").Forever()),
					Plan: &agent.Plan{Nodes: []agent.Node{node("a", `{"n": 2}`, nil)}}})
				h.Answer("a", agent.ApprovalAnswer{Approve: true, By: "ann", Arguments: json.RawMessage(`{"n": 5}`)})
				h.Resolve("a", agent.Resolution{Outcome: agent.OutcomeRetry, By: "ann"})
				h.Crash("a", at)
				res := h.Run("go")
				res.RequireOutput("done")
				res.RequireReplays()
				questions := 0
				for _, e := range res.Events {
					if e.Type == agent.ApprovalRequested {
						questions++
					}
				}
				require.Equal(t, 1, questions)
				for _, call := range res.ToolCalls {
					require.JSONEq(t, `{"n": 5}`, string(call.Arguments))
				}
				command, _ := res.Command("a")
				require.JSONEq(t, `{"n": 10}`, string(command.Result))
			})
		}
	}
}
