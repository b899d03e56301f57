package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"runledger/agent"
)

// Pause keeps a run from beginning commands, from this transaction on; those at work end. Pausing a paused run changes nothing.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has ended or is being cancelled.
func (l *Ledger) Pause(ctx context.Context, owner, runID, by, reason string) (agent.Run, error) {
	return l.control(ctx, owner, runID, "pause", func(t *txn) error {
		if t.run.pausedBy != 0 {
			return nil
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

// ChangeLimits gives a run other limits; those that are zero stay. A run that is parked at a limit goes on when it has more.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has ended or is being cancelled.
func (l *Ledger) ChangeLimits(ctx context.Context, owner, runID string, limits agent.Limits, by, reason string) (agent.Run, error) {
	return l.control(ctx, owner, runID, "change the limits of", func(t *txn) error {
		now, err := t.limits(ctx)
		if err != nil {
			return err
		}
		return t.changeLimits(limits.Or(now), by, reason)
	})
}

// limits are those that the run has now.
func (t *txn) limits(ctx context.Context) (now agent.Limits, err error) {
	var definition agent.Definition
	var granted *agent.Limits
	err = t.tx.QueryRow(ctx, `SELECT definition, limits FROM agent_executions WHERE run_id = $1`, t.run.runID).Scan(&definition, &granted)
	if granted != nil {
		return *granted, err
	}
	return definition.Limits, err
}

func (t *txn) changeLimits(limits agent.Limits, by, reason string) error {
	if err := t.event(agent.LimitsChanged, "", "", 0, agent.LimitsChangedData{Limits: limits, By: textSafe(by), Reason: textSafe(reason)}); err != nil {
		return err
	}
	doc, err := json.Marshal(limits)
	if err != nil {
		return err
	}
	t.writes.Queue(`UPDATE agent_executions SET limits = $2, status = CASE status WHEN 'limit_reached' THEN 'running' ELSE status END WHERE run_id = $1`,
		t.run.runID, string(doc))
	return t.ask(LimitsIntent, agent.Intent{Limits: &limits})
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
