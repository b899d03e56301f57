package activities

import (
	"context"
	"time"

	"runledger/agent"
	"runledger/policy"
	"runledger/tool"
)

// slot is leave to make a call that is limited. The zero value is that of a call without a limit.
type slot struct {
	agent.Slot
	a      *Activities
	unused bool
}

// used keeps the slot for the command that has begun: it is in use until the command's dispatch ends.
func (s *slot) used() { s.unused = false }

// leave gives the slot back when nothing has begun. One that is not given back, for want of a ledger, is free after a lease.
func (s *slot) leave(ctx context.Context) {
	if !s.unused {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := s.a.ledger.ReturnSlot(ctx, s.Slot); err != nil {
		s.a.log.WarnContext(ctx, "a slot is in use for nothing until its lease is over", "limit", s.Limit.Name, "error", err)
	}
}

// takeSlot takes a slot for a command with a limit. When there is none the error has Temporal come back later: a call that waits takes
// no place of a worker.
func (a *Activities) takeSlot(ctx context.Context, c *command) (slot, error) {
	refused := c.call.Refusal != nil && c.call.Refusal.Decision != policy.Ask
	if c.limit.None() || refused || c.begin.OutOfTime(time.Now()) { // what will not be made is told so at its begin
		return slot{}, nil
	}
	asked := agent.Slot{Limit: c.limit, RunID: c.call.RunID, CommandID: c.call.CommandID, Epoch: c.call.Epoch,
		Token: c.begin.Dispatch.Token, Attempt: c.begin.Dispatch.Attempt}
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	var wait time.Duration
	err := untilAnswered(ctx, func(ctx context.Context) (err error) {
		wait, err = a.ledger.TakeSlot(ctx, asked)
		return err
	})
	switch {
	case err != nil:
		return slot{}, err
	case wait > 0:
		return slot{}, retryLater(agent.CodeCallLimit, wait, "command %s waits: the limit of %s is reached", c.call.CommandID, c.limit.Name)
	}
	return slot{Slot: asked, a: a, unused: true}, nil
}

// limitOf is the limit of a tool's calls.
func limitOf(t tool.Tool) agent.CallLimit {
	limit := t.Spec().Limit
	if limit.Name == "" {
		limit.Name = t.Spec().Name
	}
	return limit
}
