package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// forkRecord writes a record as a fork reads it.
type forkRecord struct {
	t   testing.TB
	src agent.ForkSource
}

func (r *forkRecord) event(typ agent.EventType, nodeID, commandID string, data any) {
	raw, err := json.Marshal(data)
	require.NoError(r.t, err)
	r.src.Events = append(r.src.Events, agent.Event{Sequence: int64(len(r.src.Events) + 1), Type: typ, RunID: "r", NodeID: nodeID, CommandID: commandID, Attempt: 1, Data: raw, Epoch: 1})
}

func newForkRecord(t testing.TB, source string, nodes ...agent.Node) *forkRecord {
	t.Helper()
	r := &forkRecord{t: t, src: agent.ForkSource{Run: agent.Run{RunID: "r"}, Plan: &agent.Plan{Nodes: nodes}}}
	r.event(agent.RunStarted, "", "", agent.RunStartedData{})
	r.event(agent.PlanStarted, "plan", "", agent.PlanStartedData{Source: source})
	if source == "planner" {
		r.commits("plan", agent.PlanCommand, agent.Idempotent)
	}
	r.event(agent.PlanGenerated, "plan", "", agent.PlanGeneratedData{Source: source, TaskGraph: r.src.Plan})
	return r
}

// begins emits a command; the row says how it stands now.
func (r *forkRecord) begins(id string, kind agent.CommandKind, effect agent.EffectClass, state agent.CommandState) {
	node := agent.CommandNodeID(id)
	r.src.Commands = append(r.src.Commands, agent.Command{CommandID: id, NodeID: node, Kind: kind, Effect: effect, State: state})
	r.event(agent.CommandEmitted, node, id, agent.CommandEmittedData{Kind: kind, Effect: effect})
}

func (r *forkRecord) commits(id string, kind agent.CommandKind, effect agent.EffectClass) {
	r.begins(id, kind, effect, agent.Committed)
	r.event(agent.CommandCommitted, agent.CommandNodeID(id), id, agent.CommandCommittedData{Kind: kind})
}

func (r *forkRecord) fails(id string, kind agent.CommandKind, effect agent.EffectClass) {
	r.begins(id, kind, effect, agent.CommandFailed)
	r.event(agent.CommandFailedType, agent.CommandNodeID(id), id, agent.CommandFailedData{Kind: kind, Error: agent.Failed(agent.CodeToolFailed, "no")})
}

// tools runs nodes of one call each.
func (r *forkRecord) tools(effect agent.EffectClass, ids ...string) {
	for _, id := range ids {
		r.event(agent.NodeStarted, id, "", agent.NodeStartedData{})
		r.commits(id, agent.ToolCommand, effect)
		r.event(agent.NodeFinished, id, "", agent.NodeFinishedData{ResultCommand: id})
	}
}

const (
	det = agent.Deterministic
	idm = agent.Idempotent
	ext = agent.External
)

// plan is a line for each command: its id, and "+" for reused, "~" for reused and "?" for in doubt when the fork makes the same
// call, "!" for one that runs again.
func planned(t testing.TB, src agent.ForkSource, f agent.Fork) (string, *agent.ForkPlan) {
	t.Helper()
	plan, err := agent.PlanFork(&src, &f)
	require.NoError(t, err)
	var lines []string
	for _, c := range plan.Commands {
		require.NotEmpty(t, c.Reason)
		mark := map[agent.ForkDecision]string{agent.ForkReused: "+", agent.ForkRunsAgain: "!", agent.ForkInDoubt: "?"}[c.Decision]
		if c.IfSame && c.Decision == agent.ForkReused {
			mark = "~"
		}
		lines = append(lines, c.CommandID+mark)
	}
	return strings.Join(lines, " "), plan
}

func tool(id string, dependsOn ...string) agent.Node {
	return agent.Node{ID: id, Kind: agent.ToolNode, Tool: "put", DependsOn: dependsOn}
}

