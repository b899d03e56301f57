package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"runledger/agent"
)

// Accept makes a run durable: the run, its first events and the intent to start it, in one transaction. One that has to wait for
// others of its conversation is as durable; its events and its start follow when its turn comes. A request that was accepted
// before under the same key gives that run again and created false. So does a message that is said to a run at work: run is that
// one, and tells the number of the message.
//
// Errors: *agent.NotFoundError when the conversation is not the owner's; *agent.ConflictError when the key came with another
// request, the message id is taken, the strategy does not allow the run, or the conversation's queue is full.
func (l *Ledger) Accept(ctx context.Context, a agent.Acceptance) (run agent.Run, created bool, err error) {
	a.Key = textSafe(a.Key)
	r := &a.Run
	r.Input, r.RequestID, r.SessionID = textSafe(r.Input), textSafe(r.RequestID), textSafe(r.SessionID)
	for range 2 {
		run, created, err = l.accept(ctx, a)
		var into *steering
		if errors.As(err, &into) {
			steered := false
			if run, steered, err = l.steer(ctx, a, into.runID); err == nil && !steered { // its loop has just ended
				a.Strategy = agent.Enqueue
				return l.Accept(ctx, a)
			}
		}
		// Two requests with one key may race; the second then reads what the first wrote. It meets whatever the first wrote
		// first: a message id that both bring, the end of an open run, or the key.
		var conflict *agent.ConflictError
		raced := violates(err, "idempotency_keys_pkey") || violates(err, "messages_pkey") || errors.As(err, &conflict)
		if !raced || a.Key == "" {
			break
		}
	}
	if violates(err, "messages_pkey") {
		err = &agent.ConflictError{Reason: agent.ConflictMessageID, Detail: "message_id " + a.Run.MessageID + " is taken"}
	}
	if err != nil {
		return agent.Run{}, false, fmt.Errorf("accept run: %w", err)
	}
	if created {
		l.notifier.news(a.Run.ConversationID, true)
		l.meter.RunAccepted()
	}
	return run, created, nil
}

func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

func (l *Ledger) accept(ctx context.Context, a agent.Acceptance) (run agent.Run, created bool, err error) {
	if a.NewConversation && a.Owner == agent.AnyOwner {
		return run, false, errors.New("a conversation needs an owner of its own")
	}
	if a.Key != "" {
		// Before the transaction: it must not hold a connection while it asks for another.
		earlier, steered, err := l.acceptedBefore(ctx, a)
		if err != nil {
			return run, false, err
		}
		if earlier != "" {
			run, err = l.Run(ctx, a.Owner, earlier)
			run.Steered = steered
			return run, false, err
		}
	}
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		return run, false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	r := &a.Run
	t := &txn{tx: tx, run: runHead{runID: r.RunID, conversationID: r.ConversationID, rootRunID: r.RootRunID, messageID: r.MessageID, epoch: r.Epoch}}
	if a.NewConversation {
		_, err = tx.Exec(ctx, `INSERT INTO conversations (id, owner, title) VALUES ($1, $2, $3)`,
			r.ConversationID, a.Owner, textSafe(agent.Preview(r.Input, 80)))
		if err != nil {
			return run, false, err
		}
	}
	err = tx.QueryRow(ctx, `SELECT last_sequence, chain, `+theTime+` FROM conversations WHERE id = $1 AND (owner = $2 OR $2 = '*') FOR NO KEY UPDATE`,
		r.ConversationID, a.Owner).Scan(&t.last, &t.chain, &t.now)
	if errors.Is(err, pgx.ErrNoRows) {
		return run, false, &agent.NotFoundError{What: "conversation", ID: r.ConversationID}
	}
	if err != nil {
		return run, false, err
	}
	place, err := t.queueUp(ctx, a.Strategy)
	if err != nil {
		return run, false, err
	}
	start := t.last + 1
	if err := t.accept(a, place); err != nil {
		return run, false, err
	}
	t.queueEvents()
	if err := tx.SendBatch(ctx, &t.writes).Close(); err != nil {
		return run, false, err
	}
	if err := tx.Commit(ctx); err != nil {
		return run, false, err
	}
	run = a.Run
	run.Status, run.StartSequence, run.CreatedAt = agent.Queued, start, t.now
	if run.Metadata == nil {
		run.Metadata = json.RawMessage("{}") // as it is read back
	}
	if run.Attachments == nil {
		run.Attachments = []agent.Attachment{}
	}
	return run, true, nil
}

