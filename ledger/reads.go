package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// runStatus is the status that readers see: a run that is paused says so, whatever it waits for.
const runStatus = `CASE WHEN r.pause_intent IS NOT NULL AND r.status IN ('queued', 'running', 'waiting', 'in_doubt', 'limit_reached') THEN 'paused' ELSE r.status END`

const runColumns = `r.run_id, r.conversation_id, r.root_run_id, r.parent_run_id, r.message_id, r.request_id, r.session_id, r.epoch, ` + runStatus + `,
	r.input, r.attachments, r.metadata, r.definition, r.start_sequence, r.final_output, r.error, r.created_at, r.started_at, r.finished_at,
	r.forked_from_run, r.forked_from_sequence, r.limits, r.events_removed_at, r.payloads_removed_at,
	(SELECT json_build_object('by', p.payload -> 'by', 'reason', p.payload -> 'reason', 'since', p.created_at) FROM intents p WHERE p.id = r.pause_intent)`

func scanRun(row pgx.CollectableRow) (agent.Run, error) {
	var (
		r                       agent.Run
		parent                  *string
		attachments, definition []byte
		failure                 []byte
		forkedFrom              *string
		forkedAt                *int64
		removed                 agent.Removed
	)
	err := row.Scan(&r.RunID, &r.ConversationID, &r.RootRunID, &parent, &r.MessageID, &r.RequestID, &r.SessionID, &r.Epoch, &r.Status,
		&r.Input, &attachments, &r.Metadata, &definition, &r.StartSequence, &r.FinalOutput, &failure, &r.CreatedAt, &r.StartedAt, &r.FinishedAt, &forkedFrom, &forkedAt,
		&r.Granted, &removed.EventsAt, &removed.PayloadsAt, &r.Pause)
	if err != nil {
		return r, err
	}
	if forkedFrom != nil && forkedAt != nil {
		r.ForkedFrom = &agent.ForkedFrom{RunID: *forkedFrom, Sequence: *forkedAt}
	}
	if removed != (agent.Removed{}) {
		r.Removed = &removed
	}
	if parent != nil {
		r.ParentRunID = *parent
	}
	if err := json.Unmarshal(attachments, &r.Attachments); err != nil {
		return r, err
	}
	if err := json.Unmarshal(definition, &r.Definition); err != nil {
		return r, err
	}
	if failure != nil {
		r.Error = &agent.Error{}
		return r, json.Unmarshal(failure, r.Error)
	}
	return r, nil
}

// notFound makes an unknown or malformed id, and one of another owner, the same answer.
func notFound(err error, what, id string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &agent.NotFoundError{What: what, ID: id}
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", what, id, err)
	}
	return nil
}

func checkID(what, id string) error {
	if err := uuid.Validate(id); err != nil {
		return &agent.NotFoundError{What: what, ID: id}
	}
	return nil
}

// Reads by owner say (owner = $n OR $n = '*'), for agent.AnyOwner. Postgres plans them for the value at hand, so that for any
// other one the right side is gone and the index by owner is used; owner IN ($n, ...) would not be.

// Run reads a run of an owner. Error: *agent.NotFoundError.
func (l *Ledger) Run(ctx context.Context, owner, runID string) (agent.Run, error) {
	if err := checkID("run", runID); err != nil {
		return agent.Run{}, err
	}
	rows, err := l.pool.Query(ctx, `SELECT `+runColumns+` FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id
		WHERE r.run_id = $1 AND (c.owner = $2 OR $2 = '*')`, runID, owner)
	if err != nil {
		return agent.Run{}, fmt.Errorf("read run %s: %w", runID, err)
	}
	run, err := pgx.CollectExactlyOneRow(rows, scanRun)
	return run, notFound(err, "run", runID)
}

// WorkerRun reads a run and its plan (nil when there is none yet), whoever owns it.
func (l *Ledger) WorkerRun(ctx context.Context, runID string) (run agent.Run, plan *agent.Plan, err error) {
	var batch pgx.Batch
	batch.Queue(`SELECT `+runColumns+` FROM agent_executions r WHERE r.run_id = $1`, runID).Query(func(rows pgx.Rows) error {
		run, err = pgx.CollectExactlyOneRow(rows, scanRun)
		return err
	})
	batch.Queue(selectPlan, runID).QueryRow(func(row pgx.Row) error {
		plan, err = scanPlan(row, runID)
		return err
	})
	return run, plan, notFound(l.pool.SendBatch(ctx, &batch).Close(), "run", runID)
}

const selectPlan = `SELECT plan FROM agent_executions WHERE run_id = $1`

// RunPlan reads a run's plan, nil when it has none yet.
func (l *Ledger) RunPlan(ctx context.Context, runID string) (*agent.Plan, error) {
	plan, err := scanPlan(l.pool.QueryRow(ctx, selectPlan, runID), runID)
	return plan, notFound(err, "run", runID)
}

func scanPlan(row pgx.Row, runID string) (*agent.Plan, error) {
	var raw []byte
	if err := row.Scan(&raw); err != nil || raw == nil {
		return nil, err
	}
	plan := new(agent.Plan)
	if err := json.Unmarshal(raw, plan); err != nil {
		return nil, fmt.Errorf("plan of run %s: %w", runID, err)
	}
	return plan, nil
}

