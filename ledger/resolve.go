package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"runledger/agent"
)

// Resolve takes a person's word on a command in doubt: its result, that it has failed, or that it may be dispatched again.
// The run is told and goes on. After the run's terminal event the command's row alone is changed; the event follows when the
// run is reopened.
//
// A word that is the same as the last one changes nothing. Errors: *agent.NotFoundError, and *agent.ConflictError when the
// command is not in doubt, or was resolved otherwise.
func (l *Ledger) Resolve(ctx context.Context, owner, runID, commandID string, r agent.Resolution) (agent.Command, error) {
	run, err := l.Run(ctx, owner, runID)
	if err != nil {
		return agent.Command{}, err
	}
	said := agent.CommandResolvedData{Outcome: r.Outcome, By: textSafe(r.By), Note: textSafe(r.Note)}
	if r.Outcome == agent.OutcomeCommitted {
		said.Hash = ResultHash(r.Result)
	}
	err = l.write(ctx, txnScope{runID: runID, epoch: run.Epoch, anyEpoch: true, commandID: commandID, withState: true, changesRun: true}, func(t *txn) error {
		switch c := t.command; {
		case c == nil || c.State == agent.Fenced:
			return &agent.NotFoundError{What: "command", ID: commandID}
		case c.State == agent.CommandInDoubt:
			return t.resolveByHand(ctx, said, r.Result)
		case c.Resolution == nil:
			return &agent.ConflictError{Reason: agent.ConflictNotInDoubt, Detail: fmt.Sprintf("command %s is not in doubt; it is %s", commandID, c.State)}
		case c.Resolution.Outcome != said.Outcome || c.Resolution.Hash != said.Hash:
			return &agent.ConflictError{Reason: agent.ConflictNotInDoubt,
				Detail: fmt.Sprintf("command %s was resolved as %s by %s", commandID, c.Resolution.Outcome, c.Resolution.By)}
		}
		return nil
	})
	if err != nil {
		return agent.Command{}, fmt.Errorf("resolve command %s of run %s: %w", commandID, runID, err)
	}
	return l.Command(ctx, runID, commandID)
}

func (t *txn) resolveByHand(ctx context.Context, said agent.CommandResolvedData, result json.RawMessage) error {
	c := t.command
	message, err := t.answerTo(ctx, c)
	if err != nil {
		return err
	}
	if said.Outcome == agent.OutcomeCommitted {
		commit := agent.Commit{Call: agent.Call{Scope: agent.Scope{RunID: c.RunID, Epoch: t.run.epoch}, CommandID: c.CommandID, NodeID: c.NodeID},
			DispatchNo: c.DispatchNo, Result: result, Message: message,
			Event: agent.CommandCommittedData{Kind: c.Kind, Tool: c.Tool, Output: agent.ShowValue(result)}}
		if message != nil {
			message.Content, commit.Checkpoint = string(result), agent.ToolComplete
		}
		if err := t.commit(commit, &said); err != nil {
			return err
		}
		if err := t.resolved(c); err != nil {
			return err
		}
	} else {
		reason := &agent.Error{Code: agent.CodeToolFailed, NodeID: c.NodeID, CommandID: c.CommandID, Message: "resolved as failed by " + said.By}
		if said.Note != "" {
			reason.Message += ": " + said.Note
		}
		if err := t.resolve(said, reason, message); err != nil {
			return err
		}
	}
	return t.resolveOwner(ctx, said.By, c.CommandID)
}

// resolve writes that a command in doubt has failed, or may be dispatched again.
func (t *txn) resolve(said agent.CommandResolvedData, reason *agent.Error, message *agent.Message) error {
	c := t.command
	if err := t.say(c.NodeID, c.CommandID, c.DispatchNo, said); err != nil {
		return err
	}
	switch said.Outcome {
	case agent.OutcomeFailed:
		if err := t.decide(c.Owner, agent.CommandFailed, reason, 0); err != nil {
			return err
		}
		if message != nil && !t.run.status.Terminal() {
			m := *message
			m.Content = reason.Error()
			if err := t.message(&m); err != nil {
				return err
			}
		}
	case agent.OutcomeRetry:
		t.writes.Queue(`UPDATE commands SET state = 'released', base_no = dispatch_no, lease_until = NULL, error = NULL, decided_at = NULL,
			sequence_number = 0, unannounced = $3 WHERE run_id = $1 AND command_id = $2`, t.run.runID, c.CommandID, t.run.status.Terminal())
		c.State, c.Error, c.BaseNo = agent.Released, nil, c.DispatchNo
	default:
		return fmt.Errorf("%q resolves nothing", said.Outcome)
	}
	return t.resolved(c)
}

