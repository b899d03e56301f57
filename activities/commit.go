package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"runledger/agent"
)

// command is a side effect on its way through the gate.
type command struct {
	call  agent.Call
	begin agent.Begin
	// checkpoint is taken at the commit when the command does not end its node.
	checkpoint agent.CheckpointType
	// mayGoOn: only the result tells whether the command ends its node, and the record holds none that does.
	mayGoOn bool
	// failureMessage is what the conversation keeps when the command fails for good, nil for nothing.
	failureMessage *agent.Message
	// effect does what the command is for. Its context ends on user cancel, on a stale epoch, at the deadline or at the end of
	// the shutdown grace, and for no other reason.
	effect func(ctx context.Context, d dispatch) (effectResult, error)
}

// dispatch tells an effect which of its executions it is.
type dispatch struct {
	no  int
	key string
}

// effectResult is what an effect gives for the record.
type effectResult struct {
	result  json.RawMessage
	event   agent.CommandCommittedData
	message *agent.Message
	plan    *agent.PlanGeneratedData
	// goesOn: the command does not end its node after all, as a model's turn that asks for tools.
	goesOn bool
}

// Timing of the gate.
const (
	renewEvery     = 5 * time.Second
	heartbeatEvery = 2 * time.Second
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
	c.begin.Call = c.call
	c.begin.Ends = c.call.Ends && !c.mayGoOn
	c.begin.Dispatch = agent.Dispatch{Epoch: c.call.Epoch, Schedule: c.call.Schedule, Attempt: info.Attempt}

	stopHeartbeat := heartbeat(durable)
	defer stopHeartbeat()

	begun, err := a.beginCommand(durable, c.begin)
	if err != nil {
		return agent.CommandRow{}, err
	}
	switch begun.Verdict {
	case agent.MayExecute, agent.MayExecuteAgain, agent.MayProceed:
		return a.execute(ctx, c, begun)
	case agent.Inject, agent.InjectFailure, agent.MustDoubt, agent.IsInDoubt, agent.GiveUp:
		return *begun.Row, nil
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

// beginCommand asks for leave to execute. A reply that is lost is asked for again at once: the row tells a dispatch that it
// holds the command, where a later attempt could only wait for its lease to end and call an external effect in doubt.
func (a *Activities) beginCommand(ctx context.Context, begin agent.Begin) (begun agent.Begun, err error) {
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	err = untilAnswered(ctx, func(ctx context.Context) error {
		begun, err = a.ledger.Begin(ctx, begin)
		return err
	})
	return begun, err
}

// execute runs the effect of a command that this dispatch holds, and writes how it ended.
func (a *Activities) execute(ctx context.Context, c command, begun agent.Begun) (agent.CommandRow, error) {
	durable := context.WithoutCancel(ctx)
	effectCtx, end := a.effectContext(ctx, c, begun)
	defer end()
	started := time.Now()
	result, err := a.perform(effectCtx, c, dispatch{no: begun.DispatchNo, key: agent.IdempotencyKey(c.call.RunID, c.call.CommandID)})
	cause := context.Cause(effectCtx)
	end()
	latency := time.Since(started)
	if err == nil {
		return a.commit(durable, c, begun, result, latency)
	}
	return a.conclude(durable, c, begun, err, cause, latency)
}

// perform does what the command is for. A panic is an error like any other that says nothing of the effect.
func (a *Activities) perform(ctx context.Context, c command, d dispatch) (result effectResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.log.ErrorContext(ctx, "an effect panicked", "run_id", c.call.RunID, "command_id", c.call.CommandID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return c.effect(ctx, d)
}

// effectContext is the context of an effect. A failed heartbeat ends the activity's context, so it is not derived from it:
// the gate decides by itself when an effect has to stop.
func (a *Activities) effectContext(ctx context.Context, c command, begun agent.Begun) (effect context.Context, end func()) {
	effect, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		deadline := time.NewTimer(begun.Remaining)
		defer deadline.Stop()
		renew := time.NewTicker(renewEvery)
		defer renew.Stop()
		ended, stopping := ctx.Done(), activity.GetWorkerStopChannel(ctx)
		var grace <-chan time.Time
		for {
			select {
			case <-effect.Done():
				return
			case <-deadline.C:
				cancel(errDeadline)
			case <-ended:
				ended = nil
				if temporal.IsCanceledError(context.Cause(ctx)) {
					cancel(errCancelled)
				}
			case <-stopping:
				stopping = nil
				timer := time.NewTimer(shutdownGrace)
				defer timer.Stop()
				grace = timer.C
			case <-grace:
				cancel(errShutdown)
			case <-renew.C:
				a.renew(effect, c, begun, cancel)
			}
		}
	}()
	return effect, func() { cancel(nil); <-done }
}

// renew prolongs the lease and looks where the run stands. A ledger that does not answer ends nothing: the lease may run
// out, and the commit will tell.
func (a *Activities) renew(ctx context.Context, c command, begun agent.Begun, cancel context.CancelCauseFunc) {
	ctx, stop := context.WithTimeout(ctx, renewEvery)
	defer stop()
	status, owned, err := a.ledger.Renew(ctx, c.call.RunID, c.call.CommandID, c.call.Epoch, begun.DispatchNo)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			a.log.WarnContext(ctx, "renew failed", "run_id", c.call.RunID, "command_id", c.call.CommandID, "error", err)
		}
	case !owned:
		cancel(errStale)
	case status == agent.Cancelling:
		cancel(errCancelled)
	}
}

