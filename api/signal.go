package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"runledger/agent"
)

// signalBody is an input for the wait nodes of a run that wait for its name.
type signalBody struct {
	Name  string          `json:"name"`
	ID    string          `json:"id"`
	Value json.RawMessage `json:"value"`
}

// received is the answer to a signal.
type received struct {
	RunID   string `json:"run_id"`
	Name    string `json:"name"`
	InputID string `json:"input_id"`
	// Sequence is left out while the run waits for others of its conversation: its events are written when its turn comes.
	Sequence int64 `json:"sequence_number,omitempty"`
	Created  bool  `json:"created"`
}

func (b *signalBody) check() faults {
	var f faults
	if !agent.ValidNodeID(b.Name) {
		f.add("/name", "%q: want 1 to 64 of A-Z a-z 0-9 _ -", agent.Preview(b.Name, 64))
	}
	if !printable(b.ID) {
		f.add("/id", "want up to %d printable ASCII characters", maxKey)
	}
	return f
}

// printable reports whether a key is of a kind that is kept: short, and plain ASCII.
func printable(key string) bool {
	return len(key) <= maxKey && !strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' })
}

// postSignal gives a run an input. It is kept whether a node waits for it yet or not.
func (a *API) postSignal(w http.ResponseWriter, r *http.Request) error {
	var body signalBody
	if _, err := a.readBody(w, r, &body); err != nil {
		return err
	}
	if f := body.check(); len(f) > 0 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	if len(body.Value) > agent.MaxInputBytes {
		return faultyBody(http.StatusRequestEntityTooLarge, "body-too-large",
			[]fault{{"/value", fmt.Sprintf("the value is larger than %d bytes", agent.MaxInputBytes)}})
	}
	in := agent.Input{Name: body.Name, InputID: body.ID, Value: body.Value, By: a.by(r, "")}
	if in.InputID == "" {
		if in.InputID = r.Header.Get("Idempotency-Key"); !printable(in.InputID) {
			return badParameter("Idempotency-Key", "want up to %d printable ASCII characters", maxKey)
		}
	}
	in.InputID = orNewID(in.InputID)
	if in.Value == nil {
		in.Value = json.RawMessage("null")
	}
	id, err := pathID(r, "run_id", "run")
	if err != nil {
		return err
	}
	sequence, created, err := a.cfg.Ledger.Signal(r.Context(), caller(r).Owner, id, in)
	if err != nil {
		return err
	}
	w.Header().Set("Location", runPath(id))
	return writeJSON(w, http.StatusAccepted, received{RunID: id, Name: in.Name, InputID: in.InputID, Sequence: sequence, Created: created})
}
