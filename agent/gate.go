package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Timing of the commit gate.
const (
	// Lease is how long a dispatch holds a command without renewing.
	Lease = 15 * time.Second
	// MaxDispatches bounds how often the effect of one command is executed.
	MaxDispatches = 5
)

// CommandRow is a command as the ledger holds it.
type CommandRow struct {
	RunID     string
	CommandID string
	NodeID    string
	Kind      CommandKind
	Tool      string
	Effect    EffectClass
	State     CommandState
	InputHash string
	// DispatchNo counts the executions of the effect over the command's whole life; those up to BaseNo do not count against
	// MaxDispatches, since somebody reopened the command after them. Owner is the dispatch that wrote the row last.
	DispatchNo int
	BaseNo     int
	Owner      Dispatch
	LeaseUntil time.Time
	Deadline   time.Time
	// Sequence is the number of the event that decided the command.
	Sequence   int64
	Result     json.RawMessage
	ResultHash string
	Error      *Error
	// Resolution is what was last said of the command while it was in doubt, nil for nothing.
	Resolution *CommandResolvedData
	// Approval is the newest question whether the call may be made, nil when nobody was asked.
	Approval *ApprovalRow
	// GoesOn: the answer of a model did not end its loop, although it asked for no tools. Said is then the number of the newest
	// message that was said to the run while it was at work.
	GoesOn bool
	Said   int64
	// Tokens is what a model's command has used, as its event says.
	Tokens int
	// Awaits is what a command that waits is waiting for.
	Awaits *Awaited
	// Witness is where the log stood after the transaction that gave the row.
	Witness
}

// Verdict is what the gate lets a dispatch do.
type Verdict string

const (
	// MayExecute: the row is new, released, or free again without harm. Dispatch, then execute.
	MayExecute Verdict = "execute"
	// MayExecuteAgain: the last dispatch was lost and repeating it is safe. Discard it, dispatch, then execute.
	MayExecuteAgain Verdict = "execute_again"
	// MayProceed: this very dispatch holds the row; the reply to its begin was lost. Execute.
	MayProceed Verdict = "proceed"
	// Inject: the result is on record. Execute nothing.
	Inject Verdict = "inject"
	// InjectFailure: a failure is on record. Execute nothing.
	InjectFailure Verdict = "inject_failure"
	// MustReconcile: the last dispatch of an external effect was lost, and whoever asks can find out what became of it. Nothing
	// was written; ask again with what was found.
	MustReconcile Verdict = "must_reconcile"
	// MustDoubt: the last dispatch of an external effect was lost. It is in doubt now. Execute nothing.
	MustDoubt Verdict = "must_doubt"
	// IsInDoubt: the command is in doubt already. Execute nothing.
	IsInDoubt Verdict = "in_doubt"
	// MustWait: another dispatch is at work until its lease is over.
	MustWait Verdict = "wait"
	// GiveUp: the effect was dispatched as often as allowed. The command fails.
	GiveUp Verdict = "give_up"
	// Refuse: a newer schedule of the command has taken over.
	Refuse Verdict = "refuse"
	// Mismatch: the command is on record with another input.
	Mismatch Verdict = "mismatch"
	// UseArguments: somebody has approved the call with other arguments. Nothing was written; ask again with those.
	UseArguments Verdict = "use_arguments"
	// MustAwait: the command waits for an approval. Execute nothing.
	MustAwait Verdict = "await"
	// IsPaused: the run is paused. Nothing was written.
	IsPaused Verdict = "paused"
	// IsOutOfTime: the run's time limit is over. Nothing was written.
	IsOutOfTime Verdict = "out_of_time"
)

// Ask is a dispatch that asks for a command.
type Ask struct {
	Dispatch  Dispatch
	InputHash string
	// Reconciles: whoever asks can find out what became of a lost dispatch of the effect.
	Reconciles bool
	// VoidNo is the number of a lost dispatch of which it was found out that it did not take place and no longer can once its
	// deadline is over; 0 for none.
	VoidNo int
	// ArgumentsHash is that of a tool's arguments, see [ArgumentsHash].
	ArgumentsHash string
}

