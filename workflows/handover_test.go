package workflows_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// soon suggests a hand-over of every execution as soon as something has happened in it.
func soon(int) time.Duration { return time.Minute }

// loopOf is a loop whose turns ask for so many tools each, before it answers.
func loopOf(turns ...int) script {
	s := script{}
	for i, n := range turns {
		s[agent.TurnCommandID(agent.MainNodeID, i+1)] = []effect{asks(n)}
	}
	return s
}

// parks has a run park at its limits.
func parks(in agent.RunInput) agent.RunInput {
	in.Limits.OnLimit = agent.OnLimitPark
	return in
}

func (w *world) count(typ agent.EventType) (n int) {
	for _, e := range w.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

func TestALoopIsHandedOverBetweenItsTurns(t *testing.T) {
	t.Parallel()
	s := loopOf(2, 2, 2)
	straight := run(t, react(), s)
	c := newChain(t, react(), s, soon)
	w := c.run()
	require.NoError(t, w.err)
	require.Len(t, c.worlds, 4)
	require.Equal(t, straight.commands(), w.commands(), "no turn is walked through twice")
	require.Equal(t, straight.types(agent.MainNodeID), w.types(agent.MainNodeID))
	require.Equal(t, straight.told(), w.told())
	w.requireBelieved()
	require.Equal(t, map[string]int{agent.MainNodeID: 3}, w.believed[2].believed.Turns)
	require.Equal(t, 6, w.believed[2].believed.ToolCalls)
}

func TestAPlanIsHandedOver(t *testing.T) {
	t.Parallel()
	plan := graph(work("a").onError(agent.OnErrorSkip), work("b", "a"), work("c", "b"), work("d"), work("e", "d"), work("f", "e"), work("g", "f"), say("h", "c", "g"))
	s := script{"a": {{ends: fails}}, "d": {{takes: 3 * time.Hour}}}
	in := parallel(input(plan), 2)
	c := newChain(t, in, s, at(2*time.Hour, 0))
	w := c.run()
	require.ErrorContains(t, w.err, "the final node was skipped")
	require.Len(t, c.worlds, 3)
	require.Equal(t, run(t, in, s).told(), w.told())
	require.Equal(t, 4, w.lastFact, "node_failed and three times node_skipped: facts go on counting")
	w.requireBelieved()
}

func TestThePlannersExecutionIsHandedOver(t *testing.T) {
	t.Parallel()
	c := newChain(t, input(nil), script{agent.PlanNodeID: {{plan: graph(work("a"), say("b", "a"))}}}, soon)
	w := c.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{agent.PlanNodeID, "a", "b"}, w.commands())
	require.Len(t, c.worlds, 2)
	w.requireBelieved()
}

// TestARunAtRestIsHandedOver: what waits does so in the next execution, which asks the record of nothing else.
func TestARunAtRestIsHandedOver(t *testing.T) {
	t.Parallel()
	s := loopOf(4)
	s["main#1.1"], s["main#1.3"] = []effect{{ends: doubts}, {}}, []effect{{ends: asked}}
	c := newChain(t, react(), s, func(int) time.Duration { return 0 })
	c.after(1000*time.Hour, func(w *world) {
		require.Len(t, c.worlds, 2, "an execution in which nothing has happened is not handed over")
		require.Equal(t, []string{"main#1", "main#1.1", "main#1.3"}, w.commands()[5:])
		intent := w.answer("main#1.1", agent.OutcomeRetry)
		c.signal(agent.ResolvedSignal, intent)(w)
	})
	c.after(2000*time.Hour, func(w *world) {
		require.Len(t, c.worlds, 3)
		w.granted["main#1.3"] = true
		c.signal(agent.ApprovalSignal, agent.Intent{ID: 7, CommandID: "main#1.3"})(w)
	})
	w := c.run()
	require.NoError(t, w.err)
	require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.CommandDoubtType, agent.CommandResolved, agent.CommandCommitted}, w.types("main#1.1"))
	require.Equal(t, []agent.EventType{agent.ApprovalRequested, agent.CommandEmitted, agent.CommandCommitted}, w.types("main#1.3"))
	require.Equal(t, []string{"main#1.3"}, w.believed[0].believed.Open)
	require.Equal(t, []string{"main#1.1"}, w.believed[0].believed.InDoubt)
	w.requireBelieved()
}

