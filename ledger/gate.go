package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// maxInlineResult is the size above which a result goes to the payload table.
const maxInlineResult = 32 << 10

// Begin lets a dispatch execute a command, or tells what stands in its way. Facts that the call carries are written first.
//
// Errors: STALE_EPOCH when the execution has been replaced or the run has ended, CANCELLED when the run is being
// cancelled and the effect would have to be executed (again); anything else is a failure of the database.
func (l *Ledger) Begin(ctx context.Context, b agent.Begin) (_ agent.Begun, err error) {
	defer l.measured(GateBegin, time.Now(), &err)
	var begun agent.Begun
	scope := txnScope{runID: b.RunID, epoch: b.Epoch, commandID: b.CommandID, facts: b.Facts, withState: b.Checkpoint != "",
		recalls: b.Within == nil, anyLog: b.Refusal == nil && b.Checkpoint == "" && len(b.Facts) == 0}
	err = l.write(ctx, scope, func(t *txn) error {
		if t.run.status.Terminal() {
			return t.ended()
		}
		if err := t.fence(ctx, b.Within); err != nil {
			return err
		}
		begun = agent.Begun{Verdict: agent.Admit(t.command, agent.Ask{Dispatch: b.Dispatch,
			InputHash: b.InputHash, Reconciles: b.Reconciles, VoidNo: b.VoidNo, ArgumentsHash: b.ArgumentsHash}, t.now)}
		return t.begin(ctx, b, &begun)
	})
	if err != nil {
		return agent.Begun{}, fmt.Errorf("begin command %s of run %s: %w", b.CommandID, b.RunID, err)
	}
	return begun, nil
}

func (t *txn) begin(ctx context.Context, b agent.Begin, begun *agent.Begun) error {
	switch begun.Verdict {
	case agent.MayExecute, agent.MayExecuteAgain:
		if t.run.status == agent.Cancelling {
			return agent.Failed(agent.CodeCancelled, "run %s is being cancelled", t.run.runID)
		}
		if t.run.pausedBy != 0 && b.Within == nil { // what a tool at work asks for belongs to its command
			begun.Verdict, begun.PausedBy = agent.IsPaused, t.run.pausedBy
			return nil
		}
		if b.OutOfTime(t.now) {
			begun.Verdict = agent.IsOutOfTime
			return nil
		}
	}
	switch begun.Verdict {
	case agent.MayExecuteAgain:
		reason := "the worker was lost"
		if b.VoidNo == t.command.DispatchNo {
			reason += "; the tool has found out that the effect did not take place"
		}
		err := t.event(agent.AttemptDiscarded, b.NodeID, b.CommandID, t.command.DispatchNo, agent.AttemptDiscardedData{Reason: reason})
		if err != nil {
			return err
		}
		return t.dispatch(b, begun)
	case agent.MayExecute:
		if known, err := t.askPriors(ctx, b, begun); err != nil || known {
			return err
		}
		return t.dispatch(b, begun)
	case agent.MayProceed:
		begun.DispatchNo, begun.BaseNo = t.command.DispatchNo, t.command.BaseNo
		begun.Remaining = t.command.Deadline.Sub(t.now)
		t.writes.Queue(`UPDATE commands SET lease_until = $3 WHERE run_id = $1 AND command_id = $2`, b.RunID, b.CommandID, t.now.Add(agent.Lease))
	case agent.MustWait:
		begun.Wait = t.command.LeaseUntil.Sub(t.now)
	case agent.MustReconcile:
		begun.DispatchNo = t.command.DispatchNo
		begun.Remaining = t.command.Deadline.Sub(t.now)
		begun.Row = t.command
	case agent.MustDoubt:
		reason := &agent.Error{Code: agent.CodeInDoubt, CommandID: b.CommandID, NodeID: b.NodeID,
			Message: "the worker was lost while the effect was at work"}
		if b.Unfound != "" {
			reason.Message = "nobody knows how the effect ended, and its tool could not find out: " + b.Unfound
		}
		if err := t.decide(b.Dispatch, agent.CommandInDoubt, reason, 0); err != nil {
			return err
		}
		begun.Row = t.command
	case agent.GiveUp:
		reason := &agent.Error{Code: agent.CodeTooManyTries, CommandID: b.CommandID, NodeID: b.NodeID,
			Message: fmt.Sprintf("dispatched %d times without a result", t.command.DispatchNo-t.command.BaseNo)}
		begun.Row = t.command
		return t.fail(b, reason)
	case agent.Inject:
		begun.Row = t.command
		return t.finishInjected(ctx, b.Call)
	case agent.InjectFailure, agent.IsInDoubt, agent.Refuse, agent.Mismatch, agent.UseArguments:
		begun.Row = t.command
	case agent.MustAwait, agent.IsPaused, agent.IsOutOfTime: // not of Admit's making
	}
	return nil
}

