package api

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func (b *bench) trace(run agent.Run) *trace {
	b.t.Helper()
	w := b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/trace", "")
	require.Equal(b.t, 200, w.Code, "%s", w.Body)
	t := document[*trace](b.t, w)
	require.Contains(b.t, t.Notice, "promises nothing")
	require.Equal(b.t, run.RunID, t.RunID)
	require.True(b.t, slices.IsSortedFunc(t.Timeline, func(a, b tracedEvent) int { return int(a.Sequence - b.Sequence) }))
	require.Len(b.t, t.Timeline, t.Events)
	return t
}

// String draws the spans of a trace, times in seconds, one line for each.
func (t *trace) String() string {
	var s strings.Builder
	sec := func(ms *int64) string {
		if ms == nil {
			return "?"
		}
		return fmt.Sprint(float64(*ms) / 1000)
	}
	line := func(indent int, name, state string, at span, more ...any) {
		fmt.Fprintf(&s, "%s%s %s %s-%s%s\n", strings.Repeat("  ", indent), name, state, sec(at.StartMS), sec(at.EndMS), fmt.Sprint(more...))
	}
	reason := func(text string, failure *agent.Error) string {
		if failure != nil {
			text += failure.Error()
		}
		if text != "" {
			return " (" + text + ")"
		}
		return ""
	}
	for _, r := range t.Runs {
		line(0, "run", r.State, r.span, fmt.Sprintf(" queued %s, x%d", sec(r.QueuedMS), r.Executions), reason("", r.Error))
		for _, n := range r.Nodes {
			line(1, n.NodeID, n.State, n.span, fmt.Sprintf(" %s%s queued %s", n.Kind, n.Tool, sec(n.QueuedMS)), reason(n.Reason, n.Error))
			for _, c := range n.Commands {
				line(2, c.CommandID, c.State, c.span, fmt.Sprintf(" %s%s open %s, x%d", c.Kind, c.Tool, sec(c.OpenMS), c.Dispatches), reason(c.Reason, c.Error))
				for _, a := range c.Attempts {
					about := ""
					if a.StartEstimated {
						about = " from then at the earliest"
					}
					line(3, fmt.Sprint(a.Attempt), a.State, a.span, about, reason(a.Reason, nil))
				}
			}
		}
	}
	return s.String()
}

const traceOfHistory = `run running 0-? queued 3, x1
  plan completed 2-5 plan queued ?
    plan committed 3-4 plan open 1, x1
      1 committed 3-4
  sum completed 6-10 toolcalculator queued 1
    sum committed 7-9 toolcalculator open 2, x2
      1 discarded 7-8 (shutdown)
      2 committed 8-9 from then at the earliest
  get failed 12-15 toolhttp_request queued 7 (TOOL_FAILED: 404)
    get failed 13-14 toolhttp_request open 1, x1 (TOOL_FAILED: 404)
      1 failed 13-14
  say completed 16-19 llm queued 1
    say committed 17-18 llm open 1, x1
      1 committed 17-18
  more running 20-? llm queued 1
`

func TestTrace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	got := b.trace(run)
	require.Equal(t, traceOfHistory, got.String())
	require.False(t, got.Truncated)
	require.Equal(t, 21, got.Events)
	require.EqualValues(t, 7, got.Runs[0].Nodes[1].Commands[0].EffectMS)
	require.Equal(t, agent.External, got.Runs[0].Nodes[2].Commands[0].Effect)

	at := func(sequence int) tracedEvent { return got.Timeline[sequence-1] }
	require.Equal(t, tracedEvent{Sequence: 9, MS: 8000, Kind: "point", Type: agent.AttemptDiscarded, RunID: run.RunID, NodeID: "sum", CommandID: "sum", Attempt: 1,
		Detail: map[string]json.RawMessage{"reason": json.RawMessage(`"shutdown"`)}}, at(9))
	require.Equal(t, []string{"start", "start", "end", "end", "point"}, []string{at(7).Kind, at(8).Kind, at(10).Kind, at(11).Kind, at(12).Kind})
	require.Equal(t, `"node_boundary"`, string(at(12).Detail["checkpoint_type"]))
	require.Equal(t, `"TOOL_FAILED: 404"`, string(at(15).Detail["error"]))
	require.NotContains(t, fmt.Sprint(at(6).Detail), "task_graph")

	b.ledger.end(run.RunID, agent.FailedStatus)
	got = b.trace(run)
	ended := strings.NewReplacer("run running 0-? queued 3, x1", "run failed 0-21 queued 3, x1 (TOOL_FAILED: no)", "more running 20-?", "more aborted 20-21").Replace(traceOfHistory)
	require.Equal(t, ended, got.String())
}

