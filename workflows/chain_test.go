package workflows_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// belief is a hand-over: what the execution had begun with and took the state to be, and what it was.
type belief struct{ began, believed, fold agent.State }

// chain is a run that is handed over, as often as Temporal suggests it. What happens to it from outside has its time on the clock
// of the whole chain.
type chain struct {
	t testing.TB
	// suggests is how long Temporal lets an execution go on, by its place in the chain; negative: without end.
	suggests func(execution int) time.Duration
	// worlds are the executions, the last one at work.
	worlds []*world
	began  time.Time     // of the last one, on its own clock
	before time.Duration // what those before it took
	due    []*duty
}

// duty is something that happens to a run at a time.
type duty struct {
	at   time.Duration
	do   func(*world)
	done bool
}

func newChain(t testing.TB, in agent.RunInput, s script, suggests func(int) time.Duration) *chain {
	t.Helper()
	return &chain{t: t, suggests: suggests, worlds: []*world{newWorld(t, in, s)}}
}

func (c *chain) last() *world { return c.worlds[len(c.worlds)-1] }

// after has something done, to whichever execution is at work then.
func (c *chain) after(wait time.Duration, do func(*world)) {
	d := &duty{at: wait, do: do}
	if !c.began.IsZero() {
		d.at += c.before + c.last().env.Now().Sub(c.began)
		c.schedule(c.last(), d)
	}
	c.due = append(c.due, d)
}

func (c *chain) schedule(w *world, d *duty) {
	w.env.RegisterDelayedCallback(func() {
		if !d.done {
			d.done = true
			d.do(w)
		}
	}, max(0, d.at-c.before-max(0, w.env.Now().Sub(c.began))))
}

// signal delivers an intent, twice.
func (c *chain) signal(name string, intent agent.Intent) func(*world) {
	return func(w *world) {
		w.env.SignalWorkflow(name, intent)
		w.env.SignalWorkflow(name, intent)
	}
}

// run executes the run to its end and returns its last execution.
func (c *chain) run() *world {
	c.t.Helper()
	for {
		w := c.last()
		c.began = w.env.Now()
		for _, d := range c.due {
			if !d.done {
				c.schedule(w, d)
			}
		}
		if after := c.suggests(len(c.worlds) - 1); after >= 0 {
			w.env.RegisterDelayedCallback(func() { w.env.SetContinueAsNewSuggested(true) }, after)
		}
		w.run()
		var handed *workflow.ContinueAsNewError
		if !errors.As(w.err, &handed) {
			return w
		}
		require.Nil(c.t, w.finish, "a run that is handed over has not ended")
		require.Zero(c.t, w.atWork, "nothing is at work at a hand-over")
		require.LessOrEqual(c.t, len(c.worlds), 500, "the run does not get on")
		c.before += w.env.Now().Sub(c.began)
		var in agent.RunInput
		require.NoError(c.t, converter.GetDefaultDataConverter().FromPayloads(handed.Input, &in))
		require.Equal(c.t, w.believed[len(w.believed)-1].fold, in.State, "it begins with what the ledger says")
		require.Equal(c.t, len(c.worlds), in.Carried.Handovers)
		c.worlds = append(c.worlds, w.continued(in))
	}
}

// continued is the world of the execution that continues another one: with its record.
func (w *world) continued(in agent.RunInput) *world {
	next := newWorld(w.t, in, w.script)
	env := next.env
	*next = *w
	next.env, next.in, next.err = env, in, nil
	return next
}

// requireBelieved says that every execution agreed with the fold of the record when it was handed over.
func (w *world) requireBelieved() {
	w.t.Helper()
	if w.in.Plan == nil {
		return // it was never handed over
	}
	var nodes []string
	for _, n := range w.in.Plan.Nodes {
		nodes = append(nodes, n.ID)
	}
	for i, b := range w.believed {
		require.Empty(w.t, agent.Misbelieved(b.began, b.believed, b.fold, nodes), "hand-over %d", i+1)
	}
}

// told is the record, without its order and numbers.
func (w *world) told() []string { return without(w, "") }

// without is the record without events of a type.
func without(w *world, typ agent.EventType) (lines []string) {
	for _, e := range w.events {
		if e.Type != typ {
			lines = append(lines, string(e.Type)+" "+e.NodeID+" "+e.CommandID+" "+string(e.Data))
		}
	}
	slices.Sort(lines)
	return lines
}

func decoded[T any](t require.TestingT, e agent.Event) (data T) {
	require.NoError(t, json.Unmarshal(e.Data, &data))
	return data
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// at suggests a hand-over of the first executions at these times, and of no other.
func at(times ...time.Duration) func(int) time.Duration {
	return func(execution int) time.Duration {
		if execution < len(times) {
			return times[execution]
		}
		return -1
	}
}