// fail decides a command that ends here without an execution.
func (t *txn) fail(b agent.Begin, reason *agent.Error) error {
	if err := t.decide(b.Dispatch, agent.CommandFailed, reason, 0); err != nil || b.FailureMessage == nil {
		return err
	}
	m := *b.FailureMessage
	m.Content = reason.Error()
	return t.message(&m)
}

// refuse puts on record that the policy is against a command, which fails with that.
func (t *txn) refuse(b agent.Begin, begun *agent.Begun) error {
	if err := t.takeBack(b); err != nil {
		return err
	}
	if !t.hasOpened() {
		if err := t.openNode(b); err != nil {
			return err
		}
	}
	err := t.event(agent.PolicyDecided, b.NodeID, b.CommandID, 0, agent.PolicyDecidedData{Decision: b.Refusal.Decision, Reason: b.Refusal.Reason,
		Kind: b.Kind, Tool: b.Tool, Effect: b.Effect})
	if err != nil {
		return err
	}
	if t.command == nil {
		t.command = &agent.CommandRow{RunID: b.RunID, CommandID: b.CommandID}
	}
	t.command.NodeID, t.command.Kind, t.command.Tool, t.command.Effect, t.command.InputHash = b.NodeID, b.Kind, b.Tool, b.Effect, b.InputHash
	t.writeRow(b, t.command.DispatchNo, t.now)
	message := "the policy says " + string(b.Refusal.Decision)
	if b.Refusal.Reason != "" {
		message += ": " + b.Refusal.Reason
	}
	begun.Verdict, begun.Row = agent.InjectFailure, t.command
	return t.fail(b, &agent.Error{Code: agent.CodeRefused, NodeID: b.NodeID, CommandID: b.CommandID, Message: message})
}

func (t *txn) dispatch(b agent.Begin, begun *agent.Begun) error {
	switch {
	// Only the calls of tools can wait for somebody; an effect inside of a tool at work cannot.
	case b.Refusal != nil && (b.Refusal.Decision != policyAsk || b.Kind != agent.ToolCommand):
		return t.refuse(b, begun)
	// A question that was put stands, whatever a policy in code says by now.
	case b.Refusal != nil, t.wasAsked():
		if approved, err := t.askApproval(b, begun); err != nil || !approved {
			return err
		}
	}
	begun.DispatchNo = 1
	if t.command != nil {
		begun.DispatchNo, begun.BaseNo = t.command.DispatchNo+1, t.command.BaseNo
	}
	begun.Remaining = time.Duration(b.Timeout)
	deadline := t.now.Add(begun.Remaining)
	var err error
	switch {
	case begun.DispatchNo == 1:
		err = t.emit(b, deadline)
	case t.command.State == agent.CommandAborted:
		err = t.event(agent.CommandReopened, b.NodeID, b.CommandID, begun.DispatchNo, agent.CommandReopenedData{Reason: "it was aborted in an earlier epoch"})
	}
	if err != nil {
		return err
	}
	t.writeRow(b, begun.DispatchNo, deadline)
	if t.command == nil {
		t.begun = &agent.CommandRow{RunID: b.RunID, CommandID: b.CommandID, State: agent.Dispatched, InputHash: b.InputHash, DispatchNo: 1,
			NodeID: b.NodeID, Kind: b.Kind, Tool: b.Tool, Effect: b.Effect, Owner: b.Dispatch, LeaseUntil: t.now.Add(agent.Lease), Deadline: deadline}
	}
	return nil
}