// TestNewsDuringAHandOver comes while the old execution writes its last words.
func TestNewsDuringAHandOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script script
		news   func(c *chain, w *world)
		check  func(t *testing.T, c *chain, w *world)
	}{
		"a resolution": {script{"a": {{ends: doubts}, {}}}, func(c *chain, w *world) {
			c.signal(agent.ResolvedSignal, w.answer("a", agent.OutcomeRetry))(w)
		}, func(t *testing.T, _ *chain, w *world) {
			require.Equal(t, int64(1), w.in.Carried.Taken[agent.ResolvedSignal])
		}},
		"a resolution as committed": {script{"a": {{ends: doubts}, {}}}, func(c *chain, w *world) {
			c.signal(agent.ResolvedSignal, w.answer("a", agent.OutcomeCommitted))(w)
		}, func(t *testing.T, _ *chain, w *world) { require.Equal(t, 3, w.snapshot().State.ToolCalls) }},
		"an approval": {script{"a": {{ends: asked}}}, func(c *chain, w *world) {
			w.granted["a"] = true
			c.signal(agent.ApprovalSignal, agent.Intent{ID: 1, CommandID: "a"})(w)
		}, nil},
		"a message": {script{"a": {{ends: asked}}}, func(c *chain, w *world) {
			c.signal(agent.MessageSignal, agent.Intent{ID: 1, Sequence: 77})(w)
			grant(c, "a")
		}, func(t *testing.T, _ *chain, w *world) { require.Equal(t, int64(77), w.in.Heard) }},
		"limits": {script{"a": {{ends: asked}}}, func(c *chain, w *world) {
			c.signal(agent.LimitsSignal, agent.Intent{ID: 1, Limits: &agent.Limits{MaxSteps: 7, MaxParallel: 1}})(w)
			grant(c, "a")
		}, func(t *testing.T, _ *chain, w *world) {
			require.Equal(t, agent.Limits{MaxSteps: 7, MaxParallel: 1}, w.in.Limits)
		}},
		"a pause": {script{"a": {{ends: asked}}}, func(c *chain, w *world) {
			c.signal(agent.PauseSignal, agent.Intent{ID: 1})(w)
			grant(c, "a")
			c.after(100*time.Hour, func(w *world) {
				require.Empty(c.t, w.types("b"), "nothing begins")
				c.signal(agent.UnpauseSignal, agent.Intent{ID: 2})(w)
			})
		}, func(t *testing.T, _ *chain, w *world) { require.Equal(t, int64(1), w.in.PausedBy) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ch := newChain(t, input(graph(work("a"), work("c"), work("b", "a", "c"), say("d", "b"))), c.script, at(30*time.Minute))
			ch.last().recording = func(w *world) {
				if len(w.believed) == 0 && w.atWork == 0 && w.types("c") != nil && len(w.types("c")) > 2 { // not the status of a run at rest
					w.recording = nil
					c.news(ch, w)
				}
			}
			w := ch.run()
			require.NoError(t, w.err)
			require.Len(t, ch.worlds, 2)
			require.Equal(t, 1, w.count(agent.RunCompleted))
			w.requireBelieved()
			if c.check != nil {
				c.check(t, ch, w)
			}
		})
	}
}

// grant lets a command go on in ten hours.
func grant(c *chain, command string) {
	c.after(10*time.Hour, func(w *world) {
		w.granted[command] = true
		c.signal(agent.ApprovalSignal, agent.Intent{ID: 9, CommandID: command})(w)
	})
}

