package agent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// drawn is a random record of a run that obeys the rules of the ledger, and what it comes to, kept by other means than
// the fold's.
type drawn struct {
	t       *rapid.T
	records []agent.Recorded
	last    int64
	epoch   int
	plan    *agent.Plan
	old     bool // from before command_committed was written

	node     map[string]string // node id -> running, finished, failed or skipped
	command  map[string]string // command id -> open, doubt, committed, failed or aborted
	cursor   string
	turns    map[string]int
	results  map[string]json.RawMessage
	finished []string
	status   agent.Status
	failures int
}

func (d *drawn) add(typ agent.EventType, nodeID, commandID string, data any) *agent.Recorded {
	raw, err := json.Marshal(data)
	require.NoError(d.t, err)
	d.last += int64(rapid.IntRange(1, 3).Draw(d.t, "gap")) // runs side by side share the numbers
	d.records = append(d.records, agent.Recorded{Event: agent.Event{Sequence: d.last, Type: typ, NodeID: nodeID, CommandID: commandID, Epoch: d.epoch, Data: raw}})
	return &d.records[len(d.records)-1]
}

// drawRecord draws the record of a run of a random plan, or of a react run, cut off anywhere.
func drawRecord(t *rapid.T) *drawn {
	d := &drawn{t: t, epoch: 1, node: map[string]string{}, command: map[string]string{}, turns: map[string]int{}, results: map[string]json.RawMessage{}}
	d.add(agent.RunStarted, "", "", agent.RunStartedData{Input: "x"})
	d.status = agent.Running
	d.add(agent.MessageAdded, "", "", agent.MessageAddedData{Role: agent.UserMessage, Content: "x"})
	if rapid.IntRange(0, 9).Draw(t, "unplanned") == 0 {
		return d
	}
	d.plan = agent.ReactPlan()
	react := rapid.IntRange(0, 3).Draw(t, "react") == 0
	d.old = !react && rapid.IntRange(0, 4).Draw(t, "old") == 0
	if !react {
		var err error
		d.plan, err = agent.Compile(drawPlan(t), checks)
		require.NoError(t, err)
	}
	d.add(agent.PlanStarted, agent.PlanNodeID, "", agent.PlanStartedData{Source: "caller"})
	d.add(agent.PlanGenerated, agent.PlanNodeID, "", agent.PlanGeneratedData{Source: "caller", TaskGraph: d.plan})
	for range rapid.IntRange(0, 60).Draw(t, "steps") {
		switch {
		case d.status.Terminal():
			d.reopen()
		case react:
			d.turn()
		default:
			d.step()
		}
	}
	return d
}

func (d *drawn) is(state string) []int {
	var found []int
	for i, n := range d.plan.Nodes {
		if d.node[n.ID] == state {
			found = append(found, i)
		}
	}
	return found
}

// step lets one thing happen in a run of a plan.
func (d *drawn) step() {
	switch rapid.IntRange(0, 9).Draw(d.t, "happens") {
	case 0, 1, 2:
		for _, i := range d.is("") {
			n := d.plan.Nodes[i]
			ready := !slices.ContainsFunc(n.DependsOn, func(dep string) bool { return d.node[dep] == "" || d.node[dep] == "running" })
			skip := slices.ContainsFunc(n.DependsOn, func(dep string) bool { return d.node[dep] == "failed" || d.node[dep] == "skipped" })
			switch {
			case ready && skip:
				d.add(agent.NodeSkipped, n.ID, "", agent.NodeSkippedData{Index: i, Reason: "x"})
				d.node[n.ID] = "skipped"
				return
			case ready:
				d.add(agent.NodeStarted, n.ID, "", agent.NodeStartedData{Kind: n.Kind, Index: i})
				d.node[n.ID] = "running"
				d.emit(n.ID, n.ID)
				return
			}
		}
	case 3, 4, 5, 6, 7:
		if running := d.is("running"); len(running) > 0 {
			d.advance(rapid.SampledFrom(running).Draw(d.t, "node"))
		}
	case 8:
		d.noise()
	case 9:
		d.pauseOrEnd()
	}
}

func (d *drawn) emit(nodeID, commandID string) {
	if d.old {
		return
	}
	d.add(agent.CommandEmitted, nodeID, commandID, agent.CommandEmittedData{})
	d.command[commandID] = "open"
}

func (d *drawn) commit(nodeID, commandID string, kind agent.CommandKind, turn int) {
	result := json.RawMessage(fmt.Sprintf(`{"n":%d}`, d.last))
	if kind == agent.ModelCommand {
		result = json.RawMessage(fmt.Sprintf(`{"text":"said %d","usage":{}}`, d.last))
	}
	d.add(agent.CommandCommitted, nodeID, commandID, agent.CommandCommittedData{Kind: kind, Output: agent.ShowValue(result), Turn: turn}).Result = result
	d.command[commandID], d.results[commandID] = "committed", result
	d.turns[nodeID] = max(d.turns[nodeID], turn)
}

