package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// Resume begins another epoch of a run that has failed, was cancelled or is stuck, or whose execution is known to be lost: in
// one transaction run_reopened, the events of commands that were decided after the run's end, the failed commands that are
// tried again, and the intent to start. From then on executions of earlier epochs can write nothing.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run is at work or has completed.
func (l *Ledger) Resume(ctx context.Context, r agent.Resume) (agent.Resumed, error) {
	owner, err := l.ownerOf(ctx, r.Owner, r.RunID)
	if err != nil {
		return agent.Resumed{}, err
	}
	var resumed agent.Resumed
	err = l.write(ctx, txnScope{runID: r.RunID, anyEpoch: true, withState: true, changesRun: true}, func(t *txn) error {
		if err := t.mayReopen(r); err != nil {
			return err
		}
		if err := t.hasBegun(ctx); err != nil {
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

func (t *txn) mayReopen(r agent.Resume) error {
	switch {
	case t.run.status == agent.Completed:
		return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + r.RunID + " has completed: there is nothing to resume"}
	case t.run.status.Terminal(), t.run.stuck:
		return nil
	case r.Lost > 0 && r.Lost == t.run.epoch:
		return nil
	}
	return &agent.ConflictError{Reason: agent.ConflictRunOpen,
		Detail: fmt.Sprintf("run %s is %s; a run can be resumed when it has failed, was cancelled or is stuck", r.RunID, t.run.status)}
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
	data := agent.RunReopenedData{Epoch: t.run.epoch, Status: before, By: textSafe(r.By), Reason: textSafe(r.Reason)}
	for i, n := range nodes {
		if t.state.Failed.Has(i) && !n.OnError.Handled() {
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
	if err := t.reopenFailed(ctx, nodes, "the run was resumed"); err != nil {
		return 0, err
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

// commandRows reads and locks the run's commands that meet a condition, in the order in which they were emitted.
func (t *txn) commandRows(ctx context.Context, where string) ([]*agent.CommandRow, error) {
	rows, err := t.tx.Query(ctx, `SELECT command_id FROM commands WHERE run_id = $1 AND `+where+` ORDER BY emitted_at, command_id`, t.run.runID)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	commands := make([]*agent.CommandRow, 0, len(ids))
	for _, id := range ids {
		rows, err := t.tx.Query(ctx, commandRowColumns+`FOR NO KEY UPDATE OF c`, t.run.runID, id)
		if err != nil {
			return nil, err
		}
		c, err := collectCommandRow(rows)
		if err != nil {
			return nil, err
		}
		commands = append(commands, c)
	}
	return commands, nil
}

// announce appends what was decided after the run's terminal event, when only the rows could be changed.
func (t *txn) announce(ctx context.Context) error {
	decided, err := t.commandRows(ctx, "unannounced")
	if err != nil {
		return err
	}
	for _, c := range decided {
		if c.Resolution != nil {
			if err := t.event(agent.CommandResolved, c.NodeID, c.CommandID, c.DispatchNo, c.Resolution); err != nil {
				return err
			}
		}
		if err := t.announceOutcome(ctx, c); err != nil {
			return err
		}
		t.writes.Queue(`UPDATE commands SET unannounced = false, sequence_number = $3 WHERE run_id = $1 AND command_id = $2`,
			t.run.runID, c.CommandID, c.Sequence)
	}
	return nil
}

func (t *txn) announceOutcome(ctx context.Context, c *agent.CommandRow) error {
	var content string
	switch c.State {
	case agent.Committed:
		data := agent.CommandCommittedData{Kind: c.Kind, Tool: c.Tool, Hash: c.ResultHash, Output: agent.ShowValue(c.Result)}
		if err := t.event(agent.CommandCommitted, c.NodeID, c.CommandID, c.DispatchNo, data); err != nil {
			return err
		}
		content = string(c.Result)
	case agent.CommandFailed:
		data := agent.CommandFailedData{Kind: c.Kind, Tool: c.Tool, Error: c.Error}
		if err := t.event(agent.CommandFailedType, c.NodeID, c.CommandID, c.DispatchNo, data); err != nil {
			return err
		}
		content = c.Error.Error()
	default: // it may be dispatched again
		return nil
	}
	c.Sequence = t.last
	message, err := t.answerTo(ctx, c)
	if err != nil || message == nil {
		return err
	}
	message.Content = content
	return t.message(message)
}

// reopenFailed lets the commands be tried again whose failure ended a node, or the planning, and with it the run. Failures that
// a model has answered, or that the plan went on with, stay.
func (t *txn) reopenFailed(ctx context.Context, nodes []agent.Node, why string) error {
	failed, err := t.commandRows(ctx, "state = 'failed'")
	if err != nil {
		return err
	}
	index := map[string]int{}
	for i, n := range nodes {
		index[n.ID] = i
	}
	last := map[string]string{} // the newest failed command of each node that is to be tried again
	for _, c := range failed {
		if t.triedAgain(c, index) {
			last[c.NodeID] = c.CommandID
		}
	}
	for _, c := range failed {
		owner, inner := agent.OwnerCommandID(c.CommandID)
		if !inner {
			owner = c.CommandID
		}
		i, planned := index[c.NodeID]
		ofCode := inner && owner == c.NodeID && planned && !t.state.Done(i) // an effect of a node's workflow code
		if last[c.NodeID] != owner && !ofCode {
			continue
		}
		if err := t.event(agent.CommandReopened, c.NodeID, c.CommandID, c.DispatchNo, agent.CommandReopenedData{Reason: why}); err != nil {
			return err
		}
		t.writes.Queue(`UPDATE commands SET state = 'released', base_no = dispatch_no, lease_until = NULL, error = NULL, decided_at = NULL,
			sequence_number = 0 WHERE run_id = $1 AND command_id = $2`, t.run.runID, c.CommandID)
	}
	return nil
}

// triedAgain reports whether the failure of a command has ended its node, or the planning, without the plan going on.
func (t *txn) triedAgain(c *agent.CommandRow, index map[string]int) bool {
	if _, inner := agent.OwnerCommandID(c.CommandID); inner {
		return false
	}
	if c.Kind == agent.PlanCommand {
		return t.state.PlanSequence == 0
	}
	_, _, ofTurn := agent.TurnTool(c.CommandID)
	i, planned := index[c.NodeID]
	return planned && !ofTurn && !t.state.Done(i)
}

// Recoverable lists runs that Temporal may have lost: open ones whose start it has taken, and those that ended as
// EXECUTION_LOST. They come by run id, those after a given one ("" for the first), at most limit.
func (l *Ledger) Recoverable(ctx context.Context, after string, limit int) ([]QuietRun, error) {
	rows, err := l.pool.Query(ctx, `SELECT r.run_id, r.epoch, r.status, coalesce((SELECT max(sequence_number) FROM agent_execution_events WHERE run_id = r.run_id), 0),
			EXISTS (SELECT FROM intents i WHERE i.run_id = r.run_id AND i.epoch = r.epoch AND i.kind = 'start' AND i.delivered_at IS NOT NULL)
		FROM agent_executions r WHERE ($1::uuid IS NULL OR r.run_id > $1)
			AND (r.finished_at IS NULL OR r.status = 'failed' AND r.error ->> 'code' = $3)
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
