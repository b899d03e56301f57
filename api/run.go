package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"runledger/agent"
	"runledger/sse"
)

// acceptTimeout bounds how long a run may take to become durable.
const acceptTimeout = 30 * time.Second

// postRun starts a run and answers with it when it has ended, or as it is when the caller does not want to wait longer.
func (a *API) postRun(w http.ResponseWriter, r *http.Request) error {
	body, run, _, err := a.acceptRun(w, r)
	if err != nil {
		return err
	}
	return a.answerRun(w, r, run, body.Wait)
}

// answerRun answers with a run when it has ended, or as it is when the caller does not want to wait longer.
func (a *API) answerRun(w http.ResponseWriter, r *http.Request, run agent.Run, wait *float64) error {
	longest := defaultWait
	if wait != nil {
		longest = time.Duration(*wait * float64(time.Second))
	}
	run, err := a.await(w, r, run, longest)
	if err != nil || r.Context().Err() != nil {
		return err
	}
	object, err := a.runObject(r.Context(), run)
	if err != nil {
		return err
	}
	if run.Status.Terminal() {
		return writeJSON(w, http.StatusOK, object)
	}
	w.Header().Set("Location", runPath(run.RunID))
	return writeJSON(w, http.StatusAccepted, object)
}

// postRunStream starts a run and shows it as it happens.
func (a *API) postRunStream(w http.ResponseWriter, r *http.Request) (f *following, err error) {
	ask, err := a.readStreamAsk(r)
	if err != nil {
		return nil, err
	}
	free, err := a.slots.take(caller(r).Owner)
	if err != nil {
		return nil, err
	}
	defer func() { f.keeps(free) }()
	_, run, created, err := a.acceptRun(w, r)
	if err != nil {
		return nil, err
	}
	return a.streamAccepted(w, r, run, created, ask)
}

func (a *API) acceptRun(w http.ResponseWriter, r *http.Request) (body runBody, run agent.Run, created bool, err error) {
	raw, err := a.readBody(w, r, &body)
	if err != nil {
		return body, run, false, err
	}
	if f := body.check(); len(f) > 0 {
		return body, run, false, faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	acceptance, err := a.acceptance(r, &body, raw)
	if err != nil {
		return body, run, false, err
	}
	run, created, err = a.accept(r.Context(), acceptance)
	return body, run, created, err
}

// postChat takes a message into a conversation and shows the answer as it happens.
func (a *API) postChat(w http.ResponseWriter, r *http.Request) (f *following, err error) {
	ask, err := a.readStreamAsk(r)
	if err != nil {
		return nil, err
	}
	var chat chatBody
	raw, err := a.readBody(w, r, &chat)
	if err != nil {
		return nil, err
	}
	body := runBody{Input: chat.Message, ConversationID: chat.ConversationID, Agent: chat.Agent, Mode: agent.ModeReact, Strategy: chat.Strategy}
	if body.Strategy == "" {
		body.Strategy = agent.Enqueue // messages of one conversation are answered one after the other
	}
	var wrong faults
	if strings.TrimSpace(chat.Message) == "" {
		wrong.add("/message", "a message is needed")
	}
	wrong.checkID("/conversation_id", &body.ConversationID)
	wrong.checkStrategy(body.Strategy)
	if len(wrong) > 0 {
		return nil, faultyBody(http.StatusUnprocessableEntity, "invalid-request", wrong)
	}
	if b, ok := a.blueprint(body.Agent); ok && b.RequirePlan {
		return nil, faultyBody(http.StatusUnprocessableEntity, "plan-required", []fault{{"/agent", "agent " + b.Name + " has to be given a plan, which a message is not"}})
	}
	acceptance, err := a.acceptance(r, &body, raw)
	if err != nil {
		return nil, err
	}
	free, err := a.slots.take(acceptance.Owner)
	if err != nil {
		return nil, err
	}
	defer func() { f.keeps(free) }()
	run, created, err := a.accept(r.Context(), acceptance)
	if err != nil {
		return nil, err
	}
	return a.streamAccepted(w, r, run, created, ask)
}

func (a *API) accept(ctx context.Context, acceptance agent.Acceptance) (agent.Run, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	run, created, err := a.cfg.Ledger.Accept(ctx, acceptance)
	var missing *agent.NotFoundError
	if errors.As(err, &missing) && missing.What == "conversation" {
		return run, false, faultyBody(http.StatusNotFound, "not-found", []fault{{"/conversation_id", missing.Error()}})
	}
	if err != nil {
		return run, false, fmt.Errorf("accept a run: %w", err)
	}
	return run, created, nil
}

// streamAccepted follows a run that was just accepted, or accepted before under the same key: that one from where the
// caller says, because it may be connecting again. A message to a run at work is answered with what follows it, the message first.
func (a *API) streamAccepted(w http.ResponseWriter, r *http.Request, run agent.Run, created bool, ask streamAsk) (*following, error) {
	events := runPath(run.RunID) + "/events"
	switch {
	case run.Steered > 0 && ask.position == sse.Position{}:
		query := r.URL.Query()
		query.Set("from_sequence", strconv.FormatInt(run.Steered, 10))
		events += "?" + query.Encode()
		ask.position, _ = sse.ReadPosition(nil, query) // a number as it has to be
	case r.URL.RawQuery != "":
		events += "?" + r.URL.RawQuery
	}
	w.Header().Set("Content-Location", events)
	scope := agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}
	if created {
		ask.position = sse.Position{} // there is nothing yet that the caller could have
	}
	if created && run.StartSequence > 0 {
		return &following{req: sse.Request{Scope: scope, Profile: ask.profile, After: run.StartSequence - 1,
			Extent: agent.Extent{Last: run.StartSequence, Open: true}}}, nil
	}
	return a.stream(w, r, scope, ask)
}

func runPath(runID string) string { return root + "/runs/" + runID }

// await reads a run until it has ended, the time is up, or the server drains.
func (a *API) await(w http.ResponseWriter, r *http.Request, run agent.Run, wait time.Duration) (agent.Run, error) {
	// What the caller is willing to wait is not for the server's write timeout to cut short.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	ctx, ledger := r.Context(), a.cfg.Ledger
	scope := agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}
	owner := caller(r).Owner
	wake, cancel := ledger.Subscribe(run.ConversationID)
	defer cancel()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	poll := time.NewTicker(time.Second) // a wake-up may be lost
	defer poll.Stop()
	for waiting := wait > 0; waiting; {
		extent, err := ledger.Extent(ctx, scope)
		if err == nil && !extent.Open {
			break
		}
		if err != nil && ctx.Err() == nil {
			// The run goes on without its reader, and so does the wait: the ledger may be back before it is over.
			a.log.WarnContext(ctx, "a waiting request cannot read the ledger", "run_id", run.RunID, "request_id", requestID(r), "error", err)
		}
		select {
		case <-wake:
		case <-poll.C:
		case <-timer.C:
			waiting = false
		case <-a.streams.Draining():
			waiting = false
		case <-ctx.Done():
			return run, nil
		}
	}
	now, err := ledger.Run(ctx, owner, run.RunID)
	if err != nil {
		return run, fmt.Errorf("read run %s: %w", run.RunID, err)
	}
	return now, nil
}
