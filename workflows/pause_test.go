package workflows_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// never is the delay of a signal that does not come.
const never = time.Duration(-1)

// pause is what an operator's pause does: the gate refuses from now on, the signal comes when it comes, and twice.
func (w *world) pause(after time.Duration) {
	w.append(agent.RunPaused, "", "", agent.PausedData{By: "ada"})
	w.intents++
	w.pausedBy = w.intents
	w.tell(agent.PauseSignal, agent.Intent{ID: w.pausedBy}, after)
}

func (w *world) unpause(after time.Duration) {
	w.append(agent.RunUnpaused, "", "", agent.PausedData{By: "ada"})
	w.pausedBy = 0
	w.intents++
	w.tell(agent.UnpauseSignal, agent.Intent{ID: w.intents}, after)
}

func (w *world) tell(signal string, i agent.Intent, after time.Duration) {
	if after == never {
		return
	}
	w.env.RegisterDelayedCallback(func() {
		w.env.SignalWorkflow(signal, i)
		w.env.SignalWorkflow(signal, i) // the outbox delivers at least once
	}, after)
}

// later does something at a time of the test's clock, counted from now.
func (w *world) later(after time.Duration, do func(w *world)) {
	w.env.RegisterDelayedCallback(func() { do(w) }, after)
}

// requireNothingBegan: no command begins while the run is paused, by the record.
func (w *world) requireNothingBegan() {
	w.t.Helper()
	paused := false
	for _, e := range w.events {
		switch e.Type {
		case agent.RunPaused:
			paused = true
		case agent.RunUnpaused:
			paused = false
		case agent.CommandEmitted, agent.NodeStarted:
			require.False(w.t, paused, "event %d, %s of %s%s", e.Sequence, e.Type, e.NodeID, e.CommandID)
		default:
		}
	}
}

func TestPauseStopsAtCommandBoundaries(t *testing.T) {
	t.Parallel()
	for shape, c := range map[string]struct {
		in     agent.RunInput
		script script
		at     string // the command during which the run is paused
	}{
		"a plan":          {input(graph(work("a"), work("b", "a"), send("c", "a"), say("d", "b", "c"))), script{}, "a"},
		"its planner":     {input(nil), script{"plan": {{plan: graph(work("a"), say("b", "a"))}}}, "plan"},
		"a turn":          {react(), script{"main#1": {asks(3)}, "main#2": {asks(1)}}, "main#1"},
		"a call of three": {parallel(react(), 1), script{"main#1": {asks(3)}}, "main#1.0"},
		"a second try":    {input(graph(work("a").tries(2), say("b", "a"))), script{"a": {{ends: fails}}}, "a"},
		"a lost reply":    {input(graph(work("a"), say("b", "a"))), script{"a": {{ends: unheard}}}, "a"},
		"a lost worker":   {input(graph(work("a"), say("b", "a"))), script{"a": {{ends: refused}, {}}}, "a"},
	} {
		for how, delay := range map[string]time.Duration{"told at once": 0, "told late": 3 * time.Hour, "never told": never} {
			t.Run(shape+", "+how, func(t *testing.T) {
				t.Parallel()
				s := script{}
				for id, effects := range c.script {
					s[id] = append([]effect(nil), effects...)
				}
				if s[c.at] == nil {
					s[c.at] = []effect{{}}
				}
				var atRest, later int
				s[c.at][0].begun = func(w *world) {
					s[c.at][0].begun = nil
					w.later(10*time.Minute, func(w *world) { w.pause(delay) })
					w.later(400*time.Hour, func(w *world) { atRest = len(w.calls) })
					w.later(9000*time.Hour, func(w *world) { later = len(w.calls); w.unpause(0) })
				}
				w := run(t, c.in, s)
				require.NoError(t, w.err)
				w.requireNothingBegan()
				require.Positive(t, later, "it has waited for the end of the pause")
				require.Equal(t, atRest, later, "a run that is paused for long schedules nothing: %v", w.activities())
				require.Greater(t, len(w.calls), later)
				state, fold := w.snapshot().State, w.fold()
				require.Equal(t, []any{fold.Finished, fold.ToolCalls}, []any{state.Finished, state.ToolCalls})
			})
		}
	}
}

func TestPausedBeforeItsStart(t *testing.T) {
	t.Parallel()
	in := input(graph(work("a"), say("b", "a")))
	in.PausedBy = 7
	w := newWorld(t, in, nil)
	w.pausedBy, w.intents = 7, 7
	w.append(agent.RunPaused, "", "", struct{}{})
	w.later(500*time.Hour, func(w *world) {
		require.Empty(w.t, w.calls)
		w.unpause(0)
	})
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b"}, w.commands())
	w.requireNothingBegan()
}

