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

// Record writes the facts of an execution that no command carries, and where the run stands when that has changed.
func (l *Ledger) Record(ctx context.Context, call agent.RecordCall) (agent.RecordReply, error) {
	var reply agent.RecordReply
	scope := txnScope{runID: call.RunID, epoch: call.Epoch, facts: call.Facts, changesRun: call.Status != "", withState: call.HandOver != nil,
		witness: &reply.Witness}
	err := l.write(ctx, scope, func(t *txn) error {
		reply.Sequence = t.last
		if call.Status != "" && !t.run.status.Terminal() && t.run.status != agent.Cancelling {
			// The last doubt may have been resolved while this was on its way.
			t.writes.Queue(`UPDATE agent_executions SET status = $2 WHERE run_id = $1
				AND ($2 <> 'in_doubt' OR EXISTS (SELECT 1 FROM commands WHERE run_id = $1 AND state = 'in_doubt'))`, call.RunID, call.Status)
		}
		if call.HandOver != nil {
			if err := t.applyNew(); err != nil {
				return err
			}
			reply.State = &t.state
		}
		return nil
	})
	if err != nil {
		return reply, fmt.Errorf("record facts of run %s: %w", call.RunID, err)
	}
	return reply, nil
}

// Settle decides a command whose activity has ended in an error: what is on record stands; a command that never began is
// fenced, so that the given-up schedule can do nothing later, and may be scheduled again; one that was dispatched fails, or
// is aborted when the run is being cancelled, or is in doubt when it is external.
func (l *Ledger) Settle(ctx context.Context, call agent.SettleCall) (_ agent.CommandRow, err error) {
	defer l.measured(GateSettle, time.Now(), &err)
	var row *agent.CommandRow
	scope := txnScope{runID: call.RunID, epoch: call.Epoch, commandID: call.CommandID, facts: call.Facts}
	err = l.write(ctx, scope, func(t *txn) error {
		if t.run.status.Terminal() {
			return t.ended()
		}
		if doubted, err := t.doubtWithin(ctx, call); err != nil {
			return err
		} else if !doubted {
			if err := t.settle(call); err != nil {
				return err
			}
		}
		row = t.command
		return nil
	})
	if err != nil {
		return agent.CommandRow{}, fmt.Errorf("settle command %s of run %s: %w", call.CommandID, call.RunID, err)
	}
	return *row, nil
}

func (t *txn) settle(call agent.SettleCall) error {
	d := agent.Dispatch{Epoch: call.Epoch, Schedule: call.Schedule}
	if t.command != nil && t.command.Owner.Epoch == d.Epoch && t.command.Owner.Schedule > d.Schedule {
		return nil // the repetition of an earlier call; a newer schedule has the command, or its fence stands
	}
	if t.command != nil && t.command.Reopened() {
		return nil // somebody has said meanwhile that it may be dispatched again
	}
	if t.command == nil || t.command.State == agent.Fenced {
		t.command = &agent.CommandRow{RunID: call.RunID, CommandID: call.CommandID, NodeID: call.NodeID, State: agent.Fenced, Owner: d}
		t.writes.Queue(`INSERT INTO commands (run_id, command_id, node_id, kind, state, owner_epoch, owner_schedule, owner_attempt)
			VALUES ($1, $2, $3, '', 'fenced', $4, $5, 0)
			ON CONFLICT (run_id, command_id) DO UPDATE SET owner_epoch = excluded.owner_epoch, owner_schedule = excluded.owner_schedule`,
			call.RunID, call.CommandID, call.NodeID, d.Epoch, d.Schedule)
		return nil
	}
	reason := call.Reason
	if reason == nil {
		reason = &agent.Error{Code: agent.CodeInternal, Message: "its activity ended without a word"}
	}
	switch t.command.State {
	case agent.Dispatched:
		switch {
		case t.command.Effect == agent.External:
			return t.decide(t.command.Owner, agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, NodeID: call.NodeID,
				CommandID: call.CommandID, Message: reason.Message}, 0)
		case reason.Code == agent.CodeCancelled:
			return t.decide(d, agent.CommandAborted, reason, 0)
		}
		return t.decide(d, agent.CommandFailed, reason, 0)
	case agent.Released:
		if reason.Code == agent.CodeCancelled {
			return t.decide(d, agent.CommandAborted, reason, 0)
		}
		return t.decide(d, agent.CommandFailed, reason, 0)
	case agent.CommandWaiting:
		// An answer holds for the arguments that it was given for, and for no others.
		if reason.Code == agent.CodeMismatch {
			return t.decide(d, agent.CommandFailed, reason, 0)
		}
	case agent.Fenced, agent.Committed, agent.CommandFailed, agent.CommandAborted, agent.CommandInDoubt:
	}
	return nil
}

// Finish ends an execution: it settles the commands that are open, writes the facts, the final message and the terminal
// event, and sets the status, in one transaction. A second call for the same epoch tells what the first one wrote. When the run
// has not completed, the open runs below it are asked to stop.
func (l *Ledger) Finish(ctx context.Context, call agent.FinishCall) (agent.FinishReply, error) {
	var reply agent.FinishReply
	scope := txnScope{runID: call.RunID, epoch: call.Epoch, facts: call.Facts, changesRun: true, witness: &reply.Witness}
	err := l.write(ctx, scope, func(t *txn) error {
		if t.run.status.Terminal() {
			reply.Status = t.run.status
			return t.tx.QueryRow(ctx, `SELECT max(sequence_number) FROM agent_execution_events
				WHERE run_id = $1 AND event_type IN ('run_completed', 'run_failed', 'run_cancelled')`, call.RunID).Scan(&reply.Sequence)
		}
		if err := t.settleOpen(ctx, call); err != nil {
			return err
		}
		if err := t.end(ctx, call, true); err != nil {
			return err
		}
		reply = agent.FinishReply{Status: call.Status, Sequence: t.last}
		return nil
	})
	if err != nil {
		return agent.FinishReply{}, fmt.Errorf("finish run %s: %w", call.RunID, err)
	}
	if err := l.endBelow(ctx, call, reply.Status); err != nil {
		return agent.FinishReply{}, err
	}
	return reply, nil
}

