package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// askApproval puts on record that somebody has to approve a call, unless somebody was asked before: then their answer counts. It
// reports true when the call may be dispatched.
func (t *txn) askApproval(b agent.Begin, begun *agent.Begun) (approved bool, err error) {
	var asked *agent.ApprovalRow
	if t.command != nil {
		asked = t.command.Approval
	}
	if asked == nil || asked.State == agent.ApprovalWithdrawn {
		if asked, err = t.requestApproval(b); err != nil {
			return false, err
		}
	}
	if asked.State == agent.ApprovalOpen && !t.now.Before(asked.ExpiresAt) {
		asked.State = agent.ApprovalExpired
		if err := t.resolveApproval(b.NodeID, b.CommandID, asked, nil); err != nil {
			return false, err
		}
	}
	switch asked.State {
	case agent.ApprovalApproved:
		return true, nil
	case agent.ApprovalDenied, agent.ApprovalExpired:
		t.takeRow(b)
		begun.Verdict, begun.Row = agent.InjectFailure, t.command
		return false, t.fail(b, asked.Refusal(b.NodeID, b.CommandID))
	}
	begun.Verdict, begun.Row = agent.MustAwait, t.command
	begun.Awaits = &agent.Awaited{For: agent.ForApproval, ApprovalID: asked.ApprovalID, Remaining: agent.Duration(asked.ExpiresAt.Sub(t.now))}
	return false, nil
}

// wasAsked reports whether somebody was asked about the command, and the question or its answer stands.
func (t *txn) wasAsked() bool {
	return t.command != nil && t.command.Approval != nil && t.command.Approval.State != agent.ApprovalWithdrawn
}

// takeBack withdraws the question whether a call may be made that is refused anyhow.
func (t *txn) takeBack(b agent.Begin) error {
	if !t.wasAsked() || t.command.Approval.State != agent.ApprovalOpen {
		return nil
	}
	t.command.Approval.State = agent.ApprovalWithdrawn
	return t.resolveApproval(b.NodeID, b.CommandID, t.command.Approval, nil)
}

// takeRow gives the row of a command that is not dispatched to whoever has begun it.
func (t *txn) takeRow(b agent.Begin) {
	t.command.NodeID, t.command.Kind, t.command.Tool, t.command.Effect = b.NodeID, b.Kind, b.Tool, b.Effect
	t.command.Owner = b.Dispatch
}

