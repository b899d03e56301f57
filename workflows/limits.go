package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/policy"
)

// admit keeps a command from being scheduled at which the run meets a limit: it parks until there is more, or gives the failure
// that the command ends with. A nil result means that it may be scheduled; it counts as at work until leave is called. digest is short
// for what a loop calls a tool with, "" for every other command.
func (e *execution) admit(ctx workflow.Context, call agent.Call, asked policy.Command, digest string, rests rests) (refused *agent.SettleReply, leave func()) {
	if _, told := e.ahead[call.CommandID]; told { // it was admitted with its segment, and counts since then
		e.repeat(call, digest)
		return nil, func() { e.calling-- }
	}
	if !e.walked(call) {
		refused = e.exceed(call, e.limit(ctx, rests, func() (agent.LimitReachedData, bool) {
			if d, over := e.budget(asked); over {
				return d, true
			}
			return e.repetition(asked.Tool, digest)
		}))
	}
	if refused != nil || asked.Kind != agent.ToolCommand {
		return refused, func() {}
	}
	e.repeat(call, digest) // without waiting, so that no other one is admitted before this one counts
	if e.walked(call) && !atWorkBefore(e.in.State, call.CommandID) {
		return nil, func() {} // it has its outcome, and was counted with that
	}
	e.due = slices.DeleteFunc(e.due, func(id string) bool { return id == call.CommandID })
	e.calling++
	return nil, func() { e.calling-- }
}

// budget is what the run has used of what a command would use more of.
func (e *execution) budget(asked policy.Command) (d agent.LimitReachedData, over bool) {
	switch asked.Kind {
	case agent.PlanCommand, agent.ModelCommand:
		d = agent.LimitReachedData{Limit: agent.LimitTokens, Used: int64(e.state.Tokens), Most: int64(e.limits.MaxTokens)}
	case agent.ToolCommand:
		d = agent.LimitReachedData{Limit: agent.LimitToolCalls, Used: int64(e.state.ToolCalls + e.calling + len(e.due)), Most: int64(e.limits.MaxToolCalls), Tool: asked.Tool}
	default:
		return d, false
	}
	return d, d.Most > 0 && d.Used >= d.Most
}

// repetition tells how often a loop has called the same tool with the same arguments, so that it does not do so for ever.
func (e *execution) repetition(tool, digest string) (d agent.LimitReachedData, over bool) {
	if digest == "" {
		return d, false
	}
	d = agent.LimitReachedData{Limit: agent.LimitRepeats, Used: int64(e.calledBefore(digest)), Most: int64(e.limits.MaxRepeats), Tool: tool}
	return d, d.Most > 0 && d.Used >= d.Most
}

// walked reports whether a command was let begin by an execution of an earlier epoch, whose last turn this one walks through once
// more: it meets what is on record of it. Calls of that turn that had not begun are held to the limits like all others. A hand-over
// tells which calls of its turn are through: those are not walked through.
func (e *execution) walked(call agent.Call) bool {
	return call.CommandID == agent.TurnCommandID(call.NodeID, e.in.State.Turns[call.NodeID]) ||
		e.in.Carried == nil && slices.Contains(e.in.Walked, call.CommandID)
}

// atWorkBefore reports whether a command had begun, and had no outcome, when the execution began.
func atWorkBefore(s agent.State, commandID string) bool {
	return slices.Contains(s.Open, commandID) || slices.Contains(s.InDoubt, commandID)
}

// countDue has the calls that are due count. Executions from before they did go on without.
func (e *execution) countDue(ctx workflow.Context) {
	if len(e.due) > 0 && workflow.GetVersion(ctx, changeDue, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		e.due = nil
	}
}

// changeDue names in histories that calls which were at work before a resume count at once.
const changeDue = "count-due"

// exceed ends the run, and with it a command that is not scheduled because of a limit.
func (e *execution) exceed(call agent.Call, failure *agent.Error) *agent.SettleReply {
	switch {
	case failure == nil:
		return nil
	case failure.Code == agent.CodeCancelled:
		return unbegun(call, failure.Message)
	}
	if e.exceeded == nil {
		failed := *failure
		failed.NodeID, failed.CommandID = call.NodeID, call.CommandID
		e.exceeded = &failed
		e.cancel()
	}
	return unbegun(call, failure.Message)
}

// repeat counts a call for the loop guard.
func (e *execution) repeat(call agent.Call, digest string) {
	if _, k, ok := agent.TurnTool(call.CommandID); ok && e.loops[call.NodeID] != nil {
		e.loops[call.NodeID].counted = e.loops[call.NodeID].counted.With(k)
	}
	e.remember(digest)
}

// remember counts a call of a loop.
func (e *execution) remember(digest string) {
	if digest != "" {
		e.calls = agent.RememberCall(e.calls, digest)
	}
}

// calledBefore tells how often a call was made, as far as that is remembered.
func (e *execution) calledBefore(digest string) int {
	if at := slices.IndexFunc(e.calls, func(c agent.RepeatedCall) bool { return c.Digest == digest }); at >= 0 {
		return e.calls[at].Count
	}
	return 0
}

