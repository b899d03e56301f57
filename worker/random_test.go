package worker_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// randomPlan is a plan whose tools answer at once, so that many things happen in one workflow task. Some fail.
func randomPlan(r *rand.Rand) *agent.Plan {
	p := &agent.Plan{}
	for i := range 2 + r.IntN(7) {
		n := double(fmt.Sprintf("n%d", i), fmt.Sprint(i), nil)
		for k := range i {
			if r.IntN(3) == 0 {
				n.DependsOn = append(n.DependsOn, fmt.Sprintf("n%d", k))
			}
		}
		if r.IntN(4) == 0 {
			n.Args = json.RawMessage(`{"n": 13}`) // bad luck
		}
		n.OnError = []agent.OnError{agent.OnErrorFail, agent.OnErrorContinue, agent.OnErrorSkip, agent.OnErrorSkip}[r.IntN(4)]
		p.Nodes = append(p.Nodes, n)
	}
	return p
}

// TestRandomPlans holds plans on real servers to their rules, and their histories and their ledger to the workflow.
func TestRandomPlans(t *testing.T) {
	t.Parallel()
	s := start(t, byScenario{})
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			run := s.accept(t, agent.ModePlan, "random", randomPlan(rand.New(rand.NewPCG(1, seed)))) //nolint:gosec // the same plans every time
			events := s.events(t, run)
			_, plan, err := s.ledger.WorkerRun(t.Context(), run.RunID)
			require.NoError(t, err)
			requireRules(t, plan, events)
			history := s.history(t, run)
			requireClosed(t, history, events[len(events)-1].Type)
			requireReplays(t, history)
			requireAudits(t, s, run)
			s.requireVerifies(t, run)
		})
	}
}

// requireRules holds a record to its plan: no command twice, no node before those it depends on have ended, none after one
// that the plan does not go on without, and one end of the run that fits.
func requireRules(t testing.TB, plan *agent.Plan, events []agent.Event) {
	t.Helper()
	ended, failed, committed := map[string]bool{}, map[string]bool{}, map[string]bool{}
	fatal := false
	for i, e := range events {
		require.EqualValues(t, i+1, e.Sequence)
		switch e.Type {
		case agent.NodeStarted:
			node, _ := plan.Node(e.NodeID)
			for _, dep := range node.DependsOn {
				require.True(t, ended[dep], "%s begins after %s has ended", e.NodeID, dep)
				on, _ := plan.Node(dep)
				require.False(t, failed[dep] && on.OnError == agent.OnErrorFail, "%s does not begin after %s has failed", e.NodeID, dep)
			}
		case agent.CommandCommitted:
			require.False(t, committed[e.CommandID])
			committed[e.CommandID] = true
		case agent.NodeFinished, agent.NodeSkipped, agent.NodeFailed:
			require.False(t, ended[e.NodeID], "%s ends once", e.NodeID)
			ended[e.NodeID], failed[e.NodeID] = true, e.Type == agent.NodeFailed
			node, _ := plan.Node(e.NodeID)
			fatal = fatal || e.Type == agent.NodeFailed && node.OnError == agent.OnErrorFail
		default:
		}
		require.Equal(t, i == len(events)-1, e.Type.Terminal())
	}
	last := plan.Nodes[len(plan.Nodes)-1].ID
	if fatal || !committed[last] {
		require.Equal(t, agent.RunFailed, events[len(events)-1].Type)
		return
	}
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	require.False(t, slices.ContainsFunc(plan.Nodes, func(n agent.Node) bool { return !ended[n.ID] }), "every node has an end")
	state, err := agent.Fold(events)
	require.NoError(t, err)
	require.Equal(t, agent.Completed, state.Status)
	require.Empty(t, state.Open)
}
