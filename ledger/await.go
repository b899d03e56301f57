package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"runledger/agent"
)

// Await lets a wait node begin, and go on when its time has come or there is an input for it. Its row is then committed or has
// failed; until then the row says what is waited for. While the run is paused no wait begins: the verdict is IsPaused, and nothing
// is written but the facts.
//
// Errors: STALE_EPOCH, and CANCELLED when the run is being cancelled.
func (l *Ledger) Await(ctx context.Context, w agent.Wait) (agent.Begun, error) {
	var begun agent.Begun
	scope := txnScope{runID: w.RunID, epoch: w.Epoch, commandID: w.CommandID, facts: w.Facts, withState: true, changesRun: true}
	err := l.write(ctx, scope, func(t *txn) error {
		switch {
		case t.run.status.Terminal():
			return t.ended()
		case t.run.status == agent.Cancelling:
			return agent.Failed(agent.CodeCancelled, "run %s is being cancelled", w.RunID)
		}
		if err := w.Check(t.command); err != nil {
			return err
		}
		begun = agent.Begun{Verdict: agent.MustAwait}
		if err := t.await(ctx, w, &begun); err != nil {
			return err
		}
		begun.Row = t.command
		return nil
	})
	if err != nil {
		return agent.Begun{}, fmt.Errorf("await %s of run %s: %w", w.CommandID, w.RunID, err)
	}
	return begun, nil
}

func (t *txn) await(ctx context.Context, w agent.Wait, begun *agent.Begun) error {
	switch c := t.command; {
	case c != nil && c.State == agent.Committed:
		return t.finishInjected(ctx, w.Call)
	case c != nil && (c.State == agent.CommandFailed || c.State == agent.CommandAborted && c.Owner.Epoch == w.Epoch):
		return nil
	case c != nil && c.State == agent.CommandWaiting: // since an earlier epoch perhaps, whose execution was lost: it waits on
	case t.run.pausedBy != 0:
		begun.Verdict, begun.PausedBy = agent.IsPaused, t.run.pausedBy
		return nil
	case w.Refusal != nil: // asking somebody whether a run may wait is no less
		return t.refuse(w.Begin(), begun)
	default:
		if err := t.beginWait(w); err != nil {
			return err
		}
	}
	// An input that is there counts, even if the time is over by now: nobody has said so yet.
	if w.Signal != "" {
		if taken, err := t.takeInput(ctx, w); err != nil || taken {
			return err
		}
	}
	over := !t.command.Deadline.IsZero() && !t.now.Before(t.command.Deadline)
	switch {
	case over && w.Signal == "":
		result, err := agent.TimerValue(t.now)
		if err != nil {
			return err
		}
		return t.commitWait(w, result)
	case over:
		t.goesOnWaiting()
		return t.decide(w.Dispatch, agent.CommandFailed, w.Late(), 0)
	}
	t.command.Awaits = w.Awaits(t.now, t.command.Deadline)
	return nil
}

// beginWait puts a wait on record. One that an earlier epoch has begun, and that ended with it, begins anew, with all of its time.
func (t *txn) beginWait(w agent.Wait) error {
	b := w.Begin()
	var at time.Time
	var deadline *time.Time
	if w.For > 0 {
		at = t.now.Add(time.Duration(w.For))
		deadline = &at
	}
	var err error
	switch {
	case t.command == nil || t.command.DispatchNo == 0:
		err = t.emit(b, at)
	case t.command.State == agent.CommandAborted: // else the resume has said so
		err = t.event(agent.CommandReopened, b.NodeID, b.CommandID, t.command.DispatchNo, agent.CommandReopenedData{Reason: "it was aborted in an earlier epoch"})
	}
	if err != nil {
		return err
	}
	t.command = &agent.CommandRow{RunID: w.RunID, CommandID: w.CommandID, DispatchNo: 1, InputHash: w.InputHash, Deadline: at}
	t.takeRow(b)
	t.command.State = agent.CommandWaiting
	t.writeRow(b, 1, t.now)
	// Its place behind those that wait already is for good, whatever becomes of the clock.
	t.writes.Queue(`UPDATE commands SET state = 'waiting', lease_until = NULL, deadline = $3, emitted_at = greatest($4::timestamptz,
			(SELECT max(o.emitted_at) + interval '1 microsecond' FROM commands o WHERE o.run_id = $1 AND o.kind = 'wait' AND o.state = 'waiting'))
		WHERE run_id = $1 AND command_id = $2`, w.RunID, w.CommandID, deadline, t.now)
	return nil
}

func (t *txn) commitWait(w agent.Wait, result json.RawMessage) error {
	t.goesOnWaiting()
	t.command.Owner = w.Dispatch
	return t.commit(agent.Commit{Call: w.Call, Dispatch: w.Dispatch, DispatchNo: t.command.DispatchNo, Result: result,
		Event: agent.CommandCommittedData{Kind: agent.WaitCommand, Output: agent.ShowOutput(agent.WaitCommand, result)}}, nil)
}
