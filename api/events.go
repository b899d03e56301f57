package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"runledger/agent"
	"runledger/auth"
	"runledger/sse"
)

// streamAsk is what a request says of the stream it wants.
type streamAsk struct {
	profile   sse.Profile
	position  sse.Position
	untilIdle bool
}

func (a *API) readStreamAsk(r *http.Request) (ask streamAsk, err error) {
	if ask.profile, err = readProfile(r); err != nil {
		return ask, err
	}
	ask.position, err = sse.ReadPosition(r.Header, r.URL.Query())
	return ask, err
}

// ledgerProfile shows what other profiles hide, prompts and plans among it.
const ledgerProfile = "ledger"

func readProfile(r *http.Request) (sse.Profile, error) {
	name := r.URL.Query().Get("profile")
	profile, ok := sse.FindProfile(name)
	if !ok {
		return profile, badParameter("profile", "there is no profile %q", agent.Preview(name, 64))
	}
	if who := caller(r); profile.Name == ledgerProfile && !who.Role.Includes(auth.Operator) {
		p := lowRole(who, auth.Operator)
		p.Parameter = "profile"
		return profile, p
	}
	return profile, nil
}

func (a *API) getRunEvents(w http.ResponseWriter, r *http.Request) (*following, error) {
	run, err := a.run(r)
	if err != nil {
		return nil, err
	}
	return a.events(w, r, agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, false)
}

func (a *API) getConversationEvents(w http.ResponseWriter, r *http.Request) (*following, error) {
	conversation, err := a.conversation(r)
	if err != nil {
		return nil, err
	}
	until := r.URL.Query().Get("until")
	if until != "" && until != "idle" {
		return nil, badParameter("until", "%q: want idle", agent.Preview(until, 64))
	}
	return a.events(w, r, agent.LogScope{ConversationID: conversation.ConversationID}, until == "idle")
}

// events shows a log, as a page or, where the client asks for one, as a stream.
func (a *API) events(w http.ResponseWriter, r *http.Request, scope agent.LogScope, untilIdle bool) (f *following, err error) {
	w.Header().Add("Vary", "Accept")
	if !wantsStream(r.Header) {
		return nil, a.eventPage(w, r, scope)
	}
	ask, err := a.readStreamAsk(r)
	if err != nil {
		return nil, err
	}
	ask.untilIdle = untilIdle
	free, err := a.slots.take(caller(r).Owner)
	if err != nil {
		return nil, err
	}
	defer func() { f.keeps(free) }()
	return a.stream(w, r, scope, ask)
}

func (a *API) eventPage(w http.ResponseWriter, r *http.Request, scope agent.LogScope) error {
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	profile, err := readProfile(r)
	if err != nil {
		return err
	}
	limit, err := readLimit(r, 1000, 10000)
	if err != nil {
		return err
	}
	position, err := sse.ReadPosition(nil, r.URL.Query())
	if err != nil {
		return err
	}
	extent, err := a.cfg.Ledger.Extent(ctx, scope)
	if err != nil {
		return err
	}
	after, err := position.Resolve(extent)
	if err != nil {
		return err
	}
	events, err := a.cfg.Ledger.Events(ctx, scope, after, limit+1) // one more than asked for tells whether more follows
	if err != nil {
		return err
	}
	more := len(events) > limit
	if more {
		events = events[:limit]
	}
	objects := make([]json.RawMessage, len(events))
	for i, e := range events {
		objects[i] = sse.EncodeEvent(profile.Show(e))
	}
	return writeJSON(w, http.StatusOK, struct {
		Events  []json.RawMessage `json:"events"`
		HasMore bool              `json:"has_more"`
	}{objects, more})
}

// following is the stream that a request is answered with. free gives its slot back.
type following struct {
	req  sse.Request
	free func()
}

// keeps gives a slot to the stream. Where there is none, after an answer, an error or a panic, the slot is free again.
func (f *following) keeps(free func()) {
	if f == nil {
		free()
	} else {
		f.free = free
	}
}

// follows is a handler that answers with a stream where one is given it, else with what was answered or the error.
//
// A stream lives long and does little, and most of what it costs is its goroutine's stack, which stays as large as it once was. So
// all that comes before is done on another one.
func (a *API) follows(prepare func(w http.ResponseWriter, r *http.Request) (*following, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		f, err := apart(func() (*following, error) { return prepare(w, r) })
		if f == nil {
			return err
		}
		defer f.free()
		if err := a.streams.Serve(w, r, &f.req); err != nil && !errors.Is(err, sse.ErrClient) {
			a.endedEarly(r, f.req.Scope, err)
		}
		return nil // the answer has begun
	}
}

func (a *API) endedEarly(r *http.Request, scope agent.LogScope, err error) {
	a.log.ErrorContext(r.Context(), "a stream ended early", "conversation_id", scope.ConversationID, "run_id", scope.RunID,
		"request_id", requestID(r), "error", err)
}

// apart calls do on a goroutine of its own. A panic there is one here, with the stack where it was.
func apart[T any](do func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	var panicked any
	go func() {
		defer close(done)
		defer func() {
			if panicked = recover(); panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // recover gives the very value
				panicked = fmt.Sprintf("%v\n%s", panicked, debug.Stack())
			}
		}()
		v, err = do()
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return v, err
}

// stream follows a scope from where the client says, or answers why it cannot. The caller has taken a slot.
func (a *API) stream(w http.ResponseWriter, r *http.Request, scope agent.LogScope, ask streamAsk) (*following, error) {
	extent, err := a.cfg.Ledger.Extent(r.Context(), scope)
	if err != nil {
		return nil, err
	}
	after, err := ask.position.Resolve(extent)
	if err != nil {
		return nil, err
	}
	if scope.RunID != "" && !extent.Open && extent.LastInScope == 0 {
		return nil, &agent.GoneError{RunID: scope.RunID, Oldest: extent.Oldest} // every run that has ended had events
	}
	if (scope.RunID != "" || ask.untilIdle) && sse.Over(extent, after) {
		w.WriteHeader(http.StatusNoContent) // an EventSource that connects again after the end is told to stop
		return nil, nil
	}
	return &following{req: sse.Request{Scope: scope, Profile: ask.profile, After: after, Extent: extent, UntilIdle: ask.untilIdle}}, nil
}

// wantsStream reports whether the Accept header asks for Server-Sent Events rather than for JSON.
func wantsStream(h http.Header) bool {
	stream, document := 0.0, 0.0
	for _, part := range strings.Split(strings.Join(h.Values("Accept"), ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		switch kind {
		case "text/event-stream":
			stream = max(stream, q)
		case "application/json":
			document = max(document, q)
		}
	}
	return stream > 0 && stream >= document
}
