package agenttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"runledger/agent"
	"runledger/policy"
	"runledger/tool"
)

// Answer says what somebody answers when a command comes to wait for an approval, a minute after it was asked for. Edited arguments
// that do not fit the tool's schema fail the test. Without an answer the approval expires.
func (h *Harness) Answer(commandID string, a agent.ApprovalAnswer) {
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	h.ledger.approvals[commandID] = a
}

// edited checks the arguments of an answer, and says how events show them.
func (h *Harness) edited(tools *tool.Set) func(name string, a agent.ApprovalAnswer) (agent.ApprovalAnswer, error) {
	return func(name string, a agent.ApprovalAnswer) (agent.ApprovalAnswer, error) {
		if a.Arguments == nil {
			return a, nil
		}
		if err := tools.Validate(name, a.Arguments); err != nil {
			return a, fmt.Errorf("edited arguments of %s: %w", name, err)
		}
		a.Shown = tools.Validator(name).Public(a.Arguments)
		return a, nil
	}
}

// askApproval puts on record that somebody has to approve a call, unless somebody was asked before: then their answer counts. It
// reports true when the call may be dispatched.
func (t *txn) askApproval(b agent.Begin, begun *agent.Begun) (approved bool, err error) {
	if !t.wasAsked() {
		if err := t.requestApproval(b); err != nil {
			return false, err
		}
	}
	asked := t.command.Approval
	if asked.State == agent.ApprovalOpen && !t.now.Before(asked.ExpiresAt) {
		expired := *asked
		expired.State = agent.ApprovalExpired
		if err := t.resolveApproval(&expired, nil); err != nil {
			return false, err
		}
		asked = &expired
	}
	switch asked.State {
	case agent.ApprovalApproved:
		return true, nil
	case agent.ApprovalDenied, agent.ApprovalExpired:
		t.takeRow(b)
		begun.Verdict = agent.InjectFailure
		return false, t.fail(b, asked.Refusal(b.NodeID, b.CommandID))
	}
	begun.Verdict = agent.MustAwait
	begun.Awaits = &agent.Awaited{For: agent.ForApproval, ApprovalID: asked.ApprovalID, Remaining: agent.Duration(asked.ExpiresAt.Sub(t.now))}
	return false, nil
}

// wasAsked reports whether somebody was asked about the command, and the question or its answer stands.
func (t *txn) wasAsked() bool {
	return t.command != nil && t.command.Approval != nil && t.command.Approval.State != agent.ApprovalWithdrawn
}

// takeBack withdraws the question whether a call may be made that is refused anyhow.
func (t *txn) takeBack() error {
	if !t.wasAsked() || t.command.Approval.State != agent.ApprovalOpen {
		return nil
	}
	return t.withdraw()
}

func (t *txn) withdraw() error {
	withdrawn := *t.command.Approval
	withdrawn.State = agent.ApprovalWithdrawn
	return t.resolveApproval(&withdrawn, nil)
}

// withdrawApprovals ends what nobody has answered when the run ends.
func (t *txn) withdrawApprovals() error {
	waiting := slices.DeleteFunc(slices.Collect(maps.Values(t.run.rows)), func(c *row) bool {
		return c.Approval == nil || c.Approval.State != agent.ApprovalOpen
	})
	slices.SortFunc(waiting, func(a, b *row) int { return a.askedNo - b.askedNo })
	for _, c := range waiting {
		t.command = c
		if err := t.withdraw(); err != nil {
			return err
		}
	}
	return nil
}

func (t *txn) takeRow(b agent.Begin) {
	t.command.NodeID, t.command.Kind, t.command.Tool, t.command.Effect = b.NodeID, b.Kind, b.Tool, b.Effect
	t.command.Owner = b.Dispatch
}

