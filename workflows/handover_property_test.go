package workflows_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// answers has somebody look at the run every few hours: what is in doubt may be tried again once, then it is committed; what
// waits for an approval gets it; limits are raised. The run hears of it later.
func (c *chain) answers(every, late time.Duration, raise func(*agent.Limits)) {
	limits, intents := c.last().in.Limits, int64(1000)
	var round func(w *world)
	var outbox []func(*world) // it keeps their order, which the clock does not for what happens at the same time
	tell := func(name string, intent agent.Intent) {
		intents++
		intent.ID = intents
		outbox = append(outbox, c.signal(name, intent))
		c.after(late, func(w *world) {
			next := outbox[0]
			outbox = outbox[1:]
			next(w)
		})
	}
	round = func(w *world) {
		for _, id := range sortedKeys(w.rows) {
			switch row := w.rows[id]; row.State {
			case agent.CommandInDoubt:
				outcome := agent.OutcomeCommitted
				if row.DispatchNo == 1 {
					outcome = agent.OutcomeRetry
				}
				tell(agent.ResolvedSignal, w.answer(id, outcome))
			case agent.CommandWaiting:
				if !w.granted[id] {
					w.granted[id] = true
					tell(agent.ApprovalSignal, agent.Intent{CommandID: id})
				}
			default:
			}
		}
		if raise != nil {
			raise(&limits)
			given := limits
			tell(agent.LimitsSignal, agent.Intent{Limits: &given})
		}
		c.after(every, round)
	}
	c.after(every, round)
}

// anyHandOvers draws when the executions of a chain are to be handed over.
func anyHandOvers(t *rapid.T) func(int) time.Duration {
	drawn := make([]time.Duration, 30)
	for i := range drawn {
		drawn[i] = time.Duration(rapid.Int64Range(0, int64(8*time.Hour)).Draw(t, fmt.Sprintf("execution %d is long after", i)))
	}
	return at(drawn...)
}

// TestAnyPlanIsHandedOverAnywhere: the record is the same as that of one execution, but for its order, and every execution knew
// where the run stood when it was handed over.
func TestAnyPlanIsHandedOverAnywhere(t *testing.T) {
	t.Parallel()
	var handed atomic.Int32
	rapid.Check(t, func(rt *rapid.T) {
		plan, s := anyPlan(rt)
		for i := range plan.Nodes { // what fails a run depends on the order
			if plan.Nodes[i].OnError == agent.OnErrorFail {
				s[plan.Nodes[i].ID] = nil
			}
		}
		plan.Nodes[len(plan.Nodes)-1].ID = agent.AnswerNodeID
		in := parallel(input(plan), rapid.IntRange(1, 4).Draw(rt, "max_parallel"))
		every, late := time.Duration(rapid.IntRange(3, 9).Draw(rt, "every"))*time.Hour+7, time.Duration(rapid.IntRange(0, 4).Draw(rt, "late"))*time.Hour
		execute := func(suggests func(int) time.Duration) *chain {
			c := newChain(t, in, s, suggests)
			c.answers(every, late, nil)
			c.run()
			return c
		}
		straight, c := execute(at()), execute(anyHandOvers(rt))
		w := c.last()
		require.NoError(rt, w.err)
		require.Equal(rt, straight.last().told(), w.told())
		w.requireBelieved()
		handed.Add(int32(len(c.worlds) - 1))
		requireEndsAsFolded(rt, w)
	})
	require.Positive(t, handed.Load())
}

// requireEndsAsFolded: the last execution knew where the run stood.
func requireEndsAsFolded(t *rapid.T, w *world) {
	requireStartedOnce(t, w)
	state, fold := w.snapshot().State, w.fold()
	require.Equal(t, []any{fold.Started, fold.Finished, fold.Failed, fold.Skipped, fold.Turns, fold.ToolCalls, fold.Tokens, fold.Status},
		[]any{state.Started, state.Finished, state.Failed, state.Skipped, state.Turns, state.ToolCalls, state.Tokens, state.Status})
}

