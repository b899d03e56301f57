package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"runledger/agent"
)

// violation is a promise that was not kept.
type violation struct {
	What      string `json:"what"`
	RunID     string `json:"run_id,omitempty"`
	CommandID string `json:"command_id,omitempty"`
	Detail    string `json:"detail"`
}

// report judges the evidence.
func (e *evidence) report() *report {
	r := &report{Runs: len(e.runs), Kills: map[victim]int{}, Witness: map[string]int{}, Violations: []violation{}, Killed: e.kills, Resolved: e.resolved, InFlight: len(e.lost), Verified: !e.unverified}
	for _, k := range e.kills {
		r.Kills[k.Victim]++
		if k.Error != "" {
			r.fault("kill", "", "", "%s: %s", k.Victim, k.Error)
		}
	}
	for _, text := range e.refused {
		r.fault("post refused", "", "", "%s", text)
	}
	if e.found != e.wanted {
		r.Lost += max(0, e.wanted-e.found)
		r.fault("runs", "", "", "%d were posted, there are %d", e.wanted, e.found)
	}
	known := map[string]bool{}
	for i := range e.runs {
		run := &e.runs[i]
		if run.Fast {
			r.Fast++
		}
		if run.Status != agent.Completed {
			r.Lost++
			r.fault("run lost", run.ID, "", "it is %s", cmp.Or(string(run.Status), "unknown"))
		}
		if !e.unverified {
			r.Witness[run.Verified.Temporal.Status]++
			if !run.Verified.OK {
				r.fault("verify", run.ID, "", "%s", run.Verified.Differences)
			}
		}
		r.checkOrder(run)
		r.noteStandstill(run)
		if want := commandsPerRun + 1; len(run.Commands) != want { // and the model's answer
			r.fault("commands", run.ID, "", "%d instead of %d", len(run.Commands), want)
		}
		for _, c := range run.Commands {
			known[agent.IdempotencyKey(run.ID, c.CommandID)] = true
			e.checkCommand(r, run, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(e.conversations)) {
		for i, n := range e.conversations[id] {
			if n != int64(i)+1 {
				r.Gaps++
				r.fault("gap", "", "", "conversation %s: event %d has the number %d", id, i+1, n)
				break
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.calls)) {
		if !known[key] {
			r.fault("stray call", "", "", "the tool server was called with the key %q, of no command", key)
		}
		for _, c := range e.calls[key] {
			if dead := e.deadAt[c.Door]; c.Gone && dead.IsZero() {
				r.Cancelled++
				run, command, _ := strings.Cut(key, "/")
				r.fault("effect cancelled", run, command, "its worker lived and did not wait for the answer")
			}
		}
	}
	e.checkFollowed(r)
	r.OK = len(r.Violations) == 0
	return r
}

// checkOrder holds the events of a run against the rules of the record.
func (r *report) checkOrder(run *runEvidence) {
	emitted, committed, ended := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range run.Events {
		bad := func(detail string) {
			r.fault("order", run.ID, e.CommandID, "event %d, %s: %s", e.Sequence, e.Type, detail)
		}
		switch e.Type {
		case agent.CommandEmitted:
			if emitted[e.CommandID] {
				bad("emitted twice")
			}
			emitted[e.CommandID] = true
		case agent.CommandCommitted:
			switch {
			case committed[e.CommandID]:
				r.Duplicates++
				bad("committed twice")
			case !emitted[e.CommandID]:
				bad("not emitted before")
			}
			committed[e.CommandID] = true
		case agent.CommandDoubtType, agent.AttemptDiscarded, agent.CommandReopened:
			if committed[e.CommandID] {
				bad("committed before")
			}
		case agent.NodeFinished:
			var d agent.NodeFinishedData
			if json.Unmarshal(e.Data, &d) != nil || !committed[d.ResultCommand] {
				bad("its command is not committed")
			}
			if ended[e.NodeID] {
				bad("finished twice")
			}
			ended[e.NodeID] = true
		case agent.RunFailed, agent.RunCancelled:
			bad("the run should complete: " + string(e.Data))
		default:
		}
	}
}

// noteStandstill keeps the longest time in which nothing of a run went on, for those who look after it.
func (r *report) noteStandstill(run *runEvidence) {
	for i := 1; i < len(run.Events); i++ {
		before, after := run.Events[i-1], run.Events[i]
		if d := after.CreatedAt.Sub(before.CreatedAt); d.Seconds() > r.Standstill.Seconds {
			r.Standstill = standstill{RunID: run.ID, Seconds: d.Seconds(), From: before.CreatedAt,
				Before: fmt.Sprintf("%d %s %s", before.Sequence, before.Type, before.CommandID),
				After:  fmt.Sprintf("%d %s %s", after.Sequence, after.Type, after.CommandID)}
		}
	}
}

// checkCommand holds what the ledger says of a command against what the tool server has counted.
func (e *evidence) checkCommand(r *report, run *runEvidence, c agent.Command) {
	r.Commands++
	key := agent.IdempotencyKey(run.ID, c.CommandID)
	calls := e.calls[key]
	bad := func(what, format string, args ...any) { r.fault(what, run.ID, c.CommandID, format, args...) }
	if c.State != agent.Committed {
		bad("not committed", "it is %s after %d dispatches", c.State, c.Dispatches)
	}
	doubts, retries, died := 0, 0, 0
	for _, event := range run.Events {
		if event.CommandID != c.CommandID {
			continue
		}
		switch event.Type {
		case agent.CommandCommitted:
			r.Commits++
			for _, one := range calls {
				if one.Arrived.After(event.CreatedAt) {
					r.Duplicates++
					bad("duplicate", "called again %v after it was committed", one.Arrived.Sub(event.CreatedAt))
				}
			}
		case agent.CommandDoubtType:
			doubts++
			if _, ok := e.lost[dispatch{key, event.Attempt}]; !ok {
				bad("doubt", "dispatch %d is in doubt although no kill found it in flight", event.Attempt)
			}
		case agent.CommandResolved:
			var d agent.CommandResolvedData
			if json.Unmarshal(event.Data, &d) == nil && d.Outcome == agent.OutcomeRetry {
				retries++
			}
		default:
		}
	}
	for no := range c.Dispatches {
		if _, ok := e.lost[dispatch{key, no + 1}]; ok {
			died++
		}
	}
	r.InDoubt += doubts
	effects := 0
	for _, one := range calls {
		if one.Took {
			effects++
		}
	}
	if c.Kind != agent.ToolCommand || c.Tool != "http_request" {
		if len(calls) > 0 {
			bad("stray call", "%d calls for a command that calls nobody", len(calls))
		}
		return
	}
	switch c.Effect {
	case agent.External:
		r.Effects += effects
		if effects > 1 {
			r.Duplicates += effects - 1
			bad("duplicate", "its effect took place %d times", effects)
		}
		if c.State == agent.Committed && effects == 0 {
			bad("missing effect", "it is committed, and its effect never took place")
		}
		if died == 0 && (len(calls) != 1 || c.Dispatches != 1) {
			bad("not exactly once", "no kill found it in flight; %d dispatches, %d calls", c.Dispatches, len(calls))
		}
		if len(calls) > 1+retries {
			bad("duplicate", "called %d times with %d retries allowed", len(calls), retries)
		}
	case agent.Idempotent:
		r.Repeated += max(0, len(calls)-1)
		if len(calls) == 0 {
			bad("missing effect", "it is committed, and was never called")
		}
		for i := range max(0, len(calls)-1) {
			// A call may be repeated when the worker that made it is dead.
			if dead := e.deadAt[calls[i].Door]; dead.IsZero() || calls[i+1].Arrived.Before(dead) {
				bad("not exactly once", "called again %v after a call of a worker that lived", calls[i+1].Arrived.Sub(calls[i].Arrived))
			}
		}
	case agent.Deterministic:
		bad("effect class", "an http_request that is deterministic")
	}
}

// checkFollowed holds what the clients saw against the record: every number of their run, once, in order.
func (e *evidence) checkFollowed(r *report) {
	numbers := map[string][]int64{}
	for _, run := range e.runs {
		for _, event := range run.Events {
			numbers[run.ID] = append(numbers[run.ID], event.Sequence)
		}
	}
	for _, f := range e.followed {
		r.Followed++
		r.Connections += f.Connections
		if !f.Over {
			r.fault("stream", f.RunID, "", "it does not end")
		}
		if want := numbers[f.RunID]; !slices.Equal(f.Numbers, want) {
			r.Gaps++
			r.fault("stream", f.RunID, "", "the client saw %v; the record has %v", f.Numbers, want)
		}
	}
}

func (r *report) fault(what, runID, commandID, format string, args ...any) {
	r.Violations = append(r.Violations, violation{What: what, RunID: runID, CommandID: commandID, Detail: fmt.Sprintf(format, args...)})
}
