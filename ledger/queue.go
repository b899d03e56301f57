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

// turn is a place in a conversation's queue.
type turn struct {
	place      int64
	interrupts bool
}

// queueUp decides by its strategy what becomes of a new run next to those of its conversation, which is locked, so that no other
// can come or end. nil: it starts at once.
func (t *txn) queueUp(ctx context.Context, s agent.Strategy) (*turn, error) {
	if s == agent.SideBySide {
		return nil, nil
	}
	var (
		open, next    *string
		waiting       int
		first, behind int64
		now           time.Time
	)
	// The time is taken again, after the wait for the lock: runs that wait are older the sooner their turn comes.
	err := t.tx.QueryRow(ctx, `SELECT clock_timestamp(),
			(SELECT r.run_id FROM agent_executions r WHERE r.conversation_id = $1 AND r.finished_at IS NULL
				AND NOT EXISTS (SELECT FROM enqueued q WHERE q.run_id = r.run_id) ORDER BY r.start_sequence DESC LIMIT 1),
			(SELECT q.run_id FROM enqueued q WHERE q.conversation_id = $1 ORDER BY q.place LIMIT 1),
			count(*), coalesce(min(place), 0) - 1, coalesce(max(place), 0) + 1
		FROM enqueued WHERE conversation_id = $1`, t.run.conversationID).Scan(&now, &open, &next, &waiting, &first, &behind)
	if now.After(t.now) {
		t.now = now
	}
	switch {
	case err != nil:
		return nil, err
	case open == nil && next == nil:
		return nil, nil
	case s == agent.Reject:
		if open == nil {
			open = next
		}
		return nil, &agent.ConflictError{Reason: agent.ConflictRunOpen, RunID: *open, Detail: "run " + *open + " of the conversation has not finished"}
	case s == agent.Steer && open != nil:
		return nil, &steering{runID: *open}
	case waiting >= agent.MaxEnqueued:
		return nil, &agent.ConflictError{Reason: agent.ConflictQueueFull, Detail: fmt.Sprintf("%d runs of the conversation wait already", waiting)}
	case s == agent.Interrupt:
		return &turn{place: first, interrupts: true}, nil
	}
	return &turn{place: behind}, nil
}

// steering says that a message is for the run at work, and no run of its own.
type steering struct{ runID string }

func (s *steering) Error() string { return "the message is for run " + s.runID }

// opening is one of the events that a run in the queue begins with.
type opening struct {
	Type   agent.EventType `json:"type"`
	NodeID string          `json:"node_id,omitempty"`
	Data   json.RawMessage `json:"data"`
}

// putOff keeps the events of a run that is being accepted until its turn comes.
func (t *txn) putOff(at *turn) error {
	kept := make([]opening, len(t.newEvents))
	for i, e := range t.newEvents {
		kept[i] = opening{Type: e.Type, NodeID: e.NodeID, Data: e.Data}
	}
	raw, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	t.writes.Queue(`INSERT INTO enqueued (run_id, conversation_id, place, interrupts, opening) VALUES ($1, $2, $3, $4, $5)`,
		t.run.runID, t.run.conversationID, at.place, at.interrupts, string(raw))
	t.writes.Queue(`UPDATE messages SET sequence_number = NULL WHERE id = $1 AND conversation_id = $2`, t.run.messageID, t.run.conversationID)
	t.last -= int64(len(t.newEvents))
	t.newEvents, t.factNos = nil, nil
	return nil
}

// takeTurn takes the transaction's run out of the queue and appends its first events. It reports false when the run is not in the
// queue, or when ready is asked for and its turn has not come.
func (t *txn) takeTurn(ctx context.Context, ready bool) (bool, error) {
	var raw []byte
	err := t.tx.QueryRow(ctx, `SELECT q.opening FROM enqueued q WHERE q.run_id = $1 AND (NOT $2 OR NOT EXISTS (
			SELECT FROM agent_executions r LEFT JOIN enqueued o ON o.run_id = r.run_id
			WHERE r.conversation_id = q.conversation_id AND r.finished_at IS NULL AND (o.run_id IS NULL OR o.place < q.place)))`,
		t.run.runID, ready).Scan(&raw)
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
	t.writes.Queue(`DELETE FROM enqueued WHERE run_id = $1`, t.run.runID)
	t.writes.Queue(`UPDATE agent_executions SET start_sequence = $2 WHERE run_id = $1`, t.run.runID, t.last+1)
	for _, e := range events {
		if err := t.appendEvent(agent.Event{Type: e.Type, NodeID: e.NodeID, Data: e.Data}, 0); err != nil {
			return false, err
		}
		if e.Type == agent.InputReceived {
			if err := t.numberInput(e); err != nil {
				return false, err
			}
		}
		if e.Type == agent.MessageAdded {
			t.writes.Queue(`UPDATE messages SET sequence_number = $2, created_at = $3 WHERE id = $1 AND conversation_id = $4`, t.run.messageID, t.last, t.now,
				t.run.conversationID)
		}
	}
	return true, nil
}

