package activities

import (
	"context"
	"time"

	"runledger/agent"
)

// Segment executes several tool calls of a run, each through the gate as CallTool does: those that wait for none at once, the others
// when those are committed. It ends when one gives something other than a result, when it has begun others for long enough, or when the
// worker is about to stop, with what it has. What became of the rest is for the workflow to find out, with an activity for each.
func (a *Activities) Segment(ctx context.Context, in agent.SegmentCall) (agent.SegmentReply, error) {
	var reply agent.SegmentReply
	committed := make([]bool, len(in.Steps))
	run, plan, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return reply, crossing(err)
	}
	type ended struct {
		step  int
		reply agent.Reply
		err   error
	}
	until := time.Now().Add(time.Duration(agent.SegmentTime))
	results := make(chan ended)
	begun := make([]bool, len(in.Steps))
	next := func() int {
		for i, s := range in.Steps {
			ready := !begun[i]
			for _, before := range s.After {
				ready = ready && committed[before]
			}
			if ready {
				return i
			}
		}
		return -1
	}
	goesOn := true
	for working := 0; ; working-- {
		for goesOn && !a.stops() && working < max(in.MaxParallel, 1) && time.Now().Before(until) {
			i := next()
			if i < 0 {
				break
			}
			begun[i] = true
			working++
			go func() {
				r, err := a.callTool(ctx, run, plan, in.Steps[i].ToolCall)
				results <- ended{i, r, err}
			}()
		}
		if working == 0 {
			return reply, nil
		}
		e := <-results
		if e.err != nil || e.reply.Outcome == agent.OutcomeUnknown {
			e.reply = agent.Reply{}
		}
		reply.Commands = append(reply.Commands, agent.CommandReply{CommandID: in.Steps[e.step].CommandID, Reply: e.reply})
		committed[e.step] = e.err == nil && e.reply.Outcome == agent.OutcomeCommitted
		goesOn = goesOn && committed[e.step]
	}
}

// stops reports whether the worker has begun to stop.
func (a *Activities) stops() bool {
	select {
	case <-a.stopping:
		return true
	default:
		return false
	}
}
