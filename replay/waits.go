package replay

import (
	"context"

	"go.temporal.io/sdk/activity"

	"runledger/activities"
	"runledger/agent"
)

// A wait node leaves its place to others while it waits, so it cannot be answered late as other commands are: with room for one node
// at a time nothing else would get on. Unless its outcome is the next of the order, it is told to wait, and woken when its turn comes.

// standInForAwait takes the place of the activity of wait nodes.
func (s *stage) standInForAwait() {
	fn := func(ctx context.Context, in agent.WaitCall) (out agent.Reply, err error) {
		id, token := in.CommandID, activity.GetInfo(ctx).TaskToken
		s.mu.Lock()
		defer s.mu.Unlock()
		s.names[id] = in.Signal
		delete(s.asleep, id) // another one of the same name may have been woken, and this one has waited for its place since
		s.waiting[id] = func() error {
			return s.env.CompleteActivity(token, activities.ReplyOf(s.take(in.Call, agent.WaitCommand)), nil)
		}
		s.sleeps[id] = func() error {
			w := agent.Awaited{For: agent.ForSignal, Signal: in.Signal}
			return s.env.CompleteActivity(token, agent.Reply{Outcome: agent.OutcomeWaiting, Awaits: &w}, nil)
		}
		s.armLocked()
		return out, activity.ErrResultPending
	}
	s.env.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: string(agent.Await)})
}

// putToSleep tells the wait nodes to wait whose outcome is not the next to come. It reports whether there were any.
func (s *stage) putToSleep() (any bool) {
	for _, id := range sortedKeys(s.sleeps) {
		if s.waiting[id] == nil || s.woken[id] || s.record.rows[id] == nil || len(s.order) > 0 && s.order[0] == id {
			continue
		}
		tell := s.sleeps[id]
		delete(s.sleeps, id)
		delete(s.waiting, id)
		s.asleep[id], s.answered[id] = s.names[id], true
		any = true
		if err := tell(); err != nil && s.fault == nil {
			s.fault = err
			s.env.CancelWorkflow()
		}
	}
	return any
}

// wake lets a wait node ask again, since its outcome is due. It reports false when it does not sleep.
func (s *stage) wake(id string) bool {
	name, asleep := s.asleep[id]
	if !asleep {
		return false
	}
	delete(s.asleep, id)
	s.woken[id] = true
	s.env.SignalWorkflow(agent.InputSignal, agent.Intent{Name: name})
	return true
}
