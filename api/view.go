package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"runledger/agent"
	"runledger/sse"
)

// runHead is a run as lists show it.
type runHead struct {
	RunID          string            `json:"run_id"`
	ConversationID string            `json:"conversation_id"`
	RootRunID      string            `json:"root_run_id"`
	ParentRunID    string            `json:"parent_run_id,omitempty"`
	ForkedFrom     *agent.ForkedFrom `json:"forked_from,omitempty"`
	RequestID      string            `json:"request_id"`
	SessionID      string            `json:"session_id,omitempty"`
	MessageID      string            `json:"message_id"`
	Status         agent.Status      `json:"status"`
	Agent          string            `json:"agent"`
	Mode           agent.Mode        `json:"mode"`
	Model          agent.ModelRef    `json:"model"`
	Epoch          int               `json:"epoch"`
	Limits         agent.Limits      `json:"limits"`
	// Pause says who has paused the run, while it is paused.
	Pause         *agent.Pause       `json:"pause,omitempty"`
	Input         string             `json:"input"`
	Attachments   []attachmentObject `json:"attachments,omitempty"`
	Metadata      json.RawMessage    `json:"metadata,omitempty"`
	FinalOutput   *string            `json:"final_output"`
	Error         *agent.Error       `json:"error"`
	StartSequence int64              `json:"start_sequence"`
	// Removed says what of the run's record is no longer kept.
	Removed    *agent.Removed `json:"removed,omitempty"`
	CreatedAt  time.Time      `json:"created_at"`
	StartedAt  *time.Time     `json:"started_at"`
	FinishedAt *time.Time     `json:"finished_at"`
}

// attachmentObject names an attachment without its content.
type attachmentObject struct {
	Name      string `json:"name"`
	MediaType string `json:"media_type"`
}

// runObject is a run with what its events say of it.
type runObject struct {
	runHead
	Summary           string          `json:"summary"`
	Plan              *agent.Plan     `json:"plan"`
	PlanHash          string          `json:"plan_hash,omitempty"`
	PlannerModel      *agent.ModelRef `json:"planner_model,omitempty"`
	PlannerPromptHash string          `json:"planner_prompt_hash,omitempty"`
	Steps             []stepObject    `json:"steps"`
	ToolCalls         []toolCall      `json:"tool_calls"`
	InDoubt           []doubt         `json:"in_doubt"`
	LimitsReached     []metLimit      `json:"limits_reached"`
	// Approvals are those that the run waits for.
	Approvals    []approvalObject `json:"approvals"`
	Metrics      metrics          `json:"metrics"`
	LastSequence int64            `json:"last_sequence"`
	EventsURL    string           `json:"events_url"`

	// WaitsFor are the wait nodes that wait, while the run has not ended.
	WaitsFor []agent.OpenWait `json:"waits_for,omitempty"`
	// QueuedBehind are the runs that this one waits for, those at work before those that wait too.
	QueuedBehind []agent.RunAhead `json:"queued_behind,omitempty"`
}

// stepObject is a node of the plan and what became of it: pending, running, completed, failed, skipped, or aborted when
// the run ended before it did.
type stepObject struct {
	NodeID        string         `json:"node_id"`
	Kind          agent.NodeKind `json:"kind"`
	Tool          string         `json:"tool,omitempty"`
	Status        string         `json:"status"`
	StartedAt     *time.Time     `json:"started_at"`
	FinishedAt    *time.Time     `json:"finished_at"`
	OutputPreview string         `json:"output_preview,omitempty"`
	OutputBytes   int            `json:"output_bytes,omitempty"`
	OutputURL     string         `json:"output_url,omitempty"`
	Error         *agent.Error   `json:"error,omitempty"`
	Reason        string         `json:"reason,omitempty"`
}