// policyAsk is the decision that wants an approval, by the name that package policy gives it.
const policyAsk agent.Decision = "ask"

// writeRow queues the row of a command that dispatch b has from now on.
func (t *txn) writeRow(b agent.Begin, dispatchNo int, deadline time.Time) {
	model := ""
	if b.Model != nil {
		model = b.Model.Model
	}
	t.put(&dispatchCommand, b.RunID, b.CommandID, b.NodeID, string(b.Kind), textSafe(b.Tool), textSafe(model), string(b.Effect), b.InputHash, []byte(b.Input), dispatchNo,
		b.Dispatch.Epoch, b.Dispatch.Schedule, b.Dispatch.Attempt, t.now.Add(agent.Lease), deadline, t.now, b.Dispatch.Token, b.Heard)
}

var dispatchCommand = statement{
	intoCommands + `VALUES ($1, $2, $3, $4, $5, $6, $7, 'dispatched', $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)` + dispatchedAgain,
	intoCommands + `SELECT n.run, n.command, n.node, n.kind, n.tool, n.model, n.effect, 'dispatched', n.hash, n.input, n.no, n.epoch, n.schedule, n.attempt, n.lease, n.deadline, n.at,
			n.token, n.heard
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::int[], $11::int[], $12::int[], $13::int[],
			$14::timestamptz[], $15::timestamptz[], $16::timestamptz[], $17::text[], $18::bigint[])
			AS n (run, command, node, kind, tool, model, effect, hash, input, no, epoch, schedule, attempt, lease, deadline, at, token, heard)` + dispatchedAgain,
}

const (
	intoCommands = `INSERT INTO commands (run_id, command_id, node_id, kind, tool, model, effect_class, state, input_hash, input, dispatch_no,
			owner_epoch, owner_schedule, owner_attempt, lease_until, deadline, emitted_at, owner_token, heard) `
	dispatchedAgain = ` ON CONFLICT (run_id, command_id) DO UPDATE SET kind = excluded.kind, tool = excluded.tool, model = excluded.model,
			effect_class = excluded.effect_class, state = excluded.state, input_hash = excluded.input_hash, input = excluded.input,
			dispatch_no = excluded.dispatch_no, owner_epoch = excluded.owner_epoch, owner_schedule = excluded.owner_schedule,
			owner_attempt = excluded.owner_attempt, owner_token = excluded.owner_token, lease_until = excluded.lease_until, deadline = excluded.deadline,
			heard = excluded.heard, sequence_number = 0, error = NULL, decided_at = NULL, reused_from = NULL,
			emitted_at = CASE WHEN commands.dispatch_no = 0 THEN excluded.emitted_at ELSE commands.emitted_at END`
)

// emit appends what precedes the first execution of a command.
func (t *txn) emit(b agent.Begin, deadline time.Time) error {
	if !t.hasOpened() {
		if err := t.openNode(b); err != nil {
			return err
		}
	}
	data := agent.CommandEmittedData{Kind: b.Kind, Tool: b.Tool, Model: b.Model, Effect: b.Effect, InputHash: b.InputHash, Heard: b.Heard,
		IdempotencyKey: agent.IdempotencyKey(b.RunID, b.CommandID), Deadline: deadline.UTC()}
	if t.wasAsked() {
		data.ApprovalID, data.ArgumentsHash = t.command.Approval.ApprovalID, b.ArgumentsHash
	}
	if b.Input != nil {
		shown := agent.ShowValue(b.Input)
		if b.Shown != nil {
			shown = agent.ShowValue(b.Shown)
		}
		data.Input = &shown
	}
	if err := t.event(agent.CommandEmitted, b.NodeID, b.CommandID, 1, data); err != nil || b.Checkpoint == "" {
		return err
	}
	return t.checkpoint(b.Checkpoint, b.NodeID, b.CommandID)
}

