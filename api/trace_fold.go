package api

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"runledger/agent"
)

// add takes in the next event, whatever it is.
func (t *trace) add(e agent.Event) {
	if t.Events == maxTraceEvents {
		t.Truncated = true
		return
	}
	t.Events++
	e.CreatedAt = e.CreatedAt.UTC()
	if t.Origin == nil {
		t.Origin = &e.CreatedAt
	}
	kind := "point"
	switch e.Type {
	case agent.RunStarted, agent.RunReopened, agent.PlanStarted, agent.NodeStarted, agent.CommandEmitted:
		kind = "start"
	case agent.RunCompleted, agent.RunFailed, agent.RunCancelled, agent.PlanGenerated, agent.NodeFinished, agent.NodeFailed, agent.NodeSkipped,
		agent.CommandCommitted, agent.CommandFailedType, agent.CommandAbortType:
		kind = "end"
	default:
	}
	t.Timeline = append(t.Timeline, tracedEvent{Sequence: e.Sequence, MS: t.ms(e.CreatedAt), Kind: kind, Type: e.Type, RunID: e.RunID, NodeID: e.NodeID,
		CommandID: e.CommandID, Attempt: e.Attempt, Detail: detail(e.Data)})
	run := t.run(e.RunID)
	t.addToRun(run, e)
	if e.NodeID != "" {
		t.addToNode(run, e)
	}
	if e.CommandID != "" {
		t.addToCommand(run, e)
	}
}

func (t *trace) ms(at time.Time) int64 { return at.Sub(*t.Origin).Milliseconds() }

func (t *trace) open(s *span, at time.Time) {
	ms := t.ms(at)
	*s = span{Start: &at, StartMS: &ms}
}

func (t *trace) close(s *span, at time.Time) {
	ms := t.ms(at)
	s.End, s.EndMS = &at, &ms
}

// between is the time from one moment to another, nil where the first is not known. Clocks may go back: that is no time.
func between(from *time.Time, to time.Time) *int64 {
	if from == nil || from.IsZero() {
		return nil
	}
	ms := max(0, to.Sub(*from).Milliseconds())
	return &ms
}

func (t *trace) run(id string) *tracedRun {
	run, ok := t.runs[id]
	if !ok {
		run = &tracedRun{RunID: id, State: "queued", Nodes: []*tracedNode{}}
		t.runs[id] = run
		t.Runs = append(t.Runs, run)
	}
	return run
}

func (t *trace) addToRun(run *tracedRun, e agent.Event) {
	at := e.CreatedAt
	switch e.Type {
	case agent.RunStarted:
		t.open(&run.span, at)
		run.Executions++
	case agent.RunReopened:
		run.End, run.EndMS, run.Error, run.reopened = nil, nil, nil, at
		run.State = "running"
		run.Executions++
		for _, id := range read[agent.RunReopenedData](e).NodeIDs {
			if n := t.nodes[[2]string{run.RunID, id}]; n != nil { // it is tried again, and not started once more
				n.State, n.Error, n.End, n.EndMS = "running", nil, nil, nil
			}
		}
	case agent.PlanGenerated, agent.PlanRevised:
		run.planned, run.plan = at, map[string][]string{}
		if graph := read[agent.PlanGeneratedData](e).TaskGraph; graph != nil {
			for _, n := range graph.Nodes {
				run.plan[n.ID] = n.DependsOn
			}
		}
	case agent.RunCompleted:
		t.endRun(run, "completed", nil, at)
	case agent.RunFailed:
		t.endRun(run, "failed", read[agent.RunFailedData](e).Error, at)
	case agent.RunCancelled:
		t.endRun(run, "cancelled", nil, at)
	case agent.RunPaused:
		run.State = "paused"
	case agent.RunUnpaused:
		run.State = "running"
	default:
	}
	// What acceptance writes is of no worker: the message, and a plan that was brought along.
	if run.State == "queued" && (e.CommandID != "" || e.Type == agent.NodeStarted || e.Type == agent.NodeSkipped) {
		run.State, run.QueuedMS = "running", between(run.Start, at)
	}
}

