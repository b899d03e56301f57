package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// history writes the story of a run with a plan: a tool call that is tried twice, one that fails and is handled, an llm
// node, and one that never starts.
func history(b *bench) agent.Run {
	b.t.Helper()
	run := b.ledger.seed(b.t, "local", "")
	id, at := run.RunID, func(kind agent.EventType, node, command string, attempt int) agent.Event {
		return agent.Event{Type: kind, NodeID: node, CommandID: command, Attempt: attempt}
	}
	plan := &agent.Plan{Nodes: []agent.Node{
		{ID: "sum", Kind: agent.ToolNode, Tool: "calculator", Args: json.RawMessage(`{"expression":"6*7"}`), OnError: agent.OnErrorFail},
		{ID: "get", Kind: agent.ToolNode, Tool: "http_request", OnError: agent.OnErrorContinue},
		{ID: "say", Kind: agent.LLMNode, Prompt: "SECRET prompt", DependsOn: []string{"sum", "get"}, OnError: agent.OnErrorFail},
		{ID: "more", Kind: agent.LLMNode, Prompt: "x", DependsOn: []string{"say"}, OnError: agent.OnErrorFail},
	}}
	b.ledger.runs[id].plan = plan
	model := &agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"}
	value := func(doc string) agent.Value { return agent.ShowValue(json.RawMessage(doc)) }
	input := value(`{"expression":"6*7"}`)
	large := agent.Value{Bytes: 90000, Preview: "once upon a time…"}
	usage := json.RawMessage(`{"input_tokens":30,"output_tokens":4,"cached_tokens":20,"reasoning_tokens":3}`)
	no := &agent.Error{Code: agent.CodeToolFailed, Message: "404", NodeID: "get", CommandID: "get"}
	l := b.ledger
	l.write(id, at(agent.PlanStarted, "plan", "", 0), agent.PlanStartedData{Source: "planner", Model: model})
	l.write(id, at(agent.CommandEmitted, "plan", "plan", 1), agent.CommandEmittedData{Kind: agent.PlanCommand, Effect: agent.Idempotent})
	l.write(id, at(agent.CommandCommitted, "plan", "plan", 1), agent.CommandCommittedData{Kind: agent.PlanCommand, Usage: usage})
	l.write(id, at(agent.PlanGenerated, "plan", "", 0), agent.PlanGeneratedData{Source: "planner", TaskGraph: plan, Hash: "sha256:aa", Model: model, PromptHash: "sha256:bb"})
	l.write(id, at(agent.NodeStarted, "sum", "", 0), agent.NodeStartedData{Kind: agent.ToolNode, Tool: "calculator"})
	l.write(id, at(agent.CommandEmitted, "sum", "sum", 1), agent.CommandEmittedData{Kind: agent.ToolCommand, Tool: "calculator", Effect: agent.Deterministic, Input: &input})
	l.write(id, at(agent.AttemptDiscarded, "sum", "sum", 1), agent.AttemptDiscardedData{Reason: "shutdown"})
	l.write(id, at(agent.CommandCommitted, "sum", "sum", 2), agent.CommandCommittedData{Kind: agent.ToolCommand, Tool: "calculator", Output: value(`"42"`), LatencyMS: 7})
	l.write(id, at(agent.NodeFinished, "sum", "sum", 2), agent.NodeFinishedData{ResultCommand: "sum", Output: value(`"42"`)})
	l.write(id, at(agent.CheckpointSaved, "sum", "", 0), agent.CheckpointSavedData{CheckpointID: uuid.NewString(), Type: agent.NodeBoundary, Step: 1})
	l.write(id, at(agent.NodeStarted, "get", "", 0), agent.NodeStartedData{Kind: agent.ToolNode, Tool: "http_request", Index: 1})
	l.write(id, at(agent.CommandEmitted, "get", "get", 1), agent.CommandEmittedData{Kind: agent.ToolCommand, Tool: "http_request", Effect: agent.External, Input: &large})
	l.write(id, at(agent.CommandFailedType, "get", "get", 1), agent.CommandFailedData{Kind: agent.ToolCommand, Tool: "http_request", Error: no, LatencyMS: 9})
	l.write(id, at(agent.NodeFailed, "get", "", 0), agent.NodeFailedData{Index: 1, Error: no, Handled: true})
	l.write(id, at(agent.NodeStarted, "say", "", 0), agent.NodeStartedData{Kind: agent.LLMNode, Index: 2})
	l.write(id, at(agent.CommandEmitted, "say", "say", 1), agent.CommandEmittedData{Kind: agent.ModelCommand, Effect: agent.Idempotent})
	l.write(id, at(agent.CommandCommitted, "say", "say", 1), agent.CommandCommittedData{Kind: agent.ModelCommand, Usage: usage, Output: large})
	l.write(id, at(agent.NodeFinished, "say", "say", 1), agent.NodeFinishedData{Index: 2, ResultCommand: "say", Output: large})
	l.write(id, at(agent.NodeStarted, "more", "", 0), agent.NodeStartedData{Kind: agent.LLMNode, Index: 3})
	l.commands[id] = []agent.Command{
		{CommandID: "sum", NodeID: "sum", Kind: agent.ToolCommand, Tool: "calculator", Effect: agent.Deterministic, State: agent.Committed, Dispatches: 2, EmittedAt: l.now},
		{CommandID: "main#1.0", NodeID: "main", Kind: agent.ToolCommand, Effect: agent.External, State: agent.CommandFailed, Error: no, EmittedAt: l.now, DecidedAt: &l.now},
		{CommandID: "a#1/get~2", NodeID: "a", Kind: agent.ModelCommand, Effect: agent.Idempotent, State: agent.Dispatched, Usage: usage, EmittedAt: l.now},
	}
	l.checkpoints[id] = []agent.Checkpoint{{CheckpointID: uuid.NewString(), RunID: id, Type: agent.NodeBoundary, Step: 1, Sequence: 12, Epoch: 1, CreatedAt: l.now}}
	return b.ledger.runs[id].Run
}

