package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

const (
	// retainAtOnce bounds how many conversations or runs are looked at together.
	retainAtOnce = 200
	// sweepAtOnce bounds how many events one statement deletes.
	sweepAtOnce = 1000
	// chainAtOnce bounds how many events are hashed in one statement.
	chainAtOnce = 5000
)

// over is the condition under which nobody needs a run's record any more, $1 being the age in microseconds. A run that has not
// ended needs all of it, and so does one that holds a command in doubt; a fork asks for the calls that its source has made for as long
// as it can go on, or be forked itself; and what a run has had done by others stands with those.
const over = `(r.finished_at < clock_timestamp() - $1::bigint * interval '1 microsecond'
	AND NOT EXISTS (SELECT FROM commands d WHERE d.run_id = r.run_id AND d.state = 'in_doubt')
	AND NOT EXISTS (SELECT FROM agent_executions o WHERE o.run_id = r.root_run_id AND o.finished_at IS NULL)
	AND NOT EXISTS (SELECT FROM fork_priors p JOIN agent_executions f ON f.run_id = p.run_id
		WHERE p.source_run_id = r.run_id AND f.events_removed_at IS NULL AND f.payloads_removed_at IS NULL))`

// Retain removes what is older than it is to be kept, and counts it; with dryRun it only counts. Events go by whole runs, the oldest
// of a conversation first, so that a log is kept from some number on without a gap: a run that is kept keeps those after it. Nothing
// that is at work waits for it, apart from one that wants to resume or fork such a run. It may be done by several at once, and broken
// off at any time; the error says why it was.
func (l *Ledger) Retain(ctx context.Context, r agent.Retention, dryRun bool) (agent.RemovedCounts, error) {
	var n agent.RemovedCounts
	if r.Output > 0 {
		if err := l.removeOutput(ctx, r.Output, dryRun, &n); err != nil {
			return n, fmt.Errorf("remove output older than %s: %w", r.Output, err)
		}
	}
	if r.Payloads > 0 {
		if err := l.removePayloads(ctx, r.Payloads, dryRun, &n); err != nil {
			return n, fmt.Errorf("remove payloads older than %s: %w", r.Payloads, err)
		}
	}
	if r.Events > 0 {
		if err := l.removeEvents(ctx, r.Events, dryRun, &n); err != nil {
			return n, fmt.Errorf("remove events older than %s: %w", r.Events, err)
		}
	}
	return n, nil
}

// A dispatch that is at work holds its lease.
const oldOutput = ` FROM model_output o WHERE NOT EXISTS (SELECT FROM commands c JOIN agent_executions r USING (run_id)
	WHERE c.run_id = o.run_id AND c.command_id = o.command_id
		AND (coalesce(c.decided_at, c.lease_until, c.emitted_at) >= clock_timestamp() - $1::bigint * interval '1 microsecond'
			OR r.finished_at IS NULL AND c.state = 'dispatched' AND c.dispatch_no = o.attempt))`

func (l *Ledger) removeOutput(ctx context.Context, age time.Duration, dryRun bool, n *agent.RemovedCounts) error {
	if dryRun {
		return l.pool.QueryRow(ctx, `SELECT count(*)`+oldOutput, age.Microseconds()).Scan(&n.Output)
	}
	tag, err := l.pool.Exec(ctx, `DELETE`+oldOutput, age.Microseconds())
	n.Output = tag.RowsAffected()
	return err
}

func (l *Ledger) removeEvents(ctx context.Context, age time.Duration, dryRun bool, n *agent.RemovedCounts) error {
	for after := ""; ; {
		ids, err := l.ids(ctx, `SELECT DISTINCT r.conversation_id FROM agent_executions r WHERE r.events_removed_at IS NULL
				AND r.finished_at < clock_timestamp() - $1::bigint * interval '1 microsecond' AND ($2::uuid IS NULL OR r.conversation_id > $2)
			ORDER BY 1 LIMIT $3`, age.Microseconds(), nullText(after), retainAtOnce)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := l.markConversation(ctx, id, age, dryRun, n); err != nil {
				return fmt.Errorf("conversation %s: %w", id, err)
			}
			after = id
		}
		if len(ids) < retainAtOnce {
			break
		}
	}
	if dryRun {
		return nil
	}
	return l.sweep(ctx, n)
}

func (l *Ledger) ids(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := l.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// keptRun is a run of a conversation that still has its events, the numbers of the first and the last of them, and whether it needs
// them no more.
type keptRun struct {
	runID       string
	first, last int64
	over        bool
}

// prefix is the beginning of a conversation's log that nobody needs: it begins behind the number from, goes through another, and
// holds all events of its runs, and of no other.
type prefix struct {
	from, through int64
	chain         []byte // after from
	runs          []string
}

// readPrefix finds the longest one. The order of runs is that of their first events.
func readPrefix(ctx context.Context, db session, conversationID string, age time.Duration) (p prefix, err error) {
	err = db.QueryRow(ctx, `SELECT removed_through, removed_chain FROM conversations WHERE id = $1`, conversationID).Scan(&p.from, &p.chain)
	if err != nil {
		return p, err
	}
	rows, err := db.Query(ctx, `SELECT r.run_id, r.start_sequence,
			coalesce((SELECT max(e.sequence_number) FROM agent_execution_events e WHERE e.run_id = r.run_id), r.start_sequence), coalesce(`+over+`, false)
		FROM agent_executions r WHERE r.conversation_id = $2 AND r.events_removed_at IS NULL ORDER BY r.start_sequence, r.run_id`,
		age.Microseconds(), conversationID)
	if err != nil {
		return p, err
	}
	runs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k keptRun, err error) {
		return k, row.Scan(&k.runID, &k.first, &k.last, &k.over)
	})
	if err != nil {
		return p, err
	}
	p.through = p.from
	last := p.from
	var ids []string
	for _, r := range runs {
		if last < r.first {
			p.through, p.runs = last, ids
		}
		if !r.over {
			return p, nil
		}
		last, ids = max(last, r.last), append(ids, r.runID)
	}
	p.through, p.runs = last, ids
	return p, nil
}

