package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// agedRun is a run that has ended long ago.
type agedRun struct {
	RunID      string
	FinishedAt time.Time
}

func (l *Ledger) removePayloads(ctx context.Context, age time.Duration, dryRun bool, n *agent.RemovedCounts) error {
	for last := (agedRun{}); ; {
		rows, err := l.pool.Query(ctx, `SELECT r.run_id::text, r.finished_at FROM agent_executions r WHERE r.payloads_removed_at IS NULL AND `+over+`
				AND ($2::uuid IS NULL OR (r.finished_at, r.run_id) > ($3, $2)) ORDER BY r.finished_at, r.run_id LIMIT $4`,
			age.Microseconds(), nullText(last.RunID), last.FinishedAt, retainAtOnce)
		if err != nil {
			return err
		}
		runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[agedRun])
		if err != nil {
			return err
		}
		for _, last = range runs {
			if err := l.removeRunPayloads(ctx, last.RunID, age, dryRun, n); err != nil {
				return fmt.Errorf("run %s: %w", last.RunID, err)
			}
		}
		if len(runs) < retainAtOnce {
			return nil
		}
	}
}

func (l *Ledger) removeRunPayloads(ctx context.Context, runID string, age time.Duration, dryRun bool, n *agent.RemovedCounts) error {
	counted := *n
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		counted = *n
		// A resume, and a fork of the run, come before this or find what it has done. The condition is asked behind the lock.
		if _, err := tx.Exec(ctx, `SELECT FROM agent_executions WHERE run_id = $1 FOR NO KEY UPDATE`, runID); err != nil {
			return err
		}
		var still bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM agent_executions r WHERE r.run_id = $2 AND r.payloads_removed_at IS NULL AND `+over+`)`,
			age.Microseconds(), runID).Scan(&still)
		if err != nil || !still {
			return err
		}
		var commands, bytes int64
		err = tx.QueryRow(ctx, `SELECT count(*), coalesce(sum(coalesce(octet_length(input), 0) + result_bytes), 0) FROM commands
			WHERE run_id = $1 AND (input IS NOT NULL OR result_bytes > 0)`, runID).Scan(&commands, &bytes)
		if err != nil {
			return err
		}
		counted.PayloadRuns, counted.Commands, counted.Bytes = counted.PayloadRuns+1, counted.Commands+commands, counted.Bytes+bytes
		hashes, err := payloadHashes(ctx, tx, []string{runID})
		if err != nil {
			return err
		}
		if dryRun {
			// Each run by itself: a payload that two runs to be cleared refer to is not counted.
			var alone int64
			err := tx.QueryRow(ctx, `SELECT count(*) FROM unnest($1::text[]) AS h (hash) WHERE NOT EXISTS (SELECT FROM commands c JOIN agent_executions r USING (run_id)
				WHERE c.result IS NULL AND c.result_hash = h.hash AND c.result_hash <> '' AND r.payloads_removed_at IS NULL AND r.run_id <> $2)`, hashes, runID).Scan(&alone)
			counted.Payloads += alone
			return err
		}
		var batch pgx.Batch
		batch.Queue(`UPDATE commands SET input = NULL, result = NULL WHERE run_id = $1`, runID)
		batch.Queue(`UPDATE approvals SET edited = NULL WHERE run_id = $1 AND edited IS NOT NULL`, runID)
		batch.Queue(`DELETE FROM inputs WHERE run_id = $1`, runID)
		batch.Queue(`UPDATE agent_executions SET payloads_removed_at = clock_timestamp() WHERE run_id = $1`, runID)
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
		removed, err := removeUnreferred(ctx, tx, hashes)
		counted.Payloads += removed
		return err
	})
	if err == nil {
		*n = counted
	}
	return err
}

// payloadHashes lists the large results of runs.
func payloadHashes(ctx context.Context, tx session, runIDs []string) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT result_hash FROM commands WHERE run_id = ANY ($1) AND result IS NULL AND result_hash <> ''`, runIDs)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// removeUnreferred deletes the payloads among these to which no command refers. One that a transaction at work is about to refer to
// has been touched by it: this statement then waits for it, finds the payload changed, and leaves it.
func removeUnreferred(ctx context.Context, tx session, hashes []string) (removed int64, err error) {
	tag, err := tx.Exec(ctx, `DELETE FROM payloads p USING (SELECT hash, created_at FROM payloads WHERE hash = ANY ($1)) seen
		WHERE p.hash = seen.hash AND p.created_at = seen.created_at AND NOT EXISTS (SELECT FROM commands c JOIN agent_executions r USING (run_id)
			WHERE c.result IS NULL AND c.result_hash = p.hash AND c.result_hash <> '' AND r.payloads_removed_at IS NULL)`, hashes)
	return tag.RowsAffected(), err
}

// stillKept refuses what wants the whole record of a run of which something has been removed. In a transaction that has locked the
// run's row, nothing is until it ends.
func stillKept(ctx context.Context, db session, runID string) error {
	var gone bool
	var oldest int64
	err := db.QueryRow(ctx, `SELECT r.events_removed_at IS NOT NULL OR r.payloads_removed_at IS NOT NULL, c.removed_through + 1
		FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id WHERE r.run_id = $1`, runID).Scan(&gone, &oldest)
	if err != nil {
		return notFound(err, "run", runID)
	}
	if gone {
		return &agent.GoneError{RunID: runID, Oldest: oldest}
	}
	return nil
}
