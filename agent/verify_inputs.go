package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// InputRecord is the row of an input.
type InputRecord struct {
	Name    string
	InputID string
	Value   json.RawMessage
	// Sequence is the number of its event, 0 while its run waits in its conversation's queue.
	Sequence int64
	// CommandID is the wait that has taken it, "" while none has.
	CommandID string
}

func (i *InputRecord) String() string { return fmt.Sprintf("input %s %s", i.Name, i.InputID) }

// ValueHash names a value by its bytes.
func ValueHash(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:])
}

// checkInputs: every input has its event and every event its input, and what a wait has taken is what was sent, once.
func (v *verifier) checkInputs() {
	rows, takers := map[int64]bool{}, map[string]*InputRecord{}
	for k := range v.Inputs {
		i := &v.Inputs[k]
		if v.Enqueued && i.Sequence == 0 && i.CommandID == "" {
			continue // its event is written with the first ones of the run
		}
		differ := func(expected, found string) {
			v.differ(Difference{Check: CheckInput, Sequence: i.Sequence, CommandID: i.CommandID, Expected: expected, Found: found})
		}
		e, ok := v.at[i.Sequence]
		var d InputReceivedData
		switch {
		case !ok || e.Type != InputReceived || rows[i.Sequence] || decode(*e, &d) != nil || d.Name != i.Name || d.InputID != i.InputID:
			differ("input_received of "+i.String(), v.describe(i.Sequence))
		case d.Hash != ValueHash(i.Value):
			differ("a value with the hash "+quote(d.Hash), quote(ValueHash(i.Value)))
		}
		rows[i.Sequence] = true
		if i.CommandID == "" {
			continue
		}
		if before := takers[i.CommandID]; before != nil {
			differ("one input for the wait, "+before.String(), i.String())
		}
		takers[i.CommandID] = i
		v.checkTaken(i, differ)
	}
	for k := range v.Events {
		e := &v.Events[k]
		if e.Type == InputReceived && !rows[e.Sequence] {
			v.differAt(CheckInput, e, "a row with its value", "none")
		}
	}
	for id, c := range v.commands {
		if c.committed != nil && c.signal() != "" && takers[id] == nil {
			v.differAt(CheckInput, c.committed, "an input "+c.signal()+" that the wait has taken", "none")
		}
	}
}

// checkTaken: the command that has taken an input waited for its name, and gave its value, after it had come.
func (v *verifier) checkTaken(i *InputRecord, differ func(expected, found string)) {
	row, c := v.rows[i.CommandID], v.command(i.CommandID)
	switch {
	case row == nil || row.Kind != WaitCommand || row.State != Committed || c.committed == nil:
		differ("a wait that is committed, since it has taken the input", "command "+i.CommandID+", which is not")
	case c.signal() != i.Name:
		differ("a wait for "+i.Name, fmt.Sprintf("one for %q", c.signal()))
	case c.committed.Sequence < i.Sequence:
		differ(fmt.Sprintf("a commit after event %d", i.Sequence), describe(c.committed))
	case row.ResultHash != ValueHash(i.Value):
		differ("the value of "+i.String()+" as the wait's result, hash "+quote(ValueHash(i.Value)), quote(row.ResultHash))
	}
}

// signal is the name of the input that a wait waits for, "" for every other command.
func (c *commandStory) signal() string {
	var d CommandEmittedData
	var asked struct {
		Signal string `json:"signal"`
	}
	if c.emitted == nil || decode(*c.emitted, &d) != nil || d.Kind != WaitCommand || d.Input == nil || json.Unmarshal(d.Input.JSON, &asked) != nil {
		return ""
	}
	return asked.Signal
}

// checkSteered: an answer of a loop ends it when it knows of everything that was said to the run, and only then.
func (v *verifier) checkSteered() {
	var said []int64
	ends := map[string]*Event{} // of nodes, by the command that gave their result
	for k := range v.Events {
		e := &v.Events[k]
		switch e.Type {
		case MessageAdded:
			var d MessageAddedData
			if decode(*e, &d) == nil && d.Steers {
				said = append(said, e.Sequence)
			}
		case NodeFinished:
			var d NodeFinishedData
			if decode(*e, &d) == nil {
				ends[d.ResultCommand] = e
			}
		default:
		}
	}
	for k := range v.Events {
		e := &v.Events[k]
		var d CommandCommittedData
		if e.Type != CommandCommitted || decode(*e, &d) != nil || d.Turn == 0 {
			continue
		}
		v.checkTurn(e, d, said, ends[e.CommandID])
	}
}

func (v *verifier) checkTurn(e *Event, d CommandCommittedData, said []int64, end *Event) {
	var emitted CommandEmittedData
	if c := v.command(e.CommandID); c.emitted != nil {
		_ = decode(*c.emitted, &emitted) // the fold says so
	}
	if row := v.rows[e.CommandID]; row != nil && (row.Heard != emitted.Heard || row.GoesOn != d.GoesOn) {
		v.differAt(CheckSteer, e, fmt.Sprintf("a row that has heard up to %d and goes on: %t", emitted.Heard, d.GoesOn),
			fmt.Sprintf("one that has heard up to %d and goes on: %t", row.Heard, row.GoesOn))
	}
	unheard := slices.ContainsFunc(said, func(at int64) bool { return at > emitted.Heard && at < e.Sequence })
	switch {
	case len(d.Tools) > 0: // its tools' results let the loop go on
	case unheard && !d.GoesOn:
		v.differAt(CheckSteer, e, "an answer that goes on, since it does not know of something that was said before it", "one that ends its loop")
	case !unheard && d.GoesOn:
		v.differAt(CheckSteer, e, "something that was said before the answer that goes on", "nothing that it does not know of")
	}
	if d.GoesOn && end != nil {
		v.differAt(CheckSteer, end, "a later answer than "+e.CommandID+", which goes on", "that one")
	}
	next := v.commands[TurnCommandID(e.NodeID, d.Turn+1)]
	if d.GoesOn && v.ended != nil && v.ended.Type == RunCompleted && (next == nil || next.emitted == nil || next.emitted.Sequence < e.Sequence) {
		v.differAt(CheckSteer, e, "another turn after an answer that goes on", "none")
	}
}
