-- What is asked of every event, at every write, and is known without asking.

-- +goose Up

-- Events and checkpoints are written by append_events and behind it, with the row of their conversation locked and read: that it is
-- there need not be asked once more for each.
ALTER TABLE agent_execution_events DROP CONSTRAINT agent_execution_events_conversation_id_fkey;
ALTER TABLE execution_checkpoints
    DROP CONSTRAINT execution_checkpoints_conversation_id_fkey,
    DROP CONSTRAINT execution_checkpoints_run_id_fkey;

-- An event is found by its conversation and its number. Nothing refers to its id, and random ids are dear to index.
ALTER TABLE agent_execution_events DROP CONSTRAINT agent_execution_events_pkey;
ALTER TABLE agent_execution_events DROP CONSTRAINT agent_execution_events_gap_free;
ALTER TABLE agent_execution_events ADD CONSTRAINT agent_execution_events_gap_free PRIMARY KEY (conversation_id, sequence_number);

-- Of a run that nobody started, the root is the run itself.
DROP INDEX agent_execution_events_by_root;
CREATE INDEX agent_execution_events_by_root ON agent_execution_events (root_run_id, sequence_number) WHERE root_run_id <> run_id;

-- A check is parsed and prepared anew by every statement that writes to its table. These tables are written by the gate alone, whose
-- states are constants, whose chain is a sha256 and whose numbers count from one.
ALTER TABLE commands DROP CONSTRAINT commands_state_check;
ALTER TABLE conversations DROP CONSTRAINT conversations_chain_check, DROP CONSTRAINT conversations_removed_chain_check;
ALTER TABLE agent_execution_events DROP CONSTRAINT agent_execution_events_sequence_number_check;

-- No statement selects by what is in these, and to gather how their values are spread is most of the work of ANALYZE.
ALTER TABLE agent_execution_events ALTER COLUMN event_data SET STATISTICS 0;
ALTER TABLE execution_checkpoints ALTER COLUMN execution_state SET STATISTICS 0;
ALTER TABLE commands ALTER COLUMN input SET STATISTICS 0, ALTER COLUMN result SET STATISTICS 0, ALTER COLUMN usage SET STATISTICS 0;

-- +goose Down
ALTER TABLE agent_execution_events ADD CONSTRAINT agent_execution_events_sequence_number_check CHECK (sequence_number >= 1);
ALTER TABLE conversations ADD CONSTRAINT conversations_chain_check CHECK (octet_length(chain) = 32),
    ADD CONSTRAINT conversations_removed_chain_check CHECK (octet_length(removed_chain) = 32);
ALTER TABLE commands ADD CONSTRAINT commands_state_check
    CHECK (state IN ('dispatched', 'released', 'fenced', 'waiting', 'committed', 'failed', 'aborted', 'in_doubt'));
ALTER TABLE commands ALTER COLUMN usage SET STATISTICS -1, ALTER COLUMN result SET STATISTICS -1, ALTER COLUMN input SET STATISTICS -1;
ALTER TABLE execution_checkpoints ALTER COLUMN execution_state SET STATISTICS -1;
ALTER TABLE agent_execution_events ALTER COLUMN event_data SET STATISTICS -1;
DROP INDEX agent_execution_events_by_root;
CREATE INDEX agent_execution_events_by_root ON agent_execution_events (root_run_id, sequence_number);
ALTER TABLE agent_execution_events DROP CONSTRAINT agent_execution_events_gap_free;
ALTER TABLE agent_execution_events ADD CONSTRAINT agent_execution_events_gap_free UNIQUE (conversation_id, sequence_number);
ALTER TABLE agent_execution_events ADD CONSTRAINT agent_execution_events_pkey PRIMARY KEY (id);
ALTER TABLE execution_checkpoints
    ADD CONSTRAINT execution_checkpoints_run_id_fkey FOREIGN KEY (run_id) REFERENCES agent_executions (run_id),
    ADD CONSTRAINT execution_checkpoints_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversations (id);
ALTER TABLE agent_execution_events
    ADD CONSTRAINT agent_execution_events_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversations (id);
