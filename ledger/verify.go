package ledger

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// RunRecord reads all that the ledger holds of a run, whoever owns it, as of one moment, for agent.VerifyRun. The chain is
// recomputed from the events of the conversation, on from the oldest that is kept, and results are hashed anew. Error: *agent.NotFoundError.
func (l *Ledger) RunRecord(ctx context.Context, runID string) (*agent.RunRecord, error) {
	if err := checkID("run", runID); err != nil {
		return nil, err
	}
	r := &agent.RunRecord{}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, l.pool, snapshot, func(tx pgx.Tx) error { return readRecord(ctx, tx, runID, r) })
	if err != nil {
		return nil, notFound(err, "run", runID)
	}
	return r, nil
}

func readRecord(ctx context.Context, tx pgx.Tx, runID string, r *agent.RunRecord) (err error) {
	rows, err := tx.Query(ctx, `SELECT `+runColumns+` FROM agent_executions r WHERE r.run_id = $1`, runID)
	if err != nil {
		return err
	}
	if r.Run, err = pgx.CollectExactlyOneRow(rows, scanRun); err != nil {
		return err
	}
	var plan, chain, anchor []byte
	err = tx.QueryRow(ctx, `SELECT r.plan, c.last_sequence, c.chain, c.removed_through, c.removed_chain, EXISTS (SELECT FROM enqueued q WHERE q.run_id = r.run_id)
		FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id WHERE r.run_id = $1`, runID).Scan(&plan, &r.Last, &chain, &r.RemovedThrough, &anchor, &r.Enqueued)
	if err != nil {
		return err
	}
	r.Chain, r.Anchor = hex.EncodeToString(chain), hex.EncodeToString(anchor)
	if plan != nil {
		if r.Plan, err = jsonbSafe(plan); err != nil { // as plan_generated has it
			return err
		}
	}
	if r.Log, err = collect(ctx, tx, scanLink, `SELECT sequence_number,
			event_chain($2, event_digest(e)) OVER (ORDER BY sequence_number)
		FROM agent_execution_events e WHERE conversation_id = $1 AND sequence_number > $3 ORDER BY sequence_number`,
		r.Run.ConversationID, anchor, r.RemovedThrough); err != nil {
		return fmt.Errorf("chain: %w", err)
	}
	if r.Events, err = collect(ctx, tx, scanEvent, `SELECT `+eventColumns+` FROM agent_execution_events
		WHERE run_id = $1 AND conversation_id = $2 AND sequence_number > $3 ORDER BY sequence_number`, runID, r.Run.ConversationID, r.RemovedThrough); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	if r.Commands, err = collect(ctx, tx, scanCommandRecord, `SELECT c.command_id, c.node_id, c.kind, c.tool, c.effect_class, c.input_hash, c.state, c.dispatch_no, c.sequence_number,
			c.unannounced, c.result_hash, c.result_bytes, coalesce(encode(sha256(b.bytes), 'hex'), ''), coalesce(octet_length(b.bytes), 0), c.error, c.heard, c.goes_on,
			c.reused_from, coalesce(o.result_hash, ''), CASE WHEN c.approval_id IS NOT NULL THEN c.input END
		FROM commands c LEFT JOIN commands o ON o.run_id = (c.reused_from ->> 'run_id')::uuid AND o.command_id = c.command_id
			LEFT JOIN payloads p ON c.result IS NULL AND p.hash = c.result_hash
			CROSS JOIN LATERAL (SELECT coalesce(c.result, p.bytes) AS bytes) b
		WHERE c.run_id = $1 ORDER BY c.command_id`, runID); err != nil {
		return fmt.Errorf("commands: %w", err)
	}
	if r.Approvals, err = collect(ctx, tx, scanApprovalRecord, `SELECT approval_id, command_id, state, arguments_hash, coalesce(edited_hash, ''), edited
		FROM approvals WHERE run_id = $1 ORDER BY requested_at, approval_id`, runID); err != nil {
		return fmt.Errorf("approvals: %w", err)
	}
	if r.Checkpoints, err = collect(ctx, tx, scanCheckpointRecord, `SELECT id, checkpoint_type, step_number, sequence_number, execution_state
		FROM execution_checkpoints WHERE run_id = $1 ORDER BY sequence_number, id`, runID); err != nil {
		return fmt.Errorf("checkpoints: %w", err)
	}
	if r.Messages, err = collect(ctx, tx, scanMessageRecord, `SELECT m.id, m.role, m.content, m.command_id, m.sequence_number, coalesce(c.kind, ''),
			coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash))
		FROM messages m LEFT JOIN commands c ON c.run_id = m.run_id AND c.command_id = m.command_id
		WHERE m.run_id = $1 AND m.conversation_id = $2 AND m.sequence_number IS NOT NULL ORDER BY m.sequence_number, m.id`, runID, r.Run.ConversationID); err != nil {
		return fmt.Errorf("messages: %w", err)
	}
	if r.Inputs, err = collect(ctx, tx, scanInputRecord, `SELECT name, input_id, value, sequence_number, command_id
		FROM inputs WHERE run_id = $1 ORDER BY sequence_number, created_at`, runID); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	return nil
}

func collect[T any](ctx context.Context, tx pgx.Tx, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func scanLink(row pgx.CollectableRow) (agent.Link, error) {
	var link agent.Link
	var chain []byte
	err := row.Scan(&link.Sequence, &chain)
	link.Chain = hex.EncodeToString(chain)
	return link, err
}

func scanCommandRecord(row pgx.CollectableRow) (agent.CommandRecord, error) {
	var c agent.CommandRecord
	var input []byte
	err := row.Scan(&c.CommandID, &c.NodeID, &c.Kind, &c.Tool, &c.Effect, &c.InputHash, &c.State, &c.DispatchNo, &c.Sequence, &c.Unannounced, &c.ResultHash, &c.ResultBytes,
		&c.StoredHash, &c.StoredBytes, &c.Error, &c.Heard, &c.GoesOn, &c.ReusedFrom, &c.OriginHash, &input)
	c.ArgumentsHash = agent.HashArguments(input)
	return c, err
}

func scanApprovalRecord(row pgx.CollectableRow) (agent.ApprovalRecord, error) {
	var a agent.ApprovalRecord
	var edited []byte
	err := row.Scan(&a.ApprovalID, &a.CommandID, &a.State, &a.AskedHash, &a.EditedHash, &edited)
	a.StoredHash = agent.HashArguments(edited)
	return a, err
}

func scanCheckpointRecord(row pgx.CollectableRow) (agent.CheckpointRecord, error) {
	var c agent.CheckpointRecord
	err := row.Scan(&c.CheckpointID, &c.Type, &c.Step, &c.Sequence, &c.State)
	return c, err
}

func scanInputRecord(row pgx.CollectableRow) (agent.InputRecord, error) {
	var i agent.InputRecord
	var value []byte
	err := row.Scan(&i.Name, &i.InputID, &value, &i.Sequence, &i.CommandID)
	i.Value = value
	return i, err
}

func scanMessageRecord(row pgx.CollectableRow) (agent.MessageRecord, error) {
	var m agent.MessageRecord
	var result []byte
	err := row.Scan(&m.MessageID, &m.Role, &m.Content, &m.CommandID, &m.Sequence, &m.Kind, &result)
	m.Result = result
	return m, err
}
