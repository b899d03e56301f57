package workflows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// What parks leaves its place to others. What goes on takes one again, and waits for it where there is none.
func TestParkedNodesTakeAPlaceAgain(t *testing.T) {
	t.Parallel()
	five := func(kind func(string, ...string) step) *agent.Shape {
		return graph(kind("a"), kind("b"), kind("c"), kind("d"), kind("e"), say("f", "a", "b", "c", "d", "e"))
	}
	every := func(e effect) script {
		return script{"a": {e, {}}, "b": {e, {}}, "c": {e, {}}, "d": {e, {}}, "e": {e, {}}}
	}
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		parks  func(w *world)
		goesOn func(w *world)
	}{
		"paused": {input(five(work)), nil, func(w *world) { w.pause(0) }, func(w *world) { w.unpause(0) }},
		"in doubt": {input(five(send)), every(effect{ends: doubts}), nil, func(w *world) {
			for _, id := range []string{"a", "b", "c", "d", "e"} {
				w.resolve(id, agent.OutcomeRetry, 0)
			}
		}},
		"asked": {input(five(send)), every(effect{ends: asked}), nil, func(w *world) {
			for i, id := range []string{"a", "b", "c", "d", "e"} {
				w.granted[id] = true
				w.tell(agent.ApprovalSignal, agent.Intent{ID: int64(i + 1), CommandID: id}, 0)
			}
		}},
		"out of time": {parksWith(input(graph(say("z"), work("a", "z"), work("b", "z"), work("c", "z"), work("d", "z"), work("e", "z"), say("f", "a", "b", "c", "d", "e"))),
			agent.Limits{Timeout: agent.Duration(time.Minute)}), nil, nil, func(w *world) { w.give(agent.Limits{Timeout: agent.Duration(99 * time.Hour)}) }},
		"a turn": {react(), script{"main#1": {{begun: func(w *world) { w.pause(0) }, tools: asks(5).tools}}}, nil, func(w *world) { w.unpause(0) }},
	} {
		for _, most := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, %d at a time", name, most), func(t *testing.T) {
				t.Parallel()
				s := script{}
				for id, effects := range c.script {
					s[id] = append([]effect(nil), effects...)
				}
				w := newWorld(t, parallel(c.in, most), s)
				if c.parks != nil {
					c.parks(w)
				}
				w.later(1000*time.Hour, func(w *world) {
					w.most = 0
					c.goesOn(w)
				})
				w.run()
				require.NoError(t, w.err)
				require.Equal(t, most, w.most)
				require.Zero(t, w.atWork)
			})
		}
	}
}

// A node that waits for its place does not begin when the run fails meanwhile.
func TestFailureWhileANodeWaitsForAPlace(t *testing.T) {
	t.Parallel()
	w := run(t, parallel(input(graph(send("a"), work("b"), say("c", "a", "b"))), 1), script{
		"a": {{ends: doubts, begun: func(w *world) { w.later(90*time.Minute, func(w *world) { w.resolve("a", agent.OutcomeRetry, 0) }) }}, {}},
		"b": {{ends: fails, code: agent.CodeToolFailed, takes: 50 * time.Hour}},
	})
	require.Equal(t, agent.CodeToolFailed, w.failure())
	require.Equal(t, []string{"a", "b"}, w.commands())
}

// Whatever parks and goes on whenever, no more is at work than may be, and the run comes to its end.
func TestNoMoreAtWorkThanMayBe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan, s := anyPlan(rt)
		for i := range plan.Nodes {
			if plan.Nodes[i].OnError == agent.OnErrorFail {
				s[plan.Nodes[i].ID] = nil
			}
		}
		plan.Nodes[len(plan.Nodes)-1].ID = agent.AnswerNodeID
		for _, id := range sortedKeys(s) {
			if effects := s[id]; id != agent.AnswerNodeID && len(effects) > 0 && rapid.IntRange(0, 2).Draw(rt, id+" parks") == 0 {
				effects[0].ends = rapid.SampledFrom([]ending{doubts, asked}).Draw(rt, id+" parks as")
			}
		}
		in := parksWith(parallel(input(plan), rapid.IntRange(1, 4).Draw(rt, "max_parallel")), agent.Limits{MaxToolCalls: rapid.IntRange(1, 12).Draw(rt, "max_tool_calls")})
		c := newChain(t, in, s, rapid.SampledFrom([]func(int) time.Duration{at(), anyHandOvers(rt)}).Draw(rt, "long"))
		c.answers(time.Duration(rapid.IntRange(1, 9).Draw(rt, "every"))*time.Hour+7, time.Duration(rapid.IntRange(0, 4).Draw(rt, "late"))*time.Hour,
			func(l *agent.Limits) { l.MaxToolCalls++ })
		for i := range rapid.IntRange(0, 3).Draw(rt, "pauses") {
			from := time.Duration(rapid.IntRange(0, 20).Draw(rt, fmt.Sprintf("pause %d", i))) * time.Hour
			long := time.Duration(rapid.IntRange(1, 20).Draw(rt, fmt.Sprintf("pause %d takes", i))) * time.Hour
			id := int64(10 * (i + 1))
			c.after(from, func(w *world) { c.signal(agent.PauseSignal, agent.Intent{ID: id})(w) })
			c.after(from+long, func(w *world) { c.signal(agent.UnpauseSignal, agent.Intent{ID: id + 5})(w) })
		}
		w := c.run()
		require.NoError(rt, w.err)
		for _, w := range c.worlds {
			require.LessOrEqual(rt, w.most, in.Limits.MaxParallel)
		}
		requireEndsAsFolded(rt, w)
	})
}