func TestRunObject(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	w := b.do("GET", "/api/v1/agent/runs/"+strings.ToUpper(run.RunID), "")
	require.Equal(t, 200, w.Code, "%s", w.Body)
	open := document[runObject](t, w)
	require.Equal(t, "running", open.Steps[3].Status)
	require.Nil(t, open.Metrics.LatencyMS)
	require.EqualValues(t, 21, open.LastSequence)

	b.ledger.end(run.RunID, agent.Completed)
	w = b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")
	o := document[runObject](t, w)
	require.NotContains(t, w.Body.String(), `"instructions"`)
	require.NotContains(t, w.Body.String(), `"text":"SECRET"`, "attachments are named, not shown")
	require.Equal(t, "42", *o.FinalOutput)
	require.Equal(t, "one step", o.Summary)
	require.Equal(t, "sha256:aa", o.PlanHash)
	require.Equal(t, "sha256:bb", o.PlannerPromptHash)
	require.Equal(t, "scripted", o.PlannerModel.Provider)
	require.Len(t, o.Plan.Nodes, 4)
	require.Equal(t, "/api/v1/agent/runs/"+run.RunID+"/events", o.EventsURL)

	require.Len(t, o.Steps, 4)
	sum, get, say, more := o.Steps[0], o.Steps[1], o.Steps[2], o.Steps[3]
	require.Equal(t, []string{"completed", "failed", "completed", "aborted"}, []string{sum.Status, get.Status, say.Status, more.Status})
	require.Equal(t, 4*time.Second, sum.FinishedAt.Sub(*sum.StartedAt))
	require.Equal(t, "42", sum.OutputPreview, "a text without its quotes")
	require.Equal(t, agent.CodeToolFailed, get.Error.Code)
	require.Equal(t, "once upon a time…", say.OutputPreview)
	require.Equal(t, 90000, say.OutputBytes)
	require.Equal(t, "/api/v1/agent/runs/"+run.RunID+"/commands/say", say.OutputURL)

	require.Len(t, o.ToolCalls, 2)
	require.Equal(t, "completed", o.ToolCalls[0].Status)
	require.JSONEq(t, `{"expression":"6*7"}`, string(o.ToolCalls[0].Input))
	require.Equal(t, "42", o.ToolCalls[0].ResultPreview)
	require.Equal(t, 2, o.ToolCalls[0].Attempt)
	require.EqualValues(t, 7, o.ToolCalls[0].LatencyMS)
	require.Equal(t, "failed", o.ToolCalls[1].Status)
	require.Equal(t, "once upon a time…", o.ToolCalls[1].InputPreview)
	require.Equal(t, "404", o.ToolCalls[1].Error.Message)

	require.Equal(t, tokens{60, 8, 68, 40, 6}, o.Metrics.Tokens)
	require.Equal(t, metrics{tokens{60, 8, 68, 40, 6}, o.Metrics.LatencyMS, 2, 2, 1, map[agent.Code]int{agent.CodeToolFailed: 1}, 0}, o.Metrics)
	require.EqualValues(t, 22000, *o.Metrics.LatencyMS)
}