// Admit decides what a dispatch may do with a command, from its row (nil when there is none) and the database's clock. It
// is the whole of the gate's rules at the beginning of a command; the ledger asks it with the row locked.
func Admit(row *CommandRow, a Ask, now time.Time) Verdict {
	if row == nil {
		return MayExecute
	}
	d := a.Dispatch
	if ap := row.Approval; ap != nil && ap.State == ApprovalApproved && ap.Hash != a.ArgumentsHash {
		if ap.Edited == nil {
			return Mismatch
		}
		return UseArguments
	}
	if row.InputHash != "" && row.InputHash != a.InputHash {
		return Mismatch
	}
	switch row.State {
	case Committed:
		return Inject
	case CommandFailed:
		return InjectFailure
	case CommandInDoubt:
		return IsInDoubt
	case CommandAborted:
		if d.Epoch > row.Owner.Epoch {
			return MayExecute
		}
		return InjectFailure
	case Fenced:
		// The fence stands for every attempt of its schedule and of those before it.
		if d.Epoch < row.Owner.Epoch || d.Epoch == row.Owner.Epoch && d.Schedule <= row.Owner.Schedule {
			return Refuse
		}
		return MayExecute
	case Released, CommandWaiting:
		if d.Before(row.Owner) {
			return Refuse
		}
		if row.exhausted() {
			return GiveUp
		}
		return MayExecute
	case Dispatched:
		switch {
		case d == row.Owner:
			return MayProceed
		case d.Before(row.Owner):
			return Refuse
		case now.Before(row.LeaseUntil):
			return MustWait
		}
		return row.lost(a, now)
	}
	return Refuse
}

// lost decides after a dispatch whose worker has not renewed its lease.
func (row *CommandRow) lost(a Ask, now time.Time) Verdict {
	void := a.VoidNo == row.DispatchNo && !now.Before(row.Deadline)
	switch {
	case row.Effect == External && !void && a.Reconciles:
		return MustReconcile
	case row.Effect == External && !void:
		return MustDoubt
	case row.exhausted():
		return GiveUp
	}
	return MayExecuteAgain
}

// Reopened reports whether somebody has said that the command may be dispatched again, and nobody has yet.
func (row *CommandRow) Reopened() bool {
	return row.State == Released && row.BaseNo > 0 && row.BaseNo == row.DispatchNo
}

func (row *CommandRow) exhausted() bool { return row.DispatchNo-row.BaseNo >= MaxDispatches }

// Begin asks the ledger to let a dispatch execute a command.
type Begin struct {
	Call
	Dispatch  Dispatch
	Kind      CommandKind
	Tool      string
	Model     *ModelRef
	Effect    EffectClass
	InputHash string
	// Reconciles and VoidNo are those of Ask.
	Reconciles bool
	VoidNo     int
	// Unfound is why nothing could be found out about the lost dispatch, told where the command is in doubt because of it.
	Unfound string
	// Input is what a tool is called with, kept with the command. Shown is what events tell of it, without its secrets; nil
	// is all of it.
	Input json.RawMessage
	Shown json.RawMessage
	// ArgumentsHash is that of a tool's arguments.
	ArgumentsHash string
	// Heard is the number of the newest message in the prompt of a loop's turn that was said while the run was at work.
	Heard int64
	// Node is what node_started says, when this command opens a node of a plan.
	Node *NodeStartedData
	// Plan is what plan_started says, when this is the planner's command.
	Plan *PlanStartedData
	// Checkpoint is the checkpoint to take when the command is emitted; "" for none.
	Checkpoint CheckpointType
	// FailureMessage is what the conversation keeps when the command fails here, refused or given up; nil for nothing. Its
	// content is the error.
	FailureMessage *Message
	// Within is the dispatch of the tool that asks for this effect; nil when no tool does.
	Within *Within
}

// OutOfTime reports whether an effect may not begin any more at a time, by the run's time limit. What a tool at work asks for
// belongs to its command.
func (b Begin) OutOfTime(now time.Time) bool {
	return b.Within == nil && !b.Until.IsZero() && now.After(b.Until)
}

// Begun is the ledger's answer to Begin.
type Begun struct {
	Verdict    Verdict
	DispatchNo int
	// BaseNo is the number of the last dispatch before somebody let the command begin anew, 0 for none.
	BaseNo int
	// Remaining is the time until the command's deadline, by the database's clock.
	Remaining time.Duration
	// Wait is how long the lease that stands in the way still lasts, for MustWait.
	Wait time.Duration
	// Row is the record, when there is nothing to execute, or a lost dispatch to reconcile.
	Row *CommandRow
	// Awaits is what the command waits for, for MustAwait.
	Awaits *Awaited
	// PausedBy is the intent that has paused the run, for IsPaused.
	PausedBy int64
}

// Wait asks the ledger whether a wait node can go on.
type Wait struct {
	WaitCall
	Dispatch Dispatch
	// Node is what node_started says, when this opens the node.
	Node *NodeStartedData
	// Input says what is waited for.
	Input     json.RawMessage
	InputHash string
}

// Begin is how the wait stands in the record when it begins.
func (w *Wait) Begin() Begin {
	return Begin{Call: w.Call, Dispatch: w.Dispatch, Kind: WaitCommand, Effect: Deterministic, Node: w.Node, Input: w.Input, InputHash: w.InputHash}
}

