package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/policy"
)

// do executes an activity and waits for it.
func do[In, Out any](ctx workflow.Context, name agent.Activity[In, Out], in In, opts workflow.ActivityOptions) (Out, error) {
	var out Out
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, opts), string(name), in).Get(ctx, &out)
	return out, err
}

func (e *execution) callPlanner(ctx workflow.Context, call agent.Call) agent.PlannerReply {
	var reply agent.PlannerReply
	asked := policy.Command{Kind: agent.PlanCommand, Effect: classOf(agent.PlanCommand)}
	if over, _ := e.admit(ctx, call, asked, "", e.commandRests); over != nil {
		return agent.PlannerReply{Reply: over.Reply}
	}
	settled := e.command(ctx, call, asked, "plan", e.commandRests, func(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions) (_ agent.Reply, err error) {
		reply, err = do(ctx, agent.CallPlanner, agent.PlannerCall{Call: call}, opts)
		return reply.Reply, err
	})
	if settled != nil {
		return agent.PlannerReply{Reply: settled.Reply, Plan: settled.Plan}
	}
	return reply
}

func (e *execution) callModel(ctx workflow.Context, in agent.ModelCall, summary string, rests rests) agent.ModelReply {
	var reply agent.ModelReply
	asked := policy.Command{Kind: agent.ModelCommand, Effect: classOf(agent.ModelCommand)}
	if over, _ := e.admit(ctx, in.Call, asked, "", rests); over != nil {
		return agent.ModelReply{Reply: over.Reply}
	}
	settled := e.command(ctx, in.Call, asked, summary, rests, func(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions) (_ agent.Reply, err error) {
		in.Call = call
		if in.Turn > 0 {
			in.Heard = e.heard // something may have been said while it was held back; a turn that has begun goes by the record
		}
		reply, err = do(ctx, agent.CallModel, in, opts)
		return reply.Reply, err
	})
	if settled != nil {
		return agent.ModelReply{Reply: settled.Reply, Tools: settled.Tools, GoesOn: settled.GoesOn, Said: settled.Said}
	}
	return reply
}

func (e *execution) await(ctx workflow.Context, in agent.WaitCall, summary string, rests rests) agent.Reply {
	var reply agent.Reply
	asked := policy.Command{Kind: agent.WaitCommand, Tool: in.Signal, Effect: classOf(agent.WaitCommand)}
	settled := e.command(ctx, in.Call, asked, summary, rests, func(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions) (_ agent.Reply, err error) {
		in.Call = call
		reply, err = do(ctx, agent.Await, in, opts)
		return reply, err
	})
	if settled != nil {
		return settled.Reply
	}
	return reply
}

func (e *execution) retrieve(ctx workflow.Context, in agent.RetrieveCall, summary string, rests rests) agent.Reply {
	var reply agent.Reply
	asked := policy.Command{Kind: agent.RetrievalCommand, Effect: classOf(agent.RetrievalCommand)}
	settled := e.command(ctx, in.Call, asked, summary, rests, func(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions) (_ agent.Reply, err error) {
		in.Call = call
		reply, err = do(ctx, agent.Retrieve, in, opts)
		return reply, err
	})
	if settled != nil {
		return settled.Reply
	}
	return reply
}

func (e *execution) callWorkflow(ctx workflow.Context, in agent.WorkflowCall, name, summary string, rests rests) agent.Reply {
	var reply agent.Reply
	asked := policy.Command{Kind: agent.WorkflowCommand, Tool: name, Effect: classOf(agent.WorkflowCommand)}
	settled := e.command(ctx, in.Call, asked, summary, rests, func(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions) (_ agent.Reply, err error) {
		in.Call = call
		reply, err = do(ctx, agent.CallWorkflow, in, opts)
		return reply, err
	})
	if settled != nil {
		return settled.Reply
	}
	return reply
}

