package agent

import (
	"encoding/json"
	"fmt"
)

// checkFork: a run that was forked says so once, right after its own beginning; what it has from another run stands there, or
// is the result of a call that the other run had made; and it says the same everywhere.
func (v *verifier) checkFork() {
	var begins *Event
	var said RunForkedData
	reused := map[string]ForkedFrom{}
	copied := 0
	for i := range v.Events {
		e := &v.Events[i]
		if e.Type == RunForked {
			if begins != nil {
				v.differAt(CheckFork, e, "run_forked once", describe(e))
				continue
			}
			begins = e
			if err := decode(*e, &said); err != nil {
				v.differAt(CheckFork, e, "data that can be read", err.Error())
			}
			continue
		}
		switch e.Type {
		case CommandCommitted, CommandFailedType, CommandAbortType, CommandDoubtType, TimerFired, UUIDRecorded, RandomRecorded:
			delete(reused, e.CommandID)
			if from := v.checkReused(e, begins); from != nil {
				reused[e.CommandID] = *from
			}
			if v.copied(e) {
				copied++
			}
		default:
		}
	}
	v.checkForked(begins, said)
	for i := range v.Commands {
		c := &v.Commands[i]
		from, ok := reused[c.CommandID]
		if c.decided() && !sameOrigin(c.ReusedFrom, from, ok) {
			v.differ(Difference{Check: CheckFork, Sequence: c.Sequence, NodeID: c.NodeID, CommandID: c.CommandID,
				Expected: origin(from, ok) + ", as its event says", Found: originOf(c.ReusedFrom)})
		}
		if ok && c.OriginHash != "" && c.OriginHash != c.ResultHash {
			v.differ(Difference{Check: CheckFork, Sequence: c.Sequence, NodeID: c.NodeID, CommandID: c.CommandID,
				Expected: fmt.Sprintf("the result %q that run %s has", c.OriginHash, from.RunID), Found: quote(c.ResultHash)})
		}
	}
	if begins != nil && copied != said.Reused {
		v.differAt(CheckFork, begins, fmt.Sprintf("%d reused commands up to event %d", said.Reused, said.Through), fmt.Sprint(copied))
	}
}

// checkForked: the run's row and its run_forked name the same source.
func (v *verifier) checkForked(begins *Event, said RunForkedData) {
	row := v.Run.ForkedFrom
	switch {
	case begins == nil && row == nil:
	case begins == nil:
		v.differ(Difference{Check: CheckFork, Sequence: v.Run.StartSequence, Expected: "run_forked, since the run was forked from " + originOf(row), Found: "none"})
	case row == nil:
		v.differAt(CheckFork, begins, "no run_forked, since the run was not forked", describe(begins))
	case *row != ForkedFrom{RunID: said.RunID, Sequence: said.Sequence}:
		v.differAt(CheckFork, begins, originOf(row), originOf(&ForkedFrom{RunID: said.RunID, Sequence: said.Sequence}))
	case said.Through < begins.Sequence || v.at[said.Through] == nil:
		v.differAt(CheckFork, begins, "an event of the run as the last of the source's", fmt.Sprint(said.Through))
	}
}

// checkReused gives where the outcome of a command comes from, nil when it is the run's own. Among the source's events every
// outcome has to say so, and after them only a result can.
func (v *verifier) checkReused(e, begins *Event) *ForkedFrom {
	var d struct {
		From *ForkedFrom `json:"reused_from"`
	}
	if json.Unmarshal(e.Data, &d) != nil { // the fold says so
		return nil
	}
	switch {
	case v.copied(e) && d.From == nil:
		v.differAt(CheckFork, e, "reused_from, since the event is the source's", "none")
	case d.From != nil && (begins == nil || !v.copied(e) && e.Type != CommandCommitted):
		v.differAt(CheckFork, e, "an outcome of the run's own", originOf(d.From))
	}
	return d.From
}

func sameOrigin(row *ForkedFrom, from ForkedFrom, ok bool) bool {
	if row == nil {
		return !ok
	}
	return ok && *row == from
}

func origin(from ForkedFrom, ok bool) string {
	if !ok {
		return originOf(nil)
	}
	return originOf(&from)
}

func originOf(from *ForkedFrom) string {
	if from == nil {
		return "no other run"
	}
	return fmt.Sprintf("event %d of run %s", from.Sequence, from.RunID)
}

// copied reports whether an event is one of the source's.
func (v *verifier) copied(e *Event) bool { return e.Sequence <= v.through }