// enqueued reports whether the transaction's run waits in the queue of its conversation.
func (t *txn) enqueued(ctx context.Context) (waits bool, err error) {
	err = t.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM enqueued WHERE run_id = $1)`, t.run.runID).Scan(&waits)
	return waits, err
}

// hasBegun refuses what cannot be asked of a run that waits in the queue.
func (t *txn) hasBegun(ctx context.Context) error {
	if waits, err := t.enqueued(ctx); err != nil || !waits {
		return err
	}
	return &agent.ConflictError{Reason: agent.ConflictRunOpen, RunID: t.run.runID, Detail: "run " + t.run.runID + " waits for others of its conversation and has not begun"}
}

const (
	// releases bounds how many runs one call of ReleaseQueued starts.
	releases = 64
	// releaseTimeout bounds what is done about one run, so that one whose conversation is locked does not hold up the others.
	releaseTimeout = 2 * time.Second
)

// ReleaseQueued gives their turn to runs that wait in the queues of their conversations: the first of each conversation in which
// no run is at work. Where a run waits that interrupts, those that had begun when it came are asked to stop. It tells how many
// runs it has started; there may be more when it was any. It is for the one dispatcher at work on a database; a second
// one at the same time does no harm. What could not be done for one run is in the error, and does not keep it from the others.
func (l *Ledger) ReleaseQueued(ctx context.Context) (released int, err error) {
	rows, err := l.pool.Query(ctx, `SELECT q.run_id FROM
			(SELECT DISTINCT ON (conversation_id) conversation_id, run_id FROM enqueued ORDER BY conversation_id, place) q
		WHERE NOT EXISTS (SELECT FROM agent_executions r WHERE r.conversation_id = q.conversation_id AND r.finished_at IS NULL
			AND NOT EXISTS (SELECT FROM enqueued o WHERE o.run_id = r.run_id))
		LIMIT $1`, releases)
	if err != nil {
		return 0, fmt.Errorf("release queued runs: %w", err)
	}
	ready, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("release queued runs: %w", err)
	}
	var failed []error
	for _, runID := range ready {
		started, err := l.release(ctx, runID)
		if err != nil {
			failed = append(failed, err)
		}
		if started {
			released++
		}
	}
	return released, errors.Join(append(failed, l.interrupt(ctx))...)
}

// release gives one run its turn, if that has come.
func (l *Ledger) release(ctx context.Context, runID string) (started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	err = l.write(ctx, txnScope{runID: runID, anyEpoch: true, changesRun: true}, func(t *txn) error {
		if started, err = t.takeTurn(ctx, true); err != nil || !started {
			return err
		}
		t.queueStart()
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("release run %s: %w", runID, err)
	}
	return started, nil
}

// queueStart queues the intent to start the transaction's run.
func (t *txn) queueStart() {
	t.writes.Queue(`INSERT INTO intents (run_id, epoch, kind) VALUES ($1, $2, 'start')`, t.run.runID, t.run.epoch)
	t.intent = true
}

// interrupt asks the runs to stop that one which waits interrupts: those that had begun when it came. What it waits for is on
// record, so that a request to interrupt is carried out whatever becomes of the process that took it.
func (l *Ledger) interrupt(ctx context.Context) error {
	rows, err := l.pool.Query(ctx, `SELECT DISTINCT ON (r.run_id) r.run_id, i.run_id AS by, c.owner
		FROM enqueued q JOIN agent_executions i ON i.run_id = q.run_id JOIN conversations c ON c.id = q.conversation_id
			JOIN agent_executions r ON r.conversation_id = q.conversation_id AND r.finished_at IS NULL AND r.start_sequence < i.start_sequence
				AND CASE r.status WHEN 'stuck' THEN coalesce(r.status_before, 'running') ELSE r.status END <> 'cancelling'
		WHERE q.interrupts AND NOT EXISTS (SELECT FROM enqueued o WHERE o.run_id = r.run_id)
		ORDER BY r.run_id, q.place DESC`)
	if err != nil {
		return fmt.Errorf("interrupt runs: %w", err)
	}
	type pair struct{ RunID, By, Owner string }
	pairs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pair])
	if err != nil {
		return fmt.Errorf("interrupt runs: %w", err)
	}
	var failed []error
	for _, p := range pairs {
		attempt, cancel := context.WithTimeout(ctx, releaseTimeout)
		_, err := l.RequestCancel(attempt, p.Owner, p.RunID, p.Owner, "interrupted by run "+p.By)
		cancel()
		var ended *agent.ConflictError
		if err != nil && !errors.As(err, &ended) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// wakeQueue lets the dispatcher look at the conversation's queue, if it has one, once the transaction, which ends a run, is written.
func (t *txn) wakeQueue() {
	t.writes.Queue(`SELECT EXISTS (SELECT FROM enqueued WHERE conversation_id = $1)`, t.run.conversationID).
		QueryRow(func(row pgx.Row) error {
			var waiting bool
			err := row.Scan(&waiting)
			t.intent = t.intent || waiting
			return err
		})
}

// QueuedBehind lists the runs that a run in the queue of its conversation waits for, those at work before those that wait; none
// when it does not wait.
func (l *Ledger) QueuedBehind(ctx context.Context, runID string) ([]agent.RunAhead, error) {
	rows, err := l.pool.Query(ctx, `SELECT r.run_id, `+runStatus+` FROM enqueued q
			JOIN agent_executions r ON r.conversation_id = q.conversation_id AND r.finished_at IS NULL
			LEFT JOIN enqueued o ON o.run_id = r.run_id
		WHERE q.run_id = $1 AND (o.run_id IS NULL OR o.place < q.place)
		ORDER BY o.place NULLS FIRST, r.start_sequence`, runID)
	if err != nil {
		return nil, fmt.Errorf("what run %s is queued behind: %w", runID, err)
	}
	ahead, err := pgx.CollectRows(rows, pgx.RowToStructByPos[agent.RunAhead])
	if err != nil {
		return nil, fmt.Errorf("what run %s is queued behind: %w", runID, err)
	}
	return ahead, nil
}
