package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/workflows"
)

// Remind is a workflow of a user's that works for a node of a run. It takes the time and a name from the run's record.
func Remind(ctx workflow.Context, n workflows.Node) (string, error) {
	ctx = workflows.WithNode(ctx, n)
	fx := workflows.NewEffects(n)
	now, err := fx.Now(ctx)
	if err != nil {
		return "", err
	}
	id, err := fx.UUID(ctx)
	if err != nil {
		return "", err
	}
	return id + " at " + now.Add(24*time.Hour).Format(time.DateOnly), nil
}

// In a worker the activities are those of package worker; here a test has them.
func ExampleNewEffects() {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflow(Remind)
	env.RegisterActivityWithOptions(func(_ context.Context, in agent.EffectCall) (agent.EffectReply, error) {
		fmt.Println("record", in.CommandID)
		if in.Kind == agent.NowCommand {
			return agent.EffectReply{Value: agent.TimeValue(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))}, nil
		}
		return agent.EffectReply{Value: json.RawMessage(`"5f0c"`)}, nil
	}, activity.RegisterOptions{Name: string(agent.RecordEffect)})
	env.ExecuteWorkflow(Remind, workflows.Node{RunID: "run-1", Epoch: 1, NodeID: "remind"})
	var reminder string
	if err := env.GetWorkflowResult(&reminder); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(reminder)
	// Output:
	// record remind/now-1
	// record remind/uuid-1
	// 5f0c at 2026-01-02
}