// endRun ends a run. What was at work then was stopped by that.
func (t *trace) endRun(run *tracedRun, state string, failure *agent.Error, at time.Time) {
	run.State, run.Error = state, failure
	t.close(&run.span, at)
	for _, n := range run.Nodes {
		if n.State == "running" {
			n.State = "aborted"
			t.close(&n.span, at)
		}
	}
}

func (t *trace) node(run *tracedRun, id string) *tracedNode {
	key := [2]string{run.RunID, id}
	n, ok := t.nodes[key]
	if !ok {
		n = &tracedNode{NodeID: id, State: "running", Commands: []*tracedCommand{}}
		t.nodes[key] = n
		run.Nodes = append(run.Nodes, n)
	}
	return n
}

func (t *trace) addToNode(run *tracedRun, e agent.Event) {
	at := e.CreatedAt
	switch e.Type {
	case agent.NodeStarted, agent.PlanStarted:
		n := t.node(run, e.NodeID)
		d := read[agent.NodeStartedData](e)
		n.Kind, n.Tool, n.State, n.Reason, n.Error = string(d.Kind), d.Tool, "running", "", nil
		if e.Type == agent.PlanStarted {
			n.Kind = agent.PlanNodeID
		}
		if n.Starts++; n.Start == nil {
			t.open(&n.span, at)
		}
		n.End, n.EndMS = nil, nil
		n.QueuedMS = between(t.ready(run, e.NodeID), at)
	case agent.NodeFinished, agent.PlanGenerated:
		t.endNode(run, e, "completed")
	case agent.NodeFailed:
		t.endNode(run, e, "failed").Error = read[agent.NodeFailedData](e).Error
	case agent.NodeSkipped:
		t.endNode(run, e, "skipped").Reason = agent.Preview(read[agent.NodeSkippedData](e).Reason, maxDetail)
	default:
	}
}

func (t *trace) endNode(run *tracedRun, e agent.Event, state string) *tracedNode {
	n := t.node(run, e.NodeID)
	n.State = state
	t.close(&n.span, e.CreatedAt)
	return n
}

// ready is when the plan allowed a node to start, nil when the record does not say.
func (t *trace) ready(run *tracedRun, id string) *time.Time {
	after, ok := run.plan[id]
	if !ok {
		return nil
	}
	at := run.planned
	if run.reopened.After(at) {
		at = run.reopened
	}
	for _, before := range after {
		if n := t.nodes[[2]string{run.RunID, before}]; n != nil && n.End != nil && n.End.After(at) {
			at = *n.End
		}
	}
	return &at
}

func (t *trace) addToCommand(run *tracedRun, e agent.Event) {
	at := e.CreatedAt
	switch e.Type {
	case agent.CommandEmitted, agent.CommandCommitted, agent.CommandFailedType, agent.CommandAbortType, agent.CommandDoubtType,
		agent.CommandReopened, agent.AttemptDiscarded:
	default:
		return
	}
	c := t.command(run, e)
	if n := t.node(run, c.nodeID); n.State == "aborted" {
		n.State, n.End, n.EndMS = "running", nil, nil // a resume goes on with it, and does not start it again
	}
	d := read[commandData](e)
	d.Reason = agent.Preview(d.Reason, maxDetail)
	if d.Kind != "" {
		c.Kind, c.Tool = d.Kind, d.Tool
	}
	if d.Effect != "" {
		c.Effect = d.Effect
	}
	switch e.Type {
	case agent.CommandEmitted:
		t.open(&c.span, at)
		c.State, c.OpenMS = "open", nil
		t.attempt(c, e)
	case agent.AttemptDiscarded:
		a := t.attempt(c, e)
		a.State, a.Reason, a.RetryAfterMS = "discarded", d.Reason, d.RetryAfter
		t.close(&a.span, at)
		next := at.Add(time.Duration(min(max(0, d.RetryAfter), longestRetry)) * time.Millisecond)
		c.earliest = &next
	case agent.CommandReopened:
		c.State, c.Reason, c.Error, c.End, c.EndMS, c.OpenMS, c.earliest = "open", d.Reason, nil, nil, nil, nil, &at
	case agent.CommandCommitted:
		t.decide(c, e, d, "committed")
	case agent.CommandFailedType:
		t.decide(c, e, d, "failed")
	case agent.CommandAbortType:
		t.decide(c, e, d, "aborted")
	case agent.CommandDoubtType:
		t.decide(c, e, d, "in_doubt")
	default:
	}
}