// advance lets one thing happen to a running node of a plan.
func (d *drawn) advance(i int) {
	n := d.plan.Nodes[i]
	if d.old {
		d.finish(i, n.ID, json.RawMessage(`"old"`))
		return
	}
	kind := agent.ToolCommand
	if n.Kind == agent.LLMNode {
		kind = agent.ModelCommand
	}
	switch what := rapid.IntRange(0, 9).Draw(d.t, "becomes"); {
	case what == 0:
		d.add(agent.AttemptDiscarded, n.ID, n.ID, agent.AttemptDiscardedData{Reason: "x"})
	case what == 1 && d.command[n.ID] == "open":
		d.add(agent.CommandDoubtType, n.ID, n.ID, agent.CommandInDoubtData{})
		d.command[n.ID] = "doubt"
	case what == 2:
		d.add(agent.CommandFailedType, n.ID, n.ID, agent.CommandFailedData{Error: agent.Failed(agent.CodeToolFailed, "x")})
		d.command[n.ID] = "failed"
		d.failures++
		d.add(agent.NodeFailed, n.ID, "", agent.NodeFailedData{Index: i, Handled: rapid.Bool().Draw(d.t, "handled")})
		d.node[n.ID] = "failed"
	default:
		if d.command[n.ID] == "doubt" {
			d.add(agent.CommandResolved, n.ID, n.ID, map[string]string{})
		}
		d.commit(n.ID, n.ID, kind, 0)
		if rapid.IntRange(0, 9).Draw(d.t, "crash") == 0 {
			d.node[n.ID] = "stranded" // committed, and never finished
			return
		}
		output, err := agent.NodeOutput(kind, d.results[n.ID])
		require.NoError(d.t, err)
		d.finish(i, n.ID, output)
	}
}

func (d *drawn) finish(i int, commandID string, output json.RawMessage) {
	id := d.plan.Nodes[i].ID
	d.add(agent.NodeFinished, id, "", agent.NodeFinishedData{Index: i, ResultCommand: commandID, Output: agent.ShowValue(output)})
	d.node[id], d.cursor = "finished", id
	d.finished = append(d.finished, id)
	d.add(agent.CheckpointSaved, id, "", agent.CheckpointSavedData{Type: agent.NodeBoundary, Step: len(d.is("finished"))})
}

// turn lets one thing happen in a react run.
func (d *drawn) turn() {
	id := agent.MainNodeID
	if d.node[id] == "" {
		d.add(agent.NodeStarted, id, "", agent.NodeStartedData{Kind: agent.ReactNode})
		d.node[id] = "running"
	}
	next := d.turns[id] + 1
	switch {
	case d.node[id] != "running":
		d.noise()
	case rapid.IntRange(0, 5).Draw(d.t, "last") == 0 && next > 1:
		command := agent.TurnCommandID(id, next-1)
		output, err := agent.NodeOutput(agent.ModelCommand, d.results[command])
		require.NoError(d.t, err)
		d.finish(0, command, output)
	default:
		command := agent.TurnCommandID(id, next)
		d.emit(id, command)
		d.commit(id, command, agent.ModelCommand, next)
		for k := range rapid.IntRange(0, 2).Draw(d.t, "calls") {
			call := agent.TurnToolCommandID(id, next, k)
			d.emit(id, call)
			d.commit(id, call, agent.ToolCommand, 0)
		}
	}
}

func (d *drawn) noise() {
	typ := rapid.SampledFrom([]agent.EventType{agent.Progress, agent.PolicyDecided, agent.TimerFired, agent.UUIDRecorded, agent.RandomRecorded,
		agent.HTTPRecorded, agent.LimitReachedType, agent.LimitsChanged, agent.ApprovalResolved, agent.InputReceived, agent.RunForked}).Draw(d.t, "noise")
	d.add(typ, "", "", map[string]string{})
}

func (d *drawn) pauseOrEnd() {
	switch rapid.IntRange(0, 5).Draw(d.t, "end") {
	case 0, 1:
		if d.status == agent.Paused {
			d.add(agent.RunUnpaused, "", "", map[string]string{})
			d.status = agent.Running
			return
		}
		d.add(agent.RunPaused, "", "", map[string]string{})
		d.status = agent.Paused
	case 2:
		for _, id := range slices.Sorted(maps.Keys(d.command)) {
			if d.command[id] == "open" {
				d.add(agent.CommandAbortType, agent.CommandNodeID(id), id, agent.CommandAbortedData{})
				d.command[id] = "aborted"
			}
		}
		d.add(agent.RunFailed, "", "", agent.RunFailedData{})
		d.status = agent.FailedStatus
	default:
	}
}

// reopen begins the next epoch: nodes whose commands were aborted or failed begin again.
func (d *drawn) reopen() {
	d.epoch++
	d.add(agent.RunReopened, "", "", map[string]string{})
	d.status = agent.Running
	for i, n := range d.plan.Nodes {
		switch {
		case d.node[n.ID] == "running" && d.command[n.ID] == "aborted", d.node[n.ID] == "failed":
			if d.command[n.ID] == "failed" {
				d.add(agent.CommandReopened, n.ID, n.ID, map[string]string{})
			}
			d.add(agent.NodeStarted, n.ID, "", agent.NodeStartedData{Kind: n.Kind, Index: i})
			d.node[n.ID] = "running"
			d.emit(n.ID, n.ID)
		case d.node[n.ID] == "stranded":
			var kind agent.CommandKind = agent.ToolCommand
			if n.Kind == agent.LLMNode {
				kind = agent.ModelCommand
			}
			output, err := agent.NodeOutput(kind, d.results[n.ID])
			require.NoError(d.t, err)
			d.finish(i, n.ID, output)
		}
	}
}

func (d *drawn) events() []agent.Event {
	events := make([]agent.Event, len(d.records))
	for i, r := range d.records {
		events[i] = r.Event
	}
	return events
}

func (d *drawn) commandsIn(state string) []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(d.command)) {
		if d.command[id] == state {
			ids = append(ids, id)
		}
	}
	return ids
}
