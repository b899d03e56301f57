package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runNodes executes the plan: nodes whose dependencies have ended, as many at once as the limit allows, in the plan's
// order. It returns when no node is at work and none can start: with nil when the final node has finished.
func (e *execution) runNodes(ctx workflow.Context) *agent.Error {
	e.news = workflow.NewBufferedChannel(ctx, 2*len(e.plan.Nodes))
	for {
		for e.failure == nil && ctx.Err() == nil && !e.handing && e.mayBegin(ctx) {
			i := e.nextNode()
			if i < 0 {
				break
			}
			if nodes, steps := e.gather(ctx, i); len(nodes) > 0 {
				e.startSegment(ctx, nodes, steps)
				continue
			}
			e.start(ctx, i)
		}
		e.show(ctx)
		// A run that has failed does not wait for a person to say what became of a command.
		if e.working == "" || e.failure != nil && e.working == e.waiting || e.handing && e.busy == 0 && e.queued == 0 && e.news.Len() == 0 {
			break
		}
		var n nodeNews
		e.news.Receive(ctx, &n)
		switch n.What {
		case nodeParked:
			e.count(true)
			e.waiting = e.waiting.With(n.Index)
		case nodeResumed:
			e.count(false)
			e.waiting, e.goingOn = e.waiting.Without(n.Index), e.goingOn.Without(n.Index)
		case nodeEnded:
			e.busy--
			e.working = e.working.Without(n.Index)
		case segmentEnded:
			e.takeUp(ctx, n)
		case allAtRest:
		}
	}
	if e.failure != nil || ctx.Err() != nil || e.replaced != nil || e.goesOnElsewhere() {
		return e.failure
	}
	if last := e.plan.Final(); !e.state.Finished.Has(last) {
		return &agent.Error{Code: agent.CodeNodeFailed, NodeID: e.plan.Nodes[last].ID,
			Message: "the final node was skipped, since a node that it depends on failed"}
	}
	return nil
}

// nodeNews tells the scheduler what became of a node.
type nodeNews struct {
	Index int
	What  nodeChange
	// Nodes are those of a segment, Begun those of them that it has begun.
	Nodes, Begun []int
}

type nodeChange int

const (
	// nodeEnded: it has come to rest.
	nodeEnded nodeChange = iota
	// nodeParked: it waits for a person and leaves its place to others.
	nodeParked
	// nodeResumed: it goes on.
	nodeResumed
	// segmentEnded: a segment of nodes has been executed.
	segmentEnded
	// allAtRest: it is not about a node; a new execution can continue this one.
	allAtRest
)

// start executes a node beside the others.
func (e *execution) start(ctx workflow.Context, i int) {
	e.busy++
	e.working = e.working.With(i)
	workflow.Go(WithNode(ctx, e.node(e.plan.Nodes[i].ID)), func(ctx workflow.Context) {
		e.restOf(ctx, i)
		e.news.Send(ctx, nodeNews{Index: i, What: nodeEnded})
	})
}

// restOf executes a node until it has come to rest. A node that has no end then was stopped: by a cancellation, whose signal
// may come later than the record, which the gate asks, knows of it.
func (e *execution) restOf(ctx workflow.Context, i int) {
	if !e.meets(ctx, i) {
		return
	}
	e.runNode(ctx, i)
	if !e.state.Done(i) && !e.handing {
		untilStopped(ctx)
	}
}

// nextNode is the first node that can start, -1 when there is none. Nodes that a failure cuts off are skipped on the way.
func (e *execution) nextNode() int {
	for i, n := range e.plan.Nodes {
		if e.state.Done(i) || e.working.Has(i) {
			continue
		}
		ready := true
		for _, dep := range n.DependsOn {
			if !e.state.Done(dep) {
				ready = false
				break
			}
			if cut := e.cutOff(dep); cut != "" && n.ID != agent.AnswerNodeID {
				e.skip(i, cut, false)
				ready = false
				break
			}
		}
		if ready && e.unmet(i) {
			e.skip(i, "all that it depends on was skipped", true)
			ready = false
		}
		if ready {
			return i
		}
	}
	return -1
}

// unmet reports whether all that a node depends on was skipped for want of a condition, so that it is skipped too. A node with a condition
// of its own goes by that, and the final node runs: whatever comes of the others, a run answers.
func (e *execution) unmet(i int) bool {
	n := e.plan.Nodes[i]
	if n.When || i == e.plan.Final() {
		return false
	}
	for _, dep := range n.DependsOn {
		if !e.state.Unmet.Has(dep) {
			return false
		}
	}
	return len(n.DependsOn) > 0
}

