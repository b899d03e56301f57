package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// How soon a call that found all slots in use comes back: when one is given back nobody tells.
const (
	firstBusyWait   = 200 * time.Millisecond
	longestBusyWait = 4 * time.Second
)

// TakeSlot takes a slot for a dispatch that is about to begin a call with a limit, or tells how long to wait before it asks again. A
// command that would not be executed, since it is decided or its run does not go on, needs no slot and does not wait.
//
// The slot is in use until the command's dispatch ends or its lease is over. [Ledger.ReturnSlot] gives one back that was not used.
func (l *Ledger) TakeSlot(ctx context.Context, s agent.Slot) (wait time.Duration, err error) {
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		wait, err = takeSlot(ctx, tx, s)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("take a slot of %s for command %s of run %s: %w", s.Limit.Name, s.CommandID, s.RunID, err)
	}
	return wait, nil
}

// inUse tells of a slot s and its command's row c, which may not be there, whether it is in use at $2, with a lease of $3 ms.
const inUse = `CASE WHEN c.owner_token = s.token THEN c.state = 'dispatched' AND c.lease_until > $2::timestamptz
		ELSE s.taken_at > $2::timestamptz - $3::bigint * interval '1 millisecond' END`

func takeSlot(ctx context.Context, tx pgx.Tx, s agent.Slot) (wait time.Duration, err error) {
	var needed bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM agent_executions e LEFT JOIN commands c ON c.run_id = e.run_id AND c.command_id = $2
			WHERE e.run_id = $1 AND e.epoch = $3 AND e.status NOT IN ('cancelling', 'completed', 'failed', 'cancelled') AND e.pause_intent IS NULL
				AND (c.state IS NULL OR c.state NOT IN ('committed', 'failed', 'in_doubt', 'dispatched') OR c.state = 'dispatched' AND c.lease_until <= clock_timestamp()))`,
		s.RunID, s.CommandID, s.Epoch).Scan(&needed)
	if err != nil || !needed {
		return 0, err
	}
	var queued *time.Time // nil before the first wait
	var batch pgx.Batch
	batch.Queue(`INSERT INTO tool_limits (name) VALUES ($1) ON CONFLICT DO NOTHING`, s.Limit.Name)
	batch.Queue(`SELECT nullif(queued_until, '-infinity') FROM tool_limits WHERE name = $1 FOR UPDATE`, s.Limit.Name).QueryRow(
		func(row pgx.Row) error { return row.Scan(&queued) })
	var now time.Time
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, err
	}

	lease := agent.Lease.Milliseconds()
	atWork := 0
	var last *time.Time // when the call began with which the rate is used up, nil when it is not
	batch = pgx.Batch{}
	batch.Queue(`DELETE FROM tool_slots s WHERE name = $1 AND taken_at <= $2::timestamptz - greatest($4::bigint, $3) * interval '1 millisecond'
			AND NOT EXISTS (SELECT FROM commands c WHERE c.run_id = s.run_id AND c.command_id = s.command_id AND `+inUse+`)`,
		s.Limit.Name, now, lease, s.Limit.Rate.Per.Milliseconds())
	if s.Limit.MaxConcurrent > 0 {
		batch.Queue(`SELECT count(*) FROM tool_slots s LEFT JOIN commands c USING (run_id, command_id) WHERE s.name = $1 AND s.token <> $4 AND `+inUse,
			s.Limit.Name, now, lease, s.Token).QueryRow(func(row pgx.Row) error { return row.Scan(&atWork) })
	}
	if s.Limit.Rate.Calls > 0 {
		batch.Queue(`SELECT (SELECT taken_at FROM tool_slots WHERE name = $1 AND token <> $2 ORDER BY taken_at DESC OFFSET $3 LIMIT 1)`,
			s.Limit.Name, s.Token, s.Limit.Rate.Calls-1).QueryRow(func(row pgx.Row) error { return row.Scan(&last) })
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, err
	}
	if s.Limit.MaxConcurrent > 0 && atWork >= s.Limit.MaxConcurrent {
		return busyWait(s.Attempt), nil
	}
	if at := rateAllows(s, now, last, queued); at.After(now) {
		_, err := tx.Exec(ctx, `UPDATE tool_limits SET queued_until = $2 WHERE name = $1`, s.Limit.Name, at)
		return at.Sub(now), err
	}
	_, err = tx.Exec(ctx, `INSERT INTO tool_slots (name, token, run_id, command_id, taken_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (name, token) DO UPDATE SET taken_at = excluded.taken_at`, s.Limit.Name, s.Token, s.RunID, s.CommandID, now)
	return 0, err
}

// rateAllows gives the time at which a call may begin by its rate: now, or later, behind those that wait already. last is when the call
// began with which the rate was used up, queued when the last of those that wait comes back; nil for neither.
func rateAllows(s agent.Slot, now time.Time, last, queued *time.Time) time.Time {
	at := now
	if s.Limit.Rate.Calls == 0 {
		return at
	}
	if last != nil {
		if free := last.Add(s.Limit.Rate.Per); free.After(at) {
			at = free
		}
	}
	// Who has waited does not go to the end of the queue again when it may begin; who comes new does not go past the queue.
	if queued != nil && (at.After(now) || s.Attempt <= 1 && queued.After(now)) {
		if turn := queued.Add(s.Limit.Rate.Per / time.Duration(s.Limit.Rate.Calls)); turn.After(at) {
			at = turn
		}
	}
	return at
}

// busyWait is longer for those that have come back often, and not the same for all that came at once.
func busyWait(attempt int32) time.Duration {
	wait := firstBusyWait << min(max(attempt-1, 0), 10)
	wait = min(wait, longestBusyWait)
	return wait/2 + rand.N(wait) //nolint:gosec // nobody gains by guessing it
}

// ReturnSlot gives back a slot that was not used. It counts for nothing then.
func (l *Ledger) ReturnSlot(ctx context.Context, s agent.Slot) error {
	if _, err := l.pool.Exec(ctx, `DELETE FROM tool_slots WHERE name = $1 AND token = $2`, s.Limit.Name, s.Token); err != nil {
		return fmt.Errorf("return the slot of %s that command %s of run %s has not used: %w", s.Limit.Name, s.CommandID, s.RunID, err)
	}
	return nil
}