func TestPlanFork(t *testing.T) {
	t.Parallel()
	loop := agent.Node{ID: "main", Kind: agent.ReactNode}
	react := func(t testing.TB) *forkRecord {
		r := newForkRecord(t, "react", loop)
		r.event(agent.NodeStarted, "main", "", agent.NodeStartedData{})
		r.commits("main#1", agent.ModelCommand, idm)
		r.commits("main#1.0", agent.ToolCommand, det)
		r.commits("main#1.1", agent.ToolCommand, ext)
		r.commits("main#2", agent.ModelCommand, idm)
		r.fails("main#2.0", agent.ToolCommand, idm)
		r.begins("main#2.1", agent.ToolCommand, ext, agent.Dispatched)
		return r
	}
	line := func(t testing.TB, source string) *forkRecord {
		r := newForkRecord(t, source, tool("a"), tool("b", "a"), tool("c"), tool("d", "b", "c"))
		r.tools(det, "a")
		r.tools(ext, "b", "c")
		r.tools(idm, "d")
		return r
	}
	inner := func(t testing.TB) *forkRecord { // a tool with effects of its own, the second of which has failed; it is at work
		r := newForkRecord(t, "caller", tool("a"))
		r.event(agent.NodeStarted, "a", "", agent.NodeStartedData{})
		r.begins("a", agent.ToolCommand, idm, agent.Dispatched)
		r.src.Commands = append(r.src.Commands, agent.Command{CommandID: "a/now-1", NodeID: "a", Kind: agent.NowCommand, Effect: det, State: agent.Committed})
		r.event(agent.TimerFired, "a", "a/now-1", agent.ValueRecordedData{Kind: agent.NowCommand, Value: json.RawMessage(`1`)})
		r.commits("a/pay", agent.HTTPCommand, ext)
		r.fails("a/ask", agent.HTTPCommand, ext)
		return r
	}
	rerun := func(class agent.EffectClass) agent.Fork {
		return agent.Fork{Effects: map[agent.EffectClass]agent.ForkEffect{class: agent.ForkRerun}}
	}
	for name, c := range map[string]struct {
		record *forkRecord
		fork   agent.Fork
		want   string
		nodes  string
	}{
		"loop at its end":                      {react(t), agent.Fork{}, "main#1+ main#1.0+ main#1.1+ main#2+ main#2.0+ main#2.1?", "main goes_on"},
		"loop in its first turn":               {react(t), agent.Fork{Sequence: 7}, "main#1+ main#1.0! main#1.1~ main#2! main#2.0! main#2.1?", "main goes_on"},
		"loop before it":                       {react(t), agent.Fork{Sequence: 1}, "main#1! main#1.0! main#1.1~ main#2! main#2.0! main#2.1?", "main would_run"},
		"a class of a turn":                    {react(t), rerun(det), "main#1+ main#1.0! main#1.1+ main#2! main#2.0! main#2.1?", "main goes_on"},
		"a call of a turn":                     {react(t), agent.Fork{Rerun: []string{"main#1.1"}}, "main#1+ main#1.0+ main#1.1! main#2! main#2.0! main#2.1?", "main goes_on"},
		"a call that has failed":               {react(t), agent.Fork{Rerun: []string{"main#2.0"}}, "main#1+ main#1.0+ main#1.1+ main#2+ main#2.0! main#2.1?", "main goes_on"},
		"a call in doubt":                      {react(t), agent.Fork{Rerun: []string{"main#2.1"}}, "main#1+ main#1.0+ main#1.1+ main#2+ main#2.0+ main#2.1!", "main goes_on"},
		"a turn":                               {react(t), agent.Fork{Rerun: []string{"main#1"}}, "main#1! main#1.0! main#1.1~ main#2! main#2.0! main#2.1?", "main would_run"},
		"plan at its end":                      {line(t, "caller"), agent.Fork{}, "a+ b+ c+ d+", "a reused, b reused, c reused, d reused"},
		"plan within a node":                   {line(t, "caller"), agent.Fork{Sequence: 9}, "a+ b~ c~ d!", "a reused, b would_run, c would_run, d would_run"},
		"committed, and not finished":          {line(t, "caller"), agent.Fork{Sequence: 10}, "a+ b+ c~ d!", "a reused, b goes_on, c would_run, d would_run"},
		"a class and what depends on it":       {line(t, "caller"), rerun(det), "a! b~ c+ d!", "a would_run, b would_run, c reused, d would_run"},
		"an external call and what depends":    {line(t, "caller"), agent.Fork{Rerun: []string{"b"}}, "a+ b! c+ d!", "a reused, b would_run, c reused, d would_run"},
		"the planner's class":                  {line(t, "planner"), rerun(idm), "plan! a! b~ c~ d!", ""},
		"before there was a plan":              {line(t, "planner"), agent.Fork{Sequence: 3}, "plan! a! b~ c~ d!", ""},
		"the plan on record, and no event yet": {line(t, "planner"), agent.Fork{Sequence: 4}, "plan+ a! b~ c~ d!", "a would_run, b would_run, c would_run, d would_run"},
		"a tool at work keeps its effects":     {inner(t), agent.Fork{}, "a! a/now-1+ a/pay+ a/ask+", "a goes_on"},
		"a class within a tool at work":        {inner(t), rerun(det), "a! a/now-1! a/pay+ a/ask+", "a goes_on"},
		"a tool by its class":                  {inner(t), rerun(idm), "a! a/now-1! a/pay~ a/ask!", "a would_run"},
		"a tool by its name":                   {inner(t), agent.Fork{Rerun: []string{"a"}}, "a! a/now-1! a/pay! a/ask!", "a would_run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, plan := planned(t, c.record.src, c.fork)
			require.Equal(t, c.want, got)
			var nodes []string
			for _, n := range plan.Nodes {
				nodes = append(nodes, n.NodeID+" "+string(n.Decision))
			}
			require.Equal(t, c.nodes, strings.Join(nodes, ", "))
			require.Equal(t, strings.Count(c.want, "~")+strings.Count(c.want, "?"), len(plan.Priors))
			require.Len(t, plan.Outcomes, strings.Count(c.want, "+"))
		})
	}
}

