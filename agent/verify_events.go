package agent

import "fmt"

// commandStory is what the events say of a command.
type commandStory struct {
	emitted   *Event
	committed *Event
	hash      string // of command_committed
	recorded  bool   // as a value, whose one event begins and commits it
	// outcome is the newest event that gave the command an outcome, nil while it has none.
	outcome *Event
	// resolved and reopened are the newest of their kind after outcome.
	resolved *Event
	reopened *Event
	refused  bool // by the policy, so that it never began
	// asked is the newest question whether it may be executed, nil for none.
	asked *approvalStory
}

// nodeStory is what the events say of a node.
type nodeStory struct {
	started  *Event
	again    bool // a resume has reopened it since
	finished *Event
	saved    bool // a checkpoint followed finished
}

func (v *verifier) command(id string) *commandStory {
	c := v.commands[id]
	if c == nil {
		c = &commandStory{}
		v.commands[id] = c
	}
	return c
}

func (v *verifier) node(id string) *nodeStory {
	n := v.nodes[id]
	if n == nil {
		n = &nodeStory{}
		v.nodes[id] = n
	}
	return n
}

// checkOrder walks through the run's events and holds their order to the rules of the record.
func (v *verifier) checkOrder() {
	if v.Enqueued {
		v.checkEnqueued()
		return
	}
	if len(v.Events) == 0 {
		v.differ(Difference{Check: CheckStart, Sequence: v.Run.StartSequence, Expected: string(RunStarted), Found: "no event of the run"})
		return
	}
	var planning, planned *Event
	epoch := v.Events[0].Epoch
	for i := range v.Events {
		e := &v.Events[i]
		if (e.Type == RunStarted) != (i == 0) {
			v.differAt(CheckStart, e, "run_started as the run's first event, and once", describe(e))
		}
		if v.ended != nil && e.Type != RunReopened {
			v.differAt(CheckEnd, e, fmt.Sprintf("nothing but run_reopened after %s", describe(v.ended)), describe(e))
		}
		v.checkEpoch(e, &epoch)
		v.walkPause(e)
		switch e.Type {
		case RunReopened:
			v.walkReopened(e)
		case RunCompleted, RunFailed, RunCancelled:
			v.ended = e
			v.checkAnswered(e)
		case PlanStarted:
			planning = e
		case PlanGenerated:
			if planning == nil {
				v.differAt(CheckPlan, e, "plan_started before it", "none")
			}
			planned = e
		case NodeStarted, NodeFinished, NodeFailed, NodeSkipped:
			if planned == nil {
				v.differAt(CheckPlan, e, "plan_generated before it", describe(e))
				planned = e // said once
			}
			v.walkNode(e)
		case CheckpointSaved:
			v.walkCheckpoint(e)
		case CommandEmitted, CommandCommitted, CommandFailedType, CommandAbortType, CommandDoubtType, CommandResolved, CommandReopened, AttemptDiscarded,
			TimerFired, UUIDRecorded, RandomRecorded, HTTPRecorded:
			v.walkCommand(e)
		case PolicyDecided:
			v.command(e.CommandID).refused = true
		case ApprovalRequested, ApprovalResolved:
			v.walkApproval(e)
		case RunStarted, PlanRevised, Progress, InputReceived, LimitReachedType, LimitsChanged,
			RunPaused, RunUnpaused, RunForked, MessageAdded:
		}
	}
	for _, n := range v.nodes {
		if n.finished != nil && !n.saved {
			v.differAt(CheckCheckpoint, n.finished, "a checkpoint of the node after it", "none")
		}
	}
}

// checkEnqueued: a run that waits for its turn has no events, and is queued.
func (v *verifier) checkEnqueued() {
	if v.Run.Status != Queued {
		v.differ(Difference{Check: CheckRun, Expected: "status queued, since the run waits in its conversation's queue", Found: string(v.Run.Status)})
	}
	if len(v.Events) > 0 {
		v.differAt(CheckStart, &v.Events[0], "no event of a run that waits in its conversation's queue", describe(&v.Events[0]))
	}
}

// walkReopened: a run is reopened that has failed, was cancelled, or has no end; and the event says which.
func (v *verifier) walkReopened(e *Event) {
	var d RunReopenedData
	if err := decode(*e, &d); err != nil {
		v.differAt(CheckEpoch, e, "data that can be read", err.Error())
		return
	}
	for _, id := range d.NodeIDs {
		v.node(id).again = true
	}
	if d.Epoch != e.Epoch {
		v.differAt(CheckEpoch, e, fmt.Sprintf("epoch %d in its data", e.Epoch), fmt.Sprint(d.Epoch))
	}
	before := Status("a status without an end")
	if v.ended != nil {
		before = endStatus(v.ended.Type)
	}
	switch {
	case before == Completed:
		v.differAt(CheckEnd, e, "nothing after "+describe(v.ended), describe(e))
	case d.Status != before && (v.ended != nil || d.Status.Terminal()):
		v.differAt(CheckEnd, e, "status_before "+string(before), string(d.Status))
	}
	v.ended = nil
}

