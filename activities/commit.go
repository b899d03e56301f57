package activities

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.temporal.io/sdk/activity"

	"runledger/agent"
	"runledger/policy"
)

// command is a side effect on its way through the gate.
type command struct {
	call  agent.Call
	begin agent.Begin
	// turn is that of a loop whose answer the command is, 0 for none.
	turn int
	// checkpoint is taken at the commit when the command does not end its node.
	checkpoint agent.CheckpointType
	// failureMessage is what the conversation keeps when the command fails for good, nil for nothing.
	failureMessage *agent.Message
	// effect does what the command is for. Its context ends on user cancel, on a stale epoch, at the deadline or at the end of
	// the shutdown grace, and for no other reason.
	effect func(ctx context.Context, d dispatch) (effectResult, error)
	// tx does it instead of effect, for a tool whose whole effect is in the transaction that commits its result.
	tx func(ctx context.Context, tx agent.Tx, d dispatch) (effectResult, error)
	// reconcile finds out what became of a lost dispatch of the effect, nil when that cannot be found out.
	reconcile func(ctx context.Context, d dispatch) (finding, error)
	// limit bounds calls like this one over all workers.
	limit agent.CallLimit
	// asked is what the policy is asked about, approvalTimeout how long an approval that it wants is waited for.
	asked           policy.Command
	approvalTimeout agent.Duration
	// with makes the same command with other arguments, those of an approval; nil for a command that is never asked about.
	with func(ctx context.Context, arguments json.RawMessage) (command, error)
	// stops has news when the run may have to stop. It is nil for an effect within a tool, which stops with the tool's.
	stops <-chan struct{}
}

// dispatch tells an effect which of its executions it is.
type dispatch struct {
	no  int
	key string
	// base is the number of the last dispatch before somebody let the command begin anew, 0 for none.
	base int
	// by and deadline fence and bound what the effect asks for in its turn.
	by       agent.Dispatch
	deadline time.Time
}

// effectResult is what an effect gives for the record.
type effectResult struct {
	result  json.RawMessage
	event   agent.CommandCommittedData
	http    *agent.HTTPRecordedData
	message *agent.Message
	plan    *agent.PlanGeneratedData
	// goesOn: the command does not end its node after all, as a model's turn that asks for tools.
	goesOn bool
}

// Timing of the gate.
const (
	renewEvery = 5 * time.Second
	// heartbeatEvery, with what it takes Temporal to be told, is how late an effect hears of a cancellation when the ledger's own
	// news of it is lost.
	heartbeatEvery = 1500 * time.Millisecond
	ledgerTimeout  = 10 * time.Second
	beginTimeout   = 15 * time.Second // with the commit's, what the workflow allows beyond the effect's time
	// commitTimeout bounds the attempts to write a result whose effect has taken place.
	commitTimeout = 45 * time.Second
	// shutdownGrace is what an effect at work gets when its worker stops.
	shutdownGrace  = 8 * time.Second
	firstBackoff   = 250 * time.Millisecond
	longestBackoff = 10 * time.Second
)

// Reasons for which an effect's context ends, as its cause.
var (
	errCancelled = errors.New("the run is being cancelled")
	errStale     = errors.New("another execution has taken the command over")
	errDeadline  = errors.New("the command's deadline has passed")
	errShutdown  = errors.New("the worker is stopping")
)

