package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// HandOver is what Temporal's histories say of the place where one execution of a run went on as another.
type HandOver struct {
	// EventID is the number of the completion of the Record activity that wrote it, in the history of an execution of that epoch.
	EventID int64
	Epoch   int
	// Began is the state that the execution had begun with, and Believed what it took the state to be at its end.
	Began, Believed State
	// Told is the state that the ledger gave it, and Next the one that the new execution began with.
	Told, Next State
}

// Misbelieved says where what an execution took to be the state of its run is not the fold of the record, one difference each; nodes
// are the ids of the plan's nodes. It compares what a workflow knows: how nodes ended, turns, tool calls and tokens. What it waited for
// may have been decided without its hearing of it; nothing else may be open.
func Misbelieved(began, believed, fold State, nodes []string) (found []string) {
	waits := func(id string) bool {
		return slices.Contains(believed.Open, id) || slices.Contains(believed.InDoubt, id)
	}
	decided := 0
	unsure := map[string]bool{}
	for _, id := range slices.Concat(believed.Open, believed.InDoubt) {
		decided++
		unsure[CommandNodeID(id)] = true
	}
	for _, set := range []struct {
		name           string
		believed, fold Bits
	}{
		{"started", believed.Started, fold.Started}, {"finished", believed.Finished, fold.Finished},
		{"failed", believed.Failed, fold.Failed}, {"skipped", believed.Skipped, fold.Skipped}, {"unmet", believed.Unmet, fold.Unmet},
	} {
		for i := range max(len(nodes), 8*len(set.believed), 8*len(set.fold)) {
			node := fmt.Sprintf("%d", i)
			if i < len(nodes) {
				node = nodes[i]
			}
			if set.believed.Has(i) != set.fold.Has(i) && (set.believed.Has(i) || !unsure[node]) {
				found = append(found, fmt.Sprintf("node %s %s: the execution had %t, the fold %t", node, set.name, set.believed.Has(i), set.fold.Has(i)))
			}
		}
	}
	for _, node := range nodes {
		if believed.Turns[node] != fold.Turns[node] {
			found = append(found, fmt.Sprintf("turns of %s: the execution had %d, the fold %d", node, believed.Turns[node], fold.Turns[node]))
		}
	}
	if missed := fold.ToolCalls - believed.ToolCalls; missed < 0 || missed > decided {
		found = append(found, fmt.Sprintf("tool calls: the execution had %d, the fold %d", believed.ToolCalls, fold.ToolCalls))
	}
	if believed.Tokens != fold.Tokens {
		found = append(found, fmt.Sprintf("tokens: the execution had %d, the fold %d", believed.Tokens, fold.Tokens))
	}
	for _, id := range slices.Concat(fold.Open, fold.InDoubt) {
		_, inner := OwnerCommandID(id)
		if !inner && !waits(id) && !slices.Contains(began.Open, id) && !slices.Contains(began.InDoubt, id) {
			found = append(found, fmt.Sprintf("command %s is open in the fold, and the execution did not wait for it", id))
		}
	}
	return found
}

// checkHandOver holds what was handed from one execution to the next to the fold of the record.
func (v *verifier) checkHandOver(h HandOver) {
	differ := func(expected, found string) {
		v.differ(Difference{Check: CheckHandOver, Sequence: h.Told.Sequence,
			Activity: fmt.Sprintf("hand-over at event %d of Temporal's history of epoch %d", h.EventID, h.Epoch), Expected: expected, Found: found})
	}
	var fold State
	for _, e := range v.Events {
		if e.Sequence > h.Told.Sequence {
			break
		}
		var err error
		if fold, err = Apply(fold, e); err != nil {
			return // the check of the fold says so
		}
	}
	if want, told := shownState(fold), shownState(h.Told); want != told {
		differ("the fold "+want, "the state "+told)
	}
	if told, next := shownState(h.Told), shownState(h.Next); told != next {
		differ("the next execution to begin with "+told, next)
	}
	if wrong := Misbelieved(h.Began, h.Believed, fold, v.nodeIDs()); len(wrong) > 0 {
		differ("the execution to agree with the fold", strings.Join(wrong, "; "))
	}
}

// nodeIDs are those of the plan on record, in order; none where it cannot be read, which the check of the plan says.
func (v *verifier) nodeIDs() (ids []string) {
	var plan Plan
	if json.Unmarshal(v.Plan, &plan) != nil {
		return nil
	}
	for _, n := range plan.Nodes {
		ids = append(ids, n.ID)
	}
	return ids
}

func shownState(s State) string {
	raw, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