// say appends command_resolved and keeps the word with the command.
func (t *txn) say(nodeID, commandID string, dispatchNo int, said agent.CommandResolvedData) error {
	doc, err := json.Marshal(said)
	if err != nil {
		return err
	}
	safe, err := jsonbSafe(doc)
	if err != nil {
		return err
	}
	t.writes.Queue(`UPDATE commands SET resolution = $3 WHERE run_id = $1 AND command_id = $2`, t.run.runID, commandID, string(safe))
	if t.run.status.Terminal() {
		return nil
	}
	return t.event(agent.CommandResolved, nodeID, commandID, dispatchNo, said)
}

// resolved tells the run's execution that it can go on with a command. An execution knows nothing of the effects inside of
// a command's own.
func (t *txn) resolved(c *agent.CommandRow) error {
	if _, inner := agent.OwnerCommandID(c.CommandID); inner || t.run.status.Terminal() {
		return nil
	}
	if t.run.status == agent.InDoubt {
		t.writes.Queue(`UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, t.run.runID)
	}
	return t.ask(ResolvedIntent, agent.Intent{CommandID: c.CommandID, DispatchNo: c.DispatchNo})
}

// resolveOwner lets the command go on that is in doubt only because an effect inside of it was: it is dispatched again, and
// meets what was said of that effect.
func (t *txn) resolveOwner(ctx context.Context, by, commandID string) error {
	ownerID, inner := agent.OwnerCommandID(commandID)
	if !inner {
		return nil
	}
	rows, err := t.tx.Query(ctx, commandRowColumns+`FOR NO KEY UPDATE OF c`, t.run.runID, ownerID)
	if err != nil {
		return err
	}
	owner, err := collectCommandRow(rows)
	if err != nil || owner == nil || owner.State != agent.CommandInDoubt || owner.Error == nil || owner.Error.CommandID != commandID {
		return err
	}
	t.command = owner
	return t.resolve(agent.CommandResolvedData{Outcome: agent.OutcomeRetry, By: by, Note: commandID + " was resolved"}, nil, nil)
}

// answerTo is the message by which a tool call of a react loop answers its model's turn, without its content; nil for every
// other command.
func (t *txn) answerTo(ctx context.Context, c *agent.CommandRow) (*agent.Message, error) {
	turnID, index, ok := agent.TurnTool(c.CommandID)
	if !ok || c.Kind != agent.ToolCommand {
		return nil, nil
	}
	rows, err := t.tx.Query(ctx, commandRowColumns, t.run.runID, turnID)
	if err != nil {
		return nil, err
	}
	turn, err := collectCommandRow(rows)
	if err != nil || turn == nil || turn.State != agent.Committed { // nothing has asked for it
		return nil, err
	}
	var reply struct {
		ToolCalls []struct {
			ID string `json:"id"`
		} `json:"tool_calls"`
	}
	if err := json.Unmarshal(turn.Result, &reply); err != nil || index >= len(reply.ToolCalls) {
		return nil, err
	}
	return &agent.Message{Role: agent.ToolMessage, ToolCallID: reply.ToolCalls[index].ID, ToolName: c.Tool, CommandID: c.CommandID}, nil
}

// CommandInput reads what a command was called with. Error: *agent.NotFoundError.
func (l *Ledger) CommandInput(ctx context.Context, runID, commandID string) (json.RawMessage, error) {
	var input []byte
	err := l.pool.QueryRow(ctx, `SELECT input FROM commands WHERE run_id = $1 AND command_id = $2`, runID, commandID).Scan(&input)
	return input, notFound(err, "command", commandID)
}
