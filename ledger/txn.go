package ledger

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"runledger/agent"
)

// txn is one write transaction on a run. It is opened with everything it may need locked and read, in one round trip and
// in the lock order run, conversation, command; it collects what is to be written in memory; and it writes and commits in
// one more round trip.
type txn struct {
	tx  session
	now time.Time

	run     runHead
	command *agent.CommandRow // nil when there is none
	last    int64             // the conversation's last number, counted on as events are appended
	chain   []byte            // the conversation's chain at its opening, and with the new events once they are written
	state   agent.State       // only if hasState
	// hasState: state holds what stood in the log when the transaction was opened.
	hasState bool
	lastFact int // of the run's epoch, only if factsKnown
	// recalled: it goes by what this process remembers, and nothing is locked.
	recalled   bool
	factsKnown bool
	openedAt   []byte    // the conversation's chain at the opening
	askedAt    time.Time // of this process's clock, before it asked for now
	// begun is the row of the command that the transaction lets begin for the first time.
	begun *agent.CommandRow

	newEvents []agent.Event
	factNos   []int // one per new event, 0 for none
	writes    pgx.Batch
	rows      []row // of a transaction that goes by memory, see put
	intent    bool  // an intent is among the writes
	stops     bool  // effects of the run that are at work have to stop
}

// runHead is what a transaction needs of the run's row.
type runHead struct {
	runID          string
	conversationID string
	rootRunID      string
	messageID      string
	epoch          int
	// status is, of a run that is stuck, the one it had before: who writes goes by that.
	status agent.Status
	stuck  bool
	// pausedBy is the intent that has paused the run, 0 when it is not paused.
	pausedBy int64
	// forked: it began with a part of another run's record.
	forked bool
}

// txnScope says what to lock and read.
type txnScope struct {
	runID     string
	epoch     int
	commandID string
	facts     []agent.Fact
	withState bool
	// anyEpoch opens the transaction of an execution that has been replaced too; what it may write is for the caller to decide.
	anyEpoch bool
	// begun: the transaction is open already, with the run's row locked.
	begun bool
	// recalls: it may go by what this process remembers. anyLog: whatever the log holds by now; owner: the dispatch that has the command,
	// if there is one.
	recalls, anyLog bool
	owner           agent.Dispatch
	// changesRun takes the stronger lock on the run's row at once. Two transactions that upgrade would deadlock.
	changesRun bool
	// witness, if set, is where the log stands once the transaction is written.
	witness *agent.Witness
}

// write runs one transaction: open, decide, write, commit. When decide returns an error nothing is
// written.
func (l *Ledger) write(ctx context.Context, scope txnScope, decide func(*txn) error) error {
	if scope.recalls {
		done, err := l.memory.turn(ctx, scope.runID)
		if err != nil {
			return err
		}
		defer done()
	}
	if scope.recalls {
		if t := l.memory.recall(scope); t != nil {
			err := t.decideRecalled(scope, decide)
			if err == nil {
				err = l.group.write(ctx, t, scope)
			}
			if err == nil {
				l.tally.recalled.Add(1)
				l.written(t, scope)
			}
			if !errors.Is(err, errMoved) {
				return err
			}
			l.tally.moved.Add(1)
		}
	}
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// A connection that is given back inside a transaction is closed, which undoes it even if this Exec cannot.
	defer conn.Release()
	t := &txn{tx: conn}
	if err := t.transact(ctx, scope, decide); err != nil {
		if conn.Conn().PgConn().TxStatus() != 'I' {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			_, _ = conn.Exec(undo, "ROLLBACK")
		}
		return err
	}
	l.goesOn(ctx, t, scope.epoch)
	l.written(t, scope)
	return nil
}

// written is what follows a transaction.
func (l *Ledger) written(t *txn, scope txnScope) {
	if scope.recalls {
		l.memory.keep(t)
	}
	t.tell(l.notifier)
	t.count(l.meter)
	if scope.witness != nil {
		*scope.witness = t.witness()
	}
}

