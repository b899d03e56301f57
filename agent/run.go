package agent

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Status is where a run stands.
type Status string

const (
	Queued       Status = "queued"        // accepted and durable, not yet started in Temporal
	Running      Status = "running"       // at work
	Waiting      Status = "waiting"       // at rest until an approval, a signal or a timer
	Paused       Status = "paused"        // stopped by an operator at a command boundary
	InDoubt      Status = "in_doubt"      // nothing can go on until somebody resolves a command in doubt
	LimitReached Status = "limit_reached" // parked at a limit
	Stuck        Status = "stuck"         // its Temporal execution cannot make progress
	Cancelling   Status = "cancelling"    // asked to stop
	Completed    Status = "completed"
	FailedStatus Status = "failed"
	Cancelled    Status = "cancelled"
)

// Terminal reports whether a run with this status has written its terminal event.
func (s Status) Terminal() bool {
	switch s {
	case Completed, FailedStatus, Cancelled:
		return true
	case Queued, Running, Waiting, Paused, InDoubt, LimitReached, Stuck, Cancelling:
		return false
	}
	return false
}

// Mode says how a run decides what to do next.
type Mode string

const (
	// ModePlan makes a task graph first, or is given one, and executes it.
	ModePlan Mode = "plan"
	// ModeReact lets a model call tools and read their results until it answers.
	ModeReact Mode = "react"
)

// Limits bound a run. Zero means the default.
type Limits struct {
	// MaxSteps bounds the model turns of a react run and the nodes of a plan that a model makes; those of a caller's plan where the
	// agent, or the request, names it.
	MaxSteps int `json:"max_steps,omitempty"`
	// MaxToolCalls bounds the tool calls of a run, MaxTokens the tokens that its model calls read and write; 0 is no bound.
	// What is at work when a bound is met ends, so that tokens may go beyond theirs by as much as one round of calls.
	MaxToolCalls int `json:"max_tool_calls,omitempty"`
	MaxTokens    int `json:"max_tokens,omitempty"`
	// MaxRepeats bounds how often a loop may call the same tool with the same arguments, counted over its last 64 different calls.
	MaxRepeats int `json:"max_repeats,omitempty"`
	// MaxParallel bounds how many nodes, or tool calls of one turn, are at work at once.
	MaxParallel int `json:"max_parallel,omitempty"`
	// Timeout is the time that the run may be at work. Time in which it waits for a person, a signal or a timer does not count.
	// A run that parks at it lets what is at work end; no effect begins after it, and none that has failed is tried again.
	Timeout Duration `json:"timeout,omitempty"`
	// OnLimit says what a limit does to the run; "" is OnLimitFail, as in records from before there was a choice.
	OnLimit OnLimit `json:"on_limit,omitempty"`
}

// OnLimit is what a limit does to a run.
type OnLimit string

const (
	// OnLimitPark stops the run at the limit until it is given more, or is cancelled.
	OnLimitPark OnLimit = "park"
	// OnLimitFail fails it.
	OnLimitFail OnLimit = "fail"
)

// LimitName names a limit as limit_reached has it.
type LimitName string

const (
	LimitSteps     LimitName = "max_steps"
	LimitToolCalls LimitName = "max_tool_calls"
	LimitTokens    LimitName = "max_tokens"
	LimitRepeats   LimitName = "max_repeats"
	// LimitParallel is never reached: what is beyond it waits for its turn.
	LimitParallel LimitName = "max_parallel"
	LimitTime     LimitName = "timeout"
)

// MetLimits are the limits that a run can meet.
func MetLimits() []LimitName {
	return []LimitName{LimitSteps, LimitToolCalls, LimitTokens, LimitRepeats, LimitTime}
}

// Defaults for limits that a definition leaves out.
const (
	DefaultMaxSteps    = 50
	DefaultMaxParallel = 8
	DefaultMaxRepeats  = 10
	DefaultRunTimeout  = Duration(time.Hour)
)

// DefaultLimits are those of a definition that sets none.
func DefaultLimits() Limits {
	return Limits{MaxSteps: DefaultMaxSteps, MaxParallel: DefaultMaxParallel, MaxRepeats: DefaultMaxRepeats, Timeout: DefaultRunTimeout,
		OnLimit: OnLimitPark}
}

