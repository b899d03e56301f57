package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// RunRecord is all that the ledger holds of a run, as of one moment, for VerifyRun. Documents that a hand may have changed are
// raw: one that cannot be read is a difference to be named, not an error.
type RunRecord struct {
	Run Run
	// Plan is the run's plan as its row holds it, nil when it has none.
	Plan json.RawMessage
	// Last and Chain are the counter and the hash chain of the run's conversation.
	Last  int64
	Chain string
	// RemovedThrough is the number up to which the conversation's events are no longer kept, and Anchor the chain there.
	RemovedThrough int64
	Anchor         string
	// Log is every event of the conversation that is kept, in order, with the chain recomputed from the events.
	Log []Link
	// Events are the run's own, in order.
	Events      []Event
	Commands    []CommandRecord
	Checkpoints []CheckpointRecord
	Approvals   []ApprovalRecord
	Messages    []MessageRecord
	Inputs      []InputRecord
	// Enqueued: the run waits for others of its conversation, and none of its events is written yet.
	Enqueued bool
}

// Link is an event's place in its conversation's hash chain.
type Link struct {
	Sequence int64
	// Chain is the chain after the event, in hexadecimal.
	Chain string
}

// CommandRecord is a command's row, and what its bytes say by themselves.
type CommandRecord struct {
	CommandID string
	NodeID    string
	Kind      CommandKind
	Tool      string
	Effect    EffectClass
	InputHash string
	// ArgumentsHash is computed from what a tool was called with, where somebody was asked about it; else it is "".
	ArgumentsHash string
	State         CommandState
	DispatchNo    int
	Sequence      int64
	// Unannounced: a doubt was resolved after the run's end; the event follows when the run is reopened.
	Unannounced bool
	// ResultHash and ResultBytes are what the row says of its result, StoredHash and StoredBytes what the bytes are, "" when
	// there are none.
	ResultHash  string
	ResultBytes int64
	StoredHash  string
	StoredBytes int64
	Error       json.RawMessage
	// Heard and GoesOn are of a loop's turn.
	Heard  int64
	GoesOn bool
	// ReusedFrom is the run that executed the command, when this one has not; OriginHash is that of the result there.
	ReusedFrom *ForkedFrom
	OriginHash string
}

// decided reports whether the row says that the command has an outcome.
func (c *CommandRecord) decided() bool {
	switch c.State {
	case Committed, CommandFailed, CommandAborted, CommandInDoubt:
		return true
	case Dispatched, Released, Fenced:
	}
	return false
}

// CheckpointRecord is a checkpoint's row.
type CheckpointRecord struct {
	CheckpointID string
	Type         CheckpointType
	Step         int
	Sequence     int64
	State        json.RawMessage
}

// MessageRecord is a message with the result of the command that it came with, if it came with one.
type MessageRecord struct {
	Message
	Kind   CommandKind
	Result json.RawMessage
}

// Check names a rule that a record has to keep.
type Check string

// The checks of a run.
const (
	CheckNumbers    Check = "numbers"    // the conversation's numbers have no gap and end at its counter
	CheckStart      Check = "start"      // run_started comes first, and once
	CheckEnd        Check = "end"        // one terminal event per epoch, and nothing after it
	CheckEpoch      Check = "epoch"      // epochs change at run_reopened, and grow
	CheckPlan       Check = "plan"       // plan_started, plan_generated, then nodes; and it is the plan of the run's row
	CheckCommand    Check = "command"    // emitted before its outcome, committed once, nothing after that
	CheckPause      Check = "pause"      // nothing begins between run_paused and run_unpaused
	CheckNode       Check = "node"       // started, its command committed, finished, once
	CheckApproval   Check = "approval"   // asked, answered once, executed after an approval only, with its arguments
	CheckCheckpoint Check = "checkpoint" // node_finished before its checkpoint, one row for each event
	CheckFold       Check = "fold"       // a checkpoint's state is the fold of the events before it
	CheckRow        Check = "row"        // rows of commands say what the events say
	CheckResult     Check = "result"     // the bytes of a result have the hash that was put on record
	CheckRun        Check = "run"        // the run's row says what its events say
	CheckMessage    Check = "message"    // messages say what the events and results say
	CheckInput      Check = "input"      // inputs say what their events say, and each is taken by one wait at most
	CheckSteer      Check = "steer"      // an answer ends its loop when it knows of all that was said to the run, and only then
	CheckChain      Check = "chain"      // the chain recomputed from the events is the one on record, and the one told to Temporal
	CheckFork       Check = "fork"       // what a run has from another one is marked, and is what that one has
	CheckActivity   Check = "activity"   // the ledger holds what an activity told Temporal
	CheckHandOver   Check = "hand_over"  // what one execution handed to the next is the fold of the events before it
)

