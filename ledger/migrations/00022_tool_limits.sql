-- Limits of calls that hold over all workers: how many calls of a tool, or of the tools of a server, are at work and begin within a
-- time. What the limits are is for the workers to say; this is what they have to know of each other.

-- +goose Up

-- Whoever asks for a slot locks the limit's row, so that two do not count at once. Calls that wait for a rate are told to come back one
-- after the other; queued_until is when the last of them does.
CREATE TABLE tool_limits (
    name text PRIMARY KEY,
    queued_until timestamptz NOT NULL DEFAULT '-infinity'
);

-- A slot is in use while the dispatch with its token holds its command, which the command's row tells; or, as long as no row does, for
-- the time of a lease. So nobody has to give it back, and a worker that is lost takes none along. It stays as long as it counts for the
-- rate.
CREATE TABLE tool_slots (
    name text NOT NULL,
    token text NOT NULL,
    run_id uuid NOT NULL,
    command_id text NOT NULL,
    taken_at timestamptz NOT NULL,
    PRIMARY KEY (name, token)
);
CREATE INDEX tool_slots_by_time ON tool_slots (name, taken_at);

-- +goose Down
DROP TABLE tool_slots;
DROP TABLE tool_limits;