func (v *verifier) checkEpoch(e *Event, epoch *int) {
	switch {
	case e.Type == RunReopened && e.Epoch <= *epoch:
		v.differAt(CheckEpoch, e, fmt.Sprintf("an epoch beyond %d", *epoch), fmt.Sprint(e.Epoch))
	case e.Type != RunReopened && e.Epoch != *epoch:
		v.differAt(CheckEpoch, e, fmt.Sprintf("epoch %d", *epoch), fmt.Sprint(e.Epoch))
	}
	*epoch = max(*epoch, e.Epoch)
}

func (v *verifier) walkNode(e *Event) {
	n := v.node(e.NodeID)
	switch e.Type {
	case NodeStarted:
		if n.started != nil && !n.again {
			v.differAt(CheckNode, e, "node_started once", describe(e)+" after "+describe(n.started))
		}
		n.started, n.again = e, false
		if n.finished != nil {
			v.differAt(CheckNode, e, "no more of the node after "+describe(n.finished), describe(e))
		}
	case NodeFinished:
		if n.started == nil {
			v.differAt(CheckNode, e, "node_started before it", "none")
		}
		if n.finished != nil {
			v.differAt(CheckNode, e, "no more of the node after "+describe(n.finished), describe(e))
		}
		n.finished, n.saved = e, false
		var d NodeFinishedData
		if err := decode(*e, &d); err != nil {
			return // the fold says so
		}
		// Records from before command_committed was written have no row that says committed either.
		if c := v.command(d.ResultCommand); c.committed == nil && v.rows[d.ResultCommand] != nil {
			v.differAt(CheckNode, e, "command_committed of "+d.ResultCommand+" before it", "none")
		}
	default:
		if n.finished != nil {
			v.differAt(CheckNode, e, "no more of the node after "+describe(n.finished), describe(e))
		}
	}
}

func (v *verifier) walkCheckpoint(e *Event) {
	var d CheckpointSavedData
	if err := decode(*e, &d); err != nil {
		v.differAt(CheckCheckpoint, e, "data that can be read", err.Error())
		return
	}
	if d.Type != NodeBoundary {
		return
	}
	n := v.node(e.NodeID)
	if n.finished == nil {
		v.differAt(CheckCheckpoint, e, "node_finished before it", "none")
	}
	n.saved = true
}

// walkCommand: emitted, then at most one outcome that stands, and nothing after a commit.
func (v *verifier) walkCommand(e *Event) {
	c := v.command(e.CommandID)
	if c.committed != nil {
		v.differAt(CheckCommand, e, "nothing after "+describe(c.committed), describe(e))
		return
	}
	switch e.Type {
	case CommandEmitted:
		if c.emitted != nil && c.reopened == nil && c.resolved == nil && c.emitted.Epoch == e.Epoch {
			v.differAt(CheckCommand, e, "the command to be emitted once", describe(e)+" after "+describe(c.emitted))
		}
		// Effects of a workflow's own code stand under its node's name, and nothing has to start them.
		_, inner := OwnerCommandID(e.CommandID)
		if !inner && e.NodeID != PlanNodeID && v.node(e.NodeID).started == nil {
			v.differAt(CheckNode, e, "node_started before it", "none")
		}
		v.checkLeave(e, c)
		c.emitted, c.outcome = e, nil
	case CommandCommitted, CommandFailedType, CommandAbortType, CommandDoubtType:
		if c.emitted == nil && !((c.refused || v.copied(e)) && (e.Type == CommandFailedType || e.Type == CommandAbortType)) {
			v.differAt(CheckCommand, e, "command_emitted before it", "none")
		}
		if before := c.outcome; before != nil && !c.mayEndAgain(e) {
			v.differAt(CheckCommand, e, "no other outcome after "+describe(before), describe(e))
		}
		c.outcome, c.resolved, c.reopened = e, nil, nil
		if e.Type == CommandCommitted {
			v.checkLeave(e, c)
			c.committed = e
			var d CommandCommittedData
			if decode(*e, &d) == nil { // the fold says so
				c.hash = d.Hash
			}
		}
	case CommandResolved:
		if c.emitted == nil {
			v.differAt(CheckCommand, e, "command_emitted before it", "none")
		}
		c.resolved = e
	case CommandReopened:
		if c.outcome == nil || c.outcome.Type != CommandFailedType && c.outcome.Type != CommandAbortType {
			v.differAt(CheckCommand, e, "a failure or an abort of the command before it", "none")
		}
		c.reopenQuestion()
		c.reopened = e
	case AttemptDiscarded, HTTPRecorded:
		if c.emitted == nil {
			v.differAt(CheckCommand, e, "command_emitted before it", "none")
		}
	case TimerFired, UUIDRecorded, RandomRecorded:
		if c.emitted != nil {
			v.differAt(CheckCommand, e, "an outcome of what was emitted", describe(e))
		}
		c.committed, c.outcome, c.recorded = e, e, true
		var d ValueRecordedData
		if decode(*e, &d) == nil {
			c.hash = d.Hash
		}
	default:
	}
}

// mayEndAgain: a failure and an abort are final within their epoch unless reopened; a doubt until it is resolved.
func (c *commandStory) mayEndAgain(e *Event) bool {
	if c.outcome.Type == CommandDoubtType {
		return c.resolved != nil || c.reopened != nil
	}
	return c.reopened != nil || e.Epoch > c.outcome.Epoch
}
