package workflows

import (
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// A history that grows too long is handed over: nothing more begins, what is at work ends, and a new execution of the same epoch
// goes on from the record. Commands that wait for somebody begin there once more, and wait on: what they wait for is decided in
// the ledger, which is asked again, so that no signal that was taken here is missed there.

const (
	// maxEvents and maxHistoryBytes are where an execution is handed over though the server does not suggest it, well below
	// where servers end an execution. They suggest it at 4,096 events or 4 MB by default.
	maxEvents       = 10_000
	maxHistoryBytes = 8 << 20

	// changeHandOver names in histories that runs are handed over. Executions that had grown long before they were are not.
	changeHandOver = "hand-over"
)

// tooLong reports whether the history has grown so long that another execution should continue.
func tooLong(ctx workflow.Context) bool {
	info := workflow.GetInfo(ctx)
	return info.GetContinueAsNewSuggested() || info.GetCurrentHistoryLength() >= maxEvents || info.GetCurrentHistorySize() >= maxHistoryBytes
}

// watchLength stops the beginning of commands when the history has grown too long, and tells the scheduler when nothing is at
// work. An execution in which nothing has happened yet is not handed over: the next one would be as long.
func (e *execution) watchLength(ctx workflow.Context) {
	if workflow.Await(ctx, func() bool { return e.news != nil && e.moved && !e.over && tooLong(ctx) }) != nil {
		return
	}
	if workflow.GetVersion(ctx, changeHandOver, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return
	}
	e.handing = true
	for workflow.Await(ctx, func() bool { return e.busy == 0 }) == nil {
		e.news.Send(ctx, nodeNews{What: allAtRest})
		if workflow.Await(ctx, func() bool { return e.busy != 0 }) != nil { // what had parked may have gone on before that was read
			return
		}
	}
}

// goesOnElsewhere reports whether nodes are left for another execution.
func (e *execution) goesOnElsewhere() bool {
	return e.handing && (e.working != "" || e.nextNode() >= 0)
}

// handsOver reports whether the execution has come to rest for another one, and not to its end.
func (e *execution) handsOver(ctx workflow.Context, failure *agent.Error) bool {
	return failure == nil && e.replaced == nil && e.forbidden == nil && ctx.Err() == nil && e.plan != nil && refusedEffect(ctx) == nil && e.goesOnElsewhere()
}

// handOver writes what only this execution knows, and continues it as a new one. A run that is stopped meanwhile ends here.
func (e *execution) handOver(ctx workflow.Context) (agent.RunOutput, error) {
	e.over, e.leaving = true, true
	e.stopClock(ctx)
	// A status that comes late would be that of an execution which is no more.
	_ = workflow.Await(ctx, func() bool { return e.recording == 0 })
	believed := e.state
	call := agent.RecordCall{Scope: e.scope(), HandOver: &believed}
	reply, err := do(ctx, agent.Record, call, housekeeping("hand over to a new execution"))
	if err == nil {
		e.acknowledge(call.Facts)
	}
	// What comes after this has the task fail in which the execution ends, and is taken when that is tried again.
	e.drain()
	if ctx.Err() != nil {
		return e.finish(ctx, nil)
	}
	switch {
	case err == nil && reply.State == nil: // by a worker that does not know of hand-overs
		return e.finish(ctx, agent.Failed(agent.CodeInternal, "the ledger gave no state to hand over"))
	case err == nil && reply.State.Status.Terminal():
		e.replaced = agent.Failed(agent.CodeStaleEpoch, "the run has ended: %s", reply.State.Status)
	case err != nil && asAgentError(err).Code == agent.CodeStaleEpoch:
		e.replaced = asAgentError(err)
	case err != nil:
		return e.finish(ctx, asAgentError(err))
	}
	if e.replaced != nil {
		return agent.RunOutput{}, temporal.NewNonRetryableApplicationError(e.replaced.Message, string(e.replaced.Code), nil)
	}
	return agent.RunOutput{}, workflow.NewContinueAsNewError(ctx, agent.WorkflowName, e.next(*reply.State))
}

// next is the input of the execution that continues this one.
func (e *execution) next(state agent.State) agent.RunInput {
	next := e.in
	next.Plan, next.State, next.Limits, next.Heard, next.PausedBy = e.plan, state, e.limits, e.heard, 0
	next.Walked, next.Calls = nil, nil // Loops says where they go on
	if e.paused() {
		next.PausedBy = e.pausedBy
	}
	handovers := 1
	if e.in.Carried != nil {
		handovers += e.in.Carried.Handovers
	}
	next.Carried = &agent.Carried{LastFact: e.lastFact, Schedule: e.schedule, Taken: e.taken, Spent: agent.Duration(e.spent),
		Calls: e.callsOver(), Loops: map[string]agent.LoopPosition{}, Handovers: handovers}
	for i, n := range e.plan.Nodes {
		if at := e.loops[n.ID]; at != nil && !e.state.Done(i) {
			next.Carried.Loops[n.ID] = at.LoopPosition
		}
	}
	for _, met := range e.met {
		next.Carried.Met = append(next.Carried.Met, agent.MetLimit{Limit: met.name, Most: met.most})
	}
	return next
}

// firstTry is the first try of a node of one command, or the one that was under way when it was handed over.
func (e *execution) firstTry(nodeID string) int {
	if c := e.in.Carried; c != nil {
		return max(1, c.Loops[nodeID].Turn)
	}
	return 1
}

// loop is a node in a loop, of turns or of tries.
type loop struct {
	agent.LoopPosition
	// tools are the calls that the turn asks for, counted those that the loop guard has counted.
	tools   []agent.ToolRequest
	counted agent.Bits
}

// enterLoop finds where a node's loop goes on: where an execution that has handed over says, else in the last turn on record,
// which may lack the results of its tools.
func (e *execution) enterLoop(nodeID string) *loop {
	at := &loop{LoopPosition: agent.LoopPosition{Turn: max(1, e.in.State.Turns[nodeID])}}
	if c := e.in.Carried; c != nil && c.Loops[nodeID].Turn > 0 {
		at.LoopPosition = c.Loops[nodeID]
	}
	e.loops[nodeID] = at
	return at
}

// turned notes that a turn's model call is on record.
func (e *execution) turned(nodeID string, turn int) {
	if turn > e.state.Turns[nodeID] {
		turns := map[string]int{nodeID: turn}
		for _, n := range e.plan.Nodes {
			if before := e.state.Turns[n.ID]; before > 0 && n.ID != nodeID {
				turns[n.ID] = before
			}
		}
		e.state.Turns = turns
	}
}

// callsOver are the calls that the loop guard has counted, without those that the next execution counts again since they have no
// outcome yet.
func (e *execution) callsOver() []agent.RepeatedCall {
	calls := slices.Clone(e.calls)
	for i, n := range e.plan.Nodes {
		at := e.loops[n.ID]
		if at == nil || e.state.Done(i) {
			continue
		}
		for k, tool := range at.tools {
			if at.Ended.Has(k) || !at.counted.Has(k) {
				continue
			}
			if c := slices.IndexFunc(calls, func(c agent.RepeatedCall) bool { return c.Digest == tool.Digest }); c >= 0 {
				calls[c].Count--
			}
		}
	}
	return slices.DeleteFunc(calls, func(c agent.RepeatedCall) bool { return c.Count <= 0 })
}

// leavesWaiting notes a command that has begun and waits for somebody: in doubt, or for an approval, an input or a time.
func (e *execution) leavesWaiting(commandID string, inDoubt bool) {
	e.decides(commandID)
	to := &e.state.Open
	if inDoubt {
		to = &e.state.InDoubt
	}
	at, _ := slices.BinarySearch(*to, commandID)
	*to = slices.Insert(slices.Clone(*to), at, commandID)
}

// decides notes that a command does not wait any more.
func (e *execution) decides(commandID string) {
	for _, from := range []*[]string{&e.state.Open, &e.state.InDoubt} {
		if slices.Contains(*from, commandID) {
			*from = slices.DeleteFunc(slices.Clone(*from), func(id string) bool { return id == commandID })
		}
	}
}