// acceptedBefore finds the run that a request under the same key was answered with, and the message that it was there.
func (l *Ledger) acceptedBefore(ctx context.Context, a agent.Acceptance) (runID string, steered int64, err error) {
	var hash string
	err = l.pool.QueryRow(ctx, `SELECT run_id, request_hash, steered FROM idempotency_keys WHERE owner = $1 AND key = $2`, a.Owner, a.Key).
		Scan(&runID, &hash, &steered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", 0, nil
	case err != nil:
		return "", 0, err
	case hash != a.RequestHash:
		return "", 0, &agent.ConflictError{Reason: agent.ConflictKeyReused, Detail: "the Idempotency-Key came with another request before"}
	}
	return runID, steered, nil
}

// accept queues everything that is written of a new run; of one that has to wait, at the place given, its events and its start
// are put off.
func (t *txn) accept(a agent.Acceptance, place *turn) error {
	r := &a.Run
	definition, err := json.Marshal(r.Definition)
	if err != nil {
		return err
	}
	attachments, err := json.Marshal(r.Attachments)
	if err != nil {
		return err
	}
	if r.Attachments == nil {
		attachments = []byte("[]")
	}
	metadata := r.Metadata
	if metadata == nil {
		metadata = json.RawMessage("{}")
	}
	var plan []byte
	if a.Plan != nil {
		if plan, err = json.Marshal(a.Plan); err != nil {
			return err
		}
	}
	t.writes.Queue(`INSERT INTO agent_executions (run_id, conversation_id, root_run_id, parent_run_id, message_id, request_id, session_id, epoch,
			status, agent, input, attachments, metadata, definition, plan, start_sequence, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'queued', $9, $10, $11, $12, $13, $14, $15, $16)`,
		r.RunID, r.ConversationID, r.RootRunID, nullText(r.ParentRunID), r.MessageID, r.RequestID, r.SessionID, r.Epoch,
		textSafe(r.Definition.Agent), r.Input, textSafe(string(attachments)), textSafe(string(metadata)), textSafe(string(definition)),
		nullJSON(plan), t.last+1, t.now)

	started := agent.RunStartedData{Input: r.Input, Agent: r.Definition.Agent, Mode: r.Definition.Mode, Model: r.Definition.Model, Epoch: r.Epoch,
		RequestID: r.RequestID, SessionID: r.SessionID, Limits: r.Definition.Limits, Metadata: r.Metadata, Offline: a.Offline}
	for _, at := range r.Attachments {
		started.Attachments = append(started.Attachments, at.Name)
	}
	if err := t.event(agent.RunStarted, "", "", 0, started); err != nil {
		return err
	}
	if err := t.event(agent.MessageAdded, "", "", 0, agent.MessageAddedData{Role: agent.UserMessage, Content: r.Input}); err != nil {
		return err
	}
	if err := t.message(&agent.Message{MessageID: r.MessageID, Role: agent.UserMessage, Content: r.Input}); err != nil {
		return err
	}
	if a.Plan != nil {
		if err := t.event(agent.PlanStarted, agent.PlanNodeID, "", 0, agent.PlanStartedData{Source: a.PlanSource}); err != nil {
			return err
		}
		data := agent.PlanGeneratedData{Source: a.PlanSource, TaskGraph: a.Plan, Hash: ResultHash(plan)}
		if err := t.event(agent.PlanGenerated, agent.PlanNodeID, "", 0, data); err != nil {
			return err
		}
	}
	if place == nil {
		t.queueStart()
	} else if err := t.putOff(place); err != nil {
		return err
	}
	if a.Key != "" {
		t.writes.Queue(`INSERT INTO idempotency_keys (owner, key, request_hash, run_id) VALUES ($1, $2, $3, $4)`, a.Owner, a.Key, a.RequestHash, r.RunID)
	}
	return nil
}

