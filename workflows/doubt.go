package workflows

import (
	"slices"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// rests is told when a command parks, since it waits for a person, and when it goes on.
type rests func(ctx workflow.Context, parked bool)

// awaitResolution parks a command in doubt until somebody, or a late result, resolves its dispatch. The commands that do not
// depend on it go on. It reports false when the run is stopped first.
func (e *execution) awaitResolution(ctx workflow.Context, call agent.Call, dispatchNo int, rests rests) bool {
	resolved := func() bool { return e.resolved[call.CommandID].DispatchNo >= max(dispatchNo, 1) }
	if !resolved() { // else the news came before the reply that calls it in doubt
		e.doubts = append(e.doubts, call.CommandID)
		rests(ctx, true)
		e.show(ctx)
		err := workflow.Await(ctx, resolved)
		e.doubts = slices.DeleteFunc(e.doubts, func(id string) bool { return id == call.CommandID })
		rests(ctx, false)
		if err != nil {
			return false
		}
	}
	e.used[call.CommandID] = e.resolved[call.CommandID].ID
	delete(e.resolved, call.CommandID)
	return ctx.Err() == nil
}

// nodeRests parks a node with its command: it leaves its place to others. The scheduler of the nodes does the counting, so
// that it starts those others before anybody finds the run at rest.
func (e *execution) nodeRests(i int) rests {
	return func(ctx workflow.Context, parked bool) {
		what := nodeResumed
		if parked {
			what = nodeParked
		}
		e.news.Send(ctx, nodeNews{Index: i, What: what})
	}
}

// commandRests parks a command that is of no node, or one of several of its node.
func (e *execution) commandRests(_ workflow.Context, parked bool) { e.count(parked) }

func (e *execution) count(parked bool) {
	if parked {
		e.parked, e.busy = e.parked+1, e.busy-1
	} else {
		e.parked, e.busy = e.parked-1, e.busy+1
	}
}

// watchDoubt tells the ledger whenever nothing of the run can go on until somebody resolves a command in doubt. That it goes
// on again is written with the resolution.
func (e *execution) watchDoubt(ctx workflow.Context) {
	stands := func() bool { return e.parked > 0 && e.busy == 0 && !e.over }
	for {
		if workflow.Await(ctx, stands) != nil {
			return
		}
		e.record(ctx, agent.InDoubt)
		if !stands() && !e.over { // a resolution came while that was on its way
			e.record(ctx, agent.Running)
		}
		if workflow.Await(ctx, func() bool { return !stands() }) != nil {
			return
		}
	}
}
