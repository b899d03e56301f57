package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// Events reads a scope's events after a number, in the order of their numbers, at most limit. Errors: *agent.GoneError when some of them
// are no longer kept, *agent.NotFoundError when the conversation is not there any more.
func (l *Ledger) Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error) {
	const page = `SELECT ` + eventColumns + ` FROM agent_execution_events WHERE %s AND sequence_number > $2 ORDER BY sequence_number LIMIT $3`
	query, id := fmt.Sprintf(page, "conversation_id = $1"), scope.ConversationID
	if scope.RunID != "" {
		// A run's log holds those of its child runs. Each has its index; by both at once, a page would read all that follows it.
		query, id = fmt.Sprintf(`(`+page+`) UNION ALL (`+page+`) ORDER BY sequence_number LIMIT $3`, "run_id = $1", "root_run_id = $1 AND root_run_id <> run_id"), scope.RunID
	}
	rows, err := l.pool.Query(ctx, query, id, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	var scan eventScan
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.Event, error) { return scan.event(row, 0) })
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	if len(events) > 0 && events[0].Sequence == after+1 {
		return events, nil
	}
	return events, l.checkKept(ctx, scope, after)
}

// checkKept finds out whether numbers that are not in a scope's log have been there. It is asked after the log was read: what is deleted
// was marked before.
func (l *Ledger) checkKept(ctx context.Context, scope agent.LogScope, after int64) error {
	removed, first := int64(0), after+1
	var err error
	if scope.RunID == "" {
		err = l.pool.QueryRow(ctx, `SELECT removed_through FROM conversations WHERE id = $1`, scope.ConversationID).Scan(&removed)
	} else { // all of a run's events are kept, or none
		err = l.pool.QueryRow(ctx, `SELECT c.removed_through, r.start_sequence FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id
			WHERE r.run_id = $1`, scope.RunID).Scan(&removed, &first)
	}
	switch {
	case err != nil:
		return notFound(err, "conversation", scope.ConversationID)
	case first <= removed:
		return &agent.GoneError{RunID: scope.RunID, Oldest: removed + 1}
	}
	return nil
}

// Extent tells how far a scope's log goes and whether more can follow, as of one moment.
func (l *Ledger) Extent(ctx context.Context, scope agent.LogScope) (agent.Extent, error) {
	const all = `SELECT CASE WHEN c.last_sequence > 0 THEN c.removed_through + 1 ELSE 0 END, c.last_sequence, c.last_sequence,
			EXISTS (SELECT 1 FROM agent_executions r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)
		FROM conversations c WHERE c.id = $1`
	const one = `SELECT CASE WHEN c.last_sequence > 0 THEN c.removed_through + 1 ELSE 0 END, c.last_sequence,
			greatest((SELECT max(sequence_number) FROM agent_execution_events WHERE run_id = r.run_id),
				(SELECT max(sequence_number) FROM agent_execution_events WHERE root_run_id = r.run_id AND root_run_id <> run_id), 0),
			r.finished_at IS NULL
		FROM conversations c JOIN agent_executions r ON r.conversation_id = c.id WHERE c.id = $1 AND r.run_id = $2`
	query, args := all, []any{scope.ConversationID}
	if scope.RunID != "" {
		query, args = one, append(args, scope.RunID)
	}
	var x agent.Extent
	if err := l.pool.QueryRow(ctx, query, args...).Scan(&x.Oldest, &x.Last, &x.LastInScope, &x.Open); err != nil {
		return x, notFound(err, "conversation", scope.ConversationID)
	}
	return x, nil
}

// AppendOutput keeps model output while it arrives, for those who watch. It is written only while the dispatch it comes
// from is at work, and is gone when the command is decided.
func (l *Ledger) AppendOutput(ctx context.Context, runID, commandID string, attempt int, chunks []agent.OutputChunk) error {
	n := len(chunks)
	numbers, channels, bodies := make([]int, n), make([]string, n), make([]string, n)
	for i, c := range chunks {
		numbers[i], channels[i], bodies[i] = c.Chunk, c.Channel, textSafe(c.Text)
	}
	var conversationID string
	err := l.pool.QueryRow(ctx, `WITH open AS (
			SELECT r.conversation_id, r.root_run_id, c.node_id FROM commands c JOIN agent_executions r USING (run_id)
			WHERE c.run_id = $1 AND c.command_id = $2 AND c.dispatch_no = $3 AND c.state = 'dispatched'),
		written AS (
			INSERT INTO model_output (run_id, command_id, attempt, chunk, channel, body, conversation_id, root_run_id, node_id)
			SELECT $1, $2, $3, chunk, channel, body, conversation_id, root_run_id, node_id
			FROM open, unnest($4::int[], $5::text[], $6::text[]) AS u (chunk, channel, body)
			ON CONFLICT DO NOTHING)
		SELECT coalesce((SELECT conversation_id::text FROM open), '')`,
		runID, commandID, attempt, numbers, channels, bodies).Scan(&conversationID)
	if err != nil {
		return fmt.Errorf("append output of command %s of run %s: %w", commandID, runID, err)
	}
	if conversationID != "" {
		l.notifier.news(conversationID, false)
	}
	return nil
}
