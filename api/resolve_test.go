package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	doubtful := func(id string) agent.Command {
		return agent.Command{CommandID: id, NodeID: agent.CommandNodeID(id), Kind: agent.ToolCommand, Effect: agent.External, State: agent.CommandInDoubt}
	}
	b.ledger.commands[run.RunID] = []agent.Command{doubtful("a"), doubtful("main#1.0"), {CommandID: "b", State: agent.Committed, Kind: agent.ToolCommand, Effect: agent.External}}
	root := "/api/v1/agent/runs/" + run.RunID + "/commands/"
	command := document[agent.Command](t, b.do("POST", root+"a/resolve", `{"outcome": "committed", "result": {"id": 7.0}, "by": "ada", "note": "seen"}`))
	require.Equal(t, agent.Committed, command.State)
	require.Equal(t, 200, b.do("POST", root+"main%231.0/resolve", `{"outcome": "retry"}`).Code)
	require.Equal(t, []string{`local a committed {"id": 7.0} by ada: seen`, `local main#1.0 retry  by local: `}, b.ledger.resolutions)

	request := doubtful("c/charge")
	request.Kind = agent.HTTPCommand
	b.ledger.commands[run.RunID] = append(b.ledger.commands[run.RunID], request)
	w := b.do("POST", root+"c%2Fcharge/resolve", `{"outcome": "committed", "result": {"ok": true}}`)
	require.Equal(t, 422, w.Code)
	require.Equal(t, "/result", *document[problem](t, w).Pointer)
	require.Equal(t, 200, b.do("POST", root+"c%2Fcharge/resolve", `{"outcome": "committed", "result": {"status": 201, "headers": {}, "json": {}}}`).Code)

	for path, want := range map[string]int{"b": 409, "a": 409, "z": 404} {
		w := b.do("POST", root+path+"/resolve", `{"outcome": "failed"}`)
		require.Equal(t, want, w.Code, path)
	}
	for body, pointer := range map[string]string{
		`{}`:                                 "/outcome",
		`{"outcome": "done"}`:                "/outcome",
		`{"outcome": "committed"}`:           "/result",
		`{"outcome": "retry", "result": {}}`: "/result",
		`{"outcome": "failed", "by": "` + strings.Repeat("x", 201) + `"}`:    "/by",
		`{"outcome": "failed", "note": "` + strings.Repeat("x", 4001) + `"}`: "/note",
		`{"outcome": 7}`: "/outcome",
	} {
		w := b.do("POST", root+"a/resolve", body)
		require.Equal(t, 422, w.Code, body)
		require.Equal(t, pointer, *document[problem](t, w).Pointer, body)
	}
	require.Equal(t, 400, b.do("POST", root+"a/resolve", `{"outcome": "retry", "why": "x"}`).Code)
	stranger := b.ledger.seed(t, "somebody", "")
	require.Equal(t, 404, b.do("POST", "/api/v1/agent/runs/"+stranger.RunID+"/commands/a/resolve", `{"outcome": "retry"}`).Code)
	require.Len(t, b.ledger.resolutions, 3)
}

// TestRunInDoubt: whoever looks at a run sees what it waits for, and no longer when it was said.
func TestRunInDoubt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	say := func(typ agent.EventType, attempt int, data any) {
		b.ledger.event(b.ledger.conversations[run.ConversationID], &run, agent.Event{Type: typ, NodeID: "a", CommandID: "a", Attempt: attempt}, data)
	}
	get := func() runObject { return document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")) }
	say(agent.CommandEmitted, 1, agent.CommandEmittedData{Kind: agent.ToolCommand, Tool: "mail", Effect: agent.External})
	require.Empty(t, get().InDoubt)
	say(agent.CommandDoubtType, 1, agent.CommandInDoubtData{Kind: agent.ToolCommand, Tool: "mail", Reason: "the worker was lost"})
	object := get()
	require.Len(t, object.InDoubt, 1)
	d := object.InDoubt[0]
	require.Equal(t, "mail", d.Tool)
	require.Equal(t, run.RunID+"/a", d.IdempotencyKey)
	require.Equal(t, "the worker was lost", d.Reason)
	require.Equal(t, "/api/v1/agent/runs/"+run.RunID+"/commands/a/resolve", d.ResolveURL)
	require.Equal(t, "in_doubt", object.ToolCalls[0].Status)
	say(agent.CommandResolved, 1, agent.CommandResolvedData{Outcome: agent.OutcomeRetry, By: "ada"})
	object = get()
	require.Empty(t, object.InDoubt)
	require.Equal(t, "running", object.ToolCalls[0].Status)

	// What is said after the run's end is in the command's row alone.
	say(agent.CommandDoubtType, 2, agent.CommandInDoubtData{Kind: agent.ToolCommand, Tool: "mail", Reason: "lost again"})
	b.ledger.end(run.RunID, agent.Cancelled)
	b.ledger.commands[run.RunID] = []agent.Command{{CommandID: "a", State: agent.CommandInDoubt, Kind: agent.ToolCommand, Effect: agent.External}}
	require.Len(t, get().InDoubt, 1)
	b.ledger.commands[run.RunID][0].State = agent.Committed
	object = get()
	require.Empty(t, object.InDoubt)
	require.Equal(t, "completed", object.ToolCalls[0].Status)
}