// RequestCancel asks a run, and every run below it, to stop. One that waits for its turn, or was never handed to Temporal, ends at once,
// and so does one that is stuck, since its execution hears nothing; any other is told by its dispatcher, and its effects by the
// news of SubscribeStops. Asking a run that is being cancelled changes nothing: the first word stands.
//
// Errors: *agent.NotFoundError, and *agent.ConflictError when the run has ended.
func (l *Ledger) RequestCancel(ctx context.Context, owner, runID, by, reason string) (agent.Run, error) {
	run, err := l.Run(ctx, owner, runID)
	if err != nil {
		return run, err
	}
	if err := l.cancel(ctx, runID, run.Epoch, by, reason); err != nil {
		return agent.Run{}, err
	}
	if err := l.cancelBelow(ctx, runID, agent.Cancelled, by); err != nil {
		return agent.Run{}, err
	}
	return l.Run(ctx, owner, runID)
}

// cancel asks one run to stop. The epoch is the one it was last seen in; who asks means the run, whatever its epoch is.
func (l *Ledger) cancel(ctx context.Context, runID string, epoch int, by, reason string) error {
	err := l.write(ctx, txnScope{runID: runID, epoch: epoch, anyEpoch: true, changesRun: true}, func(t *txn) error {
		switch {
		case t.run.status.Terminal():
			return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " has ended: " + string(t.run.status)}
		case t.run.stuck:
			return t.cancelStuck(ctx, by, reason)
		case t.run.status == agent.Cancelling:
			return nil
		}
		// One that waits for its turn begins and ends here: every run has both events.
		waited, err := t.takeTurn(ctx, false)
		if err != nil {
			return err
		}
		// A start that no dispatcher has tried yet is taken back. The dispatcher claims an intent, in a transaction of its own,
		// before it talks to Temporal, so that nobody starts what was taken back.
		taken, err := t.tx.Exec(ctx, `UPDATE intents SET delivered_at = clock_timestamp(), last_error = 'cancelled before it started'
			WHERE run_id = $1 AND epoch = $2 AND kind = 'start' AND delivered_at IS NULL AND attempts = 0`, runID, t.run.epoch)
		if err != nil {
			return err
		}
		if waited || taken.RowsAffected() > 0 {
			return t.endUnstarted(ctx, agent.FinishCall{Scope: agent.Scope{RunID: runID}, Status: agent.Cancelled, By: by,
				Error: &agent.Error{Code: agent.CodeCancelled, Message: reason}})
		}
		t.writes.Queue(`UPDATE agent_executions SET status = 'cancelling' WHERE run_id = $1`, runID)
		t.stops = true
		return t.ask(CancelIntent, agent.Intent{By: textSafe(by), Reason: textSafe(reason), After: t.last})
	})
	if err != nil {
		return fmt.Errorf("cancel run %s: %w", runID, err)
	}
	return nil
}

// cancelStuck ends a run whose execution cannot. If that goes on some day, it finds the end, and is told to stop, too.
func (t *txn) cancelStuck(ctx context.Context, by, reason string) error {
	call := agent.FinishCall{Scope: agent.Scope{RunID: t.run.runID, Epoch: t.run.epoch}, Status: agent.Cancelled, By: by,
		Error: &agent.Error{Code: agent.CodeCancelled, Message: reason}}
	if err := t.whoCancelled(ctx, &call); err != nil { // somebody may have asked before it was stuck
		return err
	}
	if t.run.status != agent.Cancelling {
		if err := t.ask(CancelIntent, agent.Intent{By: textSafe(by), Reason: textSafe(reason), After: t.last}); err != nil {
			return err
		}
	}
	if err := t.settleOpen(ctx, call); err != nil {
		return err
	}
	return t.end(ctx, call, true)
}

// ask queues an intent for the run's execution.
func (t *txn) ask(kind IntentKind, i agent.Intent) error {
	payload, err := json.Marshal(i)
	if err != nil {
		return err
	}
	t.writes.Queue(`INSERT INTO intents (run_id, epoch, kind, payload) VALUES ($1, $2, $3, $4)`, t.run.runID, t.run.epoch, kind, string(payload))
	t.intent = true
	return nil
}

func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}
