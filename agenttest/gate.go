package agenttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"runledger/agent"
)

// Begin lets a dispatch execute a command, or tells what stands in its way.
func (m *memory) Begin(_ context.Context, b agent.Begin) (begun agent.Begun, err error) {
	err = m.write(scope{runID: b.RunID, epoch: b.Epoch, commandID: b.CommandID, facts: b.Facts}, func(t *txn) error {
		if t.run.Status.Terminal() {
			return t.ended()
		}
		if err := t.fence(b.Within); err != nil {
			return err
		}
		var record *agent.CommandRow
		if t.command != nil {
			record = &t.command.CommandRow
		}
		begun = agent.Begun{Verdict: agent.Admit(record, agent.Ask{Dispatch: b.Dispatch, InputHash: b.InputHash,
			Reconciles: b.Reconciles, VoidNo: b.VoidNo, ArgumentsHash: b.ArgumentsHash}, t.now)}
		if err := t.begin(b, &begun); err != nil {
			return err
		}
		switch begun.Verdict {
		case agent.MayExecute, agent.MayExecuteAgain, agent.MayProceed, agent.MustWait:
		default:
			begun.Row = t.decided(false).Row
		}
		return nil
	})
	return begun, err
}

func (t *txn) begin(b agent.Begin, begun *agent.Begun) error {
	switch begun.Verdict {
	case agent.MayExecute, agent.MayExecuteAgain:
		if t.run.Status == agent.Cancelling {
			return agent.Failed(agent.CodeCancelled, "run %s is being cancelled", t.run.RunID)
		}
		if b.OutOfTime(t.now) {
			begun.Verdict = agent.IsOutOfTime
			return nil
		}
		if begun.Verdict == agent.MayExecute {
			return t.dispatch(b, begun)
		}
		reason := "the worker was lost"
		if b.VoidNo == t.command.DispatchNo {
			reason += "; the tool has found out that the effect did not take place"
		}
		if err := t.event(agent.AttemptDiscarded, b.NodeID, b.CommandID, t.command.DispatchNo, agent.AttemptDiscardedData{Reason: reason}); err != nil {
			return err
		}
		return t.dispatch(b, begun)
	case agent.MayProceed:
		begun.DispatchNo, begun.BaseNo, begun.Remaining = t.command.DispatchNo, t.command.BaseNo, t.command.Deadline.Sub(t.now)
		t.command.LeaseUntil = t.now.Add(agent.Lease)
	case agent.MustReconcile:
		begun.DispatchNo, begun.Remaining = t.command.DispatchNo, t.command.Deadline.Sub(t.now)
	case agent.MustWait:
		begun.Wait = t.command.LeaseUntil.Sub(t.now)
	case agent.MustDoubt:
		reason := &agent.Error{Code: agent.CodeInDoubt, CommandID: b.CommandID, NodeID: b.NodeID, Message: "the worker was lost while the effect was at work"}
		if b.Unfound != "" {
			reason.Message = "nobody knows how the effect ended, and its tool could not find out: " + b.Unfound
		}
		return t.decide(b.Dispatch, agent.CommandInDoubt, reason, 0)
	case agent.GiveUp:
		return t.fail(b, &agent.Error{Code: agent.CodeTooManyTries, CommandID: b.CommandID, NodeID: b.NodeID,
			Message: fmt.Sprintf("dispatched %d times without a result", t.command.DispatchNo-t.command.BaseNo)})
	case agent.Inject:
		if b.Ends && !t.command.GoesOn && agent.EndsNode(t.command.Kind, t.command.Result) && !t.run.state.Finished.Has(b.NodeIndex) {
			return t.finishNode(b.Call, t.command.Kind, t.command.Result)
		}
	case agent.InjectFailure, agent.IsInDoubt, agent.Refuse, agent.Mismatch, agent.UseArguments:
	case agent.MustAwait, agent.IsPaused, agent.IsOutOfTime: // not of Admit's making
	}
	return nil
}

