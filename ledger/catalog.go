package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// PublishTools tells what the workers of a task queue can do. It replaces what they could do before.
func (l *Ledger) PublishTools(ctx context.Context, taskQueue string, tools []agent.ToolRef) error {
	var batch pgx.Batch
	// Workers that start at once publish one after the other: in different orders they would deadlock.
	batch.Queue(`SELECT pg_advisory_xact_lock($1)`, catalogLock)
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
		batch.Queue(`INSERT INTO tool_catalog (task_queue, name, description, input_schema, effect_class, timeout_ms, approve, lane) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (task_queue, name) DO UPDATE SET description = excluded.description, input_schema = excluded.input_schema,
				effect_class = excluded.effect_class, timeout_ms = excluded.timeout_ms, approve = excluded.approve, lane = excluded.lane, published_at = now()`,
			taskQueue, t.Name, textSafe(t.Description), textSafe(string(t.InputSchema)), t.Effect, time.Duration(t.Timeout).Milliseconds(), t.Approve, t.Lane)
	}
	batch.Queue(`DELETE FROM tool_catalog WHERE task_queue = $1 AND name <> ALL ($2)`, taskQueue, names)
	if err := l.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("publish tools of task queue %s: %w", taskQueue, err)
	}
	return nil
}

// Tools lists the catalogue by name. It is empty until a worker has published.
func (l *Ledger) Tools(ctx context.Context) ([]agent.ToolRef, error) {
	rows, err := l.pool.Query(ctx, `SELECT name, description, input_schema, effect_class, timeout_ms, approve, lane FROM (SELECT DISTINCT ON (name) * FROM tool_catalog ORDER BY name, published_at DESC) t`)
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	tools, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.ToolRef, error) {
		var t agent.ToolRef
		var timeout int64
		err := row.Scan(&t.Name, &t.Description, &t.InputSchema, &t.Effect, &timeout, &t.Approve, &t.Lane)
		t.Timeout = agent.Duration(time.Duration(timeout) * time.Millisecond)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	return tools, nil
}
