package agent

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies a failure by a stable string. Codes cross Temporal (as the type of an application error), the ledger
// and the API, so a code is never renamed and never reused with another meaning.
type Code string

// The closed list of codes. It only grows.
const (
	CodeInvalidPlan      Code = "INVALID_PLAN"       // a plan, brought or generated, that breaks the rules of a task graph
	CodeInvalidArguments Code = "INVALID_ARGUMENTS"  // tool arguments that do not fit the tool's schema
	CodeReference        Code = "REFERENCE_FAILED"   // a $from that points to nothing in the result it names
	CodeToolUnknown      Code = "TOOL_UNKNOWN"       // the worker does not have the tool
	CodeToolFailed       Code = "TOOL_FAILED"        // the tool said no, or broke
	CodeWorkflowFailed   Code = "WORKFLOW_FAILED"    // the workflow of a node ended without a result, or cannot be started
	CodeModelFailed      Code = "MODEL_FAILED"       // the model's vendor refused the call for good
	CodeModelUnavailable Code = "MODEL_UNAVAILABLE"  // the model's vendor cannot be reached, is overloaded or limits the rate
	CodeModelStream      Code = "MODEL_STREAM_ENDED" // the model's stream ended without its end mark
	CodeModelReply       Code = "MODEL_REPLY"        // the model answered something that cannot be used
	CodeRetrieval        Code = "RETRIEVAL_FAILED"   // documents could not be searched
	CodeTimeout          Code = "TIMEOUT"            // the effect did not end before its deadline
	CodeTooManyTries     Code = "TOO_MANY_TRIES"     // the effect was dispatched as often as the gate allows
	CodeMismatch         Code = "COMMAND_MISMATCH"   // the command is on record with another input
	CodeInDoubt          Code = "COMMAND_IN_DOUBT"   // the effect may have taken place and nobody knows
	CodeLeased           Code = "COMMAND_LEASED"     // another dispatch of the command is at work
	CodeSuperseded       Code = "SUPERSEDED"         // a newer schedule of the command has taken over
	CodeStaleEpoch       Code = "STALE_EPOCH"        // this execution of the run has been replaced or has ended
	CodeForbidden        Code = "REPLAY_FORBIDDEN"   // an audit replay reached a command without a record
	CodeUnrecorded       Code = "UNRECORDED_EFFECT"  // workflow code used time, randomness or the network without a record
	CodeRefused          Code = "POLICY_REFUSED"     // the policy does not allow the command
	CodeCancelled        Code = "CANCELLED"          // somebody cancelled the run
	CodeShutdown         Code = "WORKER_SHUTDOWN"    // the worker stopped while the effect was at work
	CodeLimit            Code = "LIMIT_REACHED"      // a limit of the run was reached
	CodeNodeFailed       Code = "NODE_FAILED"        // a node failed and its plan does not go on without it
	CodeExecutionLost    Code = "EXECUTION_LOST"     // the Temporal execution ended without a word in the ledger
	CodeStuck            Code = "EXECUTION_STUCK"    // the Temporal execution cannot go on, or is not there
	CodePaused           Code = "RUN_PAUSED"         // the run is paused; the command has not begun
	CodeOutOfTime        Code = "OUT_OF_TIME"        // the run's time limit is over; the command has not begun, or not again
	CodeCallLimit        Code = "CALL_LIMIT"         // the limit of a tool's calls is reached; the command has not begun
	CodeDenied           Code = "APPROVAL_DENIED"    // somebody was asked, and denied the call
	CodeExpired          Code = "APPROVAL_EXPIRED"   // nobody answered in time whether the call may be made
	CodePlanRequired     Code = "PLAN_REQUIRED"      // the run needs a plan on record, and there is none
	CodeTooLarge         Code = "RESULT_TOO_LARGE"   // a result, or an answer of a model, is larger than a run can take
	CodeInternal         Code = "INTERNAL"           // a fault of Runledger or of what it stands on
)

// Fault says what is known about an effect that ended in an error. It decides what the commit gate may do next.
type Fault string

const (
	// FaultDefinite means the effect failed for good and did no harm: the failure is recorded and replayed.
	FaultDefinite Fault = "definite"
	// FaultTransient means the effect did not take place and trying again can help.
	FaultTransient Fault = "transient"
	// FaultUnknown means the effect may have taken place. An external command is then in doubt; any other may be tried again.
	FaultUnknown Fault = "unknown"
)

// Error is the failure of a command, a node or a run as the record keeps it.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// NodeID and CommandID say where it happened, when that is known.
	NodeID    string `json:"node_id,omitempty"`
	CommandID string `json:"command_id,omitempty"`
	// Fault and RetryAfter matter while the effect is being decided; they are not part of the record.
	Fault      Fault         `json:"-"`
	RetryAfter time.Duration `json:"-"`
	cause      error
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap gives the error that led to this one, nil when it was read back from the record.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, &Error{Code: c}) match every error of that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// Failed is a definite failure: it is recorded, replayed, and not tried again by itself.
func Failed(code Code, format string, args ...any) *Error {
	return newError(FaultDefinite, code, format, args...)
}

// Transient is a failure where nothing took place and a later try can succeed.
func Transient(code Code, format string, args ...any) *Error {
	return newError(FaultTransient, code, format, args...)
}

// Unknown is a failure after which nobody can say whether the effect took place.
func Unknown(code Code, format string, args ...any) *Error {
	return newError(FaultUnknown, code, format, args...)
}

func newError(fault Fault, code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: Preview(err.Error(), MaxErrorBytes), Fault: fault, cause: errors.Unwrap(err)}
}

// AsError finds the *Error in err's chain.
func AsError(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}