// commit writes a result. The effect has taken place, so it tries on new connections until the time is up.
func (a *Activities) commit(ctx context.Context, c command, begun agent.Begun, r effectResult, latency time.Duration) (agent.CommandRow, error) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	commit := agent.Commit{Call: c.call, Dispatch: c.begin.Dispatch, DispatchNo: begun.DispatchNo, Result: r.result, Event: r.event,
		Message: r.message, Plan: r.plan, Checkpoint: c.checkpoint}
	commit.Ends = commit.Ends && !r.goesOn
	commit.Event.LatencyMS = latency.Milliseconds()
	return untilWritten(ctx, func(ctx context.Context) (agent.Decided, error) { return a.ledger.Commit(ctx, commit) })
}

// conclude writes how an effect without a result ended.
func (a *Activities) conclude(ctx context.Context, c command, begun agent.Begun, err, cause error, latency time.Duration) (agent.CommandRow, error) {
	end := judge(err, cause, c.begin.Effect, begun.DispatchNo)
	end.reason.NodeID, end.reason.CommandID = c.call.NodeID, c.call.CommandID
	if end.lost {
		return agent.CommandRow{}, final(agent.CodeSuperseded, "command %s: %s", c.call.CommandID, end.reason.Message)
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	conclude := agent.Conclude{Call: c.call, Dispatch: c.begin.Dispatch, DispatchNo: begun.DispatchNo, State: end.state,
		Error: end.reason, RetryAfter: end.retryAfter, Message: c.failureMessage, LatencyMS: latency.Milliseconds()}
	row, err := untilWritten(ctx, func(ctx context.Context) (agent.Decided, error) { return a.ledger.Conclude(ctx, conclude) })
	if err == nil && row.State == agent.Released {
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

// ending is how the gate ends a dispatch without a result.
type ending struct {
	state      agent.CommandState
	reason     *agent.Error
	retryAfter time.Duration
	// lost: the command belongs to somebody else already; there is nothing to write.
	lost bool
}

// judge decides what the failure of an effect means for its command: by why its context ended, if it did, then by what is
// known about the effect, then by the effect class.
func judge(err, cause error, effect agent.EffectClass, dispatchNo int) ending {
	stopped := cause != nil && !errors.Is(cause, context.Canceled)
	reason, typed := agent.AsError(err)
	if !typed {
		reason = agent.Unknown(agent.CodeToolFailed, "%w", err)
		if effect == agent.Deterministic && !stopped {
			reason.Fault = agent.FaultDefinite // it would fail the same way again
		}
	}
	copied := *reason
	reason = &copied
	stopped = stopped && reason.Fault != agent.FaultDefinite
	// What may have taken place outside cannot be taken back or repeated.
	unsafe := effect == agent.External && reason.Fault != agent.FaultTransient
	switch {
	case stopped && errors.Is(cause, errStale):
		return ending{lost: true, reason: reason}
	case stopped && unsafe:
		return ending{state: agent.CommandInDoubt, reason: &agent.Error{Code: agent.CodeInDoubt, Message: cause.Error() + "; " + reason.Message}}
	case stopped && errors.Is(cause, errCancelled):
		return ending{state: agent.CommandAborted, reason: &agent.Error{Code: agent.CodeCancelled, Message: cause.Error()}}
	case stopped && errors.Is(cause, errDeadline):
		return ending{state: agent.Released, reason: &agent.Error{Code: agent.CodeTimeout, Message: cause.Error()}, retryAfter: backoff(dispatchNo)}
	case stopped && errors.Is(cause, errShutdown):
		return ending{state: agent.Released, reason: &agent.Error{Code: agent.CodeShutdown, Message: cause.Error()}}
	case reason.Fault == agent.FaultDefinite:
		return ending{state: agent.CommandFailed, reason: reason}
	case unsafe:
		return ending{state: agent.CommandInDoubt, reason: reason}
	}
	return ending{state: agent.Released, reason: reason, retryAfter: max(reason.RetryAfter, backoff(dispatchNo))}
}

func backoff(dispatchNo int) time.Duration {
	return min(firstBackoff<<min(dispatchNo-1, 10), longestBackoff)
}

// heartbeat tells Temporal that the activity lives, from the first line on. It is recorded on a context that a failed call
// cannot end, since one lost heartbeat must not look like a cancellation for ever after.
func heartbeat(ctx context.Context) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	activity.RecordHeartbeat(ctx)
	go func() {
		defer close(stopped)
		tick := time.NewTicker(heartbeatEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				activity.RecordHeartbeat(ctx)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-stopped }
}