// tell wakes those who wait for what a transaction has written, and lets its command say where the log stands now.
func (t *txn) tell(n *notifier) {
	if len(t.newEvents) > 0 || t.intent {
		n.news(t.run.conversationID, t.intent)
	}
	if t.stops {
		n.stopping(t.run.runID)
	}
	if t.command != nil {
		t.command.Witness = t.witness()
	}
}

// witness says where the log stood when the transaction was written.
func (t *txn) witness() agent.Witness {
	return agent.Witness{Head: t.last, Chain: hex.EncodeToString(t.chain)}
}

// undoTimeout bounds the rollback of a transaction; after it the connection is closed.
const undoTimeout = 5 * time.Second

func (t *txn) transact(ctx context.Context, scope txnScope, decide func(*txn) error) error {
	if err := t.open(ctx, scope); err != nil {
		return err
	}
	if err := decide(t); err != nil {
		return err
	}
	t.queueEvents()
	t.writes.Queue("COMMIT")
	return t.tx.SendBatch(ctx, &t.writes).Close()
}

// session is what a transaction needs of its connection: a pgx.Tx, or a connection that begins and commits by batches.
type session interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

const (
	runHeadColumns = `SELECT run_id, conversation_id, root_run_id, message_id, epoch,
			CASE status WHEN 'stuck' THEN coalesce(status_before, 'running') ELSE status END, status = 'stuck', coalesce(pause_intent, 0), forked_from_run IS NOT NULL
		FROM agent_executions WHERE run_id = $1 `
	// theTime is now, and after the conversation's last event: a process that goes by memory takes its time from a clock that may
	// be ahead by as much as append_events allows. What is further ahead is somebody's fault, and not to be followed.
	theTime     = `greatest(clock_timestamp(), least(updated_at + interval '1 microsecond', clock_timestamp() + interval '1 second'))`
	lockCounter = `SELECT last_sequence, chain, ` + theTime + ` FROM conversations
		WHERE id = (SELECT conversation_id FROM agent_executions WHERE run_id = $1) FOR NO KEY UPDATE`
	latestState = `SELECT execution_state FROM execution_checkpoints WHERE run_id = $1 ORDER BY sequence_number DESC LIMIT 1`
	eventsSince = `SELECT ` + eventColumns + ` FROM agent_execution_events WHERE run_id = $1 AND sequence_number >
		coalesce((SELECT (execution_state ->> 'sequence_number')::bigint FROM execution_checkpoints WHERE run_id = $1
			ORDER BY sequence_number DESC LIMIT 1), 0) ORDER BY sequence_number`
)

func (t *txn) open(ctx context.Context, scope txnScope) error {
	var batch pgx.Batch
	if !scope.begun {
		batch.Queue("BEGIN")
	}
	runLock, turn := "FOR SHARE", "pg_advisory_xact_lock_shared"
	if scope.changesRun {
		runLock, turn = "FOR NO KEY UPDATE", "pg_advisory_xact_lock"
	}
	if !scope.begun {
		// Those who share a row's lock let others share it however long somebody waits for it alone: at a run with much at work, a
		// pause or a cancellation would never come to its turn. Advisory locks are given in the order in which they are asked for.
		batch.Queue(`SELECT `+turn+`($1, hashtext($2))`, runTurns, scope.runID)
	}
	batch.Queue(runHeadColumns+runLock, scope.runID).QueryRow(t.scanHead(scope.runID))
	batch.Queue(lockCounter, scope.runID).QueryRow(func(row pgx.Row) error { return row.Scan(&t.last, &t.chain, &t.now) })
	if scope.commandID != "" {
		// After the counter, not before: a row that does not exist yet cannot be locked, so two that begin a command at once
		// would both find it new; and a statement that waits for a lock reads other tables, here the payloads, as they stood
		// before the wait. Nobody who holds a command's row asks for the counter.
		batch.Queue(commandRowColumns+`FOR NO KEY UPDATE OF c`, scope.runID, scope.commandID).Query(func(rows pgx.Rows) error {
			row, err := collectCommandRow(rows)
			t.command = row
			return err
		})
	}
	if len(scope.facts) > 0 {
		t.factsKnown = true
		batch.Queue(`SELECT coalesce(max(fact_no), 0) FROM agent_execution_events WHERE run_id = $1 AND epoch = $2 AND fact_no IS NOT NULL`,
			scope.runID, scope.epoch).QueryRow(func(row pgx.Row) error { return row.Scan(&t.lastFact) })
	}
	if scope.withState {
		t.queueState(&batch, scope.runID)
	}
	t.askedAt = time.Now()
	if err := t.tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	t.openedAt, t.hasState = t.chain, scope.withState
	return t.enter(scope)
}

