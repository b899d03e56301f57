package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"runledger/agent"
	"runledger/sse"
)

// Resolver takes people's answers to commands in doubt.
type Resolver interface {
	// Resolve decides a command in doubt and gives it as it is then. The same answer again changes nothing; another one, or one
	// to a command that is not in doubt, is an *agent.ConflictError.
	Resolve(ctx context.Context, owner, runID, commandID string, r agent.Resolution) (agent.Command, error)
}

// doubt is a command that waits for an answer.
type doubt struct {
	CommandID string    `json:"command_id"`
	NodeID    string    `json:"node_id"`
	Tool      string    `json:"tool,omitempty"`
	Attempt   int       `json:"attempt"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
	// IdempotencyKey is what the other side knows the call by.
	IdempotencyKey string `json:"idempotency_key"`
	// ResolveURL is where the answer goes.
	ResolveURL string `json:"resolve_url"`
}

func doubtOf(e agent.Event) doubt {
	d := read[agent.CommandInDoubtData](e)
	return doubt{CommandID: e.CommandID, NodeID: e.NodeID, Tool: d.Tool, Attempt: e.Attempt, Reason: d.Reason, Since: e.CreatedAt.UTC(),
		IdempotencyKey: cmp.Or(d.IdempotencyKey, agent.IdempotencyKey(e.RunID, e.CommandID)),
		ResolveURL:     sse.CommandHref(e.RunID, e.CommandID) + "/resolve"}
}

// maxResolver and maxNote bound who says what of a command, in bytes.
const (
	maxResolver = 200
	maxNote     = 4000
)

type resolveBody struct {
	Outcome agent.Outcome   `json:"outcome"`
	Result  json.RawMessage `json:"result"`
	By      string          `json:"by"`
	Note    string          `json:"note"`
}

func (b *resolveBody) check() (f faults) {
	switch b.Outcome {
	case agent.OutcomeCommitted:
		if b.Result == nil {
			f.add("/result", "the result is needed: what the tool would have given, any JSON value")
		}
	case agent.OutcomeRetry, agent.OutcomeFailed:
		if b.Result != nil {
			f.add("/result", "only an outcome committed has a result")
		}
	default:
		f.add("/outcome", "%q: want committed, retry or failed", agent.Preview(string(b.Outcome), 64))
	}
	if len(b.By) > maxResolver {
		f.add("/by", "longer than %d bytes", maxResolver)
	}
	if len(b.Note) > maxNote {
		f.add("/note", "longer than %d bytes", maxNote)
	}
	return f
}

// postResolve takes a person's answer to a command in doubt and gives the command as it is then.
func (a *API) postResolve(w http.ResponseWriter, r *http.Request) error {
	var body resolveBody
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
	id, err := commandID(r)
	if err != nil {
		return err
	}
	if err := a.checkAnswer(r, run.RunID, id, body.Result); err != nil {
		return err
	}
	command, err := a.cfg.Ledger.Resolve(r.Context(), caller(r).Owner, run.RunID, id,
		agent.Resolution{Outcome: body.Outcome, Result: body.Result, By: a.by(r, body.By), Note: body.Note})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, command)
}

// checkAnswer refuses a result that whoever asked for the effect could not read: a request inside of a tool is answered by a
// response. What a tool gives is its own affair.
func (a *API) checkAnswer(r *http.Request, runID, commandID string, result json.RawMessage) error {
	if result == nil {
		return nil
	}
	command, err := a.cfg.Ledger.Command(r.Context(), runID, commandID)
	if err != nil || command.Kind != agent.HTTPCommand {
		return err
	}
	var response agent.HTTPResponse
	if json.Unmarshal(result, &response) != nil || response.Status < 100 || response.Status > 999 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request",
			[]fault{{"/result", `want what the server answered: {"status": 200, "headers": {}, "json": ...}`}})
	}
	return nil
}