// hasOpened reports whether the command has opened its node: when it was dispatched before, or when somebody was asked about it.
func (t *txn) hasOpened() bool {
	return t.command != nil && (t.command.DispatchNo > 0 || t.command.Approval != nil)
}

// openNode appends what opens a node, or the planning, with its first command.
func (t *txn) openNode(b agent.Begin) error {
	if b.Plan != nil {
		if err := t.event(agent.PlanStarted, b.NodeID, "", 0, b.Plan); err != nil {
			return err
		}
	}
	if b.Node != nil {
		return t.event(agent.NodeStarted, b.NodeID, "", 0, b.Node)
	}
	return nil
}

// finishInjected writes the node_finished and the checkpoint that a record from before they were written together lacks.
func (t *txn) finishInjected(ctx context.Context, call agent.Call) error {
	if !call.Ends || t.command.GoesOn || !agent.EndsNode(t.command.Kind, t.command.Result) {
		return nil
	}
	var batch pgx.Batch
	t.queueState(&batch, t.run.runID)
	if err := t.tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	if t.state.Finished.Has(call.NodeIndex) {
		return nil
	}
	return t.finishNode(call, t.command.Kind, t.command.Result)
}

func (t *txn) finishNode(call agent.Call, kind agent.CommandKind, result json.RawMessage) error {
	output, err := agent.NodeOutput(kind, result)
	if err != nil {
		return err
	}
	err = t.event(agent.NodeFinished, call.NodeID, "", 0,
		agent.NodeFinishedData{Index: call.NodeIndex, ResultCommand: call.CommandID, Output: agent.ShowOutput(kind, output)})
	if err != nil {
		return err
	}
	return t.checkpoint(agent.NodeBoundary, call.NodeID, "")
}

// Renew prolongs the lease of a dispatch that is still at work and tells where its run stands. Owned is false when the
// dispatch no longer holds the command: what it does will not count. A dispatch that was called in doubt does count, since its
// result would resolve the doubt.
func (l *Ledger) Renew(ctx context.Context, runID, commandID string, epoch, dispatchNo int) (status agent.Status, owned bool, err error) {
	err = l.pool.QueryRow(ctx, `WITH renewed AS (
			UPDATE commands SET lease_until = clock_timestamp() + $5::bigint * interval '1 millisecond'
			WHERE run_id = $1 AND command_id = $2 AND dispatch_no = $3 AND state IN ('dispatched', 'in_doubt')
				AND EXISTS (SELECT 1 FROM agent_executions WHERE run_id = $1 AND epoch = $4) RETURNING 1)
		SELECT CASE status WHEN 'stuck' THEN status_before ELSE status END, EXISTS (SELECT 1 FROM renewed)
		FROM agent_executions WHERE run_id = $1`,
		runID, commandID, dispatchNo, epoch, agent.Lease.Milliseconds()).Scan(&status, &owned)
	if err != nil {
		return "", false, fmt.Errorf("renew command %s of run %s: %w", commandID, runID, err)
	}
	return status, owned, nil
}

// dropOutput forgets what has come of a model's answer so far.
func (t *txn) dropOutput(commandID string) {
	if t.command.Kind == agent.ToolCommand {
		return
	}
	t.put(&deleteOutput, t.run.runID, commandID)
}

var deleteOutput = statement{
	`DELETE FROM model_output WHERE run_id = $1 AND command_id = $2`,
	`DELETE FROM model_output o USING unnest($1::uuid[], $2::text[]) AS n (run, command) WHERE o.run_id = n.run AND o.command_id = n.command`,
}

// ResultHash names a result by its bytes.
func ResultHash(result []byte) string {
	sum := sha256.Sum256(result)
	return hex.EncodeToString(sum[:])
}
