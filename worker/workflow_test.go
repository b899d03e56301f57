package worker_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// orders starts a worker of somebody else's, with workflows that a plan may start, and gives its task queue.
func orders(t *testing.T, s *stack) string {
	t.Helper()
	queue := "orders-" + uuid.NewString()
	w := sdkworker.New(s.temporal, queue, sdkworker.Options{})
	w.RegisterWorkflowWithOptions(func(_ workflow.Context, in number, more int) (number, error) { return number{N: in.N + more}, nil },
		workflow.RegisterOptions{Name: "Add"})
	w.RegisterWorkflowWithOptions(func(workflow.Context) error {
		return temporal.NewNonRetryableApplicationError("out of stock", "stock", nil)
	}, workflow.RegisterOptions{Name: "Broken"})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) (number, error) {
		var n number
		workflow.NewSelector(ctx).AddReceive(workflow.GetSignalChannel(ctx, "go"), func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, &n) }).
			AddReceive(ctx.Done(), func(workflow.ReceiveChannel, bool) {}).Select(ctx)
		return n, ctx.Err()
	}, workflow.RegisterOptions{Name: "Hold"})
	w.RegisterWorkflowWithOptions(func(workflow.Context) error { return nil }, workflow.RegisterOptions{Name: "Nothing"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	return queue
}

func starts(id, queue, name, args string, more func(*agent.Node)) agent.Node {
	n := agent.Node{ID: id, Kind: agent.WorkflowNode, Workflow: name, TaskQueue: queue, Args: json.RawMessage(args)}
	if more != nil {
		more(&n)
	}
	return n
}

// R4-9: a node executes a workflow of somebody else's by its name and task queue, and others go on with its result.
func TestWorkflowNode(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	queue := orders(t, s)
	run := s.accept(t, agent.ModePlan, "ship it", &agent.Plan{Output: "c", Nodes: []agent.Node{double("a", "2", nil),
		starts("b", queue, "Add", `[{"n": {"$from": "/nodes/a/output/n"}}, 3]`, nil), starts("nothing", queue, "Nothing", `null`, nil),
		starts("bad", queue, "Broken", `null`, func(n *agent.Node) {
			n.OnError, n.Retry = agent.OnErrorContinue, &agent.Retry{MaxAttempts: 2}
		}),
		double("c", `{"$from": "/nodes/b/output/n"}`, nil, "bad", "nothing")}})
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	stands, err := s.ledger.Run(t.Context(), "local", run.RunID)
	require.NoError(t, err)
	require.JSONEq(t, `{"n": 14}`, *stands.FinalOutput)
	for id, want := range map[string]string{"b": `{"n":7}`, "nothing": `null`} {
		results, err := s.ledger.Results(t.Context(), run.RunID, []string{id})
		require.NoError(t, err)
		require.JSONEq(t, want, string(results[id].Result))
	}
	failed, err := s.ledger.Command(t.Context(), run.RunID, "bad~2")
	require.NoError(t, err)
	require.Equal(t, agent.CodeWorkflowFailed, failed.Error.Code)
	require.Contains(t, failed.Error.Message, "out of stock")
	for id, status := range map[string]enumspb.WorkflowExecutionStatus{"b": enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED,
		"bad": enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, "bad~2": enumspb.WORKFLOW_EXECUTION_STATUS_FAILED} {
		found, err := s.temporal.DescribeWorkflowExecution(t.Context(), run.RunID+"/"+id, "")
		require.NoError(t, err)
		require.Equal(t, status, found.WorkflowExecutionInfo.Status)
		require.Contains(t, found.WorkflowExecutionInfo.Memo.Fields, "runledger_run_id")
	}
	history := s.history(t, run)
	requireReplays(t, history)
	requireAudits(t, s, run)
	s.requireVerifies(t, run)
	if *update {
		scrub(history)
		requireReplays(t, history)
		write(t, filepath.Join(historyDir, "workflow.json"), history)
	}
}

// startedAs counts the executions of a workflow's id.
func (s *stack) startedAs(t *testing.T, id string) int {
	t.Helper()
	var ids int
	require.Eventually(t, func() bool { // the list comes a moment later than the execution
		found, err := s.temporal.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Query: "WorkflowId = '" + id + "'"})
		require.NoError(t, err)
		ids = len(found.Executions)
		return ids > 0
	}, time.Minute, 10*time.Millisecond)
	return ids
}

