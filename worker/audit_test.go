package worker_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/replay"
)

// requireAudits says that the record alone gives a run again.
func requireAudits(t testing.TB, s *stack, run agent.Run) replay.Audit {
	t.Helper()
	audit, err := replay.Ledger(t.Context(), s.ledger, run.RunID)
	require.NoError(t, err)
	require.True(t, audit.OK(), "%s\n%+v", audit, audit)
	return audit
}

// TestAudit replays a run from its ledger: the same output, and no model or tool is asked. Then it takes parts of the record
// away.
func TestAudit(t *testing.T) {
	t.Parallel()
	asked := 0
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		asked++
		if req.SchemaName == "plan" {
			return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [
				{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}},
				{"id": "b", "kind": "tool", "tool": "double", "args": {"n": {"$from": "/nodes/a/output/n"}}}]}`}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: "it is \x00 8"}, nil
	}))
	run := s.accept(t, agent.ModePlan, "double 2 twice", nil)
	s.events(t, run)
	calls := maps.Clone(s.counting.calls)

	audit := requireAudits(t, s, run)
	require.Equal(t, 4, audit.Commands)
	require.Equal(t, replay.Ending{Status: agent.Completed, Output: "it is \uFFFD 8", Finished: []string{"a", "b", agent.AnswerNodeID}}, audit.Replayed)
	require.Equal(t, 2, asked)
	require.Equal(t, calls, s.counting.calls)

	db, err := pgx.Connect(t.Context(), s.url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	tamper := func(sql string) replay.Audit {
		t.Helper()
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err)
		audit, err := replay.Ledger(t.Context(), s.ledger, run.RunID)
		require.NoError(t, err)
		require.False(t, audit.OK())
		require.Equal(t, 2, asked)
		require.Equal(t, calls, s.counting.calls)
		return audit
	}
	audit = tamper(`UPDATE commands SET result = '{"text": "it is 9"}' WHERE command_id = 'answer'`)
	require.Equal(t, []string{`final output: the record has "it is ` + "\uFFFD" + ` 8", the replay gives "it is 9"`}, audit.Differences)

	audit = tamper(`DELETE FROM commands WHERE command_id = 'b'`)
	require.Equal(t, agent.CodeForbidden, audit.Forbidden.Code)
	require.Equal(t, "b", audit.Forbidden.NodeID)
	require.Equal(t, "b", audit.Forbidden.CommandID)
	require.Contains(t, audit.String(), "REPLAY_FORBIDDEN: run "+run.RunID+", node b, command b: ")
	require.Equal(t, agent.FailedStatus, audit.Replayed.Status)
	require.Equal(t, []string{"a"}, audit.Replayed.Finished)

	audit = tamper(`DELETE FROM commands WHERE command_id = 'plan'`)
	require.Equal(t, agent.PlanNodeID, audit.Forbidden.NodeID)
}

// TestAuditOfATimeLimit: what was at work when the time was up has no outcome in the plan's favour, and the run's own timer ends
// the audit too.
func TestAuditOfATimeLimit(t *testing.T) {
	t.Parallel()
	s := start(t, byScenario{"time": func(ctx context.Context, _ model.Request) (model.Reply, error) {
		<-ctx.Done()
		return model.Reply{}, model.ContextError(ctx)
	}})
	s.limits = agent.Limits{Timeout: agent.Duration(2 * time.Second), OnLimit: agent.OnLimitFail}
	run := s.accept(t, agent.ModePlan, "scenario time", &agent.Plan{Nodes: []agent.Node{double("a", "1", nil),
		{ID: "say", Kind: agent.LLMNode, Prompt: "say", DependsOn: []string{"a"}}}})
	events := s.events(t, run)
	require.Equal(t, agent.RunFailed, events[len(events)-1].Type)
	audit := requireAudits(t, s, run)
	require.Equal(t, agent.CodeLimit, audit.Replayed.Error.Code)
	require.Equal(t, []string{"a"}, audit.Replayed.Finished)
}

// TestAuditNeedsAnEnd: a run that is at work has no end to compare with.
func TestAuditNeedsAnEnd(t *testing.T) {
	t.Parallel()
	atWork := make(chan struct{})
	s := start(t, byScenario{"open": func(ctx context.Context, _ model.Request) (model.Reply, error) {
		close(atWork)
		<-ctx.Done()
		return model.Reply{}, model.ContextError(ctx)
	}})
	run := s.accept(t, agent.ModePlan, "scenario open", nil)
	<-atWork
	_, err := replay.Ledger(t.Context(), s.ledger, run.RunID)
	require.ErrorContains(t, err, "audit run "+run.RunID+": the run has not ended")
	s.cancel(t, run)
	s.events(t, run)
	audit := requireAudits(t, s, run)
	require.Equal(t, agent.Cancelled, audit.Replayed.Status)

	s.stop()
	taken := s.accept(t, agent.ModePlan, "never started", nil)
	s.cancel(t, taken)
	require.Zero(t, requireAudits(t, s, taken).Commands)
	_, err = replay.Ledger(t.Context(), s.ledger, "00000000-0000-4000-8000-000000000000")
	var missing *agent.NotFoundError
	require.ErrorAs(t, err, &missing)
}

// TestAuditOfRandomCancellations: a run is cancelled at any moment, and its record still gives it again.
func TestAuditOfRandomCancellations(t *testing.T) {
	t.Parallel()
	s := start(t, byScenario{})
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(2, seed)) //nolint:gosec // the same plans every time
			run := s.accept(t, agent.ModePlan, "random", randomPlan(r))
			n := 4 + r.IntN(20)
			s.awaitLog(t, run, func(events []agent.Event) bool { return len(events) >= n || events[len(events)-1].Type.Terminal() })
			var ended *agent.ConflictError
			if _, err := s.ledger.RequestCancel(t.Context(), "local", run.RunID, "me", "enough"); err != nil {
				require.ErrorAs(t, err, &ended)
			}
			s.events(t, run)
			requireAudits(t, s, run)
		})
	}
}

// TestAuditOfDoubts: a command that was in doubt counts as what was said of it while the run was at work, and not as what was
// said later.
func TestAuditOfDoubts(t *testing.T) {
	t.Parallel()
	s := start(t, byScenario{}, mail(t))
	said := agent.Resolution{Outcome: agent.OutcomeCommitted, Result: []byte(`{"n": 5}`), By: "ada"}
	doubtful := func() agent.Run {
		t.Helper()
		run := s.accept(t, agent.ModePlan, "doubt", &agent.Plan{Nodes: []agent.Node{double("a", "1", func(n *agent.Node) { n.Tool = "mail" }),
			double("b", `{"$from": "/nodes/a/output/n"}`, nil)}})
		s.await(t, run, func(typ agent.EventType) bool { return typ == agent.CommandDoubtType })
		return run
	}
	run := doubtful()
	_, err := s.ledger.Resolve(t.Context(), "local", run.RunID, "a", said)
	require.NoError(t, err)
	s.events(t, run)
	require.Equal(t, []string{"a", "b", agent.AnswerNodeID}, requireAudits(t, s, run).Replayed.Finished)

	run = doubtful()
	s.cancel(t, run)
	s.events(t, run)
	require.Empty(t, requireAudits(t, s, run).Replayed.Finished)
	_, err = s.ledger.Resolve(t.Context(), "local", run.RunID, "a", said)
	require.NoError(t, err)
	require.Empty(t, requireAudits(t, s, run).Replayed.Finished)
}