// toolCall is one call of a tool: running, completed, failed, aborted or in_doubt.
type toolCall struct {
	CommandID     string            `json:"command_id"`
	NodeID        string            `json:"node_id"`
	Tool          string            `json:"tool"`
	Effect        agent.EffectClass `json:"effect_class"`
	Status        string            `json:"status"`
	Attempt       int               `json:"attempt"`
	Input         json.RawMessage   `json:"input,omitempty"`
	InputPreview  string            `json:"input_preview,omitempty"`
	ResultPreview string            `json:"result_preview,omitempty"`
	ResultBytes   int               `json:"result_bytes,omitempty"`
	LatencyMS     int64             `json:"latency_ms"`
	Error         *agent.Error      `json:"error,omitempty"`
	// ReusedFrom is where the outcome comes from, when the run has not made the call.
	ReusedFrom *agent.ForkedFrom `json:"reused_from,omitempty"`
	URL        string            `json:"url"`
}

// metrics are sums over the commands that a run has executed.
type metrics struct {
	Tokens tokens `json:"tokens"`
	// LatencyMS is the time from acceptance to the end, null while there is none.
	LatencyMS  *int64 `json:"latency_ms"`
	ModelCalls int    `json:"model_calls"`
	ToolCalls  int    `json:"tool_calls"`
	// Retries counts the dispatches of commands, and the tries of nodes, that came after a first one.
	Retries int `json:"retries"`
	// ErrorCounts counts failed commands by the code of their error.
	ErrorCounts map[agent.Code]int `json:"error_counts"`
	// Reused counts the outcomes that a fork has from another run. They are in none of the other sums.
	Reused int `json:"reused,omitempty"`
}

type tokens struct {
	Input  int `json:"input"`
	Output int `json:"output"`
	Total  int `json:"total"`
	// Cached are the input tokens that came from a vendor's cache, Reasoning the output tokens of thinking; both are in the
	// sums above.
	Cached    int `json:"cached"`
	Reasoning int `json:"reasoning"`
}

func headOf(r agent.Run) runHead {
	h := runHead{
		RunID: r.RunID, ConversationID: r.ConversationID, RootRunID: r.RootRunID, ParentRunID: r.ParentRunID, ForkedFrom: r.ForkedFrom,
		RequestID: r.RequestID, SessionID: r.SessionID, MessageID: r.MessageID, Status: r.Status, Agent: r.Definition.Agent,
		Mode: r.Definition.Mode, Model: r.Definition.Model, Epoch: r.Epoch, Limits: r.Limits(), Pause: r.Pause, Removed: r.Removed, Input: r.Input,
		Metadata: r.Metadata, FinalOutput: r.FinalOutput, Error: r.Error, StartSequence: r.StartSequence,
		CreatedAt: r.CreatedAt.UTC(), StartedAt: utc(r.StartedAt), FinishedAt: utc(r.FinishedAt),
	}
	for _, at := range r.Attachments {
		h.Attachments = append(h.Attachments, attachmentObject{at.Name, at.MediaType})
	}
	return h
}

func utc(at *time.Time) *time.Time {
	if at == nil {
		return nil
	}
	u := at.UTC()
	return &u
}

// runView reads a run's events into a runObject.
type runView struct {
	object runObject
	steps  map[string]int
	calls  map[string]int
}

func newRunView(run agent.Run, plan *agent.Plan) *runView {
	v := &runView{steps: map[string]int{}, calls: map[string]int{}}
	v.object = runObject{runHead: headOf(run), Plan: plan, Steps: []stepObject{}, ToolCalls: []toolCall{}, InDoubt: []doubt{}, LimitsReached: []metLimit{},
		EventsURL: runPath(run.RunID) + "/events", LastSequence: run.StartSequence - 1}
	v.object.Metrics.ErrorCounts = map[agent.Code]int{}
	if run.FinishedAt != nil {
		ms := run.FinishedAt.Sub(run.CreatedAt).Milliseconds()
		v.object.Metrics.LatencyMS = &ms
	}
	if plan != nil && !withoutEvents(run) { // what became of its nodes is not known then
		for _, n := range plan.Nodes {
			v.steps[n.ID] = len(v.object.Steps)
			v.object.Steps = append(v.object.Steps, stepObject{NodeID: n.ID, Kind: n.Kind, Tool: n.Tool, Status: "pending"})
		}
	}
	return v
}

// withoutEvents tells whether a run's events are no longer kept.
func withoutEvents(run agent.Run) bool { return run.Removed != nil && run.Removed.EventsAt != nil }