// Signals of different names may be taken in another order than they were sent: the numbers of the intents tell.
func TestUnpauseBeforeThePauseIsHeardOf(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), say("b", "a"))), script{"a": {{takes: 2 * time.Hour, begun: func(w *world) {
		w.pause(time.Hour)
		w.unpause(0)
	}}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"CallTool", "CallModel", "Finish"}, w.activities())
}

// A pause that ends before the workflow has heard of it, and whose refusal comes after the word that it is over.
func TestRefusalThatComesAfterTheUnpause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(work("a"), say("b", "a"))), script{"a": {{begun: func(w *world) {
		if w.pausedBy != 0 { // its begin is refused, and the reply comes in a second
			w.later(500*time.Millisecond, func(w *world) { w.unpause(0) })
		}
	}}}})
	w.pause(never)
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "a", "b"}, w.commands())
	w.requireNothingBegan()
}

func TestPausedTwice(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), work("b", "a"), say("c", "b"))), script{
		"a": {{begun: func(w *world) {
			w.pause(0)
			w.later(100*time.Hour, func(w *world) { w.unpause(2 * time.Hour) })
			w.later(101*time.Hour, func(w *world) { w.pause(0) }) // before it has heard of the first one's end
			w.later(200*time.Hour, func(w *world) { w.unpause(0) })
		}}},
	})
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b", "c"}, w.commands())
	w.requireNothingBegan()
}

func TestCancelOfAPausedRun(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]agent.RunInput{"a plan": input(graph(work("a"), work("b", "a"), say("c", "b"))), "a loop": react(), "a planner": input(nil)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, in, script{"main#1": {asks(2)}})
			w.pause(0)
			w.later(100*time.Hour, func(w *world) { w.cancel(time.Hour) })
			w.run()
			w.requireCancelled()
			require.Equal(t, agent.Cancelled, w.status)
			w.requireNothingBegan()
		})
	}
}

// The time for which nothing of the run is at work does not count, and what is at work when the pause comes does.
func TestTimeStandsWhilePaused(t *testing.T) {
	t.Parallel()
	in := limited(input(graph(work("a"), say("b", "a"))), 3*time.Hour)
	in.Limits.OnLimit = agent.OnLimitFail
	w := run(t, in, script{"a": {{begun: func(w *world) {
		w.pause(0)
		w.later(900*time.Hour, func(w *world) { w.unpause(0) })
	}}}})
	require.NoError(t, w.err)
	require.NotZero(t, slices.Index(eventTypes(w), agent.RunUnpaused)+1, "it has waited for the end of the pause")
	w.requireNothingBegan()
}

// What a run waits for otherwise is decided while it is paused, and goes on only when that is over.
func TestPausedWhileItWaits(t *testing.T) {
	t.Parallel()
	t.Run("in doubt", func(t *testing.T) {
		t.Parallel()
		w := run(t, input(graph(send("a"), say("b", "a"))), script{"a": {{ends: doubts, begun: func(w *world) {
			w.later(100*time.Hour, func(w *world) {
				require.Equal(w.t, agent.InDoubt, w.status)
				w.pause(0)
			})
			w.later(200*time.Hour, func(w *world) { w.resolve("a", agent.OutcomeCommitted, 0) })
			w.later(300*time.Hour, func(w *world) { w.unpause(0) })
		}}}})
		require.NoError(t, w.err)
		require.Equal(t, []string{"a", "a", "b"}, w.commands(), "the second one is told what is on record")
		w.requireNothingBegan()
	})
	t.Run("at a limit", func(t *testing.T) {
		t.Parallel()
		in := react()
		in.Limits.OnLimit, in.Limits.MaxToolCalls = agent.OnLimitPark, 1
		w := newWorld(t, in, script{"main#1": {asks(2)}})
		w.later(100*time.Hour, func(w *world) {
			require.Equal(w.t, agent.LimitReached, w.status)
			w.pause(0)
		})
		w.later(200*time.Hour, func(w *world) { w.give(agent.Limits{MaxToolCalls: 9}) })
		w.later(300*time.Hour, func(w *world) {
			require.Len(w.t, w.commands(), 2)
			require.Equal(w.t, agent.Running, w.status, "the limit does not hold it any more")
			w.unpause(0)
		})
		w.run()
		require.NoError(t, w.err)
		w.requireNothingBegan()
	})
}
