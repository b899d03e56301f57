package agenttest

import (
	"context"
	"errors"
	"fmt"

	"runledger/agent"
)

// Commit puts a result on record if its dispatch still owns the command.
func (m *memory) Commit(_ context.Context, c agent.Commit) (decided agent.Decided, err error) {
	err = m.write(scope{runID: c.RunID, epoch: c.Epoch, commandID: c.CommandID, anyEpoch: true}, func(t *txn) error {
		may, resolves, err := t.speaks(c.Call, c.Dispatch, c.DispatchNo, c.Reconciled)
		if err != nil {
			return err
		}
		if !may {
			decided = t.decided(t.command.State == agent.Committed && t.command.Owner == c.Dispatch)
			return nil
		}
		var said *agent.CommandResolvedData
		switch {
		case c.Reconciled:
			t.command.Owner = c.Dispatch
			said = &agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: agent.ByReconcile}
		case resolves:
			said = &agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: agent.ByLateResult}
		}
		// A new execution ends the node by itself, when it meets the command again.
		c.Ends = c.Ends && t.run.Epoch == c.Epoch
		if err := t.hear(&c); err != nil {
			return err
		}
		if err := t.commit(c, said); err != nil {
			return err
		}
		decided = t.decided(true)
		if resolves {
			t.resolved()
			return t.resolveOwner(said.By)
		}
		return nil
	})
	return decided, err
}

func (t *txn) commit(c agent.Commit, said *agent.CommandResolvedData) error {
	ended := t.run.Status.Terminal()
	c.Event.Hash = resultHash(c.Result)
	if said != nil {
		said.Hash = c.Event.Hash
		if err := t.say(*said); err != nil {
			return err
		}
	}
	r := t.command
	r.Sequence = 0
	if !ended {
		if c.HTTP != nil {
			if err := t.event(agent.HTTPRecorded, c.NodeID, c.CommandID, c.DispatchNo, c.HTTP); err != nil {
				return err
			}
		}
		if err := t.event(agent.CommandCommitted, c.NodeID, c.CommandID, c.DispatchNo, c.Event); err != nil {
			return err
		}
		r.Sequence = t.last
		if c.Message != nil {
			t.message(*c.Message)
		}
	}
	r.State, r.Result, r.ResultHash, r.Error = agent.Committed, c.Result, c.Event.Hash, nil
	r.GoesOn, r.Said = c.Event.GoesOn, c.Said
	r.usage, r.latencyMS, r.decidedAt, r.Tokens = c.Event.Usage, c.Event.LatencyMS, &t.now, agent.TokensOf(c.Event.Usage)
	switch {
	case ended:
	case c.Plan != nil:
		if err := t.event(agent.PlanGenerated, c.NodeID, "", 0, c.Plan); err != nil {
			return err
		}
		t.run.plan = c.Plan.TaskGraph
		return t.checkpoint(agent.LLMComplete, c.NodeID, c.CommandID)
	case c.Ends:
		return t.finishNode(c.Call, r.Kind, c.Result)
	case c.Checkpoint != "":
		return t.checkpoint(c.Checkpoint, c.NodeID, c.CommandID)
	}
	return nil
}

// Conclude ends a dispatch that has no result.
func (m *memory) Conclude(_ context.Context, c agent.Conclude) (decided agent.Decided, err error) {
	err = m.write(scope{runID: c.RunID, epoch: c.Epoch, commandID: c.CommandID, anyEpoch: true}, func(t *txn) error {
		mine, err := t.conclude(c)
		decided = t.decided(mine)
		return err
	})
	return decided, err
}

// innerKnown reports whether somebody has said meanwhile what became of the effect because of which a command is about to be in
// doubt.
func (t *txn) innerKnown(c agent.Conclude) bool {
	if c.Error == nil || c.Error.CommandID == c.CommandID {
		return false
	}
	inner := t.run.rows[c.Error.CommandID]
	owner, ok := agent.OwnerCommandID(c.Error.CommandID)
	return ok && owner == c.CommandID && inner != nil && inner.State != agent.CommandInDoubt && inner.State != agent.Dispatched
}