func (t *txn) requestApproval(b agent.Begin) error {
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
	expires := b.Refusal.Expires
	if expires <= 0 {
		expires = agent.DefaultApprovalTimeout
	}
	asked := &agent.ApprovalRow{ApprovalID: newID(), State: agent.ApprovalOpen, Asked: b.ArgumentsHash, Hash: b.ArgumentsHash,
		ExpiresAt: t.now.Add(time.Duration(expires))}
	shown := b.Shown
	if shown == nil {
		shown = b.Input
	}
	if shown == nil {
		shown = json.RawMessage("null")
	}
	err = t.event(agent.ApprovalRequested, b.NodeID, b.CommandID, 0, agent.ApprovalRequestedData{ApprovalID: asked.ApprovalID, Tool: b.Tool, Effect: b.Effect,
		Arguments: agent.ShowValue(agent.CanonicalJSON(shown)), ArgumentsHash: asked.Hash, Reason: b.Refusal.Reason, ExpiresAt: asked.ExpiresAt})
	if err != nil {
		return err
	}
	no := 0
	if t.command != nil {
		no = t.command.DispatchNo
	}
	t.writeRow(b, no, t.now)
	c := t.command
	c.State, c.InputHash, c.LeaseUntil, c.Deadline, c.Approval = agent.CommandWaiting, "", time.Time{}, time.Time{}, asked
	t.memory.asked++
	c.askedNo = t.memory.asked
	t.askSomebody(b.CommandID)
	return nil
}

// resolveApproval writes what became of the command's approval.
func (t *txn) resolveApproval(a *agent.ApprovalRow, shown json.RawMessage) error {
	data := agent.ApprovalResolvedData{ApprovalID: a.ApprovalID, Outcome: a.State, By: a.By, Note: a.Note}
	if a.Edited != nil {
		if shown == nil {
			shown = a.Edited
		}
		t.command.edited = agent.CanonicalJSON(shown)
		value := agent.ShowValue(t.command.edited)
		data.Arguments, data.ArgumentsHash = &value, a.Hash
	}
	t.command.Approval = a
	return t.event(agent.ApprovalResolved, t.command.NodeID, t.command.CommandID, 0, data)
}

// askSomebody has a person answer for a command that waits for an approval, if the test has said how.
func (t *txn) askSomebody(commandID string) {
	answer, ok := t.approvals[commandID]
	if !ok || t.run.later == nil {
		return
	}
	delete(t.approvals, commandID)
	runID, approvalID, no, later, edited, name := t.run.RunID, t.command.Approval.ApprovalID, int64(t.command.askedNo), t.run.later, t.edited, t.command.Tool
	t.after = append(t.after, func() {
		later(agent.ApprovalSignal, agent.Intent{ID: no, CommandID: commandID}, func() error {
			answer, err := edited(name, answer)
			if err != nil {
				return err
			}
			return t.decideApproval(runID, commandID, approvalID, answer)
		})
	})
}

// decideApproval takes somebody's answer to an approval. The first one counts.
func (m *memory) decideApproval(runID, commandID, approvalID string, answer agent.ApprovalAnswer) error {
	var late error
	err := m.write(scope{runID: runID, commandID: commandID, anyEpoch: true}, func(t *txn) error {
		a := t.command.Approval
		given := a.Given(answer)
		switch {
		case a.ApprovalID != approvalID:
			return &agent.NotFoundError{What: "approval", ID: approvalID}
		case a.Same(given):
			return nil
		case a.State == agent.ApprovalExpired:
			return &agent.ConflictError{Reason: agent.ConflictApprovalExpired, Detail: "approval " + approvalID + " has expired"}
		case a.State == agent.ApprovalApproved || a.State == agent.ApprovalDenied:
			return &agent.ConflictError{Reason: agent.ConflictApprovalDecided, Detail: fmt.Sprintf("approval %s was %s by %s", approvalID, a.State, a.By)}
		case t.run.Status.Terminal():
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " has ended"}
		case a.State == agent.ApprovalWithdrawn:
			return &agent.ConflictError{Reason: agent.ConflictApprovalDecided, Detail: "approval " + approvalID + " was withdrawn before anybody answered"}
		case t.run.Status == agent.Cancelling:
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " is being cancelled"}
		case !t.now.Before(a.ExpiresAt):
			given = *a
			given.State, answer.Shown = agent.ApprovalExpired, nil
			late = &agent.ConflictError{Reason: agent.ConflictApprovalExpired, Detail: "approval " + approvalID + " has expired"}
		}
		if t.run.Status == agent.Waiting {
			t.run.Status = agent.Running
		}
		return t.resolveApproval(&given, answer.Shown)
	})
	if err == nil {
		err = late
	}
	return err
}

// approves is the decision that wants an approval.
func approves(b agent.Begin) bool {
	return b.Refusal != nil && b.Refusal.Decision == policy.Ask && b.Kind == agent.ToolCommand
}