// The effects of a tool are neither model calls nor tool calls.
func TestRunObjectDoesNotCountEffects(t *testing.T) {
	t.Parallel()
	v := newRunView(agent.Run{RunID: "r"}, nil)
	raw := func(x any) json.RawMessage {
		doc, err := json.Marshal(x)
		require.NoError(t, err)
		return doc
	}
	for _, e := range []agent.Event{
		{Type: agent.CommandEmitted, CommandID: "a", Data: raw(agent.CommandEmittedData{Kind: agent.ToolCommand, Tool: "pay"})},
		{Type: agent.TimerFired, CommandID: "a/now-1", Data: raw(agent.ValueRecordedData{Kind: agent.NowCommand})},
		{Type: agent.CommandEmitted, CommandID: "a/pay", Data: raw(agent.CommandEmittedData{Kind: agent.HTTPCommand})},
		{Type: agent.CommandCommitted, CommandID: "a/pay", Data: raw(agent.CommandCommittedData{Kind: agent.HTTPCommand})},
	} {
		e.RunID = "r"
		v.add(e)
	}
	require.Equal(t, 0, v.object.Metrics.ModelCalls)
	require.Equal(t, 1, v.object.Metrics.ToolCalls)
	require.Len(t, v.object.ToolCalls, 1)
	require.Equal(t, "running", v.object.ToolCalls[0].Status)
}

func TestPreview(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{`"a \"b\""`: `a "b"`, `{"a": [1, "x y"]}`: `{"a":[1,"x y"]}`, `42`: "42", `null`: "", `"` + strings.Repeat("x", 600) + `"`: strings.Repeat("x", 512) + "…"} {
		require.Equal(t, want, previewOf(agent.Value{JSON: json.RawMessage(doc)}))
	}
	require.Equal(t, "cut…", previewOf(agent.Value{Preview: "cut…"}))
}

func TestStepsAfterAResume(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	id := run.RunID
	b.ledger.write(id, agent.Event{Type: agent.CommandReopened, NodeID: "get", CommandID: "get"}, struct{}{})
	b.ledger.write(id, agent.Event{Type: agent.NodeStarted, NodeID: "get"}, agent.NodeStartedData{Index: 1})
	b.ledger.write(id, agent.Event{Type: agent.NodeSkipped, NodeID: "more"}, agent.NodeSkippedData{Index: 3, Reason: "say was skipped"})
	b.ledger.write(id, agent.Event{Type: agent.CommandEmitted, NodeID: "say", CommandID: "say~2", Attempt: 1}, agent.CommandEmittedData{Kind: agent.ModelCommand})
	b.ledger.write(id, agent.Event{Type: agent.CommandDoubtType, NodeID: "get", CommandID: "get", Attempt: 2}, agent.CommandInDoubtData{Kind: agent.ToolCommand})
	o := document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+id, ""))
	require.Equal(t, "running", o.Steps[1].Status)
	require.Nil(t, o.Steps[1].Error)
	require.Equal(t, "skipped", o.Steps[3].Status)
	require.Equal(t, "say was skipped", o.Steps[3].Reason)
	require.Equal(t, "in_doubt", o.ToolCalls[1].Status)
	require.Equal(t, 2, o.ToolCalls[1].Attempt)
	require.Equal(t, 3, o.Metrics.Retries)
}

