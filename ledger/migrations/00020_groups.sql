-- Transactions of several runs in one: what each of them costs the database by itself, a commit, a round trip, the start and the end of
-- every statement, they have together.

-- +goose Up

-- append_all does for several transactions what append_events does for one that goes by memory, each of a run in another conversation.
-- The first arrays have an element for each transaction, the later ones for each event: transactions holds whose it is, counted from
-- one, and places which of its events; facts holds NULL for what is none. What it gives has an element for each transaction; befores
-- are the chains before the events. Anything that is not as it was raises RL001, and nothing is written of any of them.
--
-- Its statements take longer to start than those of append_events and do not take longer for more transactions: two of these are
-- even.
--
-- What it needs of a run it locks, in the order run, conversation, command, and the runs and conversations of all transactions in the
-- order in which they come: callers bring them in the order of their conversations, so that no two wait for each other.
-- +goose StatementBegin
CREATE FUNCTION append_all(runs uuid[], epochs int[], moments timestamptz[], statuses text[], logs bytea[],
    commands text[], dispatches int[], schedules int[], attempts int[], tokens text[],
    transactions int[], places int[], types text[], docs text[], nodes text[], event_commands text[], event_attempts int[], facts int[],
    OUT conversations uuid[], OUT messages uuid[], OUT roots uuid[], OUT befores bytea[], OUT lasts bigint[], OUT chains bytea[])
LANGUAGE plpgsql
-- A plan for any arrays is guessed to be dearer than one for those of a call, so that each call would be planned anew.
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    holds boolean;
    starts bigint[];
    digest bytea;
    t int;
    i int := 0;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(x'72756e'::int, hashtext(n.run::text)) FROM unnest(runs) AS n (run);
    -- LATERAL with a lock is never planned as anything but a look into the index for each.
    SELECT array_agg(e.conversation_id), array_agg(e.message_id), array_agg(e.root_run_id), array_agg(v.chain), array_agg(v.last_sequence),
            array_agg(greatest(n.moment, v.updated_at)),
            bool_and(e.epoch = n.epoch AND e.status = n.status AND e.pause_intent IS NULL AND e.forked_from_run IS NULL AND (n.log IS NULL OR v.chain = n.log)
                AND n.moment BETWEEN v.clock - interval '1 second' AND v.clock + interval '1 second')
        INTO conversations, messages, roots, befores, starts, moments, holds
        FROM unnest(runs, epochs, moments, statuses, logs) AS n (run, epoch, moment, status, log)
        CROSS JOIN LATERAL (SELECT e.conversation_id, e.message_id, e.root_run_id, e.epoch, e.status, e.pause_intent, e.forked_from_run
            FROM agent_executions e WHERE e.run_id = n.run FOR SHARE) e
        CROSS JOIN LATERAL (SELECT v.last_sequence, v.chain, v.updated_at, clock_timestamp() AS clock
            FROM conversations v WHERE v.id = e.conversation_id FOR NO KEY UPDATE) v;
    IF cardinality(conversations) IS DISTINCT FROM cardinality(runs) OR NOT holds THEN
        RAISE EXCEPTION 'the run or its log is not as it was' USING ERRCODE = 'RL001';
    END IF;
    -- By a statement of its own, which sees what was committed before the conversation was locked.
    SELECT bool_and(CASE WHEN n.dispatch IS NULL THEN k.dispatch_no IS NULL ELSE k.dispatch_no IS NOT NULL AND k.dispatch_no = n.dispatch AND k.state = 'dispatched'
            AND k.owner_epoch = n.epoch AND k.owner_schedule = n.schedule AND k.owner_attempt = n.attempt AND k.owner_token = n.token END)
        INTO holds
        FROM unnest(runs, epochs, commands, dispatches, schedules, attempts, tokens) AS n (run, epoch, command, dispatch, schedule, attempt, token)
        LEFT JOIN LATERAL (SELECT k.dispatch_no, k.state, k.owner_epoch, k.owner_schedule, k.owner_attempt, k.owner_token
            FROM commands k WHERE k.run_id = n.run AND k.command_id = n.command FOR NO KEY UPDATE) k ON true;
    IF holds IS NOT TRUE THEN
        RAISE EXCEPTION 'the command is not as it was' USING ERRCODE = 'RL001';
    END IF;
    lasts := starts;
    chains := befores;
    FOR digest IN
        INSERT INTO agent_execution_events AS added (conversation_id, message_id, run_id, root_run_id, epoch, created_at,
            sequence_number, event_type, event_data, node_id, command_id, attempt, fact_no)
        SELECT conversations[n.t], messages[n.t], runs[n.t], roots[n.t], epochs[n.t], moments[n.t],
            starts[n.t] + n.place, n.typ, n.doc::jsonb, n.node, n.command, n.attempt, n.fact
        FROM unnest(transactions, places, types, docs, nodes, event_commands, event_attempts, facts)
            AS n (t, place, typ, doc, node, command, attempt, fact)
        RETURNING event_digest(added)
    LOOP
        i := i + 1;
        t := transactions[i];
        chains[t] := sha256(chains[t] || digest);
        lasts[t] := lasts[t] + 1;
    END LOOP;
    UPDATE conversations v SET last_sequence = lasts[array_position(conversations, v.id)], chain = chains[array_position(conversations, v.id)],
        updated_at = moments[array_position(conversations, v.id)] WHERE v.id = ANY (conversations);
END
$$;
-- +goose StatementEnd

-- Commands are written with the row of their run locked and read, as events are.
ALTER TABLE commands DROP CONSTRAINT commands_run_id_fkey;

-- The checkpoints of a conversation are those of its runs.
DROP INDEX execution_checkpoints_by_conversation;

-- +goose Down
CREATE INDEX execution_checkpoints_by_conversation ON execution_checkpoints (conversation_id, sequence_number DESC);
ALTER TABLE commands ADD CONSTRAINT commands_run_id_fkey FOREIGN KEY (run_id) REFERENCES agent_executions (run_id);
DROP FUNCTION append_all(uuid[], int[], timestamptz[], text[], bytea[], text[], int[], int[], int[], text[],
    int[], int[], text[], text[], text[], text[], int[], int[]);
