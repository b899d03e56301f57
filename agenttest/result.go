package agenttest

import (
	"context"
	"encoding/json"
	"testing"

	"runledger/agent"
	"runledger/replay"
)

// Result is how a run went.
type Result struct {
	RunID  string
	Status agent.Status
	// Output is the final output of a completed run, Error why a run failed.
	Output string
	Error  *agent.Error
	// Events are the run's log, Commands its commands in the order in which they began, with their results.
	Events   []agent.Event
	Commands []agent.Command
	// ToolCalls are the executions of tools, in the order in which they began.
	ToolCalls []ToolCall

	t      testing.TB
	ledger *memory
}

// Calls are the executions of a tool.
func (r *Result) Calls(toolName string) []ToolCall {
	var calls []ToolCall
	for _, c := range r.ToolCalls {
		if c.Tool == toolName {
			calls = append(calls, c)
		}
	}
	return calls
}

// Command finds a command by its id.
func (r *Result) Command(id string) (agent.Command, bool) {
	for _, c := range r.Commands {
		if c.CommandID == id {
			return c, true
		}
	}
	return agent.Command{}, false
}

// RequireStatus fails the test unless the run ended with a status.
func (r *Result) RequireStatus(want agent.Status) {
	r.t.Helper()
	if r.Status != want {
		r.t.Fatalf("agenttest: the run is %s, want %s; error: %v", r.Status, want, r.Error)
	}
}

// RequireOutput fails the test unless the run completed with an output.
func (r *Result) RequireOutput(want string) {
	r.t.Helper()
	r.RequireStatus(agent.Completed)
	if r.Output != want {
		r.t.Fatalf("agenttest: the run answered %q, want %q", r.Output, want)
	}
}

// RequireCalls fails the test unless a tool was executed that often.
func (r *Result) RequireCalls(toolName string, want int) {
	r.t.Helper()
	if got := len(r.Calls(toolName)); got != want {
		r.t.Fatalf("agenttest: tool %s was called %d times, want %d", toolName, got, want)
	}
}

// RequireCalledOnce fails the test unless a tool was executed once, with these arguments; they are compared as JSON.
func (r *Result) RequireCalledOnce(toolName string, arguments any) {
	r.t.Helper()
	r.RequireCalls(toolName, 1)
	want, err := json.Marshal(arguments)
	if err != nil {
		r.t.Fatalf("agenttest: arguments: %v", err)
	}
	if got := r.Calls(toolName)[0].Arguments; !equalJSON(got, want) {
		r.t.Fatalf("agenttest: tool %s was called with %s, want %s", toolName, got, want)
	}
}

// RequireCommitted fails the test unless a command's result is on record, once, after that many executions of its effect.
func (r *Result) RequireCommitted(commandID string, dispatches int) {
	r.t.Helper()
	c, ok := r.Command(commandID)
	if !ok || c.State != agent.Committed || c.Dispatches != dispatches {
		r.t.Fatalf("agenttest: command %s: %s after %d dispatches, want it committed after %d", commandID, c.State, c.Dispatches, dispatches)
	}
	commits := 0
	for _, e := range r.Events {
		if e.Type == agent.CommandCommitted && e.CommandID == commandID {
			commits++
		}
	}
	if commits != 1 {
		r.t.Fatalf("agenttest: command %s was committed %d times", commandID, commits)
	}
}

// RequireReplays fails the test unless the run's record alone gives the run again; see [replay.Ledger].
func (r *Result) RequireReplays() {
	r.t.Helper()
	audit, err := replay.Ledger(context.Background(), r.ledger, r.RunID)
	switch {
	case err != nil:
		r.t.Fatalf("agenttest: %v", err)
	case !audit.OK():
		r.t.Fatalf("agenttest: audit of run %s: %s", r.RunID, audit)
	}
}
