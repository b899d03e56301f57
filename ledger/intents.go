package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// IntentKind says what an intent asks of a run.
type IntentKind string

const (
	StartIntent  IntentKind = "start"
	CancelIntent IntentKind = "cancel"
	// ResolvedIntent tells that a command in doubt was resolved.
	ResolvedIntent IntentKind = "resolved"
	// PauseIntent and UnpauseIntent stop a run at its command boundaries, and let it go on.
	PauseIntent   IntentKind = "pause"
	UnpauseIntent IntentKind = "unpause"
	// ApprovalIntent tells that an approval has an answer, InputIntent that there is an input, MessageIntent a message.
	ApprovalIntent IntentKind = "approval"
	InputIntent    IntentKind = "input"
	MessageIntent  IntentKind = "message"
	// LimitsIntent gives other limits.
	LimitsIntent IntentKind = "limits"
)

// Intent is a row of the outbox.
type Intent struct {
	ID       int64
	RunID    string
	Epoch    int
	Kind     IntentKind
	Payload  json.RawMessage
	Attempts int
}

// ClaimIntents gives intents that are due, oldest first and only the first undelivered one of each run, and counts an
// attempt for each. It is for the one dispatcher at work on a database.
func (l *Ledger) ClaimIntents(ctx context.Context, limit int) ([]Intent, error) {
	rows, err := l.pool.Query(ctx, `UPDATE intents SET attempts = attempts + 1
		WHERE id IN (
			SELECT id FROM intents i WHERE delivered_at IS NULL AND next_try_at <= clock_timestamp()
				AND NOT EXISTS (SELECT 1 FROM intents e WHERE e.run_id = i.run_id AND e.id < i.id AND e.delivered_at IS NULL)
			ORDER BY id LIMIT $1 FOR UPDATE)
		AND delivered_at IS NULL
		RETURNING id, run_id, epoch, kind, payload, attempts`, limit)
	if err != nil {
		return nil, fmt.Errorf("claim intents: %w", err)
	}
	intents, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Intent, error) {
		var i Intent
		err := row.Scan(&i.ID, &i.RunID, &i.Epoch, &i.Kind, &i.Payload, &i.Attempts)
		return i, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim intents: %w", err)
	}
	slices.SortFunc(intents, func(a, b Intent) int { return cmp.Compare(a.ID, b.ID) }) // an UPDATE returns rows in any order
	return intents, nil
}

// IntentDelivered marks an intent. A delivered start sets a queued run to running.
func (l *Ledger) IntentDelivered(ctx context.Context, i Intent) error {
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		if i.Kind == StartIntent {
			_, err := tx.Exec(ctx, `UPDATE agent_executions SET status = 'running', started_at = coalesce(started_at, clock_timestamp())
				WHERE run_id = $1 AND epoch = $2 AND status = 'queued'`, i.RunID, i.Epoch)
			if err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `UPDATE intents SET delivered_at = clock_timestamp(), last_error = '' WHERE id = $1`, i.ID)
		return err
	})
	if err != nil {
		return fmt.Errorf("mark intent %d: %w", i.ID, err)
	}
	l.meter.IntentTried(i.Kind, true)
	return nil
}

// IntentFailed puts an intent off.
func (l *Ledger) IntentFailed(ctx context.Context, i Intent, retryIn time.Duration, cause error) error {
	_, err := l.pool.Exec(ctx, `UPDATE intents SET last_error = $2, next_try_at = clock_timestamp() + $3::bigint * interval '1 millisecond'
		WHERE id = $1`, i.ID, textSafe(cause.Error()), retryIn.Milliseconds())
	if err != nil {
		return fmt.Errorf("put off intent %d: %w", i.ID, err)
	}
	l.meter.IntentTried(i.Kind, false)
	return nil
}

// NextIntent tells how long it is until an intent can be claimed; any is false when nothing waits.
func (l *Ledger) NextIntent(ctx context.Context) (due time.Duration, any bool, err error) {
	var ms *int64
	err = l.pool.QueryRow(ctx, `SELECT (extract(epoch FROM min(next_try_at) - clock_timestamp()) * 1000)::bigint
		FROM intents i WHERE delivered_at IS NULL
			AND NOT EXISTS (SELECT 1 FROM intents e WHERE e.run_id = i.run_id AND e.id < i.id AND e.delivered_at IS NULL)`).Scan(&ms)
	if err != nil {
		return 0, false, fmt.Errorf("next intent: %w", err)
	}
	if ms == nil {
		return 0, false, nil
	}
	return max(0, time.Duration(*ms)*time.Millisecond), true, nil
}

