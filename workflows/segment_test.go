package workflows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/policy"
)

// registerSegment executes segments in no time, one call after the other.
func (w *world) registerSegment() {
	fn := func(_ context.Context, in agent.SegmentCall) (agent.SegmentReply, error) {
		told := make(chan agent.SegmentReply, 1)
		w.env.RegisterDelayedCallback(func() { told <- w.segment(in) }, 0)
		return <-told, nil
	}
	w.env.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: string(agent.Segment)})
}

func (w *world) segment(in agent.SegmentCall) (reply agent.SegmentReply) {
	w.calls = append(w.calls, called{name: string(agent.Segment), command: in.Steps[0].CommandID, schedule: len(in.Steps)})
	committed := map[int]bool{}
	for i, s := range in.Steps {
		for _, before := range s.After {
			require.True(w.t, committed[before], "%s goes after %s", s.CommandID, in.Steps[before].CommandID)
		}
		if w.segmentEnds != nil && w.segmentEnds(s.CommandID) {
			break
		}
		r, err := w.callTool(s.ToolCall).end()
		if err != nil || r.Outcome == agent.OutcomeUnknown {
			r = agent.Reply{}
		}
		reply.Commands = append(reply.Commands, agent.CommandReply{CommandID: s.CommandID, Reply: r})
		if committed[i] = r.Outcome == agent.OutcomeCommitted; !committed[i] {
			break
		}
	}
	return reply
}

func (s step) fast() step { s.Fast = true; return s }

// shares are the commands and the sizes of the segments of a run.
func (w *world) shares() (sizes []int) {
	for _, c := range w.calls {
		if c.name == string(agent.Segment) {
			sizes = append(sizes, c.schedule)
		}
	}
	return sizes
}

func TestSegments(t *testing.T) {
	t.Parallel()
	chain := func() *agent.Shape {
		return graph(work("a").fast(), work("b", "a").fast(), work("c", "b").fast(), work("d", "c").fast(), say("e", "d"))
	}
	limited := func(most int) agent.RunInput { return ends(input(chain()), agent.Limits{MaxToolCalls: most}) }
	refusing := input(chain())
	refusing.Policy = &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"*"}, Decision: policy.Forbid}}}
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		shares []int
		ends   agent.Code
	}{
		"what follows each other":          {in: input(chain()), shares: []int{4}},
		"what is beside each other":        {in: input(graph(work("a").fast(), work("b").fast(), work("c"), work("d", "a", "b").fast(), say("e", "c", "d"))), shares: []int{3}},
		"not behind what is not in it":     {in: input(graph(work("a").fast(), say("b", "a"), work("c", "b").fast(), say("d", "c"))), shares: []int{1, 1}},
		"a failure":                        {in: input(chain()), script: script{"b": {{ends: fails}}}, shares: []int{4}, ends: agent.CodeInternal},
		"a call of which nothing is known": {in: input(chain()), script: script{"b": {{ends: refused}, {}}}, shares: []int{4, 2}},
		"a lost reply":                     {in: input(chain()), script: script{"b": {{ends: unheard}, {}}}, shares: []int{4, 2}},
		"as many as the limit allows":      {in: limited(2), shares: []int{2}, ends: agent.CodeLimit},
		"all that the limit allows":        {in: limited(4), shares: []int{4}},
		"a rule against it":                {in: refusing, ends: agent.CodeRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			require.Equal(t, c.ends == "", w.err == nil)
			if c.ends != "" {
				require.Equal(t, c.ends, w.failure())
			}
			require.Equal(t, c.shares, w.shares())
		})
	}
}

// The calls of a turn go in a segment when all of them are in the lane.
func TestSegmentsOfATurn(t *testing.T) {
	t.Parallel()
	turn := func(fast ...bool) []effect {
		e := asks(len(fast))
		for k := range fast {
			e.tools[k].Fast = fast[k]
		}
		return []effect{e}
	}
	w := run(t, input(nil), nil)
	require.Empty(t, w.shares())
	w = run(t, react(), script{"main#1": turn(true, true, true), "main#2": turn(true, false), "main#3": turn(true)})
	require.NoError(t, w.err)
	require.Equal(t, []int{3, 1}, w.shares())
	require.Equal(t, 6, w.snapshot().State.ToolCalls)
	require.Equal(t, w.fold().ToolCalls, w.snapshot().State.ToolCalls)

	// The loop guard knows them, those of the same turn too.
	again := same(1, "x")
	again.tools[0].Fast = true
	twice := same(1, "x")
	twice.tools = append(twice.tools, twice.tools[0])
	twice.tools[0].Fast, twice.tools[1].Fast = true, true
	w = run(t, ends(react(), agent.Limits{MaxRepeats: 2}), script{"main#1": {again}, "main#2": {again}, "main#3": {again}})
	require.Equal(t, agent.CodeLimit, w.failure())
	require.Equal(t, []int{1, 1}, w.shares())
	w = run(t, ends(react(), agent.Limits{MaxRepeats: 1}), script{"main#1": {twice}})
	require.Equal(t, agent.CodeLimit, w.failure())
	require.Empty(t, w.shares())
}

// A run that is paused, or out of time, goes on in the normal lane when it goes on.
func TestNoSegmentWhileARunIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(work("a"), work("b", "a").fast(), say("c", "b"))), script{"a": {{begun: func(w *world) { w.pause(0) }}}})
	w.later(100*time.Hour, func(w *world) {
		require.Empty(w.t, w.shares())
		w.unpause(0)
	})
	w.run()
	require.NoError(t, w.err)
	require.Empty(t, w.shares())
}

// A call that waits for an approval goes on with an answer that came before its segment had ended.
func TestAnswerBeforeTheEndOfASegment(t *testing.T) {
	t.Parallel()
	asked := &question{answer: agent.ApprovalApproved, early: true}
	w := run(t, input(graph(work("a").fast(), work("b", "a").fast(), say("c", "b"))), script{"b": {{asked: asked}, {}}})
	require.NoError(t, w.err)
	require.Equal(t, []int{2}, w.shares())
	require.Less(t, w.env.Now().Sub(asked.over), -20*time.Hour, "long before it expires")
}

// Whatever is in the lane, and however segments end: a plan is executed by its rules.
func TestAnyPlanInTheFastLane(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan, s := anyPlan(rt)
		for i := range plan.Nodes {
			if n := &plan.Nodes[i]; n.Kind == agent.ToolNode {
				n.Fast = rapid.IntRange(0, 3).Draw(rt, fmt.Sprintf("%s fast", n.ID)) > 0
			}
		}
		in := parallel(input(plan), rapid.IntRange(1, 4).Draw(rt, "max_parallel"))
		cancelAfter := time.Duration(rapid.SampledFrom([]int{1, 5, 10000}).Draw(rt, "cancelled after hours")) * time.Hour
		stops := rapid.SliceOfN(rapid.Bool(), 10, 10).Draw(rt, "segments end early")
		w := newWorld(t, in, s)
		seen := 0
		w.segmentEnds = func(string) bool { seen++; return seen%5 > 0 && stops[seen%10] }
		w.env.RegisterDelayedCallback(func() { w.cancel(0) }, cancelAfter)
		checkPlanRun(rt, w.run())
	})
}
