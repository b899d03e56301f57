package replay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"runledger/agent"
)

// Record is a ledger as an audit reads it. It is one method for each part of a run's record: the run with its plan, its
// events, their fold with the results, its commands, and the commands that were scheduled but never began.
type Record interface {
	WorkerRun(ctx context.Context, runID string) (agent.Run, *agent.Plan, error)
	Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error)
	ReplayContext(ctx context.Context, runID string) (*agent.ReplayContext, error)
	Commands(ctx context.Context, runID string) ([]agent.Command, error)
	Fenced(ctx context.Context, runID string) ([]string, error)
}

// Ending is how a run ended.
type Ending struct {
	Status agent.Status
	// Output is the final output of a completed run, Error says why a run failed.
	Output string
	Error  *agent.Error
	// The nodes by how they ended, in the order of the plan.
	Finished, Failed, Skipped []string
}

// Audit is the result of an audit.
type Audit struct {
	RunID string
	// Commands is the number of commands that the record answered.
	Commands int
	// Recorded is how the run ended by its record, Replayed how it ended in the audit.
	Recorded, Replayed Ending
	// Forbidden is the first command that the run came to and that the record does not answer: code REPLAY_FORBIDDEN, with its
	// node and command. Nil when there is none.
	Forbidden *agent.Error
	// Differences say, one a line, in what the audit does not agree with the record.
	Differences []string
}

// OK reports whether the record alone gives the run again.
func (a Audit) OK() bool { return a.Forbidden == nil && len(a.Differences) == 0 }

// String says in one line what the audit found.
func (a Audit) String() string {
	switch {
	case a.Forbidden != nil:
		return a.Forbidden.Error()
	case len(a.Differences) > 0:
		return strings.Join(a.Differences, "; ")
	}
	return "ok"
}

// Ledger audits a run that has ended: it executes AgentExecution once more, in Temporal's test environment and under the audit
// policy, with the record as the only source of what became of commands. No model is asked, no tool is called, nothing is
// written.
//
// Commands get their recorded outcomes in the order of their numbers, each the outcome that stands: one that was in doubt and
// was resolved never is in doubt in an audit. The record does not tell when the run heard of what ended it before its plan did, a
// cancellation, its time limit or the failure of a node: it is taken to be after every outcome that made something begin.
//
// The error says why there is nothing to audit: the record cannot be read, the run has not ended, or its end was not its own.
func Ledger(ctx context.Context, record Record, runID string) (Audit, error) {
	r, err := readRecord(ctx, record, runID)
	if err != nil {
		return Audit{}, fmt.Errorf("audit run %s: %w", runID, err)
	}
	audit := Audit{RunID: runID, Recorded: r.ending()}
	if len(r.rows) == 0 && len(r.fenced) == 0 && r.run.Status == agent.Cancelled {
		audit.Replayed = audit.Recorded // it was taken back before anything began
		return audit, nil
	}
	late := map[string]bool{}
	for {
		s := newStage(r, late)
		if audit.Replayed, err = s.play(); err != nil {
			return Audit{}, fmt.Errorf("audit run %s: %w", runID, err)
		}
		if r.heardLate(s.early) && !late[s.early] {
			late[s.early] = true
			continue
		}
		audit.Commands, audit.Forbidden = len(s.answered), s.forbidden
		audit.Differences = append(s.differences, audit.Recorded.differences(audit.Replayed)...)
		for _, id := range r.emitted {
			if !s.answered[id] && s.forbidden == nil {
				audit.Differences = append(audit.Differences, fmt.Sprintf("command %s is on record, and the replay does not come to it", id))
			}
		}
		return audit, nil
	}
}

// runRecord is a run's record, as an audit uses it.
type runRecord struct {
	run   agent.Run
	fold  agent.State
	nodes []string // of the plan, in order
	plan  *agent.Plan
	// shape is that of a plan which was there from the start, nil when the planner made it.
	shape *agent.Shape
	// rows are the commands with an outcome, emitted those that the run let begin, in their order, and fenced those that were
	// only scheduled, or have no outcome.
	rows    map[string]*agent.CommandRow
	emitted []string
	fenced  []string
	// fatal are the nodes whose failure the plan does not go on after.
	fatal map[string]bool
}

// eventsAtOnce is how many events of a run are read at a time.
const eventsAtOnce = 1000

