-- Runs that were accepted and wait for others of their conversation. A run's history is what the conversation held before its
-- run_started, the answer of the run before it too; so its events, and the intent to start it, are written when its turn comes.

-- +goose Up
CREATE TABLE enqueued (
    run_id          uuid PRIMARY KEY REFERENCES agent_executions (run_id),
    conversation_id uuid NOT NULL REFERENCES conversations (id),
    -- The lowest goes first. One that interrupts takes a place below all others, any other one above.
    place           bigint NOT NULL,
    -- The runs that had begun when it came are to stop.
    interrupts      boolean NOT NULL,
    -- The events that are written when its turn comes: type, node and data of each.
    opening         json NOT NULL,
    CONSTRAINT enqueued_place UNIQUE (conversation_id, place)
);
-- A message that waits has its id, so that nobody else takes it, and no place among the others.
ALTER TABLE messages ALTER COLUMN sequence_number DROP NOT NULL;
-- The runs of a conversation that are at work, however many have ended.
CREATE INDEX agent_executions_open_by_conversation ON agent_executions (conversation_id) WHERE finished_at IS NULL;

-- +goose Down
-- What waits is lost: it has no events, which every run has to have.
DROP INDEX agent_executions_open_by_conversation;
DELETE FROM idempotency_keys WHERE run_id IN (SELECT run_id FROM enqueued);
DELETE FROM messages WHERE sequence_number IS NULL;
CREATE TEMPORARY TABLE lost ON COMMIT DROP AS SELECT run_id FROM enqueued;
DROP TABLE enqueued;
DELETE FROM agent_executions WHERE run_id IN (SELECT run_id FROM lost);
ALTER TABLE messages ALTER COLUMN sequence_number SET NOT NULL;