func TestEventPages(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.seed(t, "local", run.ConversationID) // events 22 and 23 are another run's
	b.ledger.end(run.RunID, agent.Completed)
	type page struct {
		Events  []agent.Event `json:"events"`
		HasMore bool          `json:"has_more"`
	}
	for _, root := range []string{"/api/v1/agent/runs/" + run.RunID, "/api/v1/agent/conversations/" + run.ConversationID} {
		var all []int64
		sequence, more, pages := int64(0), true, 0
		for more { // as the documents' replay client does
			w := b.do("GET", fmt.Sprintf("%s/events?from_sequence=%d&limit=5", root, sequence), "")
			require.Equal(t, 200, w.Code, "%s", w.Body)
			p := document[page](t, w)
			for _, e := range p.Events {
				all = append(all, e.Sequence)
				sequence = max(sequence, e.Sequence+1)
			}
			more = p.HasMore
			pages++
		}
		if strings.Contains(root, "/runs/") {
			require.Len(t, all, 22)
			require.Equal(t, int64(24), all[21], "numbers are the conversation's")
		} else {
			require.Len(t, all, 24)
		}
		require.Equal(t, (len(all)+4)/5, pages, "has_more is exact")
		require.Empty(t, document[page](t, b.do("GET", root+"/events?from_sequence=25", "")).Events)
		require.Len(t, document[page](t, b.do("GET", root+"/events?after=20", "")).Events, len(all)-20)
		require.Len(t, document[page](t, b.do("GET", root+"/events?after=20", "", "Last-Event-ID: 3")).Events, len(all)-20, "the header is of streams")
	}
	exact := document[page](t, b.do("GET", "/api/v1/agent/conversations/"+run.ConversationID+"/events?limit=24", ""))
	require.False(t, exact.HasMore)
	require.Len(t, exact.Events, 24)

	w := b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/events?from_sequence=6&limit=1", "")
	require.Contains(t, w.Body.String(), `"event_type":"plan_created"`)
	require.NotContains(t, w.Body.String(), "SECRET prompt")
	w = b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/events?from_sequence=6&limit=1&profile=ledger", "")
	require.Contains(t, w.Body.String(), `"event_type":"plan_generated"`)
	require.Contains(t, w.Body.String(), "SECRET prompt")
}

func TestAPageShowsTheBytesOfTheStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.end(run.RunID, agent.Completed)
	for _, profile := range []string{"run", "react", "ledger"} {
		path := "/api/v1/agent/runs/" + run.RunID + "/events?profile=" + profile
		page := document[struct {
			Events []json.RawMessage `json:"events"`
		}](t, b.do("GET", path, ""))
		frames := b.frames(b.do("GET", path, "", "Accept: text/event-stream"))
		require.Len(t, frames, len(page.Events))
		for i, f := range frames {
			require.Contains(t, f.raw, "data: "+string(page.Events[i]))
		}
	}
}