func readRecord(ctx context.Context, record Record, runID string) (*runRecord, error) {
	a := &runRecord{rows: map[string]*agent.CommandRow{}, fatal: map[string]bool{}}
	var plan *agent.Plan
	var err error
	if a.run, plan, err = record.WorkerRun(ctx, runID); err != nil {
		return nil, err
	}
	switch {
	case !a.run.Status.Terminal():
		return nil, fmt.Errorf("the run has not ended; it is %s", a.run.Status)
	case a.run.Error != nil && a.run.Error.Code == agent.CodeExecutionLost:
		return nil, errors.New("its execution was lost, so that its end is not its own")
	}
	recorded, err := record.ReplayContext(ctx, runID)
	if err != nil {
		return nil, err
	}
	a.fold = recorded.State
	commands, err := record.Commands(ctx, runID)
	if err != nil {
		return nil, err
	}
	for _, c := range commands {
		if _, inner := agent.OwnerCommandID(c.CommandID); inner {
			continue // an effect inside of a tool is the tool's
		}
		row := &agent.CommandRow{RunID: runID, CommandID: c.CommandID, NodeID: c.NodeID, Kind: c.Kind, Tool: c.Tool, Effect: c.Effect,
			State: c.State, DispatchNo: c.Dispatches, Sequence: c.Sequence, Result: recorded.CommandResults[c.CommandID], ResultHash: c.ResultHash, Error: c.Error,
			Tokens: agent.TokensOf(c.Usage)}
		if slices.Contains(a.fold.InDoubt, c.CommandID) { // what was said of it after the run's end is not part of the run
			row.State = agent.CommandInDoubt
		}
		switch row.State {
		case agent.Committed, agent.CommandFailed, agent.CommandAborted, agent.CommandInDoubt:
			a.rows[c.CommandID] = row
		case agent.Dispatched, agent.Released, agent.Fenced, agent.CommandWaiting:
			a.fenced = append(a.fenced, c.CommandID)
		}
	}
	fenced, err := record.Fenced(ctx, runID)
	if err != nil {
		return nil, err
	}
	a.fenced = append(a.fenced, fenced...)
	return a, a.readEvents(ctx, record, plan)
}

func (a *runRecord) readEvents(ctx context.Context, record Record, plan *agent.Plan) error {
	planner := false
	reopened := map[string]int{} // the attempts that were the last ones then
	for after := int64(0); ; {
		page, err := record.Events(ctx, agent.LogScope{ConversationID: a.run.ConversationID, RunID: a.run.RunID}, after, eventsAtOnce)
		if err != nil {
			return err
		}
		for _, e := range page {
			after = e.Sequence
			switch {
			case e.RunID != a.run.RunID: // a child's
			case e.Type == agent.CommandEmitted:
				if _, inner := agent.OwnerCommandID(e.CommandID); inner {
					break
				}
				a.emitted = append(a.emitted, e.CommandID)
			case e.Type == agent.PlanStarted:
				var d agent.PlanStartedData
				if err := json.Unmarshal(e.Data, &d); err != nil {
					return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
				}
				planner = d.Source == "planner"
			case e.Type == agent.RunReopened:
				clear(a.fatal)
				a.reopened(e.Sequence)
			case e.Type == agent.CommandCommitted:
				var d agent.CommandCommittedData
				if err := json.Unmarshal(e.Data, &d); err != nil {
					return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
				}
				if row := a.rows[e.CommandID]; row != nil {
					row.GoesOn = d.GoesOn
				}
			case e.Type == agent.CommandReopened:
				reopened[e.CommandID] = e.Attempt
			case e.Type == agent.CommandAbortType:
				var d agent.CommandAbortedData
				if err := json.Unmarshal(e.Data, &d); err != nil {
					return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
				}
				if attempt, ok := reopened[e.CommandID]; ok && attempt == e.Attempt && d.NeverStarted {
					a.neverStarted(e)
				}
			case e.Type == agent.NodeFailed:
				var d agent.NodeFailedData
				if err := json.Unmarshal(e.Data, &d); err != nil {
					return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
				}
				a.fatal[e.NodeID] = !d.Handled
			}
		}
		if len(page) < eventsAtOnce {
			break
		}
	}
	if plan == nil {
		return nil
	}
	a.plan = plan
	for _, n := range plan.Nodes {
		a.nodes = append(a.nodes, n.ID)
	}
	if !planner {
		a.shape = plan.Shape(&a.run.Definition)
	}
	return nil
}

// reopened takes back what an earlier execution had stopped: the next one has not come to it, else it has another outcome.
func (a *runRecord) reopened(sequence int64) {
	for _, id := range sortedKeys(a.rows) {
		if row := a.rows[id]; row.State == agent.CommandAborted && row.Sequence < sequence {
			delete(a.rows, id)
			a.fenced = append(a.fenced, id)
		}
	}
}

