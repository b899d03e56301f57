package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// RecordEffect gives the value of a recorded Now, UUID or Random: the one on record under its command, in whatever epoch it
// was recorded, else v.Value, which goes on record with its event in the same transaction. Two who ask at once get the same.
//
// Errors: STALE_EPOCH when the execution has been replaced or the run has ended, SUPERSEDED when the tool that asks has lost
// its command, COMMAND_MISMATCH when the command is on record as something else; anything else is a failure of the database.
func (l *Ledger) RecordEffect(ctx context.Context, v agent.NewValue) (agent.EffectReply, error) {
	var reply agent.EffectReply
	scope := txnScope{runID: v.RunID, epoch: v.Epoch, commandID: v.CommandID, facts: v.Facts, witness: &reply.Witness}
	err := l.write(ctx, scope, func(t *txn) error {
		if t.run.status.Terminal() {
			return t.ended()
		}
		if err := t.fence(ctx, v.Within); err != nil {
			return err
		}
		if t.command == nil {
			if err := t.recordValue(v); err != nil {
				return err
			}
		} else if t.command.Kind != v.Kind || t.command.State != agent.Committed {
			return agent.Failed(agent.CodeMismatch, "the command is on record as %s, %s; this is %s", t.command.Kind, t.command.State, v.Kind)
		}
		reply = agent.EffectReply{Value: t.command.Result, Sequence: t.command.Sequence}
		return nil
	})
	if err != nil {
		return agent.EffectReply{}, fmt.Errorf("record effect %s of run %s: %w", v.CommandID, v.RunID, err)
	}
	return reply, nil
}

// recordValue writes the event of a new value and its command, committed from the start.
func (t *txn) recordValue(v agent.NewValue) error {
	var typ agent.EventType
	switch v.Kind {
	case agent.NowCommand:
		typ, v.Value = agent.TimerFired, agent.TimeValue(t.now)
	case agent.UUIDCommand:
		typ = agent.UUIDRecorded
	case agent.RandomCommand:
		typ = agent.RandomRecorded
	default:
		return agent.Failed(agent.CodeInternal, "%q is not a kind of recorded value", v.Kind)
	}
	if !json.Valid(v.Value) {
		return agent.Failed(agent.CodeInternal, "the value of a recorded %s is not JSON", v.Kind)
	}
	hash := ResultHash(v.Value)
	if err := t.event(typ, v.NodeID, v.CommandID, 1, agent.ValueRecordedData{Kind: v.Kind, Value: v.Value, Hash: hash}); err != nil {
		return err
	}
	owner := agent.Dispatch{Epoch: v.Epoch}
	if v.Within != nil {
		owner = v.Within.Dispatch
	}
	t.command = &agent.CommandRow{RunID: v.RunID, CommandID: v.CommandID, NodeID: v.NodeID, Kind: v.Kind, Effect: agent.Deterministic,
		State: agent.Committed, DispatchNo: 1, Owner: owner, Sequence: t.last, Result: v.Value, ResultHash: hash}
	// The kind is all of its input: under the gate this command is never taken for another.
	t.writes.Queue(`INSERT INTO commands (run_id, command_id, node_id, kind, effect_class, state, input_hash, dispatch_no, owner_epoch, owner_schedule,
			owner_attempt, sequence_number, result, result_hash, result_bytes, emitted_at, decided_at, owner_token)
		VALUES ($1, $2, $3, $4, $5, 'committed', $4, 1, $6, $7, $8, $9, $10, $11, $12, $13, $13, $14)`,
		v.RunID, v.CommandID, v.NodeID, v.Kind, agent.Deterministic, owner.Epoch, owner.Schedule, owner.Attempt,
		t.last, []byte(v.Value), hash, len(v.Value), t.now, owner.Token)
	return nil
}

// fence refuses what a tool asks for when its dispatch no longer owns the tool's command. A command in doubt still belongs to
// the dispatch that may bring a late result. The counter is locked, so that nobody decides the command meanwhile.
func (t *txn) fence(ctx context.Context, within *agent.Within) error {
	if within == nil {
		return nil
	}
	var owned bool
	err := t.tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM commands WHERE run_id = $1 AND command_id = $2 AND dispatch_no = $3
			AND owner_epoch = $4 AND owner_schedule = $5 AND owner_attempt = $6 AND owner_token = $7 AND state IN ('dispatched', 'in_doubt'))`,
		t.run.runID, within.CommandID, within.DispatchNo, within.Dispatch.Epoch, within.Dispatch.Schedule, within.Dispatch.Attempt,
		within.Dispatch.Token).Scan(&owned)
	if err == nil && !owned {
		err = agent.Failed(agent.CodeSuperseded, "command %s is no longer that of this dispatch", within.CommandID)
	}
	return err
}

// doubtWithin settles a tool's command that has an effect within it of which nobody knows: the effect is in doubt, and so is
// the command, whatever its class is. It reports false when there is none.
func (t *txn) doubtWithin(ctx context.Context, call agent.SettleCall) (bool, error) {
	owner := t.command
	if owner == nil || owner.Reopened() || owner.Kind != agent.ToolCommand || owner.State != agent.Dispatched && owner.State != agent.Released ||
		owner.Owner.Epoch == call.Epoch && owner.Owner.Schedule > call.Schedule {
		return false, nil
	}
	var inner string
	err := t.tx.QueryRow(ctx, `SELECT command_id FROM commands WHERE run_id = $1 AND starts_with(command_id, $2) AND effect_class = 'external'
		AND state IN ('dispatched', 'in_doubt') ORDER BY command_id LIMIT 1`, t.run.runID, agent.EffectCommandID(owner.CommandID, "")).Scan(&inner)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	rows, err := t.tx.Query(ctx, commandRowColumns+`FOR NO KEY UPDATE OF c`, t.run.runID, inner)
	if err != nil {
		return false, err
	}
	if t.command, err = collectCommandRow(rows); err != nil {
		return false, err
	}
	reason := &agent.Error{Code: agent.CodeInDoubt, NodeID: owner.NodeID, CommandID: inner, Message: "its tool was given up while it was at work"}
	if t.command.State == agent.Dispatched {
		if err := t.decide(t.command.Owner, agent.CommandInDoubt, reason, 0); err != nil {
			return false, err
		}
	}
	t.command = owner
	return true, t.decide(owner.Owner, agent.CommandInDoubt, reason, 0)
}
