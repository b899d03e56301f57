-- The whole ledger. History is append-only: agent_execution_events, execution_checkpoints, messages, payloads.
-- Numbers come from conversations.last_sequence, taken in the event's own transaction, never from a sequence object: a
-- bigserial commits out of order, and a reader that trusts it skips events for ever.

-- +goose Up
CREATE TABLE conversations (
    id            uuid PRIMARY KEY,
    owner         text NOT NULL,
    title         text NOT NULL DEFAULT '',
    last_sequence bigint NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX conversations_by_owner ON conversations (owner, created_at DESC, id);

CREATE TABLE agent_executions (
    run_id          uuid PRIMARY KEY,
    conversation_id uuid NOT NULL REFERENCES conversations (id),
    root_run_id     uuid NOT NULL,
    parent_run_id   uuid REFERENCES agent_executions (run_id),
    message_id      uuid NOT NULL,
    request_id      text NOT NULL,
    session_id      text NOT NULL DEFAULT '',
    -- Which execution of the run this is. A worker's transaction requires it, so that a replaced execution can write nothing.
    epoch           int NOT NULL DEFAULT 1 CHECK (epoch >= 1),
    status          text NOT NULL,
    -- definition.agent, to select by: reading it out of the json would fail on every text in it that text cannot hold.
    agent           text NOT NULL,
    input           text NOT NULL,
    -- json, not jsonb: these are kept as they were written, byte for byte.
    attachments     json NOT NULL DEFAULT '[]',
    metadata        json NOT NULL DEFAULT '{}',
    -- The agent as resolved when the run was accepted.
    definition      json NOT NULL,
    -- The plan as it stands, null until plan_generated.
    plan            json,
    start_sequence  bigint NOT NULL,
    final_output    text,
    error           jsonb,
    created_at      timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz,
    finished_at     timestamptz
);
CREATE INDEX agent_executions_by_conversation ON agent_executions (conversation_id, created_at, run_id);
CREATE INDEX agent_executions_by_time ON agent_executions (created_at DESC, run_id);
CREATE INDEX agent_executions_open ON agent_executions (status, created_at) WHERE finished_at IS NULL;

-- Repeated requests with the same key get the same run; another body under the key is refused.
CREATE TABLE idempotency_keys (
    owner        text NOT NULL,
    key          text NOT NULL,
    request_hash text NOT NULL,
    run_id       uuid NOT NULL REFERENCES agent_executions (run_id),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, key)
);