// pass takes a command through the gate: begin, effect, commit. It returns what the record says of the command, whoever
// wrote it. An error means that nothing can be said now: Temporal tries again, or the workflow settles the command.
func (a *Activities) pass(ctx context.Context, c command) (agent.CommandRow, error) {
	// The ledger's transactions outlive a cancelled activity: a result must be written, and a reply lost is a try more.
	durable := context.WithoutCancel(ctx)
	info := activity.GetInfo(ctx)
	by := agent.Dispatch{Epoch: c.call.Epoch, Schedule: c.call.Schedule, Attempt: info.Attempt, Token: rand.Text()}

	stopHeartbeat := heartbeat(durable)
	defer stopHeartbeat()
	// Before the command begins: what is asked for after that is news.
	stops, unsubscribe := a.ledger.SubscribeStops(c.call.RunID)
	defer unsubscribe()
	c.stops = stops

	a.at(ctx, agent.BeforeBegin, c.call)
	a.prepare(durable, &c, by)
	slot, err := a.takeSlot(durable, &c)
	if err != nil {
		return agent.CommandRow{}, err
	}
	defer func() { slot.leave(durable) }()
	unused := 0 // the dispatch that this attempt was given and has not used
	for {
		begun, asked, err := a.beginCommand(durable, c.begin)
		if err != nil {
			return agent.CommandRow{}, err
		}
		switch begun.Verdict {
		case agent.MayExecute, agent.MayExecuteAgain, agent.MayProceed:
			a.at(ctx, agent.AfterBegin, c.call)
			if stale(&begun, asked) {
				unused = begun.DispatchNo
				continue
			}
			slot.used()
			return a.execute(ctx, c, begun)
		case agent.IsInDoubt:
			if begun.DispatchNo = begun.Row.DispatchNo; begun.DispatchNo != unused {
				return *begun.Row, nil
			}
			return a.conclude(durable, c, begun, agent.Transient(agent.CodeLeased, "the effect never began"), nil, 0)
		case agent.Inject, agent.InjectFailure, agent.MustDoubt, agent.GiveUp:
			return *begun.Row, nil
		case agent.MustReconcile:
			if row, decided, err := a.reconcileLost(durable, &c, begun); decided || err != nil {
				return row, err
			}
			continue
		case agent.UseArguments:
			if c, err = c.with(durable, begun.Row.Approval.Edited); err != nil {
				return agent.CommandRow{}, crossing(err)
			}
			c.stops = stops
			a.prepare(durable, &c, by)
			continue
		case agent.MustAwait:
			row := *begun.Row
			row.Awaits = begun.Awaits
			return row, nil
		case agent.IsPaused:
			return agent.CommandRow{}, pausedBy(c.call.RunID, begun.PausedBy)
		case agent.IsOutOfTime:
			return agent.CommandRow{}, final(agent.CodeOutOfTime, "command %s: the time limit of run %s is over", c.call.CommandID, c.call.RunID)
		case agent.MustWait:
			return agent.CommandRow{}, retryLater(agent.CodeLeased, begun.Wait, "command %s is at work elsewhere", c.call.CommandID)
		case agent.Refuse:
			return agent.CommandRow{}, final(agent.CodeSuperseded, "command %s: a newer schedule has taken over", c.call.CommandID)
		case agent.Mismatch:
			return agent.CommandRow{}, final(agent.CodeMismatch, "command %s is on record with another input (hash %s, now %s)",
				c.call.CommandID, begun.Row.InputHash, c.begin.InputHash)
		}
		return agent.CommandRow{}, final(agent.CodeInternal, "command %s: unknown verdict %q", c.call.CommandID, begun.Verdict)
	}
}

// prepare completes what a command says at its begin.
func (a *Activities) prepare(ctx context.Context, c *command, by agent.Dispatch) {
	c.begin.Dispatch = by
	c.begin.FailureMessage = c.failureMessage
	c.begin.Reconciles = c.reconcile != nil
	a.refuse(ctx, c)
	c.begin.Call = c.call
}

// refuse asks the policy in code, when the rules of the run's record had nothing against the command.
func (a *Activities) refuse(ctx context.Context, c *command) {
	if a.policy == nil || c.call.Refusal != nil {
		return
	}
	asked := c.asked
	asked.RunID, asked.NodeID, asked.CommandID = c.call.RunID, c.call.NodeID, c.call.CommandID
	asked.Kind, asked.Tool, asked.Effect, asked.Arguments = c.begin.Kind, c.begin.Tool, c.begin.Effect, c.begin.Input
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	decision, reason, err := a.policy(ctx, asked)
	if err != nil {
		decision, reason = policy.Forbid, "the policy could not decide: "+err.Error()
	}
	if decision != policy.Execute {
		c.call.Refusal = &agent.Refusal{Decision: decision, Reason: agent.Preview(reason, agent.MaxErrorBytes), Expires: c.approvalTimeout}
	}
}

// beginCommand asks for leave to execute. A reply that is lost is asked for again at once: the row tells a dispatch that it
// holds the command, where a later attempt could only wait for its lease to end and call an external effect in doubt. Lease
// and deadline are counted from when it was asked, which is before the ledger set them.
func (a *Activities) beginCommand(ctx context.Context, begin agent.Begin) (begun agent.Begun, asked time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	err = untilAnswered(ctx, func(ctx context.Context) error {
		asked = time.Now()
		begun, err = a.ledger.Begin(ctx, begin)
		return err
	})
	return begun, asked, err
}