func TestAnyLoopIsHandedOverAnywhere(t *testing.T) {
	t.Parallel()
	var handed atomic.Int32
	rapid.Check(t, func(rt *rapid.T) {
		in := parks(parallel(react(), rapid.IntRange(1, 4).Draw(rt, "max_parallel")))
		in.Limits.MaxSteps = rapid.IntRange(1, 6).Draw(rt, "max_steps")
		in.Limits.MaxToolCalls = rapid.IntRange(0, 6).Draw(rt, "max_tool_calls")
		in.Limits.MaxRepeats = rapid.IntRange(0, 3).Draw(rt, "max_repeats")
		s, turns := script{}, rapid.IntRange(1, 6).Draw(rt, "turns")
		for turn := 1; turn <= turns; turn++ {
			id := agent.TurnCommandID(agent.MainNodeID, turn)
			e := effect{takes: time.Duration(rapid.Int64Range(int64(time.Minute), int64(3*time.Hour)).Draw(rt, id+" takes"))}
			e.ends = rapid.SampledFrom([]ending{commits, commits, unheard}).Draw(rt, id+" ends")
			asks := 0
			if turn < turns {
				asks = rapid.IntRange(1, 4).Draw(rt, id+" asks for")
			}
			for k := range asks {
				call := agent.TurnToolCommandID(agent.MainNodeID, turn, k)
				class := rapid.SampledFrom([]agent.EffectClass{agent.Idempotent, agent.External}).Draw(rt, call+" class")
				e.tools = append(e.tools, agent.ToolRequest{Tool: string(class), Effect: class, Timeout: agent.DefaultToolTimeout,
					Digest: rapid.SampledFrom([]string{"", "x", "y"}).Draw(rt, call+" digest")})
				effects := anyEffects(rt, call)
				for i := range effects {
					if effects[i].ends == refused {
						effects[i].ends = asked
					}
				}
				s[call] = effects
			}
			s[id] = []effect{e}
		}
		every, late := time.Duration(rapid.IntRange(3, 9).Draw(rt, "every"))*time.Hour+7, time.Duration(rapid.IntRange(0, 4).Draw(rt, "late"))*time.Hour
		execute := func(suggests func(int) time.Duration) *chain {
			c := newChain(t, in, s, suggests)
			c.answers(every, late, func(l *agent.Limits) {
				l.MaxSteps++
				if l.MaxToolCalls > 0 {
					l.MaxToolCalls++
				}
				if l.MaxRepeats > 0 {
					l.MaxRepeats++
				}
			})
			c.run()
			return c
		}
		straight, c := execute(at()), execute(anyHandOvers(rt))
		w := c.last()
		require.NoError(rt, w.err)
		require.Equal(rt, without(straight.last(), agent.LimitReachedType), without(w, agent.LimitReachedType))
		met := map[string]bool{}
		for _, e := range w.events {
			if e.Type == agent.LimitReachedType {
				d := decoded[agent.LimitReachedData](rt, e)
				about := fmt.Sprint(d.Limit, d.Most)
				require.False(rt, met[about], "%s is told of once", about)
				met[about] = true
			}
		}
		w.requireBelieved()
		requireEndsAsFolded(rt, w)
		handed.Add(int32(len(c.worlds) - 1))
	})
	require.Positive(t, handed.Load())
}

// TestAnyRunIsCancelledNearAHandOver: it ends, as cancelled or before that, once.
func TestAnyRunIsCancelledNearAHandOver(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan, s := anyPlan(rt)
		in := parallel(input(plan), rapid.IntRange(1, 4).Draw(rt, "max_parallel"))
		c := newChain(t, in, s, anyHandOvers(rt))
		when := time.Duration(rapid.Int64Range(0, int64(12*time.Hour)).Draw(rt, "cancelled after"))
		delay := time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(rt, "heard after"))
		c.after(when, func(w *world) {
			w.status = agent.Cancelling
			c.after(delay, c.signal(agent.CancelSignal, agent.Intent{ID: 1, By: "me", Reason: "enough"}))
		})
		w := c.run()
		w.in.Plan = plan
		checkPlanRun(rt, w)
		w.requireBelieved()
	})
}
