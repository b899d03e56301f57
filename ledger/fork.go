package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// PlanFork says what Fork would begin with, and writes nothing. Errors are those of Fork.
func (l *Ledger) PlanFork(ctx context.Context, f agent.Fork) (*agent.ForkPlan, error) {
	_, plan, err := l.planFork(ctx, &f)
	if err != nil {
		return nil, fmt.Errorf("plan a fork of run %s: %w", f.Source, err)
	}
	return plan, nil
}

// Fork makes a new run in a new conversation that begins with a part of another run's record, in one transaction: the run, its
// first events, the source's record as far as it is reused, what was said in the source's conversation before, and the intent to
// start. The source is only read. A request that was accepted before under the same key gives that run again and created false.
//
// Errors: *agent.NotFoundError when the run is not the owner's; *agent.GoneError when its record is no longer kept; *agent.ForkError when the record does not have what is named;
// *agent.ConflictError when the key came with another request, or the run waits for its turn and has no record yet.
func (l *Ledger) Fork(ctx context.Context, f agent.Fork) (run agent.Run, created bool, err error) {
	f.Key = textSafe(f.Key)
	r := &f.Run
	r.Input, r.RequestID, r.SessionID = textSafe(r.Input), textSafe(r.RequestID), textSafe(r.SessionID)
	for range 2 { // two requests with one key may race; the second then reads what the first wrote
		run, created, err = l.fork(ctx, f)
		if f.Key == "" || !violates(err, "idempotency_keys_pkey") {
			break
		}
	}
	if err != nil {
		return agent.Run{}, false, fmt.Errorf("fork run %s: %w", f.Source, err)
	}
	if created {
		l.notifier.news(run.ConversationID, true)
		l.meter.RunAccepted()
	}
	return run, created, nil
}

func (l *Ledger) fork(ctx context.Context, f agent.Fork) (run agent.Run, created bool, err error) {
	a := agent.Acceptance{Owner: f.Owner, Offline: f.Offline, Key: f.Key, RequestHash: f.RequestHash}
	if f.Key != "" {
		earlier, _, err := l.acceptedBefore(ctx, a)
		if err != nil {
			return run, false, err
		}
		if earlier != "" {
			run, err = l.Run(ctx, f.Owner, earlier)
			return run, false, err
		}
	}
	owner, err := l.ownerOf(ctx, f.Owner, f.Source)
	if err != nil {
		return run, false, err
	}
	// The source is read in a transaction of its own, as of one moment: its record is only added to, so that what is written by it
	// stays true.
	src, plan, err := l.planFork(ctx, &f)
	if err != nil {
		return run, false, err
	}
	inForce := src.Run.Definition.Limits
	if plan.Limits != nil {
		inForce = *plan.Limits
	}
	f.Run.Definition.Limits = f.Limits.Or(inForce)
	a.Run = f.Run
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		w := &forkWriter{txn: &txn{tx: tx}, ask: &f, src: src, plan: plan, said: map[int64]int64{}, heard: map[string]int64{}}
		return w.write(ctx, owner, a)
	})
	if err != nil {
		return run, false, err
	}
	run, err = l.Run(ctx, owner, f.Run.RunID)
	return run, err == nil, err
}

// planFork reads the source and decides; a checkpoint that is asked for becomes its number.
func (l *Ledger) planFork(ctx context.Context, f *agent.Fork) (src *agent.ForkSource, plan *agent.ForkPlan, err error) {
	if err := checkID("run", f.Source); err != nil {
		return nil, nil, err
	}
	src = &agent.ForkSource{}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, l.pool, snapshot, func(tx pgx.Tx) error { return readForkSource(ctx, tx, f, src) })
	if err != nil {
		return nil, nil, err
	}
	plan, err = agent.PlanFork(src, f)
	return src, plan, err
}

