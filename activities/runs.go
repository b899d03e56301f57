package activities

import (
	"context"
	"sync"

	"runledger/agent"
)

// runs keeps what the commands of a run go by, its definition, its input and its plan, which stay as they are from the moment that
// there is a plan: the next command of the run need not read and take apart all of it again.
type runs struct {
	mu            sync.Mutex
	recent, older map[string]planned
}

// planned must not be changed: others work with it.
type planned struct {
	run  *agent.Run
	plan *agent.Plan
}

// maxRuns bounds how many runs are kept, twice this many at most; those that were not asked for longest go first.
const maxRuns = 256

func (r *runs) find(runID string) (planned, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.recent[runID]
	if !ok {
		if p, ok = r.older[runID]; ok {
			r.add(runID, p)
		}
	}
	return p, ok
}

func (r *runs) keep(runID string, p planned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(runID, p)
}

func (r *runs) add(runID string, p planned) {
	if len(r.recent) >= maxRuns || r.recent == nil {
		r.recent, r.older = map[string]planned{}, r.recent
	}
	r.recent[runID] = p
}

// workedOn is the run that a command is of, and its plan, nil when there is none yet. Of what the run says of itself, only what it was
// accepted with counts here: its status and its epoch may be old.
func (a *Activities) workedOn(ctx context.Context, runID string) (*agent.Run, *agent.Plan, error) {
	if p, ok := a.runs.find(runID); ok {
		return p.run, p.plan, nil
	}
	run, plan, err := a.ledger.WorkerRun(ctx, runID)
	if err != nil {
		return nil, nil, err
	}
	if plan != nil {
		a.runs.keep(runID, planned{&run, plan})
	}
	return &run, plan, nil
}
