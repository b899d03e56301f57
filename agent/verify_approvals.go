package agent

import (
	"encoding/json"
	"fmt"
)

// approvalStory is what the events say of an approval.
type approvalStory struct {
	id        string
	requested *Event
	asked     ApprovalRequestedData
	// resolved is the answer, or why there is none; nil while it is open. hash is that of the arguments that it holds for.
	resolved *Event
	outcome  ApprovalState
	hash     string
}

func (s *approvalStory) state() ApprovalState {
	if s.resolved == nil {
		return ApprovalOpen
	}
	return s.outcome
}

// approvalOf finds the story of an approval, nil when it was never requested.
func (v *verifier) approvalOf(id string) *approvalStory {
	for _, s := range v.approvals {
		if s.id == id {
			return s
		}
	}
	return nil
}

// walkApproval: requested once, while no other one of the command is open, and resolved once.
func (v *verifier) walkApproval(e *Event) {
	c := v.command(e.CommandID)
	if e.Type == ApprovalRequested {
		var d ApprovalRequestedData
		if err := decode(*e, &d); err != nil {
			v.differAt(CheckApproval, e, "data that can be read", err.Error())
			return
		}
		c.refused = true // it may be: by the answer, or by the run's end before there is one
		if v.approvalOf(d.ApprovalID) != nil || c.asked != nil && c.asked.resolved == nil {
			v.differAt(CheckApproval, e, "one question at a time, each asked once", describe(e))
		}
		c.asked = &approvalStory{id: d.ApprovalID, requested: e, asked: d, hash: d.ArgumentsHash}
		v.approvals = append(v.approvals, c.asked)
		return
	}
	var d ApprovalResolvedData
	if err := decode(*e, &d); err != nil {
		v.differAt(CheckApproval, e, "data that can be read", err.Error())
		return
	}
	s := v.approvalOf(d.ApprovalID)
	switch {
	case s == nil || s.requested.CommandID != e.CommandID:
		v.differAt(CheckApproval, e, "approval_requested of approval "+d.ApprovalID+" before it", "none of the command")
		return
	case s.resolved != nil:
		v.differAt(CheckApproval, e, "no other answer after "+describe(s.resolved), describe(e))
		return
	case d.ArgumentsHash != "" && d.Outcome != ApprovalApproved:
		v.differAt(CheckApproval, e, "other arguments of a call that was approved only", "an approval that is "+string(d.Outcome))
	case (d.Outcome == ApprovalApproved || d.Outcome == ApprovalDenied) && e.CreatedAt.After(s.asked.ExpiresAt):
		v.differAt(CheckApproval, e, "an answer before "+s.asked.ExpiresAt.String(), "one at "+e.CreatedAt.String())
	}
	s.resolved, s.outcome = e, d.Outcome
	if d.ArgumentsHash != "" {
		s.hash = d.ArgumentsHash
	}
}

// checkLeave: what somebody was asked about is executed after an approval only, and with the arguments that it holds for.
func (v *verifier) checkLeave(e *Event, c *commandStory) {
	var d CommandEmittedData
	if e.Type == CommandEmitted && decode(*e, &d) != nil {
		return // the fold says so
	}
	asked := c.asked
	if asked != nil && asked.state() == ApprovalWithdrawn {
		asked = nil
	}
	switch {
	case asked != nil && asked.state() != ApprovalApproved:
		v.differAt(CheckApproval, e, "approval_resolved approved before it", "approval "+asked.id+", which is "+string(asked.state()))
	case e.Type != CommandEmitted:
	case asked == nil && d.ApprovalID != "":
		v.differAt(CheckApproval, e, "approval "+d.ApprovalID+" before it", "none")
	case asked != nil && (d.ApprovalID != asked.id || d.ArgumentsHash != asked.hash):
		v.differAt(CheckApproval, e, "approval "+asked.id+" of arguments "+asked.hash, "approval "+d.ApprovalID+" of arguments "+d.ArgumentsHash)
	}
}

// reopenQuestion: an approval holds for another try; what was said otherwise, or of other arguments, does not.
func (c *commandStory) reopenQuestion() {
	if c.asked == nil {
		return
	}
	var failed CommandFailedData
	mismatch := c.outcome != nil && c.outcome.Type == CommandFailedType && decode(*c.outcome, &failed) == nil &&
		failed.Error != nil && failed.Error.Code == CodeMismatch
	if mismatch || c.asked.state() == ApprovalDenied || c.asked.state() == ApprovalExpired {
		c.asked = nil
	}
}

// checkAnswered: a run that has ended waits for nobody.
func (v *verifier) checkAnswered(end *Event) {
	for _, s := range v.approvals {
		if s.resolved == nil {
			v.differAt(CheckApproval, end, "approval_resolved of approval "+s.id+" before it", "none")
		}
	}
}

// ApprovalRecord is an approval's row.
type ApprovalRecord struct {
	ApprovalID string
	CommandID  string
	State      ApprovalState
	// AskedHash is that of the arguments that were asked for, EditedHash that of those in their place, "" for none, and StoredHash
	// what the stored bytes of these are.
	AskedHash  string
	EditedHash string
	StoredHash string
}

// checkApprovals: there is one row for every approval_requested, and it says what the events say.
func (v *verifier) checkApprovals() {
	seen := map[string]bool{}
	for _, a := range v.Approvals {
		s := v.approvalOf(a.ApprovalID)
		if s == nil || seen[a.ApprovalID] {
			v.differ(Difference{Check: CheckApproval, CommandID: a.CommandID, Expected: "approval_requested of approval " + a.ApprovalID, Found: "none"})
			continue
		}
		seen[a.ApprovalID] = true
		edited := ""
		if s.hash != s.asked.ArgumentsHash {
			edited = s.hash
		}
		at := s.requested
		if s.resolved != nil {
			at = s.resolved
		}
		said := func(state ApprovalState, command, asked, edited string) string {
			return fmt.Sprintf("an approval of %s that is %s, of arguments %s, edited %q", command, state, asked, edited)
		}
		want, have := said(s.state(), at.CommandID, s.asked.ArgumentsHash, edited), said(a.State, a.CommandID, a.AskedHash, a.EditedHash)
		if want != have {
			v.differAt(CheckApproval, at, want, have)
		}
		if a.StoredHash != a.EditedHash && !v.without().payloads {
			v.differAt(CheckApproval, at, "stored arguments with the hash "+quote(a.EditedHash), quote(a.StoredHash))
		}
	}
	for _, s := range v.approvals {
		if !seen[s.id] {
			v.differAt(CheckApproval, s.requested, "a row of approval "+s.id, "none")
		}
	}
	for i := range v.Commands {
		c := &v.Commands[i]
		asked := v.command(c.CommandID).asked
		if asked != nil && asked.state() == ApprovalApproved && c.DispatchNo > 0 && c.ArgumentsHash != asked.hash && !v.without().payloads {
			v.differ(Difference{Check: CheckApproval, Sequence: asked.resolved.Sequence, NodeID: c.NodeID, CommandID: c.CommandID,
				Expected: "a row that was called with arguments " + asked.hash, Found: c.ArgumentsHash})
		}
	}
}

// HashArguments is [ArgumentsHash] of arguments that may not be there, "" then.
func HashArguments(args json.RawMessage) string {
	if args == nil {
		return ""
	}
	return ArgumentsHash(args)
}
