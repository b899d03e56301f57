package workflows_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// anyEffect draws what becomes of one scheduling of a command.
func anyEffect(t *rapid.T, label string) effect {
	return effect{
		ends: rapid.SampledFrom([]ending{commits, commits, commits, commits, fails, fails, refused, lost, unheard, doubts}).Draw(t, label+" ends"),
		code: rapid.SampledFrom([]agent.Code{agent.CodeToolFailed, agent.CodeTimeout, agent.CodeInternal}).Draw(t, label+" code"),
		// Odd times, so that hardly two things happen at once.
		takes:  time.Duration(rapid.Int64Range(int64(time.Minute), int64(3*time.Hour)).Draw(t, label+" takes")),
		tokens: rapid.IntRange(0, 100).Draw(t, label+" tokens"),
	}
}

func anyEffects(t *rapid.T, label string) []effect {
	effects := make([]effect, rapid.IntRange(1, 2).Draw(t, label+" schedulings"))
	for i := range effects {
		effects[i] = anyEffect(t, fmt.Sprintf("%s/%d", label, i))
	}
	return effects
}

// anyPlan draws a graph and what becomes of its commands.
func anyPlan(t *rapid.T) (*agent.Shape, script) {
	var steps []step
	s := script{}
	for i := range rapid.IntRange(1, 9).Draw(t, "nodes") {
		id := fmt.Sprintf("n%d", i)
		var after []string
		for k := range i {
			if rapid.IntRange(0, 3).Draw(t, fmt.Sprintf("%s after n%d", id, k)) == 0 {
				after = append(after, fmt.Sprintf("n%d", k))
			}
		}
		n := rapid.SampledFrom([]func(string, ...string) step{work, send, say, find}).Draw(t, id+" kind")(id, after...)
		n = n.tries(rapid.IntRange(0, 3).Draw(t, id+" tries"))
		n = n.onError(rapid.SampledFrom([]agent.OnError{agent.OnErrorFail, agent.OnErrorContinue, agent.OnErrorSkip, agent.OnErrorSkip}).Draw(t, id+" on_error"))
		for try := 1; try <= max(n.Tries, 1); try++ {
			command := agent.RetryCommandID(id, try)
			s[command] = anyEffects(t, command)
		}
		steps = append(steps, n)
	}
	last := rapid.SampledFrom([]string{agent.AnswerNodeID, "last"}).Draw(t, "last")
	var sinks []string
	for _, n := range steps {
		if !slices.ContainsFunc(steps, func(o step) bool { return slices.Contains(o.after, n.ID) }) {
			sinks = append(sinks, n.ID)
		}
	}
	s[last] = anyEffects(t, last)
	return graph(append(steps, say(last, sinks...))...), s
}

func TestAnyPlanIsExecutedByItsRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan, s := anyPlan(rt)
		in := parallel(input(plan), rapid.IntRange(1, 4).Draw(rt, "max_parallel"))
		// A run in doubt would wait for ever; some are cancelled before.
		cancelAfter := time.Duration(rapid.SampledFrom([]int{1, 5, 10000}).Draw(rt, "cancelled after hours")) * time.Hour
		delay := time.Duration(rapid.IntRange(0, 3).Draw(rt, "signal late by hours")) * time.Hour
		execute := func() *world {
			w := newWorld(t, in, s)
			w.env.RegisterDelayedCallback(func() { w.cancel(delay) }, cancelAfter)
			return w.run()
		}
		w := execute()
		checkPlanRun(rt, w)
		again := execute()
		require.Equal(rt, w.calls, again.calls, "the same input gives the same commands")
		require.Equal(rt, w.events, again.events)
	})
}

