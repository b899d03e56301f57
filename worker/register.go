package worker

import (
	"context"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/activities"
	"runledger/agent"
	"runledger/workflows"
)

// Register binds the workflow and the activities to their names. Tests register the same with Temporal's test environment.
func Register(r worker.Registry, a *activities.Activities) {
	r.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
	bind(r, agent.CallPlanner, a.CallPlanner)
	bind(r, agent.CallModel, a.CallModel)
	bind(r, agent.CallTool, a.CallTool)
	bind(r, agent.Record, a.Record)
	bind(r, agent.SettleCommand, a.SettleCommand)
	bind(r, agent.Finish, a.Finish)
	bind(r, agent.RecordEffect, a.RecordEffect)
	bind(r, agent.CallHTTP, a.CallHTTP)
	bind(r, agent.Await, a.Await)
	bind(r, agent.Retrieve, a.Retrieve)
	bind(r, agent.CallWorkflow, a.CallWorkflow)
	bind(r, agent.Evaluate, a.Evaluate)
	bind(r, agent.Segment, a.Segment)
}

// bind does not compile when the function's types are not those that the name promises.
func bind[In, Out any](r worker.ActivityRegistry, name agent.Activity[In, Out], fn func(context.Context, In) (Out, error)) {
	r.RegisterActivityWithOptions(sized(name, fn), activity.RegisterOptions{Name: string(name)})
}