// settleOpen decides every command that has no outcome, and withdraws what nobody has answered.
func (t *txn) settleOpen(ctx context.Context, call agent.FinishCall) error {
	if err := t.withdrawApprovals(ctx); err != nil {
		return err
	}
	rows, err := t.tx.Query(ctx, `SELECT command_id, node_id, kind, tool, effect_class, state, dispatch_no, owner_epoch, owner_schedule, owner_attempt, owner_token
		FROM commands WHERE run_id = $1 AND state IN ('dispatched', 'released', 'waiting') ORDER BY command_id FOR NO KEY UPDATE`, call.RunID)
	if err != nil {
		return err
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.CommandRow, error) {
		c := agent.CommandRow{RunID: call.RunID}
		err := row.Scan(&c.CommandID, &c.NodeID, &c.Kind, &c.Tool, &c.Effect, &c.State, &c.DispatchNo,
			&c.Owner.Epoch, &c.Owner.Schedule, &c.Owner.Attempt, &c.Owner.Token)
		return c, err
	})
	if err != nil {
		return err
	}
	for i := range open {
		c := &open[i]
		reason := &agent.Error{Code: agent.CodeCancelled, NodeID: c.NodeID, CommandID: c.CommandID, Message: "the run ended: " + string(call.Status)}
		state := agent.CommandAborted
		if c.State == agent.Dispatched && c.Effect == agent.External {
			state = agent.CommandInDoubt
		}
		t.command = c
		if err := t.decide(c.Owner, state, reason, 0); err != nil {
			return err
		}
	}
	t.command = nil
	return nil
}

// end writes the terminal event of a run. started tells a run that was at work from one that was taken back before.
func (t *txn) end(ctx context.Context, call agent.FinishCall, started bool) error {
	var (
		output  *string
		failure []byte
		err     error
	)
	switch call.Status {
	case agent.Completed:
		var text, command string
		if text, command, err = t.finalOutput(ctx); err != nil {
			return err
		}
		output = &text
		if err = t.event(agent.MessageAdded, "", "", 0, agent.MessageAddedData{Role: agent.AssistantMessage, Content: text}); err != nil {
			return err
		}
		if err = t.message(&agent.Message{Role: agent.AssistantMessage, Content: text, CommandID: command}); err != nil {
			return err
		}
		err = t.event(agent.RunCompleted, "", "", 0, agent.RunCompletedData{FinalOutput: text, Summary: call.Summary})
	case agent.FailedStatus:
		if failure, err = json.Marshal(call.Error); err != nil {
			return err
		}
		nodeID := ""
		if call.Error != nil {
			nodeID = call.Error.NodeID
		}
		err = t.event(agent.RunFailed, nodeID, "", 0, agent.RunFailedData{Error: call.Error})
	case agent.Cancelled:
		data := agent.RunCancelledData{By: call.By}
		if call.Error != nil {
			data.Reason = call.Error.Message
		}
		err = t.event(agent.RunCancelled, "", "", 0, data)
	default:
		err = fmt.Errorf("%q is not an end", call.Status)
	}
	if err != nil {
		return err
	}
	if failure != nil {
		if failure, err = jsonbSafe(failure); err != nil {
			return err
		}
	}
	t.writes.Queue(`UPDATE agent_executions SET status = $2, final_output = $3, error = $4, finished_at = $5, pause_intent = NULL,
		started_at = CASE WHEN $6 THEN coalesce(started_at, $5) ELSE started_at END WHERE run_id = $1`,
		t.run.runID, call.Status, output, nullJSON(failure), t.now, started)
	t.writes.Queue(`DELETE FROM model_output WHERE run_id = $1`, t.run.runID)
	t.wakeQueue()
	t.stops = started && call.Status != agent.Completed
	return nil
}

// finalOutput is what the last node of the run's plan gave, as text, and the command that gave it.
func (t *txn) finalOutput(ctx context.Context) (text, commandID string, err error) {
	err = t.tx.QueryRow(ctx, `SELECT e.event_data ->> 'result_command' FROM agent_execution_events e JOIN agent_executions r USING (run_id)
		WHERE e.run_id = $1 AND e.event_type = 'node_finished' AND e.node_id = r.plan -> 'nodes' -> -1 ->> 'id'
		ORDER BY e.sequence_number DESC LIMIT 1`, t.run.runID).Scan(&commandID)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", "", agent.Failed(agent.CodeInternal, "run %s: the record does not say that its last node has finished", t.run.runID)
	}
	if err != nil {
		return "", "", err
	}
	rows, err := t.tx.Query(ctx, commandRowColumns, t.run.runID, commandID)
	if err != nil {
		return "", "", err
	}
	row, err := collectCommandRow(rows)
	if err != nil {
		return "", "", err
	}
	if row == nil || row.State != agent.Committed {
		return "", "", agent.Failed(agent.CodeInternal, "run %s: command %s, the final output, is not committed", t.run.runID, commandID)
	}
	text, err = agent.AnswerText(row.Kind, row.Result)
	return text, commandID, err
}
