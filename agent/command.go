package agent

import (
	"strconv"
	"strings"
)

// Reserved node ids: the planner, the appended final answer, and the one node of a react run.
const (
	PlanNodeID   = "plan"
	AnswerNodeID = "answer"
	MainNodeID   = "main"
)

// CommandKind says what kind of side effect a command is.
type CommandKind string

const (
	PlanCommand  CommandKind = "plan"
	ModelCommand CommandKind = "llm"
	ToolCommand  CommandKind = "tool"
	// The recorded effects of workflow and tool code.
	NowCommand    CommandKind = "now"
	UUIDCommand   CommandKind = "uuid"
	RandomCommand CommandKind = "random"
	HTTPCommand   CommandKind = "http"
	// WaitCommand waits for a time, or for somebody.
	WaitCommand CommandKind = "wait"
	// WorkflowCommand executes a workflow.
	WorkflowCommand CommandKind = "workflow"
	// RetrievalCommand searches documents.
	RetrievalCommand CommandKind = "retrieval"
)

// TurnCommandID names the model call of a loop's turn: node#turn, turns counting from 1.
func TurnCommandID(nodeID string, turn int) string {
	return nodeID + "#" + strconv.Itoa(turn)
}

// TurnToolCommandID names a tool call of a turn: node#turn.index, indexes counting from 0.
func TurnToolCommandID(nodeID string, turn, index int) string {
	return TurnCommandID(nodeID, turn) + "." + strconv.Itoa(index)
}

// RetryCommandID names the command of a node's try: the node id at first, node~2 at the second try.
func RetryCommandID(nodeID string, try int) string {
	if try <= 1 {
		return nodeID
	}
	return nodeID + "~" + strconv.Itoa(try)
}

// EffectCommandID names a recorded effect: owner/effect. The owner is the command of the tool that asks for it, or the node
// whose workflow code does.
func EffectCommandID(owner, effectID string) string { return owner + "/" + effectID }

// ValueEffectID names the nth recorded value of a kind that an owner asks for, n counting from 1: now-1, uuid-1, random-1.
func ValueEffectID(kind CommandKind, n int) string { return string(kind) + "-" + strconv.Itoa(n) }

// CommandNodeID gives the node a command belongs to.
func CommandNodeID(commandID string) string {
	if i := strings.IndexAny(commandID, "#~/"); i >= 0 {
		return commandID[:i]
	}
	return commandID
}

// TurnTool is the inverse of TurnToolCommandID: the model command whose answer asked for a tool call, and which of its calls
// it was. Ok is false for every other command.
func TurnTool(commandID string) (modelCommandID string, index int, ok bool) {
	turn := strings.IndexByte(commandID, '#')
	dot := strings.LastIndexByte(commandID, '.')
	if turn < 0 || dot < turn {
		return "", 0, false
	}
	index, err := strconv.Atoi(commandID[dot+1:])
	if err != nil || index < 0 {
		return "", 0, false
	}
	return commandID[:dot], index, true
}

// OwnerCommandID gives the command whose effect asked for a recorded effect, owner/effect. Ok is false for every other
// command.
func OwnerCommandID(commandID string) (owner string, ok bool) {
	owner, _, ok = strings.Cut(commandID, "/")
	return owner, ok
}

// IdempotencyKey is what an effect sends along so that the other side can tell a repetition. It never contains an attempt.
func IdempotencyKey(runID, commandID string) string { return runID + "/" + commandID }

// CommandState is the state of a command's row in the ledger.
type CommandState string

const (
	// Dispatched: an effect may be at work under the row's owner until the lease is over.
	Dispatched CommandState = "dispatched"
	// Released: the last dispatch is known not to count; the command may be dispatched again.
	Released CommandState = "released"
	// Fenced: a schedule was given up before it began; only a newer schedule may dispatch.
	Fenced CommandState = "fenced"
	// CommandWaiting: it waits for an approval, a signal or a time. Nothing is at work.
	CommandWaiting CommandState = "waiting"
	// Committed: the result is on record. Final.
	Committed CommandState = "committed"
	// CommandFailed: a definite failure is on record. Final within its epoch.
	CommandFailed CommandState = "failed"
	// CommandAborted: the run was cancelled and the effect is known not to count. Final within its epoch.
	CommandAborted CommandState = "aborted"
	// CommandInDoubt: the effect may have taken place; a person, or a late result, decides.
	CommandInDoubt CommandState = "in_doubt"
)

// Dispatch names one try of Temporal to execute a command: which execution of the run, which scheduling of the
// command's activity, and which attempt of that activity.
type Dispatch struct {
	Epoch    int   `json:"epoch"`
	Schedule int   `json:"schedule_no"`
	Attempt  int32 `json:"attempt"`
	// Token is drawn anew whenever a worker takes a command to the gate. The numbers come again when an execution is reset in
	// Temporal; the same token means the same try, whose reply was lost.
	Token string `json:"token,omitempty"`
}

// Before reports whether d was scheduled before o.
func (d Dispatch) Before(o Dispatch) bool {
	if d.Epoch != o.Epoch {
		return d.Epoch < o.Epoch
	}
	if d.Schedule != o.Schedule {
		return d.Schedule < o.Schedule
	}
	return d.Attempt < o.Attempt
}