// fail decides a command that ends without an execution.
func (t *txn) fail(b agent.Begin, reason *agent.Error) error {
	if err := t.decide(b.Dispatch, agent.CommandFailed, reason, 0); err != nil || b.FailureMessage == nil {
		return err
	}
	t.failureMessage(b.FailureMessage, reason)
	return nil
}

func (t *txn) failureMessage(m *agent.Message, reason *agent.Error) {
	copied := *m
	copied.Content = reason.Error()
	t.message(copied)
}

// refuse puts on record that the policy is against a command.
func (t *txn) refuse(b agent.Begin, begun *agent.Begun) error {
	if err := t.takeBack(); err != nil {
		return err
	}
	if !t.hasOpened() {
		if err := t.openNode(b); err != nil {
			return err
		}
	}
	err := t.event(agent.PolicyDecided, b.NodeID, b.CommandID, 0, agent.PolicyDecidedData{Decision: b.Refusal.Decision, Reason: b.Refusal.Reason,
		Kind: b.Kind, Tool: b.Tool, Effect: b.Effect})
	if err != nil {
		return err
	}
	no := 0
	if t.command != nil {
		no = t.command.DispatchNo
	}
	t.writeRow(b, no, t.now)
	message := "the policy says " + string(b.Refusal.Decision)
	if b.Refusal.Reason != "" {
		message += ": " + b.Refusal.Reason
	}
	begun.Verdict = agent.InjectFailure
	return t.fail(b, &agent.Error{Code: agent.CodeRefused, NodeID: b.NodeID, CommandID: b.CommandID, Message: message})
}

func (t *txn) dispatch(b agent.Begin, begun *agent.Begun) error {
	switch asks := approves(b); {
	case b.Refusal != nil && !asks:
		return t.refuse(b, begun)
	case asks, t.wasAsked():
		if approved, err := t.askApproval(b, begun); err != nil || !approved {
			return err
		}
	}
	begun.DispatchNo, begun.Remaining = 1, time.Duration(b.Timeout)
	if t.command != nil {
		begun.DispatchNo, begun.BaseNo = t.command.DispatchNo+1, t.command.BaseNo
	}
	deadline := t.now.Add(begun.Remaining)
	var err error
	switch {
	case begun.DispatchNo == 1:
		err = t.emit(b, deadline)
	case t.command.State == agent.CommandAborted:
		err = t.event(agent.CommandReopened, b.NodeID, b.CommandID, begun.DispatchNo, agent.CommandReopenedData{Reason: "it was aborted in an earlier epoch"})
	}
	if err == nil {
		t.writeRow(b, begun.DispatchNo, deadline)
	}
	return err
}

// writeRow gives a command to a dispatch.
func (t *txn) writeRow(b agent.Begin, dispatchNo int, deadline time.Time) {
	c := &row{CommandRow: agent.CommandRow{RunID: b.RunID, CommandID: b.CommandID, NodeID: b.NodeID, Kind: b.Kind, Tool: b.Tool, Effect: b.Effect,
		State: agent.Dispatched, InputHash: b.InputHash, DispatchNo: dispatchNo, Owner: b.Dispatch, LeaseUntil: t.now.Add(agent.Lease), Deadline: deadline},
		input: b.Input, heard: b.Heard, emittedAt: t.now}
	if b.Model != nil {
		c.model = b.Model.Model
	}
	if old := t.command; old != nil {
		c.BaseNo, c.Resolution, c.Approval, c.askedNo, c.edited = old.BaseNo, old.Resolution, old.Approval, old.askedNo, old.edited
		if old.DispatchNo > 0 {
			c.emittedAt = old.emittedAt
		}
	}
	if !slices.Contains(t.run.emitted, b.CommandID) {
		t.run.emitted = append(t.run.emitted, b.CommandID)
	}
	t.command = c
	t.run.rows[b.CommandID] = c
}

