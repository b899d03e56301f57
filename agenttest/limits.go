package agenttest

import (
	"context"
	"time"

	"runledger/agent"
)

// TakeSlot lets every call begin: limits are for workers beside each other, and a harness is alone.
func (m *memory) TakeSlot(context.Context, agent.Slot) (time.Duration, error) { return 0, nil }

// ReturnSlot does nothing, since no slot is taken.
func (m *memory) ReturnSlot(context.Context, agent.Slot) error { return nil }
