package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// segmentOf is a run of the nodes a, b and c of a class, and the segment of their calls: one after the other, or side by side with so
// many at work at once.
func (l *lab) segmentOf(t testing.TB, class agent.EffectClass, inOrder bool, parallel int) (agent.Run, agent.SegmentCall) {
	t.Helper()
	var nodes []string
	in := agent.SegmentCall{MaxParallel: parallel}
	for i, id := range []string{"a", "b", "c"} {
		after := ""
		step := agent.SegmentStep{ToolCall: agent.ToolCall{Tool: toolOf(class)}}
		if inOrder && i > 0 {
			step.After, after = []int{i - 1}, `, "depends_on": ["`+[]string{"a", "b", "c"}[i-1]+`"]`
		}
		nodes = append(nodes, fmt.Sprintf(`{"id": %q, "kind": "tool", "tool": %q, "args": {"n": %d}%s}`, id, toolOf(class), i, after))
		step.Call = agent.Call{CommandID: id, NodeID: id, NodeIndex: i, Schedule: i + 1, Opens: true, Ends: true, Timeout: agent.Duration(time.Minute)}
		in.Steps = append(in.Steps, step)
	}
	run := l.accept(t, agent.ModePlan, fmt.Sprintf(`{"nodes": [%s, %s, %s]}`, nodes[0], nodes[1], nodes[2]))
	in.Scope = agent.Scope{RunID: run.RunID, Epoch: 1}
	for i := range in.Steps {
		in.Steps[i].Scope = in.Scope
	}
	return run, in
}

func segment(a *activities.Activities) func(context.Context, agent.SegmentCall) (agent.SegmentReply, error) {
	return a.Segment
}

// told are the outcomes that a segment tells of, by command, "" where it cannot say.
func told(reply agent.SegmentReply) map[string]agent.Outcome {
	all := map[string]agent.Outcome{}
	for _, c := range reply.Commands {
		all[c.CommandID] = c.Outcome
	}
	return all
}

// at is a hook for one command; the others go by their arguments.
func at(commandID string, h hook) hook {
	return func(ctx context.Context, c tool.Call) (json.RawMessage, error) {
		if c.CommandID == commandID {
			return h(ctx, c)
		}
		return json.RawMessage(`1`), nil
	}
}

// A segment takes each of its calls through the gate: once more, and it gives what is on record and executes nothing.
func TestSegmentGoesThroughTheGate(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for _, class := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
		run, in := l.segmentOf(t, class, true, 1)
		first, err := attempt(t, l, try{}, segment, in)
		require.NoError(t, err)
		require.Equal(t, map[string]agent.Outcome{"a": agent.OutcomeCommitted, "b": agent.OutcomeCommitted, "c": agent.OutcomeCommitted}, told(first))
		record := l.types(t, run)
		again, err := attempt(t, l, try{}, segment, in)
		require.NoError(t, err)
		require.Equal(t, record, l.types(t, run))
		for i, c := range again.Commands {
			require.Equal(t, []int{1}, l.probe.of(run, c.CommandID))
			require.Equal(t, first.Commands[i].Hash, c.Hash)
			require.Equal(t, first.Commands[i].Sequence, c.Sequence)
		}
	}
}

// A call begins when those that it waits for are committed, and beside those that it does not wait for.
func TestOrderWithinASegment(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run, in := l.segmentOf(t, agent.Idempotent, false, 3)
	in.Steps[2].After = []int{0, 1}
	committed := func(id string) bool {
		row, err := l.Command(context.Background(), run.RunID, id)
		return err == nil && row.State == agent.Committed
	}
	begun := make(chan struct{})
	reply, err := attempt(t, l, try{hooks: hooks{after: func(ctx context.Context, c tool.Call) (json.RawMessage, error) {
		switch c.CommandID {
		case "a": // is at work until b is through
			close(begun)
			for until := time.Now().Add(30 * time.Second); !committed("b"); {
				if time.Now().After(until) {
					return nil, agent.Failed(agent.CodeInternal, "b is not at work beside a")
				}
			}
		case "b":
			<-begun
		case "c":
			if !committed("a") || !committed("b") {
				return nil, agent.Failed(agent.CodeInternal, "c is at work before a and b are committed")
			}
		}
		return json.RawMessage(`1`), nil
	}}}, segment, in)
	require.NoError(t, err)
	require.Equal(t, map[string]agent.Outcome{"a": agent.OutcomeCommitted, "b": agent.OutcomeCommitted, "c": agent.OutcomeCommitted}, told(reply))
	var order []string
	for _, e := range l.events(t, run) {
		if e.Type == agent.CommandCommitted || e.Type == agent.CommandEmitted && e.CommandID == "c" {
			order = append(order, e.CommandID)
		}
	}
	require.Equal(t, []string{"b", "a", "c", "c"}, order)
}

// A segment begins nothing after a call that is not committed, though it does not wait for it.
func TestSegmentEndsWithWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for name, c := range map[string]struct {
		class agent.EffectClass
		ends  error
		want  agent.Outcome
	}{
		"failed":    {agent.Idempotent, agent.Failed(agent.CodeToolFailed, "no such city"), agent.OutcomeFailed},
		"in doubt":  {agent.External, errors.New("broken pipe"), agent.OutcomeInDoubt},
		"try again": {agent.Idempotent, agent.Transient(agent.CodeToolFailed, "busy"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, in := l.segmentOf(t, c.class, false, 1)
			reply, err := attempt(t, l, try{hooks: hooks{after: at("b", says("", c.ends))}}, segment, in)
			require.NoError(t, err)
			require.Equal(t, map[string]agent.Outcome{"a": agent.OutcomeCommitted, "b": c.want}, told(reply))
			require.Empty(t, l.probe.of(run, "c"))
		})
	}
}

// What comes for the run while a call of a segment is at work ends the segment with that call: its result is kept, and nothing begins.
func TestNewsEndsASegment(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for name, comes := range map[string]string{
		"a pause":          `UPDATE agent_executions SET pause_intent = 1 WHERE run_id = $1`,
		"a cancellation":   `UPDATE agent_executions SET status = 'cancelling' WHERE run_id = $1`,
		"its last moment":  "",
		"the worker stops": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, in := l.segmentOf(t, agent.Idempotent, false, 1)
			stopping := make(chan struct{})
			news := func(context.Context, tool.Call) (json.RawMessage, error) {
				switch {
				case comes != "":
					l.exec(t, comes, run.RunID)
				case name == "the worker stops":
					close(stopping)
				}
				return json.RawMessage(`1`), nil
			}
			want := map[string]agent.Outcome{"a": agent.OutcomeCommitted, "b": ""}
			if name == "its last moment" { // of the run's time, by the ledger's clock
				in.Steps[1].Until = time.Now().Add(-time.Minute)
			}
			if name == "the worker stops" {
				delete(want, "b")
			}
			reply, err := attemptWith(t, activities.Config{Ledger: l.Ledger, Tools: l.tools, Models: func(string) model.Client { return nil }, Stopping: stopping},
				try{hooks: hooks{after: at("a", news)}}, segment, in)
			require.NoError(t, err)
			require.Equal(t, want, told(reply))
			require.Equal(t, []int{1}, l.probe.of(run, "a"))
			for _, id := range []string{"b", "c"} {
				require.Empty(t, l.probe.of(run, id))
				_, err := l.Command(t.Context(), run.RunID, id)
				var none *agent.NotFoundError
				require.ErrorAs(t, err, &none, "nothing is on record of %s", id)
			}
		})
	}
}