func (t *txn) requestApproval(b agent.Begin) (*agent.ApprovalRow, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	if !t.hasOpened() {
		if err := t.openNode(b); err != nil {
			return nil, err
		}
	}
	err = t.event(agent.PolicyDecided, b.NodeID, b.CommandID, 0, agent.PolicyDecidedData{Decision: b.Refusal.Decision, Reason: b.Refusal.Reason,
		Kind: b.Kind, Tool: b.Tool, Effect: b.Effect})
	if err != nil {
		return nil, err
	}
	expires := b.Refusal.Expires
	if expires <= 0 {
		expires = agent.DefaultApprovalTimeout
	}
	asked := &agent.ApprovalRow{ApprovalID: id.String(), State: agent.ApprovalOpen, Asked: b.ArgumentsHash, Hash: b.ArgumentsHash, ExpiresAt: t.now.Add(time.Duration(expires)).UTC()}
	shown := b.Shown
	if shown == nil {
		shown = b.Input
	}
	if shown == nil {
		shown = json.RawMessage("null")
	}
	shown = agent.CanonicalJSON(shown)
	err = t.event(agent.ApprovalRequested, b.NodeID, b.CommandID, 0, agent.ApprovalRequestedData{ApprovalID: asked.ApprovalID, Tool: b.Tool, Effect: b.Effect,
		Arguments: agent.ShowValue(shown), ArgumentsHash: asked.Hash, Reason: b.Refusal.Reason, ExpiresAt: asked.ExpiresAt})
	if err != nil {
		return nil, err
	}
	if t.command == nil {
		t.command = &agent.CommandRow{RunID: b.RunID, CommandID: b.CommandID}
	}
	t.takeRow(b)
	t.writeRow(b, t.command.DispatchNo, t.now)
	t.writes.Queue(`INSERT INTO approvals (approval_id, run_id, node_id, command_id, tool, effect_class, arguments, arguments_hash, reason, requested_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, id, b.RunID, b.NodeID, b.CommandID, textSafe(b.Tool), b.Effect,
		textSafe(string(shown)), asked.Hash, textSafe(b.Refusal.Reason), t.now, asked.ExpiresAt)
	// Which input the command will have is for the answer to say.
	t.writes.Queue(`UPDATE commands SET state = 'waiting', approval_id = $3, input_hash = '', lease_until = NULL, deadline = NULL
		WHERE run_id = $1 AND command_id = $2`, b.RunID, b.CommandID, id)
	t.command.State, t.command.Approval = agent.CommandWaiting, asked
	return asked, nil
}

// resolveApproval writes what became of an approval. shown are the arguments that were put in the place of those asked for,
// without their secrets; nil for none.
func (t *txn) resolveApproval(nodeID, commandID string, a *agent.ApprovalRow, shown json.RawMessage) error {
	data := agent.ApprovalResolvedData{ApprovalID: a.ApprovalID, Outcome: a.State, By: a.By, Note: a.Note}
	if a.Edited == nil {
		shown = nil
	} else {
		if shown == nil {
			shown = a.Edited
		}
		shown = agent.CanonicalJSON(shown)
		value := agent.ShowValue(shown)
		data.Arguments, data.ArgumentsHash = &value, a.Hash
	}
	if err := t.event(agent.ApprovalResolved, nodeID, commandID, 0, data); err != nil {
		return err
	}
	var edited []byte
	var hash *string
	if a.Edited != nil {
		edited, hash = a.Edited, &a.Hash
	}
	t.writes.Queue(`UPDATE approvals SET state = $2, decided_at = $3, decided_by = $4, note = $5, edited = $6, edited_hash = $7,
		arguments = coalesce($8::json, arguments) WHERE approval_id = $1`,
		a.ApprovalID, a.State, t.now, a.By, a.Note, edited, hash, nullJSON(shown))
	return nil
}

// DecideApproval takes somebody's answer to an approval. The first one counts; the same answer again changes nothing.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when somebody has answered otherwise, the time is over or the run has
// ended.
func (l *Ledger) DecideApproval(ctx context.Context, owner, approvalID string, answer agent.ApprovalAnswer) (agent.Approval, error) {
	approval, err := l.Approval(ctx, owner, approvalID)
	if err != nil {
		return agent.Approval{}, err
	}
	var late error
	scope := txnScope{runID: approval.RunID, anyEpoch: true, commandID: approval.CommandID, changesRun: true}
	err = l.write(ctx, scope, func(t *txn) error {
		late = nil
		a, err := t.lockApproval(ctx, approvalID)
		if err != nil {
			return err
		}
		given := a.Given(answer)
		given.By, given.Note = textSafe(given.By), textSafe(given.Note)
		switch {
		case a.Same(given):
			return nil
		case a.State == agent.ApprovalExpired:
			return &agent.ConflictError{Reason: agent.ConflictApprovalExpired, Detail: "approval " + approvalID + " has expired: nobody had answered in time"}
		case a.State == agent.ApprovalApproved || a.State == agent.ApprovalDenied:
			return &agent.ConflictError{Reason: agent.ConflictApprovalDecided, Detail: fmt.Sprintf("approval %s was %s by %s", approvalID, a.State, a.By)}
		case t.run.status.Terminal():
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "approval " + approvalID + " was withdrawn, since run " + approval.RunID + " has ended: " + string(t.run.status)}
		case a.State == agent.ApprovalWithdrawn:
			return &agent.ConflictError{Reason: agent.ConflictApprovalDecided, Detail: "approval " + approvalID + " was withdrawn before anybody answered"}
		case t.run.status == agent.Cancelling:
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + approval.RunID + " is being cancelled"}
		case !t.now.Before(a.ExpiresAt):
			given = a
			given.State, answer.Shown = agent.ApprovalExpired, nil
			late = &agent.ConflictError{Reason: agent.ConflictApprovalExpired, Detail: "approval " + approvalID + " has expired"}
		}
		if err := t.resolveApproval(approval.NodeID, approval.CommandID, &given, answer.Shown); err != nil {
			return err
		}
		t.goesOnWaiting()
		return t.ask(ApprovalIntent, agent.Intent{CommandID: approval.CommandID})
	})
	if err == nil {
		err = late
	}
	if err != nil {
		return agent.Approval{}, fmt.Errorf("decide approval %s: %w", approvalID, err)
	}
	return l.Approval(ctx, owner, approvalID)
}

// goesOnWaiting says in the run's row that a run which has stood still is at work again.
func (t *txn) goesOnWaiting() {
	switch t.run.status {
	case agent.Waiting, agent.InDoubt, agent.LimitReached: // what else it waits for it says when nothing can go on again
		t.writes.Queue(`UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, t.run.runID)
	}
}