// checkPlanRun holds an execution that has ended to the rules of a plan.
func checkPlanRun(t *rapid.T, w *world) {
	nodes := w.in.Plan.Nodes
	require.LessOrEqual(t, w.most, w.in.Limits.MaxParallel)
	require.NotNil(t, w.finish)
	ended := make([]int64, len(nodes))
	how := make([]agent.EventType, len(nodes))
	for i, n := range nodes {
		for _, e := range w.events {
			if e.NodeID == n.ID && slices.Contains([]agent.EventType{agent.NodeFinished, agent.NodeFailed, agent.NodeSkipped}, e.Type) {
				require.Zero(t, ended[i], "node %s ends once: %v", n.ID, w.types(n.ID))
				ended[i], how[i] = e.Sequence, e.Type
			}
		}
	}
	for i, n := range nodes {
		if first := w.at(agent.CommandEmitted, n.ID); first > 0 {
			require.NotEqual(t, agent.NodeSkipped, how[i], n.ID)
			for _, dep := range n.DependsOn {
				require.NotZero(t, ended[dep], "%s begins after %s has ended", n.ID, nodes[dep].ID)
				require.Less(t, ended[dep], first, "%s begins after %s has ended", n.ID, nodes[dep].ID)
			}
		}
		if how[i] == agent.NodeSkipped {
			var skipped agent.NodeSkippedData
			require.NoError(t, json.Unmarshal(w.events[ended[i]-1].Data, &skipped))
			require.True(t, slices.ContainsFunc(n.DependsOn, func(d int) bool {
				cut := how[d] == agent.NodeSkipped || how[d] == agent.NodeFailed && nodes[d].OnError == agent.OnErrorSkip
				return cut && strings.Contains(skipped.Reason, nodes[d].ID)
			}), "%s is skipped since %s", n.ID, skipped.Reason)
		}
	}
	checkCommands(t, w)
	checkEnd(t, w, how)
	requireStartedOnce(t, w)
	state, fold := w.snapshot().State, w.fold()
	require.Equal(t, []any{fold.Started, fold.Finished, fold.Failed, fold.Skipped, fold.Cursor, fold.Status, fold.ToolCalls, fold.Tokens},
		[]any{state.Started, state.Finished, state.Failed, state.Skipped, state.Cursor, state.Status, state.ToolCalls, state.Tokens}, "the state is the fold of the record")
}

// requireStartedOnce: whatever a node has waited for, and however often it was handed over or resumed, it begins once, and before its
// commands do.
func requireStartedOnce(t *rapid.T, w *world) {
	started := map[string]bool{}
	for _, e := range w.events {
		switch e.Type {
		case agent.NodeStarted:
			require.False(t, started[e.NodeID], "%s begins once: %v", e.NodeID, w.types(e.NodeID))
			started[e.NodeID] = true
		case agent.CommandEmitted, agent.ApprovalRequested:
			require.True(t, started[e.NodeID], e.CommandID)
		default:
		}
	}
}

// checkCommands: what is committed or has failed is not scheduled again, and no command is scheduled without end.
func checkCommands(t *rapid.T, w *world) {
	count := map[string]int{}
	for _, id := range w.commands() {
		count[id]++
		require.LessOrEqual(t, count[id], 4, id)
		if count[id] > 1 {
			require.NotEqual(t, commits, w.script[id][0].ends, id)
		}
	}
	committed := map[string]int{}
	for _, e := range w.events {
		if e.Type == agent.CommandCommitted {
			committed[e.CommandID]++
			require.Equal(t, 1, committed[e.CommandID], e.CommandID)
		}
	}
}

// checkEnd: a run completes with its final node; it fails when it cannot; it is cancelled only when somebody asks for it.
func checkEnd(t *rapid.T, w *world, how []agent.EventType) {
	nodes := w.in.Plan.Nodes
	last := len(nodes) - 1
	fatal := slices.ContainsFunc(how, func(e agent.EventType) bool { return e == agent.NodeFailed })
	fatal = fatal && slices.ContainsFunc(nodes, func(n agent.ShapeNode) bool {
		return n.OnError == agent.OnErrorFail && slices.Contains(w.types(n.ID), agent.NodeFailed)
	})
	switch w.finish.Status {
	case agent.Completed:
		require.NoError(t, w.err)
		require.Equal(t, agent.NodeFinished, how[last])
		require.False(t, fatal)
		require.NotContains(t, how, agent.EventType(""), "every node has an end")
	case agent.FailedStatus:
		require.Equal(t, w.finish.Error.Code, w.failure())
		require.True(t, fatal || how[last] == agent.NodeSkipped || how[last] == agent.NodeFailed)
	default:
		require.Equal(t, agent.Cancelled, w.finish.Status)
		require.Equal(t, "me", w.finish.By)
	}
}

// reopened is the world of a later execution, whose record is a part of an earlier one's.
func reopened(t testing.TB, before *world, events int) *world {
	w := newWorld(t, before.in, before.script)
	w.events = slices.Clone(before.events[:events])
	w.in.Epoch = 2
	w.append(agent.RunReopened, "", "", struct{}{})
	w.in = resumed(w.in, w.fold())
	for _, e := range w.events {
		row := w.rows[e.CommandID]
		switch e.Type {
		case agent.CommandEmitted: // an effect at work was lost, and may be repeated
			var d agent.CommandEmittedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			w.rows[e.CommandID] = &agent.CommandRow{CommandID: e.CommandID, NodeID: e.NodeID, InputHash: e.CommandID, Kind: d.Kind,
				State: agent.Released, DispatchNo: 1, Owner: agent.Dispatch{Epoch: 1}}
		case agent.CommandCommitted:
			row.State, row.Sequence = agent.Committed, e.Sequence
		case agent.CommandFailedType:
			var d agent.CommandFailedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			row.State, row.Sequence, row.Error = agent.CommandFailed, e.Sequence, d.Error
		default:
		}
	}
	return w
}

