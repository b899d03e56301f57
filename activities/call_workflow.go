package activities

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"runledger/agent"
)

// Workflows executes workflows of others.
type Workflows interface {
	// Execute starts a workflow under an id, or finds the one that was started under it, at work or ended, and waits for its result: a
	// JSON value, null for none. A definite error means that it has ended without one, or can never be started.
	Execute(ctx context.Context, w agent.WorkflowStart) (json.RawMessage, error)
	// Cancel asks the workflow of an id to stop.
	Cancel(ctx context.Context, id string) error
}

// cancelTimeout bounds the word to a workflow that its run is being cancelled.
const cancelTimeout = 10 * time.Second

// CallWorkflow executes the workflow of a node. Its id is the command's idempotency key, so that whoever comes after a lost worker finds
// the execution that is there; a command that somebody let begin anew, after it had failed, starts another one.
func (a *Activities) CallWorkflow(ctx context.Context, in agent.WorkflowCall) (agent.Reply, error) {
	run, plan, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return agent.Reply{}, crossing(err)
	}
	node, ok := plan.Node(in.NodeID)
	if !ok {
		return agent.Reply{}, crossing(agent.Failed(agent.CodeInternal, "run %s: its plan has no node %s", in.RunID, in.NodeID))
	}
	args, fault, err := a.resolve(ctx, run, plan, node, node.Args)
	if err != nil {
		return agent.Reply{}, crossing(err)
	}
	start := agent.WorkflowStart{Name: node.Workflow, TaskQueue: node.TaskQueue, RunID: in.RunID, CommandID: in.CommandID}
	if fault == nil {
		start.Args, fault = workflowArgs(args)
	}
	switch {
	case fault != nil:
	case !run.Definition.MayStart(node.TaskQueue, node.Workflow):
		fault = agent.Failed(agent.CodeWorkflowFailed, "agent %s may not start workflow %s on task queue %s", run.Definition.Agent, node.Workflow, node.TaskQueue)
	case a.starts == nil:
		fault = agent.Failed(agent.CodeWorkflowFailed, "this worker cannot start workflows")
	}
	c := command{call: in.Call}
	input := recordable(args)
	c.begin = agent.Begin{Kind: agent.WorkflowCommand, Tool: node.Workflow, Effect: agent.Idempotent, Input: input,
		InputHash: inputHash(string(agent.WorkflowCommand), node.TaskQueue, node.Workflow, input)}
	if in.Opens {
		c.begin.Node = &agent.NodeStartedData{Kind: agent.WorkflowNode, Tool: node.Workflow, Index: in.NodeIndex}
	}
	c.asked.Agent = run.Definition.Agent
	c.effect = func(ctx context.Context, d dispatch) (effectResult, error) {
		if fault != nil {
			return effectResult{}, fault
		}
		start := start
		if start.ID = d.key; d.base > 0 {
			start.ID += "@" + strconv.Itoa(d.base+1)
		}
		result, err := a.starts.Execute(ctx, start)
		if err != nil {
			if errors.Is(context.Cause(ctx), errCancelled) {
				a.cancelWorkflow(context.WithoutCancel(ctx), start.ID)
			}
			return effectResult{}, err
		}
		return effectResult{result: result, event: agent.CommandCommittedData{Kind: agent.WorkflowCommand, Tool: node.Workflow, Output: agent.ShowValue(result)}}, nil
	}
	row, err := a.pass(ctx, c)
	if err != nil {
		return agent.Reply{}, err
	}
	return ReplyOf(&row), nil
}

// cancelWorkflow tells a workflow that nobody waits for it any more. One that does not hear of it goes on; its result is not used.
func (a *Activities) cancelWorkflow(ctx context.Context, id string) {
	ctx, stop := context.WithTimeout(ctx, cancelTimeout)
	defer stop()
	if err := a.starts.Cancel(ctx, id); err != nil {
		a.log.WarnContext(ctx, "a workflow could not be asked to stop", "workflow_id", id, "error", err)
	}
}

// workflowArgs are the arguments of a workflow: the elements of a list, one for an object, none where there are none.
func workflowArgs(args json.RawMessage) (list []json.RawMessage, err error) {
	if len(args) == 0 || string(args) == "null" {
		return nil, nil
	}
	if args[0] != '[' {
		return []json.RawMessage{args}, nil
	}
	if err := json.Unmarshal(args, &list); err != nil {
		return nil, agent.Failed(agent.CodeInvalidArguments, "arguments of a workflow: %w", err)
	}
	return list, nil
}
