-- What is removed of runs that have ended, by age, and whole conversations, by hand.

-- +goose Up
ALTER TABLE conversations
    -- Events up to this number are no longer kept, though they may be there still, or the newer of them. removed_chain is the
    -- chain after the last of them, from which the chain of those that are kept goes on.
    ADD COLUMN removed_through bigint NOT NULL DEFAULT 0,
    ADD COLUMN removed_chain   bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex') CHECK (octet_length(removed_chain) = 32),
    -- Up to here they are gone.
    ADD COLUMN swept_through   bigint NOT NULL DEFAULT 0;
CREATE INDEX conversations_unswept ON conversations (id) WHERE swept_through < removed_through;

ALTER TABLE agent_executions
    ADD COLUMN events_removed_at   timestamptz,
    ADD COLUMN payloads_removed_at timestamptz,
    -- The source of a fork may be deleted; the fork still says what it was forked from.
    DROP CONSTRAINT agent_executions_forked_from_run_fkey;
CREATE INDEX agent_executions_with_events ON agent_executions (finished_at, run_id) WHERE events_removed_at IS NULL;
CREATE INDEX agent_executions_with_payloads ON agent_executions (finished_at, run_id) WHERE payloads_removed_at IS NULL;
CREATE INDEX fork_priors_by_source ON fork_priors (source_run_id);
-- Who refers to a payload.
CREATE INDEX commands_payload ON commands (result_hash) WHERE result IS NULL AND result_hash <> '';

-- A fork's conversation begins with messages of other runs, which may be deleted: what a transcript takes from those runs' rows
-- is then kept here.
ALTER TABLE messages
    DROP CONSTRAINT messages_run_id_fkey,
    ADD COLUMN steers boolean,
    ADD COLUMN heard  bigint;

-- +goose Down
ALTER TABLE messages DROP COLUMN heard, DROP COLUMN steers;
DELETE FROM messages m WHERE NOT EXISTS (SELECT FROM agent_executions r WHERE r.run_id = m.run_id);
ALTER TABLE messages ADD CONSTRAINT messages_run_id_fkey FOREIGN KEY (run_id) REFERENCES agent_executions (run_id);
DROP INDEX commands_payload;
DROP INDEX fork_priors_by_source;
DROP INDEX agent_executions_with_payloads;
DROP INDEX agent_executions_with_events;
UPDATE agent_executions f SET forked_from_run = NULL, forked_from_sequence = NULL
    WHERE NOT EXISTS (SELECT FROM agent_executions s WHERE s.run_id = f.forked_from_run);
ALTER TABLE agent_executions
    ADD CONSTRAINT agent_executions_forked_from_run_fkey FOREIGN KEY (forked_from_run) REFERENCES agent_executions (run_id),
    DROP COLUMN payloads_removed_at, DROP COLUMN events_removed_at;
DROP INDEX conversations_unswept;
ALTER TABLE conversations DROP COLUMN swept_through, DROP COLUMN removed_chain, DROP COLUMN removed_through;
