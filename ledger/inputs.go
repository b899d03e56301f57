package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// Signal gives a run an input for a wait node, which may wait for it already or come to it later. The same id with the same value,
// compared as JSON with its numbers as they stand, is kept once; created tells whether this was the first. The number is that of its event: 0 while the run waits
// for others of its conversation, since none of its events is written then.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the input is new and the run has ended or is being cancelled, the id came with another
// value before, or as many inputs of the run as are kept wait to be taken.
func (l *Ledger) Signal(ctx context.Context, owner, runID string, in agent.Input) (sequence int64, created bool, err error) {
	_, err = l.control(ctx, owner, runID, "signal", func(t *txn) error {
		sequence, created = 0, false
		kept, known, err := keptInput(ctx, t.tx, runID, in)
		if err != nil || known {
			sequence = kept
			return err
		}
		created = true
		sequence, err = t.receive(ctx, in)
		return err
	})
	var conflict *agent.ConflictError
	if errors.As(err, &conflict) && conflict.Reason == agent.ConflictRunEnded {
		// It may have ended because of this very input, whose answer was lost.
		if kept, known, again := keptInput(ctx, l.pool, runID, in); again != nil {
			err = fmt.Errorf("signal run %s: %w", runID, again)
		} else if known {
			return kept, false, nil
		}
	}
	if err != nil {
		return 0, false, err
	}
	return sequence, created, nil
}

// keptInput finds an input that is on record. Error: *agent.ConflictError when its id came with another value.
func keptInput(ctx context.Context, q session, runID string, in agent.Input) (sequence int64, known bool, err error) {
	var value []byte
	err = q.QueryRow(ctx, `SELECT value, sequence_number FROM inputs WHERE run_id = $1 AND name = $2 AND input_id = $3`,
		runID, in.Name, in.InputID).Scan(&value, &sequence)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case agent.ArgumentsHash(value) != agent.ArgumentsHash(in.Value):
		return 0, false, &agent.ConflictError{Reason: agent.ConflictInputReused, Detail: fmt.Sprintf("input %s %s came with another value before", in.Name, in.InputID)}
	}
	return sequence, true, nil
}

// receive keeps a new input.
func (t *txn) receive(ctx context.Context, in agent.Input) (sequence int64, err error) {
	var untaken int
	if err := t.tx.QueryRow(ctx, `SELECT count(*) FROM inputs WHERE run_id = $1 AND command_id = ''`, t.run.runID).Scan(&untaken); err != nil {
		return 0, err
	}
	if untaken >= agent.MaxInputs {
		return 0, &agent.ConflictError{Reason: agent.ConflictInputs, Detail: fmt.Sprintf("%d inputs of run %s wait for a node that takes them", untaken, t.run.runID)}
	}
	data := agent.InputReceivedData{Name: in.Name, InputID: in.InputID, By: textSafe(in.By), Value: agent.ShowValue(in.Value), Hash: agent.ValueHash(in.Value)}
	waits, err := t.receiveQueued(ctx, data)
	if err != nil {
		return 0, err
	}
	if !waits {
		if err := t.event(agent.InputReceived, "", "", 0, data); err != nil {
			return 0, err
		}
		sequence = t.last
		if err := t.ask(InputIntent, agent.Intent{Name: in.Name}); err != nil {
			return 0, err
		}
	}
	t.writes.Queue(`INSERT INTO inputs (run_id, name, input_id, value, sequence_number, created_at) VALUES ($1, $2, $3, $4, $5, $6)`,
		t.run.runID, in.Name, in.InputID, []byte(in.Value), sequence, t.now)
	return sequence, nil
}

// receiveQueued puts the event of an input behind the first events of a run that waits for others of its conversation. It reports
// false when the run has begun.
func (t *txn) receiveQueued(ctx context.Context, data agent.InputReceivedData) (waits bool, err error) {
	var raw []byte
	err = t.tx.QueryRow(ctx, `SELECT opening FROM enqueued WHERE run_id = $1`, t.run.runID).Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var events []opening
	if err := json.Unmarshal(raw, &events); err != nil {
		return false, fmt.Errorf("the first events of run %s: %w", t.run.runID, err)
	}
	doc, err := json.Marshal(data)
	if err != nil {
		return false, err
	}
	if doc, err = jsonbSafe(doc); err != nil {
		return false, err
	}
	if raw, err = json.Marshal(append(events, opening{Type: agent.InputReceived, Data: doc})); err != nil {
		return false, err
	}
	t.writes.Queue(`UPDATE enqueued SET opening = $2 WHERE run_id = $1`, t.run.runID, string(raw))
	return true, nil
}

// numberInput gives an input that came while its run waited in the queue the number of its event, the newest one.
func (t *txn) numberInput(e opening) error {
	var data agent.InputReceivedData
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return fmt.Errorf("an input of run %s: %w", t.run.runID, err)
	}
	t.writes.Queue(`UPDATE inputs SET sequence_number = $4 WHERE run_id = $1 AND name = $2 AND input_id = $3`, t.run.runID, data.Name, data.InputID, t.last)
	return nil
}

// Waits lists the wait nodes of a run that wait, those first that have begun first.
func (l *Ledger) Waits(ctx context.Context, runID string) ([]agent.OpenWait, error) {
	rows, err := l.pool.Query(ctx, `SELECT command_id, node_id, coalesce(convert_from(input, 'UTF8')::json ->> 'signal', ''), emitted_at, deadline
		FROM commands WHERE run_id = $1 AND state = 'waiting' AND kind = 'wait' ORDER BY emitted_at, command_id`, runID)
	if err != nil {
		return nil, fmt.Errorf("waits of run %s: %w", runID, err)
	}
	waits, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.OpenWait, error) {
		var w agent.OpenWait
		err := row.Scan(&w.CommandID, &w.NodeID, &w.Signal, &w.Since, &w.Until)
		w.Since = w.Since.UTC()
		if w.Until != nil {
			at := w.Until.UTC()
			w.Until = &at
		}
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("waits of run %s: %w", runID, err)
	}
	return waits, nil
}

// takeInput ends a wait with an input of its name that no wait has taken. The oldest input is for the wait that has begun first: one
// that is asked earlier leaves it to that.
func (t *txn) takeInput(ctx context.Context, w agent.Wait) (taken bool, err error) {
	var id string
	var value []byte
	err = t.tx.QueryRow(ctx, `SELECT input_id, value FROM inputs WHERE run_id = $1 AND name = $2 AND command_id = '' ORDER BY sequence_number, created_at
		OFFSET (SELECT count(*) FROM commands o LEFT JOIN commands c ON c.run_id = o.run_id AND c.command_id = $3 AND c.state = 'waiting'
			WHERE o.run_id = $1 AND o.kind = 'wait' AND o.state = 'waiting' AND convert_from(o.input, 'UTF8')::json ->> 'signal' = $2
				AND o.command_id <> $3 AND (c.command_id IS NULL OR (o.emitted_at, o.command_id) < (c.emitted_at, c.command_id)))
		LIMIT 1`, w.RunID, w.Signal, w.CommandID).Scan(&id, &value)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.writes.Queue(`UPDATE inputs SET command_id = $4 WHERE run_id = $1 AND name = $2 AND input_id = $3`, w.RunID, w.Signal, id, w.CommandID)
	return true, t.commitWait(w, value)
}
