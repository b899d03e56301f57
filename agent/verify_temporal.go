package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Testimony is what Temporal's histories say of a run.
type Testimony struct {
	// Absent says why there is none: WitnessGone, WitnessNotConfigured or WitnessUnreachable; "" when there is.
	Absent WitnessStatus
	// Detail says more of an absence.
	Detail string
	// Epochs are those of the executions that were found, one each, in ascending order.
	Epochs     []int
	Statements []Statement
	// HandOvers are where an execution went on as another, of all chains that were found.
	HandOvers []HandOver
	// Before counts executions that were continued by one which was found, and that are kept no longer themselves. One may stand
	// for all those before it.
	Before int
	// Unread counts the results of activities that could not be read.
	Unread int
}

// Statement is what one activity, or the end of an execution, told Temporal.
type Statement struct {
	// Activity is the activity's type, or the workflow's for the end of an execution; EventID is the number of its
	// completion in the history of the execution of that epoch.
	Activity  string
	EventID   int64
	Epoch     int
	CommandID string
	// Outcome is set where it is of a command, Status where it is of the end.
	Outcome  Outcome
	Status   Status
	Sequence int64
	Hash     string
	Bytes    int64
	Witness
}

func (s Statement) String() string {
	return fmt.Sprintf("%s at event %d of Temporal's history of epoch %d", s.Activity, s.EventID, s.Epoch)
}

// WitnessStatus says what came of asking Temporal.
type WitnessStatus string

const (
	WitnessAgrees        WitnessStatus = "agrees"
	WitnessDiffers       WitnessStatus = "differs"
	WitnessGone          WitnessStatus = "gone"           // no history is kept, or none was begun
	WitnessNotConfigured WitnessStatus = "not_configured" // this process knows no Temporal
	WitnessUnreachable   WitnessStatus = "unreachable"
	WitnessNotCompared   WitnessStatus = "not_compared" // there is nothing left in the ledger to compare it with
)

// Corroborated is what came of asking Temporal, for the answer.
type Corroborated struct {
	Status WitnessStatus `json:"status"`
	Detail string        `json:"detail,omitempty"`
	// Epochs, Executions, HandOvers and Activities count what Temporal still has of the run. An epoch has one execution more than
	// it was handed over.
	Epochs     int `json:"epochs"`
	Executions int `json:"executions"`
	HandOvers  int `json:"hand_overs"`
	Activities int `json:"activities"`
}

// checkTestimony compares what was told to Temporal with the record, and the chain on record with the events.
func (v *verifier) checkTestimony(t Testimony) Corroborated {
	before := len(v.found)
	told := Corroborated{Status: t.Absent, Detail: t.Detail, Epochs: len(slices.Compact(slices.Clone(t.Epochs))),
		Executions: len(t.Epochs), HandOvers: len(t.HandOvers), Activities: len(t.Statements)}
	unchained := 0
	for _, s := range t.Statements {
		v.checkStatement(s)
		if s.Chain == "" {
			unchained++
		}
	}
	for _, h := range t.HandOvers {
		v.checkHandOver(h)
	}
	good := v.checkWitnesses(t.Statements)
	if t.Absent == "" {
		told.Status = WitnessAgrees
		if len(v.found) > before {
			told.Status = WitnessDiffers
		}
		told.Detail = v.reservations(t, unchained)
	}
	v.checkChain(good)
	return told
}

// reservations are what a testimony leaves open.
func (v *verifier) reservations(t Testimony, unchained int) string {
	var open []string
	var missing []string
	for epoch := 1; epoch <= v.Run.Epoch; epoch++ {
		if !slices.Contains(t.Epochs, epoch) {
			missing = append(missing, fmt.Sprint(epoch))
		}
	}
	if len(missing) > 0 {
		open = append(open, "no history of epoch "+strings.Join(missing, ", "))
	}
	if t.Before > 0 {
		open = append(open, "no history of what went before a hand-over")
	}
	if unchained > 0 {
		open = append(open, fmt.Sprintf("%d of %d activities told no chain", unchained, len(t.Statements)))
	}
	if t.Unread > 0 {
		open = append(open, fmt.Sprintf("the results of %d activities cannot be read", t.Unread))
	}
	return strings.Join(open, "; ")
}

