package sse

import (
	"net/url"
	"slices"

	"runledger/agent"
)

// The names that the run profile gives to events. Other events keep the ledger's name.
const (
	planCreated   agent.EventType = "plan_created"
	stepStarted   agent.EventType = "step_started"
	stepCompleted agent.EventType = "step_completed"
	stepFailed    agent.EventType = "step_failed"
	toolInvoked   agent.EventType = "tool_invoked"
	toolCompleted agent.EventType = "tool_completed"
	chatCompleted agent.EventType = "chat_completed"
	chatDelta     agent.EventType = "chat_delta"
	progressDelta agent.EventType = "progress_delta"
)

// runProfile shows a run to the people who started it: a plan, steps, tool calls and chat. What it lets through is
// listed key by key, so that a field which the ledger gains stays inside until somebody decides otherwise.
func runProfile() Profile {
	return Profile{
		Name:        "run",
		Show:        showRun,
		OutputEvent: runOutput,
	}
}

func runOutput(channel string) string {
	if channel == agent.ProgressChannel {
		return string(progressDelta)
	}
	return string(chatDelta)
}

func showRun(e agent.Event) agent.Event {
	if e.Type == agent.PlanGenerated {
		e.Type, e.Data = planCreated, planSummary(e.Data)
		return e
	}
	var space [16]member
	data, ok := members(space[:0], e.Data)
	if !ok {
		data = nil // nothing is known about it, so nothing is public
	}
	name, keys := runView(e.Type, agent.CommandKind(text(find(data, "kind"))))
	public := only(data, keys...)
	linkValue(public, "input", e.RunID, e.CommandID)
	linkValue(public, "output", e.RunID, resultCommand(e, data))
	e.Type, e.Data = name, appendObject(make([]byte, 0, len(e.Data)+64), public)
	return e
}

// runView gives the name of an event in the run profile and the keys of its data that are public.
func runView(t agent.EventType, kind agent.CommandKind) (agent.EventType, []string) {
	switch t {
	case agent.RunStarted:
		return t, []string{"input", "agent", "mode", "model", "epoch", "request_id", "session_id", "limits", "metadata",
			"attachments", "offline_model"}
	case agent.PlanStarted:
		return t, []string{"source", "planner_model"}
	case agent.NodeStarted:
		return stepStarted, []string{"kind", "tool", "node_index"}
	case agent.NodeFinished:
		return stepCompleted, []string{"node_index", "result_command", "output"}
	case agent.NodeFailed:
		return stepFailed, []string{"node_index", "error", "handled"}
	case agent.NodeSkipped:
		return t, []string{"node_index", "reason", "unmet"}
	case agent.CommandEmitted:
		if kind == agent.ToolCommand {
			return toolInvoked, []string{"kind", "tool", "effect_class", "input", "deadline"}
		}
		if kind == agent.WorkflowCommand {
			return t, []string{"kind", "tool", "effect_class", "input", "deadline"}
		}
		if kind == agent.WaitCommand || kind == agent.RetrievalCommand {
			return t, []string{"kind", "effect_class", "input", "deadline"}
		}
		return t, []string{"kind", "model", "effect_class", "deadline"}
	case agent.CommandCommitted:
		return committedView(kind)
	case agent.TimerFired, agent.UUIDRecorded, agent.RandomRecorded:
		return t, []string{"kind", "value", "result_hash", "reused_from"}
	case agent.HTTPRecorded:
		return t, []string{"kind", "request", "response"} // made for the record without queries and secrets
	case agent.CommandFailedType:
		return t, []string{"kind", "tool", "error", "latency_ms", "reused_from"}
	case agent.AttemptDiscarded:
		return t, []string{"reason", "retry_after_ms"}
	case agent.CheckpointSaved:
		return t, []string{"checkpoint_id", "checkpoint_type", "step_number"}
	case agent.MessageAdded:
		return t, []string{"role", "content", "steers"}
	case agent.RunCompleted:
		return t, []string{"final_output", "summary"}
	case agent.RunFailed:
		return t, []string{"error"}
	case agent.CommandResolved:
		return t, []string{"outcome", "by", "note"}
	case agent.PolicyDecided:
		return t, []string{"decision", "reason", "kind", "tool", "effect_class"}
	case agent.ApprovalRequested:
		return t, []string{"approval_id", "tool", "effect_class", "arguments", "arguments_hash", "reason", "expires_at"}
	case agent.ApprovalResolved:
		return t, []string{"approval_id", "outcome", "by", "note", "arguments", "arguments_hash"}
	case agent.InputReceived:
		return t, []string{"name", "input_id", "by"}
	case agent.LimitReachedType:
		return t, []string{"limit", "used", "most", "parked", "tool"}
	case agent.LimitsChanged:
		return t, []string{"limits", "by", "reason"}
	case agent.RunReopened:
		return t, []string{"epoch", "status_before", "by", "reason", "from_step", "node_ids"}
	case agent.RunForked:
		return t, []string{"from_run_id", "from_conversation_id", "from_sequence_number", "from_checkpoint_id", "changes", "effects", "rerun", "by",
			"reused", "kept", "through_sequence_number"}
	case agent.CommandAbortType:
		return t, []string{"kind", "tool", "reason", "never_started"}
	case agent.CommandDoubtType, agent.CommandReopened, agent.RunCancelled,
		agent.PlanGenerated, agent.PlanRevised, agent.Progress, agent.RunPaused, agent.RunUnpaused:
	}
	return t, []string{"kind", "tool", "reason", "by", "message", "epoch"}
}

