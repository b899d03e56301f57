package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"runledger/agent"
)

// Commit puts a result on record if its dispatch still owns the command, and with it, in this order, command_committed,
// what follows from it (the plan, the end of the node), and a checkpoint. When somebody else has decided the command, what
// they wrote comes back.
//
// The result of a dispatch whose command is in doubt resolves the doubt, from an execution that has been replaced too. After
// the run's terminal event it changes the command's row alone.
func (l *Ledger) Commit(ctx context.Context, c agent.Commit) (_ agent.Decided, err error) {
	defer l.measured(GateCommit, time.Now(), &err)
	var decided agent.Decided
	scope := txnScope{runID: c.RunID, epoch: c.Epoch, commandID: c.CommandID, withState: true, changesRun: c.Plan != nil,
		recalls: c.Plan == nil && !c.Reconciled, owner: c.Dispatch}
	err = l.writeLate(ctx, scope,
		func(t *txn, late bool) (err error) {
			decided, err = t.commitOwned(ctx, c, late)
			return err
		})
	if err != nil {
		return agent.Decided{}, fmt.Errorf("commit command %s of run %s: %w", c.CommandID, c.RunID, err)
	}
	return decided, nil
}

// errLate says that a transaction resolves a command in doubt. It has to begin anew, since that changes the run's row.
var errLate = errors.New("the command is in doubt")

// writeLate is write for what a dispatch has to say of its command, in whatever epoch; decide has to see to that.
func (l *Ledger) writeLate(ctx context.Context, scope txnScope, decide func(t *txn, late bool) error) error {
	scope.anyEpoch = true
	err := l.write(ctx, scope, func(t *txn) error { return decide(t, false) })
	if errors.Is(err, errLate) {
		scope.changesRun, scope.recalls = true, false
		err = l.write(ctx, scope, func(t *txn) error { return decide(t, true) })
	}
	return err
}

// speaks tells whether a dispatch may decide its command, and whether that resolves a doubt. An error means that it may not
// write at all.
func (t *txn) speaks(c agent.Call, d agent.Dispatch, dispatchNo int, reconciled, late bool) (may, resolves bool, err error) {
	if t.command == nil {
		return false, false, t.current(c, fmt.Errorf("it was never dispatched"))
	}
	owns := t.command.DispatchNo == dispatchNo && t.command.Owner == d
	if reconciled { // its tool speaks for a dispatch that nobody holds any more
		owns = t.command.DispatchNo == dispatchNo && (t.command.State == agent.CommandInDoubt || !t.now.Before(t.command.LeaseUntil))
	}
	if owns && t.command.State == agent.CommandInDoubt {
		if !late {
			return false, false, errLate
		}
		return true, true, nil
	}
	return owns && t.command.State == agent.Dispatched, false, t.current(c, nil)
}

// current refuses an execution that has been replaced or has ended, else gives otherwise.
func (t *txn) current(c agent.Call, otherwise error) error {
	if t.run.epoch != c.Epoch {
		return agent.Failed(agent.CodeStaleEpoch, "run %s is in epoch %d, this execution is of epoch %d", c.RunID, t.run.epoch, c.Epoch)
	}
	if t.run.status.Terminal() {
		return t.ended()
	}
	return otherwise
}

func (t *txn) commitOwned(ctx context.Context, c agent.Commit, late bool) (agent.Decided, error) {
	may, resolves, err := t.speaks(c.Call, c.Dispatch, c.DispatchNo, c.Reconciled, late)
	if err != nil {
		return agent.Decided{}, err
	}
	if !may {
		return agent.Decided{Row: t.command, Mine: t.command.State == agent.Committed && t.command.Owner == c.Dispatch}, nil
	}
	if c.Reconciled {
		t.command.Owner = c.Dispatch
	}
	var said *agent.CommandResolvedData
	switch {
	case c.Reconciled:
		said = &agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: agent.ByReconcile}
	case resolves:
		said = &agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: agent.ByLateResult}
	}
	if c.Reconciled && c.Message == nil {
		if err := t.answerFound(ctx, &c); err != nil {
			return agent.Decided{}, err
		}
	}
	// A new execution ends the node by itself, when it meets the command again.
	c.Ends = c.Ends && t.run.epoch == c.Epoch
	if err := t.hear(ctx, &c); err != nil {
		return agent.Decided{}, err
	}
	if err := t.commit(c, said); err != nil {
		return agent.Decided{}, err
	}
	decided := agent.Decided{Row: t.command, Mine: true}
	if resolves {
		if err = t.resolved(t.command); err == nil {
			err = t.resolveOwner(ctx, said.By, c.CommandID)
		}
	}
	return decided, err
}

