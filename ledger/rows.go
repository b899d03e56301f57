package ledger

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

const eventColumns = `sequence_number, event_type, conversation_id, run_id, root_run_id, message_id, node_id, command_id, attempt,
	created_at, event_data, epoch`

func scanEvent(row pgx.CollectableRow) (agent.Event, error) { return scanEventAt(row) }

// scanEventAt reads an event that stands behind other columns.
func scanEventAt(row pgx.CollectableRow, before ...any) (agent.Event, error) {
	var e agent.Event
	err := row.Scan(append(before, &e.Sequence, &e.Type, &e.ConversationID, &e.RunID, &e.RootRunID, &e.MessageID, &e.NodeID, &e.CommandID,
		&e.Attempt, &e.CreatedAt, &e.Data, &e.Epoch)...)
	return e, err
}

// commandRowColumns reads a command with its result's bytes, wherever they stand. $1 is the run, $2 the command.
const commandRowColumns = `SELECT c.run_id, c.command_id, c.node_id, c.kind, c.tool, c.effect_class, c.state, c.input_hash, c.dispatch_no, c.base_no,
	c.owner_epoch, c.owner_schedule, c.owner_attempt, c.owner_token, c.lease_until, c.deadline, c.sequence_number,
	coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash)), c.result_hash, c.error, c.resolution, c.goes_on,
	CASE WHEN c.goes_on THEN (SELECT max(m.sequence_number) FROM messages m JOIN agent_executions r USING (run_id, conversation_id)
		WHERE m.run_id = c.run_id AND m.role = 'user' AND m.id <> r.message_id AND m.sequence_number > r.start_sequence) END, c.usage,
	a.approval_id::text, a.state, a.arguments_hash, coalesce(a.edited_hash, a.arguments_hash), a.edited, a.expires_at, a.decided_by, a.note
	FROM commands c LEFT JOIN approvals a ON a.approval_id = c.approval_id WHERE c.run_id = $1 AND c.command_id = $2 `

func collectCommandRow(rows pgx.Rows) (*agent.CommandRow, error) {
	c, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*agent.CommandRow, error) {
		var c agent.CommandRow
		var lease, deadline *time.Time
		var result, failure, edited, usage []byte
		var approval, state, asked, hash, by, note *string
		var expires *time.Time
		var said *int64
		err := row.Scan(&c.RunID, &c.CommandID, &c.NodeID, &c.Kind, &c.Tool, &c.Effect, &c.State, &c.InputHash, &c.DispatchNo, &c.BaseNo,
			&c.Owner.Epoch, &c.Owner.Schedule, &c.Owner.Attempt, &c.Owner.Token, &lease, &deadline, &c.Sequence, &result, &c.ResultHash, &failure, &c.Resolution, &c.GoesOn, &said, &usage,
			&approval, &state, &asked, &hash, &edited, &expires, &by, &note)
		if err != nil {
			return nil, err
		}
		if approval != nil {
			c.Approval = &agent.ApprovalRow{ApprovalID: *approval, State: agent.ApprovalState(*state), Asked: *asked, Hash: *hash, Edited: edited,
				ExpiresAt: *expires, By: *by, Note: *note}
		}
		if lease != nil {
			c.LeaseUntil = *lease
		}
		if deadline != nil {
			c.Deadline = *deadline
		}
		if said != nil {
			c.Said = *said
		}
		c.Result, c.Tokens = result, agent.TokensOf(usage)
		if failure != nil {
			c.Error = &agent.Error{}
			err = json.Unmarshal(failure, c.Error)
		}
		return &c, err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return c, err
}
