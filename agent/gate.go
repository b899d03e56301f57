package agent

import (
	"encoding/json"
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
	// DispatchNo counts the executions of the effect; Owner is the dispatch that wrote the row last.
	DispatchNo int
	Owner      Dispatch
	LeaseUntil time.Time
	Deadline   time.Time
	// Sequence is the number of the event that decided the command.
	Sequence   int64
	Result     json.RawMessage
	ResultHash string
	Error      *Error
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
)

// Admit decides what dispatch d may do with a command, from its row (nil when there is none) and the database's clock.
// It is the whole of the gate's rules at the beginning of a command; the ledger asks it with the row locked.
func Admit(row *CommandRow, d Dispatch, inputHash string, now time.Time) Verdict {
	if row == nil {
		return MayExecute
	}
	if row.InputHash != "" && row.InputHash != inputHash {
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
	case Released:
		if d.Before(row.Owner) {
			return Refuse
		}
		if row.DispatchNo >= MaxDispatches {
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
		case row.Effect == External:
			return MustDoubt
		case row.DispatchNo >= MaxDispatches:
			return GiveUp
		}
		return MayExecuteAgain
	}
	return Refuse
}

// Begin asks the ledger to let a dispatch execute a command.
type Begin struct {
	Call
	Dispatch  Dispatch
	Kind      CommandKind
	Tool      string
	Model     *ModelRef
	Effect    EffectClass
	InputHash string
	// Input is what a tool is called with, kept with the command.
	Input json.RawMessage
	// Node is what node_started says, when this command opens a node of a plan.
	Node *NodeStartedData
	// Plan is what plan_started says, when this is the planner's command.
	Plan *PlanStartedData
	// Checkpoint is the checkpoint to take when the command is emitted; "" for none.
	Checkpoint CheckpointType
}

// Begun is the ledger's answer to Begin.
type Begun struct {
	Verdict    Verdict
	DispatchNo int
	// Remaining is the time until the command's deadline, by the database's clock.
	Remaining time.Duration
	// Wait is how long the lease that stands in the way still lasts, for MustWait.
	Wait time.Duration
	// Row is the record, when there is nothing to execute.
	Row *CommandRow
}

// Commit puts a result on record.
type Commit struct {
	Call
	Dispatch   Dispatch
	DispatchNo int
	Result     json.RawMessage
	Event      CommandCommittedData
	// Message is the conversation message that comes with the result, if any.
	Message *Message
	// Plan is what plan_generated says, for the planner's command.
	Plan *PlanGeneratedData
	// Checkpoint is the checkpoint to take when the command does not end its node; "" for none.
	Checkpoint CheckpointType
}

// Conclude ends a dispatch without a result.
type Conclude struct {
	Call
	Dispatch   Dispatch
	DispatchNo int
	// State is Released, CommandFailed, CommandAborted or CommandInDoubt.
	State CommandState
	Error *Error
	// RetryAfter is told in attempt_discarded.
	RetryAfter time.Duration
	// Message is what the conversation keeps of a failed tool call of a react loop, if anything.
	Message   *Message
	LatencyMS int64
}

// Decided is what the record says of a command after Commit or Conclude: this dispatch's word if it still owned the
// command, else what somebody else had written.
type Decided struct {
	Row *CommandRow
	// Mine is true when this dispatch's word is what stands.
	Mine bool
}