func readForkSource(ctx context.Context, tx pgx.Tx, f *agent.Fork, src *agent.ForkSource) error {
	rows, err := tx.Query(ctx, `SELECT `+runColumns+` FROM agent_executions r JOIN conversations c ON c.id = r.conversation_id
		WHERE r.run_id = $1 AND (c.owner = $2 OR $2 = '*')`, f.Source, f.Owner)
	if err != nil {
		return err
	}
	if src.Run, err = pgx.CollectExactlyOneRow(rows, scanRun); err != nil {
		return notFound(err, "run", f.Source)
	}
	if err := stillKept(ctx, tx, f.Source); err != nil {
		return err
	}
	if f.CheckpointID != "" {
		err := tx.QueryRow(ctx, `SELECT sequence_number FROM execution_checkpoints WHERE id = $1 AND run_id = $2`, f.CheckpointID, f.Source).Scan(&f.Sequence)
		if errors.Is(err, pgx.ErrNoRows) {
			return &agent.ForkError{Field: agent.ForkCheckpoint, Detail: "run " + f.Source + " has no checkpoint " + f.CheckpointID}
		}
		if err != nil {
			return err
		}
	}
	var raw []byte
	if err := tx.QueryRow(ctx, `SELECT plan FROM agent_executions WHERE run_id = $1`, f.Source).Scan(&raw); err != nil {
		return err
	}
	if raw != nil {
		src.Plan = &agent.Plan{}
		if err := json.Unmarshal(raw, src.Plan); err != nil {
			return fmt.Errorf("plan of run %s: %w", f.Source, err)
		}
	}
	if src.Events, err = collect(ctx, tx, scanEvent, `SELECT `+eventColumns+` FROM agent_execution_events
		WHERE run_id = $1 ORDER BY sequence_number`, f.Source); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	if src.Commands, err = collect(ctx, tx, scanCommand, `SELECT `+commandColumns+` FROM commands c
		WHERE c.run_id = $1 AND c.state <> 'fenced' ORDER BY c.emitted_at, c.command_id`, f.Source); err != nil {
		return fmt.Errorf("commands: %w", err)
	}
	if src.Run.ForkedFrom == nil {
		return nil
	}
	priors, err := collect(ctx, tx, pgx.RowToStructByPos[priorName], `SELECT source_run_id::text, command_id FROM fork_priors WHERE run_id = $1
		ORDER BY command_id, source_run_id`, f.Source)
	if err != nil {
		return fmt.Errorf("priors: %w", err)
	}
	for _, p := range priors {
		c, err := collect(ctx, tx, scanCommand, `SELECT `+commandColumns+` FROM commands c WHERE c.run_id = $1 AND c.command_id = $2`, p.RunID, p.CommandID)
		if err != nil {
			return fmt.Errorf("priors: %w", err)
		}
		for _, c := range c {
			src.Priors = append(src.Priors, agent.ForkPrior{RunID: p.RunID, Command: c})
		}
	}
	return nil
}

type priorName struct{ RunID, CommandID string }

// forkWriter writes a fork.
type forkWriter struct {
	*txn
	ask  *agent.Fork
	src  *agent.ForkSource
	plan *agent.ForkPlan
	// said are the numbers of messages to the source's loop, and those that they have here.
	said map[int64]int64
	// heard are the numbers, here, up to which turns were shown what was said to the loop.
	heard map[string]int64

	commands reusedCommands
	messages renumbered
	inputs   renumbered
}

// renumbered are numbers of the source's record, and those that take their place.
type renumbered struct{ from, to []int64 }

func (r *renumbered) add(from, to int64) { r.from, r.to = append(r.from, from), append(r.to, to) }

// reusedCommands are the rows to copy, column by column.
type reusedCommands struct {
	ids, states, errors, froms []string
	numbers, heard             []int64
}

