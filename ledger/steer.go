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
	case len(a.Run.Attachments) > 0 || a.Plan != nil && a.PlanSource != reactPlan || a.OwnLimits || len(a.Run.Metadata) > 0 && string(a.Run.Metadata) != "{}":
		refused.Detail = "run " + runID + " is at work and can be told a message, without attachments, plan, metadata and limits: they are for a run of its own"
		return run, false, refused
	case a.Agent != "" && a.Agent != run.Definition.Agent:
		refused.Detail = fmt.Sprintf("run %s, which is at work, is agent %s's, and the message is for agent %s: enqueue it, or interrupt the run with it", runID, run.Definition.Agent, a.Agent)
		return run, false, refused
	}
	err = l.write(ctx, txnScope{runID: runID, anyEpoch: true, changesRun: true, withState: true}, func(t *txn) error {
		steered = false
		if t.run.status.Terminal() || t.run.status == agent.Cancelling || t.state.Step() > 0 {
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
			t.writes.Queue(`INSERT INTO idempotency_keys (owner, key, request_hash, run_id, steered) VALUES ($1, $2, $3, $4, $5)`,
				a.Owner, a.Key, a.RequestHash, runID, t.last)
		}
		run.Steered = t.last
		return t.ask(MessageIntent, agent.Intent{Sequence: t.last})
	})
	return run, steered, err
}

// reactPlan is the source of the plan that every react run has.
const reactPlan = "react"

// Steered lists what was said to a run while it was at work, and up to which number each begun turn of its loop has heard it.
func (l *Ledger) Steered(ctx context.Context, runID string) (messages []agent.Message, heard map[string]int64, err error) {
	rows, err := l.pool.Query(ctx, `SELECT `+messageColumns+` FROM messages m JOIN LATERAL (SELECT r.message_id AS own, r.conversation_id AS its, r.start_sequence AS start
			FROM agent_executions r WHERE r.run_id = $1) r ON conversation_id = its AND sequence_number > start AND id <> own
		WHERE run_id = $1 AND role = 'user' ORDER BY sequence_number`, runID)
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
	err := t.tx.QueryRow(ctx, `SELECT coalesce(max(m.sequence_number), 0) FROM messages m JOIN agent_executions r USING (run_id, conversation_id)
		WHERE m.run_id = $1 AND m.role = 'user' AND m.id <> r.message_id AND m.sequence_number > greatest($2::bigint, r.start_sequence)`, c.RunID, c.Heard).Scan(&c.Said)
	if err != nil || c.Said == 0 {
		return err
	}
	c.Event.GoesOn = true
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