// markConversation says of a conversation's beginning that it is no longer kept. From then on nobody begins to read there.
func (l *Ledger) markConversation(ctx context.Context, id string, age time.Duration, dryRun bool, n *agent.RemovedCounts) error {
	p, err := readPrefix(ctx, l.pool, id, age)
	if err != nil || p.through == p.from {
		return ignoreMissing(err)
	}
	if dryRun {
		var checkpoints int64
		err := l.pool.QueryRow(ctx, `SELECT count(*) FROM execution_checkpoints WHERE run_id IN (SELECT run_id FROM agent_executions WHERE conversation_id = $1) AND sequence_number <= $2`, id, p.through).Scan(&checkpoints)
		n.Conversations, n.Runs = n.Conversations+1, n.Runs+int64(len(p.runs))
		n.Events, n.Checkpoints = n.Events+p.through-p.from, n.Checkpoints+checkpoints
		return err
	}
	// Before anything is locked: events do not change, and hashing them takes a while.
	chain := p.chain
	for from := p.from; from < p.through; {
		through := min(from+chainAtOnce, p.through)
		err := l.pool.QueryRow(ctx, `SELECT event_chain($2, event_digest(e) ORDER BY sequence_number) FROM agent_execution_events e
			WHERE conversation_id = $1 AND sequence_number > $3 AND sequence_number <= $4`, id, chain, from, through).Scan(&chain)
		if err != nil {
			return err
		}
		from = through
	}
	marked := false
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// A resume, and a fork of one of them, come before this or find what it has done.
		if _, err := tx.Exec(ctx, `SELECT FROM agent_executions WHERE run_id = ANY ($1) ORDER BY run_id FOR NO KEY UPDATE`, p.runs); err != nil {
			return err
		}
		now, err := readPrefix(ctx, tx, id, age)
		if err != nil || now.from != p.from || now.through < p.through {
			return err // somebody needs them again, or has removed them: another round will see
		}
		marked = true
		if _, err := tx.Exec(ctx, `UPDATE agent_executions SET events_removed_at = clock_timestamp() WHERE run_id = ANY ($1)`, p.runs); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE conversations SET removed_through = $2, removed_chain = $3 WHERE id = $1`, id, p.through, chain)
		return err
	})
	if marked && err == nil {
		n.Conversations, n.Runs = n.Conversations+1, n.Runs+int64(len(p.runs))
	}
	return ignoreMissing(err)
}

// ignoreMissing makes nothing of a conversation that was deleted meanwhile.
func ignoreMissing(err error) error {
	if notFound(err, "", "") != nil && isNoRows(err) {
		return nil
	}
	return err
}

// sweep deletes what nobody begins to read any more, also what an earlier round has left.
func (l *Ledger) sweep(ctx context.Context, n *agent.RemovedCounts) error {
	type unswept struct {
		ID            string
		From, Through int64
	}
	for {
		rows, err := l.pool.Query(ctx, `SELECT id::text, swept_through, removed_through FROM conversations WHERE swept_through < removed_through
			ORDER BY id LIMIT $1`, retainAtOnce)
		if err != nil {
			return err
		}
		left, err := pgx.CollectRows(rows, pgx.RowToStructByPos[unswept])
		if err != nil || len(left) == 0 {
			return err
		}
		for _, c := range left {
			if err := l.sweepOne(ctx, c.ID, c.From, c.Through, n); err != nil {
				return fmt.Errorf("conversation %s: %w", c.ID, err)
			}
		}
	}
}

// sweepOne deletes from the oldest event on, so that what is left is a log without a gap at all times.
func (l *Ledger) sweepOne(ctx context.Context, id string, from, through int64, n *agent.RemovedCounts) error {
	for ; from < through; from += sweepAtOnce {
		var batch pgx.Batch
		to := min(from+sweepAtOnce, through)
		count := func(total *int64, sql string, args ...any) {
			batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
				rows.Close()
				*total += rows.CommandTag().RowsAffected()
				return rows.Err()
			})
		}
		count(&n.Events, `DELETE FROM agent_execution_events WHERE conversation_id = $1 AND sequence_number <= $2`, id, to)
		count(&n.Checkpoints, `DELETE FROM execution_checkpoints WHERE run_id IN (SELECT run_id FROM agent_executions WHERE conversation_id = $1) AND sequence_number <= $2`, id, to)
		if to == through {
			batch.Queue(`DELETE FROM intents i USING agent_executions r WHERE r.conversation_id = $1 AND r.events_removed_at IS NOT NULL
				AND i.run_id = r.run_id AND i.delivered_at IS NOT NULL`, id)
			batch.Queue(`UPDATE conversations SET swept_through = $2 WHERE id = $1 AND swept_through < $2`, id, through)
		}
		if err := l.pool.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
	}
	return nil
}