// checkStatement holds what an activity told of its command, or of the run's end, to the event at that number and to the
// stored bytes.
func (v *verifier) checkStatement(s Statement) {
	if s.Sequence == 0 {
		return // it told of nothing that has a number
	}
	differ := func(expected, found string) {
		v.differ(Difference{Check: CheckActivity, Sequence: s.Sequence, CommandID: s.CommandID, Activity: s.String(), Expected: expected, Found: found})
	}
	var want []EventType
	switch {
	case s.Outcome == OutcomeCommitted:
		want = []EventType{CommandCommitted, TimerFired, UUIDRecorded, RandomRecorded}
	case s.Outcome == OutcomeFailed:
		want = []EventType{CommandFailedType, CommandResolved}
	case s.Outcome == OutcomeAborted:
		want = []EventType{CommandAbortType}
	case s.Outcome == OutcomeInDoubt:
		want = []EventType{CommandDoubtType}
	case s.Outcome == "" && s.Status == Completed:
		want = []EventType{RunCompleted}
	case s.Outcome == "" && s.Status == FailedStatus:
		want = []EventType{RunFailed}
	case s.Outcome == "" && s.Status == Cancelled:
		want = []EventType{RunCancelled}
	default:
		return
	}
	e, ok := v.at[s.Sequence]
	if !ok || !slices.Contains(want, e.Type) || e.CommandID != s.CommandID {
		differ(strings.TrimSpace(fmt.Sprintf("%s %s", want[0], s.CommandID))+fmt.Sprintf(" at %d", s.Sequence), v.describe(s.Sequence))
		return
	}
	if s.Outcome == OutcomeCommitted {
		v.checkToldResult(s, e, differ)
	}
}

func (v *verifier) checkToldResult(s Statement, e *Event, differ func(expected, found string)) {
	var d CommandCommittedData
	if decode(*e, &d) == nil && d.Hash != s.Hash { // else the fold says so
		differ("result_hash "+quote(s.Hash), quote(d.Hash))
	}
	row := v.rows[s.CommandID]
	switch {
	case row != nil && row.StoredHash == "" && v.without().payloads:
	case row == nil || row.StoredHash == "":
		differ("the bytes of result "+quote(s.Hash), "none")
	case row.StoredHash != s.Hash:
		differ("bytes with the hash "+quote(s.Hash), quote(row.StoredHash))
	case row.StoredBytes != s.Bytes:
		differ(fmt.Sprintf("%d bytes", s.Bytes), fmt.Sprint(row.StoredBytes))
	}
}

// checkWitnesses holds the chain as it was told to Temporal to the one recomputed from the events. What was changed lies
// behind the last number where the two agree, which is returned, and not behind the first where they do not; everything
// after that differs too.
func (v *verifier) checkWitnesses(statements []Statement) (good int64) {
	sorted := slices.Clone(statements)
	slices.SortStableFunc(sorted, func(a, b Statement) int { return cmp.Compare(a.Head, b.Head) })
	for _, s := range sorted {
		if s.Chain == "" {
			continue
		}
		link, ok := v.link(s.Head)
		if ok && link.Chain == s.Chain {
			good = s.Head
			continue
		}
		d := Difference{Check: CheckChain, From: good + 1, Sequence: s.Head, Activity: s.String(), Expected: "the chain " + s.Chain, Found: link.Chain}
		if !ok {
			d.Found = fmt.Sprintf("no event %d", s.Head)
		}
		if d.From >= d.Sequence {
			d.From = 0
		}
		v.differ(d)
		return good
	}
	return good
}

// checkChain holds the conversation's chain to the one recomputed from its events. Witnesses have proved it up to a number.
func (v *verifier) checkChain(good int64) {
	found := "no event"
	if v.RemovedThrough > 0 {
		found = v.Anchor
	}
	if n := len(v.Log); n > 0 {
		found = v.Log[n-1].Chain
	}
	if found == v.Chain {
		return
	}
	d := Difference{Check: CheckChain, From: good + 1, Sequence: v.Last, Expected: "the chain " + v.Chain + ", as the conversation's row has it", Found: found}
	if d.From >= d.Sequence {
		d.From = 0
	}
	v.differ(d)
}
