package agenttest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"runledger/agent"
)

// Record writes facts, and where the run stands when that has changed.
func (m *memory) Record(_ context.Context, call agent.RecordCall) (reply agent.RecordReply, err error) {
	err = m.write(scope{runID: call.RunID, epoch: call.Epoch, facts: call.Facts}, func(t *txn) error {
		reply.Sequence = t.last
		if call.HandOver != nil {
			state := t.run.state
			reply.State = &state
		}
		if call.Status == "" || t.run.Status.Terminal() || t.run.Status == agent.Cancelling {
			return nil
		}
		if call.Status == agent.InDoubt && len(t.run.state.InDoubt) == 0 {
			return nil // the last doubt was resolved meanwhile
		}
		t.run.Status = call.Status
		return nil
	})
	return reply, err
}

// Settle decides a command whose activity has ended in an error.
func (m *memory) Settle(_ context.Context, call agent.SettleCall) (settled agent.CommandRow, err error) {
	err = m.write(scope{runID: call.RunID, epoch: call.Epoch, commandID: call.CommandID, facts: call.Facts}, func(t *txn) error {
		if t.run.Status.Terminal() {
			return t.ended()
		}
		doubted, err := t.doubtWithin(call)
		if err == nil && !doubted {
			err = t.settle(call)
		}
		if err != nil {
			return err
		}
		settled = t.command.CommandRow
		return nil
	})
	return settled, err
}

func (t *txn) settle(call agent.SettleCall) error {
	d := agent.Dispatch{Epoch: call.Epoch, Schedule: call.Schedule}
	if t.command != nil && t.command.Owner.Epoch == d.Epoch && t.command.Owner.Schedule > d.Schedule {
		return nil // the repetition of an earlier call
	}
	if t.command != nil && t.command.Reopened() {
		return nil // somebody has said meanwhile that it may be dispatched again
	}
	if t.command == nil || t.command.State == agent.Fenced {
		t.command = &row{CommandRow: agent.CommandRow{RunID: call.RunID, CommandID: call.CommandID, NodeID: call.NodeID, State: agent.Fenced, Owner: d}}
		t.run.rows[call.CommandID] = t.command
		return nil
	}
	reason := call.Reason
	if reason == nil {
		reason = &agent.Error{Code: agent.CodeInternal, Message: "its activity ended without a word"}
	}
	switch t.command.State {
	case agent.Dispatched, agent.Released:
		switch {
		case t.command.State == agent.Dispatched && t.command.Effect == agent.External:
			return t.decide(t.command.Owner, agent.CommandInDoubt,
				&agent.Error{Code: agent.CodeInDoubt, NodeID: call.NodeID, CommandID: call.CommandID, Message: reason.Message}, 0)
		case reason.Code == agent.CodeCancelled:
			return t.decide(d, agent.CommandAborted, reason, 0)
		}
		return t.decide(d, agent.CommandFailed, reason, 0)
	case agent.CommandWaiting:
		if reason.Code == agent.CodeMismatch {
			return t.decide(d, agent.CommandFailed, reason, 0)
		}
	case agent.Fenced, agent.Committed, agent.CommandFailed, agent.CommandAborted, agent.CommandInDoubt:
	}
	return nil
}

// Finish settles the commands that are open and writes the terminal event.
func (m *memory) Finish(_ context.Context, call agent.FinishCall) (reply agent.FinishReply, err error) {
	err = m.write(scope{runID: call.RunID, epoch: call.Epoch, facts: call.Facts}, func(t *txn) error {
		if t.run.Status.Terminal() {
			for _, e := range slices.Backward(t.run.events) {
				if e.Type.Terminal() {
					reply = agent.FinishReply{Status: t.run.Status, Sequence: e.Sequence}
					break
				}
			}
			return nil
		}
		if err := t.withdrawApprovals(); err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(t.run.rows)) {
			c := t.run.rows[id]
			state := agent.CommandAborted
			switch {
			case c.State == agent.Dispatched && c.Effect == agent.External:
				state = agent.CommandInDoubt
			case c.State != agent.Dispatched && c.State != agent.Released && c.State != agent.CommandWaiting:
				continue
			}
			t.command = c
			reason := &agent.Error{Code: agent.CodeCancelled, NodeID: c.NodeID, CommandID: id, Message: "the run ended: " + string(call.Status)}
			if err := t.decide(c.Owner, state, reason, 0); err != nil {
				return err
			}
		}
		err := t.end(call)
		reply = agent.FinishReply{Status: call.Status, Sequence: t.last}
		return err
	})
	return reply, err
}

func (t *txn) end(call agent.FinishCall) (err error) {
	switch call.Status {
	case agent.Completed:
		text, commandID, err := t.finalOutput()
		if err != nil {
			return err
		}
		if err := t.event(agent.MessageAdded, "", "", 0, agent.MessageAddedData{Role: agent.AssistantMessage, Content: text}); err != nil {
			return err
		}
		t.message(agent.Message{Role: agent.AssistantMessage, Content: text, CommandID: commandID})
		if err := t.event(agent.RunCompleted, "", "", 0, agent.RunCompletedData{FinalOutput: text, Summary: call.Summary}); err != nil {
			return err
		}
		t.run.FinalOutput = &text
	case agent.FailedStatus:
		nodeID := ""
		if call.Error != nil {
			nodeID = call.Error.NodeID
		}
		err = t.event(agent.RunFailed, nodeID, "", 0, agent.RunFailedData{Error: call.Error})
		t.run.Error = call.Error
	case agent.Cancelled:
		data := agent.RunCancelledData{By: call.By}
		if call.Error != nil {
			data.Reason = call.Error.Message
		}
		err = t.event(agent.RunCancelled, "", "", 0, data)
	default:
		err = fmt.Errorf("%q is not an end", call.Status)
	}
	t.run.Status, t.run.FinishedAt = call.Status, &t.now
	return err
}

// finalOutput is what the last node of the run's plan gave, as text, and the command that gave it.
func (t *txn) finalOutput() (text, commandID string, err error) {
	if t.run.plan != nil {
		last := t.run.plan.Nodes[len(t.run.plan.Nodes)-1].ID
		commandID, _ = t.run.resultCommand(last)
	}
	c := t.run.rows[commandID]
	if c == nil || c.State != agent.Committed {
		return "", "", agent.Failed(agent.CodeInternal, "run %s: the record does not say that its last node has finished", t.run.RunID)
	}
	text, err = agent.AnswerText(c.Kind, c.Result)
	return text, commandID, err
}