func TestAnyPlanIsResumedFromAnyEventOfItsRecord(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan, s := anyPlan(rt)
		for command, effects := range s { // nothing that ends the run before its plan is through
			e := effects[0]
			if e.ends != fails && e.ends != unheard {
				e.ends = commits
			}
			s[command] = []effect{e}
		}
		for i := range plan.Nodes {
			if plan.Nodes[i].OnError == agent.OnErrorFail {
				s[plan.Nodes[i].ID] = nil
			}
		}
		plan.Nodes[len(plan.Nodes)-1].ID = agent.AnswerNodeID
		first := run(t, parallel(input(plan), rapid.IntRange(1, 4).Draw(rt, "max_parallel")), s)
		require.NoError(rt, first.err)
		started := 2 // run_started and plan_generated are written when the run is accepted
		second := reopened(t, first, rapid.IntRange(started, len(first.events)-1).Draw(rt, "events before the crash"))
		done := second.fold()
		second.run()
		require.NoError(rt, second.err)
		require.Zero(rt, count(second, agent.CallPlanner))
		for _, id := range second.commands() {
			i := slices.IndexFunc(plan.Nodes, func(n agent.ShapeNode) bool { return n.ID == agent.CommandNodeID(id) })
			require.False(rt, done.Done(i), "%s belongs to a node that has ended", id)
		}
		second.in.Plan = plan
		checkPlanRun(rt, second)
		was, is := first.fold(), second.fold()
		require.Equal(rt, []agent.Bits{was.Finished, was.Failed, was.Skipped}, []agent.Bits{is.Finished, is.Failed, is.Skipped})
	})
}

func TestAnyLoopIsExecutedByItsRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := parallel(react(), rapid.IntRange(1, 4).Draw(rt, "max_parallel"))
		in.Limits.MaxSteps = rapid.IntRange(1, 4).Draw(rt, "max_steps")
		s, turns := script{}, rapid.IntRange(1, 5).Draw(rt, "turns")
		want := []string{}
		for turn := 1; turn <= turns; turn++ {
			id := agent.TurnCommandID(agent.MainNodeID, turn)
			asked := 0
			if turn < turns {
				asked = rapid.IntRange(1, 5).Draw(rt, id+" asks for")
			}
			e := asks(asked)
			e.tokens = 7 * turn
			e.takes = time.Duration(rapid.Int64Range(int64(time.Minute), int64(time.Hour)).Draw(rt, id+" takes"))
			e.ends = rapid.SampledFrom([]ending{commits, commits, unheard}).Draw(rt, id+" ends")
			s[id] = []effect{e}
			if turn <= in.Limits.MaxSteps {
				want = append(want, id)
			}
			for k := range asked {
				call := agent.TurnToolCommandID(agent.MainNodeID, turn, k)
				e := anyEffect(rt, call)
				if e.ends == doubts || e.ends == refused {
					e.ends = commits
				}
				s[call] = []effect{e}
				if turn <= in.Limits.MaxSteps {
					want = append(want, call)
				}
			}
		}
		w := run(t, in, s)
		require.Equal(rt, want, w.commands())
		require.LessOrEqual(rt, w.most, in.Limits.MaxParallel)
		for turn := 2; turn <= min(turns, in.Limits.MaxSteps); turn++ {
			begins := w.at(agent.CommandEmitted, agent.TurnCommandID(agent.MainNodeID, turn))
			for k := range s[agent.TurnCommandID(agent.MainNodeID, turn-1)][0].tools {
				row := w.rows[agent.TurnToolCommandID(agent.MainNodeID, turn-1, k)]
				require.Less(rt, row.Sequence, begins, "%s has an outcome before turn %d", row.CommandID, turn)
			}
		}
		if turns > in.Limits.MaxSteps {
			require.Equal(rt, agent.CodeLimit, w.failure())
		} else {
			require.NoError(rt, w.err)
		}
		require.Equal(rt, w.calls, run(t, in, s).calls, "the same input gives the same commands")
		state, fold := w.snapshot().State, w.fold()
		require.Equal(rt, []any{fold.Started, fold.Finished, fold.Failed, fold.Status, fold.ToolCalls, fold.Tokens},
			[]any{state.Started, state.Finished, state.Failed, state.Status, state.ToolCalls, state.Tokens})
	})
}