// enter appends the facts that the transaction's caller carries, if it may write at all.
func (t *txn) enter(scope txnScope) error {
	if t.run.epoch != scope.epoch && !scope.anyEpoch {
		return agent.Failed(agent.CodeStaleEpoch, "run %s is in epoch %d, this execution is of epoch %d", scope.runID, t.run.epoch, scope.epoch)
	}
	for _, f := range scope.facts {
		if f.No <= t.lastFact {
			continue
		}
		if t.run.status.Terminal() {
			return t.ended()
		}
		e := agent.Event{Type: f.Type, NodeID: f.NodeID, Data: f.Data}
		if err := t.appendEvent(e, f.No); err != nil {
			return err
		}
		t.lastFact = f.No
	}
	return nil
}

func (t *txn) scanHead(runID string) func(pgx.Row) error {
	return func(row pgx.Row) error {
		h := &t.run
		err := row.Scan(&h.runID, &h.conversationID, &h.rootRunID, &h.messageID, &h.epoch, &h.status, &h.stuck, &h.pausedBy, &h.forked)
		if errors.Is(err, pgx.ErrNoRows) {
			return &agent.NotFoundError{What: "run", ID: runID}
		}
		return err
	}
}

// queueState reads the run's state: its latest checkpoint and the events after it. It must come after the counter's lock.
func (t *txn) queueState(batch *pgx.Batch, runID string) {
	batch.Queue(latestState, runID).Query(func(rows pgx.Rows) error {
		states, err := pgx.CollectRows(rows, pgx.RowTo[agent.State])
		if len(states) > 0 {
			t.state = states[0]
		}
		return err
	})
	batch.Queue(eventsSince, runID).Query(func(rows pgx.Rows) error {
		since, err := pgx.CollectRows(rows, scanEvent)
		if err != nil {
			return err
		}
		for _, e := range since {
			if t.state, err = agent.Apply(t.state, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// ended is the refusal of everything that comes after a run's terminal event.
func (t *txn) ended() error {
	return agent.Failed(agent.CodeStaleEpoch, "run %s has ended: %s", t.run.runID, t.run.status)
}

// event appends an event of a command or node with the given payload.
func (t *txn) event(typ agent.EventType, nodeID, commandID string, attempt int, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("%s: %w", typ, err)
	}
	return t.appendEvent(agent.Event{Type: typ, NodeID: nodeID, CommandID: commandID, Attempt: attempt, Data: raw}, 0)
}

func (t *txn) appendEvent(e agent.Event, factNo int) error {
	if e.Data == nil {
		e.Data = json.RawMessage("{}")
	}
	safe, err := jsonbSafe(e.Data)
	if err != nil {
		return err
	}
	t.last++
	e.Sequence, e.Data, e.CreatedAt, e.Epoch = t.last, safe, t.now, t.run.epoch
	e.ConversationID, e.RunID, e.RootRunID, e.MessageID = t.run.conversationID, t.run.runID, t.run.rootRunID, t.run.messageID
	t.newEvents = append(t.newEvents, e)
	t.factNos = append(t.factNos, factNo)
	return nil
}

// applyNew brings the state up to everything appended so far.
func (t *txn) applyNew() (err error) {
	held := t.state.Sequence - (t.last - int64(len(t.newEvents))) // of the new events
	for _, e := range t.newEvents[min(max(0, held), int64(len(t.newEvents))):] {
		if t.state, err = agent.Apply(t.state, e); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint appends checkpoint_saved and queues its row: the state after everything appended so far.
func (t *txn) checkpoint(typ agent.CheckpointType, nodeID, commandID string) error {
	if err := t.applyNew(); err != nil {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	step := t.state.Step()
	err = t.event(agent.CheckpointSaved, nodeID, commandID, 0, agent.CheckpointSavedData{CheckpointID: id.String(), Type: typ, Step: step})
	if err != nil {
		return err
	}
	state, err := json.Marshal(t.state)
	if err != nil {
		return err
	}
	t.put(&insertCheckpoint, id.String(), t.run.conversationID, t.run.messageID, string(typ), string(state), step, t.now, t.run.runID, t.run.epoch, t.last)
	return nil
}

var insertCheckpoint = statement{
	`INSERT INTO execution_checkpoints (id, conversation_id, message_id, checkpoint_type, execution_state, step_number, created_at, run_id, epoch, sequence_number)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
	`INSERT INTO execution_checkpoints (id, conversation_id, message_id, checkpoint_type, execution_state, step_number, created_at, run_id, epoch, sequence_number)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::jsonb[], $6::int[], $7::timestamptz[], $8::uuid[], $9::int[], $10::bigint[])`,
}

// message queues a message of the conversation under the number of the newest event.
func (t *txn) message(m *agent.Message) error {
	id := m.MessageID
	if id == "" {
		v7, err := uuid.NewV7()
		if err != nil {
			return err
		}
		id = v7.String()
	}
	t.put(&insertMessage, id, t.run.conversationID, t.run.runID, string(m.Role), textSafe(m.Content), nullJSON(m.ToolCalls), textSafe(m.ToolCallID), textSafe(m.ToolName), m.CommandID, t.last, t.now)
	return nil
}

var insertMessage = statement{
	`INSERT INTO messages (id, conversation_id, run_id, role, content, tool_calls, tool_call_id, tool_name, command_id, sequence_number, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
	`INSERT INTO messages (id, conversation_id, run_id, role, content, tool_calls, tool_call_id, tool_name, command_id, sequence_number, created_at)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::jsonb[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::timestamptz[])`,
}

// queueEvents queues the new events, and the counter and the chain behind them.
func (t *txn) queueEvents() {
	if len(t.newEvents) == 0 {
		return
	}
	last := t.last
	t.writes.Queue(appendEvents+`false, '', NULL, '', NULL, 0, 0, '')`, t.appended()...).
		QueryRow(func(row pgx.Row) error {
			if err := row.Scan(nil, nil, nil, nil, &t.last, &t.chain); err != nil {
				return err
			}
			if t.last != last {
				return fmt.Errorf("the log of conversation %s has moved to %d, not %d, while it was locked", t.run.conversationID, t.last, last)
			}
			return nil
		})
}

// appendEvents wants appended, and what append_events goes by.
const appendEvents = `SELECT conversation, message, root, before, last, chain FROM append_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, `

// appended are the new events and whose they are.
func (t *txn) appended() []any {
	n := len(t.newEvents)
	types, data := make([]string, n), make([]string, n)
	nodes, commands := make([]string, n), make([]string, n)
	attempts, facts := make([]int, n), make([]*int, n)
	for i, e := range t.newEvents {
		types[i], data[i], nodes[i], commands[i], attempts[i] = string(e.Type), string(e.Data), e.NodeID, e.CommandID, e.Attempt
		if t.factNos[i] > 0 {
			facts[i] = &t.factNos[i]
		}
	}
	return []any{t.run.runID, t.run.epoch, t.now, nullText(t.run.conversationID), nullText(t.run.messageID), nullText(t.run.rootRunID),
		types, data, nodes, commands, attempts, facts}
}

// nullJSON gives a document as a json column takes it.
func nullJSON(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	return textSafe(string(raw))
}