// withoutPayloads tells whether what its commands were called with and gave is no longer kept.
func withoutPayloads(run agent.Run) bool { return run.Removed != nil && run.Removed.PayloadsAt != nil }

// add takes in the next event. Child runs have steps and calls of their own and are left out.
func (v *runView) add(e agent.Event) {
	v.object.LastSequence = max(v.object.LastSequence, e.Sequence)
	if e.RunID != v.object.RunID {
		return
	}
	switch e.Type {
	case agent.NodeStarted, agent.NodeFinished, agent.NodeFailed, agent.NodeSkipped:
		if at, ok := v.steps[e.NodeID]; ok {
			v.object.Steps[at].add(e)
		}
	case agent.CommandEmitted:
		v.emitted(e)
	case agent.CommandCommitted:
		v.committed(e)
	case agent.CommandFailedType:
		d := read[agent.CommandFailedData](e)
		if !v.reused(e) && d.Error != nil {
			v.object.Metrics.ErrorCounts[d.Error.Code]++
		}
		v.decided(e, "failed", d.Error, d.LatencyMS)
	case agent.CommandAbortType:
		v.decided(e, "aborted", nil, 0)
	case agent.CommandDoubtType:
		v.decided(e, "in_doubt", nil, 0)
		v.object.InDoubt = append(v.object.InDoubt, doubtOf(e))
	case agent.CommandResolved:
		v.object.InDoubt = slices.DeleteFunc(v.object.InDoubt, func(d doubt) bool { return d.CommandID == e.CommandID })
		if read[agent.CommandResolvedData](e).Outcome == agent.OutcomeRetry {
			v.decided(e, "running", nil, 0)
		}
	case agent.RunReopened:
		v.reopened(read[agent.RunReopenedData](e))
		v.object.meet(e)
	case agent.CommandReopened:
		v.object.Metrics.Retries++
		v.decided(e, "running", nil, 0)
	case agent.AttemptDiscarded:
		v.object.Metrics.Retries++
	case agent.PlanGenerated:
		d := read[agent.PlanGeneratedData](e)
		v.object.PlanHash, v.object.PlannerModel, v.object.PlannerPromptHash = d.Hash, d.Model, d.PromptHash
	case agent.LimitReachedType, agent.LimitsChanged:
		v.object.meet(e)
	case agent.RunCompleted:
		v.object.Summary = read[agent.RunCompletedData](e).Summary
	default:
	}
}

// reopened opens the steps that a resume tries again. They are not started once more.
func (v *runView) reopened(d agent.RunReopenedData) {
	for _, id := range d.NodeIDs {
		if at, ok := v.steps[id]; ok {
			s := &v.object.Steps[at]
			s.Status, s.FinishedAt, s.Error = "running", nil, nil
		}
	}
}

// mayWait reports whether the run has wait nodes and has not ended.
func (v *runView) mayWait() bool {
	return !v.object.Status.Terminal() && slices.ContainsFunc(v.object.Steps, func(s stepObject) bool { return s.Kind == agent.WaitNode })
}

// read reads an event's data. What cannot be read counts as not said.
func read[T any](e agent.Event) T {
	var data T
	if json.Unmarshal(e.Data, &data) != nil {
		return *new(T)
	}
	return data
}

func (s *stepObject) add(e agent.Event) {
	at := e.CreatedAt.UTC()
	switch e.Type {
	case agent.NodeStarted: // again after a resume
		*s = stepObject{NodeID: s.NodeID, Kind: s.Kind, Tool: s.Tool, Status: "running", StartedAt: &at}
	case agent.NodeFinished:
		d := read[agent.NodeFinishedData](e)
		s.Status, s.FinishedAt, s.Error = "completed", &at, nil
		s.OutputPreview, s.OutputBytes = previewOf(d.Output), d.Output.Bytes
		s.OutputURL = sse.CommandHref(e.RunID, d.ResultCommand)
	case agent.NodeFailed:
		s.Status, s.FinishedAt, s.Error = "failed", &at, read[agent.NodeFailedData](e).Error
	case agent.NodeSkipped:
		s.Status, s.FinishedAt, s.Reason = "skipped", &at, read[agent.NodeSkippedData](e).Reason
	default:
	}
}

