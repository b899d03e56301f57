package worker

import (
	"context"
	"encoding/json"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"runledger/agent"
)

// starter executes workflows of others on the worker's Temporal, in its namespace.
type starter struct{ temporal client.Client }

// Execute starts a workflow, or finds the one under its id, and waits for it. Its memo says whose it is.
func (s starter) Execute(ctx context.Context, w agent.WorkflowStart) (json.RawMessage, error) {
	args := make([]any, len(w.Args))
	for i, arg := range w.Args {
		args[i] = arg
	}
	run, err := s.temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: w.ID, TaskQueue: w.TaskQueue,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		Memo:                  map[string]any{"runledger_run_id": w.RunID, "runledger_command_id": w.CommandID}}, w.Name, args...)
	var wrong *serviceerror.InvalidArgument
	switch {
	case errors.As(err, &wrong):
		return nil, agent.Failed(agent.CodeWorkflowFailed, "start workflow %s: %w", w.Name, err)
	case err != nil:
		return nil, agent.Transient(agent.CodeWorkflowFailed, "start workflow %s: %w", w.Name, err)
	}
	var result json.RawMessage
	err = run.Get(ctx, &result)
	var ended *temporal.WorkflowExecutionError
	switch {
	case errors.As(err, &ended):
		return nil, agent.Failed(agent.CodeWorkflowFailed, "workflow %s: %w", w.Name, ended.Unwrap())
	case ctx.Err() != nil:
		return nil, agent.Transient(agent.CodeWorkflowFailed, "wait for workflow %s: %w", w.Name, ctx.Err())
	case err != nil && unreadable(err):
		return nil, agent.Failed(agent.CodeWorkflowFailed, "workflow %s gave a result that is not JSON: %w", w.Name, err)
	case err != nil:
		return nil, agent.Transient(agent.CodeWorkflowFailed, "wait for workflow %s: %w", w.Name, err)
	case len(result) == 0:
		return json.RawMessage("null"), nil
	}
	return result, nil
}

// unreadable tells a result that cannot be decoded from a server that does not answer.
func unreadable(err error) bool {
	var service serviceerror.ServiceError
	return !errors.As(err, &service) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func (s starter) Cancel(ctx context.Context, id string) error {
	err := s.temporal.CancelWorkflow(ctx, id, "")
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) { // it has ended
		return nil
	}
	return err
}
