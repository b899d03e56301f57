package api

import (
	"net/http"

	"runledger/agent"
)

// pausedRun is a run that was paused, and what of it is still at work.
type pausedRun struct {
	runObject
	AtWork []agent.WorkingCommand `json:"at_work"`
}

// postPause keeps a run from beginning commands from now on. Whoever pauses a run that is paused already is answered in the same
// way: 200 when nothing of it is at work any more, 202 while something is.
func (a *API) postPause(w http.ResponseWriter, r *http.Request) error {
	reason, err := a.readReason(w, r)
	if err != nil {
		return err
	}
	run, err := a.run(r)
	if err != nil {
		return err
	}
	if run, err = a.cfg.Ledger.Pause(r.Context(), caller(r).Owner, run.RunID, a.by(r, ""), reason); err != nil {
		return err
	}
	atWork, err := a.cfg.Ledger.AtWork(r.Context(), run.RunID)
	if err != nil {
		return err
	}
	object, err := a.runObject(r.Context(), run)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if len(atWork) > 0 {
		w.Header().Set("Location", runPath(run.RunID))
		status = http.StatusAccepted
	}
	return writeJSON(w, status, pausedRun{object, orEmpty(atWork)})
}

// postUnpause lets a paused run go on.
func (a *API) postUnpause(w http.ResponseWriter, r *http.Request) error {
	reason, err := a.readReason(w, r)
	if err != nil {
		return err
	}
	run, err := a.run(r)
	if err != nil {
		return err
	}
	if run, err = a.cfg.Ledger.Unpause(r.Context(), caller(r).Owner, run.RunID, a.by(r, ""), reason); err != nil {
		return err
	}
	return a.writeAccepted(w, r, run)
}

// writeAccepted answers with a run of which something is on its way to its execution.
func (a *API) writeAccepted(w http.ResponseWriter, r *http.Request, run agent.Run) error {
	object, err := a.runObject(r.Context(), run)
	if err != nil {
		return err
	}
	w.Header().Set("Location", runPath(run.RunID))
	return writeJSON(w, http.StatusAccepted, object)
}