func (t *txn) lockApproval(ctx context.Context, id string) (a agent.ApprovalRow, err error) {
	err = t.tx.QueryRow(ctx, `SELECT approval_id, state, arguments_hash, coalesce(edited_hash, arguments_hash), edited, expires_at, decided_by, note
		FROM approvals WHERE approval_id = $1 FOR NO KEY UPDATE`, id).
		Scan(&a.ApprovalID, &a.State, &a.Asked, &a.Hash, &a.Edited, &a.ExpiresAt, &a.By, &a.Note)
	return a, err
}

// withdrawApprovals ends what nobody has answered when the run ends.
func (t *txn) withdrawApprovals(ctx context.Context) error {
	rows, err := t.tx.Query(ctx, `SELECT approval_id, node_id, command_id, arguments_hash, expires_at FROM approvals
		WHERE run_id = $1 AND state = 'open' ORDER BY approval_id FOR NO KEY UPDATE`, t.run.runID)
	if err != nil {
		return err
	}
	type open struct {
		agent.ApprovalRow
		nodeID, commandID string
	}
	asked, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o open, err error) {
		err = row.Scan(&o.ApprovalID, &o.nodeID, &o.commandID, &o.Hash, &o.ExpiresAt)
		return o, err
	})
	if err != nil {
		return err
	}
	for _, o := range asked {
		o.State = agent.ApprovalWithdrawn
		if err := t.resolveApproval(o.nodeID, o.commandID, &o.ApprovalRow, nil); err != nil {
			return err
		}
	}
	return nil
}

const approvalColumns = `a.approval_id, a.run_id, r.conversation_id, a.node_id, a.command_id, a.tool, a.effect_class, a.arguments,
	coalesce(a.edited_hash, a.arguments_hash), a.reason, a.state, a.requested_at, a.expires_at, a.decided_at, a.decided_by, a.note, a.edited IS NOT NULL
	FROM approvals a JOIN agent_executions r USING (run_id) JOIN conversations c ON c.id = r.conversation_id`

func scanApproval(row pgx.CollectableRow) (a agent.Approval, err error) {
	var arguments []byte
	err = row.Scan(&a.ApprovalID, &a.RunID, &a.ConversationID, &a.NodeID, &a.CommandID, &a.Tool, &a.Effect, &arguments, &a.ArgumentsHash,
		&a.Reason, &a.State, &a.RequestedAt, &a.ExpiresAt, &a.DecidedAt, &a.By, &a.Note, &a.Edited)
	a.Arguments = arguments
	return a, err
}

// Approval reads an approval of an owner. Error: *agent.NotFoundError.
func (l *Ledger) Approval(ctx context.Context, owner, approvalID string) (agent.Approval, error) {
	if err := checkID("approval", approvalID); err != nil {
		return agent.Approval{}, err
	}
	rows, err := l.pool.Query(ctx, `SELECT `+approvalColumns+` WHERE a.approval_id = $1 AND (c.owner = $2 OR $2 = '*')`, approvalID, owner)
	if err != nil {
		return agent.Approval{}, fmt.Errorf("read approval %s: %w", approvalID, err)
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanApproval)
	if errors.Is(err, pgx.ErrNoRows) {
		return a, &agent.NotFoundError{What: "approval", ID: approvalID}
	}
	return a, err
}

// Approvals lists approvals, newest first. hasMore is exact.
func (l *Ledger) Approvals(ctx context.Context, f agent.ApprovalFilter) (approvals []agent.Approval, hasMore bool, err error) {
	for what, id := range map[string]string{"run": f.RunID, "approval": f.Before} {
		if id == "" {
			continue
		}
		if err := checkID(what, id); err != nil {
			return nil, false, err
		}
	}
	rows, err := l.pool.Query(ctx, `SELECT `+approvalColumns+` WHERE (c.owner = $1 OR $1 = '*') AND ($2::uuid IS NULL OR a.run_id = $2) AND ($3 = '' OR a.state = $3)
			AND ($4::uuid IS NULL OR (a.requested_at, a.approval_id) < (SELECT b.requested_at, b.approval_id FROM approvals b
				JOIN agent_executions br USING (run_id) JOIN conversations bc ON bc.id = br.conversation_id WHERE b.approval_id = $4 AND (bc.owner = $1 OR $1 = '*')))
		ORDER BY a.requested_at DESC, a.approval_id DESC LIMIT $5`, f.Owner, nullText(f.RunID), string(f.State), nullText(f.Before), f.Limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list approvals: %w", err)
	}
	return page(rows, scanApproval, f.Limit, "list approvals")
}
