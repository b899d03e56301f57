package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// rests is told when a command parks, since it waits for a person, and when it goes on.
type rests func(ctx workflow.Context, parked bool)

// parkReason is what a parked command waits for.
type parkReason int

const (
	// forWord: the word of somebody, a signal or a time.
	forWord parkReason = iota
	// forResolution: what became of an effect in doubt.
	forResolution
	// forLimit: a limit that is raised.
	forLimit
	// forUnpause: the end of a pause.
	forUnpause
	parkReasons
)

// parkedAs is the status of a run of which nothing can go on, by the gravest of what its commands wait for. A pause is not the
// workflow's to tell.
func (e *execution) parkedAs() agent.Status {
	switch {
	case e.parkedFor[forLimit] > 0:
		return agent.LimitReached
	case e.parkedFor[forResolution] > 0:
		return agent.InDoubt
	case e.parkedFor[forWord] > 0:
		return agent.Waiting
	}
	return ""
}

// atRest reports whether nothing of the run can go on by itself.
func (e *execution) atRest() bool { return e.parked > 0 && e.busy == 0 && e.queued == 0 }

// park waits until a condition holds. The commands that do not depend on this one go on. It reports false when the run is
// stopped first.
func (e *execution) park(ctx workflow.Context, why parkReason, rests rests, until func() bool) bool {
	return e.parkFor(ctx, why, rests, 0, "", until)
}

// parkFor is park for at most a time, 0 for ever; it reports true when that is over, too.
func (e *execution) parkFor(ctx workflow.Context, why parkReason, rests rests, longest time.Duration, summary string, until func() bool) bool {
	if until() {
		return ctx.Err() == nil
	}
	e.parkedFor[why]++
	rests(ctx, true)
	e.show(ctx)
	var err error
	goesOn := func() bool { return !e.leaving && until() }
	if longest > 0 {
		_, err = workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: longest, TimerOptions: workflow.TimerOptions{Summary: summary}}, goesOn)
	} else {
		err = workflow.Await(ctx, goesOn)
	}
	if e.leaving { // its time is over; the next execution is told so
		untilStopped(ctx)
	}
	e.parkedFor[why]--
	rests(ctx, false)
	return err == nil && ctx.Err() == nil
}

// awaitResolution parks a command in doubt until somebody, or a late result, resolves its dispatch.
func (e *execution) awaitResolution(ctx workflow.Context, call agent.Call, dispatchNo int, rests rests) bool {
	resolved := func() bool { return e.resolved[call.CommandID].DispatchNo >= max(dispatchNo, 1) }
	if !resolved() { // else the news came before the reply that calls it in doubt
		e.doubts = append(e.doubts, call.CommandID)
		goesOn := e.park(ctx, forResolution, rests, resolved)
		e.doubts = slices.DeleteFunc(e.doubts, func(id string) bool { return id == call.CommandID })
		if !goesOn {
			return false
		}
	}
	delete(e.resolved, call.CommandID)
	return ctx.Err() == nil
}

// awaitNews parks a command that waits for an approval, a signal or a time, until there is news since it was asked about.
func (e *execution) awaitNews(ctx workflow.Context, call agent.Call, awaits *agent.Awaited, news string, seen int, rests rests) bool {
	if awaits == nil {
		return ctx.Err() == nil // the reply was lost with what it said; the ledger is asked again
	}
	summary := call.CommandID + " waits for " + awaits.For
	e.waits = append(e.waits, WaitSnapshot{CommandID: call.CommandID, For: awaits.For, ApprovalID: awaits.ApprovalID, Signal: awaits.Signal})
	told := func() bool { return e.told[news] != seen }
	goesOn := e.parkFor(ctx, forWord, rests, time.Duration(awaits.Remaining), summary, told)
	e.waits = slices.DeleteFunc(e.waits, func(w WaitSnapshot) bool { return w.CommandID == call.CommandID })
	if goesOn && !told() && awaits.For == agent.ForApproval {
		e.record(ctx, agent.Running) // nobody's answer says so
	}
	return goesOn
}

// nodeRests parks a node with its command: it leaves its place to others, and takes one again when it goes on. The scheduler of
// the nodes does the counting, so that it starts those others before anybody finds the run at rest.
func (e *execution) nodeRests(i int) rests {
	return func(ctx workflow.Context, parked bool) {
		what := nodeResumed
		if parked {
			what = nodeParked
		} else {
			e.takePlace(ctx, i)
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

// watchRest tells the ledger whenever nothing of the run can go on by itself, and why. That it goes on again is written with what
// lets it go on, unless that is a time, or other limits: whether they are enough is for the run to know.
func (e *execution) watchRest(ctx workflow.Context) {
	stands := func() bool { return e.atRest() && !e.over && e.parkedAs() != "" }
	for {
		if workflow.Await(ctx, stands) != nil {
			return
		}
		told := e.parkedAs()
		e.record(ctx, told)
		if !stands() && !e.over { // what lets it go on came while that was on its way
			e.record(ctx, agent.Running)
		}
		if workflow.Await(ctx, func() bool { return !stands() || e.parkedAs() != told }) != nil {
			return
		}
		if told == agent.LimitReached && !stands() && !e.over {
			e.record(ctx, agent.Running)
		}
	}
}

// paused reports whether the run is paused, as far as the execution knows; the gate knows for certain.
func (e *execution) paused() bool { return e.pausedBy > e.unpausedBy }

// hold keeps a command from being scheduled while the run is paused or its time is up. It reports false when the run is stopped.
func (e *execution) hold(ctx workflow.Context, rests rests) bool {
	for e.paused() || e.timeUp {
		why, until := forUnpause, func() bool { return !e.paused() }
		if !e.paused() {
			why, until = forLimit, func() bool { return !e.timeUp }
		}
		if !e.park(ctx, why, rests, until) {
			return false
		}
	}
	return ctx.Err() == nil
}
