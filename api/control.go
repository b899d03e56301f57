package api

import (
	"net/http"

	"runledger/agent"
)

// resumed is the answer to a resume.
type resumed struct {
	Status string `json:"status"`
	// FromStep counts the steps that have ended and are not repeated.
	FromStep       int    `json:"from_step"`
	RunID          string `json:"run_id"`
	ConversationID string `json:"conversation_id"`
	Epoch          int    `json:"epoch"`
	EventsURL      string `json:"events_url"`
}

// postResume restarts a run that ended badly, by its events.
func (a *API) postResume(w http.ResponseWriter, r *http.Request) error {
	body, err := a.readResume(w, r)
	if err != nil {
		return err
	}
	run, err := a.run(r)
	if err != nil {
		return err
	}
	return a.resume(w, r, run, body)
}

// postConversationResume restarts the newest run of a conversation, which must have a checkpoint.
func (a *API) postConversationResume(w http.ResponseWriter, r *http.Request) error {
	body, err := a.readResume(w, r)
	if err != nil {
		return err
	}
	conversation, err := a.conversation(r)
	if err != nil {
		return err
	}
	runID, checkpoint, err := a.cfg.Ledger.LatestRun(r.Context(), conversation.ConversationID)
	if err != nil {
		return err
	}
	run, err := a.cfg.Ledger.Run(r.Context(), caller(r).Owner, runID)
	if err != nil {
		return err
	}
	if !checkpoint && run.Removed == nil && (run.Status.Terminal() || run.Status == agent.Stuck) { // of one at work, that it is at work is what matters
		return newProblem(http.StatusNotFound, "not-found", "run %s, the newest of the conversation, has no checkpoint", runID)
	}
	return a.resume(w, r, run, body)
}

func (a *API) resume(w http.ResponseWriter, r *http.Request, run agent.Run, body resumeBody) error {
	runID := run.RunID
	if body.Limits != nil {
		if err := a.mayGrant(caller(r), &run, *body.Limits); err != nil {
			return err
		}
	}
	now, err := a.cfg.Ledger.Resume(r.Context(), agent.Resume{Owner: caller(r).Owner, RunID: runID, By: a.by(r, ""), Reason: body.Reason, Limits: body.Limits})
	if err != nil {
		return err
	}
	w.Header().Set("Location", runPath(runID))
	return writeJSON(w, http.StatusAccepted, resumed{Status: "resuming", FromStep: now.Step, RunID: runID,
		ConversationID: now.Run.ConversationID, Epoch: now.Run.Epoch, EventsURL: runPath(runID) + "/events"})
}

// resumeBody is the body of a resume. A run that failed at a limit fails there again unless it is given more.
type resumeBody struct {
	Reason string        `json:"reason"`
	Limits *agent.Limits `json:"limits"`
}

func (a *API) readResume(w http.ResponseWriter, r *http.Request) (body resumeBody, err error) {
	if _, err := a.readBody(w, r, &body); err != nil {
		return body, err
	}
	var f faults
	f.checkReason(body.Reason)
	if body.Limits != nil {
		f.checkLimits("/limits", *body.Limits)
	}
	if len(f) > 0 {
		return body, faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	return body, nil
}

// readReason reads the body of a request that has nothing to say but why.
func (a *API) readReason(w http.ResponseWriter, r *http.Request) (reason string, err error) {
	var body struct {
		Reason string `json:"reason"`
	}
	if _, err := a.readBody(w, r, &body); err != nil {
		return "", err
	}
	var f faults
	if f.checkReason(body.Reason); len(f) > 0 {
		return "", faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	return body.Reason, nil
}

func (f *faults) checkReason(reason string) {
	if len(reason) > maxReason {
		f.add("/reason", "longer than %d bytes", maxReason)
	}
}
