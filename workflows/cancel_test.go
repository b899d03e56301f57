package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// cancelNow asks the run to stop while the command is at work.
func cancelNow(w *world) { w.cancel(time.Minute) }

func TestCancel(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b", "a"), say("c", "b"))
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		want   []string
	}{
		"while planning":                   {input(nil), script{"plan": {{plan: plan, begun: cancelNow}}}, []string{"plan"}},
		"at the first node":                {input(plan), script{"a": {{begun: cancelNow}}}, []string{"a"}},
		"in the middle":                    {input(plan), script{"b": {{begun: cancelNow}}}, []string{"a", "b"}},
		"at the last node":                 {input(plan), script{"c": {{begun: cancelNow}}}, []string{"a", "b", "c"}},
		"an external effect":               {input(graph(send("a"), say("b", "a"))), script{"a": {{begun: cancelNow}}}, []string{"a"}},
		"side by side":                     {input(graph(work("a"), work("b"), say("c", "a", "b"))), script{"b": {{begun: cancelNow}}}, []string{"a", "b"}},
		"a node that would be tried again": {input(graph(work("a").tries(5), say("b", "a"))), script{"a": {{ends: fails, begun: cancelNow}}}, []string{"a"}},
		"a turn":                           {react(), script{"main#1": {{tools: asks(2).tools, begun: cancelNow}}}, []string{"main#1"}},
		"the tools of a turn":              {react(), script{"main#1": {asks(2)}, "main#1.1": {{begun: cancelNow}}}, []string{"main#1", "main#1.0", "main#1.1"}},
		"a turn whose tools wait for a place": {parallel(react(), 1), script{"main#1": {asks(3)}, "main#1.0": {{begun: cancelNow}}},
			[]string{"main#1", "main#1.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			w.requireCancelled()
			require.Equal(t, c.want, w.commands())
			require.Equal(t, "me", w.finish.By)
			require.Equal(t, "enough", w.finish.Error.Message)
			require.Equal(t, agent.CodeCancelled, w.finish.Error.Code)
			require.Equal(t, agent.Cancelled, w.snapshot().State.Status)
			last := w.commands()[len(w.commands())-1]
			state := agent.CommandAborted
			if w.rows[last].Effect == agent.External {
				state = agent.CommandInDoubt
			}
			require.Equal(t, state, w.rows[last].State)
			for _, call := range w.calls {
				if call.name == string(agent.SettleCommand) {
					require.Equal(t, agent.CodeCancelled, call.reason)
				}
			}
		})
	}
}

func TestCancelBeforeAnythingBegan(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]agent.RunInput{"no plan yet": input(nil), "with a plan": input(graph(work("a"), say("b", "a"))), "react": react()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, in, nil)
			w.cancel(0)
			w.run().requireCancelled()
			require.NotContains(t, eventTypes(w), agent.CommandEmitted)
			require.Equal(t, 1, count(w, agent.Finish))
		})
	}
}

func TestCancelIsTakenOnce(t *testing.T) {
	t.Parallel()
	for name, intents := range map[string][]agent.Intent{
		"the same, twice": {{ID: 7, By: "me", Reason: "enough"}, {ID: 7, By: "me", Reason: "enough"}},
		"two of them":     {{ID: 7, By: "me", Reason: "enough"}, {ID: 8, By: "you", Reason: "too"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(graph(work("a"), say("b", "a"))), script{"a": {{begun: func(w *world) { w.cancel(time.Minute, intents...) }}}})
			w.requireCancelled()
			require.Equal(t, "me", w.finish.By)
			require.Equal(t, "enough", w.finish.Error.Message)
			require.Equal(t, []string{"CallTool", "SettleCommand", "Finish"}, w.activities())
		})
	}
}

func TestCancelWhileTheRunEndsDoesNotUndoItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(say("a"))), nil)
	w.finishing = func(w *world) { w.env.SignalWorkflow(agent.CancelSignal, agent.Intent{ID: 1}) }
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, agent.Completed, w.out.Status)
}

func TestCancelThatTheRecordKnowsBeforeItsSignalComes(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b", "a"), say("c", "b"))
	late := func(w *world) { w.cancel(50 * time.Hour) } // the dispatcher is slow; a ends meanwhile
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		most   int
	}{
		"the next node is refused":   {input(plan), script{"a": {{begun: late}}}, 2},
		"the gate stops the node":    {input(plan), script{"a": {{ends: aborts, begun: late}}}, 1},
		"the gate stops the planner": {input(nil), script{"plan": {{ends: aborts, begun: late}}}, 1},
		"the gate stops a turn":      {react(), script{"main#1": {{ends: aborts, begun: late}}}, 1},
		"the gate stops a tool":      {react(), script{"main#1": {asks(2)}, "main#1.0": {{ends: aborts, begun: late}}}, 3},
		"the next turn is refused":   {react(), script{"main#1": {asks(1)}, "main#1.0": {{begun: late}}}, 3},
		"the first one is refused":   {input(nil), script{"plan": {{begun: late, ends: refused, code: agent.CodeCancelled}}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			w.requireCancelled()
			require.Equal(t, "me", w.finish.By)
			require.Len(t, w.commands(), c.most, "nothing is scheduled again and again")
			require.Equal(t, -1, inDoubt(w))
		})
	}
}

func TestCancelInTemporal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in      agent.RunInput
		command string
	}{
		"while planning":      {input(nil), "plan"},
		"at a node":           {input(graph(work("a"), say("b", "a"))), "a"},
		"at a tool of a turn": {react(), "main#1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, script{"main#1": {asks(1)}, c.command: {{plan: graph(say("a")), tools: asks(1).tools, begun: func(w *world) {
				w.env.RegisterDelayedCallback(w.env.CancelWorkflow, time.Minute)
			}}}})
			w.requireCancelled()
			require.Equal(t, "cancelled in Temporal", w.finish.Error.Message)
			require.Equal(t, agent.CommandAborted, w.rows[c.command].State)
		})
	}
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b", "a"), say("c", "b"))
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		ends   agent.Status
		want   []string
	}{
		"reached at a node":      {limited(input(plan), 90*time.Minute), nil, agent.FailedStatus, []string{"a", "b"}},
		"reached while planning": {limited(input(nil), time.Minute), script{"plan": {{plan: plan}}}, agent.FailedStatus, []string{"plan"}},
		"reached in a turn":      {limited(react(), 90*time.Minute), script{"main#1": {asks(1)}}, agent.FailedStatus, []string{"main#1", "main#1.0"}},
		"reached in doubt": {limited(input(graph(send("a"), say("b", "a"))), 90*time.Minute), script{"a": {{ends: doubts}}},
			agent.FailedStatus, []string{"a"}},
		"reached after a cancel": {limited(input(plan), 30*time.Minute), script{"a": {{begun: cancelNow}}}, agent.Cancelled, []string{"a"}},
		"not reached":            {limited(input(plan), 100*time.Hour), nil, agent.Completed, []string{"a", "b", "c"}},
		"none":                   {limited(input(plan), 0), script{"a": {{takes: 10000 * time.Hour}}}, agent.Completed, []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			require.Equal(t, c.ends, w.finish.Status)
			require.Equal(t, c.want, w.commands())
			if c.ends == agent.FailedStatus {
				require.Equal(t, agent.CodeLimit, w.failure())
				require.ErrorContains(t, w.err, "longer than its limit")
			}
		})
	}
}
