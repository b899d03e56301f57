package agent

import (
	"encoding/json"
	"time"
)

// EventType is the canonical name of an event in the ledger.
type EventType string

// The events of the ledger. Streams may show them under other names.
const (
	RunStarted        EventType = "run_started"
	PlanStarted       EventType = "plan_started"
	PlanGenerated     EventType = "plan_generated"
	PlanRevised       EventType = "plan_revised"
	PolicyDecided     EventType = "policy_decided"
	NodeStarted       EventType = "node_started"
	NodeFinished      EventType = "node_finished"
	NodeFailed        EventType = "node_failed"
	NodeSkipped       EventType = "node_skipped"
	CommandEmitted    EventType = "command_emitted"
	CommandCommitted  EventType = "command_committed"
	CommandFailedType EventType = "command_failed"
	CommandAbortType  EventType = "command_aborted"
	CommandDoubtType  EventType = "command_in_doubt"
	CommandResolved   EventType = "command_resolved"
	CommandReopened   EventType = "command_reopened"
	AttemptDiscarded  EventType = "attempt_discarded"
	Progress          EventType = "progress"
	CheckpointSaved   EventType = "checkpoint_saved"
	ApprovalRequested EventType = "approval_requested"
	ApprovalResolved  EventType = "approval_resolved"
	InputReceived     EventType = "input_received"
	LimitReachedType  EventType = "limit_reached"
	RunPaused         EventType = "run_paused"
	RunUnpaused       EventType = "run_unpaused"
	RunReopened       EventType = "run_reopened"
	LimitsChanged     EventType = "limits_changed"
	RunForked         EventType = "run_forked"
	TimerFired        EventType = "timer_fired"
	UUIDRecorded      EventType = "uuid_recorded"
	RandomRecorded    EventType = "random_recorded"
	HTTPRecorded      EventType = "http_recorded"
	MessageAdded      EventType = "message_added"
	RunCompleted      EventType = "run_completed"
	RunFailed         EventType = "run_failed"
	RunCancelled      EventType = "run_cancelled"
)

// Terminal reports whether an event of this type ends its epoch of a run.
func (t EventType) Terminal() bool {
	return t == RunCompleted || t == RunFailed || t == RunCancelled
}

// EventTypes lists every event type, in the order above.
func EventTypes() []EventType {
	return []EventType{
		RunStarted, PlanStarted, PlanGenerated, PlanRevised, PolicyDecided, NodeStarted, NodeFinished, NodeFailed,
		NodeSkipped, CommandEmitted, CommandCommitted, CommandFailedType, CommandAbortType, CommandDoubtType,
		CommandResolved, CommandReopened, AttemptDiscarded, Progress, CheckpointSaved, ApprovalRequested,
		ApprovalResolved, InputReceived, LimitReachedType, LimitsChanged, RunPaused, RunUnpaused, RunReopened, RunForked, TimerFired,
		UUIDRecorded, RandomRecorded, HTTPRecorded, MessageAdded, RunCompleted, RunFailed, RunCancelled,
	}
}

// Event is one entry of a conversation's log, as streams and pages show it.
type Event struct {
	// Sequence is the position in the conversation, from 1, without gaps.
	Sequence       int64     `json:"sequence_number"`
	Type           EventType `json:"event_type"`
	ConversationID string    `json:"conversation_id"`
	RunID          string    `json:"run_id,omitempty"`
	RootRunID      string    `json:"root_run_id,omitempty"`
	MessageID      string    `json:"message_id,omitempty"`
	NodeID         string    `json:"node_id,omitempty"`
	CommandID      string    `json:"command_id,omitempty"`
	// Attempt is the command's dispatch number.
	Attempt   int             `json:"attempt,omitempty"`
	CreatedAt time.Time       `json:"created_at"`
	Data      json.RawMessage `json:"data"`
	// Epoch is the execution of the run that wrote the event.
	Epoch int `json:"-"`
}

