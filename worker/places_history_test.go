package worker_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// TestHistoryOfPlaces records what nodes do that were parked and go on, more of them than may be at work. places_before.json was
// recorded with the workflow of before they waited for their places; it is not recorded again.
func TestHistoryOfPlaces(t *testing.T) {
	t.Parallel()
	slow := &patient{atWork: make(chan string, 8), letGo: make(chan struct{})}
	s := start(t, byScenario{"places": turnsOf("patient")}, slow.tool(t))
	node := func(id string, after ...string) agent.Node {
		return agent.Node{ID: id, Kind: agent.ToolNode, Tool: "patient", Args: json.RawMessage(`{"n": 1}`), DependsOn: after}
	}
	plan := &agent.Plan{Nodes: []agent.Node{node("a"), node("b"), node("c"), node("d"), node("e", "a", "b", "c", "d")}}
	run := s.acceptBy(t, agent.ModePlan, "scenario places", plan, func(a *agent.Acceptance) { a.Run.Definition.Limits.MaxParallel = 1 })
	require.Equal(t, "a", <-slow.atWork)
	_, err := s.ledger.Pause(t.Context(), "local", run.RunID, "ada", "look")
	require.NoError(t, err)
	slow.letGo <- struct{}{}
	s.awaitLog(t, run, has(agent.CommandCommitted, "a"))
	s.awaitQuiet(t, run)
	_, err = s.ledger.Unpause(t.Context(), "local", run.RunID, "ada", "")
	require.NoError(t, err)
	for _, id := range []string{"b", "c", "d", "e"} {
		require.Equal(t, id, <-slow.atWork)
		at, err := s.ledger.AtWork(t.Context(), run.RunID)
		require.NoError(t, err)
		require.Len(t, at, 1, "one at a time")
		slow.letGo <- struct{}{}
	}
	require.Contains(t, eventTypes(s.events(t, run)), agent.RunCompleted)
	history := s.history(t, run)
	requireClosed(t, history, agent.RunCompleted)
	requireReplays(t, history)
	requireAudits(t, s, run)
	s.requireVerifies(t, run)
	if *update {
		scrub(history)
		requireReplays(t, history)
		write(t, filepath.Join(historyDir, "places.json"), history)
	}
}