CREATE TABLE messages (
    id              uuid PRIMARY KEY,
    conversation_id uuid NOT NULL REFERENCES conversations (id),
    run_id          uuid NOT NULL REFERENCES agent_executions (run_id),
    role            text NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
    content         text NOT NULL,
    tool_calls      json,
    tool_results    json,
    tool_call_id    text NOT NULL DEFAULT '',
    tool_name       text NOT NULL DEFAULT '',
    command_id      text NOT NULL DEFAULT '',
    -- The number of the event that brought the message. A history up to a number is the same at every reading.
    sequence_number bigint NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX messages_by_sequence ON messages (conversation_id, sequence_number);

CREATE TABLE agent_execution_events (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    conversation_id uuid NOT NULL REFERENCES conversations (id),
    message_id      uuid NOT NULL,
    event_type      varchar(50) NOT NULL,
    event_data      jsonb NOT NULL,
    sequence_number bigint NOT NULL CHECK (sequence_number >= 1),
    created_at      timestamptz NOT NULL DEFAULT now(),
    run_id          uuid NOT NULL,
    root_run_id     uuid NOT NULL,
    epoch           int NOT NULL,
    node_id         text NOT NULL DEFAULT '',
    command_id      text NOT NULL DEFAULT '',
    attempt         int NOT NULL DEFAULT 0,
    -- Set on what the workflow had to say, by which a fact that two activities carry is written once.
    fact_no         int,
    CONSTRAINT agent_execution_events_gap_free UNIQUE (conversation_id, sequence_number)
);
CREATE INDEX agent_execution_events_by_run ON agent_execution_events (run_id, sequence_number);
CREATE INDEX agent_execution_events_by_root ON agent_execution_events (root_run_id, sequence_number);
CREATE UNIQUE INDEX agent_execution_events_facts ON agent_execution_events (run_id, epoch, fact_no) WHERE fact_no IS NOT NULL;

-- Large results, by the hash of their bytes.
CREATE TABLE payloads (
    hash       text PRIMARY KEY,
    bytes      bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE commands (
    run_id          uuid NOT NULL REFERENCES agent_executions (run_id),
    command_id      text NOT NULL,
    node_id         text NOT NULL,
    kind            text NOT NULL,
    tool            text NOT NULL DEFAULT '',
    model           text NOT NULL DEFAULT '',
    effect_class    text NOT NULL DEFAULT '',
    state           text NOT NULL CHECK (state IN ('dispatched', 'released', 'fenced', 'committed', 'failed', 'aborted', 'in_doubt')),
    input_hash      text NOT NULL DEFAULT '',
    input           bytea,
    dispatch_no     int NOT NULL DEFAULT 0,
    -- The dispatch that wrote the row last: (epoch, schedule_no, Temporal attempt).
    owner_epoch     int NOT NULL,
    owner_schedule  int NOT NULL,
    owner_attempt   int NOT NULL,
    lease_until     timestamptz,
    deadline        timestamptz,
    -- The number of the event that decided the command.
    sequence_number bigint NOT NULL DEFAULT 0,
    -- The result's exact bytes stand here, or in payloads under result_hash.
    result          bytea,
    result_hash     text NOT NULL DEFAULT '',
    result_bytes    bigint NOT NULL DEFAULT 0,
    error           jsonb,
    usage           jsonb,
    latency_ms      bigint NOT NULL DEFAULT 0,
    emitted_at      timestamptz NOT NULL DEFAULT now(),
    decided_at      timestamptz,
    PRIMARY KEY (run_id, command_id)
);
CREATE INDEX commands_in_doubt ON commands (run_id) WHERE state = 'in_doubt';

CREATE TABLE execution_checkpoints (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    conversation_id uuid NOT NULL REFERENCES conversations (id),
    message_id      uuid NOT NULL,
    checkpoint_type varchar(50) NOT NULL,
    execution_state jsonb NOT NULL,
    step_number     int NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    run_id          uuid NOT NULL REFERENCES agent_executions (run_id),
    epoch           int NOT NULL,
    -- The number of the checkpoint_saved event; the state holds every event of the run up to the one before it.
    sequence_number bigint NOT NULL
);
CREATE INDEX execution_checkpoints_by_run ON execution_checkpoints (run_id, sequence_number DESC);
CREATE INDEX execution_checkpoints_by_conversation ON execution_checkpoints (conversation_id, sequence_number DESC);

-- The outbox: what a person or client asks of a run, on its way to Temporal. Written in the transaction of its event.
CREATE TABLE intents (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id       uuid NOT NULL REFERENCES agent_executions (run_id),
    epoch        int NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('start', 'cancel')),
    payload      jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now(),
    delivered_at timestamptz,
    attempts     int NOT NULL DEFAULT 0,
    next_try_at  timestamptz NOT NULL DEFAULT now(),
    last_error   text NOT NULL DEFAULT ''
);
CREATE INDEX intents_undelivered ON intents (next_try_at, id) WHERE delivered_at IS NULL;
CREATE INDEX intents_by_run ON intents (run_id, id);

-- What workers can do. The API validates plans against it, so that embedded and MCP tools are known there too.
CREATE TABLE tool_catalog (
    task_queue   text NOT NULL,
    name         text NOT NULL,
    description  text NOT NULL,
    input_schema json NOT NULL,
    effect_class text NOT NULL,
    timeout_ms   bigint NOT NULL DEFAULT 0,
    published_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_queue, name)
);

-- Model output while it arrives: not history. Lost with a crash of Postgres, emptied when its command is decided.
CREATE UNLOGGED TABLE model_output (
    run_id          uuid NOT NULL,
    command_id      text NOT NULL,
    attempt         int NOT NULL,
    chunk           int NOT NULL,
    channel         text NOT NULL,
    body            text NOT NULL,
    conversation_id uuid NOT NULL,
    root_run_id     uuid NOT NULL,
    node_id         text NOT NULL,
    PRIMARY KEY (run_id, command_id, attempt, chunk)
);
CREATE INDEX model_output_by_conversation ON model_output (conversation_id);

-- The plan of each run, as the documents name it.
CREATE VIEW work_plans AS
SELECT id, conversation_id, message_id, run_id, event_data -> 'task_graph' AS plan, sequence_number, created_at
FROM agent_execution_events
WHERE event_type IN ('plan_generated', 'plan_revised');

-- The tool calls of each run, as the documents name them.
CREATE VIEW tool_execution_records AS
SELECT c.run_id, e.conversation_id, e.message_id, c.command_id, c.node_id, c.tool AS tool_name, c.state AS status,
       c.input AS tool_input, c.result AS tool_output, c.result_hash, c.error, c.dispatch_no, c.latency_ms,
       c.emitted_at AS started_at, c.decided_at AS completed_at
FROM commands c
JOIN agent_executions e USING (run_id)
WHERE c.kind = 'tool';

-- +goose Down
DROP VIEW tool_execution_records;
DROP VIEW work_plans;
DROP TABLE model_output;
DROP TABLE tool_catalog;
DROP TABLE intents;
DROP TABLE execution_checkpoints;
DROP TABLE commands;
DROP TABLE payloads;
DROP TABLE agent_execution_events;
DROP TABLE messages;
DROP TABLE idempotency_keys;
DROP TABLE agent_executions;
DROP TABLE conversations;