func (w *forkWriter) write(ctx context.Context, owner string, a agent.Acceptance) error {
	r := &a.Run
	w.run = runHead{runID: r.RunID, conversationID: r.ConversationID, rootRunID: r.RootRunID, messageID: r.MessageID, epoch: r.Epoch}
	// From here on nothing of the source is removed before the fork has it.
	if _, err := w.tx.Exec(ctx, `SELECT FROM agent_executions WHERE run_id = $1 FOR SHARE`, w.src.Run.RunID); err != nil {
		return err
	}
	if err := stillKept(ctx, w.tx, w.src.Run.RunID); err != nil {
		return err
	}
	_, err := w.tx.Exec(ctx, `INSERT INTO conversations (id, owner, title) VALUES ($1, $2, $3)`, r.ConversationID, owner, textSafe(agent.Preview(r.Input, 80)))
	if err != nil {
		return err
	}
	if err := w.tx.QueryRow(ctx, `SELECT last_sequence, chain, `+theTime+` FROM conversations WHERE id = $1`, r.ConversationID).
		Scan(&w.last, &w.chain, &w.now); err != nil {
		return err
	}
	// What was said before stays before: its numbers end at 0, where those of the new conversation's events begin after.
	w.writes.Queue(`INSERT INTO messages (id, conversation_id, run_id, role, content, tool_calls, tool_results, tool_call_id, tool_name, command_id, sequence_number, created_at,
			steers, heard)
		SELECT id, $1, run_id, role, content, tool_calls, tool_results, tool_call_id, tool_name, command_id, sequence_number - $3 + 1, created_at,
			steers, CASE heard WHEN 0 THEN 0 ELSE heard - $3 + 1 END
		FROM messages WHERE conversation_id = $2 AND sequence_number < $3`, r.ConversationID, w.src.Run.ConversationID, w.src.Run.StartSequence)
	if err := w.accept(a, nil); err != nil {
		return err
	}
	w.writes.Queue(`UPDATE agent_executions SET forked_from_run = $2, forked_from_sequence = $3 WHERE run_id = $1`, r.RunID, w.src.Run.RunID, w.plan.From)
	if err := w.record(); err != nil {
		return err
	}
	w.rows()
	w.queueEvents()
	return w.tx.SendBatch(ctx, &w.writes).Close()
}

// record appends run_forked and the source's record.
func (w *forkWriter) record() error {
	forked := agent.RunForkedData{RunID: w.src.Run.RunID, ConversationID: w.src.Run.ConversationID, Sequence: w.plan.From, CheckpointID: w.ask.CheckpointID,
		Changes: w.ask.Changes, Effects: w.ask.Effects, Rerun: w.ask.Rerun, By: textSafe(w.ask.By), Reused: len(w.plan.Outcomes), Kept: len(w.plan.Priors)}
	if err := w.event(agent.RunForked, "", "", 0, forked); err != nil {
		return err
	}
	at := len(w.newEvents) - 1
	for _, e := range w.plan.Record {
		if err := w.copy(e); err != nil {
			return err
		}
	}
	forked.Through = w.last
	data, err := json.Marshal(forked)
	if err != nil {
		return err
	}
	w.newEvents[at].Data, err = jsonbSafe(data)
	return err
}

func (w *forkWriter) copy(e agent.Event) error {
	old := e.Sequence
	appendIt := func() error {
		return w.appendEvent(agent.Event{Type: e.Type, NodeID: e.NodeID, CommandID: e.CommandID, Attempt: e.Attempt, Data: e.Data}, 0)
	}
	switch e.Type {
	case agent.PlanGenerated:
		// The row's own text: in the event keys are in another order.
		w.writes.Queue(`UPDATE agent_executions SET plan = (SELECT plan FROM agent_executions WHERE run_id = $2) WHERE run_id = $1`, w.run.runID, w.src.Run.RunID)
		return appendIt()
	case agent.NodeFinished:
		if err := appendIt(); err != nil {
			return err
		}
		return w.checkpoint(agent.NodeBoundary, e.NodeID, "")
	case agent.CheckpointSaved:
		var d agent.CheckpointSavedData
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return fmt.Errorf("event %d %s: %w", old, e.Type, err)
		}
		return w.checkpoint(d.Type, e.NodeID, e.CommandID)
	case agent.MessageAdded:
		if err := appendIt(); err != nil {
			return err
		}
		w.said[old] = w.last
		w.messages.add(old, w.last)
		return nil
	case agent.InputReceived:
		if err := appendIt(); err != nil {
			return err
		}
		w.inputs.add(old, w.last)
		return nil
	case agent.CommandEmitted:
		if err := w.hears(&e); err != nil {
			return err
		}
		return appendIt()
	case agent.CommandCommitted, agent.CommandFailedType, agent.TimerFired, agent.UUIDRecorded, agent.RandomRecorded:
		marked, from, err := agent.WithReusedFrom(e)
		if err != nil {
			return err
		}
		e = marked
		if err := appendIt(); err != nil {
			return err
		}
		w.messages.add(old, w.last)
		return w.decided(e, from)
	default:
		return appendIt()
	}
}

