package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// Pause keeps a run from beginning commands, from this transaction on; those at work end. Pausing a paused run changes nothing.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has not begun, has ended or is being cancelled.
func (l *Ledger) Pause(ctx context.Context, owner, runID, by, reason string) (agent.Run, error) {
	return l.control(ctx, owner, runID, "pause", func(t *txn) error {
		if t.run.pausedBy != 0 {
			return nil
		}
		if err := t.mustHaveBegun(ctx); err != nil {
			return err
		}
		if err := t.event(agent.RunPaused, "", "", 0, agent.PausedData{By: textSafe(by), Reason: textSafe(reason)}); err != nil {
			return err
		}
		payload, err := json.Marshal(agent.Intent{By: textSafe(by), Reason: textSafe(reason)})
		if err != nil {
			return err
		}
		t.writes.Queue(`WITH asked AS (INSERT INTO intents (run_id, epoch, kind, payload) VALUES ($1, $2, $3, $4) RETURNING id)
			UPDATE agent_executions SET pause_intent = asked.id FROM asked WHERE run_id = $1`, runID, t.run.epoch, PauseIntent, string(payload))
		t.intent = true
		return nil
	})
}

// Unpause lets a paused run go on.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run is not paused, has ended or is being cancelled.
func (l *Ledger) Unpause(ctx context.Context, owner, runID, by, reason string) (agent.Run, error) {
	return l.control(ctx, owner, runID, "unpause", func(t *txn) error {
		if t.run.pausedBy == 0 {
			return &agent.ConflictError{Reason: agent.ConflictNotPaused, Detail: "run " + runID + " is not paused; it is " + string(t.run.status)}
		}
		if err := t.event(agent.RunUnpaused, "", "", 0, agent.PausedData{By: textSafe(by), Reason: textSafe(reason)}); err != nil {
			return err
		}
		t.writes.Queue(`UPDATE agent_executions SET pause_intent = NULL WHERE run_id = $1`, runID)
		return t.ask(UnpauseIntent, agent.Intent{By: textSafe(by)})
	})
}

// ChangeLimits gives a run other limits; those that are zero stay. A run that is parked at a limit goes on when it has more, and says
// so itself: it may be parked at another one, or still at this one.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has not begun, has ended or is being cancelled.
func (l *Ledger) ChangeLimits(ctx context.Context, owner, runID string, limits agent.Limits, by, reason string) (agent.Run, error) {
	return l.control(ctx, owner, runID, "change the limits of", func(t *txn) error {
		if err := t.mustHaveBegun(ctx); err != nil {
			return err
		}
		now, err := t.changeLimits(ctx, limits, by, reason)
		if err != nil {
			return err
		}
		return t.ask(LimitsIntent, agent.Intent{Limits: &now})
	})
}

// changeLimits puts limits in the place of those that the run has, and gives them as they are then. Whoever is at work has to be
// told.
func (t *txn) changeLimits(ctx context.Context, limits agent.Limits, by, reason string) (now agent.Limits, err error) {
	var definition agent.Definition
	var granted *agent.Limits
	err = t.tx.QueryRow(ctx, `SELECT definition, limits FROM agent_executions WHERE run_id = $1`, t.run.runID).Scan(&definition, &granted)
	if err != nil {
		return now, err
	}
	run := agent.Run{Definition: definition, Granted: granted}
	now = limits.Or(run.Limits())
	if err := t.event(agent.LimitsChanged, "", "", 0, agent.LimitsChangedData{Limits: now, By: textSafe(by), Reason: textSafe(reason)}); err != nil {
		return now, err
	}
	doc, err := json.Marshal(now)
	if err != nil {
		return now, err
	}
	t.writes.Queue(`UPDATE agent_executions SET limits = $2 WHERE run_id = $1`, t.run.runID, string(doc))
	return now, nil
}

// AtWork lists the commands of a run whose effects are at work, in the order in which they were emitted.
func (l *Ledger) AtWork(ctx context.Context, runID string) ([]agent.WorkingCommand, error) {
	rows, err := l.pool.Query(ctx, `SELECT command_id, node_id, kind, tool, effect_class, dispatch_no, deadline FROM commands
		WHERE run_id = $1 AND state = 'dispatched' ORDER BY emitted_at, command_id`, runID)
	if err != nil {
		return nil, fmt.Errorf("commands at work of run %s: %w", runID, err)
	}
	commands, err := pgx.CollectRows(rows, pgx.RowToStructByPos[agent.WorkingCommand])
	if err != nil {
		return nil, fmt.Errorf("commands at work of run %s: %w", runID, err)
	}
	return commands, nil
}

// mustHaveBegun refuses what would be written before a run's first event.
func (t *txn) mustHaveBegun(ctx context.Context) error {
	waits, err := t.enqueued(ctx)
	if err == nil && waits {
		err = &agent.ConflictError{Reason: agent.ConflictNotBegun, RunID: t.run.runID,
			Detail: "run " + t.run.runID + " waits for others of its conversation and has not begun"}
	}
	return err
}

// control lets a person change a run that is open.
func (l *Ledger) control(ctx context.Context, owner, runID, what string, change func(*txn) error) (agent.Run, error) {
	run, err := l.Run(ctx, owner, runID)
	if err != nil {
		return run, err
	}
	err = l.write(ctx, txnScope{runID: runID, anyEpoch: true, changesRun: true}, func(t *txn) error {
		if t.run.status.Terminal() {
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " has ended: " + string(t.run.status)}
		}
		if t.run.status == agent.Cancelling {
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " is being cancelled"}
		}
		return change(t)
	})
	if err != nil {
		return agent.Run{}, fmt.Errorf("%s run %s: %w", what, runID, err)
	}
	return l.Run(ctx, owner, runID)
}
