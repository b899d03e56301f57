package agenttest

import (
	"context"
	"errors"

	"runledger/agent"
)

// Steered lists what was said to a run while it was at work. Nobody says anything to a run of a test.
func (m *memory) Steered(context.Context, string) ([]agent.Message, map[string]int64, error) {
	return nil, nil, nil
}

// Await lets a wait node go on.
func (m *memory) Await(context.Context, agent.Wait) (agent.CommandRow, error) {
	return agent.CommandRow{}, errors.New("agenttest: this ledger does not know wait nodes")
}