func (v *runView) emitted(e agent.Event) {
	if strings.Contains(e.CommandID, "~") {
		v.object.Metrics.Retries++
	}
	d := read[agent.CommandEmittedData](e)
	switch d.Kind {
	case agent.ToolCommand:
	case agent.PlanCommand, agent.ModelCommand:
		v.object.Metrics.ModelCalls++
		return
	default: // an effect within a tool call
		return
	}
	v.object.Metrics.ToolCalls++
	call := toolCall{CommandID: e.CommandID, NodeID: e.NodeID, Tool: d.Tool, Effect: d.Effect, Status: "running", Attempt: e.Attempt,
		URL: sse.CommandHref(e.RunID, e.CommandID)}
	if d.Input != nil {
		call.Input, call.InputPreview = d.Input.JSON, d.Input.Preview
	}
	v.calls[e.CommandID] = len(v.object.ToolCalls)
	v.object.ToolCalls = append(v.object.ToolCalls, call)
}

func (v *runView) committed(e agent.Event) {
	d := read[agent.CommandCommittedData](e)
	var usage struct {
		Input     int `json:"input_tokens"`
		Output    int `json:"output_tokens"`
		Cached    int `json:"cached_tokens"`
		Reasoning int `json:"reasoning_tokens"`
	}
	if !v.reused(e) && json.Unmarshal(d.Usage, &usage) == nil {
		t := &v.object.Metrics.Tokens
		t.Input, t.Output, t.Total = t.Input+usage.Input, t.Output+usage.Output, t.Total+usage.Input+usage.Output
		t.Cached, t.Reasoning = t.Cached+usage.Cached, t.Reasoning+usage.Reasoning
	}
	v.decided(e, "completed", nil, d.LatencyMS)
	if at, ok := v.calls[e.CommandID]; ok {
		v.object.ToolCalls[at].ResultPreview, v.object.ToolCalls[at].ResultBytes = previewOf(d.Output), d.Output.Bytes
	}
}

// reused reports whether the outcome that an event tells is another run's, and takes the command out of the sums then.
func (v *runView) reused(e agent.Event) bool {
	d := read[struct {
		Kind agent.CommandKind `json:"kind"`
		From *agent.ForkedFrom `json:"reused_from"`
	}](e)
	if d.From == nil {
		return false
	}
	m := &v.object.Metrics
	m.Reused++
	switch d.Kind {
	case agent.ToolCommand:
		m.ToolCalls--
	case agent.PlanCommand, agent.ModelCommand:
		m.ModelCalls--
	default:
	}
	if at, ok := v.calls[e.CommandID]; ok {
		v.object.ToolCalls[at].ReusedFrom = d.From
	} else if d.Kind == agent.ToolCommand {
		m.ToolCalls++ // it was refused, and never counted
	}
	return true
}

func (v *runView) decided(e agent.Event, status string, failure *agent.Error, latencyMS int64) {
	if at, ok := v.calls[e.CommandID]; ok {
		c := &v.object.ToolCalls[at]
		c.Status, c.Error, c.LatencyMS, c.Attempt = status, failure, latencyMS, max(c.Attempt, e.Attempt)
	}
}

// finish gives the object. What was at work when the run ended was stopped by that end.
func (v *runView) finish() runObject {
	if v.object.Status.Terminal() {
		for i := range v.object.Steps {
			if v.object.Steps[i].Status == "running" {
				v.object.Steps[i].Status = "aborted"
			}
		}
	}
	return v.object
}

const previewBytes = 512

// previewOf is the beginning of a value as a person reads it: a text without its quotes, anything else without spaces.
func previewOf(value agent.Value) string {
	if value.JSON == nil {
		return value.Preview
	}
	var text string
	if json.Unmarshal(value.JSON, &text) == nil {
		return agent.Preview(text, previewBytes)
	}
	var compact bytes.Buffer // the ledger writes spaces of its own
	if json.Compact(&compact, value.JSON) != nil {
		return ""
	}
	return agent.Preview(compact.String(), previewBytes)
}
