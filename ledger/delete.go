package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// DeleteConversation removes a conversation of an owner and everything of it. Forks of its runs are conversations of their own and
// keep what they have; what they say of where it is from stays too. Those who follow the conversation are told.
//
// Errors: *agent.NotFoundError; *agent.ConflictError while a run of it is not finished, or a fork asks it for calls that a run of it
// has made.
func (l *Ledger) DeleteConversation(ctx context.Context, owner, id string) error {
	if _, err := l.Conversation(ctx, owner, id); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { return deleteConversation(ctx, tx, owner, id) }); err != nil {
		return fmt.Errorf("delete conversation %s: %w", id, err)
	}
	l.notifier.news(id, false)
	return nil
}

func deleteConversation(ctx context.Context, tx pgx.Tx, owner, id string) error {
	// A log may be long; nobody waits for the locks of a conversation in which nothing is at work.
	if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '5min'`); err != nil {
		return err
	}
	// Runs before the conversation, as everywhere. A run that is accepted in between is seen behind the second lock.
	if _, err := tx.Exec(ctx, `SELECT FROM agent_executions WHERE conversation_id = $1 ORDER BY run_id FOR UPDATE`, id); err != nil {
		return err
	}
	var there bool
	err := tx.QueryRow(ctx, `SELECT true FROM conversations WHERE id = $1 AND (owner = $2 OR $2 = '*') FOR UPDATE`, id, owner).Scan(&there)
	if err != nil {
		return notFound(err, "conversation", id)
	}
	var open, fork *string
	err = tx.QueryRow(ctx, `SELECT (SELECT run_id::text FROM agent_executions WHERE conversation_id = $1 AND finished_at IS NULL LIMIT 1),
			(SELECT p.run_id::text FROM fork_priors p JOIN agent_executions s ON s.run_id = p.source_run_id JOIN agent_executions f ON f.run_id = p.run_id
				WHERE s.conversation_id = $1 AND f.conversation_id <> $1 AND f.events_removed_at IS NULL AND f.payloads_removed_at IS NULL LIMIT 1)`, id).
		Scan(&open, &fork)
	switch {
	case err != nil:
		return err
	case open != nil:
		return &agent.ConflictError{Reason: agent.ConflictRunOpen, RunID: *open, Detail: "run " + *open + " of the conversation has not finished: cancel it first"}
	case fork != nil:
		return &agent.ConflictError{Reason: agent.ConflictForked, RunID: *fork,
			Detail: "run " + *fork + " was forked from here, and asks here for calls that it must not make again: delete its conversation first"}
	}
	rows, err := tx.Query(ctx, `SELECT run_id::text FROM agent_executions WHERE conversation_id = $1`, id)
	if err != nil {
		return err
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	hashes, err := payloadHashes(ctx, tx, runs)
	if err != nil {
		return err
	}
	var batch pgx.Batch
	// Messages that a fork has taken along need these runs' rows to be told as they were.
	batch.Queue(`UPDATE messages m SET steers = said.steers, heard = said.heard
		FROM (SELECT m.conversation_id, m.id, `+steersHere+` AS steers, `+heardHere+` AS heard
			FROM messages m JOIN agent_executions r USING (run_id)
				LEFT JOIN commands c ON m.role = 'assistant' AND c.run_id = m.run_id AND c.command_id = m.command_id
			WHERE m.run_id = ANY ($1) AND m.conversation_id <> $2) said
		WHERE m.conversation_id = said.conversation_id AND m.id = said.id`, runs, id)
	for _, table := range []string{"model_output", "enqueued", "messages", "agent_execution_events"} {
		batch.Queue(`DELETE FROM `+table+` WHERE conversation_id = $1`, id)
	}
	for _, table := range []string{"idempotency_keys", "intents", "approvals", "inputs", "commands", "execution_checkpoints"} {
		batch.Queue(`DELETE FROM `+table+` WHERE run_id = ANY ($1)`, runs)
	}
	batch.Queue(`DELETE FROM fork_priors WHERE run_id = ANY ($1) OR source_run_id = ANY ($1)`, runs)
	batch.Queue(`DELETE FROM agent_executions WHERE conversation_id = $1`, id)
	batch.Queue(`DELETE FROM conversations WHERE id = $1`, id)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	_, err = removeUnreferred(ctx, tx, hashes)
	return err
}
