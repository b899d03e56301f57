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

// QuietRun is an open run that has written nothing for a while, as the watcher looks at it.
type QuietRun struct {
	RunID  string
	Epoch  int
	Status agent.Status
	// Sequence is the number of the run's last event.
	Sequence int64
	// Started says that Temporal has taken the start of this epoch: an execution must be there.
	Started bool
}

// QuietRuns lists open runs whose last event is at least that old, by the database's clock, and to which nothing is on its
// way. They come by run id, those after a given one ("" for the first), at most limit.
func (l *Ledger) QuietRuns(ctx context.Context, quiet time.Duration, after string, limit int) ([]QuietRun, error) {
	rows, err := l.pool.Query(ctx, `SELECT r.run_id, r.epoch, r.status, e.sequence_number,
			EXISTS (SELECT FROM intents i WHERE i.run_id = r.run_id AND i.epoch = r.epoch AND i.kind = 'start')
		FROM agent_executions r CROSS JOIN LATERAL (SELECT sequence_number, created_at FROM agent_execution_events
			WHERE run_id = r.run_id ORDER BY sequence_number DESC LIMIT 1) e
		WHERE r.finished_at IS NULL AND ($1::uuid IS NULL OR r.run_id > $1)
			AND e.created_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
			AND NOT EXISTS (SELECT FROM intents i WHERE i.run_id = r.run_id AND i.delivered_at IS NULL)
		ORDER BY r.run_id LIMIT $3`, nullText(after), quiet.Milliseconds(), limit)
	if err != nil {
		return nil, fmt.Errorf("list quiet runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[QuietRun])
	if err != nil {
		return nil, fmt.Errorf("list quiet runs: %w", err)
	}
	return runs, nil
}

// Recoverable lists runs that Temporal may have lost: open ones, and those that ended as EXECUTION_LOST. They come by run id,
// those after a given one ("" for the first), at most limit. The status of a stuck run is the one it had before.
func (l *Ledger) Recoverable(ctx context.Context, after string, limit int) ([]QuietRun, error) {
	rows, err := l.pool.Query(ctx, `SELECT r.run_id, r.epoch, CASE r.status WHEN 'stuck' THEN coalesce(r.status_before, 'running') ELSE r.status END,
			coalesce((SELECT max(sequence_number) FROM agent_execution_events WHERE run_id = r.run_id), 0),
			EXISTS (SELECT FROM intents i WHERE i.run_id = r.run_id AND i.epoch = r.epoch AND i.kind = 'start' AND i.delivered_at IS NOT NULL)
		FROM agent_executions r WHERE ($1::uuid IS NULL OR r.run_id > $1)
			AND (r.finished_at IS NULL OR r.status = 'failed' AND r.error ->> 'code' = $3 AND r.events_removed_at IS NULL AND r.payloads_removed_at IS NULL)
		ORDER BY r.run_id LIMIT $2`, nullText(after), limit, agent.CodeExecutionLost)
	if err != nil {
		return nil, fmt.Errorf("list runs to recover: %w", err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[QuietRun])
	if err != nil {
		return nil, fmt.Errorf("list runs to recover: %w", err)
	}
	return runs, nil
}

// EndLost ends a run whose execution is over without a word in the ledger: as failed for that reason, or as cancelled, by
// whoever asked for it. One that is being cancelled ends as cancelled, however its execution came to its end. ended is false when the run is no longer as it was looked at; nothing is written then.
func (l *Ledger) EndLost(ctx context.Context, q QuietRun, status agent.Status, reason *agent.Error) (ended bool, err error) {
	call := agent.FinishCall{Scope: agent.Scope{RunID: q.RunID, Epoch: q.Epoch}, Status: status, Error: reason}
	err = l.write(ctx, txnScope{runID: q.RunID, epoch: q.Epoch, changesRun: true}, func(t *txn) error {
		ended = false
		same, err := stillQuiet(ctx, t.tx, q, t.run.epoch, t.run.status)
		if err != nil || !same {
			return err
		}
		if call.Status = status; t.run.status == agent.Cancelling {
			call.Status = agent.Cancelled
		}
		if call.Status == agent.Cancelled {
			if err := t.whoCancelled(ctx, &call); err != nil {
				return err
			}
		}
		if err := t.settleOpen(ctx, call); err != nil {
			return err
		}
		ended = true
		return t.end(ctx, call, true)
	})
	if failure, ok := agent.AsError(err); ok && failure.Code == agent.CodeStaleEpoch {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("end lost run %s: %w", q.RunID, err)
	}
	if ended {
		err = l.endBelow(ctx, call, call.Status)
	}
	return ended, err
}

// whoCancelled puts the person who asked for the end, if anybody did, in the place of what Temporal says.
func (t *txn) whoCancelled(ctx context.Context, call *agent.FinishCall) error {
	var intent agent.Intent
	err := t.tx.QueryRow(ctx, `SELECT payload FROM intents WHERE run_id = $1 AND epoch = $2 AND kind = 'cancel' ORDER BY id LIMIT 1`,
		call.RunID, call.Epoch).Scan(&intent)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	call.By, call.Error = intent.By, &agent.Error{Code: agent.CodeCancelled, Message: intent.Reason}
	return nil
}

// MarkStuck says in the run's row that its execution cannot go on, and why. marked is false when the run is stuck already, is being
// cancelled, which has it end instead, or is no longer as it was looked at.
func (l *Ledger) MarkStuck(ctx context.Context, q QuietRun, reason *agent.Error) (marked bool, err error) {
	raw, err := json.Marshal(reason)
	if err == nil {
		raw, err = jsonbSafe(raw)
	}
	if err != nil {
		return false, fmt.Errorf("mark run %s as stuck: %w", q.RunID, err)
	}
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		var epoch int
		var status agent.Status
		// Locked first: what the run writes after that waits, what it wrote before is seen by the next statement.
		err := tx.QueryRow(ctx, `SELECT epoch, status FROM agent_executions WHERE run_id = $1 FOR NO KEY UPDATE`, q.RunID).Scan(&epoch, &status)
		if err != nil || status == agent.Stuck || status == agent.Cancelling {
			return err
		}
		if marked, err = stillQuiet(ctx, tx, q, epoch, status); err != nil || !marked {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE agent_executions SET status = 'stuck', status_before = status, error = $2 WHERE run_id = $1`,
			q.RunID, string(raw))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("mark run %s as stuck: %w", q.RunID, err)
	}
	return marked, nil
}

// stillQuiet reports whether a run, whose row is locked, is still as it was looked at.
func stillQuiet(ctx context.Context, tx session, q QuietRun, epoch int, status agent.Status) (bool, error) {
	if epoch != q.Epoch || status.Terminal() {
		return false, nil
	}
	var last int64
	err := tx.QueryRow(ctx, `SELECT max(sequence_number) FROM agent_execution_events WHERE run_id = $1`, q.RunID).Scan(&last)
	return last == q.Sequence, err
}

// freeStuck gives a run that is stuck its former status back. One that was given another meanwhile keeps that; only what was
// said of its being stuck goes.
const freeStuck = `UPDATE agent_executions SET status = CASE status WHEN 'stuck' THEN status_before ELSE status END,
		status_before = NULL, error = NULL
	WHERE run_id = $1 AND epoch = $2 AND status_before IS NOT NULL AND finished_at IS NULL`

// Unstick takes back what MarkStuck wrote. freed is false when the run was not stuck.
func (l *Ledger) Unstick(ctx context.Context, q QuietRun) (freed bool, err error) {
	tag, err := l.pool.Exec(ctx, freeStuck, q.RunID, q.Epoch)
	if err != nil {
		return false, fmt.Errorf("free stuck run %s: %w", q.RunID, err)
	}
	return tag.RowsAffected() > 0, nil
}

// goesOn takes the mark off a run that has just written, in that transaction's connection: a run that writes is not stuck.
// It does so in a statement of its own, because the transaction may have held a lock on the row that it must not upgrade.
// What fails here the watcher sets right.
func (l *Ledger) goesOn(ctx context.Context, t *txn, epoch int) {
	if !t.run.stuck {
		return
	}
	if _, err := t.tx.Exec(ctx, freeStuck, t.run.runID, epoch); err != nil {
		l.log.WarnContext(ctx, "a run that was stuck has written and still says that it is stuck", "run_id", t.run.runID, "error", err)
	}
}
