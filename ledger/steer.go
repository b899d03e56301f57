package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// Steer says something to the loop of a run at work: its next turn reads it. steered is false when the loop has ended already;
// the message is not kept then. A message that was said before under the same key is not said again.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has no loop, has ended or is being cancelled, the message
// id is taken, or the key came with another request.
func (l *Ledger) Steer(ctx context.Context, s agent.Steering) (sequence int64, steered bool, err error) {
	run, err := l.Run(ctx, s.Owner, s.RunID)
	if err != nil {
		return 0, false, err
	}
	if run.Definition.Mode != agent.ModeReact {
		return 0, false, &agent.ConflictError{Reason: agent.ConflictCannotSteer, Detail: "run " + s.RunID + " follows a plan; only a react run reads messages on its way"}
	}
	if s.Key != "" {
		said, err := l.steeredBefore(ctx, s)
		if err != nil || said > 0 {
			return said, said > 0, err
		}
	}
	err = l.write(ctx, txnScope{runID: s.RunID, anyEpoch: true, changesRun: true, withState: true}, func(t *txn) error {
		steered = false
		if t.run.status.Terminal() || t.run.status == agent.Cancelling || t.state.Finished.Count() > 0 {
			return nil
		}
		steered = true
		if err := t.event(agent.MessageAdded, agent.MainNodeID, "", 0, agent.MessageAddedData{Role: agent.UserMessage, Content: textSafe(s.Content), Steers: true}); err != nil {
			return err
		}
		sequence = t.last
		if err := t.message(&agent.Message{MessageID: s.MessageID, Role: agent.UserMessage, Content: s.Content}); err != nil {
			return err
		}
		if s.Key != "" {
			t.writes.Queue(`INSERT INTO idempotency_keys (owner, key, request_hash, run_id) VALUES ($1, $2, $3, $4)`,
				s.Owner, textSafe(s.Key), s.RequestHash, s.RunID)
		}
		return t.ask(MessageIntent, agent.Intent{Sequence: sequence})
	})
	switch {
	case violates(err, "messages_pkey"):
		err = &agent.ConflictError{Reason: agent.ConflictMessageID, Detail: "message_id " + s.MessageID + " is taken"}
	case violates(err, "idempotency_keys_pkey"): // the same request, at the same time
		said, err := l.steeredBefore(ctx, s)
		return said, said > 0, err
	}
	if err != nil {
		return 0, false, fmt.Errorf("steer run %s: %w", s.RunID, err)
	}
	return sequence, steered, nil
}

// steeredBefore is the number of the message that the same request has said before, 0 when it has not. The message carries the
// id that the request gave it, so that the key finds it.
func (l *Ledger) steeredBefore(ctx context.Context, s agent.Steering) (sequence int64, err error) {
	var hash string
	err = l.pool.QueryRow(ctx, `SELECT k.request_hash, coalesce((SELECT max(m.sequence_number) FROM messages m WHERE m.run_id = k.run_id AND m.id = $3), 0)
		FROM idempotency_keys k WHERE k.owner = $1 AND k.key = $2`, s.Owner, textSafe(s.Key), s.MessageID).Scan(&hash, &sequence)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, err
	case hash != s.RequestHash:
		return 0, &agent.ConflictError{Reason: agent.ConflictKeyReused, Detail: "the Idempotency-Key came with another request before"}
	}
	return sequence, nil
}

// Steered lists what was said to a run while it was at work, and up to which number each begun turn of its loop has heard it.
func (l *Ledger) Steered(ctx context.Context, runID string) (messages []agent.Message, heard map[string]int64, err error) {
	rows, err := l.pool.Query(ctx, `SELECT `+messageColumns+` FROM messages m WHERE run_id = $1 AND role = 'user'
		AND id <> (SELECT message_id FROM agent_executions r WHERE r.run_id = m.run_id) ORDER BY sequence_number`, runID)
	if err != nil {
		return nil, nil, fmt.Errorf("messages to run %s: %w", runID, err)
	}
	if messages, err = pgx.CollectRows(rows, scanMessage); err != nil || len(messages) == 0 {
		return nil, nil, err
	}
	heard = map[string]int64{}
	rows, err = l.pool.Query(ctx, `SELECT command_id, heard FROM commands WHERE run_id = $1 AND kind = 'llm' AND dispatch_no > 0`, runID)
	if err != nil {
		return nil, nil, fmt.Errorf("messages to run %s: %w", runID, err)
	}
	var id string
	var number int64
	_, err = pgx.ForEachRow(rows, []any{&id, &number}, func() error {
		heard[id] = number
		return nil
	})
	return messages, heard, err
}

// hear keeps an answer from ending its loop when something was said to the run that the answer does not know of. Nothing can be
// said meanwhile: that takes the counter, which this transaction holds.
func (t *txn) hear(ctx context.Context, c *agent.Commit) error {
	if c.Turn == 0 || !c.Ends || !agent.EndsNode(t.command.Kind, c.Result) {
		return nil
	}
	err := t.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM messages m JOIN agent_executions r USING (run_id)
		WHERE m.run_id = $1 AND m.role = 'user' AND m.id <> r.message_id AND m.sequence_number > $2)`, c.RunID, c.Heard).Scan(&c.Event.GoesOn)
	if err != nil || !c.Event.GoesOn {
		return err
	}
	output, err := agent.NodeOutput(agent.ModelCommand, c.Result)
	if err != nil {
		return err
	}
	var text string
	if err := json.Unmarshal(output, &text); err != nil {
		return err
	}
	c.Ends, c.Checkpoint = false, agent.LLMComplete
	c.Message = &agent.Message{Role: agent.AssistantMessage, Content: text, CommandID: c.CommandID}
	return nil
}