// Checks lists every check, in the order above.
func Checks() []Check {
	return []Check{CheckNumbers, CheckStart, CheckEnd, CheckEpoch, CheckPlan, CheckCommand, CheckPause, CheckNode, CheckApproval, CheckCheckpoint, CheckFold,
		CheckRow, CheckResult, CheckRun, CheckMessage, CheckInput, CheckSteer, CheckChain, CheckFork, CheckActivity, CheckHandOver}
}

// Difference is a place where the record contradicts itself, or a witness.
type Difference struct {
	Check Check `json:"check"`
	// Sequence is the number of the event in question, 0 when it is none. From is set when the place is only known to be
	// between two numbers: From is the first of them and Sequence the last.
	Sequence  int64  `json:"sequence_number,omitempty"`
	From      int64  `json:"from_sequence,omitempty"`
	NodeID    string `json:"node_id,omitempty"`
	CommandID string `json:"command_id,omitempty"`
	// Activity names the activity in Temporal's history that says otherwise, with the number of its completion there.
	Activity string `json:"activity,omitempty"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

func (d Difference) String() string {
	place := fmt.Sprintf("event %d", d.Sequence)
	if d.From > 0 {
		place = fmt.Sprintf("events %d to %d", d.From, d.Sequence)
	}
	if d.Sequence == 0 {
		place = "rows"
	}
	for _, name := range []string{cmp.Or(d.CommandID, d.NodeID), d.Activity} {
		if name != "" {
			place += ", " + name
		}
	}
	return fmt.Sprintf("%s: %s: expected %s, found %s", place, d.Check, d.Expected, d.Found)
}

// Verification is what VerifyRun found.
type Verification struct {
	RunID string `json:"run_id"`
	// OK: nothing contradicts. Whether Temporal was asked, and had something to say, stands under Temporal.
	OK bool `json:"ok"`
	// Removed says what of the record is no longer kept, so that it was not compared. Without its events nothing of the run is: only
	// the conversation's numbers and chain are.
	Removed *Removed `json:"removed,omitempty"`
	// Differences are in the order of their numbers, the first ones only when HasMore.
	Differences []Difference `json:"differences"`
	HasMore     bool         `json:"has_more"`
	Checked     Checked      `json:"checked"`
	Temporal    Corroborated `json:"temporal"`
}

// Checked counts what was compared.
type Checked struct {
	Events      int `json:"events"`
	Commands    int `json:"commands"`
	Checkpoints int `json:"checkpoints"`
	Results     int `json:"results"`
	Activities  int `json:"activities"`
}

const maxDifferences = 100

// VerifyRun holds a run's record against its own rules and against what Temporal says of it.
func VerifyRun(r *RunRecord, t Testimony) Verification {
	v := verifier{RunRecord: r, commands: map[string]*commandStory{}, nodes: map[string]*nodeStory{},
		at: make(map[int64]*Event, len(r.Events)), rows: make(map[string]*CommandRecord, len(r.Commands))}
	for i := range r.Events {
		v.at[r.Events[i].Sequence] = &r.Events[i]
		var d RunForkedData
		if r.Events[i].Type == RunForked && v.through == 0 && decode(r.Events[i], &d) == nil {
			v.through = d.Through
		}
	}
	for i := range r.Commands {
		v.rows[r.Commands[i].CommandID] = &r.Commands[i]
	}
	v.checkNumbers()
	if v.without().events {
		t = Testimony{Absent: WitnessNotCompared, Detail: "the run's events are no longer kept"}
	} else {
		v.checkOrder()
		v.checkFold()
		v.checkRun()
		v.checkCommands()
		v.checkApprovals()
		v.checkCheckpoints()
		v.checkMessages()
		if !v.without().payloads {
			v.checkInputs()
		}
		v.checkSteered()
		v.checkFork()
	}
	told := v.checkTestimony(t)
	results := 0
	for _, c := range r.Commands {
		if c.StoredHash != "" {
			results++
		}
	}
	// What is known to lie in a range comes after what is known exactly.
	slices.SortStableFunc(v.found, func(a, b Difference) int {
		if (a.Sequence == 0) != (b.Sequence == 0) {
			return cmp.Compare(b.Sequence, a.Sequence)
		}
		return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.From, b.From))
	})
	out := Verification{RunID: r.Run.RunID, OK: len(v.found) == 0, Removed: r.Run.Removed, Differences: v.found, Temporal: told,
		Checked: Checked{Events: len(r.Events), Commands: len(r.Commands), Checkpoints: len(r.Checkpoints), Results: results, Activities: told.Activities}}
	if out.Differences == nil {
		out.Differences = []Difference{}
	}
	if len(out.Differences) > maxDifferences {
		out.Differences, out.HasMore = out.Differences[:maxDifferences], true
	}
	return out
}

// verifier is the state of one verification.
type verifier struct {
	*RunRecord
	at       map[int64]*Event // the run's events by their numbers
	rows     map[string]*CommandRecord
	commands map[string]*commandStory
	nodes    map[string]*nodeStory
	// through is the last number of what a fork has from its source, 0 for none.
	through int64
	// approvals are in the order in which they were requested.
	approvals []*approvalStory
	// ended is the terminal event after which nothing has come, nil while the run is open.
	ended *Event
	// paused is the pause that the run is in, nil for none.
	paused *pauseStory
	found  []Difference
}

func (v *verifier) differ(d Difference) { v.found = append(v.found, d) }

// lacking says what of the record is no longer kept.
type lacking struct{ events, payloads bool }

func (v *verifier) without() lacking {
	r := v.Run.Removed
	return lacking{events: r != nil && r.EventsAt != nil, payloads: r != nil && r.PayloadsAt != nil}
}

// differAt is a difference at an event.
func (v *verifier) differAt(check Check, e *Event, expected, found string) {
	v.differ(Difference{Check: check, Sequence: e.Sequence, NodeID: e.NodeID, CommandID: e.CommandID, Expected: expected, Found: found})
}

// describe says what stands at a number of the conversation.
func (v *verifier) describe(sequence int64) string {
	if e, ok := v.at[sequence]; ok {
		return describe(e)
	}
	if _, ok := v.link(sequence); ok {
		return fmt.Sprintf("an event of another run at %d", sequence)
	}
	return fmt.Sprintf("no event %d", sequence)
}

func describe(e *Event) string {
	text := fmt.Sprintf("event %d %s", e.Sequence, e.Type)
	if on := cmp.Or(e.CommandID, e.NodeID); on != "" {
		text += " of " + on
	}
	return text
}

func (v *verifier) link(sequence int64) (Link, bool) {
	i, ok := slices.BinarySearchFunc(v.Log, sequence, func(l Link, n int64) int { return cmp.Compare(l.Sequence, n) })
	if !ok {
		return Link{}, false
	}
	return v.Log[i], true
}

// checkNumbers: nothing takes events out of a log but from its beginning, so it begins behind what was removed and goes on by one up to
// the counter.
func (v *verifier) checkNumbers() {
	next := v.RemovedThrough + 1
	for _, l := range v.Log {
		if l.Sequence != next {
			v.differ(Difference{Check: CheckNumbers, Sequence: next, Expected: fmt.Sprintf("event %d", next),
				Found: fmt.Sprintf("event %d next", l.Sequence)})
		}
		next = l.Sequence + 1
	}
	if next-1 != v.Last {
		v.differ(Difference{Check: CheckNumbers, Sequence: min(next, v.Last+1), Expected: fmt.Sprintf("%d, the conversation's counter, as the last number", v.Last),
			Found: fmt.Sprintf("%d", next-1)})
	}
}

// checkFold: the state of every checkpoint is the fold of the run's events before it.
func (v *verifier) checkFold() {
	var state State
	next := 0
	for _, c := range v.Checkpoints {
		for next < len(v.Events) && v.Events[next].Sequence < c.Sequence {
			if !v.foldOne(&state, &v.Events[next]) {
				return
			}
			next++
		}
		want, err := json.Marshal(state)
		if err != nil || !sameJSON(want, c.State) {
			v.differ(Difference{Check: CheckFold, Sequence: c.Sequence, Expected: "the fold " + string(want), Found: "the state " + Preview(string(c.State), maxPreviewBytes)})
		}
		if c.Step != state.Step() {
			v.differ(Difference{Check: CheckFold, Sequence: c.Sequence, Expected: fmt.Sprintf("step_number %d", state.Step()), Found: fmt.Sprint(c.Step)})
		}
	}
	for ; next < len(v.Events); next++ {
		if !v.foldOne(&state, &v.Events[next]) {
			return
		}
	}
}

// foldOne takes in the next event. run_reopened says where the run stands, which the fold has to give as well.
func (v *verifier) foldOne(state *State, e *Event) bool {
	before := *state
	var err error
	if *state, err = Apply(before, *e); err != nil {
		v.differAt(CheckFold, e, "data that can be read", err.Error())
		return false
	}
	var d RunReopenedData
	if e.Type != RunReopened || decode(*e, &d) != nil { // else the order says so
		return true
	}
	for _, i := range d.Nodes {
		if !before.Failed.Has(i) {
			v.differAt(CheckFold, e, fmt.Sprintf("node %d to have failed before it is tried again", i), "that it has not")
		}
	}
	if d.Step != state.Step() {
		v.differAt(CheckFold, e, fmt.Sprintf("from_step %d", state.Step()), fmt.Sprint(d.Step))
	}
	return true
}
