package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// History lists what a conversation held before a number: the messages that a run which started there continues. It is
// the same at every reading. Users' messages and final answers are part of it; the tool calls on the way to them are not.
func (l *Ledger) History(ctx context.Context, conversationID string, before int64) ([]agent.Message, error) {
	rows, err := l.pool.Query(ctx, `SELECT `+messageColumns+` FROM messages WHERE conversation_id = $1 AND sequence_number < $2
			AND tool_calls IS NULL AND role <> 'tool'
		ORDER BY sequence_number`, conversationID, before)
	if err != nil {
		return nil, fmt.Errorf("history of conversation %s: %w", conversationID, err)
	}
	messages, err := pgx.CollectRows(rows, scanMessage)
	if err != nil {
		return nil, fmt.Errorf("history of conversation %s: %w", conversationID, err)
	}
	return messages, nil
}

// heardHere is up to which message a turn was shown what was said to its run. In a conversation that was begun by a fork the messages
// from before it have other numbers than in their own.
const heardHere = `coalesce(m.heard, CASE WHEN c.heard > 0 AND m.conversation_id <> r.conversation_id THEN coalesce((
		SELECT h.sequence_number FROM messages o JOIN messages h ON h.conversation_id = m.conversation_id AND h.id = o.id
		WHERE o.conversation_id = r.conversation_id AND o.run_id = m.run_id AND o.sequence_number = c.heard AND o.role = 'user'), 0)
	ELSE coalesce(c.heard, 0) END)`

// steersHere tells whether a message was said to a run at work. Of messages whose run was deleted both are kept in their rows.
const steersHere = `coalesce(m.steers, m.role = 'user' AND m.id <> r.message_id)`

// Transcript lists all messages that a conversation held before a number, newest first, at most limit. It is the same at every
// reading. Of a content that is longer than maxBytes only the beginning is read, that many characters; Bytes is its whole size.
func (l *Ledger) Transcript(ctx context.Context, conversationID string, before int64, limit, maxBytes int) ([]agent.Message, error) {
	rows, err := l.pool.Query(ctx, `SELECT m.id, m.run_id, m.role, left(m.content, $4), octet_length(m.content), m.tool_calls, m.tool_call_id, m.tool_name,
			m.command_id, m.sequence_number, m.created_at, `+steersHere+`, `+heardHere+`
		FROM messages m LEFT JOIN agent_executions r USING (run_id)
			LEFT JOIN commands c ON m.role = 'assistant' AND c.run_id = m.run_id AND c.command_id = m.command_id
		WHERE m.conversation_id = $1 AND m.sequence_number < $2 ORDER BY m.sequence_number DESC LIMIT $3`,
		conversationID, before, limit, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("transcript of conversation %s: %w", conversationID, err)
	}
	messages, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.Message, error) {
		var m agent.Message
		err := row.Scan(&m.MessageID, &m.RunID, &m.Role, &m.Content, &m.Bytes, &m.ToolCalls, &m.ToolCallID, &m.ToolName, &m.CommandID,
			&m.Sequence, &m.CreatedAt, &m.Steers, &m.Heard)
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("transcript of conversation %s: %w", conversationID, err)
	}
	return messages, nil
}

// CountMessages counts the messages that a conversation held before a number.
func (l *Ledger) CountMessages(ctx context.Context, conversationID string, before int64) (n int, err error) {
	err = l.pool.QueryRow(ctx, `SELECT count(*) FROM messages WHERE conversation_id = $1 AND sequence_number < $2`, conversationID, before).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("messages of conversation %s: %w", conversationID, err)
	}
	return n, nil
}
