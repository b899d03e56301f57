package api

import (
	"fmt"
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
	reason, err := a.readReason(w, r)
	if err != nil {
		return err
	}
	run, err := a.run(r)
	if err != nil {
		return err
	}
	return a.resume(w, r, run.RunID, reason)
}

// postConversationResume restarts the newest run of a conversation, which must have a checkpoint.
func (a *API) postConversationResume(w http.ResponseWriter, r *http.Request) error {
	reason, err := a.readReason(w, r)
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
	if !checkpoint {
		return newProblem(http.StatusNotFound, "not-found", "run %s, the newest of the conversation, has no checkpoint", runID)
	}
	return a.resume(w, r, runID, reason)
}

func (a *API) resume(w http.ResponseWriter, r *http.Request, runID, reason string) error {
	now, err := a.cfg.Ledger.Resume(r.Context(), agent.Resume{Owner: caller(r).Owner, RunID: runID, By: a.by(r, ""), Reason: reason})
	if err != nil {
		return err
	}
	w.Header().Set("Location", runPath(runID))
	return writeJSON(w, http.StatusAccepted, resumed{Status: "resuming", FromStep: now.Step, RunID: runID,
		ConversationID: now.Run.ConversationID, Epoch: now.Run.Epoch, EventsURL: runPath(runID) + "/events"})
}

// readReason reads the body of a request that has nothing to say but why.
func (a *API) readReason(w http.ResponseWriter, r *http.Request) (reason string, err error) {
	var body struct {
		Reason string `json:"reason"`
	}
	if _, err := a.readBody(w, r, &body); err != nil {
		return "", err
	}
	if len(body.Reason) > maxReason {
		return "", faultyBody(http.StatusUnprocessableEntity, "invalid-request", []fault{{"/reason", fmt.Sprintf("longer than %d bytes", maxReason)}})
	}
	return body.Reason, nil
}