// TestTraceOfAResume: doubts, resolutions, another execution, and attempts whose beginning left no event.
func TestTraceOfAResume(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	write := func(kind agent.EventType, command string, attempt int, data any) {
		b.ledger.write(run.RunID, agent.Event{Type: kind, NodeID: agent.CommandNodeID(command), CommandID: command, Attempt: attempt}, data)
	}
	mail := map[string]any{"kind": "tool", "tool": "mail", "effect_class": "external"}
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeStarted, NodeID: "a"}, agent.NodeStartedData{Kind: agent.ToolNode, Tool: "mail"})
	write(agent.CommandEmitted, "a", 1, mail)
	write(agent.CommandDoubtType, "a", 1, map[string]string{"reason": "no answer"})
	write(agent.PolicyDecided, "b", 0, map[string]string{"decision": "forbid"})
	b.ledger.end(run.RunID, agent.FailedStatus)
	b.ledger.write(run.RunID, agent.Event{Type: agent.RunReopened}, map[string]int{"epoch": 2})
	write(agent.CommandResolved, "a", 1, map[string]string{"outcome": "retry", "by": "me"})
	write(agent.CommandReopened, "a", 0, map[string]string{"reason": "retry"})
	write(agent.AttemptDiscarded, "a", 2, map[string]any{"reason": "busy", "retry_after_ms": 500})
	write(agent.CommandCommitted, "a", 3, map[string]any{"kind": "tool", "tool": "mail", "latency_ms": 4})
	write(agent.CommandEmitted, "b#1.0", 1, map[string]string{"kind": "llm"})
	write(agent.AttemptDiscarded, "b#1.0", 1, map[string]string{"reason": "shutdown"})
	write(agent.CommandAbortType, "b#1.0", 1, map[string]string{"reason": "the run ended"})
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeSkipped, NodeID: "c"}, agent.NodeSkippedData{Reason: "b was skipped"})
	b.ledger.end(run.RunID, agent.Cancelled)
	require.Equal(t, `run cancelled 0-16 queued 2, x2
  a aborted 2-16 toolmail queued ?
    a committed 3-11 toolmail open 8, x3
      1 in_doubt 3-4
      2 discarded 9-10 from then at the earliest (busy)
      3 committed 10.5-11 from then at the earliest
  b aborted ?-16  queued ?
    b#1.0 aborted 12-14 llm open 2, x1 (the run ended)
      1 discarded 12-13 (shutdown)
  c skipped ?-15  queued ? (b was skipped)
`, b.trace(run).String())
}

// Child runs stand beside the run, each with nodes of its own, though their names may be the same.
func TestTraceOfChildRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	child := agent.Run{RunID: uuid.NewString(), RootRunID: run.RunID, ConversationID: run.ConversationID}
	b.ledger.mu.Lock()
	c := b.ledger.conversations[run.ConversationID]
	for _, of := range []*agent.Run{&run, &child} {
		b.ledger.event(c, of, agent.Event{Type: agent.NodeStarted, NodeID: "a"}, agent.NodeStartedData{Kind: agent.LLMNode})
	}
	b.ledger.mu.Unlock()
	got := b.trace(run)
	require.Len(t, got.Runs, 2)
	require.Equal(t, []string{run.RunID, child.RunID}, []string{got.Runs[0].RunID, got.Runs[1].RunID})
	require.Len(t, got.Runs[0].Nodes, 1)
	require.Len(t, got.Runs[1].Nodes, 1)
	require.Equal(t, child.RunID, got.Timeline[3].RunID)
}

