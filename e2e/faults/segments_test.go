package faults_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
)

// interruption is what comes between the commands of a segment, whose first, middle or last one is held in the middle of its effect.
type interruption struct {
	name string
	// class is that of the segment's commands. tool and onError are of the one that is held, see cell.
	class   class
	tool    string
	onError agent.OnError
	// strike comes while it is held, goesOn when it has been let go. Both may be nil.
	strike, goesOn func(t testing.TB, l *lab, c cell)
	// ends is how the run ends, held the state in which it leaves the command, and after whether those after it were executed.
	ends  agent.EventType
	held  agent.CommandState
	after bool
}

var interruptions = []interruption{
	{name: "cancelled", class: idempotent, strike: cancelRun, ends: agent.RunCancelled, held: agent.CommandAborted},
	{name: "cancelled", class: external, strike: cancelRun, ends: agent.RunCancelled, held: agent.CommandInDoubt},
	{name: "paused", class: idempotent, strike: pauseRun, goesOn: unpauseRun, ends: agent.RunCompleted, held: agent.Committed, after: true},
	{name: "paused", class: external, strike: pauseRun, goesOn: unpauseRun, ends: agent.RunCompleted, held: agent.Committed, after: true},
	{name: "fails", class: idempotent, tool: "failing", ends: agent.RunFailed, held: agent.CommandFailed},
	{name: "fails, with `on_error: continue`", class: idempotent, tool: "failing", onError: agent.OnErrorContinue, ends: agent.RunCompleted, held: agent.CommandFailed, after: true},
	{name: "in doubt, resolved with committed", class: external, tool: "doubtful", goesOn: resolveDoubt, ends: agent.RunCompleted, held: agent.Committed, after: true},
}

func cancelRun(t testing.TB, l *lab, c cell) {
	t.Helper()
	_, status := l.control(t, c, "cancel", object{"reason": "enough"})
	require.Less(t, status, http.StatusBadRequest)
	l.ComesTo(t, c.run.RunID, agent.RunCancelled) // which does not wait for an effect
}

func pauseRun(t testing.TB, l *lab, c cell) {
	t.Helper()
	paused, _ := l.control(t, c, "pause", object{"reason": "look at it"})
	require.Equal(t, agent.Paused, paused.Status)
}

func unpauseRun(t testing.TB, l *lab, c cell) {
	t.Helper()
	require.Eventually(t, func() bool { return l.command(t, c.run.RunID, c.commandID()).State == agent.Committed }, stacktest.Patience, stacktest.Frequency)
	l.noneAfter(t, c)
	_, status := l.control(t, c, "unpause", nil)
	require.Less(t, status, http.StatusBadRequest)
}

func resolveDoubt(t testing.TB, l *lab, c cell) {
	t.Helper()
	l.Becomes(t, c.run.RunID, agent.InDoubt)
	l.noneAfter(t, c)
	l.resolve(t, c)
}

// control asks for something to be done with a cell's run.
func (l *lab) control(t testing.TB, c cell, what string, body object) (run agent.Run, status int) {
	t.Helper()
	status = l.Call(t, http.MethodPost, "/api/v1/agent/runs/"+c.run.RunID+"/"+what, body, &run)
	return run, status
}

// noneAfter requires that nothing after the command that is held has begun.
func (l *lab) noneAfter(t testing.TB, c cell) {
	t.Helper()
	for _, id := range c.commands()[slices.Index(places, c.place)+1:] {
		require.Zero(t, l.effects(t, c, id), id)
		status := l.Call(t, http.MethodGet, "/api/v1/agent/runs/"+c.run.RunID+"/commands/"+id, nil, nil)
		require.Equal(t, http.StatusNotFound, status, "nothing is on record of %s", id)
	}
}

// interruptSegments interrupts segments at all their places, and tells of each interruption what has become of them.
func interruptSegments(t *testing.T, databaseURL string) (lines []string) {
	var cells []cell
	for _, of := range interruptions {
		for _, p := range places {
			cells = append(cells, cell{class: of.class, boundary: during, place: p, tool: of.tool, onError: of.onError})
		}
	}
	l := startLab(t, databaseURL, cells, nil)
	each := func(do func(of interruption, c cell)) {
		for i, c := range l.cells {
			do(interruptions[i/len(places)], c)
		}
	}
	each(func(of interruption, c cell) {
		if of.strike != nil {
			of.strike(t, l, c)
		}
	})
	l.letGo()
	each(func(of interruption, c cell) {
		if of.goesOn != nil {
			of.goesOn(t, l, c)
		}
	})
	each(func(of interruption, c cell) {
		t.Run(strings.Join([]string{of.name, string(c.class), string(c.place)}, " "), func(t *testing.T) { l.requireInterrupted(t, of, c) })
	})
	for _, of := range interruptions {
		after := "not begun"
		if of.after {
			after = "once"
		}
		lines = append(lines, fmt.Sprintf("| %s | %s | %s | %s | %s |", of.name, of.class, strings.ReplaceAll(string(of.held), "_", " "), after,
			strings.ReplaceAll(string(of.ends), "_", " ")))
	}
	return lines
}

func (l *lab) requireInterrupted(t *testing.T, of interruption, c cell) {
	runID := c.run.RunID
	require.Equal(t, of.ends, l.ComesTo(t, runID, stacktest.Ends...).Type, "run %s", runID)
	frames := l.Finished(t, runID)
	require.Equal(t, 1, countEnds(frames))
	for i, id := range c.commands() {
		switch at := slices.Index(places, c.place); {
		case i == at:
			require.True(t, l.holds.sharedSegment(agent.IdempotencyKey(runID, id)), "its lane")
			require.Equal(t, of.held, l.command(t, runID, id).State)
		case i < at || of.after:
			require.Equal(t, agent.Committed, l.command(t, runID, id).State, id)
		}
		if i <= slices.Index(places, c.place) || of.after {
			require.Equal(t, 1, l.effects(t, c, id), id)
			require.Equal(t, 1, l.command(t, runID, id).Dispatches, id)
		}
	}
	if !of.after {
		l.noneAfter(t, c)
	}
	paused := false
	for _, f := range frames {
		switch f.Event.Type {
		case agent.RunPaused, agent.RunUnpaused:
			paused = f.Event.Type == agent.RunPaused
		case agent.CommandEmitted:
			require.False(t, paused, "%s begins while the run is paused", f.Event.CommandID)
		default:
		}
	}
	l.Verifies(t, runID)
	if c.place == middle {
		l.RequireSound(t, l.Client, runID, 1)
	}
}