func (t *txn) conclude(c agent.Conclude) (mine bool, err error) {
	if t.command == nil {
		return false, t.current(c.Call, errors.New("it was never dispatched"))
	}
	if t.command.State == agent.CommandInDoubt && c.State != agent.CommandFailed && c.State != agent.Released {
		return false, t.current(c.Call, nil) // nothing is known that was not
	}
	may, resolves, err := t.speaks(c.Call, c.Dispatch, c.DispatchNo, false)
	if err != nil || !may {
		return false, err
	}
	if resolves {
		said := agent.CommandResolvedData{Outcome: agent.OutcomeRetry, By: agent.ByLateResult, Note: c.Error.Error()}
		if c.State == agent.CommandFailed {
			said.Outcome = agent.OutcomeFailed
		}
		if err := t.resolve(said, c.Error, c.Message); err != nil {
			return true, err
		}
		return true, t.resolveOwner(said.By)
	}
	state := c.State
	if state == agent.CommandInDoubt && t.innerKnown(c) {
		state = agent.Released
	}
	if tries := c.DispatchNo - t.command.BaseNo; state == agent.Released && tries >= agent.MaxDispatches {
		state = agent.CommandFailed
		c.Error = &agent.Error{Code: agent.CodeTooManyTries, NodeID: c.NodeID, CommandID: c.CommandID,
			Message: fmt.Sprintf("failed %d times; the last time: %s", tries, c.Error.Error())}
	}
	switch state {
	case agent.Released:
		t.command.State = agent.Released
		return true, t.event(agent.AttemptDiscarded, c.NodeID, c.CommandID, c.DispatchNo,
			agent.AttemptDiscardedData{Reason: c.Error.Error(), RetryAfterMS: c.RetryAfter.Milliseconds()})
	case agent.Dispatched:
		t.command.LeaseUntil = t.now
		return true, nil
	}
	if err := t.decide(c.Dispatch, state, c.Error, c.LatencyMS); err != nil {
		return true, err
	}
	if c.Message != nil && state == agent.CommandFailed {
		t.failureMessage(c.Message, c.Error)
	}
	return true, nil
}

// decide writes a command's outcome other than a result.
func (t *txn) decide(d agent.Dispatch, state agent.CommandState, reason *agent.Error, latencyMS int64) error {
	c := t.command
	ended := t.run.Status.Terminal()
	var err error
	switch state {
	case agent.CommandFailed:
		if !ended {
			err = t.event(agent.CommandFailedType, c.NodeID, c.CommandID, c.DispatchNo,
				agent.CommandFailedData{Kind: c.Kind, Tool: c.Tool, Error: reason, LatencyMS: latencyMS})
		}
	case agent.CommandAborted:
		err = t.event(agent.CommandAbortType, c.NodeID, c.CommandID, c.DispatchNo,
			agent.CommandAbortedData{Kind: c.Kind, Tool: c.Tool, Reason: reason.Message, NeverStarted: c.State == agent.Released || c.State == agent.CommandWaiting})
	case agent.CommandInDoubt:
		err = t.event(agent.CommandDoubtType, c.NodeID, c.CommandID, c.DispatchNo, agent.CommandInDoubtData{Kind: c.Kind, Tool: c.Tool, Reason: reason.Message})
		t.askAbout(c.CommandID)
	case agent.Dispatched, agent.Released, agent.Fenced, agent.Committed:
		err = fmt.Errorf("%q is not an outcome without a result", state)
	}
	if err != nil {
		return err
	}
	if state != agent.CommandInDoubt { // a row in doubt stays with the dispatch that may still bring a result
		c.Owner = d
	}
	c.State, c.Error, c.Sequence, c.latencyMS, c.decidedAt = state, reason, t.last, latencyMS, &t.now
	if ended {
		c.Sequence = 0
	}
	return nil
}

