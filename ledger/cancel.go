package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// cancelBelow asks the open runs below one that is being cancelled, or has ended as cancelled or failed, to stop. Each is asked
// in a transaction of its own: one that held the locks of several runs, and the counter that they share, would deadlock with
// their workers. Repeating it changes nothing, so that whoever stops in the middle can begin anew.
func (l *Ledger) cancelBelow(ctx context.Context, runID string, because agent.Status, by string) error {
	rows, err := l.pool.Query(ctx, `WITH RECURSIVE below AS (
			SELECT run_id, parent_run_id, epoch, status, finished_at FROM agent_executions WHERE parent_run_id = $1
			UNION ALL
			SELECT r.run_id, r.parent_run_id, r.epoch, r.status, r.finished_at FROM agent_executions r JOIN below b ON r.parent_run_id = b.run_id)
		SELECT run_id, parent_run_id, epoch FROM below WHERE finished_at IS NULL AND status <> 'cancelling' ORDER BY run_id`, runID)
	if err != nil {
		return fmt.Errorf("list the open runs below run %s: %w", runID, err)
	}
	type child struct {
		RunID, Parent string
		Epoch         int
	}
	children, err := pgx.CollectRows(rows, pgx.RowToStructByPos[child])
	if err != nil {
		return fmt.Errorf("list the open runs below run %s: %w", runID, err)
	}
	for _, c := range children {
		reason := "its parent run " + c.Parent + " was cancelled"
		if because == agent.FailedStatus && c.Parent == runID {
			reason = "its parent run " + c.Parent + " failed"
		}
		var ended *agent.ConflictError
		if err := l.cancel(ctx, c.RunID, c.Epoch, by, reason); err != nil && !errors.As(err, &ended) {
			return err
		}
	}
	return nil
}

// endBelow asks the open runs below one that has ended to stop, unless it has completed.
func (l *Ledger) endBelow(ctx context.Context, call agent.FinishCall, status agent.Status) error {
	if status == agent.Completed {
		return nil
	}
	return l.cancelBelow(ctx, call.RunID, status, call.By)
}

// StoppedCommands lists what became of the commands of a run that were open when somebody asked its execution to stop, in the
// order in which they were emitted; those that were scheduled and have not begun come last. Where nobody has asked, since the
// execution never began or was stopped in Temporal, they are those that its end left without a result.
func (l *Ledger) StoppedCommands(ctx context.Context, runID string) ([]agent.StoppedCommand, error) {
	rows, err := l.pool.Query(ctx, `SELECT c.command_id, c.node_id, c.kind, c.tool, c.effect_class, c.state,
			coalesce((e.event_data ->> 'never_started')::boolean, false), r.finished_at IS NOT NULL
		FROM agent_executions r
		JOIN commands c USING (run_id)
		LEFT JOIN LATERAL (SELECT coalesce((payload ->> 'after')::bigint, 0) AS after FROM intents
			WHERE run_id = r.run_id AND epoch = r.epoch AND kind = 'cancel' ORDER BY id LIMIT 1) asked ON true
		LEFT JOIN agent_execution_events e ON c.state = 'aborted'
			AND e.conversation_id = r.conversation_id AND e.sequence_number = c.sequence_number
		WHERE r.run_id = $1 AND c.kind NOT IN ('now', 'uuid', 'random') AND CASE c.state
			WHEN 'dispatched' THEN true
			WHEN 'released' THEN true
			WHEN 'in_doubt' THEN true
			WHEN 'fenced' THEN c.owner_epoch = r.epoch
			ELSE CASE WHEN asked.after IS NULL THEN e.epoch = r.epoch ELSE c.sequence_number = 0 OR c.sequence_number > asked.after END
		END
		ORDER BY c.state = 'fenced', c.emitted_at, c.command_id`, runID)
	if err != nil {
		return nil, fmt.Errorf("stopped commands of run %s: %w", runID, err)
	}
	stopped, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.StoppedCommand, error) {
		var (
			c                   agent.StoppedCommand
			state               agent.CommandState
			neverStarted, ended bool
		)
		err := row.Scan(&c.CommandID, &c.NodeID, &c.Kind, &c.Tool, &c.Effect, &state, &neverStarted, &ended)
		c.Outcome = agent.StopOutcomeOf(state, neverStarted, ended)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("stopped commands of run %s: %w", runID, err)
	}
	return stopped, nil
}
