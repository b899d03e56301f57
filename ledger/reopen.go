package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"runledger/agent"
)

// Resume begins another epoch of a run that has failed, was cancelled or is stuck, or whose execution is known to be lost: in
// one transaction run_reopened, the events of commands that were decided after the run's end, the failed commands that are
// tried again, and the intent to start. From then on executions of earlier epochs can write nothing.
//
// Errors: *agent.NotFoundError, *agent.ConflictError when the run is at work or has completed, and *agent.GoneError when its record is no
// longer kept.
func (l *Ledger) Resume(ctx context.Context, r agent.Resume) (agent.Resumed, error) {
	owner, err := l.ownerOf(ctx, r.Owner, r.RunID)
	if err != nil {
		return agent.Resumed{}, err
	}
	var resumed agent.Resumed
	err = l.write(ctx, txnScope{runID: r.RunID, anyEpoch: true, withState: true, changesRun: true}, func(t *txn) error {
		if err := t.mayReopen(ctx, r); err != nil {
			return err
		}
		if err := t.hasBegun(ctx); err != nil {
			return err
		}
		if err := stillKept(ctx, t.tx, r.RunID); err != nil {
			return err
		}
		resumed.Step, err = t.reopen(ctx, r)
		return err
	})
	if err != nil {
		return agent.Resumed{}, fmt.Errorf("resume run %s: %w", r.RunID, err)
	}
	resumed.Run, err = l.Run(ctx, owner, r.RunID)
	return resumed, err
}

// ownerOf finds whose run it is. The run of another owner than the one asked for is not found; agent.AnyOwner asks for everybody's.
func (l *Ledger) ownerOf(ctx context.Context, owner, runID string) (found string, err error) {
	if err := checkID("run", runID); err != nil {
		return "", err
	}
	err = l.pool.QueryRow(ctx, `SELECT c.owner FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id
		WHERE r.run_id = $1 AND (c.owner = $2 OR $2 = '*')`, runID, owner).Scan(&found)
	return found, notFound(err, "run", runID)
}

// LatestRun finds the newest run of a conversation that has begun and is no other run's child, and whether it has a checkpoint. Error:
// *agent.NotFoundError.
func (l *Ledger) LatestRun(ctx context.Context, conversationID string) (runID string, checkpoint bool, err error) {
	err = l.pool.QueryRow(ctx, `SELECT r.run_id, EXISTS (SELECT FROM execution_checkpoints c WHERE c.run_id = r.run_id)
		FROM agent_executions r WHERE r.conversation_id = $1 AND r.parent_run_id IS NULL AND NOT EXISTS (SELECT FROM enqueued q WHERE q.run_id = r.run_id)
		ORDER BY r.created_at DESC, r.run_id DESC LIMIT 1`, conversationID).Scan(&runID, &checkpoint)
	return runID, checkpoint, notFound(err, "conversation", conversationID)
}

// mayReopen refuses a run that is at work, or has completed. Of a run that is called lost it wants more, since whoever says so has
// looked at it some time ago: nobody has resumed, ended or cancelled it since.
func (t *txn) mayReopen(ctx context.Context, r agent.Resume) error {
	conflict := func(reason, format string, args ...any) error {
		return &agent.ConflictError{Reason: reason, Detail: "run " + r.RunID + " " + fmt.Sprintf(format, args...)}
	}
	status := t.run.status
	switch {
	case status == agent.Completed:
		return conflict(agent.ConflictRunEnded, "has completed: there is nothing to resume")
	case r.Lost > 0:
		return t.isLost(ctx, r, conflict)
	case status.Terminal(), t.run.stuck:
		return nil
	case t.run.pausedBy != 0:
		return conflict(agent.ConflictRunOpen, "is paused; unpause lets it go on")
	}
	return conflict(agent.ConflictRunOpen, "is %s; a run can be resumed when it has failed, was cancelled or is stuck", status)
}

func (t *txn) isLost(ctx context.Context, r agent.Resume, conflict func(reason, format string, args ...any) error) error {
	switch {
	case r.Lost != t.run.epoch:
		return conflict(agent.ConflictRunOpen, "is in epoch %d: somebody has resumed it since epoch %d", t.run.epoch, r.Lost)
	case t.run.status == agent.Cancelling:
		return conflict(agent.ConflictRunOpen, "is being cancelled")
	case !t.run.status.Terminal():
		return nil
	}
	var code agent.Code
	if err := t.tx.QueryRow(ctx, `SELECT coalesce(error ->> 'code', '') FROM agent_executions WHERE run_id = $1`, r.RunID).Scan(&code); err != nil {
		return err
	}
	if code != agent.CodeExecutionLost {
		return conflict(agent.ConflictRunEnded, "has ended by itself: %s", t.run.status)
	}
	return nil
}

func (t *txn) reopen(ctx context.Context, r agent.Resume) (step int, err error) {
	before := t.run.status
	if t.run.stuck {
		before = agent.Stuck
	}
	t.run.epoch++
	t.stops = true // what an execution of an earlier epoch has at work
	t.run.status = agent.Queued
	nodes, err := t.planNodes(ctx)
	if err != nil {
		return 0, err
	}
	failed, err := t.commandRows(ctx, "state = 'failed'")
	if err != nil {
		return 0, err
	}
	data := agent.RunReopenedData{Epoch: t.run.epoch, Status: before, By: textSafe(r.By), Reason: textSafe(r.Reason)}
	for i, n := range nodes {
		if t.state.Failed.Has(i) && (!n.OnError.Handled() || cutShort(n, failed)) {
			data.Nodes, data.NodeIDs = append(data.Nodes, i), append(data.NodeIDs, n.ID)
			t.state.Failed = t.state.Failed.Without(i)
		}
	}
	data.Step = t.state.Step()
	if err := t.event(agent.RunReopened, "", "", 0, data); err != nil {
		return 0, err
	}
	if err := t.announce(ctx); err != nil {
		return 0, err
	}
	if err := t.reopenFailed(nodes, data.NodeIDs, failed); err != nil {
		return 0, err
	}
	// Those that were stopped are dispatched again when the new execution comes to them, as often as new ones.
	t.writes.Queue(`UPDATE commands SET base_no = dispatch_no WHERE run_id = $1 AND state = 'aborted'`, t.run.runID)
	if r.Limits != nil { // the new execution starts with them
		if _, err := t.changeLimits(ctx, *r.Limits, r.By, r.Reason); err != nil {
			return 0, err
		}
	}
	// What an earlier epoch was to be told is for nobody any more; what of it still counts is in the ledger.
	t.writes.Queue(`UPDATE intents SET delivered_at = clock_timestamp(), last_error = 'the run was resumed' WHERE run_id = $1 AND delivered_at IS NULL`, t.run.runID)
	t.writes.Queue(`UPDATE agent_executions SET epoch = $2, status = 'queued', status_before = NULL, error = NULL, final_output = NULL, finished_at = NULL
		WHERE run_id = $1`, t.run.runID, t.run.epoch)
	return data.Step, t.ask(StartIntent, agent.Intent{})
}

// planNodes are the nodes of the run's plan, none when there is no plan.
func (t *txn) planNodes(ctx context.Context) ([]agent.Node, error) {
	var raw []byte
	if err := t.tx.QueryRow(ctx, `SELECT plan FROM agent_executions WHERE run_id = $1`, t.run.runID).Scan(&raw); err != nil || raw == nil {
		return nil, err
	}
	var plan agent.Plan
	if err := json.Unmarshal(raw, &plan); err != nil {
		return nil, fmt.Errorf("plan of run %s: %w", t.run.runID, err)
	}
	return plan.Nodes, nil
}
