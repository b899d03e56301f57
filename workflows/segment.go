package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/policy"
)

// This file is the fast lane: calls that are due beside or after each other go in a segment, one local activity. What it gives is
// taken up by the code of the normal lane, call by call, in the place of an activity's reply; a call of which it has nothing
// to say is scheduled there as if there had been no segment. So whatever is not simply committed is dealt with in one place.
//
// A replay that executes nothing has no segments: it asks for every command by itself.

// mayShare reports whether calls can be given to a segment now.
func (e *execution) mayShare(ctx workflow.Context) bool {
	return (e.in.Policy == nil || e.in.Policy.Replay == agent.LiveRun) && !e.paused() && !e.timeUp && !e.handing && e.failure == nil && ctx.Err() == nil
}

// shares reports whether a call goes in a segment that has some already: nothing is against it, and it is within the limits.
func (e *execution) shares(call agent.Call, asked policy.Command, already int) bool {
	if e.left[call.CommandID] || e.walked(call) || e.permit(&call, asked) != nil || call.Refusal != nil {
		return false
	}
	if most := e.limits.MaxToolCalls; most > 0 && e.state.ToolCalls+e.calling+len(e.due)+already >= most {
		return false
	}
	return true
}

// repeats reports whether a loop would go beyond its limit with one call more, when its segment has some of the same already.
func (e *execution) repeats(digest string, already int) bool {
	most := e.limits.MaxRepeats
	return most > 0 && digest != "" && e.calledBefore(digest)+already >= most
}

// shared is what a segment has told of a call that nobody has taken up, and how much news there was for it when the segment began.
type shared struct {
	reply agent.Reply
	seen  int
}

// gather finds the nodes that share a segment with one: those of the fast lane that depend on what is done, or on each other.
func (e *execution) gather(ctx workflow.Context, first int) (nodes []int, steps []agent.SegmentStep) {
	if n := e.plan.Nodes[first]; !n.Fast || n.When || !e.mayShare(ctx) {
		return nil, nil
	}
	place := map[int]int{}
	for i := first; i < len(e.plan.Nodes) && len(steps) < agent.MaxSegment; i++ {
		n := e.plan.Nodes[i]
		if !n.Fast || n.When || e.state.Done(i) || e.working.Has(i) || e.firstTry(n.ID) > 1 {
			continue
		}
		var after []int
		ready := true
		for _, dep := range n.DependsOn {
			at, among := place[dep]
			switch {
			case among:
				after = append(after, at)
			case !e.state.Done(dep) || e.cutOff(dep) != "":
				ready = false
			}
		}
		call := agent.ToolCall{Call: e.nodeCall(i, 1), Tool: n.Tool}
		if !ready || !e.shares(call.Call, policy.Command{Kind: agent.ToolCommand, Tool: n.Tool, Effect: n.Effect}, len(steps)) {
			continue
		}
		place[i] = len(steps)
		nodes, steps = append(nodes, i), append(steps, agent.SegmentStep{ToolCall: call, After: after})
	}
	return nodes, steps
}

// startSegment executes nodes in a segment. It takes as many places as can be at work at once.
func (e *execution) startSegment(ctx workflow.Context, nodes []int, steps []agent.SegmentStep) {
	roots := 0
	for _, s := range steps {
		if len(s.After) == 0 {
			roots++
		}
	}
	width := max(1, min(roots, e.limits.MaxParallel-e.places()))
	for _, i := range nodes {
		e.working = e.working.With(i)
	}
	e.busy++
	e.packed += len(nodes) - width
	workflow.Go(ctx, func(ctx workflow.Context) {
		begun := e.segment(ctx, steps, width, segmentSummary(steps))
		e.packed -= len(nodes) - width
		news := nodeNews{What: segmentEnded, Nodes: nodes}
		for s, i := range nodes {
			if begun[steps[s].CommandID] {
				news.Begun = append(news.Begun, i)
			}
		}
		e.news.Send(ctx, news)
	})
}

