package workflows

import (
	"slices"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// inbox is a signal of the outbox and what it does.
type inbox struct {
	channel workflow.ReceiveChannel
	take    func(agent.Intent)
}

// subscribe opens the signals. The outbox delivers those of a run in order and at least once, so that one may come again: the
// second changes nothing. Signals of different names may be taken in another order than they came.
func (e *execution) subscribe(ctx workflow.Context) {
	for _, signal := range []struct {
		name string
		take func(agent.Intent)
	}{
		{agent.CancelSignal, e.takeCancel},
		{agent.ResolvedSignal, func(i agent.Intent) { e.resolved[i.CommandID] = i }},
		{agent.PauseSignal, func(i agent.Intent) { e.pausedBy = max(e.pausedBy, i.ID) }},
		{agent.UnpauseSignal, func(i agent.Intent) { e.unpausedBy = max(e.unpausedBy, i.ID) }},
		{agent.ApprovalSignal, func(i agent.Intent) { e.told[ofCommand(i.CommandID)]++ }},
		{agent.InputSignal, func(i agent.Intent) { e.told[ofInput(i.Name)]++ }},
		{agent.MessageSignal, func(i agent.Intent) { e.heard = max(e.heard, i.Sequence) }},
		{agent.LimitsSignal, e.takeLimits},
	} {
		e.signals = append(e.signals, inbox{channel: workflow.GetSignalChannel(ctx, signal.name), take: e.once(signal.name, signal.take)})
	}
}

// once drops what was taken before, and what is for an execution of another epoch.
func (e *execution) once(name string, take func(agent.Intent)) func(agent.Intent) {
	return func(i agent.Intent) {
		if i.ID != 0 && i.ID <= e.taken[name] || i.Epoch != 0 && i.Epoch != e.in.Epoch {
			return
		}
		e.taken[name] = i.ID
		e.moved = true
		take(i)
	}
}

func ofCommand(id string) string { return "command " + id }
func ofInput(name string) string { return "input " + name }

func (e *execution) takeCancel(i agent.Intent) {
	if e.cancelled == nil {
		e.cancelled = &i
		e.cancel()
	}
}

func (e *execution) takeLimits(i agent.Intent) {
	if i.Limits != nil {
		e.limits = *i.Limits
	}
}

// listen takes signals as they come. It waits for them without a selector, which holds what it has been given where nobody else can
// take it until it runs: an execution that was continued between the two would lose a signal.
func (e *execution) listen(ctx workflow.Context) {
	ctx, _ = workflow.NewDisconnectedContext(ctx) // a run that is stopped listens, too
	come := func() bool {
		return slices.ContainsFunc(e.signals, func(s inbox) bool { return s.channel.Len() > 0 })
	}
	for workflow.Await(ctx, come) == nil {
		e.drain()
	}
}

// drain takes the signals that have come and that nobody has taken yet. An execution that ends with them would lose them.
func (e *execution) drain() {
	for _, s := range e.signals {
		var i agent.Intent
		for s.channel.ReceiveAsync(&i) {
			s.take(i)
			i = agent.Intent{}
		}
	}
}
