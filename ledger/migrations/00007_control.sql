-- What people ask of runs at work: pauses, approvals, inputs, messages, other limits.

-- +goose Up
ALTER TABLE agent_executions
    -- The intent that has paused the run, null while it is not paused. status is what it would be otherwise.
    ADD COLUMN pause_intent bigint,
    -- Limits that were given to the run beyond its definition's.
    ADD COLUMN limits json;

ALTER TABLE commands DROP CONSTRAINT commands_state_check;
ALTER TABLE commands ADD CONSTRAINT commands_state_check
    CHECK (state IN ('dispatched', 'released', 'fenced', 'waiting', 'committed', 'failed', 'aborted', 'in_doubt'));
ALTER TABLE commands
    -- The newest question whether the call may be made.
    ADD COLUMN approval_id uuid,
    -- Of a loop's turn: the newest message in its prompt that was said while the run was at work, and whether its answer did not
    -- end the loop because another one came.
    ADD COLUMN heard bigint NOT NULL DEFAULT 0,
    ADD COLUMN goes_on boolean NOT NULL DEFAULT false;

-- Which kinds there are is for the dispatcher to know.
ALTER TABLE intents DROP CONSTRAINT intents_kind_check;

ALTER TABLE tool_catalog ADD COLUMN approve text NOT NULL DEFAULT '';

CREATE TABLE approvals (
    approval_id    uuid PRIMARY KEY,
    run_id         uuid NOT NULL REFERENCES agent_executions (run_id),
    node_id        text NOT NULL,
    command_id     text NOT NULL,
    tool           text NOT NULL,
    effect_class   text NOT NULL,
    -- What the tool would be called with, in canonical form without its secrets, and the hash of the canonical form with them.
    arguments      json NOT NULL,
    arguments_hash text NOT NULL,
    reason         text NOT NULL DEFAULT '',
    state          text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'approved', 'denied', 'expired', 'withdrawn')),
    requested_at   timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    decided_at     timestamptz,
    decided_by     text NOT NULL DEFAULT '',
    note           text NOT NULL DEFAULT '',
    -- What somebody has approved in the place of the arguments, as it is called with.
    edited         bytea,
    edited_hash    text
);
CREATE INDEX approvals_by_run ON approvals (run_id, requested_at);
CREATE INDEX approvals_open ON approvals (requested_at DESC, approval_id) WHERE state = 'open';

-- Named inputs for wait nodes, those that come before anybody waits too. The same id is kept once.
CREATE TABLE inputs (
    run_id          uuid NOT NULL REFERENCES agent_executions (run_id),
    name            text NOT NULL,
    input_id        text NOT NULL,
    value           bytea NOT NULL,
    sequence_number bigint NOT NULL,
    -- The command that has taken it, empty while none has.
    command_id      text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (run_id, name, input_id)
);

-- +goose Down
DROP TABLE inputs;
DROP TABLE approvals;
ALTER TABLE tool_catalog DROP COLUMN approve;
DELETE FROM intents WHERE kind NOT IN ('start', 'cancel', 'resolved');
ALTER TABLE intents ADD CONSTRAINT intents_kind_check CHECK (kind IN ('start', 'cancel', 'resolved'));
UPDATE commands SET state = 'fenced' WHERE state = 'waiting';
ALTER TABLE commands DROP COLUMN goes_on, DROP COLUMN heard, DROP COLUMN approval_id;
ALTER TABLE commands DROP CONSTRAINT commands_state_check;
ALTER TABLE commands ADD CONSTRAINT commands_state_check
    CHECK (state IN ('dispatched', 'released', 'fenced', 'committed', 'failed', 'aborted', 'in_doubt'));
ALTER TABLE agent_executions DROP COLUMN limits, DROP COLUMN pause_intent;
