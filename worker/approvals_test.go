package worker_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
)

// approval is the newest approval of a run's command.
func (s *stack) approval(t testing.TB, run agent.Run, commandID string) agent.Approval {
	t.Helper()
	approvals, _, err := s.ledger.Approvals(t.Context(), agent.ApprovalFilter{Owner: "local", RunID: run.RunID, Limit: 10})
	require.NoError(t, err)
	for _, a := range approvals {
		if a.CommandID == commandID {
			return a
		}
	}
	t.Fatalf("nobody is asked about %s", commandID)
	return agent.Approval{}
}

// waits waits until a run says that it waits for somebody.
func (s *stack) waits(t testing.TB, run agent.Run) {
	t.Helper()
	s.awaitLog(t, run, func(events []agent.Event) bool {
		asked, answered := 0, 0
		for _, e := range events {
			switch e.Type {
			case agent.ApprovalRequested:
				asked++
			case agent.CommandCommitted:
				answered++
			default:
			}
		}
		return asked == 1 && answered == 2 // the model's turn, and the call that nobody is asked about
	})
	s.awaitActivity(t, run, string(agent.Record))
}

func (s *stack) answer(t testing.TB, run agent.Run, answer agent.ApprovalAnswer) {
	t.Helper()
	answer.By = "ann"
	_, err := s.ledger.DecideApproval(t.Context(), "local", s.approval(t, run, "main#1.0").ApprovalID, answer)
	require.NoError(t, err)
}

// TestHistoriesOfApprovals records what an execution does that waits for somebody, and holds its record to the audit and to verify.
func TestHistoriesOfApprovals(t *testing.T) {
	t.Parallel()
	answers := byScenario{}
	for _, name := range []string{"approved", "edited", "denied", "expired"} {
		answers[name] = func(_ context.Context, req model.Request) (model.Reply, error) {
			said := ""
			for _, m := range req.Messages {
				if m.Role == model.ToolRole {
					said += m.Text
				}
			}
			if said != "" {
				return model.Reply{Finish: model.FinishStop, Text: said}, nil
			}
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "a", Name: "double", Arguments: `{"n": 21}`}, {ID: "b", Name: "double", Arguments: `{"n": 1}`}}}, nil
		}
	}
	s := start(t, answers)
	for _, c := range []struct {
		name    string
		expires time.Duration
		answer  *agent.ApprovalAnswer
		calls   int
		output  string
	}{
		{"approved", time.Hour, &agent.ApprovalAnswer{Approve: true}, 2, `{"n":42}{"n":2}`},
		{"edited", time.Hour, &agent.ApprovalAnswer{Approve: true, Arguments: json.RawMessage(`{"n": 5}`)}, 2, `{"n":10}{"n":2}`},
		{"denied", time.Hour, &agent.ApprovalAnswer{Note: "not today"}, 1, `APPROVAL_DENIED: denied by ann: not today{"n":2}`},
		{"expired", 3 * time.Second, nil, 1, `APPROVAL_EXPIRED: nobody answered in time whether the call may be made{"n":2}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := s.acceptWith(t, agent.ModeReact, "scenario "+c.name, nil, &agent.Policy{Rules: []agent.PolicyRule{
				{Tools: []string{"double"}, When: "args.n > 10", Decision: "ask", Reason: "more than 10", Expires: agent.Duration(c.expires)}}})
			s.waits(t, run)
			stands, _, err := s.ledger.WorkerRun(t.Context(), run.RunID)
			require.NoError(t, err)
			if c.answer != nil {
				require.Equal(t, agent.Waiting, stands.Status)
				s.answer(t, run, *c.answer)
			}
			events := s.events(t, run)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
			read, _, err := s.ledger.WorkerRun(t.Context(), run.RunID)
			require.NoError(t, err)
			require.Contains(t, *read.FinalOutput, c.output)
			s.counting.mu.Lock()
			require.Equal(t, c.calls-1, s.counting.calls[agent.IdempotencyKey(run.RunID, "main#1.0")])
			require.Equal(t, 1, s.counting.calls[agent.IdempotencyKey(run.RunID, "main#1.1")])
			s.counting.mu.Unlock()
			history := s.history(t, run)
			requireClosed(t, history, agent.RunCompleted)
			requireReplays(t, history)
			requireAudits(t, s, run)
			s.requireVerifies(t, run)
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, "approval_"+c.name+".json"), history)
			}
		})
	}
}
