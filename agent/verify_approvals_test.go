package agent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// askFor puts on record that somebody is asked about node i's call.
func (b *book) askFor(i int, approvalID, hash string) {
	id := nodeID(i)
	b.event(agent.NodeStarted, id, "", agent.NodeStartedData{Index: i})
	b.event(agent.PolicyDecided, id, id, agent.PolicyDecidedData{Decision: "ask"})
	b.event(agent.ApprovalRequested, id, id, agent.ApprovalRequestedData{ApprovalID: approvalID, ArgumentsHash: hash, ExpiresAt: time.Unix(1000, 0)})
	b.Approvals = append(b.Approvals, agent.ApprovalRecord{ApprovalID: approvalID, CommandID: id, State: agent.ApprovalOpen, AskedHash: hash})
	b.Commands = append(b.Commands, agent.CommandRecord{CommandID: id, NodeID: id, Kind: agent.ToolCommand, State: agent.CommandWaiting})
}

func (b *book) answer(i int, outcome agent.ApprovalState, edited string) {
	a := &b.Approvals[i]
	a.State, a.EditedHash, a.StoredHash = outcome, edited, edited
	b.event(agent.ApprovalResolved, nodeID(i), nodeID(i), agent.ApprovalResolvedData{ApprovalID: a.ApprovalID, Outcome: outcome, ArgumentsHash: edited})
}

func (b *book) emitApproved(i int, approvalID, hash string) {
	id := nodeID(i)
	b.event(agent.CommandEmitted, id, id, agent.CommandEmittedData{Kind: agent.ToolCommand, ApprovalID: approvalID, ArgumentsHash: hash})
	row := b.row(id)
	row.State, row.DispatchNo, row.ArgumentsHash = agent.Dispatched, 1, hash
}

// approvals is the record of a run whose first call was approved, the second with other arguments; the third was denied.
func approvals() *book {
	b := newBook(3)
	b.askFor(0, "p0", "h0")
	b.answer(0, agent.ApprovalApproved, "")
	b.emitApproved(0, "p0", "h0")
	b.commit(0)
	b.askFor(1, "p1", "h1")
	b.answer(1, agent.ApprovalApproved, "h1'")
	b.emitApproved(1, "p1", "h1'")
	b.commit(1)
	b.askFor(2, "p2", "h2")
	b.answer(2, agent.ApprovalDenied, "")
	b.end(2, agent.CommandFailed)
	b.close(agent.FailedStatus)
	return b
}

// edit changes the data of the nth event of a type.
func edit[T any](b *book, typ agent.EventType, n int, change func(*T)) {
	for i := range b.Events {
		if b.Events[i].Type != typ {
			continue
		}
		if n--; n >= 0 {
			continue
		}
		var d T
		if err := json.Unmarshal(b.Events[i].Data, &d); err != nil {
			panic(err)
		}
		change(&d)
		b.Events[i].Data, _ = json.Marshal(d)
		return
	}
	panic("no such event")
}

func TestApprovalsVerify(t *testing.T) {
	t.Parallel()
	require.Empty(t, approvals().verify().Differences)

	withdrawn := newBook(1)
	withdrawn.askFor(0, "p0", "h0")
	withdrawn.answer(0, agent.ApprovalWithdrawn, "")
	withdrawn.end(0, agent.CommandAborted)
	withdrawn.close(agent.Cancelled)
	require.Empty(t, withdrawn.verify().Differences)

	for name, c := range map[string]struct {
		change func(*book)
		want   string
	}{
		"a denial that was made an approval": {func(b *book) {
			edit(b, agent.ApprovalResolved, 2, func(d *agent.ApprovalResolvedData) { d.Outcome = agent.ApprovalApproved })
		}, "that is approved"},
		"an approval that was made a denial": {func(b *book) {
			edit(b, agent.ApprovalResolved, 0, func(d *agent.ApprovalResolvedData) { d.Outcome = agent.ApprovalDenied })
		}, "approval_resolved approved before it"},
		"an execution without an answer": {func(b *book) {
			edit(b, agent.ApprovalResolved, 0, func(d *agent.ApprovalResolvedData) { d.ApprovalID = "other" })
		}, "approval_requested of approval other before it"},
		"other arguments than those approved": {func(b *book) {
			edit(b, agent.CommandEmitted, 0, func(d *agent.CommandEmittedData) { d.ArgumentsHash = "else" })
		}, "approval p0 of arguments h0"},
		"the arguments from before they were edited": {func(b *book) {
			edit(b, agent.CommandEmitted, 1, func(d *agent.CommandEmittedData) { d.ArgumentsHash = "h1" })
		}, "approval p1 of arguments h1'"},
		"the approval of another call": {func(b *book) {
			edit(b, agent.CommandEmitted, 1, func(d *agent.CommandEmittedData) { d.ApprovalID = "p0" })
		}, "approval p1 of arguments"},
		"no approval named": {func(b *book) {
			edit(b, agent.CommandEmitted, 0, func(d *agent.CommandEmittedData) { d.ApprovalID = "" })
		}, "approval p0 of arguments h0"},
		"two answers": {func(b *book) { b.answer(0, agent.ApprovalApproved, "") }, "no other answer after"},
		"an answer that came too late": {func(b *book) {
			for i := range b.Events {
				b.Events[i].CreatedAt = time.Unix(1001, 0)
			}
		}, "an answer before"},
		"a row that says otherwise":     {func(b *book) { b.Approvals[2].State = agent.ApprovalApproved }, "that is denied"},
		"a row of other arguments":      {func(b *book) { b.Approvals[0].AskedHash = "else" }, "of arguments h0"},
		"a row with its edit gone":      {func(b *book) { b.Approvals[1].EditedHash, b.Approvals[1].StoredHash = "", "" }, `edited "h1'"`},
		"bytes that are not the edited": {func(b *book) { b.Approvals[1].StoredHash = "else" }, "stored arguments with the hash"},
		"a command's row of others":     {func(b *book) { b.row("n1").ArgumentsHash = "h1" }, "a row that was called with arguments h1'"},
		"a row that is gone":            {func(b *book) { b.Approvals = b.Approvals[1:] }, "a row of approval p0"},
		"a row that came from nowhere": {func(b *book) {
			b.Approvals = append(b.Approvals, agent.ApprovalRecord{ApprovalID: "px", CommandID: "n0"})
		}, "approval_requested of approval px"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := approvals()
			c.change(b)
			var found []string
			for _, d := range b.verify().Differences {
				if d.Check == agent.CheckApproval {
					found = append(found, d.Expected)
				}
			}
			require.Contains(t, strings.Join(found, "\n"), c.want)
		})
	}

	open := newBook(1)
	open.askFor(0, "p0", "h0")
	open.end(0, agent.CommandAborted)
	open.close(agent.Cancelled)
	require.Contains(t, open.verify().Differences[0].Expected, "approval_resolved of approval p0")
}
