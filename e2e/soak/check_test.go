package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

const (
	runID        = "r"
	conversation = "c"
)

// began is when everything in these tests begins; each thing that happens takes a second.
var began = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// sound is a run of ten commands, n0 idempotent and the others external, in which nothing went wrong.
func sound() *evidence {
	e := &evidence{conversations: map[string][]int64{}, calls: map[string][]call{}, deadAt: make([]time.Time, 2), lost: map[dispatch]int{},
		resolved: map[agent.Outcome]int{}, wanted: 1, found: 1}
	run := runEvidence{ID: runID, Conversation: conversation, Status: agent.Completed, Verified: verification{OK: true}}
	now := began
	add := func(typ agent.EventType, command string, data any) {
		raw, _ := json.Marshal(data)
		now = now.Add(time.Second)
		run.Events = append(run.Events, agent.Event{Sequence: int64(len(run.Events)) + 1, Type: typ, NodeID: command, CommandID: command,
			Attempt: 1, CreatedAt: now, Data: raw})
	}
	command := func(c agent.Command) {
		c.Dispatches, c.State = 1, agent.Committed
		run.Commands = append(run.Commands, c)
		add(agent.CommandEmitted, c.CommandID, nil)
		if c.Kind == agent.ToolCommand {
			now = now.Add(time.Second)
			e.calls[agent.IdempotencyKey(runID, c.CommandID)] = []call{{Arrived: now, Ended: now.Add(time.Millisecond), Took: true}}
		}
		add(agent.CommandCommitted, c.CommandID, nil)
		add(agent.NodeFinished, c.CommandID, agent.NodeFinishedData{ResultCommand: c.CommandID})
	}
	for i := range commandsPerRun {
		c := agent.Command{CommandID: nodeID(i), Kind: agent.ToolCommand, Tool: "http_request", Effect: agent.External}
		if i == 0 {
			c.Effect = agent.Idempotent
		}
		command(c)
	}
	command(agent.Command{CommandID: "say", Kind: agent.ModelCommand, Effect: agent.Idempotent})
	add(agent.RunCompleted, "", nil)
	for _, event := range run.Events {
		e.conversations[conversation] = append(e.conversations[conversation], event.Sequence)
	}
	e.followed = []followed{{RunID: runID, Numbers: e.conversations[conversation], Connections: 2, Over: true}}
	e.runs = []runEvidence{run}
	return e
}

// insert puts an event of n1 after its command was emitted, at a time at which it was called already.
func (e *evidence) insert(at int, event agent.Event) {
	run := &e.runs[0]
	event.NodeID, event.CommandID, event.CreatedAt = "n1", "n1", run.Events[at].CreatedAt
	var events []agent.Event
	events = append(append(append(events, run.Events[:at]...), event), run.Events[at:]...)
	e.conversations[conversation], e.followed[0].Numbers = nil, nil
	for i := range events {
		events[i].Sequence = int64(i) + 1
		e.conversations[conversation] = append(e.conversations[conversation], int64(i)+1)
	}
	e.followed[0].Numbers = e.conversations[conversation]
	run.Events = events
}

// commitOfN1 is the place of n1's commit in the events of sound.
const commitOfN1 = 4

func doubt(attempt int) agent.Event {
	return agent.Event{Type: agent.CommandDoubtType, Attempt: attempt}
}

func TestSoundEvidence(t *testing.T) {
	t.Parallel()
	r := sound().report()
	require.Empty(t, r.Violations)
	require.True(t, r.OK)
	require.Equal(t, 11, r.Commands)
	require.Equal(t, 11, r.Commits)
	require.Equal(t, 9, r.Effects)
}

// What a kill has cut off may be in doubt, once, and is done once.
func TestExplainedByAKill(t *testing.T) {
	t.Parallel()
	e := sound()
	e.deadAt[0] = began.Add(time.Hour) // the worker of all calls died later
	e.lost[dispatch{"r/n1", 1}] = 0
	e.insert(commitOfN1, doubt(1))
	again := e.calls["r/n0"][0]
	again.Arrived, again.Door = e.runs[0].Events[1].CreatedAt, 1
	e.deadAt[0] = again.Arrived
	e.calls["r/n0"] = append(e.calls["r/n0"], again)
	r := e.report()
	require.Empty(t, r.Violations)
	require.Equal(t, 1, r.InDoubt)
	require.Equal(t, 1, r.InFlight)
	require.Equal(t, 1, r.Repeated)
}