func TestBadParameters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.conversations[run.ConversationID].oldest = 4
	events := "/api/v1/agent/runs/" + run.RunID + "/events"
	conversation := "/api/v1/agent/conversations/" + run.ConversationID
	const stream = "Accept: text/event-stream"
	for name, tc := range map[string]struct {
		path, accept    string
		status          int
		kind, parameter string
	}{
		"limit 0":                 {events + "?limit=0", "", 400, "invalid-parameter", "limit"},
		"limit too large":         {events + "?limit=10001", "", 400, "invalid-parameter", "limit"},
		"limit that is none":      {events + "?limit=ten", "", 400, "invalid-parameter", "limit"},
		"empty limit":             {events + "?limit=", "", 400, "invalid-parameter", "limit"},
		"position that is none":   {events + "?from_sequence=x", "", 400, "invalid-position", "from_sequence"},
		"negative position":       {events + "?after=-1", "", 400, "invalid-position", "after"},
		"position beyond":         {events + "?from_sequence=23", "", 400, "invalid-position", "from_sequence"},
		"position gone":           {events + "?from_sequence=3", "", 410, "position-gone", "from_sequence"},
		"unknown profile":         {events + "?profile=dream", "", 400, "invalid-parameter", "profile"},
		"stream, none":            {events, "Last-Event-ID: x", 400, "invalid-position", "Last-Event-ID"},
		"stream, beyond":          {events, "Last-Event-ID: 22", 400, "invalid-position", "Last-Event-ID"},
		"stream, gone":            {events, "Last-Event-ID: 2", 410, "position-gone", "Last-Event-ID"},
		"stream, unknown profile": {events + "?profile=dream", stream, 400, "invalid-parameter", "profile"},
		"until never":             {conversation + "/events?until=never", "", 400, "invalid-parameter", "until"},
		"messages, beyond":        {conversation + "/messages?after=22", "", 400, "invalid-position", "after"},
		"messages, limit":         {conversation + "/messages?limit=-1", "", 400, "invalid-parameter", "limit"},
		"runs, status":            {"/api/v1/agent/runs?status=asleep", "", 400, "invalid-parameter", "status"},
		"runs, before":            {"/api/v1/agent/runs?before=7", "", 400, "invalid-parameter", "before"},
		"runs, conversation":      {"/api/v1/agent/runs?conversation_id=7", "", 400, "invalid-parameter", "conversation_id"},
		"runs, limit":             {"/api/v1/agent/runs?limit=501", "", 400, "invalid-parameter", "limit"},
		"runs, agent with NUL":    {"/api/v1/agent/runs?agent=%00", "", 400, "invalid-parameter", "agent"},
		"runs, agent not UTF-8":   {"/api/v1/agent/runs?agent=%ff", "", 400, "invalid-parameter", "agent"},
		"conversations, limit":    {"/api/v1/agent/conversations?limit=x", "", 400, "invalid-parameter", "limit"},
		"conversations, before":   {"/api/v1/agent/conversations?before=x", "", 400, "invalid-parameter", "before"},
	} {
		t.Run(name, func(t *testing.T) {
			headers := []string{tc.accept}
			if strings.HasPrefix(tc.accept, "Last-Event-ID") {
				headers = append(headers, stream)
			}
			p := requireProblem(t, b.do("GET", tc.path, "", headers...), tc.status, tc.kind, "")
			require.Equal(t, tc.parameter, p.Parameter)
			if tc.status == 410 {
				require.EqualValues(t, 4, p.OldestSequence)
			}
		})
	}
	for _, bad := range []string{"?profile=dream", "?after=x"} { // said before anything is accepted
		b.ledger.accepted = nil
		require.Equal(t, 400, b.do("POST", "/api/v1/agent/run/stream"+bad, `{"input":"x"}`).Code)
		require.Equal(t, 400, b.do("POST", "/api/v1/agent/chat"+bad, `{"message":"x"}`).Code)
		require.Empty(t, b.ledger.accepted)
	}
}

func TestUnknownAndForeignIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	foreign := b.ledger.seed(t, "somebody", "")
	mine := history(b)
	for _, id := range []string{foreign.RunID, uuid.NewString(), "7", "%2e%2e", "not%20a%20uuid", strings.Repeat("x", 300)} {
		for _, rest := range []string{"", "/events", "/commands", "/commands/sum", "/checkpoints", "/replay-context"} {
			requireProblem(t, b.do("GET", "/api/v1/agent/runs/"+id+rest, ""), 404, "not-found", "")
		}
		requireProblem(t, b.do("GET", "/api/v1/agent/runs/"+id+"/events", "", "Accept: text/event-stream"), 404, "not-found", "")
		requireProblem(t, b.do("POST", "/api/v1/agent/runs/"+id+"/cancel", ""), 404, "not-found", "")
	}
	for _, id := range []string{foreign.ConversationID, uuid.NewString(), "7"} {
		for _, rest := range []string{"", "/events", "/execution-status", "/messages"} {
			requireProblem(t, b.do("GET", "/api/v1/agent/conversations/"+id+rest, ""), 404, "not-found", "")
		}
	}
	for _, id := range []string{"nothing", "%00", "%ff", "a%2F%00"} {
		requireProblem(t, b.do("GET", "/api/v1/agent/runs/"+mine.RunID+"/commands/"+id, ""), 404, "not-found", "")
		requireProblem(t, b.do("POST", "/api/v1/agent/runs/"+mine.RunID+"/commands/"+id+"/resolve", `{"outcome":"retry"}`), 404, "not-found", "")
	}
	require.Empty(t, b.ledger.cancels)
}