// say appends command_resolved and keeps the word with the command.
func (t *txn) say(said agent.CommandResolvedData) error {
	c := t.command
	c.Resolution = &said
	if t.run.Status.Terminal() {
		return nil
	}
	return t.event(agent.CommandResolved, c.NodeID, c.CommandID, c.DispatchNo, said)
}

// resolve writes that a command in doubt has failed, or may be dispatched again.
func (t *txn) resolve(said agent.CommandResolvedData, reason *agent.Error, message *agent.Message) error {
	c := t.command
	if err := t.say(said); err != nil {
		return err
	}
	if said.Outcome == agent.OutcomeFailed {
		if err := t.decide(c.Owner, agent.CommandFailed, reason, 0); err != nil {
			return err
		}
		if message != nil && !t.run.Status.Terminal() {
			t.failureMessage(message, reason)
		}
	} else {
		c.State, c.Error, c.BaseNo, c.Sequence, c.decidedAt = agent.Released, nil, c.DispatchNo, 0, nil
	}
	t.resolved()
	return nil
}

// resolved lets a run that stood still go on.
func (t *txn) resolved() {
	if _, inner := agent.OwnerCommandID(t.command.CommandID); !inner && t.run.Status == agent.InDoubt {
		t.run.Status = agent.Running
	}
}

// askAbout has a person answer for a command in doubt, if the test has said how.
func (t *txn) askAbout(commandID string) {
	r, ok := t.answers[commandID]
	if !ok || t.run.later == nil {
		return
	}
	delete(t.answers, commandID)
	news := agent.Intent{ID: t.last, CommandID: commandID, DispatchNo: t.command.DispatchNo}
	if owner, inner := agent.OwnerCommandID(commandID); inner {
		news.CommandID = owner
		news.DispatchNo = t.run.rows[owner].DispatchNo
	}
	runID, later := t.run.RunID, t.run.later
	t.after = append(t.after, func() {
		later(agent.ResolvedSignal, news, func() error { return t.memory.resolveByHand(runID, commandID, r) })
	})
}

// resolveByHand takes a person's word on a command in doubt. One that is not in doubt any more stays as it is.
func (m *memory) resolveByHand(runID, commandID string, r agent.Resolution) error {
	return m.write(scope{runID: runID, commandID: commandID, anyEpoch: true}, func(t *txn) error {
		c := t.command
		if c == nil || c.State != agent.CommandInDoubt {
			return nil
		}
		said := agent.CommandResolvedData{Outcome: r.Outcome, By: r.By, Note: r.Note}
		if r.Outcome == agent.OutcomeCommitted {
			err := t.commit(agent.Commit{Call: agent.Call{CommandID: commandID, NodeID: c.NodeID}, DispatchNo: c.DispatchNo, Result: r.Result,
				Event: agent.CommandCommittedData{Kind: c.Kind, Tool: c.Tool, Output: agent.ShowValue(r.Result)}}, &said)
			if err != nil {
				return err
			}
			t.resolved()
		} else {
			reason := &agent.Error{Code: agent.CodeToolFailed, NodeID: c.NodeID, CommandID: commandID, Message: "resolved as failed by " + r.By}
			if r.Note != "" {
				reason.Message += ": " + r.Note
			}
			if err := t.resolve(said, reason, nil); err != nil {
				return err
			}
		}
		return t.resolveOwner(r.By)
	})
}

// resolveOwner lets the command go on that is in doubt only because an effect inside of it was: it is dispatched again.
func (t *txn) resolveOwner(by string) error {
	commandID := t.command.CommandID
	ownerID, inner := agent.OwnerCommandID(commandID)
	owner := t.run.rows[ownerID]
	if !inner || owner == nil || owner.State != agent.CommandInDoubt || owner.Error == nil || owner.Error.CommandID != commandID {
		return nil
	}
	t.command = owner
	return t.resolve(agent.CommandResolvedData{Outcome: agent.OutcomeRetry, By: by, Note: commandID + " was resolved"}, nil, nil)
}