// stale tells whether leave to execute is so old that somebody else may hold the command: this process stood still, and has
// to ask again. What remains until the deadline counts from when it asked.
func stale(begun *agent.Begun, asked time.Time) bool {
	waited := time.Since(asked)
	begun.Remaining -= waited
	return waited >= agent.Lease
}

// execute runs the effect of a command that this dispatch holds, and writes how it ended.
func (a *Activities) execute(ctx context.Context, c command, begun agent.Begun) (agent.CommandRow, error) {
	durable := context.WithoutCancel(ctx)
	if begun.Remaining <= 0 {
		return a.conclude(durable, c, begun, agent.Transient(agent.CodeTimeout, "the deadline passed before the effect began"), nil, 0)
	}
	if why := endOf(ctx); why != nil {
		return a.conclude(durable, c, begun, agent.Transient(agent.CodeCancelled, "%w before the effect began", why), nil, 0)
	}
	effectCtx, end := a.effectContext(ctx, c, begun)
	defer end()
	started := time.Now()
	d := dispatch{no: begun.DispatchNo, base: begun.BaseNo, key: agent.IdempotencyKey(c.call.RunID, c.call.CommandID),
		by: c.begin.Dispatch, deadline: started.Add(begun.Remaining)}
	if c.tx != nil {
		return a.executeTx(durable, effectCtx, end, c, begun, d)
	}
	result, err := a.perform(effectCtx, c, func(ctx context.Context) (effectResult, error) { return c.effect(ctx, d) })
	cause := context.Cause(effectCtx)
	end()
	latency := time.Since(started)
	a.at(ctx, agent.AfterEffect, c.call)
	var row agent.CommandRow
	if err == nil {
		row, err = a.commit(durable, c, begun, result, latency)
	} else {
		row, err = a.conclude(durable, c, begun, err, cause, latency)
	}
	a.at(ctx, agent.AfterCommit, c.call)
	return row, err
}

// executeTx lets a tool work in the transaction that commits its result. What it did in one that was undone has not happened.
func (a *Activities) executeTx(ctx, effectCtx context.Context, end func(), c command, begun agent.Begun, d dispatch) (agent.CommandRow, error) {
	started := time.Now()
	var failure error
	work := func(txCtx context.Context, tx agent.Tx) (agent.Commit, error) {
		var r effectResult
		// The statements end with the effect's context, the transaction with that of the write.
		r, failure = a.perform(effectCtx, c, func(ctx context.Context) (effectResult, error) { return c.tx(ctx, tx, d) })
		a.at(txCtx, agent.AfterEffect, c.call)
		return c.commit(begun.DispatchNo, r, time.Since(started)), failure
	}
	writeCtx, cancel := context.WithTimeout(ctx, begun.Remaining+commitTimeout)
	defer cancel()
	row, err := untilWritten(writeCtx, func(ctx context.Context) (agent.Decided, error) {
		failure = nil
		decided, err := a.ledger.CommitTx(ctx, c.commit(begun.DispatchNo, effectResult{}, 0), work)
		if failure != nil {
			return agent.Decided{}, &undone{failure}
		}
		return decided, err
	})
	cause := context.Cause(effectCtx)
	end()
	var broken *undone
	if errors.As(err, &broken) {
		if e, ok := agent.AsError(broken.err); !ok || e.Fault == agent.FaultUnknown {
			broken.err = agent.Transient(agent.CodeToolFailed, "%w", broken.err) // nothing of it is left
		}
		row, err = a.conclude(ctx, c, begun, broken.err, cause, time.Since(started))
	}
	a.at(ctx, agent.AfterCommit, c.call)
	return row, err
}

// undone is the error of a tool whose transaction was undone. It ends the attempts to commit.
type undone struct{ err error }

func (e *undone) Error() string { return e.err.Error() }