// The payloads of events, their "data".
type (
	// RunStartedData opens a run.
	RunStartedData struct {
		Input       string          `json:"input"`
		Agent       string          `json:"agent"`
		Mode        Mode            `json:"mode"`
		Model       ModelRef        `json:"model"`
		Epoch       int             `json:"epoch"`
		RequestID   string          `json:"request_id"`
		SessionID   string          `json:"session_id,omitempty"`
		Limits      Limits          `json:"limits"`
		Metadata    json.RawMessage `json:"metadata,omitempty"`
		Attachments []string        `json:"attachments,omitempty"`
		// Offline says that the scripted model answers, because no key is set.
		Offline bool `json:"offline_model,omitempty"`
	}

	// PlanStartedData says who makes the plan: "planner", "caller" or "react".
	PlanStartedData struct {
		Source string    `json:"source"`
		Model  *ModelRef `json:"planner_model,omitempty"`
	}

	// PlanGeneratedData is the plan itself.
	PlanGeneratedData struct {
		Source     string    `json:"source"`
		TaskGraph  *Plan     `json:"task_graph"`
		Hash       string    `json:"plan_hash"`
		Model      *ModelRef `json:"planner_model,omitempty"`
		PromptHash string    `json:"planner_prompt_hash,omitempty"`
	}

	// NodeStartedData opens a node.
	NodeStartedData struct {
		Kind  NodeKind `json:"kind"`
		Tool  string   `json:"tool,omitempty"`
		Index int      `json:"node_index"`
	}

	// NodeFinishedData ends a node that gave an output.
	NodeFinishedData struct {
		Index int `json:"node_index"`
		// ResultCommand is the command whose result is the node's.
		ResultCommand string `json:"result_command"`
		Output        Value  `json:"output"`
	}

	// NodeFailedData ends a node that gave an error. Handled: the plan goes on without its output.
	NodeFailedData struct {
		Index   int    `json:"node_index"`
		Error   *Error `json:"error"`
		Handled bool   `json:"handled,omitempty"`
	}

	// NodeSkippedData ends a node that was never started.
	NodeSkippedData struct {
		Index  int    `json:"node_index"`
		Reason string `json:"reason"`
		// Unmet: by its own condition, or since all that it depends on was skipped so. It has no output, and that is no failure.
		Unmet bool `json:"unmet,omitempty"`
	}

	// CommandEmittedData precedes the first execution of a command.
	CommandEmittedData struct {
		Kind      CommandKind `json:"kind"`
		Tool      string      `json:"tool,omitempty"`
		Model     *ModelRef   `json:"model,omitempty"`
		Effect    EffectClass `json:"effect_class"`
		InputHash string      `json:"input_hash"`
		// Input is what a tool is called with.
		Input *Value `json:"input,omitempty"`
		// Heard is the number of the newest message in a turn's prompt that was said while the run was at work.
		Heard          int64  `json:"heard,omitempty"`
		IdempotencyKey string `json:"idempotency_key"`
		// Deadline is left out for a wait without an end.
		Deadline time.Time `json:"deadline,omitzero"`
		// ApprovalID is the approval that lets the call be made, ArgumentsHash the hash of the arguments that it is made with; both
		// are empty when nobody had to be asked.
		ApprovalID    string `json:"approval_id,omitempty"`
		ArgumentsHash string `json:"arguments_hash,omitempty"`
	}

	// CommandCommittedData puts a command's result on record. The bytes stand beside the event.
	CommandCommittedData struct {
		Kind      CommandKind `json:"kind"`
		Tool      string      `json:"tool,omitempty"`
		Hash      string      `json:"result_hash"`
		Output    Value       `json:"output"`
		LatencyMS int64       `json:"latency_ms"`
		// Turn is set for the model call of a loop's turn.
		Turn int `json:"turn,omitempty"`
		// What follows is of llm commands.
		Finish string          `json:"finish_reason,omitempty"`
		Usage  json.RawMessage `json:"usage,omitempty"`
		Model  string          `json:"model,omitempty"`
		Tools  []string        `json:"tool_calls,omitempty"`
		// GoesOn: something was said to the run meanwhile, so that this answer does not end its loop.
		GoesOn bool `json:"goes_on,omitempty"`
		// ReusedFrom is where the result comes from, when its run has not executed the command.
		ReusedFrom *ForkedFrom `json:"reused_from,omitempty"`
	}

	// CommandFailedData puts a definite failure on record.
	CommandFailedData struct {
		Kind      CommandKind `json:"kind"`
		Tool      string      `json:"tool,omitempty"`
		Error     *Error      `json:"error"`
		LatencyMS int64       `json:"latency_ms,omitempty"`
	}

	// CommandAbortedData says that a command was stopped and does not count.
	CommandAbortedData struct {
		Kind   CommandKind `json:"kind"`
		Tool   string      `json:"tool,omitempty"`
		Reason string      `json:"reason"`
		// NeverStarted: no effect was at work. It waited for its next try, or for somebody.
		NeverStarted bool `json:"never_started,omitempty"`
	}

	// CommandInDoubtData says that nobody knows whether an effect took place.
	CommandInDoubtData struct {
		Kind   CommandKind `json:"kind"`
		Tool   string      `json:"tool,omitempty"`
		Reason string      `json:"reason"`
		// IdempotencyKey is set when another run has made the call: the key under which it did.
		IdempotencyKey string `json:"idempotency_key,omitempty"`
	}

	// CommandResolvedData says what became of a command that was in doubt, or of a dispatch that was lost, and who says so.
	CommandResolvedData struct {
		// Outcome is "committed", "failed" or "retry".
		Outcome Outcome `json:"outcome"`
		// By is a person, "late_result" or "reconcile".
		By   string `json:"by"`
		Note string `json:"note,omitempty"`
		// Hash is that of the result, for committed.
		Hash string `json:"result_hash,omitempty"`
	}

	// CommandReopenedData says why a command that had ended may be dispatched again.
	CommandReopenedData struct {
		Reason string `json:"reason"`
	}

	// PolicyDecidedData says that the policy was against a command.
	PolicyDecidedData struct {
		Decision Decision    `json:"decision"`
		Reason   string      `json:"reason,omitempty"`
		Kind     CommandKind `json:"kind"`
		Tool     string      `json:"tool,omitempty"`
		Effect   EffectClass `json:"effect_class"`
	}

	// AttemptDiscardedData says that what a dispatch did does not count, and when the next one may begin.
	AttemptDiscardedData struct {
		Reason string `json:"reason"`
		// RetryAfterMS is the pause before the next dispatch.
		RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	}

	// ValueRecordedData is what a recorded Now (timer_fired), UUID or Random gave.
	ValueRecordedData struct {
		Kind CommandKind `json:"kind"`
		// Value is a JSON value: the time as RFC 3339 with fractions of a second in UTC, the UUID, or the number.
		Value json.RawMessage `json:"value"`
		Hash  string          `json:"result_hash"`
	}

	// HTTPRecordedData is a request and its response, in short and without secrets. It stands right before the
	// command_committed of its command, whose input and result have the whole.
	HTTPRecordedData struct {
		Kind     CommandKind  `json:"kind"`
		Request  HTTPExchange `json:"request"`
		Response HTTPExchange `json:"response"`
	}

	// HTTPExchange is one side of an HTTPRecordedData.
	HTTPExchange struct {
		Method string `json:"method,omitempty"`
		// URL is without its query, which may hold a key.
		URL     string            `json:"url,omitempty"`
		Status  int               `json:"status,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
		Body    *Value            `json:"body,omitempty"`
		// Truncated: more of the body came than is read.
		Truncated bool `json:"truncated,omitempty"`
	}

	// CheckpointSavedData names a checkpoint; the state stands in the checkpoint's row.
	CheckpointSavedData struct {
		CheckpointID string         `json:"checkpoint_id"`
		Type         CheckpointType `json:"checkpoint_type"`
		Step         int            `json:"step_number"`
	}

	// MessageAddedData is a message of the conversation.
	MessageAddedData struct {
		Role    MessageRole `json:"role"`
		Content string      `json:"content"`
		// Steers: it was said to a run at work, whose loop reads it before its next turn.
		Steers bool `json:"steers,omitempty"`
	}

	// RunCompletedData ends a run that answered.
	RunCompletedData struct {
		FinalOutput string `json:"final_output"`
		Summary     string `json:"summary,omitempty"`
	}

	// RunFailedData ends a run that did not.
	RunFailedData struct {
		Error *Error `json:"error"`
	}

	// InputReceivedData is an input for a wait node, under the id that its sender gave it.
	InputReceivedData struct {
		Name    string `json:"name"`
		InputID string `json:"input_id"`
		By      string `json:"by,omitempty"`
		Value   Value  `json:"value"`
		Hash    string `json:"value_hash"`
	}

	// LimitReachedData says that a run has met a limit. Parked: it waits for another one.
	LimitReachedData struct {
		Limit LimitName `json:"limit"`
		// Used and Most are counts, for a timeout milliseconds.
		Used   int64  `json:"used"`
		Most   int64  `json:"most"`
		Parked bool   `json:"parked,omitempty"`
		Tool   string `json:"tool,omitempty"`
	}

	// LimitsChangedData gives a run other limits.
	LimitsChangedData struct {
		Limits Limits `json:"limits"`
		By     string `json:"by,omitempty"`
		Reason string `json:"reason,omitempty"`
	}

	// PausedData says who has paused a run, or let it go on.
	PausedData struct {
		By     string `json:"by,omitempty"`
		Reason string `json:"reason,omitempty"`
	}

	// RunReopenedData begins another execution of a run, in the epoch that the event names.
	RunReopenedData struct {
		Epoch int `json:"epoch"`
		// Status is the one that the run had.
		Status Status `json:"status_before"`
		By     string `json:"by,omitempty"`
		Reason string `json:"reason,omitempty"`
		// Step counts the nodes that have ended and stay so.
		Step int `json:"from_step"`
		// Nodes are the indexes, NodeIDs the ids of nodes that have failed and are tried again.
		Nodes   []int    `json:"nodes,omitempty"`
		NodeIDs []string `json:"node_ids,omitempty"`
	}

	// RunCancelledData ends a run that was stopped.
	RunCancelledData struct {
		Reason string `json:"reason,omitempty"`
		By     string `json:"by,omitempty"`
	}
)

// CheckpointType says where in the flow a checkpoint was taken.
type CheckpointType string

const (
	NodeBoundary CheckpointType = "node_boundary"
	LLMComplete  CheckpointType = "llm_complete"
	ToolStart    CheckpointType = "tool_start"
	ToolComplete CheckpointType = "tool_complete"
)

// Bounds of what an event shows of a value.
const (
	maxInlineBytes  = 4096
	maxPreviewBytes = 512
)

// Value is a result or an input as an event shows it: whole when it is small, else its size and a preview.
type Value struct {
	Bytes int `json:"bytes"`
	// JSON is the whole value when it is small.
	JSON json.RawMessage `json:"json,omitempty"`
	// Preview is the beginning of a value that is not.
	Preview string `json:"preview,omitempty"`
}

// ShowValue makes the Value of a JSON document.
func ShowValue(doc json.RawMessage) Value {
	if len(doc) <= maxInlineBytes {
		return Value{Bytes: len(doc), JSON: doc}
	}
	return Value{Bytes: len(doc), Preview: Preview(string(doc), maxPreviewBytes)}
}

// ShowOutput makes the Value of a command's output. Of a wait's only the size is shown: what somebody sends to a run may be a
// secret, and streams show it to everybody who watches.
func ShowOutput(kind CommandKind, output json.RawMessage) Value {
	if kind == WaitCommand {
		return Value{Bytes: len(output)}
	}
	return ShowValue(output)
}

// Preview cuts text to at most limit bytes at a rune boundary and marks the cut.
func Preview(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	cut := limit
	for cut > 0 && text[cut]&0xC0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}