func (e *execution) callTool(ctx workflow.Context, in agent.ToolCall, request agent.ToolRequest, summary string, rests rests) agent.Reply {
	var reply agent.Reply
	asked := policy.Command{Kind: agent.ToolCommand, Tool: in.Tool, Effect: request.Effect}
	over, leave := e.admit(ctx, in.Call, asked, request.Digest, rests)
	if over != nil {
		return over.Reply
	}
	defer leave()
	settled := e.command(ctx, in.Call, asked, summary, rests, func(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions) (_ agent.Reply, err error) {
		in.Call = call
		reply, err = do(ctx, agent.CallTool, in, opts)
		return reply, err
	})
	if settled != nil {
		return settled.Reply
	}
	return reply
}

// execute schedules the activity of a command once.
type execute func(workflow.Context, agent.Call, workflow.ActivityOptions) (agent.Reply, error)

// command asks the policy, schedules a command's activity and waits for its outcome. A command in doubt is scheduled again
// when somebody has resolved it: the gate knows what that means for it. A nil result means that the activity gave its reply;
// otherwise the activity ended in an error and the result is what became of the command.
func (e *execution) command(ctx workflow.Context, call agent.Call, asked policy.Command, summary string, rests rests, execute execute) *agent.SettleReply {
	if forbidden := e.permit(&call, asked); forbidden != nil {
		e.forbidden = forbidden
		e.cancel()
		return unbegun(call, forbidden.Message)
	}
	opts := effectOptions(call, summary)
	for {
		news := ofCommand(call.CommandID)
		if asked.Kind == agent.WaitCommand {
			opts, news = housekeeping(summary), ofInput(asked.Tool)
		}
		seen := e.told[news]
		if told, ok := e.ahead[call.CommandID]; ok {
			seen = told.seen
		}
		reply, settled := e.decided(ctx, call, opts, rests, execute)
		goesOn := true
		switch reply.Outcome {
		case agent.OutcomeInDoubt:
			e.leavesWaiting(call.CommandID, true)
			goesOn = e.awaitResolution(ctx, call, reply.DispatchNo, rests)
		case agent.OutcomeWaiting:
			e.leavesWaiting(call.CommandID, false)
			goesOn = e.awaitNews(ctx, call, reply.Awaits, news, seen, rests)
		default:
			if reply.Sequence > 0 { // else it was given up, and the record has it as before
				e.decides(call.CommandID)
			}
			e.tally(asked.Kind, reply)
			return settled
		}
		if !goesOn {
			return unbegun(call, "the run was stopped while the command waited")
		}
	}
}

// tally counts what a command has used. What was decided before this execution is in the state that it began with.
func (e *execution) tally(kind agent.CommandKind, reply agent.Reply) {
	if reply.Sequence <= e.in.State.Sequence || reply.Outcome != agent.OutcomeCommitted && reply.Outcome != agent.OutcomeFailed {
		return
	}
	e.moved = true
	if kind == agent.ToolCommand {
		e.state.ToolCalls++
	}
	e.state.Tokens += reply.Tokens
}

// decided schedules a command until something is on record of it, or the run is stopped.
func (e *execution) decided(ctx workflow.Context, call agent.Call, opts workflow.ActivityOptions, rests rests, execute execute) (agent.Reply, *agent.SettleReply) {
	end := func(settled *agent.SettleReply) (agent.Reply, *agent.SettleReply) { return settled.Reply, settled }
	if told, ok := e.ahead[call.CommandID]; ok {
		delete(e.ahead, call.CommandID)
		e.began(call)
		return end(&agent.SettleReply{Reply: told.reply})
	}
	for fences := 0; ; fences++ {
		if !e.hold(ctx, rests) {
			return end(unbegun(call, "the run was cancelled before it began"))
		}
		e.schedule++
		call.Schedule, call.Scope, call.Until = e.schedule, e.scope(), e.until(ctx)
		limit := e.limits.Timeout
		reply, err := execute(ctx, call, opts)
		if err == nil {
			e.acknowledge(call.Facts)
			e.began(call)
			return reply, nil
		}
		reason := asAgentError(err)
		if reason.Code == agent.CodePaused { // its signal is on the way
			e.pausedBy = max(e.pausedBy, pauseOf(err))
			fences--
			continue
		}
		if reason.Code == agent.CodeOutOfTime { // by the ledger's clock, which may be ahead
			_ = workflow.Await(ctx, func() bool { return e.timeUp || e.limits.Timeout != limit })
			fences--
			continue
		}
		if reason.Code == agent.CodeStaleEpoch {
			e.replaced = reason
			e.cancel()
			return end(unbegun(call, reason.Message))
		}
		// A mismatch is settled like any other error: what is on record by now, committed perhaps by the attempt before a deploy,
		// stands.
		settled, err := e.settle(ctx, call, reason)
		if err != nil {
			cause := asAgentError(err)
			if cause.Code != agent.CodeStaleEpoch {
				return end(&agent.SettleReply{Reply: agent.Reply{Outcome: agent.OutcomeFailed, Error: cause}})
			}
			e.replaced = cause
			e.cancel()
			return end(unbegun(call, cause.Message))
		}
		// What waits is asked about again, up to the fences: or not at all when the run is being cancelled and the signal on its way.
		if settled.Outcome != agent.OutcomeUnknown && settled.Outcome != agent.OutcomeWaiting {
			e.began(call)
			return end(&settled)
		}
		if reason.Code == agent.CodeCancelled {
			untilStopped(ctx) // the record knows of the cancellation already; its signal is on the way
			continue
		}
		if fences == maxFences || reason.Code == agent.CodeMismatch {
			reason.NodeID, reason.CommandID = call.NodeID, call.CommandID
			return end(&agent.SettleReply{Reply: agent.Reply{Outcome: agent.OutcomeFailed, Error: reason}})
		}
	}
}