func TestACancellationDuringAHandOverEndsTheRun(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"heard at once": 0, "heard by the next execution": 30 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChain(t, react(), loopOf(1, 1, 1), at(30*time.Minute))
			c.last().recording = func(w *world) {
				w.recording = nil
				w.status = agent.Cancelling
				if delay == 0 {
					c.signal(agent.CancelSignal, agent.Intent{ID: 1, By: "me"})(w)
				}
			}
			c.after(30*time.Hour, c.signal(agent.CancelSignal, agent.Intent{ID: 1, By: "me"}))
			w := c.run()
			w.requireCancelled()
			require.Equal(t, "me", w.finish.By)
			require.Equal(t, 1, w.count(agent.RunCancelled))
			require.Empty(t, w.types("main#2"), "nothing begins any more")
			require.Len(t, c.worlds, map[bool]int{true: 1, false: 2}[delay == 0])
		})
	}
}

func TestALimitIsToldOfOnceOverHandOvers(t *testing.T) {
	t.Parallel()
	in := parks(react())
	in.Limits.MaxToolCalls = 2
	c := newChain(t, in, loopOf(4), soon)
	for i := range 3 { // it hears something, and is handed over
		c.after(time.Duration(i+1)*100*time.Hour, c.signal(agent.UnpauseSignal, agent.Intent{ID: int64(i + 1)}))
	}
	c.after(1000*time.Hour, func(w *world) {
		require.GreaterOrEqual(t, len(c.worlds), 4)
		require.Equal(t, 2, w.fold().ToolCalls, "a hand-over does not let a call pass a limit")
		limits := w.in.Limits
		limits.MaxToolCalls = 3
		c.signal(agent.LimitsSignal, agent.Intent{ID: 10, Limits: &limits})(w)
	})
	c.after(2000*time.Hour, func(w *world) {
		require.Equal(t, 3, w.fold().ToolCalls)
		limits := w.in.Limits
		limits.MaxToolCalls = 100
		c.signal(agent.LimitsSignal, agent.Intent{ID: 11, Limits: &limits})(w)
	})
	w := c.run()
	require.NoError(t, w.err)
	require.Equal(t, 2, w.count(agent.LimitReachedType), "at 2, and at 3")
	require.Equal(t, 4, w.fold().ToolCalls)
	w.requireBelieved()
}

func TestTheLoopGuardCountsOverHandOvers(t *testing.T) {
	t.Parallel()
	for name, suggests := range map[string]func(int) time.Duration{"never": at(), "after every turn": soon} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := parks(react())
			in.Limits.OnLimit, in.Limits.MaxRepeats = agent.OnLimitFail, 5
			s := loopOf(1, 1, 1, 2, 1, 1)
			for id, effects := range s {
				for k := range effects[0].tools {
					effects[0].tools[k].Digest = "the same"
				}
				s[id] = effects
			}
			s["main#4.0"] = []effect{{ends: asked}} // so that it is handed over in the middle of a turn
			c := newChain(t, in, s, suggests)
			for i := range 3 {
				c.after(time.Duration(i+1)*100*time.Hour, c.signal(agent.UnpauseSignal, agent.Intent{ID: int64(i + 1)}))
			}
			c.after(1000*time.Hour, func(w *world) {
				w.granted["main#4.0"] = true
				c.signal(agent.ApprovalSignal, agent.Intent{ID: 9, CommandID: "main#4.0"})(w)
			})
			w := c.run()
			require.Equal(t, agent.CodeLimit, w.failure())
			require.Equal(t, 5, w.fold().ToolCalls)
			require.NotContains(t, w.commands(), "main#5.0", "the sixth call is not made")
			require.Equal(t, 1, w.count(agent.LimitReachedType))
			w.requireBelieved()
		})
	}
}