// hears gives a turn's command_emitted the number that its newest message has here.
func (w *forkWriter) hears(e *agent.Event) error {
	var data map[string]json.RawMessage
	var d agent.CommandEmittedData
	if err := errors.Join(json.Unmarshal(e.Data, &data), json.Unmarshal(e.Data, &d)); err != nil {
		return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
	}
	if d.Heard == 0 {
		return nil
	}
	heard := w.said[d.Heard]
	w.heard[e.CommandID] = heard
	raw, err := json.Marshal(heard)
	if err != nil {
		return err
	}
	data["heard"] = raw
	e.Data, err = json.Marshal(data)
	return err
}

// decided notes the row of a command whose outcome was appended last.
func (w *forkWriter) decided(e agent.Event, from agent.ForkedFrom) error {
	raw, err := json.Marshal(from)
	if err != nil {
		return err
	}
	state, failure := agent.Committed, ""
	if e.Type == agent.CommandFailedType {
		var d struct {
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
		}
		state, failure = agent.CommandFailed, string(d.Error)
	}
	c := &w.commands
	c.ids, c.states, c.errors, c.froms = append(c.ids, e.CommandID), append(c.states, string(state)), append(c.errors, failure), append(c.froms, string(raw))
	c.numbers, c.heard = append(c.numbers, w.last), append(c.heard, w.heard[e.CommandID])
	return nil
}

// rows queues the copies of rows. Those of commands have no hash of their input, except where the input is all of a request: other
// instructions make other prompts, whose answer is the recorded one all the same.
func (w *forkWriter) rows() {
	c := &w.commands
	w.writes.Queue(`INSERT INTO commands (run_id, command_id, node_id, kind, tool, model, effect_class, state, input_hash, input, dispatch_no,
			owner_epoch, owner_schedule, owner_attempt, deadline, sequence_number, result, result_hash, result_bytes, error, usage, latency_ms,
			emitted_at, decided_at, heard, goes_on, reused_from)
		SELECT $1, c.command_id, node_id, kind, tool, model, effect_class, u.state, CASE WHEN kind IN ('llm', 'plan', 'tool', 'wait') THEN '' ELSE input_hash END,
			input, dispatch_no, $3, 0, 0, deadline, u.number, result, result_hash, result_bytes, nullif(u.error, '')::jsonb, usage, latency_ms,
			emitted_at, decided_at, u.heard, goes_on, u.reused_from::jsonb
		FROM commands c JOIN unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[])
			AS u (command_id, state, error, reused_from, number, heard) ON u.command_id = c.command_id
		WHERE c.run_id = $2`, w.run.runID, w.src.Run.RunID, w.run.epoch, c.ids, c.states, c.errors, c.froms, c.numbers, c.heard)
	w.writes.Queue(`INSERT INTO messages (id, conversation_id, run_id, role, content, tool_calls, tool_results, tool_call_id, tool_name, command_id, sequence_number, created_at)
		SELECT id, $1, $2, role, content, tool_calls, tool_results, tool_call_id, tool_name, command_id, u.number, created_at
		FROM messages m JOIN unnest($5::bigint[], $6::bigint[]) AS u (old, number) ON u.old = m.sequence_number
		WHERE m.conversation_id = $3 AND m.run_id = $4`,
		w.run.conversationID, w.run.runID, w.src.Run.ConversationID, w.src.Run.RunID, w.messages.from, w.messages.to)
	w.writes.Queue(`INSERT INTO inputs (run_id, name, input_id, value, sequence_number, command_id, created_at)
		SELECT $1, name, input_id, value, u.number, CASE WHEN command_id = ANY ($5) THEN command_id ELSE '' END, created_at
		FROM inputs i JOIN unnest($3::bigint[], $4::bigint[]) AS u (old, number) ON u.old = i.sequence_number WHERE i.run_id = $2`,
		w.run.runID, w.src.Run.RunID, w.inputs.from, w.inputs.to, c.ids)
	ids, runs := make([]string, len(w.plan.Priors)), make([]string, len(w.plan.Priors))
	for i, p := range w.plan.Priors {
		ids[i], runs[i] = p.Command.CommandID, p.RunID
	}
	w.writes.Queue(`INSERT INTO fork_priors (run_id, command_id, source_run_id) SELECT $1, command_id, source FROM unnest($2::text[], $3::uuid[]) AS u (command_id, source)`,
		w.run.runID, ids, runs)
}
