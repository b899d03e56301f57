package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"runledger/agent"
	"runledger/sse"
)

// problem is an RFC 9457 problem document, and the error that leads to it.
type problem struct {
	// Type is stable; titles and details are for people.
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	RequestID string `json:"request_id,omitempty"`
	// Pointer is the JSON pointer, from the body's root, of the first of Errors. Parameter names a header or query parameter.
	Pointer   *string `json:"pointer,omitempty"`
	Parameter string  `json:"parameter,omitempty"`
	Errors    []fault `json:"errors,omitempty"`
	// RunID is the run that stands in the way of the request, or whose record is gone.
	RunID string `json:"run_id,omitempty"`
	// OldestSequence is where a client may begin whose position is no longer kept.
	OldestSequence int64 `json:"oldest_sequence,omitempty"`
	retryAfter     string
}

// fault is one thing that is wrong with a body.
type fault struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

func (p *problem) Error() string { return p.Type + ": " + p.Detail }

// newProblem makes a problem whose type is /problems/<kind>.
func newProblem(status int, kind, format string, args ...any) *problem {
	return &problem{Type: "/problems/" + kind, Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

// faultyBody is the problem of a body with faults, of which there is at least one.
func faultyBody(status int, kind string, faults []fault) *problem {
	detail := faults[0].Message
	if faults[0].Pointer != "" {
		detail = faults[0].Pointer + ": " + detail
	}
	if len(faults) > 1 {
		detail += fmt.Sprintf(" (and %d more)", len(faults)-1)
	}
	p := newProblem(status, kind, "%s", detail)
	p.Pointer, p.Errors = &faults[0].Pointer, faults
	return p
}

// badParameter is the problem of a header or query parameter.
func badParameter(name, format string, args ...any) *problem {
	p := newProblem(http.StatusBadRequest, "invalid-parameter", name+": "+format, args...)
	p.Parameter = name
	return p
}

// unavailable is the problem of something that may be there in a moment.
func unavailable(kind, format string, args ...any) *problem {
	p := newProblem(http.StatusServiceUnavailable, kind, format, args...)
	p.retryAfter = "2"
	return p
}

// problemOf finds the problem that an error means to a caller. It is nil for an error that is nobody's fault but ours.
func problemOf(err error) *problem {
	var (
		known    *problem
		missing  *agent.NotFoundError
		conflict *agent.ConflictError
		position *sse.PositionError
		gone     *agent.GoneError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &missing):
		return newProblem(http.StatusNotFound, "not-found", "%s", missing.Error())
	case errors.As(err, &conflict):
		return conflictProblem(conflict)
	case errors.As(err, &position):
		p := newProblem(http.StatusBadRequest, "invalid-position", "%s", position.Error())
		if position.Gone {
			p = newProblem(http.StatusGone, "position-gone", "%s", position.Error())
			p.OldestSequence = position.Oldest
		}
		p.Parameter = position.Name
		return p
	case errors.As(err, &gone):
		if gone.RunID == "" {
			p := newProblem(http.StatusGone, "position-gone", "%s", gone.Error())
			p.OldestSequence = gone.Oldest
			return p
		}
		// Without a number to go on from: whoever went there would be told the same.
		p := newProblem(http.StatusGone, "record-gone", "%s", gone.Error())
		p.RunID = gone.RunID
		return p
	}
	return nil
}

func conflictProblem(c *agent.ConflictError) *problem {
	switch c.Reason {
	case agent.ConflictKeyReused:
		p := newProblem(http.StatusUnprocessableEntity, c.Reason, "%s", c.Detail)
		p.Parameter = "Idempotency-Key"
		return p
	case agent.ConflictMessageID:
		p := faultyBody(http.StatusConflict, c.Reason, []fault{{"/message_id", c.Detail}})
		return p
	case agent.ConflictSteer:
		p := faultyBody(http.StatusUnprocessableEntity, c.Reason, []fault{{"/strategy", c.Detail}})
		p.RunID = c.RunID
		return p
	}
	p := newProblem(http.StatusConflict, c.Reason, "%s", c.Detail)
	p.RunID = c.RunID
	return p
}

// handler is a handler that may fail before it has begun to answer.
type handler func(w http.ResponseWriter, r *http.Request) error

func (a *API) handle(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			a.fail(w, r, err)
		}
	}
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p == nil {
		if r.Context().Err() != nil && !errors.Is(r.Context().Err(), context.DeadlineExceeded) {
			return // the client has gone; nobody reads an answer
		}
		a.log.ErrorContext(r.Context(), "a request failed", "method", r.Method, "path", r.URL.Path, "request_id", requestID(r), "error", err)
		p = a.blame(r)
	}
	writeProblem(w, r, p)
}

// blame tells a ledger that is away, where trying again helps, from a fault of ours, where it does not.
func (a *API) blame(r *http.Request) *problem {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Second)
	defer cancel()
	if a.cfg.Ledger.Ping(ctx) != nil {
		return unavailable("ledger-unavailable", "the ledger cannot be reached; nothing was changed or the change will show when it is back")
	}
	return newProblem(http.StatusInternalServerError, "internal", "something went wrong here; the log has it under this request id")
}

func writeProblem(w http.ResponseWriter, r *http.Request, p *problem) {
	shown := *p
	shown.RequestID = requestID(r)
	if shown.retryAfter != "" {
		w.Header().Set("Retry-After", shown.retryAfter)
	}
	_ = writeDocument(w, shown.Status, "application/problem+json", shown) // texts and numbers always encode
}

// writeJSON answers with a document. It leaves out the escapes that HTML would need, so that a page shows an event with
// the bytes of its frame. The error is that of a document that cannot be written as JSON; nothing has been sent then.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	return writeDocument(w, status, "application/json", v)
}

func writeDocument(w http.ResponseWriter, status int, mediaType string, v any) error {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // whoever does not take it has gone
	return nil
}