// commit writes a result. said is what resolves a doubt with it, nil when there was none.
func (t *txn) commit(c agent.Commit, said *agent.CommandResolvedData) error {
	hash := ResultHash(c.Result)
	c.Event.Hash = hash
	ended := t.run.status.Terminal()
	if said != nil {
		said.Hash = hash
		if err := t.say(c.NodeID, c.CommandID, c.DispatchNo, *said); err != nil {
			return err
		}
	}
	committed := int64(0)
	if !ended {
		if c.HTTP != nil {
			if err := t.event(agent.HTTPRecorded, c.NodeID, c.CommandID, c.DispatchNo, c.HTTP); err != nil {
				return err
			}
		}
		if err := t.event(agent.CommandCommitted, c.NodeID, c.CommandID, c.DispatchNo, c.Event); err != nil {
			return err
		}
		committed = t.last
		if c.Message != nil {
			if err := t.message(c.Message); err != nil {
				return err
			}
		}
	}
	inline := []byte(c.Result)
	if len(inline) > maxInlineResult {
		// One that is there is touched, so that whoever is about to remove it leaves it, see removeUnreferred.
		t.writes.Queue(`INSERT INTO payloads (hash, bytes, created_at) VALUES ($1, $2, clock_timestamp())
			ON CONFLICT (hash) DO UPDATE SET created_at = excluded.created_at`, hash, inline)
		inline = nil
	}
	usage, err := jsonbSafe(c.Event.Usage)
	if err != nil {
		return err
	}
	t.put(&commitCommand, c.RunID, c.CommandID, committed, inline, hash, len(c.Result), nullJSON(usage), c.Event.LatencyMS, t.now, ended,
		t.command.Owner.Epoch, t.command.Owner.Schedule, t.command.Owner.Attempt, t.command.Owner.Token, c.Event.GoesOn)
	t.dropOutput(c.CommandID)
	t.command.GoesOn, t.command.Said, t.command.Tokens = c.Event.GoesOn, c.Said, agent.TokensOf(c.Event.Usage)
	t.command.State, t.command.Sequence, t.command.Result, t.command.ResultHash, t.command.Error = agent.Committed, committed, c.Result, hash, nil
	switch {
	case ended:
	case c.Plan != nil:
		if err := t.event(agent.PlanGenerated, c.NodeID, "", 0, c.Plan); err != nil {
			return err
		}
		plan, err := json.Marshal(c.Plan.TaskGraph)
		if err != nil {
			return err
		}
		t.writes.Queue(`UPDATE agent_executions SET plan = $2 WHERE run_id = $1`, c.RunID, string(plan))
		return t.checkpoint(agent.LLMComplete, c.NodeID, c.CommandID)
	case c.Ends:
		return t.finishNode(c.Call, t.command.Kind, c.Result)
	case c.Checkpoint != "":
		return t.checkpoint(c.Checkpoint, c.NodeID, c.CommandID)
	}
	return nil
}

