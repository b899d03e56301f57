package agent

import (
	"encoding/json"
	"time"
)

// Conversation is a thread of messages and runs with one sequence of events.
type Conversation struct {
	ConversationID string    `json:"conversation_id"`
	Title          string    `json:"title"`
	LastSequence   int64     `json:"last_sequence"`
	CreatedAt      time.Time `json:"created_at"`
	UpdatedAt      time.Time `json:"updated_at"`
}

// ExecutionStatus tells a client whether a conversation is at work and up to where its log goes.
type ExecutionStatus struct {
	IsRunning        bool    `json:"is_running"`
	LastSequence     int64   `json:"last_sequence"`
	CurrentMessageID *string `json:"current_message_id"`
}

// Command is a command as the API shows it.
type Command struct {
	CommandID  string          `json:"command_id"`
	NodeID     string          `json:"node_id"`
	Kind       CommandKind     `json:"kind"`
	Tool       string          `json:"tool,omitempty"`
	Model      string          `json:"model,omitempty"`
	Effect     EffectClass     `json:"effect_class"`
	State      CommandState    `json:"state"`
	Dispatches int             `json:"dispatch_no"`
	InputHash  string          `json:"input_hash,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	// Result is the whole result on a single command, nothing in a list.
	Result      json.RawMessage `json:"result,omitempty"`
	ResultHash  string          `json:"result_hash,omitempty"`
	ResultBytes int64           `json:"result_bytes"`
	Error       *Error          `json:"error,omitempty"`
	Usage       json.RawMessage `json:"usage,omitempty"`
	LatencyMS   int64           `json:"latency_ms"`
	Sequence    int64           `json:"sequence_number,omitempty"`
	EmittedAt   time.Time       `json:"emitted_at"`
	DecidedAt   *time.Time      `json:"decided_at,omitempty"`
	// Resolution is what was last said of it while it was in doubt.
	Resolution *CommandResolvedData `json:"resolution,omitempty"`
	// ReusedFrom is the run that executed it, when its own has not, and the number in that run's record.
	ReusedFrom *ForkedFrom `json:"reused_from,omitempty"`
}

// Checkpoint is a state that was saved on the way.
type Checkpoint struct {
	CheckpointID string         `json:"checkpoint_id"`
	RunID        string         `json:"run_id"`
	Type         CheckpointType `json:"checkpoint_type"`
	Step         int            `json:"step_number"`
	Sequence     int64          `json:"sequence_number"`
	Epoch        int            `json:"epoch"`
	State        State          `json:"execution_state"`
	CreatedAt    time.Time      `json:"created_at"`
}

// AnyOwner in place of an owner reads and changes what any owner has. It owns nothing itself: a conversation has an owner of
// its own.
const AnyOwner = "*"

// Acceptance is everything that accepting a run writes, in one transaction.
type Acceptance struct {
	Run   Run
	Owner string
	// NewConversation: the conversation is made with the run.
	NewConversation bool
	// Plan and PlanSource are set when the plan is known at once: brought by the caller, or that of a react run.
	Plan       *Plan
	PlanSource string
	// Offline says that the scripted model will answer.
	Offline bool
	// Strategy says what becomes of the run while the conversation has others that are not finished. Like everything else, it
	// does not concern a request that was accepted before under the same key.
	Strategy Strategy
	// Agent is the agent that the request names, "" where it names none, and OwnLimits says that it has limits. A message for a run
	// at work is for that run's agent, and within its limits.
	Agent     string
	OwnLimits bool
	// Key and RequestHash make a repeated request give the same run.
	Key         string
	RequestHash string
}

// Resume asks for another execution of a run that ended badly.
type Resume struct {
	// Owner is whose run it has to be; AnyOwner for everybody's.
	Owner string
	RunID string
	By    string
	// Reason is told in run_reopened.
	Reason string
	// Limits are given to the run in the place of those it had; those that are zero stay. nil changes nothing.
	Limits *Limits
	// Lost is the epoch whose execution is known to be lost, so that a run of that epoch is reopened although it has not ended; 0
	// for none.
	Lost int
}

// Resumed is what a resume gives.
type Resumed struct {
	Run Run
	// Step counts the nodes that have ended and stay so.
	Step int
}

// OpenWait is a wait node that waits.
type OpenWait struct {
	CommandID string `json:"command_id"`
	NodeID    string `json:"node_id"`
	// Signal is the name of the input that it waits for, "" for a timer.
	Signal string    `json:"signal,omitempty"`
	Since  time.Time `json:"since"`
	// Until is when its time has come, or is over; nil for a wait without an end.
	Until *time.Time `json:"until"`
}

// Bounds of what may be sent to a run.
const (
	// MaxInputBytes bounds the value of an input.
	MaxInputBytes = 256 << 10
	// MaxInputs is how many inputs of a run may be there that no node has taken.
	MaxInputs = 1000
)

// Input is a named value for a wait node. InputID tells a repetition from another input of the name.
type Input struct {
	Name    string
	InputID string
	Value   json.RawMessage
	By      string
}

// Strategy says what a new run does while its conversation has others that are not finished. In a conversation that is at rest
// all of them start it at once.
type Strategy string

// Strategies.
const (
	// SideBySide starts it at once all the same.
	SideBySide Strategy = ""
	// Reject refuses it, with a ConflictError of reason ConflictRunOpen.
	Reject Strategy = "reject"
	// Enqueue lets it wait until no other is at work and those that wait already have had their turn.
	Enqueue Strategy = "enqueue"
	// Interrupt puts it first in the queue and asks those that have begun to stop.
	Interrupt Strategy = "interrupt"
	// Steer makes no run of it: the one at work takes the message in.
	Steer Strategy = "steer"
)

// MaxEnqueued is how many runs of a conversation may wait in its queue.
const MaxEnqueued = 100

// RunAhead is a run that another one waits for in the queue of their conversation.
type RunAhead struct {
	RunID  string `json:"run_id"`
	Status Status `json:"status"`
}

// LogScope says which events a reader wants: a conversation's, or those of one run and its child runs.
type LogScope struct {
	ConversationID string
	// RunID narrows the scope to a run; empty for the whole conversation.
	RunID string
}

// Extent is how far a scope's log goes.
type Extent struct {
	// Oldest is the oldest number that is kept and Last the newest of the conversation, 0 while there is none.
	Oldest, Last int64
	// LastInScope is the newest number inside the scope.
	LastInScope int64
	// Open says whether more can follow: a run of the scope is not finished. A conversation's log has no end, so for a
	// conversation it says whether a run is queued or at work.
	Open bool
}

// ProgressChannel is the channel of what a tool says about its call while it is at work, a line each. Other channels are a model's.
const ProgressChannel = "progress"

// OutputChunk is a piece of what a command that is still open has said so far: model output, or a tool's progress.
type OutputChunk struct {
	ConversationID string
	RunID          string
	RootRunID      string
	NodeID         string
	CommandID      string
	Attempt        int
	Chunk          int
	Channel        string
	Text           string
}

// OutputCursor is how much of a command's output a reader has: chunks up to Chunk of Attempt.
type OutputCursor struct {
	RunID     string
	CommandID string
	Attempt   int
	Chunk     int
}

// LogCursor is how much of a conversation's log a reader has: the events up to After, and, when it wants Output at all, of the model
// output what Have says.
type LogCursor struct {
	ConversationID string
	After          int64
	Output         bool
	Have           []OutputCursor
}

// LogNews is what follows a LogCursor.
type LogNews struct {
	Events []Event
	Output []OutputChunk
	// Gone: the conversation was deleted, or events behind the cursor are no longer kept. There is nothing else then.
	Gone bool
}

// RunFilter selects runs; empty fields select all.
type RunFilter struct {
	Owner          string
	ConversationID string
	Status         Status
	Agent          string
	// InDoubt selects runs with a command in doubt, those that have ended too.
	InDoubt bool
	// Before is the run id that the page goes on after (runs are listed newest first); Limit bounds the page.
	Before string
	Limit  int
}

// CommandResult is how a command was decided, with the exact bytes of its result.
type CommandResult struct {
	Kind   CommandKind
	State  CommandState
	Result json.RawMessage
	// Bytes is the size of the whole result where a reader asked for its beginning only, else 0.
	Bytes int
	Error *Error
	// Edited are the arguments, without their secrets, that somebody has approved in the place of those that were asked for, where a
	// reader asked for beginnings only; nil for none.
	Edited json.RawMessage
}
