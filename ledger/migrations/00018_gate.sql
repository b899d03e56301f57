-- The gate in one round trip: what a process remembers of a run goes along with what it writes, and the database checks the one
-- before it takes the other. And less work for each event.

-- +goose Up

-- append_events appends events to a conversation, and moves its counter and its chain behind them. The arrays have an element for each
-- event; facts holds NULL for what is none. The caller has locked the conversation's row and says whose events they are, or else:
--
-- recalled: it goes by what it remembers, which holds if the run is at work in this epoch and status, neither paused nor a fork; if the
-- log still ends with this chain, unless that is NULL; and if the command's row is that of this dispatch, at work, or with dispatch NULL
-- does not exist. What the general way locks is locked here, in the same order. The moment that the caller takes for now must be near
-- to it. Anything else raises RL001, and nothing is written. Whose events they are is found out here.
--
-- before is the chain before these events.
-- +goose StatementBegin
CREATE FUNCTION append_events(run uuid, epoch int, at timestamptz, INOUT conversation uuid, INOUT message uuid, INOUT root uuid,
    types text[], docs text[], nodes text[], commands text[], attempts int[], facts int[],
    recalled boolean, status text, remembered bytea, command text, dispatch int, schedule int, attempt int, token text,
    OUT before bytea, OUT last bigint, OUT chain bytea) LANGUAGE plpgsql AS $$
DECLARE
    e record;
    c record;
    d record;
    digest bytea;
BEGIN
    IF NOT recalled THEN
        SELECT v.last_sequence, v.chain, at AS updated_at INTO STRICT c FROM conversations v WHERE v.id = conversation;
    ELSE
        PERFORM pg_advisory_xact_lock_shared(x'72756e'::int, hashtext(run::text));
        SELECT r.conversation_id, r.message_id, r.root_run_id, r.epoch, r.status, r.pause_intent, r.forked_from_run INTO e
            FROM agent_executions r WHERE r.run_id = run FOR SHARE;
        IF NOT FOUND OR e.epoch <> append_events.epoch OR e.status <> append_events.status OR e.pause_intent IS NOT NULL OR e.forked_from_run IS NOT NULL THEN
            RAISE EXCEPTION 'the run is not as it was' USING ERRCODE = 'RL001';
        END IF;
        conversation := e.conversation_id;
        message := e.message_id;
        root := e.root_run_id;
        SELECT v.last_sequence, v.chain, v.updated_at INTO STRICT c FROM conversations v WHERE v.id = conversation FOR NO KEY UPDATE;
        IF c.chain <> remembered THEN
            RAISE EXCEPTION 'the log is not as it was' USING ERRCODE = 'RL001';
        END IF;
        IF at NOT BETWEEN clock_timestamp() - interval '1 second' AND clock_timestamp() + interval '1 second' THEN
            RAISE EXCEPTION 'it is not the time that it was taken for' USING ERRCODE = 'RL001';
        END IF;
        SELECT k.dispatch_no, k.state, k.owner_epoch, k.owner_schedule, k.owner_attempt, k.owner_token INTO d
            FROM commands k WHERE k.run_id = run AND k.command_id = command FOR NO KEY UPDATE;
        IF FOUND = (dispatch IS NULL) OR FOUND AND (d.dispatch_no <> dispatch OR d.state <> 'dispatched' OR d.owner_epoch <> epoch
                OR d.owner_schedule <> schedule OR d.owner_attempt <> attempt OR d.owner_token <> token) THEN
            RAISE EXCEPTION 'the command is not as it was' USING ERRCODE = 'RL001';
        END IF;
    END IF;
    last := c.last_sequence;
    before := c.chain;
    chain := before;
    FOR digest IN
        INSERT INTO agent_execution_events AS added (conversation_id, message_id, run_id, root_run_id, epoch, created_at,
            sequence_number, event_type, event_data, node_id, command_id, attempt, fact_no)
        SELECT conversation, message, run, root, append_events.epoch, greatest(at, c.updated_at),
            append_events.last + n.ord, n.typ, n.doc::jsonb, n.node, n.command, n.attempt, n.fact
        FROM unnest(types, docs, nodes, commands, attempts, facts) WITH ORDINALITY AS n (typ, doc, node, command, attempt, fact, ord)
        RETURNING event_digest(added)
    LOOP
        last := last + 1;
        chain := sha256(chain || digest);
    END LOOP;
    UPDATE conversations v SET last_sequence = append_events.last, chain = append_events.chain, updated_at = greatest(at, c.updated_at)
        WHERE v.id = conversation;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION append_events(uuid, int, timestamptz, uuid, uuid, uuid, text[], text[], text[], text[], int[], int[],
    boolean, text, bytea, text, int, int, int, text);