// EndUnstarted ends a run that is being cancelled and whose start has come to nothing: Temporal has no execution of it. If one
// appears all the same, it finds that its run has ended. It reports false when the run is not being cancelled.
func (l *Ledger) EndUnstarted(ctx context.Context, i Intent) (ended bool, err error) {
	call := agent.FinishCall{Scope: agent.Scope{RunID: i.RunID, Epoch: i.Epoch}, Status: agent.Cancelled}
	err = l.write(ctx, txnScope{runID: i.RunID, epoch: i.Epoch, changesRun: true}, func(t *txn) error {
		if ended = t.run.status == agent.Cancelling; !ended {
			return nil
		}
		if err := t.whoCancelled(ctx, &call); err != nil {
			return err
		}
		t.writes.Queue(`UPDATE intents SET delivered_at = clock_timestamp(), last_error = 'cancelled before it started'
			WHERE run_id = $1 AND delivered_at IS NULL`, i.RunID)
		return t.endUnstarted(ctx, call)
	})
	if err != nil {
		return false, fmt.Errorf("end run %s, which never started: %w", i.RunID, err)
	}
	return ended, nil
}

// endUnstarted ends a run whose execution never began. Commands of an earlier epoch may have waited for it.
func (t *txn) endUnstarted(ctx context.Context, call agent.FinishCall) error {
	if err := t.settleOpen(ctx, call); err != nil {
		return err
	}
	return t.end(ctx, call, false)
}

// StartInput is what an execution of a run starts from: its limits, the plan's shape when there is one, and the state.
func (l *Ledger) StartInput(ctx context.Context, runID string) (agent.RunInput, error) {
	run, plan, err := l.WorkerRun(ctx, runID)
	if err != nil {
		return agent.RunInput{}, err
	}
	in := agent.RunInput{RunID: runID, ConversationID: run.ConversationID, Epoch: run.Epoch, Agent: run.Definition.Agent,
		Mode: run.Definition.Mode, Limits: run.Limits(), Policy: run.Definition.Policy, RequirePlan: run.Definition.RequirePlan}
	err = l.pool.QueryRow(ctx, `SELECT coalesce(pause_intent, 0),
			coalesce((SELECT max(m.sequence_number) FROM messages m WHERE m.run_id = r.run_id AND m.role = 'user' AND m.id <> r.message_id
				AND m.conversation_id = r.conversation_id AND m.sequence_number > r.start_sequence), 0)
		FROM agent_executions r WHERE run_id = $1`, runID).Scan(&in.PausedBy, &in.Heard)
	if err != nil {
		return agent.RunInput{}, fmt.Errorf("read run %s: %w", runID, err)
	}
	if plan != nil {
		in.Plan = plan.Shape(&run.Definition)
	}
	if in.State, err = l.State(ctx, runID); err != nil {
		return agent.RunInput{}, err
	}
	if in.Walked, err = l.walked(ctx, runID, in.State.Turns); err != nil {
		return agent.RunInput{}, err
	}
	if in.Calls, err = l.repeatedCalls(ctx, runID, in.State.Turns); err != nil {
		return agent.RunInput{}, err
	}
	return in, nil
}

