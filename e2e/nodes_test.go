package e2e_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	sdkclient "go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/internal/stacktest"
)

// orders is a worker of somebody else's on the same Temporal. Its workflow ShipOrder waits for the word "go".
func (s *servers) orders(t testing.TB) (c sdkclient.Client, started *atomic.Int64) {
	t.Helper()
	c, err := sdkclient.Dial(sdkclient.Options{HostPort: s.Temporal.Address(), Namespace: s.Temporal.Namespace()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	started = new(atomic.Int64)
	w := sdkworker.New(c, "orders", sdkworker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, in struct {
		Order int `json:"order"`
	},
	) (map[string]int, error) {
		if !workflow.IsReplaying(ctx) {
			started.Add(1)
		}
		workflow.GetSignalChannel(ctx, "go").Receive(ctx, nil)
		return map[string]int{"shipped": in.Order}, nil
	}, workflow.RegisterOptions{Name: "ShipOrder"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	return c, started
}

// R4-9: a plan with a workflow of somebody else's, whose worker is killed while that is at work, starts it once, and goes on by its
// result; a branch whose condition does not hold is skipped.
func TestWorkflowNodeAndConditions(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, strings.Replace(localConfig, `tools: ["*"], limits`, `tools: ["*"], workflows: ["orders/*"], limits`, 1)), startEffects(t)
	temporal, started := s.orders(t)
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	shipped, lost := fx.send("shipped", "/do/shipped"), fx.send("lost", "/do/lost")
	shipped["when"], lost["when"] = "nodes.ship.output.shipped == 7", "nodes.ship.output.shipped != 7"
	run := c.Post(t, object{"input": "ship it", "plan": object{"nodes": []any{
		object{"id": "ship", "kind": "workflow", "workflow": "ShipOrder", "task_queue": "orders", "args": object{"order": 7}}, shipped, lost,
		fx.send("told", "/do/told", "shipped", "lost")}}})
	id := run.RunID + "/ship"
	require.Eventually(t, func() bool { return started.Load() == 1 }, stacktest.Patience, stacktest.Frequency)
	worker.Kill(t)
	require.NoError(t, temporal.SignalWorkflow(t.Context(), id, "", "go", nil))
	s.StartWorker(t)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.EqualValues(t, 1, started.Load())
	require.Equal(t, []int{1, 0, 1}, []int{fx.count(run.RunID + "/shipped"), fx.count(run.RunID + "/lost"), fx.count(run.RunID + "/told")})
	require.Equal(t, 1, stacktest.Count(frames, agent.NodeSkipped))
	s.RequireSound(t, c.Client, run.RunID, 1)
}