// commandData is what the events of commands say, each of them some of it.
type commandData struct {
	Kind       agent.CommandKind `json:"kind"`
	Tool       string            `json:"tool"`
	Effect     agent.EffectClass `json:"effect_class"`
	Error      *agent.Error      `json:"error"`
	Reason     string            `json:"reason"`
	LatencyMS  int64             `json:"latency_ms"`
	RetryAfter int64             `json:"retry_after_ms"`
	ReusedFrom *agent.ForkedFrom `json:"reused_from"`
}

// longestRetry is the longest pause, in milliseconds, that is believed: a day.
const longestRetry = 24 * 60 * 60 * 1000

func (t *trace) command(run *tracedRun, e agent.Event) *tracedCommand {
	key := [2]string{run.RunID, e.CommandID}
	c, ok := t.commands[key]
	if !ok {
		nodeID := e.NodeID
		if nodeID == "" {
			nodeID = agent.CommandNodeID(e.CommandID)
		}
		c = &tracedCommand{CommandID: e.CommandID, nodeID: nodeID, State: "open", Attempts: []*tracedAttempt{}}
		t.commands[key] = c
		n := t.node(run, nodeID)
		n.Commands = append(n.Commands, c)
	}
	return c
}

// decide ends a command and the attempt that decided it.
func (t *trace) decide(c *tracedCommand, e agent.Event, d commandData, state string) {
	c.State, c.Error, c.Reason, c.EffectMS, c.ReusedFrom = state, d.Error, d.Reason, d.LatencyMS, d.ReusedFrom
	t.close(&c.span, e.CreatedAt)
	c.OpenMS = between(c.Start, e.CreatedAt)
	a := t.attempt(c, e)
	if a.State == "discarded" {
		return // it had been given back, and the command was decided without another
	}
	a.State = state
	t.close(&a.span, e.CreatedAt)
}

// attempt finds the attempt that an event is of.
func (t *trace) attempt(c *tracedCommand, e agent.Event) *tracedAttempt {
	c.Dispatches = max(c.Dispatches, e.Attempt)
	for _, a := range c.Attempts {
		if a.Attempt == e.Attempt {
			return a
		}
	}
	a := &tracedAttempt{Attempt: e.Attempt, State: "open"}
	switch {
	case e.Type == agent.CommandEmitted:
		t.open(&a.span, e.CreatedAt)
	case c.earliest != nil:
		t.open(&a.span, *c.earliest)
		a.StartEstimated = true
	}
	c.Attempts = append(c.Attempts, a)
	return a
}

// maxDetail bounds a text in a trace, in bytes; maxDetails bounds the values that are shown of one event.
const (
	maxDetail  = 120
	maxDetails = 20
)

// detail keeps the small values of an event's data: texts, cut, numbers and booleans, and an error's code and message.
func detail(data json.RawMessage) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return nil
	}
	small := map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if len(small) == maxDetails {
			break
		}
		value := fields[name]
		var text string
		var failure agent.Error
		switch {
		case len(name) > maxDetail || len(value) == 0 || value[0] == 'n' || value[0] == '[':
			continue
		case value[0] == '"' && json.Unmarshal(value, &text) == nil:
			value, _ = json.Marshal(agent.Preview(text, maxDetail))
		case value[0] == '{':
			if name != "error" || json.Unmarshal(value, &failure) != nil {
				continue
			}
			value, _ = json.Marshal(agent.Preview(failure.Error(), maxDetail))
		case len(value) > maxDetail:
			continue
		}
		small[name] = value
	}
	return small
}