func TestCommands(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	root := "/api/v1/agent/runs/" + run.RunID + "/commands"
	list := document[struct {
		Commands []agent.Command `json:"commands"`
		HasMore  bool            `json:"has_more"`
	}](t, b.do("GET", root, ""))
	require.Len(t, list.Commands, 3)
	require.False(t, list.HasMore)
	for path, id := range map[string]string{"sum": "sum", "main%231.0": "main#1.0", "a%231%2Fget~2": "a#1/get~2", "a%231%2Fget%7E2": "a#1/get~2", "%73um": "sum"} {
		w := b.do("GET", root+"/"+path, "")
		require.Equal(t, 200, w.Code, "%s: %s", path, w.Body)
		c := document[agent.Command](t, w)
		require.Equal(t, id, c.CommandID)
		require.Contains(t, w.Body.String(), `"result":{"text":"<42>"}`, "the result's own bytes")
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var made []agent.Run
	for range 3 {
		made = append(made, b.ledger.seed(t, "local", ""))
	}
	b.ledger.seed(t, "somebody", "")
	b.ledger.end(made[0].RunID, agent.FailedStatus)
	type runs struct {
		Runs    []runHead `json:"runs"`
		HasMore bool      `json:"has_more"`
	}
	get := func(query string) runs { return document[runs](t, b.do("GET", "/api/v1/agent/runs"+query, "")) }
	all := get("")
	require.Len(t, all.Runs, 3)
	require.False(t, all.HasMore)
	require.Equal(t, made[2].RunID, all.Runs[0].RunID, "newest first")
	first := get("?limit=2")
	require.True(t, first.HasMore)
	rest := get("?limit=2&before=" + first.Runs[1].RunID)
	require.Len(t, rest.Runs, 1)
	require.False(t, rest.HasMore)
	require.Equal(t, agent.CodeToolFailed, rest.Runs[0].Error.Code)
	require.Len(t, get("?status=failed").Runs, 1)
	require.Empty(t, get("?status=paused").Runs)
	require.Len(t, get("?agent=default&conversation_id="+made[1].ConversationID).Runs, 1)

	type conversations struct {
		Conversations []agent.Conversation `json:"conversations"`
		HasMore       bool                 `json:"has_more"`
	}
	list := document[conversations](t, b.do("GET", "/api/v1/agent/conversations?limit=2", ""))
	require.Len(t, list.Conversations, 2)
	require.True(t, list.HasMore)
	list = document[conversations](t, b.do("GET", "/api/v1/agent/conversations?before="+list.Conversations[1].ConversationID, ""))
	require.Len(t, list.Conversations, 1)
	require.Equal(t, 200, b.do("GET", "/api/v1/agent/conversations/"+list.Conversations[0].ConversationID, "").Code)
}

func TestEmptyListsAreLists(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	b.ledger.tools = nil
	for path, want := range map[string]string{
		"/api/v1/agent/tools":                                                     `{"tools":[],"has_more":false}`,
		"/api/v1/agent/runs?status=stuck":                                         `{"runs":[],"has_more":false}`,
		"/api/v1/agent/runs/" + run.RunID + "/commands":                           `{"commands":[],"has_more":false}`,
		"/api/v1/agent/runs/" + run.RunID + "/checkpoints":                        `{"checkpoints":[],"has_more":false}`,
		"/api/v1/agent/runs/" + run.RunID + "/events?after=2":                     `{"events":[],"has_more":false}`,
		"/api/v1/agent/conversations/" + run.ConversationID + "/messages?after=2": `{"messages":[],"has_more":false}`,
	} {
		require.Equal(t, want+"\n", b.do("GET", path, "").Body.String())
	}
}

func TestConversationReads(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	root := "/api/v1/agent/conversations/" + run.ConversationID
	status := document[map[string]any](t, b.do("GET", root+"/execution-status", ""))
	require.Equal(t, map[string]any{"is_running": true, "last_sequence": 21.0, "current_message_id": run.MessageID}, status)
	b.ledger.end(run.RunID, agent.Completed)
	require.Equal(t, false, document[map[string]any](t, b.do("GET", root+"/execution-status", ""))["is_running"])
	messages := document[struct {
		Messages []agent.Message `json:"messages"`
	}](t, b.do("GET", root+"/messages", ""))
	require.Equal(t, "what is 6*7?", messages.Messages[0].Content)
}

func TestCheckpointsAndReplayContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	require.Contains(t, b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/checkpoints", "").Body.String(), `"checkpoint_type":"node_boundary"`)
	rc := document[agent.ReplayContext](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/replay-context", ""))
	require.Equal(t, []string{"plan", "sum", "say"}, rc.CompletedCommandIDs)
}

// verified answers for one run and has no word for another.
type verified map[string]agent.Verification

func (v verified) Verify(_ context.Context, runID string) (agent.Verification, error) {
	found, ok := v[runID]
	if !ok {
		return found, errors.New("the ledger fell over")
	}
	return found, nil
}

func TestVerify(t *testing.T) {
	t.Parallel()
	told := verified{}
	b := newBench(t, func(c *Config) { c.Verifier = told })
	run := history(b)
	path := "/api/v1/agent/runs/" + run.RunID + "/verify"
	told[run.RunID] = agent.Verification{RunID: run.RunID, Checked: agent.Checked{Events: 12, Commands: 3, Checkpoints: 2, Results: 3, Activities: 4},
		Differences: []agent.Difference{
			{Check: agent.CheckResult, Sequence: 7, NodeID: "a", CommandID: "a", Expected: "one hash", Found: "another"},
			{Check: agent.CheckChain, From: 4, Sequence: 9, Activity: "CallTool at event 8", Expected: "one chain", Found: "another"}},
		Temporal: agent.Corroborated{Status: agent.WitnessDiffers, Epochs: 1, Executions: 1, Activities: 4}}
	w := b.do("GET", path, "")
	require.Equal(t, 200, w.Code)
	require.Equal(t, told[run.RunID], document[agent.Verification](t, w))
	require.Equal(t, 404, b.do("GET", "/api/v1/agent/runs/"+b.ledger.seed(t, "stranger", "").RunID+"/verify", "").Code)
	delete(told, run.RunID)
	require.Equal(t, 500, b.do("GET", path, "").Code)
}

func TestVerifyWithoutAVerifier(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	v := document[agent.Verification](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/verify", ""))
	require.Equal(t, agent.WitnessNotConfigured, v.Temporal.Status)
	require.Positive(t, v.Checked.Events)
	require.False(t, v.OK, "the fake holds no rows beside the events")
	require.NotEmpty(t, v.Differences)
}

func TestAgentsAndTools(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.do("GET", "/api/v1/agent/agents", "")
	agents := document[struct {
		Agents []agentObject `json:"agents"`
	}](t, w).Agents
	require.NotContains(t, w.Body.String(), "SECRET")
	require.Equal(t, "default", agents[0].Name)
	require.Equal(t, agent.DefaultLimits(), agents[0].Limits)
	require.Equal(t, agent.Limits{MaxSteps: 5}.Or(agent.DefaultLimits()), agents[1].Limits)
	require.Contains(t, b.do("GET", "/api/v1/agent/tools", "").Body.String(), `"name":"calculator"`)
	require.Equal(t, 200, b.do("GET", "/readyz", "").Code)
}

func TestNotThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, path := range []string{"/", "/api", "/api/v1/agent", "/api/v1/agent/runs/", "/api/agent/runs", "/api/v2/agent/run", "/api/v1/agent/runs/x/y"} {
		requireProblem(t, b.do("GET", path, ""), 404, "not-found", "")
	}
	for path, tc := range map[string]struct{ method, allow string }{
		"/api/v1/agent/run":                  {"GET", "POST"},
		"/api/agent/run/stream":              {"DELETE", "POST"},
		"/api/v1/agent/runs":                 {"POST", "GET"},
		"/api/v1/agent/runs/x/commands/a%2F": {"PUT", "GET"},
		"/api/v1/agent/conversations/x":      {"PUT", "GET, DELETE"},
		"/healthz":                           {"PROPFIND", "GET"},
	} {
		w := b.do(tc.method, path, "")
		requireProblem(t, w, 405, "method-not-allowed", "")
		require.Equal(t, tc.allow, strings.Join(w.Header().Values("Allow"), ", "), path)
	}
	require.Equal(t, http.StatusForbidden, b.do("GET", "/api/v1/agent/runs", "", "Host: evil.example").Code, "reads too")
}
