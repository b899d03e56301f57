package worker_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
)

// TestSteeringARunAtRest says something to runs of which nothing goes on. That lets none of them go on; their next turn reads it,
// after what the turn before asked for.
func TestSteeringARunAtRest(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	prompts := map[string][][]string{}
	scenarios := byScenario{}
	asksFor := func(name, toolName string) {
		scenarios[name] = func(_ context.Context, req model.Request) (model.Reply, error) {
			var said []string
			for _, m := range req.Messages {
				said = append(said, string(m.Role)+" "+m.Text)
			}
			mu.Lock()
			prompts[name] = append(prompts[name], said)
			first := len(prompts[name]) == 1
			mu.Unlock()
			if first {
				return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: toolName, Arguments: `{"n": 21}`}}}, nil
			}
			return model.Reply{Text: "a house", Finish: model.FinishStop}, nil
		}
	}
	cases := []struct {
		name, tool string
		status     agent.Status
		policy     *agent.Policy
		limits     agent.Limits
		goOn       func(s *stack, t *testing.T, run agent.Run) // what it waits for
		result     string
	}{
		{name: "said in doubt", tool: "mail", status: agent.InDoubt, goOn: func(s *stack, t *testing.T, run agent.Run) {
			s.resolve(t, run, "main#1.0", agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"n": 5}`), By: "ada"})
		}, result: `{"n": 5}`},
		{name: "said before the failure", tool: "mail", status: agent.InDoubt, goOn: func(s *stack, t *testing.T, run agent.Run) {
			s.resolve(t, run, "main#1.0", agent.Resolution{Outcome: agent.OutcomeFailed, Note: "no such letter", By: "ada"})
		}, result: "The call failed. TOOL_FAILED: resolved as failed by ada: no such letter"},
		{name: "said before the answer", tool: "double", status: agent.Waiting, policy: &agent.Policy{Rules: []agent.PolicyRule{
			{Tools: []string{"double"}, Decision: "ask", Reason: "always", Expires: agent.Duration(time.Hour)}}},
			goOn: func(s *stack, t *testing.T, run agent.Run) { s.answer(t, run, agent.ApprovalAnswer{Approve: true}) }, result: `{"n":42}`},
		{name: "said before the denial", tool: "double", status: agent.Waiting, policy: &agent.Policy{Rules: []agent.PolicyRule{
			{Tools: []string{"double"}, Decision: "ask", Reason: "always", Expires: agent.Duration(time.Hour)}}},
			goOn: func(s *stack, t *testing.T, run agent.Run) {
				s.answer(t, run, agent.ApprovalAnswer{Note: "not today"})
			}, result: "The call failed. APPROVAL_DENIED: denied by ann: not today"},
		{name: "said at a limit", tool: "double", status: agent.LimitReached, limits: agent.Limits{MaxSteps: 1, OnLimit: agent.OnLimitPark},
			goOn: func(s *stack, t *testing.T, run agent.Run) { s.give(t, run, agent.Limits{MaxSteps: 9}) }, result: `{"n":42}`},
	}
	for _, c := range cases {
		asksFor(c.name, c.tool)
	}
	s := start(t, scenarios, mail(t))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := s.acceptBy(t, agent.ModeReact, "scenario "+c.name, nil, func(a *agent.Acceptance) {
				a.Run.Definition.Policy = c.policy
				a.Run.Definition.Limits = c.limits.Or(a.Run.Definition.Limits)
			})
			s.standsAs(t, run, c.status)
			s.awaitQuiet(t, run)
			require.Equal(t, run.RunID, s.say(t, run, "in red").RunID)
			s.delivered(t)
			s.awaitQuiet(t, run)
			s.standsAs(t, run, c.status)
			mu.Lock()
			require.Len(t, prompts[c.name], 1, "it is not let go on by that")
			mu.Unlock()
			c.goOn(s, t, run)
			events := s.events(t, run)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, prompts[c.name], 2)
			require.Equal(t, []string{"user scenario " + c.name, "assistant ", "tool " + c.result, "user in red"}, prompts[c.name][1])
			history := s.history(t, run)
			requireReplays(t, history)
			requireAudits(t, s, run)
			s.requireVerifies(t, run)
		})
	}
}