func TestTheTimeAtWorkCountsOverHandOvers(t *testing.T) {
	t.Parallel()
	in := limited(parks(react()), 150*time.Minute)
	c := newChain(t, in, loopOf(1, 1, 1), soon)
	for i := range 3 {
		c.after(time.Duration(i+1)*100*time.Hour, c.signal(agent.UnpauseSignal, agent.Intent{ID: int64(i + 1)}))
	}
	c.after(1000*time.Hour, func(w *world) {
		require.GreaterOrEqual(t, len(c.worlds), 4)
		require.Equal(t, 1, w.fold().ToolCalls)
		require.Equal(t, 2, w.fold().Turns[agent.MainNodeID], "what was at work ends, and nothing begins, however often it is handed over")
		require.Empty(t, w.types("main#2.0"))
		limits := in.Limits
		limits.Timeout = agent.Duration(1000 * time.Hour)
		c.signal(agent.LimitsSignal, agent.Intent{ID: 9, Limits: &limits})(w)
	})
	w := c.run()
	require.NoError(t, w.err)
	require.Equal(t, 1, w.count(agent.LimitReachedType))
	require.Equal(t, 4, w.fold().Turns[agent.MainNodeID])
	w.requireBelieved()

	// As runs were held to it from before limits could park them.
	in.Limits.OnLimit = ""
	c = newChain(t, in, loopOf(1, 1, 1), soon)
	w = c.run()
	require.Equal(t, agent.CodeLimit, w.failure())
	require.Greater(t, len(c.worlds), 1)
}

func TestAPausedRunIsHandedOverPaused(t *testing.T) {
	t.Parallel()
	c := newChain(t, input(graph(work("a"), work("b", "a"), say("c", "b"))), nil, at(2*time.Hour, time.Minute))
	c.after(10*time.Minute, c.signal(agent.PauseSignal, agent.Intent{ID: 1}))
	c.after(100*time.Hour, func(w *world) {
		require.Len(t, c.worlds, 2)
		require.Equal(t, []string{"a"}, w.commands())
		c.signal(agent.PauseSignal, agent.Intent{ID: 1})(w) // once more, late
		c.signal(agent.UnpauseSignal, agent.Intent{ID: 2})(w)
		c.signal(agent.PauseSignal, agent.Intent{ID: 1})(w)
	})
	w := c.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "b", "c"}, w.commands())
	w.requireBelieved()
}

// TestAHandOverThatCannotBeWritten ends the run as failed, or not at all where it is somebody else's already.
func TestAHandOverThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c := newChain(t, react(), loopOf(1, 1), soon)
	c.last().refuseRecord = true
	w := c.run()
	require.Equal(t, agent.CodeInternal, w.failure())
	require.Equal(t, agent.FailedStatus, w.finish.Status)
	require.Len(t, c.worlds, 1)

	c = newChain(t, react(), loopOf(1, 1), soon)
	c.last().recording = func(w *world) { w.status = agent.FailedStatus }
	w = c.run()
	require.Equal(t, agent.CodeStaleEpoch, w.failure())
	require.Nil(t, w.finish)
	require.Len(t, c.worlds, 1)
}

// TestLongHistoriesAreHandedOverUnasked: not every server suggests it.
func TestLongHistoriesAreHandedOverUnasked(t *testing.T) {
	t.Parallel()
	for name, grow := range map[string]func(*world){
		"many events": func(w *world) { w.env.SetCurrentHistoryLength(10_000) },
		"many bytes":  func(w *world) { w.env.SetCurrentHistorySize(8 << 20) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChain(t, react(), loopOf(1, 1), at())
			first := c.last()
			c.after(time.Minute, grow)
			w := c.run()
			require.NoError(t, w.err)
			require.Len(t, c.worlds, 2)
			require.NotSame(t, first, w)
		})
	}
}

// TestExecutionsFromBeforeHandOversGoOn: their histories may hold the suggestion, and what came after it.
func TestExecutionsFromBeforeHandOversGoOn(t *testing.T) {
	t.Parallel()
	c := newChain(t, react(), loopOf(1, 1), soon)
	c.last().env.OnGetVersion("hand-over", workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
	w := c.run()
	require.NoError(t, w.err)
	require.Len(t, c.worlds, 1)
	require.False(t, slices.Contains(w.activities(), string(agent.Record)))
}