// Check refuses to take the row of another command, or of a wait for something else, for this one's.
func (w *Wait) Check(row *CommandRow) error {
	if row == nil || row.InputHash == "" || row.InputHash == w.InputHash {
		return nil
	}
	return Failed(CodeMismatch, "command %s is on record with another input (hash %s, now %s)", w.CommandID, row.InputHash, w.InputHash)
}

// Late is the failure of a wait for an input that did not come in time.
func (w *Wait) Late() *Error {
	return &Error{Code: CodeTimeout, NodeID: w.NodeID, CommandID: w.CommandID, Message: fmt.Sprintf("no input %s came within %s", w.Signal, w.For)}
}

// Awaits is what the wait waits for until its deadline, which is zero when it has none.
func (w *Wait) Awaits(now, deadline time.Time) *Awaited {
	a := &Awaited{For: ForTimer, Signal: w.Signal}
	if w.Signal != "" {
		a.For = ForSignal
	}
	if !deadline.IsZero() {
		a.Remaining = Duration(deadline.Sub(now))
	}
	return a
}

// TimerValue is the result of a wait for a time: when it was over.
func TimerValue(now time.Time) (json.RawMessage, error) {
	return json.Marshal(map[string]string{"fired_at": now.UTC().Format("2006-01-02T15:04:05.000000Z07:00")})
}

// Commit puts a result on record.
type Commit struct {
	Call
	Dispatch   Dispatch
	DispatchNo int
	Result     json.RawMessage
	Event      CommandCommittedData
	// HTTP is what http_recorded says, for an HTTP effect.
	HTTP *HTTPRecordedData
	// Message is the conversation message that comes with the result, if any.
	Message *Message
	// Plan is what plan_generated says, for the planner's command.
	Plan *PlanGeneratedData
	// Turn is the turn of a loop that the command is the answer of, 0 for none. Something that was said to the run after Heard
	// keeps the answer from ending the loop.
	Turn  int
	Heard int64
	// Said is the number of the newest message that was said after Heard. It is for the ledger to find out.
	Said int64
	// Checkpoint is the checkpoint to take when the command does not end its node; "" for none.
	Checkpoint CheckpointType
	// Reconciled: the result is that of the lost dispatch DispatchNo, found out by its tool, and not this dispatch's own.
	Reconciled bool
}

// Conclude ends a dispatch without a result.
type Conclude struct {
	Call
	Dispatch   Dispatch
	DispatchNo int
	// State is Released, CommandFailed, CommandAborted or CommandInDoubt; or Dispatched, for an effect that is over and of which
	// nothing is known, when its tool can find out: only its lease ends then.
	State CommandState
	Error *Error
	// RetryAfter is told in attempt_discarded.
	RetryAfter time.Duration
	// Message is what the conversation keeps of a failed tool call of a react loop, if anything.
	Message   *Message
	LatencyMS int64
}

// Resolution is somebody's word on a command in doubt.
type Resolution struct {
	// Outcome is OutcomeCommitted with a Result, OutcomeFailed, or OutcomeRetry.
	Outcome Outcome
	Result  json.RawMessage
	By      string
	Note    string
}

// Who resolves commands in doubt, apart from people.
const (
	// ByLateResult: the dispatch that was given up has reported after all.
	ByLateResult = "late_result"
	// ByReconcile: the tool has found out what became of a lost dispatch.
	ByReconcile = "reconcile"
)

// Decided is what the record says of a command after Commit or Conclude: this dispatch's word if it still owned the
// command, else what somebody else had written.
type Decided struct {
	Row *CommandRow
	// Mine is true when this dispatch's word is what stands.
	Mine bool
}

// Boundary is a point on a command's way through the gate.
type Boundary string

const (
	// BeforeBegin: nothing is on record.
	BeforeBegin Boundary = "before_begin"
	// AfterBegin: the dispatch is on record, the effect has not begun.
	AfterBegin Boundary = "after_begin"
	// AfterEffect: the effect has ended, its result is in this process only.
	AfterEffect Boundary = "after_effect"
	// AfterCommit: the result is on record, Temporal does not know.
	AfterCommit Boundary = "after_commit"
)

// Tx is the part of a Postgres transaction that a tool may use whose whole effect is in the ledger's own database.
type Tx interface {
	// Exec runs a statement and returns the number of rows it affected.
	Exec(ctx context.Context, sql string, args ...any) (int64, error)
	// Query runs a query and calls scan for each row, in order, with a function that copies the row's columns. It returns
	// the first error of the query, of scan or of the connection.
	Query(ctx context.Context, scan func(columns func(dest ...any) error) error, sql string, args ...any) error
}