// What has failed runs again where its failure was the end; where the run went on after it, it stays.
func TestPlanForkOfFailures(t *testing.T) {
	t.Parallel()
	tried := tool("b")
	tried.Retry = &agent.Retry{MaxAttempts: 2}
	handled := tool("c")
	handled.OnError = agent.OnErrorContinue
	r := newForkRecord(t, "caller", tool("a"), tried, handled, tool("d", "c"))
	for _, id := range []string{"a", "b", "c"} {
		r.event(agent.NodeStarted, id, "", agent.NodeStartedData{})
	}
	r.fails("b", agent.ToolCommand, idm)
	first := int64(len(r.src.Events))
	r.fails("c", agent.ToolCommand, ext)
	r.event(agent.NodeFailed, "c", "", agent.NodeFailedData{Handled: true, Error: agent.Failed(agent.CodeToolFailed, "no")})
	r.tools(idm, "d")
	r.fails("b~2", agent.ToolCommand, idm)
	r.fails("a", agent.ToolCommand, ext)
	r.event(agent.NodeFailed, "a", "", agent.NodeFailedData{Error: agent.Failed(agent.CodeToolFailed, "no")})
	r.event(agent.RunFailed, "", "", agent.RunFailedData{})

	got, plan := planned(t, r.src, agent.Fork{})
	require.Equal(t, "b+ c+ d+ b~2! a!", got)
	types := map[agent.EventType]int{}
	for _, e := range plan.Record {
		types[e.Type]++
	}
	require.Equal(t, map[agent.EventType]int{agent.PlanStarted: 1, agent.PlanGenerated: 1, agent.NodeStarted: 3, agent.CommandEmitted: 3, agent.CommandFailedType: 2,
		agent.CommandCommitted: 1, agent.NodeFailed: 1, agent.NodeFinished: 1}, types)
	got, _ = planned(t, r.src, agent.Fork{Sequence: first})
	require.Equal(t, "b+ c! d! b~2! a!", got, "b has another try")
	got, _ = planned(t, r.src, agent.Fork{Rerun: []string{"c"}})
	require.Equal(t, "b+ c! d! b~2! a!", got, "d depends on the failure of c")
	got, _ = planned(t, r.src, agent.Fork{Rerun: []string{"b"}})
	require.Equal(t, "b! c+ d+ b~2! a!", got)
}

// What was said of a command counts up to the number: a doubt, a resolution, an abort, a reopening.
func TestPlanForkOfWhatWasSaid(t *testing.T) {
	t.Parallel()
	r := newForkRecord(t, "caller", tool("a"))
	r.event(agent.NodeStarted, "a", "", agent.NodeStartedData{})
	r.begins("a", agent.ToolCommand, ext, agent.Committed)
	r.event(agent.CommandDoubtType, "a", "a", agent.CommandInDoubtData{})
	doubt := int64(len(r.src.Events))
	r.event(agent.CommandResolved, "a", "a", agent.CommandResolvedData{Outcome: agent.OutcomeRetry})
	r.event(agent.CommandAbortType, "a", "a", agent.CommandAbortedData{})
	r.event(agent.RunCancelled, "", "", agent.RunCancelledData{})
	ended := int64(len(r.src.Events))
	r.event(agent.RunReopened, "", "", agent.RunReopenedData{Epoch: 2})
	r.event(agent.CommandCommitted, "a", "a", agent.CommandCommittedData{Kind: agent.ToolCommand})
	for at, want := range map[int64]string{doubt: "a~", doubt + 1: "a~", ended: "a~", 0: "a+"} {
		got, _ := planned(t, r.src, agent.Fork{Sequence: at})
		require.Equal(t, want, got, "at %d: its effect took place later", at)
	}
	for state, want := range map[agent.CommandState]string{agent.CommandInDoubt: "a?", agent.Dispatched: "a?", agent.Released: "a!", agent.CommandFailed: "a!",
		agent.CommandAborted: "a!", agent.CommandWaiting: "a!"} {
		src := r.src
		src.Commands = []agent.Command{r.src.Commands[0]}
		src.Commands[0].State = state
		got, _ := planned(t, src, agent.Fork{Sequence: ended})
		require.Equal(t, want, got, state)
	}
}

// Names that the record does not have, and effects inside of a command, are refused by their place.
func TestPlanForkRefuses(t *testing.T) {
	t.Parallel()
	r := newForkRecord(t, "caller", tool("a"))
	r.commits("a", agent.ToolCommand, ext)
	r.commits("a/pay", agent.HTTPCommand, ext)
	last := int64(len(r.src.Events))
	for _, c := range []struct {
		fork  agent.Fork
		field string
	}{
		{agent.Fork{Sequence: last + 1}, "sequence_number"},
		{agent.Fork{Sequence: -1}, "sequence_number"},
		{agent.Fork{Rerun: []string{"a", "b"}}, "rerun/1"},
		{agent.Fork{Rerun: []string{"a/pay"}}, "rerun/0"},
	} {
		_, err := agent.PlanFork(&r.src, &c.fork)
		var wrong *agent.ForkError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, c.field, wrong.Field)
	}
	_, err := agent.PlanFork(&agent.ForkSource{}, &agent.Fork{})
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
}
