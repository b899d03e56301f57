package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	temporal "go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/internal/stacktest"
)

// TestLongRunsOutliveTheirWorkers: a run that is handed over again and again loses its worker at several hand-overs, is paused
// over one, and finishes; what was not at work when a worker was lost has happened once.
func TestLongRunsOutliveTheirWorkers(t *testing.T) {
	t.Parallel()
	const length, width, kills = 50, 2, 3
	s, fx := startServers(t, localConfig, "limit.historyCount.suggestContinueAsNew=60"), startEffects(t)
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	var nodes []any
	for i := range length {
		for k := range width {
			id := fmt.Sprintf("n%d_%d", k, i)
			var after []string
			if i > 0 {
				after = []string{fmt.Sprintf("n%d_%d", k, i-1)}
			}
			nodes = append(nodes, fx.get(id, "/do/"+id, after...))
		}
	}
	run := c.Post(t, object{"input": "many", "plan": object{"nodes": nodes}})
	watch, err := temporal.Dial(temporal.Options{HostPort: s.Temporal.Address(), Namespace: s.Temporal.Namespace()})
	require.NoError(t, err)
	defer watch.Close()
	newest := func() string {
		described, err := watch.DescribeWorkflowExecution(t.Context(), run.RunID, "")
		if err != nil {
			return "" // it has not been started yet
		}
		return described.GetWorkflowExecutionInfo().GetExecution().GetRunId()
	}
	require.Eventually(t, func() bool { return newest() != "" }, stacktest.Patience, time.Millisecond)
	for range kills {
		before := newest()
		require.Eventually(t, func() bool { return newest() != before }, stacktest.Patience, time.Millisecond, "it is handed over")
		worker.Kill(t)
		worker = s.StartWorker(t)
	}
	store := s.open(t)
	_, err = store.Pause(t.Context(), agent.AnyOwner, run.RunID, "ada", "")
	require.NoError(t, err)
	c.ComesTo(t, run.RunID, agent.RunPaused)
	_, err = store.Unpause(t.Context(), agent.AnyOwner, run.RunID, "ada", "")
	require.NoError(t, err)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	stacktest.CheckOrder(t, frames)
	again := 0
	for i := range length {
		for k := range width {
			n := fx.count(fmt.Sprintf("%s/n%d_%d", run.RunID, k, i))
			require.Positive(t, n)
			again += n - 1
		}
	}
	require.LessOrEqual(t, again, kills*width, "only what was at work when its worker was lost")
	var v agent.Verification
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/verify", nil, &v))
	require.Greater(t, v.Temporal.HandOvers, kills)
	s.RequireSound(t, c.Client, run.RunID, v.Temporal.Executions)
}
