package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// Signal gives a run an input for a wait node, which may wait for it already or come to it later. The same id with the same
// value is kept once; created tells whether this was the first.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has ended or is being cancelled, or the id came with another
// value before.
func (l *Ledger) Signal(ctx context.Context, owner, runID string, in agent.Input) (sequence int64, created bool, err error) {
	_, err = l.control(ctx, owner, runID, "signal", func(t *txn) error {
		created = false
		var value []byte
		err := t.tx.QueryRow(ctx, `SELECT value, sequence_number FROM inputs WHERE run_id = $1 AND name = $2 AND input_id = $3`,
			runID, in.Name, in.InputID).Scan(&value, &sequence)
		switch {
		case err == nil && agent.ArgumentsHash(value) != agent.ArgumentsHash(in.Value):
			return &agent.ConflictError{Reason: agent.ConflictInputReused, Detail: fmt.Sprintf("input %s %s came with another value before", in.Name, in.InputID)}
		case err == nil:
			return nil
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		err = t.event(agent.InputReceived, "", "", 0, agent.InputReceivedData{Name: in.Name, InputID: in.InputID, By: textSafe(in.By), Value: agent.ShowValue(in.Value)})
		if err != nil {
			return err
		}
		sequence, created = t.last, true
		t.writes.Queue(`INSERT INTO inputs (run_id, name, input_id, value, sequence_number, created_at) VALUES ($1, $2, $3, $4, $5, $6)`,
			runID, in.Name, in.InputID, []byte(in.Value), sequence, t.now)
		return t.ask(InputIntent, agent.Intent{Name: in.Name})
	})
	return sequence, created, err
}

// Await lets a wait node begin, and go on when its time has come or there is an input that nobody has taken. Its row is then
// committed or has failed; until then it says what is waited for.
//
// Errors: STALE_EPOCH, and CANCELLED when the run is being cancelled.
func (l *Ledger) Await(ctx context.Context, w agent.Wait) (agent.CommandRow, error) {
	var row *agent.CommandRow
	scope := txnScope{runID: w.RunID, epoch: w.Epoch, commandID: w.CommandID, facts: w.Facts, withState: true, changesRun: true}
	err := l.write(ctx, scope, func(t *txn) error {
		switch {
		case t.run.status.Terminal():
			return t.ended()
		case t.run.status == agent.Cancelling:
			return agent.Failed(agent.CodeCancelled, "run %s is being cancelled", w.RunID)
		}
		if err := t.await(ctx, w); err != nil {
			return err
		}
		row = t.command
		return nil
	})
	if err != nil {
		return agent.CommandRow{}, fmt.Errorf("await %s of run %s: %w", w.CommandID, w.RunID, err)
	}
	return *row, nil
}

func (t *txn) await(ctx context.Context, w agent.Wait) error {
	begun := t.command != nil && t.command.State != agent.Fenced
	switch {
	case begun && t.command.State == agent.Committed:
		return t.finishInjected(ctx, w.Call)
	case begun && t.command.State == agent.CommandFailed, begun && t.command.State == agent.CommandAborted && t.command.Owner.Epoch == w.Epoch:
		return nil
	case begun && t.command.State == agent.CommandWaiting:
	default:
		if err := t.beginWait(w); err != nil {
			return err
		}
	}
	if w.Signal != "" {
		if taken, err := t.takeInput(ctx, w); err != nil || taken {
			return err
		}
	}
	over := !t.command.Deadline.IsZero() && !t.now.Before(t.command.Deadline)
	switch {
	case over && w.Signal == "":
		result, err := json.Marshal(map[string]time.Time{"fired_at": t.now.UTC()})
		if err != nil {
			return err
		}
		return t.commitWait(w, result)
	case over:
		t.goesOnWaiting()
		return t.decide(w.Dispatch, agent.CommandFailed, &agent.Error{Code: agent.CodeTimeout, NodeID: w.NodeID, CommandID: w.CommandID,
			Message: fmt.Sprintf("no input %s came within %s", w.Signal, w.For)}, 0)
	}
	t.command.Awaits = &agent.Awaited{For: agent.ForTimer, Signal: w.Signal}
	if w.Signal != "" {
		t.command.Awaits.For = agent.ForSignal
	}
	if !t.command.Deadline.IsZero() {
		t.command.Awaits.Remaining = agent.Duration(t.command.Deadline.Sub(t.now))
	}
	return nil
}

// beginWait puts a wait on record. One that an earlier epoch has begun begins anew.
func (t *txn) beginWait(w agent.Wait) error {
	b := agent.Begin{Call: w.Call, Dispatch: w.Dispatch, Kind: agent.WaitCommand, Effect: agent.Deterministic, Node: w.Node, Input: w.Input, InputHash: w.InputHash}
	var deadline *time.Time
	if w.For > 0 {
		at := t.now.Add(time.Duration(w.For))
		deadline = &at
	}
	var err error
	switch {
	case t.command == nil || t.command.DispatchNo == 0:
		at := t.now
		if deadline != nil {
			at = *deadline
		}
		err = t.emit(b, at)
	case t.command.State == agent.CommandAborted: // else the resume has said so
		err = t.event(agent.CommandReopened, b.NodeID, b.CommandID, t.command.DispatchNo, agent.CommandReopenedData{Reason: "it was aborted in an earlier epoch"})
	}
	if err != nil {
		return err
	}
	t.command = &agent.CommandRow{RunID: w.RunID, CommandID: w.CommandID, DispatchNo: 1}
	t.takeRow(b)
	t.command.State = agent.CommandWaiting
	if deadline != nil {
		t.command.Deadline = *deadline
	}
	t.writeRow(b, 1, t.now)
	t.writes.Queue(`UPDATE commands SET state = 'waiting', lease_until = NULL, deadline = $3 WHERE run_id = $1 AND command_id = $2`, w.RunID, w.CommandID, deadline)
	return nil
}

// takeInput ends a wait with the oldest input of its name that no wait has taken.
func (t *txn) takeInput(ctx context.Context, w agent.Wait) (taken bool, err error) {
	var id string
	var value []byte
	err = t.tx.QueryRow(ctx, `SELECT input_id, value FROM inputs WHERE run_id = $1 AND name = $2 AND command_id = '' ORDER BY sequence_number LIMIT 1`,
		w.RunID, w.Signal).Scan(&id, &value)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.writes.Queue(`UPDATE inputs SET command_id = $4 WHERE run_id = $1 AND name = $2 AND input_id = $3`, w.RunID, w.Signal, id, w.CommandID)
	return true, t.commitWait(w, value)
}

func (t *txn) commitWait(w agent.Wait, result json.RawMessage) error {
	t.goesOnWaiting()
	return t.commit(agent.Commit{Call: w.Call, Dispatch: w.Dispatch, DispatchNo: t.command.DispatchNo, Result: result,
		Event: agent.CommandCommittedData{Kind: agent.WaitCommand, Output: agent.ShowValue(result)}}, nil)
}
