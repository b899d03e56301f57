package verify

import (
	"context"
	"fmt"
	"time"

	"runledger/agent"
)

// Ledger reads all that is on record of a run, as of one moment. Error: *agent.NotFoundError.
type Ledger interface {
	RunRecord(ctx context.Context, runID string) (*agent.RunRecord, error)
}

// Verifier verifies runs. It is safe for concurrent use.
type Verifier struct {
	Ledger Ledger
	// Temporal is nil where none is configured. A lazy client will do.
	Temporal Temporal
	// Patience bounds the reading of Temporal's histories, 10 s unless set.
	Patience time.Duration
}

const defaultPatience = 10 * time.Second

// Verify holds a run's record against its own rules and against Temporal's histories. That Temporal cannot be asked is part
// of the answer; an error is of the ledger: *agent.NotFoundError when there is no such run.
func (v *Verifier) Verify(ctx context.Context, runID string) (agent.Verification, error) {
	// Temporal first: what its histories tell is in the ledger already, while the run goes on.
	testimony := v.hear(ctx, runID)
	record, err := v.Ledger.RunRecord(ctx, runID)
	if err != nil {
		return agent.Verification{}, fmt.Errorf("verify run %s: %w", runID, err)
	}
	return agent.VerifyRun(record, testimony), nil
}

func (v *Verifier) hear(ctx context.Context, runID string) agent.Testimony {
	if v.Temporal == nil {
		return agent.Testimony{Absent: agent.WitnessNotConfigured}
	}
	patience := v.Patience
	if patience == 0 {
		patience = defaultPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return hear(ctx, v.Temporal, runID)
}