// TestTraceTakesWhateverThereIs: no event is too strange, neither its type nor its data nor its time.
func TestTraceTakesWhateverThereIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	odd := []string{`null`, `[]`, `"text"`, `7`, `{}`, `{"kind":7,"tool":[],"error":"no","reason":{"a":1},"task_graph":[],"latency_ms":"long"}`, `{"error":{"code":7},"kind":{}}`,
		`{"task_graph":{"nodes":[{"id":"n","depends_on":["n","nowhere"]},{}]},"error":null}`, `{"retry_after_ms":9223372036854775807,"reason":"` + strings.Repeat("ü", 4000) + `"}`,
		`{"retry_after_ms":-9223372036854775808,"` + strings.Repeat("k", 4000) + `":1}`, `{"n":1e9999,"big":` + strings.Repeat("9", 4000) + `,"b":true}`, `{"\u0000":"\u0000"}`}
	types := append(agent.EventTypes(), "", "invented_later")
	// Every order of two types is met somewhere: the second pass goes the other way round.
	back := slices.Clone(types)
	slices.Reverse(back)
	for _, at := range [][2]string{{"n", "n"}, {"", "n#1.0"}, {"n", ""}, {"", ""}, {"plan", "plan"}, {"x y", "~~//##"}} {
		run := b.ledger.seed(t, "local", "")
		for i, kind := range slices.Concat(types, back) {
			for j, data := range odd {
				b.ledger.write(run.RunID, agent.Event{Type: kind, NodeID: at[0], CommandID: at[1], Attempt: (i*j)%5 - 1}, json.RawMessage(data))
			}
		}
		b.ledger.mu.Lock()
		for i := range b.ledger.conversations[run.ConversationID].events { // a clock that jumps
			e := &b.ledger.conversations[run.ConversationID].events[i]
			e.CreatedAt = e.CreatedAt.Add(time.Duration(i%7-3) * time.Hour)
		}
		b.ledger.mu.Unlock()
		got := b.trace(run)
		require.Equal(t, 2+2*len(types)*len(odd), got.Events)
		for _, e := range got.Timeline {
			size := 0
			for name, value := range e.Detail {
				size += len(name) + len(value)
			}
			require.Less(t, size, 2*maxDetails*maxDetail)
		}
		require.Equal(t, 200, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "").Code)
	}
}

func TestTraceIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	for range maxTraceEvents - 2 {
		b.ledger.write(run.RunID, agent.Event{Type: agent.Progress}, struct{}{})
	}
	whole := b.trace(run)
	require.Equal(t, maxTraceEvents, whole.Events)
	require.False(t, whole.Truncated)
	b.ledger.end(run.RunID, agent.Completed)
	cut := b.trace(run)
	require.Equal(t, maxTraceEvents, cut.Events)
	require.True(t, cut.Truncated)
	require.Equal(t, whole.Timeline, cut.Timeline)
}

func TestTraceOfAStranger(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "somebody", "")
	requireProblem(t, b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/trace", ""), 404, "not-found", "")
	require.Equal(t, 405, b.do("POST", "/api/v1/agent/runs/"+run.RunID+"/trace", "").Code)
}

// TestTraceIsReadOnly: R2-13, apart from everything that recovers a run. It is given nothing but a way to read events.
func TestTraceIsReadOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.api.cfg.Ledger = onlyEvents{run: run, events: b.ledger.Events}
	require.Equal(t, traceOfHistory, b.trace(run).String())
}

// onlyEvents is a ledger that panics when it is asked for anything but a run's head and its events.
type onlyEvents struct {
	Ledger
	run    agent.Run
	events func(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error)
}

func (l onlyEvents) Run(context.Context, string, string) (agent.Run, error) { return l.run, nil }

func (l onlyEvents) Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error) {
	return l.events(ctx, scope, after, limit)
}

// A run that is stuck says so, and why, wherever runs are shown.
func TestStuckRunsAreShown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	b.ledger.seed(t, "local", "")
	b.ledger.mu.Lock()
	b.ledger.runs[run.RunID].Status = agent.Stuck
	b.ledger.runs[run.RunID].Error = &agent.Error{Code: agent.CodeStuck, Message: "the run's workflow task fails"}
	b.ledger.mu.Unlock()
	o := document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, ""))
	require.Equal(t, agent.Stuck, o.Status)
	require.Equal(t, "the run's workflow task fails", o.Error.Message)
	require.Nil(t, o.FinishedAt)
	listed := document[struct{ Runs []runHead }](t, b.do("GET", "/api/v1/agent/runs?status=stuck", ""))
	require.Len(t, listed.Runs, 1)
	require.Equal(t, run.RunID, listed.Runs[0].RunID)
	require.Equal(t, agent.CodeStuck, listed.Runs[0].Error.Code)
}