// emit appends what precedes the first execution of a command.
func (t *txn) emit(b agent.Begin, deadline time.Time) error {
	if !t.hasOpened() {
		if err := t.openNode(b); err != nil {
			return err
		}
	}
	data := agent.CommandEmittedData{Kind: b.Kind, Tool: b.Tool, Model: b.Model, Effect: b.Effect, InputHash: b.InputHash, Heard: b.Heard,
		IdempotencyKey: agent.IdempotencyKey(b.RunID, b.CommandID), Deadline: deadline}
	if t.wasAsked() {
		data.ApprovalID, data.ArgumentsHash = t.command.Approval.ApprovalID, b.ArgumentsHash
	}
	if b.Input != nil {
		shown := agent.ShowValue(b.Input)
		if b.Shown != nil {
			shown = agent.ShowValue(b.Shown)
		}
		data.Input = &shown
	}
	if err := t.event(agent.CommandEmitted, b.NodeID, b.CommandID, 1, data); err != nil || b.Checkpoint == "" {
		return err
	}
	return t.checkpoint(b.Checkpoint, b.NodeID, b.CommandID)
}

// hasOpened reports whether the command has opened its node: when it was dispatched before, or when somebody was asked about it.
func (t *txn) hasOpened() bool {
	return t.command != nil && (t.command.DispatchNo > 0 || t.command.Approval != nil)
}

func (t *txn) openNode(b agent.Begin) error {
	if b.Plan != nil {
		if err := t.event(agent.PlanStarted, b.NodeID, "", 0, b.Plan); err != nil {
			return err
		}
	}
	if b.Node != nil {
		return t.event(agent.NodeStarted, b.NodeID, "", 0, b.Node)
	}
	return nil
}

func (t *txn) finishNode(call agent.Call, kind agent.CommandKind, result json.RawMessage) error {
	output, err := agent.NodeOutput(kind, result)
	if err != nil {
		return err
	}
	err = t.event(agent.NodeFinished, call.NodeID, "", 0,
		agent.NodeFinishedData{Index: call.NodeIndex, ResultCommand: call.CommandID, Output: agent.ShowOutput(kind, output)})
	if err != nil {
		return err
	}
	return t.checkpoint(agent.NodeBoundary, call.NodeID, "")
}

// Renew prolongs the lease of a dispatch that is still at work and tells where its run stands.
func (m *memory) Renew(_ context.Context, runID, commandID string, epoch, dispatchNo int) (status agent.Status, owned bool, err error) {
	err = m.write(scope{runID: runID, epoch: epoch, commandID: commandID, anyEpoch: true}, func(t *txn) error {
		status = t.run.Status
		if c := t.command; c != nil && (c.State == agent.Dispatched || c.State == agent.CommandInDoubt) && c.DispatchNo == dispatchNo &&
			t.run.Epoch == epoch {
			c.LeaseUntil, owned = t.now.Add(agent.Lease), true
		}
		return nil
	})
	return status, owned, err
}

// decided is what the record says of the command, in a copy that later transactions do not change.
func (t *txn) decided(mine bool) agent.Decided {
	if t.command == nil {
		return agent.Decided{}
	}
	copied := t.command.CommandRow
	return agent.Decided{Row: &copied, Mine: mine}
}

// speaks tells whether a dispatch may decide its command, and whether that resolves a doubt.
func (t *txn) speaks(c agent.Call, d agent.Dispatch, dispatchNo int, reconciled bool) (may, resolves bool, err error) {
	if t.command == nil {
		return false, false, t.current(c, errors.New("it was never dispatched"))
	}
	owns := t.command.DispatchNo == dispatchNo && t.command.Owner == d
	if reconciled { // its tool speaks for a dispatch that nobody holds any more
		owns = t.command.DispatchNo == dispatchNo && (t.command.State == agent.CommandInDoubt || !t.now.Before(t.command.LeaseUntil))
	}
	if owns && t.command.State == agent.CommandInDoubt {
		return true, true, nil
	}
	return owns && t.command.State == agent.Dispatched, false, t.current(c, nil)
}

func (t *txn) current(c agent.Call, otherwise error) error {
	switch {
	case t.run.Epoch != c.Epoch:
		return staleEpoch(c.RunID, t.run.Epoch, c.Epoch)
	case t.run.Status.Terminal():
		return t.ended()
	}
	return otherwise
}

func resultHash(result []byte) string {
	sum := sha256.Sum256(result)
	return hex.EncodeToString(sum[:])
}