// began notes that a command, and with it its node, is on record.
func (e *execution) began(call agent.Call) {
	if call.NodeID != agent.PlanNodeID {
		e.state.Started = e.state.Started.With(call.NodeIndex)
	}
}

// settle asks what became of a command whose activity ended in an error. It tries without limit, and a cancellation of the
// run does not stop it.
func (e *execution) settle(ctx workflow.Context, call agent.Call, reason *agent.Error) (agent.SettleReply, error) {
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	call.Scope = e.scope()
	reply, err := do(ctx, agent.SettleCommand, agent.SettleCall{Call: call, Reason: reason}, settling(call.CommandID))
	if err == nil {
		e.acknowledge(call.Facts)
	}
	return reply, err
}

// record writes facts and a status when no command is due to carry them.
func (e *execution) record(ctx workflow.Context, status agent.Status) {
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	e.recording++
	defer func() { e.recording-- }()
	call := agent.RecordCall{Scope: e.scope(), Status: status}
	if _, err := do(ctx, agent.Record, call, housekeeping("record facts")); err != nil {
		e.logger.Warn("record failed; the facts go with the next activity", "run_id", e.in.RunID, "error", err)
		return
	}
	e.acknowledge(call.Facts)
}

// unbegun is the outcome of a command that this execution does not schedule any more; nothing is on record of it, as far as
// the execution knows.
func unbegun(call agent.Call, why string) *agent.SettleReply {
	return &agent.SettleReply{Reply: agent.Reply{Outcome: agent.OutcomeUnknown,
		Error: &agent.Error{Code: agent.CodeCancelled, NodeID: call.NodeID, CommandID: call.CommandID, Message: why}}}
}

// pauseOf is the intent that has paused the run, from the error of an activity that met the pause.
func pauseOf(err error) (intent int64) {
	var app *temporal.ApplicationError
	if errors.As(err, &app) && app.HasDetails() && app.Details(&intent) != nil {
		return 0
	}
	return intent
}

// asAgentError reads the stable code of an activity's error: the type of its application error.
func asAgentError(err error) *agent.Error {
	var app *temporal.ApplicationError
	var timeout *temporal.TimeoutError
	switch {
	case errors.As(err, &app):
		return (&agent.Error{Code: agent.Code(app.Type()), Message: app.Message()}).Cut(agent.MaxToldErrorBytes)
	case temporal.IsCanceledError(err):
		return &agent.Error{Code: agent.CodeCancelled, Message: "the run was cancelled"}
	case errors.As(err, &timeout):
		return &agent.Error{Code: agent.CodeTimeout, Message: timeout.Error()}
	}
	return (&agent.Error{Code: agent.CodeInternal, Message: err.Error()}).Cut(agent.MaxToldErrorBytes)
}