// perform does what the command is for. A panic is an error like any other that says nothing of the effect.
func (a *Activities) perform(ctx context.Context, c command, effect func(context.Context) (effectResult, error)) (result effectResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.log.ErrorContext(ctx, "an effect panicked", "run_id", c.call.RunID, "command_id", c.call.CommandID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if result, err = effect(ctx); err == nil {
		err = tooLarge(c, len(result.result))
	}
	return result, err
}

// commit writes a result. The effect has taken place, so it tries on new connections until the time is up.
func (a *Activities) commit(ctx context.Context, c command, begun agent.Begun, r effectResult, latency time.Duration) (agent.CommandRow, error) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	commit := c.commit(begun.DispatchNo, r, latency)
	return untilWritten(ctx, func(ctx context.Context) (agent.Decided, error) { return a.ledger.Commit(ctx, commit) })
}

func (c *command) commit(dispatchNo int, r effectResult, latency time.Duration) agent.Commit {
	commit := agent.Commit{Call: c.call, Dispatch: c.begin.Dispatch, DispatchNo: dispatchNo, Result: r.result, Event: r.event,
		HTTP: r.http, Message: r.message, Plan: r.plan, Checkpoint: c.checkpoint,
		Turn: c.turn, Heard: c.begin.Heard}
	commit.Ends = commit.Ends && !r.goesOn
	commit.Event.LatencyMS = latency.Milliseconds()
	return commit
}

// conclude writes how an effect without a result ended.
func (a *Activities) conclude(ctx context.Context, c command, begun agent.Begun, err, cause error, latency time.Duration) (agent.CommandRow, error) {
	end := judge(err, cause, c.begin.Effect, begun.DispatchNo)
	if end.reason.Code != agent.CodeInDoubt || end.reason.CommandID == "" { // else it names the command that put this one in doubt
		end.reason.NodeID, end.reason.CommandID = c.call.NodeID, c.call.CommandID
	}
	if end.lost {
		return agent.CommandRow{}, final(agent.CodeSuperseded, "command %s: %s", c.call.CommandID, end.reason.Message)
	}
	own := end.reason.CommandID == c.call.CommandID                                  // else an effect inside of it is in doubt, of which its tool knows nothing
	known := errors.Is(cause, errCancelled) || end.reason.Code == agent.CodeTooLarge // asking would tell nothing new
	if end.state == agent.CommandInDoubt && own && c.reconcile != nil && !known {
		// Its tool can find out. The next attempt asks it, as if this worker had been lost.
		end.state, end.retryAfter = agent.Dispatched, firstBackoff
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	conclude := agent.Conclude{Call: c.call, Dispatch: c.begin.Dispatch, DispatchNo: begun.DispatchNo, State: end.state,
		Error: end.reason, RetryAfter: end.retryAfter, Message: c.failureMessage, LatencyMS: latency.Milliseconds()}
	row, err := untilWritten(ctx, func(ctx context.Context) (agent.Decided, error) { return a.ledger.Conclude(ctx, conclude) })
	if err == nil && (row.State == agent.Released || row.State == agent.Dispatched) {
		return row, retryLater(end.reason.Code, end.retryAfter, "%s", end.reason.Message)
	}
	return row, err
}

// untilWritten repeats a ledger transaction until it is known to be written.
func untilWritten(ctx context.Context, write func(context.Context) (agent.Decided, error)) (row agent.CommandRow, err error) {
	var decided agent.Decided
	err = untilAnswered(ctx, func(ctx context.Context) error {
		decided, err = write(ctx)
		return err
	})
	switch {
	case err != nil:
		return row, err
	case !decided.Mine && decided.Row.State == agent.Dispatched:
		return row, final(agent.CodeSuperseded, "command %s: a newer dispatch is at work", decided.Row.CommandID)
	}
	return *decided.Row, nil
}

// untilAnswered repeats a ledger transaction, on a new connection each time, until ctx ends or the ledger has answered: with
// success, or with a word of its own, which comes back in the form in which it crosses Temporal. Repeating is safe: the row
// tells a dispatch what it wrote itself.
func untilAnswered(ctx context.Context, ask func(context.Context) error) error {
	pause := firstBackoff
	for {
		attempt, cancel := context.WithTimeout(ctx, ledgerTimeout)
		err := ask(attempt)
		cancel()
		if err == nil {
			return nil
		}
		var broken *undone
		if errors.As(err, &broken) {
			return err
		}
		if crossed := crossing(err); crossed != err { //nolint:errorlint // the same error means that it has no word for Temporal
			return crossed
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("the ledger does not answer: %w", err)
		}
		pause = min(2*pause, 2*time.Second)
	}
}
