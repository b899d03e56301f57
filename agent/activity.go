package agent

import (
	"encoding/json"
	"time"
)

// Activity names a Temporal activity and fixes its input and output types, so that the workflow that calls it and the
// worker that registers it are both checked by the compiler.
type Activity[In, Out any] string

// The activities of a run.
const (
	CallPlanner   Activity[PlannerCall, PlannerReply] = "CallPlanner"
	CallModel     Activity[ModelCall, ModelReply]     = "CallModel"
	CallTool      Activity[ToolCall, Reply]           = "CallTool"
	Record        Activity[RecordCall, RecordReply]   = "Record"
	SettleCommand Activity[SettleCall, SettleReply]   = "SettleCommand"
	Finish        Activity[FinishCall, FinishReply]   = "Finish"
	RecordEffect  Activity[EffectCall, EffectReply]   = "RecordEffect"
	CallHTTP      Activity[HTTPCall, HTTPReply]       = "CallHTTP"
	Await         Activity[WaitCall, Reply]           = "Await"
	CallWorkflow  Activity[WorkflowCall, Reply]       = "CallWorkflow"
	Retrieve      Activity[RetrieveCall, Reply]       = "Retrieve"
	// Evaluate is a local activity.
	Evaluate Activity[EvaluateCall, EvaluateReply] = "Evaluate"
	// Segment is a local activity.
	Segment Activity[SegmentCall, SegmentReply] = "Segment"
)

// ActivityNames lists the names of all activities of a run.
func ActivityNames() []string {
	return []string{string(CallPlanner), string(CallModel), string(CallTool), string(Record), string(SettleCommand), string(Finish),
		string(RecordEffect), string(CallHTTP), string(Await), string(CallWorkflow), string(Retrieve), string(Evaluate), string(Segment)}
}

// LocalActivityNames lists those of them that a run executes locally: what they do is on record, or reads what is.
func LocalActivityNames() []string {
	return []string{string(Segment), string(Finish), string(Evaluate)}
}

// WorkflowName is the name of the run workflow in Temporal.
const WorkflowName = "AgentExecution"

// RunInput starts an execution of a run. It carries ids, limits and the shape of the plan, never content.
type RunInput struct {
	RunID          string `json:"run_id"`
	ConversationID string `json:"conversation_id"`
	Epoch          int    `json:"epoch"`
	Agent          string `json:"agent"`
	Mode           Mode   `json:"mode"`
	Limits         Limits `json:"limits"`
	// Policy is the agent's, or that of a replay.
	Policy *Policy `json:"policy,omitempty"`
	// Recorded are the commands whose outcome is on record, for replays that execute nothing. A live run leaves it to the
	// gate to know.
	Recorded []string `json:"recorded,omitempty"`
	// Plan is set when the plan is on record already: brought by the caller, or made before a resume.
	Plan *Shape `json:"plan,omitempty"`
	// State is where the record stands: zero but for the start events at first, the fold at a resume or a hand-over.
	State State `json:"state"`
	// RequirePlan: a run without a plan on record fails instead of making one.
	RequirePlan bool `json:"require_plan,omitempty"`
	// Walked are the tool calls of the last turn of each loop that have begun and were not stopped. An execution of an epoch after the first goes
	// through that turn once more, and meets them.
	Walked []string `json:"walked,omitempty"`
	// Calls are those that loops have made in the turns before their last one, for the loop guard. Carried has them for an execution
	// that continues another.
	Calls []RepeatedCall `json:"calls,omitempty"`
	// PausedBy is the intent that has paused the run, 0 when it is not paused. Heard is the number of the newest message that
	// was said to the run while it was at work.
	PausedBy int64 `json:"paused_by,omitempty"`
	Heard    int64 `json:"heard,omitempty"`
	// Carried is what one execution hands to the next that continues it, nil for one that begins an epoch.
	Carried *Carried `json:"carried,omitempty"`
}