// Or returns l with its zero fields taken from d.
func (l Limits) Or(d Limits) Limits {
	if l.MaxSteps == 0 {
		l.MaxSteps = d.MaxSteps
	}
	if l.MaxParallel == 0 {
		l.MaxParallel = d.MaxParallel
	}
	if l.MaxToolCalls == 0 {
		l.MaxToolCalls = d.MaxToolCalls
	}
	if l.MaxTokens == 0 {
		l.MaxTokens = d.MaxTokens
	}
	if l.MaxRepeats == 0 {
		l.MaxRepeats = d.MaxRepeats
	}
	if l.Timeout == 0 {
		l.Timeout = d.Timeout
	}
	if l.OnLimit == "" {
		l.OnLimit = d.OnLimit
	}
	return l
}

// Check calls bad for each field that no limits may have, by its name.
func (l Limits) Check(bad func(field, message string)) {
	for _, n := range l.numbers() {
		if n.value < 0 {
			bad(string(n.name), "must not be negative")
		}
	}
	switch l.OnLimit {
	case "", OnLimitPark, OnLimitFail:
	default:
		bad("on_limit", fmt.Sprintf("%q: want park or fail", Preview(string(l.OnLimit), 64)))
	}
}

// Beyond lists the limits of l that are looser than those allowed. A zero asks for nothing in l, and is no bound in allowed.
func (l Limits) Beyond(allowed Limits) (beyond []LimitName) {
	asked := l.numbers()
	for i, most := range allowed.numbers() {
		if most.value > 0 && asked[i].value > most.value {
			beyond = append(beyond, most.name)
		}
	}
	return beyond
}

// Number is a limit as limit_reached has it: a count, or milliseconds; 0 where l has none of that name.
func (l Limits) Number(name LimitName) int64 {
	for _, n := range l.numbers() {
		if n.name == name {
			return n.value
		}
	}
	return 0
}

// Show is a limit as text.
func (l Limits) Show(name LimitName) string {
	if name == LimitTime {
		return l.Timeout.String()
	}
	return strconv.FormatInt(l.Number(name), 10)
}

type limitNumber struct {
	name  LimitName
	value int64
}

// numbers are the limits that bound, in the order of the fields.
func (l Limits) numbers() []limitNumber {
	return []limitNumber{{LimitSteps, int64(l.MaxSteps)}, {LimitToolCalls, int64(l.MaxToolCalls)}, {LimitTokens, int64(l.MaxTokens)},
		{LimitRepeats, int64(l.MaxRepeats)}, {LimitParallel, int64(l.MaxParallel)}, {LimitTime, time.Duration(l.Timeout).Milliseconds()}}
}

// History bounds what a prompt tells of the conversation: what was said before the run, tool calls and their results too, and
// the turns of the run itself. What is oldest is left out first.
type History struct {
	// MaxTokens is the budget, in tokens as package activities estimates them: one for every four bytes, and eight for a
	// message. Instructions and tool descriptions come on top.
	MaxTokens int `json:"max_tokens"`
}

const (
	// DefaultHistoryTokens is the budget of an agent that names none.
	DefaultHistoryTokens = 100_000
	// MinHistoryTokens is the smallest budget that a configuration may name.
	MinHistoryTokens = 1000
)

