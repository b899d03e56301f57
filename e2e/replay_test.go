package e2e_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	temporal "go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/internal/stacktest"
)

// TestReplayCommand replays what real servers recorded: by id and by age, and a run of another program's making that diverges.
func TestReplayCommand(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	planned := c.Post(t, object{"input": question})
	react := c.Post(t, object{"input": question, "mode": "react"})
	c.Finished(t, planned.RunID)
	c.Finished(t, react.RunID)

	lines, code := s.Runledger(t, "replay", "--run", planned.RunID)
	require.Zero(t, code, lines)
	require.Regexp(t, `^`+planned.RunID+`  \d+ events  ok$`, lines[0])
	require.Equal(t, []string{"1 replayed, 0 diverged"}, lines[1:])

	// Temporal lists what it runs a moment after it has started it.
	require.Eventually(t, func() bool {
		lines, code = s.Runledger(t, "replay", "--since", "1h")
		return len(lines) == 3
	}, stacktest.Patience, 1)
	require.Zero(t, code, lines)
	require.Equal(t, "2 replayed, 0 diverged", lines[2])
	for _, id := range []string{planned.RunID, react.RunID} {
		require.Contains(t, lines[0]+lines[1], id+"  ")
	}

	lines, code = s.Runledger(t, "replay", "--run", react.RunID, "--ledger")
	require.Zero(t, code, lines)
	require.Equal(t, []string{react.RunID + "  4 commands  ok: completed", "1 replayed, 0 diverged"}, lines)

	lines, code = s.Runledger(t, "replay", "--run", uuid.NewString(), "--ledger")
	require.Equal(t, 1, code)
	require.Contains(t, lines[0], "cannot be audited")

	lines, code = s.Runledger(t, "replay", "--run", uuid.NewString())
	require.Equal(t, 1, code)
	require.Contains(t, lines[0], "cannot be read")

	lines, code = s.Runledger(t, "replay", "--file", "../workflows/testdata/histories-bad/wrong_order.json")
	require.Equal(t, 3, code)
	require.Contains(t, lines[0], "diverges at event 18: the history has ActivityTaskScheduled CallModel (llm - node answer); the code wanted ScheduleActivityTask CallTool")

	other := s.foreignRun(t)
	require.Eventually(t, func() bool {
		lines, code = s.Runledger(t, "replay", "--since", "1h")
		return len(lines) == 4
	}, stacktest.Patience, 1)
	require.Equal(t, 3, code)
	require.Equal(t, "3 replayed, 1 diverged", lines[3])
	require.Regexp(t, `^`+other+`  \d+ events  diverges at event 5: the history has WorkflowExecutionCompleted; the code wanted `, lines[0], "the newest comes first")
}

// foreignRun is an execution under the name of ours that did something else.
func (s *servers) foreignRun(t testing.TB) (runID string) {
	t.Helper()
	c, err := temporal.Dial(temporal.Options{HostPort: s.Temporal.Address(), Namespace: s.Temporal.Namespace()})
	require.NoError(t, err)
	defer c.Close()
	w := sdkworker.New(c, "foreign", sdkworker.Options{})
	w.RegisterWorkflowWithOptions(func(workflow.Context, agent.RunInput) (agent.RunOutput, error) {
		return agent.RunOutput{Status: agent.Completed, Sequence: 3}, nil
	}, workflow.RegisterOptions{Name: agent.WorkflowName})
	require.NoError(t, w.Start())
	defer w.Stop()
	in := agent.RunInput{RunID: uuid.NewString(), Epoch: 1, Limits: agent.DefaultLimits()}
	run, err := c.ExecuteWorkflow(t.Context(), temporal.StartWorkflowOptions{ID: in.RunID, TaskQueue: "foreign"}, agent.WorkflowName, in)
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))
	return in.RunID
}
