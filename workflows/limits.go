package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/policy"
)

// admit keeps a command from being scheduled at which the run meets a limit: it parks until there is more, or gives the failure
// that the command ends with. A nil result means that it may be scheduled.
func (e *execution) admit(ctx workflow.Context, call agent.Call, asked policy.Command, rests rests) *agent.SettleReply {
	if e.walked(call) {
		return nil
	}
	return e.exceed(call, e.limit(ctx, rests, func() (d agent.LimitReachedData, over bool) {
		switch asked.Kind {
		case agent.PlanCommand, agent.ModelCommand:
			d = agent.LimitReachedData{Limit: agent.LimitTokens, Used: int64(e.state.Tokens), Most: int64(e.limits.MaxTokens)}
		case agent.ToolCommand:
			d = agent.LimitReachedData{Limit: agent.LimitToolCalls, Used: int64(e.state.ToolCalls + e.calling), Most: int64(e.limits.MaxToolCalls), Tool: asked.Tool}
		default:
			return d, false
		}
		return d, d.Most > 0 && d.Used >= d.Most
	}))
}

// guardLoop keeps a loop from calling the same tool with the same arguments for ever.
func (e *execution) guardLoop(ctx workflow.Context, in agent.ToolCall, digest string, rests rests) *agent.SettleReply {
	if digest == "" {
		return nil
	}
	count := e.repeated(digest)
	if e.walked(in.Call) {
		return nil
	}
	return e.exceed(in.Call, e.limit(ctx, rests, func() (agent.LimitReachedData, bool) {
		most := e.limits.MaxRepeats
		return agent.LimitReachedData{Limit: agent.LimitRepeats, Used: int64(count), Most: int64(most), Tool: in.Tool}, most > 0 && count > most
	}))
}

// walked reports whether a command is of the turn that an execution of an earlier epoch was in. It walks through that once more,
// mostly for what is on record. A hand-over tells which tool calls of the turn are: those are not walked through.
func (e *execution) walked(call agent.Call) bool {
	last := e.in.State.Turns[call.NodeID]
	if last == 0 {
		return false
	}
	turn := agent.TurnCommandID(call.NodeID, last)
	model, _, ofTool := agent.TurnTool(call.CommandID)
	return call.CommandID == turn || ofTool && model == turn && e.in.Carried == nil
}

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

// maxRemembered bounds how many different calls the loop guard remembers.
const maxRemembered = 64

// repeated counts a call and tells how often it was made. Of many different calls only the last are remembered.
func (e *execution) repeated(digest string) int {
	call := agent.RepeatedCall{Digest: digest, Count: 1}
	if at := slices.IndexFunc(e.calls, func(c agent.RepeatedCall) bool { return c.Digest == digest }); at >= 0 {
		call.Count += e.calls[at].Count
		e.calls = slices.Delete(e.calls, at, at+1)
	}
	e.calls = append(e.calls, call)
	if n := len(e.calls) - maxRemembered; n > 0 {
		e.calls = slices.Delete(e.calls, 0, n)
	}
	return call.Count
}

// limit holds a run to a limit. Where it is over, the run parks until it is raised, or the result is the failure that it ends
// with; CANCELLED means that it was stopped while it was parked.
func (e *execution) limit(ctx workflow.Context, rests rests, over func() (agent.LimitReachedData, bool)) *agent.Error {
	for {
		d, is := over()
		if !is {
			return nil
		}
		if !e.reach(d) {
			return agent.Failed(agent.CodeLimit, "the run has met its limit %s of %d", d.Limit, d.Most)
		}
		if !e.park(ctx, forLimit, rests, func() bool { _, is := over(); return !is }) {
			return &agent.Error{Code: agent.CodeCancelled, Message: "the run was stopped at a limit"}
		}
	}
}

// reach tells that a limit was met, and reports whether the run parks at it.
func (e *execution) reach(d agent.LimitReachedData) (parks bool) {
	if e.limits.OnLimit == "" {
		return false // as runs did from before limit_reached was written
	}
	d.Parked = e.limits.OnLimit == agent.OnLimitPark
	if met := (metLimit{d.Limit, d.Most}); !slices.Contains(e.met, met) {
		e.met = append(e.met, met)
		e.fact(agent.LimitReachedType, "", d)
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
		timerCtx, stop := workflow.WithCancel(ctx)
		timer := workflow.NewTimerWithOptions(timerCtx, max(time.Millisecond, time.Duration(limit)-e.spent), workflow.TimerOptions{Summary: "the run's time limit"})
		e.workingSince = workflow.Now(ctx)
		err := workflow.Await(ctx, func() bool { return timer.IsReady() || !atWork() || e.limits.Timeout != limit })
		stopped := err != nil || ctx.Err() != nil
		over := !stopped && timer.IsReady()
		stop()
		e.stopClock(ctx)
		if stopped {
			return
		}
		if over && e.spent >= time.Duration(limit) {
			e.outOfTime(ctx, limit)
		}
	}
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
	if !e.reach(d) {
		e.tooLong()
		return
	}
	e.timeUp = true // what is at work ends; nothing begins
	workflow.Go(ctx, func(ctx workflow.Context) {
		_ = workflow.Await(ctx, func() bool { return time.Duration(e.limits.Timeout) > e.spent })
		e.timeUp = false
	})
}

func (e *execution) tooLong() {
	e.exceeded = agent.Failed(agent.CodeLimit, "the run took longer than its limit of %s", e.limits.Timeout)
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
		e.tooLong()
	}
}