// takeUp lets the nodes of a segment go on that it has begun. The others are ready, or not, as before.
func (e *execution) takeUp(ctx workflow.Context, news nodeNews) {
	e.busy--
	for _, i := range news.Nodes {
		e.working = e.working.Without(i)
	}
	for _, i := range news.Begun {
		e.start(ctx, i)
	}
}

// shareTurn executes the tool calls of a turn in a segment, when all of them are in the fast lane.
func (e *execution) shareTurn(ctx workflow.Context, i int, at *loop, tools []agent.ToolRequest) {
	if !e.mayShare(ctx) {
		return
	}
	n := e.plan.Nodes[i]
	same := map[string]int{}
	var steps []agent.SegmentStep
	for k, tool := range tools {
		if at.Ended.Has(k) {
			continue
		}
		call := agent.ToolCall{Tool: tool.Tool, FromCommand: agent.TurnCommandID(n.ID, at.Turn), FromIndex: k,
			Call: agent.Call{CommandID: agent.TurnToolCommandID(n.ID, at.Turn, k), NodeID: n.ID, NodeIndex: i, Timeout: tool.Timeout}}
		if !tool.Fast || len(steps) == agent.MaxSegment || e.repeats(tool.Digest, same[tool.Digest]) ||
			!e.shares(call.Call, policy.Command{Kind: agent.ToolCommand, Tool: tool.Tool, Effect: tool.Effect}, len(steps)) {
			return
		}
		same[tool.Digest]++
		steps = append(steps, agent.SegmentStep{ToolCall: call})
	}
	if len(steps) > 0 {
		e.segment(ctx, steps, e.limits.MaxParallel, segmentSummary(steps))
	}
}

// segment executes calls and keeps what is told of them. It gives those that have begun.
func (e *execution) segment(ctx workflow.Context, steps []agent.SegmentStep, parallel int, summary string) map[string]bool {
	in := agent.SegmentCall{Scope: e.scope(), Steps: steps, MaxParallel: parallel}
	longest := agent.SegmentTime
	seen := map[string]int{} // before it begins: an answer may come while it is at work
	for s := range steps {
		call := &steps[s].Call
		seen[call.CommandID] = e.told[ofCommand(call.CommandID)]
		e.schedule++
		call.Schedule, call.Scope, call.Until = e.schedule, in.Scope, e.until(ctx)
		longest = max(longest, agent.SegmentTime+call.Timeout)
	}
	e.calling += len(steps)
	// It ends by itself when the run is being stopped, and what it has done is worth waiting for.
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	reply, err := doLocally(ctx, agent.Segment, in, time.Duration(longest)+commitGrace, summary)
	if err != nil {
		e.logger.Warn("a segment failed; its calls go on one by one", "run_id", e.in.RunID, "error", err)
	}
	e.segments++
	begun := map[string]bool{}
	for _, c := range reply.Commands {
		begun[c.CommandID] = true
		if c.Outcome == "" {
			e.left[c.CommandID] = true
			continue
		}
		e.ahead[c.CommandID] = shared{c.Reply, seen[c.CommandID]}
		e.acknowledge(in.Facts)
	}
	for _, s := range steps {
		if _, told := e.ahead[s.CommandID]; !told {
			e.calling--
		}
		if len(reply.Commands) == 0 {
			e.left[s.CommandID] = true
		}
	}
	return begun
}

// doLocally executes a local activity once and waits for it.
func doLocally[In, Out any](ctx workflow.Context, name agent.Activity[In, Out], in In, longest time.Duration, summary string) (Out, error) {
	var out Out
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: longest,
		RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1}, Summary: summary})
	err := workflow.ExecuteLocalActivity(ctx, string(name), in).Get(ctx, &out)
	return out, err
}

func segmentSummary(steps []agent.SegmentStep) string {
	s := "tool " + steps[0].Tool + " - " + steps[0].CommandID
	if n := len(steps); n > 1 {
		s = fmt.Sprintf("%d calls: %s to %s", n, steps[0].CommandID, steps[n-1].CommandID)
	}
	return s
}