// repeatedCalls counts what loops have called in the turns before their last one, which is walked through once more.
func (l *Ledger) repeatedCalls(ctx context.Context, runID string, turns map[string]int) (calls []agent.RepeatedCall, err error) {
	if len(turns) == 0 {
		return nil, nil
	}
	last := make([]string, 0, len(turns))
	for node, turn := range turns {
		last = append(last, agent.TurnCommandID(node, turn))
	}
	rows, err := l.pool.Query(ctx, `SELECT tool_calls FROM messages
		WHERE run_id = $1 AND role = 'assistant' AND tool_calls IS NOT NULL AND command_id <> ALL ($2) ORDER BY sequence_number`, runID, last)
	if err == nil {
		var raw []byte // read here, since Postgres cannot give every text that JSON can hold
		_, err = pgx.ForEachRow(rows, []any{&raw}, func() error {
			var asked []struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			}
			if err := json.Unmarshal(raw, &asked); err != nil {
				return err
			}
			for _, c := range asked {
				calls = agent.RememberCall(calls, agent.CallDigest(c.Name, json.RawMessage(c.Arguments)))
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("calls of run %s: %w", runID, err)
	}
	return calls, nil
}

// walked lists the tool calls of the last turn of each loop that have begun and were not stopped.
func (l *Ledger) walked(ctx context.Context, runID string, turns map[string]int) ([]string, error) {
	if len(turns) == 0 {
		return nil, nil
	}
	prefixes := make([]string, 0, len(turns))
	for node, turn := range turns {
		prefixes = append(prefixes, agent.TurnCommandID(node, turn)+".")
	}
	rows, err := l.pool.Query(ctx, `SELECT command_id FROM commands WHERE run_id = $1 AND kind = 'tool' AND state NOT IN ('fenced', 'aborted')
		AND EXISTS (SELECT FROM unnest($2::text[]) AS turn WHERE starts_with(command_id, turn)) ORDER BY command_id`, runID, prefixes)
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", runID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", runID, err)
	}
	return ids, nil
}

// State is the fold of a run's events so far: its latest checkpoint and what came after.
func (l *Ledger) State(ctx context.Context, runID string) (agent.State, error) {
	t := &txn{}
	var batch pgx.Batch
	t.queueState(&batch, runID)
	err := pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return tx.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return agent.State{}, fmt.Errorf("state of run %s: %w", runID, err)
	}
	return t.state, nil
}

// Leadership is the lock of a connection. A process that stands still keeps its connections, so the server ends this one
// when nothing has come over it for leadTimeout, which frees the lock; leadEvery is how often something does.
const (
	leadTimeout = 15 * time.Second
	leadEvery   = 5 * time.Second
)

// Lead waits for nothing: it tells whether this process is now the one that dispatches on this database, holds that place
// until release is called or lost is closed, and gives ok false when another process has it. A process that stands still
// loses its place.
func (l *Ledger) Lead(ctx context.Context) (lost <-chan struct{}, release func(), ok bool, err error) {
	return l.lead(ctx, leadTimeout, leadEvery)
}

func (l *Ledger) lead(ctx context.Context, timeout, every time.Duration) (lost <-chan struct{}, release func(), ok bool, err error) {
	cfg := l.pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["idle_session_timeout"] = strconv.FormatInt(timeout.Milliseconds(), 10)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, nil, false, fmt.Errorf("lead: %w", err)
	}
	closeConn := func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, dispatcherLock).Scan(&ok); err != nil || !ok {
		closeConn()
		if err != nil {
			return nil, nil, false, fmt.Errorf("lead: %w", err)
		}
		return nil, nil, false, nil
	}
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		holdLead(watch, conn, timeout, every)
		// The server would give the lock free when it sees the connection go, some time after release has returned.
		unlock, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(unlock, `SELECT pg_advisory_unlock($1)`, dispatcherLock)
		_ = conn.Close(unlock)
	}()
	return gone, func() { stop(); <-gone }, true, nil
}

// holdLead returns when ctx ends or the connection has gone. Waiting for a notification that nobody sends is how its end is
// noticed at once.
func holdLead(ctx context.Context, conn *pgx.Conn, timeout, every time.Duration) {
	for {
		wait, cancel := context.WithTimeout(ctx, every)
		_, err := conn.WaitForNotification(wait)
		timedOut := wait.Err() != nil
		cancel()
		if ctx.Err() != nil || (err != nil && !timedOut) {
			return
		}
		ask, cancel := context.WithTimeout(ctx, timeout)
		err = conn.Ping(ask)
		cancel()
		if err != nil {
			return
		}
	}
}

// Advisory locks. They are any numbers that nothing else in the database uses.
const (
	dispatcherLock = 0x72756e6c6564
	catalogLock    = dispatcherLock + 1
	// runTurns is the class of those that stand for runs: two numbers, which are apart from those of one.
	runTurns = 0x72756e
)