// atHold waits until a run's workflow is at work.
func (s *stack) atHold(t *testing.T, id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, err := s.temporal.DescribeWorkflowExecution(t.Context(), id, "")
		return err == nil && found.WorkflowExecutionInfo.Status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	}, time.Minute, 10*time.Millisecond)
}

// A worker that stops leaves the workflow at work; the next one finds it, and starts no other.
func TestWorkflowIsFoundAgain(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	queue := orders(t, s)
	run := s.accept(t, agent.ModePlan, "hold", &agent.Plan{Output: "hold", Nodes: []agent.Node{starts("hold", queue, "Hold", `null`, nil)}})
	id := run.RunID + "/hold"
	s.atHold(t, id)
	s.stop()
	require.NoError(t, s.temporal.SignalWorkflow(t.Context(), id, "", "go", number{N: 5}))
	s.run(t)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	require.Contains(t, types(events, "hold"), agent.AttemptDiscarded)
	stands, err := s.ledger.Run(t.Context(), "local", run.RunID)
	require.NoError(t, err)
	require.JSONEq(t, `{"n": 5}`, *stands.FinalOutput)
	require.Equal(t, 1, s.startedAs(t, id))
	s.requireVerifies(t, run)
}

// A run that is cancelled cancels what it waits for.
func TestWorkflowIsCancelledWithItsRun(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	queue := orders(t, s)
	run := s.accept(t, agent.ModePlan, "hold", &agent.Plan{Output: "hold", Nodes: []agent.Node{starts("hold", queue, "Hold", `null`, nil)}})
	id := run.RunID + "/hold"
	s.atHold(t, id)
	s.cancel(t, run)
	events := s.events(t, run)
	require.Equal(t, agent.RunCancelled, events[len(events)-1].Type)
	require.Contains(t, types(events, "hold"), agent.CommandAbortType)
	require.Eventually(t, func() bool {
		found, err := s.temporal.DescribeWorkflowExecution(t.Context(), id, "")
		return err == nil && found.WorkflowExecutionInfo.Status == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED
	}, time.Minute, 10*time.Millisecond)
}

// A resume of a run whose workflow has failed starts another execution; one that was lost with its execution goes on with the same.
func TestWorkflowAfterAResume(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	queue := orders(t, s)
	run := s.accept(t, agent.ModePlan, "ship", &agent.Plan{Output: "bad", Nodes: []agent.Node{starts("bad", queue, "Broken", `null`, nil)}})
	require.Equal(t, agent.RunFailed, last(s.ended(t, run, 1)).Type)
	s.resume(t, run)
	require.Equal(t, agent.RunFailed, last(s.ended(t, run, 2)).Type)
	require.Equal(t, 1, s.startedAs(t, run.RunID+"/bad"))
	require.Equal(t, 1, s.startedAs(t, run.RunID+"/bad@2"))

	held := s.accept(t, agent.ModePlan, "hold", &agent.Plan{Output: "hold", Nodes: []agent.Node{starts("hold", queue, "Hold", `null`, nil)}})
	id := held.RunID + "/hold"
	s.atHold(t, id)
	s.stop() // before the run's execution is ended, so that nobody hears of it
	require.NoError(t, s.temporal.TerminateWorkflow(t.Context(), held.RunID, "", "lost"))
	s.run(t)
	_, err := s.ledger.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: held.RunID, Lost: 1, By: "recover"})
	require.NoError(t, err)
	require.NoError(t, s.temporal.SignalWorkflow(t.Context(), id, "", "go", number{N: 6}))
	require.Equal(t, agent.RunCompleted, last(s.ended(t, held, 2)).Type)
	require.Equal(t, 1, s.startedAs(t, id))
}

func last(events []agent.Event) agent.Event { return events[len(events)-1] }
