package sse

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

var update = flag.Bool("update", false, "write the expected files anew")

func data(t testing.TB, v any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return raw
}

// sampleEvents has every event type of the ledger, with every field of its payload set, each kind of command included.
func sampleEvents(t testing.TB) []agent.Event {
	t.Helper()
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	model := agent.ModelRef{Name: "default", Provider: "openai", Model: "gpt-5-mini"}
	failure := &agent.Error{Code: agent.CodeToolFailed, Message: "no", NodeID: "fetch", CommandID: "fetch"}
	small := agent.Value{Bytes: 2, JSON: json.RawMessage(`42`)}
	large := agent.Value{Bytes: 90000, Preview: "once upon a time…"}
	plan := &agent.Plan{Constraints: []string{"SECRET"}, Nodes: []agent.Node{
		{ID: "fetch", Kind: agent.ToolNode, Tool: "http_request", Args: json.RawMessage(`{"url":"SECRET"}`), ExpectedOutput: "a page"},
		{ID: "say", Kind: agent.LLMNode, Prompt: "SECRET", DependsOn: []string{"fetch"}, Timeout: agent.Duration(time.Minute),
			Inputs: map[string]json.RawMessage{"SECRET": json.RawMessage(`"SECRET"`)}},
	}}
	emitted := func(kind agent.CommandKind, tool string, input *agent.Value) json.RawMessage {
		return data(t, agent.CommandEmittedData{Kind: kind, Tool: tool, Model: &model, Effect: agent.Idempotent, InputHash: "SECRET",
			Input: input, IdempotencyKey: "SECRET", Deadline: at.Add(time.Minute)})
	}
	committed := func(kind agent.CommandKind, tool string, output agent.Value) json.RawMessage {
		return data(t, agent.CommandCommittedData{Kind: kind, Tool: tool, Hash: "sha256:ab", Output: output, LatencyMS: 12, Turn: 1,
			Finish: "stop", Usage: json.RawMessage(`{"input_tokens":3,"output_tokens":4}`), Model: "gpt-5-mini-2026", Tools: []string{"clock"}})
	}
	type sample struct {
		kind       agent.EventType
		node, cmd  string
		attempt    int
		structured json.RawMessage
	}
	samples := []sample{
		{agent.RunStarted, "", "", 0, data(t, agent.RunStartedData{Input: "what is 6*7?", Agent: "default", Mode: agent.ModePlan, Model: model, Epoch: 1,
			RequestID: "q", SessionID: "s", Limits: agent.Limits{MaxSteps: 50}, Metadata: json.RawMessage(`{"a":1}`), Attachments: []string{"a.txt"}, Offline: true})},
		{agent.MessageAdded, "", "", 0, data(t, agent.MessageAddedData{Role: agent.UserMessage, Content: "what is 6*7?"})},
		{agent.PlanStarted, "plan", "", 0, data(t, agent.PlanStartedData{Source: "planner", Model: &model})},
		{agent.CommandEmitted, "plan", "plan", 1, emitted(agent.PlanCommand, "", nil)},
		{agent.CommandCommitted, "plan", "plan", 1, committed(agent.PlanCommand, "", agent.Value{Bytes: 9, JSON: json.RawMessage(`"SECRET"`)})},
		{agent.PlanGenerated, "plan", "", 0, data(t, agent.PlanGeneratedData{Source: "planner", TaskGraph: plan, Hash: "sha256:cd", Model: &model, PromptHash: "sha256:ef"})},
		{agent.NodeStarted, "fetch", "", 0, data(t, agent.NodeStartedData{Kind: agent.ToolNode, Tool: "http_request", Index: 0})},
		{agent.CommandEmitted, "fetch", "fetch", 1, emitted(agent.ToolCommand, "http_request", &small)},
		{agent.CommandEmitted, "main", "main#1.0", 1, emitted(agent.ToolCommand, "everything/echo", &large)},
		{agent.CommandCommitted, "fetch", "fetch", 1, committed(agent.ToolCommand, "http_request", small)},
		{agent.CommandCommitted, "main", "main#1.0", 2, committed(agent.ToolCommand, "everything/echo", large)},
		{agent.NodeFinished, "fetch", "fetch~2", 1, data(t, agent.NodeFinishedData{Index: 0, ResultCommand: "fetch~2", Output: large})},
		{agent.NodeFinished, "fetch", "", 0, data(t, agent.NodeFinishedData{Index: 0, ResultCommand: "fetch", Output: small})},
		{agent.NodeFailed, "fetch", "", 0, data(t, agent.NodeFailedData{Index: 0, Error: failure, Handled: true})},
		{agent.NodeSkipped, "say", "", 0, data(t, agent.NodeSkippedData{Index: 1, Reason: "fetch failed"})},
		{agent.CommandEmitted, "say", "say", 1, emitted(agent.ModelCommand, "", nil)},
		{agent.CommandCommitted, "say", "say", 1, committed(agent.ModelCommand, "", small)},
		{agent.CommandFailedType, "fetch", "fetch", 1, data(t, agent.CommandFailedData{Kind: agent.ToolCommand, Tool: "http_request", Error: failure, LatencyMS: 3})},
		{agent.CommandAbortType, "fetch", "fetch", 1, data(t, agent.CommandAbortedData{Kind: agent.ToolCommand, Tool: "http_request", Reason: "cancelled"})},
		{agent.CommandDoubtType, "fetch", "fetch", 1, data(t, agent.CommandInDoubtData{Kind: agent.ToolCommand, Tool: "http_request", Reason: "lost"})},
		{agent.AttemptDiscarded, "fetch", "fetch", 1, data(t, agent.AttemptDiscardedData{Reason: "shutdown", RetryAfterMS: 100})},
		{agent.CheckpointSaved, "fetch", "", 0, data(t, agent.CheckpointSavedData{CheckpointID: "k", Type: agent.NodeBoundary, Step: 1})},
		{agent.TimerFired, "fetch", "fetch/now-1", 1, data(t, agent.ValueRecordedData{Kind: agent.NowCommand, Value: json.RawMessage(`"2026-11-20T12:00:00.5Z"`), Hash: "ab"})},
		{agent.UUIDRecorded, "fetch", "fetch/uuid-1", 1, data(t, agent.ValueRecordedData{Kind: agent.UUIDCommand, Value: json.RawMessage(`"b8"`), Hash: "ab"})},
		{agent.RandomRecorded, "fetch", "fetch/random-1", 1, data(t, agent.ValueRecordedData{Kind: agent.RandomCommand, Value: json.RawMessage(`0.25`), Hash: "ab"})},
		{agent.CommandEmitted, "fetch", "fetch/pay", 1, emitted(agent.HTTPCommand, "", &agent.Value{Bytes: 8, JSON: json.RawMessage(`"SECRET"`)})},
		{agent.HTTPRecorded, "fetch", "fetch/pay", 1, data(t, agent.HTTPRecordedData{Kind: agent.HTTPCommand,
			Request: agent.HTTPRequest{Method: "POST", URL: "https://example.org/pay?key=SECRET", JSON: json.RawMessage(`{"amount":3}`),
				Headers: map[string]string{"Authorization": "Bearer SECRET", "X-Api-Key": "SECRET", "Cookie": "SECRET", "Accept": "text/plain"}}.Exchange(),
			Response: agent.HTTPResponse{Status: 200, Headers: map[string]string{"content-type": "text/plain"}, Text: new("paid"), Bytes: 4}.Exchange()})},
		{agent.CommandCommitted, "fetch", "fetch/pay", 1, committed(agent.HTTPCommand, "", agent.Value{Bytes: 8, JSON: json.RawMessage(`"SECRET"`)})},
		{agent.RunCompleted, "", "", 0, data(t, agent.RunCompletedData{FinalOutput: "42", Summary: "2 steps"})},
		{agent.RunFailed, "", "", 0, data(t, agent.RunFailedData{Error: failure})},
		{agent.RunCancelled, "", "", 0, data(t, agent.RunCancelledData{Reason: "enough", By: "local"})},
		{agent.RunForked, "", "", 0, data(t, agent.RunForkedData{RunID: "s", ConversationID: "t", Sequence: 12, CheckpointID: "k", Changes: []string{"input"},
			Effects: map[agent.EffectClass]agent.ForkEffect{agent.Deterministic: agent.ForkRerun}, Rerun: []string{"a"}, By: "local", Reused: 3, Kept: 1, Through: 20})},
		{agent.CommandCommitted, "fetch", "fetch", 1, data(t, agent.CommandCommittedData{Kind: agent.ToolCommand, Tool: "http_request", Hash: "sha256:ab", Output: small,
			ReusedFrom: &agent.ForkedFrom{RunID: "s", Sequence: 9}})},
		{agent.RunReopened, "", "", 0, data(t, agent.RunReopenedData{Epoch: 2, Status: agent.FailedStatus, By: "local", Reason: "mended", Step: 1, Nodes: []int{1}, NodeIDs: []string{"say"}})},
		{agent.CommandReopened, "say", "say", 1, data(t, agent.CommandReopenedData{Reason: "the run was resumed"})},
		{agent.CommandEmitted, "find", "find", 1, emitted(agent.RetrievalCommand, "", &small)},
		{agent.CommandCommitted, "find", "find", 1, committed(agent.RetrievalCommand, "", small)},
	}
	have := map[agent.EventType]bool{}
	for _, s := range samples {
		have[s.kind] = true
	}
	for _, kind := range agent.EventTypes() {
		if !have[kind] { // its payload comes with a later feature: only what every event may say is public
			samples = append(samples, sample{kind, "fetch", "", 0, json.RawMessage(`{"reason":"r","by":"b","message":"m","epoch":2,"outcome":"retry","note":"n","decision":"forbid","value":"SECRET"}`)})
		}
	}
	events := make([]agent.Event, len(samples))
	for i, s := range samples {
		raw := s.structured
		raw = append(raw[:len(raw)-1:len(raw)-1], []byte(`,"added_later":"SECRET"}`)...)
		events[i] = agent.Event{Sequence: int64(i + 1), Type: s.kind, ConversationID: "c", RunID: "r", RootRunID: "r", MessageID: "m",
			NodeID: s.node, CommandID: s.cmd, Attempt: s.attempt, CreatedAt: at, Data: raw, Epoch: 1}
	}
	return events
}