// Runs lists runs, newest first. What another owner has, a page can neither be of nor go on after: both are as if it were
// not there.
func (l *Ledger) Runs(ctx context.Context, f agent.RunFilter) (runs []agent.Run, hasMore bool, err error) {
	if f.ConversationID != "" {
		if err := checkID("conversation", f.ConversationID); err != nil {
			return nil, false, err
		}
	}
	if f.Before != "" {
		if err := checkID("run", f.Before); err != nil {
			return nil, false, err
		}
	}
	rows, err := l.pool.Query(ctx, `SELECT `+runColumns+` FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id
		WHERE (c.owner = $1 OR $1 = '*') AND ($2::uuid IS NULL OR r.conversation_id = $2) AND ($3 = '' OR `+runStatus+` = $3)
			AND ($4 = '' OR r.agent = $4)
			AND (NOT $7 OR EXISTS (SELECT FROM commands d WHERE d.run_id = r.run_id AND d.state = 'in_doubt'))
			AND ($5::uuid IS NULL OR (r.created_at, r.run_id) < (SELECT b.created_at, b.run_id
				FROM agent_executions b JOIN conversations bc ON bc.id = b.conversation_id WHERE b.run_id = $5 AND (bc.owner = $1 OR $1 = '*')))
		ORDER BY r.created_at DESC, r.run_id DESC LIMIT $6`,
		f.Owner, nullText(f.ConversationID), string(f.Status), f.Agent, nullText(f.Before), f.Limit+1, f.InDoubt)
	if err != nil {
		return nil, false, fmt.Errorf("list runs: %w", err)
	}
	return page(rows, scanRun, f.Limit, "list runs")
}

// page collects rows that were asked for one beyond the limit, so that has_more is exact.
func page[T any](rows pgx.Rows, scan pgx.RowToFunc[T], limit int, what string) (items []T, hasMore bool, err error) {
	items, err = pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	if len(items) > limit {
		return items[:limit], true, nil
	}
	return items, false, nil
}

const conversationColumns = `id, title, last_sequence, created_at, updated_at`

func scanConversation(row pgx.CollectableRow) (agent.Conversation, error) {
	var c agent.Conversation
	err := row.Scan(&c.ConversationID, &c.Title, &c.LastSequence, &c.CreatedAt, &c.UpdatedAt)
	return c, err
}

// Conversation reads a conversation of an owner. Error: *agent.NotFoundError.
func (l *Ledger) Conversation(ctx context.Context, owner, id string) (agent.Conversation, error) {
	if err := checkID("conversation", id); err != nil {
		return agent.Conversation{}, err
	}
	rows, err := l.pool.Query(ctx, `SELECT `+conversationColumns+` FROM conversations WHERE id = $1 AND (owner = $2 OR $2 = '*')`, id, owner)
	if err != nil {
		return agent.Conversation{}, fmt.Errorf("read conversation %s: %w", id, err)
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanConversation)
	return c, notFound(err, "conversation", id)
}

// Conversations lists an owner's conversations, newest first, going on after the owner's conversation before.
func (l *Ledger) Conversations(ctx context.Context, owner, before string, limit int) ([]agent.Conversation, bool, error) {
	if before != "" {
		if err := checkID("conversation", before); err != nil {
			return nil, false, err
		}
	}
	rows, err := l.pool.Query(ctx, `SELECT `+conversationColumns+` FROM conversations WHERE (owner = $1 OR $1 = '*')
			AND ($2::uuid IS NULL OR (created_at, id) < (SELECT created_at, id FROM conversations WHERE id = $2 AND (owner = $1 OR $1 = '*')))
		ORDER BY created_at DESC, id DESC LIMIT $3`, owner, nullText(before), limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list conversations: %w", err)
	}
	return page(rows, scanConversation, limit, "list conversations")
}

// Messages lists a conversation's messages that came with an event after the given number, oldest first.
func (l *Ledger) Messages(ctx context.Context, conversationID string, after int64, limit int) ([]agent.Message, bool, error) {
	rows, err := l.pool.Query(ctx, `SELECT `+messageColumns+` FROM messages WHERE conversation_id = $1 AND sequence_number > $2
		ORDER BY sequence_number LIMIT $3`, conversationID, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list messages: %w", err)
	}
	return page(rows, scanMessage, limit, "list messages")
}

const messageColumns = `id, run_id, role, content, tool_calls, tool_call_id, tool_name, command_id, sequence_number, created_at`

func scanMessage(row pgx.CollectableRow) (agent.Message, error) {
	var m agent.Message
	err := row.Scan(&m.MessageID, &m.RunID, &m.Role, &m.Content, &m.ToolCalls, &m.ToolCallID, &m.ToolName, &m.CommandID, &m.Sequence, &m.CreatedAt)
	return m, err
}

// ExecutionStatus tells whether a run of the conversation is queued or at work, and how far its log goes. The current message is
// that of the run at work, of the next one when none is, or of the last one.
func (l *Ledger) ExecutionStatus(ctx context.Context, conversationID string) (agent.ExecutionStatus, error) {
	var s agent.ExecutionStatus
	err := l.pool.QueryRow(ctx, `SELECT c.last_sequence, r.message_id::text, r.message_id IS NOT NULL AND r.finished_at IS NULL
		FROM conversations c LEFT JOIN LATERAL (SELECT r.message_id, r.finished_at FROM agent_executions r LEFT JOIN enqueued q USING (run_id)
			WHERE r.conversation_id = c.id ORDER BY (r.finished_at IS NULL) DESC, q.place NULLS FIRST, r.created_at DESC, r.run_id DESC LIMIT 1) r ON true
		WHERE c.id = $1`, conversationID).Scan(&s.LastSequence, &s.CurrentMessageID, &s.IsRunning)
	if err != nil {
		return s, notFound(err, "conversation", conversationID)
	}
	return s, nil
}
