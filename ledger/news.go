package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// $1 are the conversations that output is wanted of and their places among all that are read, $3 to $7 what the reader has of it.
const newOutput = `SELECT d.at, o.conversation_id, o.run_id, o.root_run_id, o.node_id, o.command_id, o.attempt, o.chunk, o.channel, o.body
	FROM unnest($1::uuid[], $2::int[]) AS d (id, at)
	JOIN model_output o ON o.conversation_id = d.id
	JOIN commands c ON c.run_id = o.run_id AND c.command_id = o.command_id AND c.dispatch_no = o.attempt AND c.state = 'dispatched'
	LEFT JOIN unnest($3::int[], $4::uuid[], $5::text[], $6::int[], $7::int[]) AS h (at, run_id, command_id, attempt, chunk)
		ON h.at = d.at AND h.run_id = o.run_id AND h.command_id = o.command_id
	WHERE h.run_id IS NULL OR o.attempt > h.attempt OR (o.attempt = h.attempt AND o.chunk > h.chunk)
	ORDER BY d.at, o.run_id, o.command_id, o.attempt, o.chunk`

const newEvents = `SELECT d.at - 1, e.* FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS d (id, after, at)
	CROSS JOIN LATERAL (SELECT ` + eventColumns + ` FROM agent_execution_events
		WHERE conversation_id = d.id AND sequence_number > d.after ORDER BY sequence_number LIMIT $3) e
	ORDER BY d.at, e.sequence_number`

const newlyGone = `SELECT d.at - 1 FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS d (id, after, at)
	LEFT JOIN conversations c ON c.id = d.id WHERE c.id IS NULL OR c.removed_through > d.after`

// News reads what is new in several conversations in one round trip, with the output before the events: each statement sees
// what was committed when it began.
func (l *Ledger) News(ctx context.Context, from []agent.LogCursor, limit int) ([]agent.LogNews, error) {
	var (
		all, told, runs, commands     []string
		after                         []int64
		toldAt, haveAt, tries, chunks []int
	)
	for at, c := range from {
		all, after = append(all, c.ConversationID), append(after, c.After)
		if c.Output {
			told, toldAt = append(told, c.ConversationID), append(toldAt, at)
		}
		for _, h := range c.Have {
			haveAt, runs, commands = append(haveAt, at), append(runs, h.RunID), append(commands, h.CommandID)
			tries, chunks = append(tries, h.Attempt), append(chunks, h.Chunk)
		}
	}
	news := make([]agent.LogNews, len(from))
	var batch pgx.Batch
	if len(told) > 0 {
		batch.Queue(newOutput, told, toldAt, haveAt, runs, commands, tries, chunks).Query(func(rows pgx.Rows) error {
			var at int
			var o agent.OutputChunk
			_, err := pgx.ForEachRow(rows, []any{&at, &o.ConversationID, &o.RunID, &o.RootRunID, &o.NodeID, &o.CommandID, &o.Attempt, &o.Chunk, &o.Channel, &o.Text},
				func() error {
					news[at].Output = append(news[at].Output, o)
					return nil
				})
			return err
		})
	}
	batch.Queue(newEvents, all, after, limit).Query(func(rows pgx.Rows) error {
		var scan eventScan
		for rows.Next() {
			var at int
			if err := rows.Scan(append([]any{&at}, make([]any, eventColumnCount)...)...); err != nil {
				return err
			}
			e, err := scan.event(rows, 1)
			if err != nil {
				return err
			}
			news[at].Events = append(news[at].Events, e)
		}
		return rows.Err()
	})
	// After the events: what is deleted was marked before.
	batch.Queue(newlyGone, all, after).Query(func(rows pgx.Rows) error {
		var at int
		_, err := pgx.ForEachRow(rows, []any{&at}, func() error {
			news[at] = agent.LogNews{Gone: true}
			return nil
		})
		return err
	})
	if err := l.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("read the news of %d conversations: %w", len(from), err)
	}
	return news, nil
}