// Every promise that is broken is found, and named.
func TestViolations(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		breaks func(e *evidence)
		want   string
	}{
		"a run that does not complete": {func(e *evidence) { e.runs[0].Status = agent.InDoubt }, "run lost"},
		"a run that is not there":      {func(e *evidence) { e.found = 0 }, "runs"},
		"a run too many":               {func(e *evidence) { e.found = 2 }, "runs"},
		"a post that was refused":      {func(e *evidence) { e.refused = []string{"422"} }, "post refused"},
		"a gap in a conversation": {func(e *evidence) {
			e.conversations[conversation] = append(e.conversations[conversation][:5:5], e.conversations[conversation][6:]...)
		}, "gap"},
		"a number twice":                {func(e *evidence) { e.conversations[conversation][5] = 5 }, "gap"},
		"a client that missed a number": {func(e *evidence) { e.followed[0].Numbers = e.followed[0].Numbers[1:] }, "stream"},
		"a client that saw a number twice": {func(e *evidence) { e.followed[0].Numbers = append([]int64{1}, e.followed[0].Numbers...) },
			"stream"},
		"two commits": {func(e *evidence) { e.insert(commitOfN1+1, agent.Event{Type: agent.CommandCommitted}) }, "order"},
		"a commit without its beginning": {func(e *evidence) {
			e.runs[0].Events[0].Type = agent.Progress
		}, "order"},
		"a doubt after the commit": {func(e *evidence) {
			e.lost[dispatch{"r/n1", 1}] = 0
			e.insert(commitOfN1+1, doubt(1))
		}, "order"},
		"a command that is not committed": {func(e *evidence) { e.runs[0].Commands[1].State = agent.CommandFailed }, "not committed"},
		"a command too few":               {func(e *evidence) { e.runs[0].Commands = e.runs[0].Commands[1:] }, "commands"},
		"an external effect twice": {func(e *evidence) {
			e.lost[dispatch{"r/n1", 1}] = 0
			e.calls["r/n1"] = append(e.calls["r/n1"], e.calls["r/n1"][0])
		}, "duplicate"},
		"an external call twice, without an effect": {func(e *evidence) {
			e.calls["r/n1"] = append([]call{{Arrived: began}}, e.calls["r/n1"]...)
		}, "not exactly once"},
		"a call after the commit": {func(e *evidence) {
			e.deadAt[0] = began.Add(time.Hour)
			e.calls["r/n0"] = append(e.calls["r/n0"], call{Arrived: began.Add(2 * time.Hour), Took: true})
		}, "duplicate"},
		"an idempotent call again while its worker lived": {func(e *evidence) {
			e.calls["r/n0"] = append(e.calls["r/n0"], e.calls["r/n0"][0])
		}, "not exactly once"},
		"a committed effect that never took place":  {func(e *evidence) { e.calls["r/n1"][0].Took = false }, "missing effect"},
		"an idempotent command that was not called": {func(e *evidence) { delete(e.calls, "r/n0") }, "missing effect"},
		"a doubt that no kill explains":             {func(e *evidence) { e.insert(commitOfN1, doubt(1)) }, "doubt"},
		"a doubt of another dispatch": {func(e *evidence) {
			e.lost[dispatch{"r/n1", 2}] = 0
			e.insert(commitOfN1, doubt(1))
		}, "doubt"},
		"an effect whose caller went away": {func(e *evidence) { e.calls["r/n1"][0].Gone = true }, "effect cancelled"},
		"a call of nobody":                 {func(e *evidence) { e.calls["?"] = []call{{Arrived: began}} }, "stray call"},
		"a difference that verify finds":   {func(e *evidence) { e.runs[0].Verified.OK = false }, "verify"},
		"a kill that failed":               {func(e *evidence) { e.kills = []killed{{Victim: killAPI, Error: "x"}} }, "kill"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sound()
			tt.breaks(e)
			r := e.report()
			require.False(t, r.OK)
			var found []string
			for _, v := range r.Violations {
				found = append(found, v.What)
			}
			require.Contains(t, found, tt.want, fmt.Sprint(r.Violations))
		})
	}
}
