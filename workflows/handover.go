package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// A history that grows too long is handed over: nothing more begins, what is at work ends, and a new execution of the same epoch
// goes on from the record. Commands that wait for somebody begin there once more, and wait on.

// watchLength stops the beginning of commands when Temporal suggests it, and tells the scheduler when nothing is at work.
func (e *execution) watchLength(ctx workflow.Context) {
	if workflow.Await(ctx, func() bool { return workflow.GetInfo(ctx).GetContinueAsNewSuggested() && e.news != nil && !e.over }) != nil {
		return
	}
	e.handing = true
	if workflow.Await(ctx, func() bool { return e.busy == 0 }) == nil {
		e.news.Send(ctx, nodeNews{What: allAtRest})
	}
}

// goesOnElsewhere reports whether nodes are left for another execution.
func (e *execution) goesOnElsewhere() bool {
	return e.handing && (e.working != "" || e.nextNode() >= 0)
}

// handsOver reports whether the execution has come to rest for another one, and not to its end.
func (e *execution) handsOver(ctx workflow.Context, failure *agent.Error) bool {
	return failure == nil && e.replaced == nil && e.forbidden == nil && ctx.Err() == nil && e.plan != nil && refusedEffect(ctx) == nil && e.goesOnElsewhere()
}

// handOver writes what only this execution knows, and continues it as a new one.
func (e *execution) handOver(ctx workflow.Context) (agent.RunOutput, error) {
	e.over = true
	e.stopClock(ctx)
	believed := e.state
	call := agent.RecordCall{Scope: e.scope(), HandOver: &believed}
	reply, err := do(ctx, agent.Record, call, housekeeping("hand over to a new execution"))
	if err == nil {
		e.acknowledge(call.Facts)
	}
	e.drain()
	if ctx.Err() != nil {
		return e.finish(ctx, nil)
	}
	if err != nil {
		reason := asAgentError(err)
		if reason.Code == agent.CodeStaleEpoch {
			return agent.RunOutput{}, temporal.NewNonRetryableApplicationError(reason.Message, string(reason.Code), nil)
		}
		return agent.RunOutput{}, err
	}
	if reply.State == nil { // by a worker that does not know of hand-overs
		return agent.RunOutput{}, temporal.NewNonRetryableApplicationError("the ledger gave no state to hand over", string(agent.CodeInternal), nil)
	}
	next := e.in
	next.Plan, next.State, next.Limits, next.Heard, next.PausedBy = e.plan, *reply.State, e.limits, e.heard, 0
	if e.paused() {
		next.PausedBy = e.pausedBy
	}
	handovers := 1
	if e.in.Carried != nil {
		handovers += e.in.Carried.Handovers
	}
	next.Carried = &agent.Carried{LastFact: e.lastFact, Schedule: e.schedule, Taken: e.taken, Spent: agent.Duration(e.spent), Calls: e.calls, Handovers: handovers}
	return agent.RunOutput{}, workflow.NewContinueAsNewError(ctx, agent.WorkflowName, next)
}
