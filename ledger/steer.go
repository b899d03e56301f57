package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// steer says something to the loop of a run at work instead of accepting a run: its next turn reads it. steered is false when
// the loop has ended already; nothing is kept then.
//
// Error: *agent.ConflictError when the run has no loop, or there is more to say than a message.
func (l *Ledger) steer(ctx context.Context, a agent.Acceptance, runID string) (run agent.Run, steered bool, err error) {
	run, err = l.Run(ctx, a.Owner, runID)
	refused := &agent.ConflictError{Reason: agent.ConflictSteer, RunID: runID}
	switch {
	case err != nil:
		return run, false, err
	case run.Definition.Mode != agent.ModeReact:
		refused.Detail = "run " + runID + " follows a plan; only a react run reads messages on its way: enqueue the message, or interrupt the run with it"
		return run, false, refused
	case len(a.Run.Attachments) > 0 || a.Plan != nil && a.PlanSource != reactPlan:
		refused.Detail = "run " + runID + " is at work and can be told a message, without attachments and without a plan"
		return run, false, refused
	}
	err = l.write(ctx, txnScope{runID: runID, anyEpoch: true, changesRun: true, withState: true}, func(t *txn) error {
		steered = false
		if t.run.status.Terminal() || t.run.status == agent.Cancelling || t.state.Finished.Count() > 0 {
			return nil
		}
		steered = true
		data := agent.MessageAddedData{Role: agent.UserMessage, Content: a.Run.Input, Steers: true}
		if err := t.event(agent.MessageAdded, agent.MainNodeID, "", 0, data); err != nil {
			return err
		}
		if err := t.message(&agent.Message{MessageID: a.Run.MessageID, Role: agent.UserMessage, Content: a.Run.Input}); err != nil {
			return err
		}
		if a.Key != "" {
			t.writes.Queue(`INSERT INTO idempotency_keys (owner, key, request_hash, run_id) VALUES ($1, $2, $3, $4)`, a.Owner, a.Key, a.RequestHash, runID)
		}
		return t.ask(MessageIntent, agent.Intent{Sequence: t.last})
	})
	if violates(err, "idempotency_keys_pkey") { // the same request, at the same time, has said it
		_, err = l.acceptedBefore(ctx, a)
		return run, true, err
	}
	return run, steered, err
}

// reactPlan is the source of the plan that every react run has.
const reactPlan = "react"

// Steered lists what was said to a run while it was at work, and up to which number each begun turn of its loop has heard it.
func (l *Ledger) Steered(ctx context.Context, runID string) (messages []agent.Message, heard map[string]int64, err error) {
	rows, err := l.pool.Query(ctx, `SELECT `+messageColumns+` FROM messages m WHERE run_id = $1 AND role = 'user'
		AND EXISTS (SELECT FROM agent_executions r WHERE r.run_id = m.run_id AND r.conversation_id = m.conversation_id AND r.message_id <> m.id) ORDER BY sequence_number`, runID)
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
	err := t.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM messages m JOIN agent_executions r USING (run_id, conversation_id)
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