// limit holds a run to a limit. Where it is over, the run parks until it is raised, or the result is the failure that it ends
// with; CANCELLED means that it was stopped while it was parked.
func (e *execution) limit(ctx workflow.Context, rests rests, over func() (agent.LimitReachedData, bool)) *agent.Error {
	for {
		d, is := over()
		if !is {
			return nil
		}
		if !e.reach(ctx, d) {
			return agent.Failed(agent.CodeLimit, "%s", beyond(d))
		}
		// Another limit that is not enough either is told of.
		goesOn := func() bool { d, is := over(); return !is || !slices.Contains(e.met, metLimit{d.Limit, d.Most}) }
		if !e.park(ctx, forLimit, rests, goesOn) {
			return &agent.Error{Code: agent.CodeCancelled, Message: "the run was stopped at a limit"}
		}
	}
}

// beyond says which limit a run has met, and where.
func beyond(d agent.LimitReachedData) string {
	switch d.Limit {
	case agent.LimitRepeats:
		return fmt.Sprintf("tool %s was called %d times with the same arguments: that is the run's limit max_repeats", d.Tool, d.Used)
	case agent.LimitTime:
		return fmt.Sprintf("the run took longer than its limit of %s (timeout)", time.Duration(d.Most)*time.Millisecond)
	}
	return fmt.Sprintf("the run has met its limit %s of %d", d.Limit, d.Most)
}

// reach tells that a limit was met, and reports whether the run parks at it. What parks the run is on record before it does.
func (e *execution) reach(ctx workflow.Context, d agent.LimitReachedData) (parks bool) {
	if e.limits.OnLimit == "" {
		return false // as runs did from before limit_reached was written
	}
	d.Parked = e.limits.OnLimit == agent.OnLimitPark
	if met := (metLimit{d.Limit, d.Most}); !slices.Contains(e.met, met) {
		e.met = append(e.met, met)
		e.fact(agent.LimitReachedType, "", d)
		if d.Parked {
			e.record(ctx, "")
		}
	}
	return d.Parked
}

// metLimit is a limit that was told of: each once, until it is raised.
type metLimit struct {
	name agent.LimitName
	most int64
}

// watchTime holds the run to the time that it may be at work. There is no workflow timeout: Temporal would end the run without a
// word in the ledger.
func (e *execution) watchTime(ctx workflow.Context) {
	if e.limits.OnLimit == "" {
		e.watchWallTime(ctx)
		return
	}
	if c := e.in.Carried; c != nil && e.limits.Timeout > 0 && e.spent >= time.Duration(e.limits.Timeout) {
		e.outOfTime(ctx, e.limits.Timeout) // as it was when it was handed over; nothing begins meanwhile
	}
	atWork := func() bool { return !e.atRest() && !e.timeUp && !e.leaving && e.limits.Timeout > 0 }
	for {
		if workflow.Await(ctx, atWork) != nil || ctx.Err() != nil { // Await looks at the condition first
			return
		}
		limit := e.limits.Timeout
		if e.spent >= time.Duration(limit) { // since an earlier execution, or a limit that was lowered
			e.outOfTime(ctx, limit)
			continue
		}
		timerCtx, stop := workflow.WithCancel(ctx)
		timer := workflow.NewTimerWithOptions(timerCtx, max(time.Millisecond, time.Duration(limit)-e.spent), workflow.TimerOptions{Summary: "the run's time limit"})
		e.workingSince = workflow.Now(ctx)
		err := workflow.Await(ctx, func() bool { return timer.IsReady() || !atWork() || e.limits.Timeout != limit })
		stopped := err != nil || ctx.Err() != nil
		stop()
		e.stopClock(ctx)
		if stopped {
			return
		}
	}
}

// until is when the run's time will be up if something is at work all the while, zero for never, or when the run ends then.
func (e *execution) until(ctx workflow.Context) time.Time {
	if e.limits.OnLimit != agent.OnLimitPark || e.limits.Timeout <= 0 {
		return time.Time{}
	}
	began := e.workingSince
	if began.IsZero() {
		began = workflow.Now(ctx)
	}
	return began.Add(time.Duration(e.limits.Timeout) - e.spent)
}

// stopClock takes the time since the clock was started into what is spent.
func (e *execution) stopClock(ctx workflow.Context) {
	if !e.workingSince.IsZero() {
		e.spent += workflow.Now(ctx).Sub(e.workingSince)
		e.workingSince = time.Time{}
	}
}

// outOfTime parks the run at its time limit, until that is raised, or ends it.
func (e *execution) outOfTime(ctx workflow.Context, limit agent.Duration) {
	d := agent.LimitReachedData{Limit: agent.LimitTime, Used: e.spent.Milliseconds(), Most: time.Duration(limit).Milliseconds()}
	e.timeUp = true // what is at work ends; nothing begins
	if !e.reach(ctx, d) {
		e.tooLong(d)
		return
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		_ = workflow.Await(ctx, func() bool { return time.Duration(e.limits.Timeout) > e.spent })
		e.timeUp = false
	})
}

func (e *execution) tooLong(d agent.LimitReachedData) {
	e.exceeded = agent.Failed(agent.CodeLimit, "%s", beyond(d))
	e.cancel()
}

// watchWallTime ends the run after a time from its start, whatever it waits for, as runs were held to from before limits could
// park them.
func (e *execution) watchWallTime(ctx workflow.Context) {
	if e.limits.Timeout <= 0 {
		return
	}
	e.workingSince = workflow.Now(ctx)
	timer := workflow.NewTimerWithOptions(ctx, max(time.Millisecond, time.Duration(e.limits.Timeout)-e.spent), workflow.TimerOptions{Summary: "the run's time limit"})
	if timer.Get(ctx, nil) == nil {
		e.tooLong(agent.LimitReachedData{Limit: agent.LimitTime, Most: time.Duration(e.limits.Timeout).Milliseconds()})
	}
}