// skip ends a node that does not run. unmet: no failure is the reason.
func (e *execution) skip(i int, reason string, unmet bool) {
	e.state.Skipped = e.state.Skipped.With(i)
	if unmet {
		e.state.Unmet = e.state.Unmet.With(i)
	}
	e.fact(agent.NodeSkipped, e.plan.Nodes[i].ID, agent.NodeSkippedData{Index: i, Reason: reason, Unmet: unmet})
}

// meets asks whether a node's condition holds, if it has one, and ends the node if it does not.
func (e *execution) meets(ctx workflow.Context, i int) bool {
	n := e.plan.Nodes[i]
	if !n.When || e.state.Started.Has(i) { // it held when the node began
		return true
	}
	call := agent.EvaluateCall{Scope: agent.Scope{RunID: e.in.RunID, Epoch: e.in.Epoch}, NodeID: n.ID}
	reply, err := doLocally(ctx, agent.Evaluate, call, heartbeatTimeout, "when - node "+n.ID)
	if err != nil {
		reply, err = do(ctx, agent.Evaluate, call, housekeeping("when - node "+n.ID))
	}
	switch {
	case ctx.Err() != nil: // the run is being stopped
		return false
	case err != nil:
		e.nodeFailed(ctx, i, asAgentError(err))
		return false
	case reply.Error != nil:
		e.nodeFailed(ctx, i, reply.Error)
		return false
	case !reply.Holds:
		e.skip(i, "its condition does not hold", true)
		return false
	}
	return true
}

// cutOff says why the dependents of an ended node do not run, "" when they do.
func (e *execution) cutOff(i int) string {
	n := e.plan.Nodes[i]
	switch {
	case e.state.Unmet.Has(i): // that is no failure
	case e.state.Skipped.Has(i):
		return fmt.Sprintf("node %s was skipped", n.ID)
	case e.state.Failed.Has(i) && n.OnError == agent.OnErrorSkip:
		return fmt.Sprintf("node %s failed", n.ID)
	}
	return ""
}

// runNode executes one node to its end.
func (e *execution) runNode(ctx workflow.Context, i int) {
	switch e.plan.Nodes[i].Kind {
	case agent.LLMNode:
		e.runLLM(ctx, i)
	case agent.ToolNode:
		e.runTool(ctx, i)
	case agent.ReactNode:
		e.runReact(ctx, i)
	case agent.WaitNode:
		e.runWait(ctx, i)
	case agent.RetrievalNode:
		e.runRetrieval(ctx, i)
	case agent.WorkflowNode:
		e.runWorkflow(ctx, i)
	default:
		e.nodeFailed(ctx, i, agent.Failed(agent.CodeInvalidPlan, "node kind %q is unknown to this worker", e.plan.Nodes[i].Kind))
	}
}

// endSingle ends a node of one command by its outcome. again is true when the node has another try.
func (e *execution) endSingle(ctx workflow.Context, i, try int, reply agent.Reply) (again bool) {
	switch reply.Outcome {
	case agent.OutcomeCommitted:
		e.nodeFinished(i, reply.Sequence)
	case agent.OutcomeFailed:
		if try < e.plan.Nodes[i].Tries && ctx.Err() == nil && e.failure == nil {
			return true
		}
		e.nodeFailed(ctx, i, reply.Error)
	default: // the run is being stopped
	}
	return false
}

func (e *execution) nodeFinished(i int, sequence int64) {
	n := e.plan.Nodes[i]
	e.state.Started, e.state.Finished = e.state.Started.With(i), e.state.Finished.With(i)
	if sequence >= e.cursorAt { // replies may come in another order than the record's
		e.state.Cursor, e.cursorAt = n.ID, sequence
	}
}

// nodeFailed ends a node that gave an error, as its on_error says.
func (e *execution) nodeFailed(ctx workflow.Context, i int, cause *agent.Error) {
	n := e.plan.Nodes[i]
	handled := n.OnError.Handled()
	e.state.Started, e.state.Failed = e.state.Started.With(i), e.state.Failed.With(i)
	e.fact(agent.NodeFailed, n.ID, agent.NodeFailedData{Index: i, Error: cause, Handled: handled})
	if handled {
		// Dependents may refer to the error, and read it from the ledger before their own command begins.
		e.record(ctx, "")
		return
	}
	if e.failure == nil { // at once, so that nothing starts that another end in this workflow task makes room for
		failure := *cause
		failure.NodeID = n.ID
		e.failure = &failure
	}
}

// untilStopped waits until the run is stopped: by a cancellation, its time limit, or an execution that has replaced it.
func untilStopped(ctx workflow.Context) { ctx.Done().Receive(ctx, nil) }