// Carried is what an execution knows and the ledger does not, on its way to the one that continues it.
type Carried struct {
	// LastFact and Schedule go on counting, since both tell the writes of one epoch apart.
	LastFact int `json:"last_fact"`
	Schedule int `json:"schedule_no"`
	// Taken are the newest intents that were taken, by signal.
	Taken map[string]int64 `json:"taken,omitempty"`
	// Spent is the time that counts against the limit of the run.
	Spent Duration `json:"spent,omitempty"`
	// Calls counts the tool calls that came last, by tool and arguments; those that Loops has to begin again are not among them.
	Calls []RepeatedCall `json:"calls,omitempty"`
	// Loops says, by node, where its loop of turns stands, or which of its tries is under way.
	Loops map[string]LoopPosition `json:"loops,omitempty"`
	// Met are the limits that the record tells of.
	Met []MetLimit `json:"met,omitempty"`
	// Handovers counts the executions of this epoch before this one.
	Handovers int `json:"handovers,omitempty"`
}

// LoopPosition is where a loop stands: before a turn, or in it. A try counts as a turn.
type LoopPosition struct {
	Turn int `json:"turn"`
	// Ended are those of the turn's tool calls that have an outcome.
	Ended Bits `json:"ended,omitempty"`
}

// MetLimit is a limit that a run has met, and how much that was.
type MetLimit struct {
	Limit LimitName `json:"limit"`
	Most  int64     `json:"most"`
}

// RunOutput is what a finished execution leaves in Temporal.
type RunOutput struct {
	Status   Status `json:"status"`
	Sequence int64  `json:"sequence_number"`
	Witness
}

// Witness says where a conversation's log stood when a transaction had been written. Activities tell it to Temporal, whose
// history then testifies to every event up to there, whoever wrote it.
type Witness struct {
	// Head is the number of the last event, Chain the conversation's hash chain after it, in hexadecimal.
	Head  int64  `json:"head,omitempty"`
	Chain string `json:"chain,omitempty"`
}