// neverStarted takes back a command that an earlier execution has begun, and the last one has not. One that was stopped from outside may have
// scheduled it; one that failed waits for what it has scheduled, so that it cannot have.
func (a *runRecord) neverStarted(aborted agent.Event) {
	id := aborted.CommandID
	if row := a.rows[id]; row == nil || row.Sequence != aborted.Sequence { // a later execution has come to it
		return
	}
	delete(a.rows, id)
	if _, ends := a.endedBy(); ends && a.run.Status == agent.FailedStatus && !a.timedOut() {
		a.emitted = slices.DeleteFunc(a.emitted, func(e string) bool { return e == id })
		return
	}
	a.fenced = append(a.fenced, id)
}

// ending is how the run ended by its record.
func (a *runRecord) ending() Ending {
	e := a.endingOf(a.fold)
	e.Status, e.Error = a.run.Status, a.run.Error
	if a.run.FinalOutput != nil {
		e.Output = *a.run.FinalOutput
	}
	return e
}

// endingOf gives the nodes of a state by how they ended.
func (a *runRecord) endingOf(s agent.State) (e Ending) {
	for i, id := range a.nodes {
		switch {
		case s.Finished.Has(i):
			e.Finished = append(e.Finished, id)
		case s.Failed.Has(i):
			e.Failed = append(e.Failed, id)
		case s.Skipped.Has(i):
			e.Skipped = append(e.Skipped, id)
		}
	}
	return e
}

// differences compares the record with a replay.
func (e Ending) differences(replayed Ending) (found []string) {
	for _, part := range []struct{ what, recorded, replayed string }{
		{"status", string(e.Status), string(replayed.Status)},
		{"error", placeOf(e.Error), placeOf(replayed.Error)},
		{"final output", e.Output, replayed.Output},
		{"finished nodes", strings.Join(e.Finished, " "), strings.Join(replayed.Finished, " ")},
		{"failed nodes", strings.Join(e.Failed, " "), strings.Join(replayed.Failed, " ")},
		{"skipped nodes", strings.Join(e.Skipped, " "), strings.Join(replayed.Skipped, " ")},
	} {
		if part.recorded != part.replayed {
			found = append(found, fmt.Sprintf("%s: the record has %q, the replay gives %q", part.what,
				agent.Preview(part.recorded, shownBytes), agent.Preview(part.replayed, shownBytes)))
		}
	}
	return found
}

const shownBytes = 200

// placeOf is what of an error is the same every time: its code and where it happened.
func placeOf(e *agent.Error) string {
	if e == nil {
		return ""
	}
	return strings.TrimSpace(string(e.Code) + " " + e.NodeID + " " + e.CommandID)
}

// order is the order in which the outcomes are delivered: by their numbers, those that are late and other failures that would
// have ended the run after what did end it. That is "" for a cancellation or the time limit, else the command that failed.
func (a *runRecord) order(late map[string]bool) []string {
	end, ends := a.endedBy()
	ids := slices.SortedFunc(maps.Keys(a.rows), func(x, y string) int { return cmp.Compare(a.rows[x].Sequence, a.rows[y].Sequence) })
	last := map[string]string{} // of each node
	for _, id := range ids {
		last[a.rows[id].NodeID] = id
	}
	var before, after []string
	for _, id := range ids {
		switch node := a.rows[id].NodeID; {
		case ends && id == end:
		case ends && (late[id] || a.fatal[node] && last[node] == id):
			after = append(after, id)
		default:
			before = append(before, id)
		}
	}
	if ends {
		before = append(before, end)
	}
	return append(before, after...)
}

// endedBy tells what ended the run before its plan did.
func (a *runRecord) endedBy() (command string, ends bool) {
	switch {
	case a.run.Status == agent.Cancelled || a.timedOut():
		return "", true
	case a.run.Error != nil && a.rows[a.run.Error.CommandID] != nil:
		return a.run.Error.CommandID, true
	}
	return "", false
}

// heardLate reports whether the run may have heard of an outcome after what ended it.
func (a *runRecord) heardLate(outcome string) bool {
	end, ends := a.endedBy()
	return ends && outcome != "" && outcome != end
}

// timedOut tells the limit of the run's time from those of its nodes.
func (a *runRecord) timedOut() bool {
	return a.run.Status == agent.FailedStatus && a.run.Error != nil && a.run.Error.Code == agent.CodeLimit && a.run.Error.NodeID == ""
}
