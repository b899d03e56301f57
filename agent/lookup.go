package agent

// NotFoundError says that there is no such thing for this caller. What is "run", "conversation", "command" and so on.
type NotFoundError struct {
	What string
	ID   string
}

func (e *NotFoundError) Error() string { return "there is no " + e.What + " " + e.ID }

// ConflictError says that a request contradicts what is on record.
type ConflictError struct {
	// Reason is a stable string: one of the Conflict constants.
	Reason string
	Detail string
	// RunID is the run that stands in the way, "" when none does.
	RunID string
}

func (e *ConflictError) Error() string { return e.Detail }

// Reasons of a ConflictError.
const (
	// ConflictKeyReused: the Idempotency-Key came with another request before.
	ConflictKeyReused = "idempotency-key-reused"
	// ConflictMessageID: the message id is taken.
	ConflictMessageID = "message-id-taken"
	// ConflictForked: a fork needs what is to be deleted.
	ConflictForked = "conversation-forked"
	// ConflictDocument: several owners have a document of that id.
	ConflictDocument = "document-ambiguous"
	// ConflictRunEnded: the run has ended already.
	ConflictRunEnded = "run-ended"
	// ConflictRunOpen: the conversation has a run at work.
	ConflictRunOpen = "run-open"
	// ConflictApprovalDecided: somebody else has answered.
	ConflictApprovalDecided = "approval-decided"
	// ConflictApprovalExpired: nobody answered in time.
	ConflictApprovalExpired = "approval-expired"
	// ConflictNotBegun: the run waits for others of its conversation and has not begun.
	ConflictNotBegun = "run-not-begun"
	// ConflictNotPaused: the run is not paused.
	ConflictNotPaused = "run-not-paused"
	// ConflictInputReused: the id of an input came with another value before.
	ConflictInputReused = "input-id-reused"
	// ConflictInputs: as many inputs of the run as may wait for somebody to take them do.
	ConflictInputs = "inputs-full"
	// ConflictQueueFull: as many runs of the conversation as may wait do.
	ConflictQueueFull = "queue-full"
	// ConflictSteer: the run at work cannot take a message in.
	ConflictSteer = "steer-unsupported"
	// ConflictNotInDoubt: the command is not in doubt, or no longer.
	ConflictNotInDoubt = "command-not-in-doubt"
)
