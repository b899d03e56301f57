-- Runs that begin with a part of another run's record.

-- +goose Up
ALTER TABLE agent_executions
    -- The run that this one was forked from, and the number of its record up to which.
    ADD COLUMN forked_from_run uuid REFERENCES agent_executions (run_id),
    ADD COLUMN forked_from_sequence bigint;
-- Of a command that was not executed by its run: the run that executed it, and the number in that run's record.
ALTER TABLE commands ADD COLUMN reused_from jsonb;

-- Calls with an external effect which the source of a fork has made, and which are not among what the fork has reused. They are
-- asked about when the fork is about to make the same call.
CREATE TABLE fork_priors (
    run_id        uuid NOT NULL REFERENCES agent_executions (run_id),
    command_id    text NOT NULL,
    source_run_id uuid NOT NULL REFERENCES agent_executions (run_id),
    PRIMARY KEY (run_id, command_id, source_run_id)
);

-- +goose Down
DROP TABLE fork_priors;
ALTER TABLE commands DROP COLUMN reused_from;
ALTER TABLE agent_executions DROP COLUMN forked_from_sequence, DROP COLUMN forked_from_run;