func TestRunProfileGolden(t *testing.T) {
	t.Parallel()
	requireGolden(t, runProfile())
}

func TestReactProfileGolden(t *testing.T) {
	t.Parallel()
	requireGolden(t, reactProfile())
}

// requireGolden holds that a profile shows the samples as its file in testdata has them.
func requireGolden(t *testing.T, p Profile) {
	t.Helper()
	var got []byte
	for _, e := range sampleEvents(t) {
		got = appendEvent(got, p, e)
	}
	path := filepath.Join("testdata", "profile_"+p.Name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	require.NotContains(t, string(got), "SECRET")
}

func TestEveryEventIsOneFrameWithItsNumber(t *testing.T) {
	t.Parallel()
	events := sampleEvents(t)
	for _, p := range Profiles() {
		var raw []byte
		for _, e := range events {
			raw = appendEvent(raw, p, e)
		}
		got := readStream(t, raw)
		require.Len(t, got, len(events), p.Name)
		for i, r := range got {
			var object agent.Event
			require.NoError(t, json.Unmarshal([]byte(r.data), &object))
			require.Equal(t, events[i].Sequence, object.Sequence)
			require.Equal(t, r.event, string(object.Type), "the name stands in the frame and in the object")
		}
	}
}

func TestRunProfileNames(t *testing.T) {
	t.Parallel()
	requireNames(t, runProfile(), map[string]string{
		"plan_generated": "plan_created", "node_started": "step_started", "node_finished": "step_completed", "node_failed": "step_failed",
		"command_emitted tool": "tool_invoked", "command_committed tool": "tool_completed", "command_committed llm": "chat_completed",
	})
}

func TestReactProfileNames(t *testing.T) {
	t.Parallel()
	requireNames(t, reactProfile(), map[string]string{
		"plan_generated": "work_plan", "node_started": "step_start", "node_finished": "step_end", "node_failed": "step_end",
		"command_emitted tool": "act", "command_committed tool": "observe", "command_committed llm": "thought", "run_completed": "complete",
	})
}

// requireNames holds that a profile gives these names, and leaves all others as they are. A key is an event type, with the kind of
// command where the name depends on it.
func requireNames(t *testing.T, p Profile, want map[string]string) {
	t.Helper()
	met := map[string]bool{}
	for _, e := range sampleEvents(t) {
		var command struct{ Kind agent.CommandKind }
		require.NoError(t, json.Unmarshal(e.Data, &command))
		key := string(e.Type)
		if e.Type == agent.CommandEmitted || e.Type == agent.CommandCommitted {
			key += " " + string(command.Kind)
		}
		name, renamed := want[key]
		met[key] = true
		if !renamed {
			name = string(e.Type)
		}
		require.Equal(t, name, string(p.Show(e).Type), key)
	}
	for key := range want {
		require.True(t, met[key], "%s is not among the samples", key)
	}
}

func TestReactStepsSayHowTheyEnded(t *testing.T) {
	t.Parallel()
	for kind, want := range map[agent.EventType]string{agent.NodeFinished: "finished", agent.NodeFailed: "failed", agent.NodeStarted: ""} {
		shown := showReact(agent.Event{Sequence: 1, Type: kind, Data: json.RawMessage(`{"node_index": 3, "added_later": "SECRET"}`)})
		var data struct {
			Outcome string
			Index   int `json:"node_index"`
		}
		require.NoError(t, json.Unmarshal(shown.Data, &data))
		require.Equal(t, want, data.Outcome)
		require.Equal(t, 3, data.Index)
	}
}

// What readers of the react profile see is what those of the run profile see, under other names.
func TestReactTellsWhatRunTells(t *testing.T) {
	t.Parallel()
	for _, e := range sampleEvents(t) {
		run, react := showRun(e), showReact(e)
		var want, got map[string]any
		require.NoError(t, json.Unmarshal(run.Data, &want))
		require.NoError(t, json.Unmarshal(react.Data, &got))
		if react.Type == stepEnd {
			delete(got, "outcome")
		}
		require.Equal(t, want, got)
		react.Type, react.Data, run.Type, run.Data = "", nil, "", nil
		require.Equal(t, run, react)
	}
}

func TestLedgerProfileIsTheLog(t *testing.T) {
	t.Parallel()
	p, ok := FindProfile("ledger")
	require.True(t, ok)
	for _, e := range sampleEvents(t) {
		require.Equal(t, e, p.Show(e))
	}
	require.Nil(t, p.OutputEvent)
}

func TestBrokenDataShowsNothing(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{``, `null`, `[]`, `"x"`, `{"kind":7,"input":"SECRET"}`, `{`, `{"task_graph":{"nodes":"SECRET"}}`,
		`{"output":"SECRET","json":"SECRET","value":1}`} {
		for _, kind := range []agent.EventType{agent.PlanGenerated, agent.CommandEmitted, agent.NodeFailed, agent.Progress} {
			for _, show := range []func(agent.Event) agent.Event{showRun, showReact} {
				shown := EncodeEvent(show(agent.Event{Sequence: 1, Type: kind, RunID: "r", CommandID: "c", Data: json.RawMessage(raw)}))
				require.NotContains(t, string(shown), "SECRET", raw)
				require.True(t, json.Valid(shown))
			}
		}
	}
}

func TestFindProfile(t *testing.T) {
	t.Parallel()
	p, ok := FindProfile("")
	require.True(t, ok)
	require.Equal(t, "run", p.Name)
	_, ok = FindProfile("nothing")
	require.False(t, ok)
}

func TestCommandHref(t *testing.T) {
	t.Parallel()
	require.Equal(t, "/api/v1/agent/runs/r/commands/main%231.0", CommandHref("r", "main#1.0"))
	require.Equal(t, "/api/v1/agent/runs/r/commands/a%231%2Fget~2%3F%25", CommandHref("r", "a#1/get~2?%"))
	require.False(t, strings.ContainsAny(strings.TrimPrefix(CommandHref("r", "a b#c"), "/api"), "# "))
}