// commitCommand finds the rows of many, which are there, by what would be a conflict: a join may be planned to read all of the table.
var commitCommand = statement{
	`UPDATE commands SET state = 'committed', sequence_number = $3, result = $4, result_hash = $5, result_bytes = $6, usage = $7,
			latency_ms = $8, decided_at = $9, error = NULL, unannounced = $10, owner_epoch = $11, owner_schedule = $12, owner_attempt = $13, owner_token = $14,
			goes_on = $15 WHERE run_id = $1 AND command_id = $2`,
	`INSERT INTO commands (run_id, command_id, sequence_number, result, result_hash, result_bytes, usage, latency_ms, decided_at, unannounced,
			owner_epoch, owner_schedule, owner_attempt, owner_token, goes_on, node_id, kind, state)
		SELECT n.*, '', '', '' FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bytea[], $5::text[], $6::bigint[], $7::jsonb[], $8::bigint[], $9::timestamptz[],
			$10::boolean[], $11::int[], $12::int[], $13::int[], $14::text[], $15::boolean[]) AS n
		ON CONFLICT (run_id, command_id) DO UPDATE SET state = 'committed', sequence_number = excluded.sequence_number, result = excluded.result,
			result_hash = excluded.result_hash, result_bytes = excluded.result_bytes, usage = excluded.usage, latency_ms = excluded.latency_ms,
			decided_at = excluded.decided_at, error = NULL, unannounced = excluded.unannounced, owner_epoch = excluded.owner_epoch,
			owner_schedule = excluded.owner_schedule, owner_attempt = excluded.owner_attempt, owner_token = excluded.owner_token, goes_on = excluded.goes_on`,
}

// Conclude ends a dispatch that has no result: released for another try, failed for good, aborted, or in doubt. When the
// dispatch no longer owns the command, what stands comes back. What a dispatch whose command is in doubt knows for certain
// resolves the doubt, as with Commit.
func (l *Ledger) Conclude(ctx context.Context, c agent.Conclude) (_ agent.Decided, err error) {
	defer l.measured(GateConclude, time.Now(), &err)
	var decided agent.Decided
	err = l.writeLate(ctx, txnScope{runID: c.RunID, epoch: c.Epoch, commandID: c.CommandID}, func(t *txn, late bool) (err error) {
		decided, err = t.concludeOwned(ctx, c, late)
		return err
	})
	if err != nil {
		return agent.Decided{}, fmt.Errorf("conclude command %s of run %s: %w", c.CommandID, c.RunID, err)
	}
	return decided, nil
}

// innerKnown reports whether a command that is about to be in doubt because of an effect inside of it need not be: somebody
// has said meanwhile what became of that effect.
func (t *txn) innerKnown(ctx context.Context, c agent.Conclude) (known bool, err error) {
	if c.Error == nil || c.Error.CommandID == c.CommandID {
		return false, nil
	}
	if owner, inner := agent.OwnerCommandID(c.Error.CommandID); !inner || owner != c.CommandID {
		return false, nil
	}
	err = t.tx.QueryRow(ctx, `SELECT coalesce((SELECT state NOT IN ('in_doubt', 'dispatched') FROM commands WHERE run_id = $1 AND command_id = $2), false)`,
		c.RunID, c.Error.CommandID).Scan(&known)
	return known, err
}

// answerFound gives the result of a lost call of a react loop the place in the conversation that its own commit would have
// given it.
func (t *txn) answerFound(ctx context.Context, c *agent.Commit) error {
	message, err := t.answerTo(ctx, t.command)
	if err != nil || message == nil {
		return err
	}
	message.Content = string(c.Result)
	c.Message, c.Checkpoint = message, agent.ToolComplete
	return nil
}

func (t *txn) concludeOwned(ctx context.Context, c agent.Conclude, late bool) (agent.Decided, error) {
	if t.command == nil {
		return agent.Decided{}, t.current(c.Call, fmt.Errorf("it was never dispatched"))
	}
	if t.command.State == agent.CommandInDoubt && c.State != agent.CommandFailed && c.State != agent.Released {
		return agent.Decided{Row: t.command}, t.current(c.Call, nil) // nothing is known that was not
	}
	may, resolves, err := t.speaks(c.Call, c.Dispatch, c.DispatchNo, false, late)
	if err != nil || !may {
		return agent.Decided{Row: t.command}, err
	}
	if resolves {
		said := agent.CommandResolvedData{Outcome: agent.OutcomeRetry, By: agent.ByLateResult, Note: c.Error.Error()}
		if c.State == agent.CommandFailed {
			said.Outcome = agent.OutcomeFailed
		}
		decided := agent.Decided{Row: t.command, Mine: true}
		if err := t.resolve(said, c.Error, c.Message); err != nil {
			return decided, err
		}
		return decided, t.resolveOwner(ctx, said.By, c.CommandID)
	}
	state := c.State
	if state == agent.CommandInDoubt {
		if known, err := t.innerKnown(ctx, c); err != nil {
			return agent.Decided{}, err
		} else if known {
			state = agent.Released
		}
	}
	if state == agent.Released && c.DispatchNo-t.command.BaseNo >= agent.MaxDispatches {
		state = agent.CommandFailed
		c.Error = &agent.Error{Code: agent.CodeTooManyTries, NodeID: c.NodeID, CommandID: c.CommandID,
			Message: fmt.Sprintf("failed %d times; the last time: %s", c.DispatchNo-t.command.BaseNo, c.Error.Error())}
	}
	switch state {
	case agent.Released:
		return agent.Decided{Row: t.command, Mine: true}, t.release(c)
	case agent.Dispatched:
		t.writes.Queue(`UPDATE commands SET lease_until = $3 WHERE run_id = $1 AND command_id = $2`, c.RunID, c.CommandID, t.now)
		return agent.Decided{Row: t.command, Mine: true}, nil
	}
	if err := t.decide(c.Dispatch, state, c.Error, c.LatencyMS); err != nil {
		return agent.Decided{}, err
	}
	if c.Message != nil && state == agent.CommandFailed {
		m := *c.Message
		m.Content = c.Error.Error()
		err = t.message(&m)
	}
	return agent.Decided{Row: t.command, Mine: true}, err
}

