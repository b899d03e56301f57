-- A hash chain over each conversation's events: chain n = sha256(chain n-1 || digest of event n). Whoever has seen it at one
-- number can tell later whether any event up to that number was changed, removed, moved or slipped in. Every activity tells
-- Temporal the chain after its last transaction, so the histories there are witnesses of it.
--
-- Processes from before this migration do not carry the chain on: stop them before it is applied.

-- +goose Up

-- The digest covers every column but id, which nothing refers to. Free texts go with their lengths, so that no two events
-- give the same bytes; the time in microseconds and jsonb's own text are the same in every session. STABLE, since concat_ws,
-- convert_to and extract are.
-- +goose StatementBegin
CREATE FUNCTION event_digest(e agent_execution_events) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT sha256(convert_to(concat_ws('|', e.conversation_id, e.sequence_number, e.message_id, e.run_id, e.root_run_id, e.epoch,
        e.attempt, coalesce(e.fact_no, 0), (extract(epoch FROM e.created_at) * 1000000)::bigint,
        octet_length(e.event_type), e.event_type, octet_length(e.node_id), e.node_id, octet_length(e.command_id), e.command_id,
        e.event_data), 'UTF8'))
$$;
-- +goose StatementEnd

-- plpgsql, which keeps its plan; an SQL function would be planned anew in every statement.
-- +goose StatementBegin
CREATE FUNCTION event_chain_next(state bytea, seed bytea, digest bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN sha256(coalesce(state, seed) || digest);
END
$$;
-- +goose StatementEnd

-- event_chain(seed, digest ORDER BY sequence_number) is the chain after these events, from the chain before them.
CREATE AGGREGATE event_chain(seed bytea, digest bytea) (SFUNC = event_chain_next, STYPE = bytea);

-- The chain after the event last_sequence.
ALTER TABLE conversations ADD COLUMN chain bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex') CHECK (octet_length(chain) = 32);
UPDATE conversations c SET chain = e.chain
FROM (SELECT conversation_id, event_chain(decode(repeat('00', 32), 'hex'), event_digest(agent_execution_events) ORDER BY sequence_number) AS chain
      FROM agent_execution_events GROUP BY conversation_id) e
WHERE e.conversation_id = c.id;

-- +goose Down
ALTER TABLE conversations DROP COLUMN chain;
DROP AGGREGATE event_chain(bytea, bytea);
DROP FUNCTION event_chain_next(bytea, bytea, bytea);
DROP FUNCTION event_digest(agent_execution_events);