// Fact is something that only the workflow knows on its way to the ledger. Facts of one execution are numbered from 1
// and carried by every activity until one has acknowledged them.
type Fact struct {
	No     int             `json:"no"`
	Type   EventType       `json:"type"`
	NodeID string          `json:"node_id,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
}

// Scope names the execution an activity works for and carries its facts.
type Scope struct {
	RunID string `json:"run_id"`
	Epoch int    `json:"epoch"`
	Facts []Fact `json:"facts,omitempty"`
}

// Call is what the activities of all commands have in common.
type Call struct {
	Scope
	CommandID string `json:"command_id"`
	NodeID    string `json:"node_id"`
	// NodeIndex is the node's place in the plan.
	NodeIndex int `json:"node_index"`
	// Schedule counts the activities this execution has scheduled; with the epoch it fences older ones.
	Schedule int `json:"schedule_no"`
	// Opens: the first command of its node, so that node_started goes before it.
	Opens bool `json:"opens,omitempty"`
	// Ends: committing this command ends its node.
	Ends    bool     `json:"ends,omitempty"`
	Timeout Duration `json:"timeout"`
	// Until is when the run's time limit is over, at which the run parks; zero for never. No effect begins after it, the next try
	// of one that was released included.
	Until time.Time `json:"until,omitzero"`
	// Refusal is set when the policy is against the command: the gate then records it and executes nothing.
	Refusal *Refusal `json:"refusal,omitempty"`
}

// About names what the call is about, for errors.
func (s Scope) About() string { return "run " + s.RunID }

// About names what the call is about, for errors.
func (c Call) About() string { return "run " + c.RunID + ", command " + c.CommandID }

// About names what the call is about, for errors.
func (c ToolCall) About() string { return c.Call.About() + ", tool " + c.Tool }

// PlannerCall asks for the task graph of a run.
type PlannerCall struct {
	Call
}

// ModelCall asks for one answer of a model: of an llm node when Turn is 0, else of that turn of a react loop.
type ModelCall struct {
	Call
	Turn int `json:"turn,omitempty"`
	// Heard is the number up to which the model is shown what was said to the run while it was at work. A turn that was begun
	// before is shown what it was then.
	Heard int64 `json:"heard,omitempty"`
}

// ToolCall asks for one execution of a tool. The arguments are in the plan, or in the answer of the model command
// FromCommand at position FromIndex.
type ToolCall struct {
	Call
	Tool        string `json:"tool"`
	FromCommand string `json:"from_command,omitempty"`
	FromIndex   int    `json:"from_index,omitempty"`
}

// WorkflowCall asks for one execution of a workflow; which and with what is in the plan.
type WorkflowCall struct {
	Call
}

// WorkflowStart is a workflow that a node executes.
type WorkflowStart struct {
	// ID is the workflow's id in Temporal.
	ID        string
	Name      string
	TaskQueue string
	// Args are JSON values.
	Args []json.RawMessage
	// RunID and CommandID are whose it is.
	RunID, CommandID string
}

// WaitCall asks whether a wait node can go on: at its time, or with the value of its signal.
type WaitCall struct {
	Call
	// Signal is the name of the input that ends the wait, "" for a timer.
	Signal string `json:"signal,omitempty"`
	// For is how long a timer takes, or the longest that is waited for a signal; 0 is for ever.
	For Duration `json:"for,omitempty"`
}

// RetrieveCall asks for the documents that a retrieval node wants. What it asks for is in the plan.
type RetrieveCall struct {
	Call
}

// EvaluateCall asks whether the condition of a node holds. What it names has ended, so that the answer is always the same.
type EvaluateCall struct {
	Scope
	NodeID string `json:"node_id"`
}

// EvaluateReply tells it. Error is set when it cannot be told: the condition asks for something that is not there.
type EvaluateReply struct {
	Holds bool   `json:"holds,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Outcome is what became of a command.
type Outcome string

const (
	OutcomeCommitted Outcome = "committed"
	OutcomeFailed    Outcome = "failed"
	OutcomeInDoubt   Outcome = "in_doubt"
	OutcomeAborted   Outcome = "aborted"
	// OutcomeRetry is a person's word on a command in doubt: it may be dispatched again.
	OutcomeRetry Outcome = "retry"
	// OutcomeUnknown: nothing is on record; SettleCommand has fenced the schedule, and the command may be scheduled again.
	OutcomeUnknown Outcome = "unknown"
	// OutcomeWaiting: the command waits for a person, a signal or a time, see Awaited.
	OutcomeWaiting Outcome = "waiting"
)

// Awaited is what a command waits for.
type Awaited struct {
	// For is "approval", "signal" or "timer".
	For string `json:"for"`
	// ApprovalID or Signal names it.
	ApprovalID string `json:"approval_id,omitempty"`
	Signal     string `json:"signal,omitempty"`
	// Remaining is the time until it is over, by the ledger's clock; 0 when it has no end.
	Remaining Duration `json:"remaining,omitempty"`
}

// What a command waits for.
const (
	ForApproval = "approval"
	ForSignal   = "signal"
	ForTimer    = "timer"
)

// Reply is what an activity tells the workflow of its command: the outcome and where the record holds it.
type Reply struct {
	Outcome Outcome `json:"outcome"`
	// DispatchNo is the command's newest dispatch; of a command in doubt, the one that nobody knows about.
	DispatchNo int `json:"dispatch_no,omitempty"`
	// Sequence is the number of the event that decided the outcome, Hash and Bytes describe the recorded result.
	Sequence int64  `json:"sequence_number,omitempty"`
	Hash     string `json:"hash,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
	Preview  string `json:"preview,omitempty"`
	Error    *Error `json:"error,omitempty"`
	// Tokens is what a model's command has used, input and output.
	Tokens int `json:"tokens,omitempty"`
	// Awaits is set with OutcomeWaiting.
	Awaits *Awaited `json:"awaits,omitempty"`
	Witness
}

// ToolRequest is a tool call that a model's turn asks for, as far as the workflow has to know it.
type ToolRequest struct {
	Tool    string      `json:"tool"`
	Effect  EffectClass `json:"effect_class"`
	Timeout Duration    `json:"timeout,omitempty"`
	// Digest is short for tool and arguments: calls with another digest differ.
	Digest string `json:"digest,omitempty"`
	// Fast: the call goes in the fast lane.
	Fast bool `json:"fast,omitempty"`
}

// ModelReply is the reply of CallModel.
type ModelReply struct {
	Reply
	// Tools are the calls the model asked for, in its order.
	Tools []ToolRequest `json:"tools,omitempty"`
	// GoesOn: something was said to the run meanwhile, so that an answer without tool calls does not end its loop. Said is then the
	// number of the newest message, whose own signal may still be on its way.
	GoesOn bool  `json:"goes_on,omitempty"`
	Said   int64 `json:"said,omitempty"`
}

// PlannerReply is the reply of CallPlanner.
type PlannerReply struct {
	Reply
	Plan *Shape `json:"plan,omitempty"`
}

// RecordCall writes facts when no command is due to carry them, and where the run stands when that has changed.
type RecordCall struct {
	Scope
	Status Status `json:"status,omitempty"`
	// HandOver asks for the state, for the execution that goes on. It is what this one takes it to be, as far as it knows.
	HandOver *State `json:"hand_over,omitempty"`
}

// RecordReply acknowledges facts.
type RecordReply struct {
	Sequence int64  `json:"sequence_number"`
	State    *State `json:"state,omitempty"`
	Witness
}

// SettleCall asks what became of a command whose activity ended in an error.
type SettleCall struct {
	Call
	// Reason is why the activity is given up.
	Reason *Error `json:"reason,omitempty"`
}

// SettleReply is the reply of SettleCommand, with what the model and planner activities would have told.
type SettleReply struct {
	Reply
	Tools  []ToolRequest `json:"tools,omitempty"`
	GoesOn bool          `json:"goes_on,omitempty"`
	Said   int64         `json:"said,omitempty"`
	Plan   *Shape        `json:"plan,omitempty"`
}

// FinishCall ends an execution: it settles open commands and writes the terminal event. The final output of a completed run
// is that of its plan's last node, as the record has it.
type FinishCall struct {
	Scope
	Status Status `json:"status"`
	// Summary says in a line what the run did.
	Summary string `json:"summary,omitempty"`
	Error   *Error `json:"error,omitempty"`
	// By is who cancelled the run.
	By string `json:"by,omitempty"`
}

// FinishReply tells the number of the terminal event.
type FinishReply struct {
	Status   Status `json:"status"`
	Sequence int64  `json:"sequence_number"`
	Witness
}

// The signals of a run, each with an Intent.
const (
	// CancelSignal asks a run to stop.
	CancelSignal = "cancel"
	// ResolvedSignal tells a run that a command in doubt has been resolved, in the ledger.
	ResolvedSignal = "resolved"
	// PauseSignal and UnpauseSignal tell a run that it was paused, and that it may go on.
	PauseSignal   = "pause"
	UnpauseSignal = "unpause"
	// ApprovalSignal tells a run that somebody has answered whether a command may be executed.
	ApprovalSignal = "approval"
	// InputSignal tells a run that there is an input for a wait node.
	InputSignal = "input"
	// MessageSignal tells a run that a message was added to its loop.
	MessageSignal = "message"
	// LimitsSignal gives a run other limits.
	LimitsSignal = "limits"
)

// Intent is what a signal carries: the id of the outbox row, and what it asks or tells.
type Intent struct {
	ID int64 `json:"id"`
	// Epoch is that of the execution which it is for, 0 for any.
	Epoch  int    `json:"epoch,omitempty"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// After is the number of the conversation's last event when a cancellation was asked for.
	After int64 `json:"after,omitempty"`
	// CommandID and DispatchNo name the dispatch that was resolved; CommandID alone the command that was approved or not.
	CommandID  string `json:"command_id,omitempty"`
	DispatchNo int    `json:"dispatch_no,omitempty"`
	// Name is that of an input.
	Name string `json:"name,omitempty"`
	// Sequence is the number of a message.
	Sequence int64 `json:"sequence_number,omitempty"`
	// Limits are the run's from now on.
	Limits *Limits `json:"limits,omitempty"`
}

// StateQuery is the name of the workflow query that shows where a run stands.
const StateQuery = "state"