// ModelRef names a configured model. Keys and headers stay with the worker; they are never part of a record.
type ModelRef struct {
	// Name is the key in the configuration, by which the worker finds the client.
	Name     string `json:"name"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
}

// ToolRef is a tool as it was when the run was accepted.
type ToolRef struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Effect      EffectClass     `json:"effect_class"`
	Timeout     Duration        `json:"timeout,omitempty"`
	// Approve is a predicate on the tool's calls: those that it holds for need an approval, unless a rule of the agent says
	// otherwise. "" is none.
	Approve string `json:"approve,omitempty"`
	// Lane is that of the tool's calls where no node names one.
	Lane Lane `json:"lane,omitempty"`
}

// Definition is an agent, resolved. It is part of the run's record: a later change of the configuration does not touch it.
type Definition struct {
	Agent        string    `json:"agent"`
	Mode         Mode      `json:"mode"`
	Model        ModelRef  `json:"model"`
	Instructions string    `json:"instructions,omitempty"`
	Tools        []ToolRef `json:"tools"`
	Limits       Limits    `json:"limits"`
	// History is nil in definitions from before there was a budget: their prompts hold users' messages and final answers, all
	// of them, and every turn of the run.
	History *History `json:"history,omitempty"`
	Policy  *Policy  `json:"policy,omitempty"`
	// RequirePlan: a run in mode plan has to bring its plan.
	RequirePlan bool `json:"require_plan,omitempty"`
	// ApprovalTimeout is how long an approval is waited for where nothing else says; 0 is DefaultApprovalTimeout.
	ApprovalTimeout Duration `json:"approval_timeout,omitempty"`
	// Lane is that of calls which may be repeated, where neither node nor tool names one.
	Lane Lane `json:"lane,omitempty"`
	// Workflows are those that plans may start, see MayStart.
	Workflows []string `json:"workflows,omitempty"`
}

// Tool finds a tool of the definition by name.
func (d *Definition) Tool(name string) (ToolRef, bool) {
	for _, t := range d.Tools {
		if t.Name == name {
			return t, true
		}
	}
	return ToolRef{}, false
}

// Attachment is something a caller sends along with the input.
type Attachment struct {
	Name      string `json:"name"`
	MediaType string `json:"media_type"`
	// Text or Data (base64) is the content.
	Text string `json:"text,omitempty"`
	Data string `json:"data,omitempty"`
}

// Run is the record of one agent execution, the part that does not come from events.
type Run struct {
	RunID          string          `json:"run_id"`
	ConversationID string          `json:"conversation_id"`
	RootRunID      string          `json:"root_run_id"`
	ParentRunID    string          `json:"parent_run_id,omitempty"`
	MessageID      string          `json:"message_id"`
	RequestID      string          `json:"request_id"`
	SessionID      string          `json:"session_id,omitempty"`
	Epoch          int             `json:"epoch"`
	Status         Status          `json:"status"`
	Input          string          `json:"input"`
	Attachments    []Attachment    `json:"attachments,omitempty"`
	Metadata       json.RawMessage `json:"metadata,omitempty"`
	Definition     Definition      `json:"definition"`
	// ForkedFrom is the run whose record this one began with, and the last number of it, nil for none.
	ForkedFrom *ForkedFrom `json:"forked_from,omitempty"`
	// Granted are the limits that somebody has given the run in the place of its definition's, nil while nobody has.
	Granted *Limits `json:"granted_limits,omitempty"`
	// Pause is set while the run is paused.
	Pause *Pause `json:"pause,omitempty"`
	// Removed says what of the run's record is no longer kept, nil while all of it is.
	Removed *Removed `json:"removed,omitempty"`
	// StartSequence is the number of run_started: what the conversation held before it is the history of this run.
	StartSequence int64 `json:"start_sequence"`
	// Steered is, in the answer to a message that was said to a run at work, the number of that message, else 0.
	Steered     int64      `json:"-"`
	FinalOutput *string    `json:"final_output,omitempty"`
	Error       *Error     `json:"error,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
	StartedAt   *time.Time `json:"started_at,omitempty"`
	FinishedAt  *time.Time `json:"finished_at,omitempty"`
}

// Limits are those in force.
func (r *Run) Limits() Limits {
	if r.Granted != nil {
		return *r.Granted
	}
	return r.Definition.Limits
}

// Pause says who has paused a run, why and since when.
type Pause struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// MessageRole says who a message of a conversation is from.
type MessageRole string

const (
	UserMessage      MessageRole = "user"
	AssistantMessage MessageRole = "assistant"
	ToolMessage      MessageRole = "tool"
)

// Message is one entry of a conversation's history.
type Message struct {
	MessageID string      `json:"message_id"`
	RunID     string      `json:"run_id"`
	Role      MessageRole `json:"role"`
	Content   string      `json:"content"`
	// Bytes is the size of the whole content where a reader asked for its beginning only, else 0.
	Bytes int `json:"-"`
	// Steers: a user's message was said to a run at work. Heard is, of what a model said in a loop, the number of the newest such
	// message that it had been shown. Both are for readers of a transcript.
	Steers bool  `json:"-"`
	Heard  int64 `json:"-"`
	// ToolCalls is set on an assistant message that asked for tools; ToolCallID and ToolName on the message that answers one.
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	ToolName   string          `json:"tool_name,omitempty"`
	CommandID  string          `json:"command_id,omitempty"`
	// Sequence is the number of the event that brought the message.
	Sequence  int64     `json:"sequence_number"`
	CreatedAt time.Time `json:"created_at"`
}
