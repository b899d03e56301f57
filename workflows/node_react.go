package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runReact lets a model call tools in turns until it answers. The calls of one turn run side by side; what they give, a
// failure too, is what the model reads in the next turn.
func (e *execution) runReact(ctx workflow.Context, i int) {
	n := e.plan.Nodes[i]
	at := e.enterLoop(n.ID)
	for turn := at.Turn; ; turn++ {
		if turn > at.Turn {
			*at = loop{LoopPosition: agent.LoopPosition{Turn: turn}}
		}
		if e.handing { // the next execution goes on here
			return
		}
		if failure := e.limit(ctx, e.nodeRests(i), func() (agent.LimitReachedData, bool) {
			return agent.LimitReachedData{Limit: agent.LimitSteps, Used: int64(turn - 1), Most: int64(e.limits.MaxSteps)}, turn > e.limits.MaxSteps
		}); failure != nil {
			if failure.Code != agent.CodeCancelled {
				failure.Message = fmt.Sprintf("no answer after %d model turns (max_steps)", e.limits.MaxSteps)
				e.nodeFailed(ctx, i, failure)
			}
			return
		}
		call := agent.ModelCall{Turn: turn, Call: agent.Call{CommandID: agent.TurnCommandID(n.ID, turn), NodeID: n.ID, NodeIndex: i,
			Opens: !e.state.Started.Has(i), Ends: true, Timeout: n.Timeout}}
		reply := e.callModel(ctx, call, fmt.Sprintf("llm - node %s, turn %d", n.ID, turn), e.nodeRests(i))
		switch reply.Outcome {
		case agent.OutcomeCommitted:
			e.turned(n.ID, turn)
		case agent.OutcomeFailed:
			e.nodeFailed(ctx, i, reply.Error)
			return
		default: // the run is being stopped
			return
		}
		e.heard = max(e.heard, reply.Said)
		if len(reply.Tools) == 0 && !reply.GoesOn {
			e.nodeFinished(i, reply.Sequence)
			return
		}
		if !e.runTurn(ctx, i, at, reply.Tools) {
			return
		}
	}
}

// runTurn executes the tool calls of a turn and reports whether the loop may go on.
func (e *execution) runTurn(ctx workflow.Context, i int, at *loop, tools []agent.ToolRequest) bool {
	n, turn := e.plan.Nodes[i], at.Turn
	at.tools = tools
	e.countDue(ctx)
	e.shareTurn(ctx, i, at, tools)
	slots := workflow.NewSemaphore(ctx, int64(e.limits.MaxParallel))
	group := workflow.NewWaitGroup(ctx)
	stopped := false
	for k, tool := range tools {
		if at.Ended.Has(k) { // before it was handed over
			continue
		}
		if slots.Acquire(ctx, 1) != nil { // cancelled
			stopped = true
			break
		}
		group.Add(1)
		e.busy++
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			defer func() { e.busy-- }()
			call := agent.ToolCall{Tool: tool.Tool, FromCommand: agent.TurnCommandID(n.ID, turn), FromIndex: k,
				Call: agent.Call{CommandID: agent.TurnToolCommandID(n.ID, turn, k), NodeID: n.ID, NodeIndex: i, Timeout: tool.Timeout}}
			holds := true // one of the slots
			rests := func(ctx workflow.Context, parked bool) {
				if parked {
					slots.Release(1) // the other calls need not wait for a person
					holds = false
				} else {
					holds = slots.Acquire(ctx, 1) == nil
				}
				e.count(parked)
			}
			reply := e.callTool(ctx, call, tool, fmt.Sprintf("tool %s - node %s, turn %d", tool.Tool, n.ID, turn), rests)
			if holds {
				slots.Release(1)
			}
			switch reply.Outcome {
			case agent.OutcomeCommitted, agent.OutcomeFailed:
				at.Ended = at.Ended.With(k)
			default: // the run is being stopped
				stopped = true
			}
		})
	}
	e.busy-- // the node waits for its calls
	group.Wait(ctx)
	e.busy++
	return !stopped && ctx.Err() == nil
}