func committedView(kind agent.CommandKind) (agent.EventType, []string) {
	switch kind {
	case agent.ToolCommand:
		return toolCompleted, []string{"kind", "tool", "result_hash", "output", "latency_ms", "reused_from"}
	case agent.ModelCommand:
		return chatCompleted, []string{"kind", "result_hash", "output", "latency_ms", "turn", "finish_reason", "usage",
			"model", "tool_calls", "goes_on", "reused_from"}
	case agent.HTTPCommand:
		// http_recorded shows what is public of it.
		return agent.CommandCommitted, []string{"kind", "result_hash", "latency_ms", "reused_from"}
	case agent.WaitCommand:
		// What somebody has sent may be short enough to be guessed from its hash.
		return agent.CommandCommitted, []string{"kind", "output", "reused_from"}
	case agent.RetrievalCommand:
		return agent.CommandCommitted, []string{"kind", "result_hash", "output", "latency_ms", "reused_from"}
	case agent.WorkflowCommand:
		return agent.CommandCommitted, []string{"kind", "tool", "result_hash", "output", "latency_ms", "reused_from"}
	case agent.NowCommand, agent.UUIDCommand, agent.RandomCommand: // have an event of their own
	case agent.PlanCommand:
		// The planner's output is the plan with its prompts and arguments; plan_created shows what is public of it.
	}
	return agent.CommandCommitted, []string{"kind", "result_hash", "latency_ms", "finish_reason", "usage", "model", "reused_from"}
}

// resultCommand is the command whose result an event shows: a node's is that of the command it names.
func resultCommand(e agent.Event, data []member) string {
	if id := text(find(data, "result_command")); id != "" && e.Type == agent.NodeFinished {
		return id
	}
	return e.CommandID
}

// linkValue tells where the whole of an agent.Value is, when the event holds only its beginning.
func linkValue(data []member, name, runID, commandID string) {
	at := slices.IndexFunc(data, func(m member) bool { return string(m.name) == name })
	if at < 0 || commandID == "" {
		return
	}
	value, ok := members(nil, data[at].value)
	if !ok || find(value, "json") != nil {
		return
	}
	href := member{name: []byte("href"), value: appendQuoted(nil, CommandHref(runID, commandID))}
	data[at].value = appendObject(nil, append(value, href))
}

// CommandHref is the path under which a command and its whole result are found.
func CommandHref(runID, commandID string) string {
	return "/api/v1/agent/runs/" + url.PathEscape(runID) + "/commands/" + url.PathEscape(commandID)
}

// planSummary keeps of plan_generated what says how the run will go, without prompts, arguments and inputs.
func planSummary(data []byte) []byte {
	plan, ok := members(nil, data)
	if !ok {
		return nil
	}
	graph, _ := members(nil, find(plan, "task_graph"))
	listed := find(graph, "nodes")
	nodes, ok := elements(nil, listed)
	if !ok && listed != nil && string(listed) != "null" {
		return nil
	}
	summary := only(plan, "source", "plan_hash", "planner_model", "planner_prompt_hash")
	shown := []byte{'['}
	var of []member
	for i, n := range nodes {
		if of, ok = members(of[:0], n); !ok {
			return nil
		}
		if i > 0 {
			shown = append(shown, ',')
		}
		shown = appendObject(shown, only(of, "id", "kind", "tool", "depends_on", "expected_output"))
	}
	return appendObject(nil, append(summary, member{[]byte("nodes"), append(shown, ']')}))
}

// only gives the members with these names.
func only(of []member, names ...string) []member {
	kept := make([]member, 0, len(names)+1)
	for _, m := range of {
		if slices.Contains(names, string(m.name)) {
			kept = append(kept, m)
		}
	}
	return kept
}
