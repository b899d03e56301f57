package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"runledger/agent"
)

// Bounds of what a request to stop a run may say.
const (
	maxReason         = 1000
	defaultCancelWait = 5 * time.Second
	maxCancelWait     = 60 * time.Second
)

type cancelBody struct {
	Reason string   `json:"reason"`
	Wait   *float64 `json:"wait"`
}

func (b *cancelBody) check() (f faults) {
	if len(b.Reason) > maxReason {
		f.add("/reason", "longer than %d bytes", maxReason)
	}
	if b.Wait != nil && (*b.Wait < 0 || *b.Wait > maxCancelWait.Seconds()) {
		f.add("/wait", "%v: want 0 to %v seconds", *b.Wait, maxCancelWait.Seconds())
	}
	return f
}

// cancelledRun is a run that was asked to stop, and what became of what it was doing.
type cancelledRun struct {
	runObject
	Commands []agent.StoppedCommand `json:"commands"`
}

// postCancel asks a run to stop, waits for its end as long as the caller likes, and answers with the run and what became of
// the commands that were open. A run that is being cancelled already, or is cancelled, is answered for in the same way: whoever
// asks again learns the same. One that has ended otherwise is a conflict.
func (a *API) postCancel(w http.ResponseWriter, r *http.Request) error {
	var body cancelBody
	if _, err := a.readBody(w, r, &body); err != nil {
		return err
	}
	if f := body.check(); len(f) > 0 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	run, err := a.run(r)
	if err != nil {
		return err
	}
	if run, err = a.requestCancel(r, run.RunID, body.Reason); err != nil {
		return err
	}
	if !run.Status.Terminal() {
		wait := defaultCancelWait
		if body.Wait != nil {
			wait = time.Duration(*body.Wait * float64(time.Second))
		}
		if run, err = a.await(w, r, run, wait); err != nil || r.Context().Err() != nil {
			return err
		}
	}
	// Read after the run: of one that has ended, every command is decided.
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	commands, err := a.cfg.Ledger.StoppedCommands(ctx, run.RunID)
	if err != nil {
		return err
	}
	object, err := a.runObject(ctx, run)
	if err != nil {
		return err
	}
	answer, status := cancelledRun{object, orEmpty(commands)}, http.StatusOK
	if !run.Status.Terminal() {
		w.Header().Set("Location", runPath(run.RunID))
		status = http.StatusAccepted
	}
	return writeJSON(w, status, answer)
}

// requestCancel asks the ledger, and takes a run that is cancelled already for one that was asked before.
func (a *API) requestCancel(r *http.Request, runID, reason string) (agent.Run, error) {
	ctx, cancel := context.WithTimeout(r.Context(), acceptTimeout)
	defer cancel()
	owner := caller(r).Owner
	run, err := a.cfg.Ledger.RequestCancel(ctx, owner, runID, a.by(r, ""), reason)
	var conflict *agent.ConflictError
	if !errors.As(err, &conflict) || conflict.Reason != agent.ConflictRunEnded {
		return run, err
	}
	run, readErr := a.cfg.Ledger.Run(ctx, owner, runID)
	if readErr != nil {
		return run, fmt.Errorf("read run %s: %w", runID, readErr)
	}
	if run.Status == agent.Cancelled {
		return run, nil
	}
	return run, err
}