func (t *txn) release(c agent.Conclude) error {
	t.writes.Queue(`UPDATE commands SET state = 'released', lease_until = NULL WHERE run_id = $1 AND command_id = $2`, c.RunID, c.CommandID)
	t.dropOutput(c.CommandID)
	t.command.State = agent.Released
	return t.event(agent.AttemptDiscarded, c.NodeID, c.CommandID, c.DispatchNo,
		agent.AttemptDiscardedData{Reason: c.Error.Error(), RetryAfterMS: c.RetryAfter.Milliseconds()})
}

// decide writes a command's outcome other than a result: its event and its row, which then belongs to dispatch d.
func (t *txn) decide(d agent.Dispatch, state agent.CommandState, reason *agent.Error, latencyMS int64) error {
	c := t.command
	var err error
	ended := t.run.status.Terminal()
	switch state {
	case agent.CommandFailed:
		if ended { // of a command in doubt that was resolved after the run's end
			break
		}
		err = t.event(agent.CommandFailedType, c.NodeID, c.CommandID, c.DispatchNo,
			agent.CommandFailedData{Kind: c.Kind, Tool: c.Tool, Error: reason, LatencyMS: latencyMS})
	case agent.CommandAborted:
		err = t.event(agent.CommandAbortType, c.NodeID, c.CommandID, c.DispatchNo,
			agent.CommandAbortedData{Kind: c.Kind, Tool: c.Tool, Reason: reason.Message, NeverStarted: c.State == agent.Released || c.State == agent.CommandWaiting})
	case agent.CommandInDoubt:
		err = t.event(agent.CommandDoubtType, c.NodeID, c.CommandID, c.DispatchNo,
			agent.CommandInDoubtData{Kind: c.Kind, Tool: c.Tool, Reason: reason.Message})
	case agent.Dispatched, agent.Released, agent.Fenced, agent.Committed:
		err = fmt.Errorf("%q is not an outcome without a result", state)
	}
	if err != nil {
		return err
	}
	failure, err := json.Marshal(reason)
	if err != nil {
		return err
	}
	// A row in doubt stays with the dispatch that may still bring a result.
	if state != agent.CommandInDoubt {
		c.Owner = d
	}
	c.State, c.Error, c.Sequence = state, reason, t.last
	if ended {
		c.Sequence = 0
	}
	safe, err := jsonbSafe(failure)
	if err != nil {
		return err
	}
	t.writes.Queue(`UPDATE commands SET state = $3, error = $4, sequence_number = $5, latency_ms = $6, decided_at = $7,
			owner_epoch = $8, owner_schedule = $9, owner_attempt = $10, unannounced = $11, owner_token = $12 WHERE run_id = $1 AND command_id = $2`,
		t.run.runID, c.CommandID, state, string(safe), c.Sequence, latencyMS, t.now, c.Owner.Epoch, c.Owner.Schedule, c.Owner.Attempt, ended, c.Owner.Token)
	t.dropOutput(c.CommandID)
	return nil
}
