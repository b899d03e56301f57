package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5/middleware"

	"runledger/agent"
	"runledger/auth"
)

// anyone is for what needs no token. It is no role that a caller could have.
const anyone auth.Role = "anyone"

// localCaller is who calls where there are no tokens: the API is then for this machine alone.
func localCaller() auth.Caller {
	return auth.Caller{Owner: "local", Name: "local", Role: auth.Operator}
}

const callerKey contextKey = 1

// caller is who a request is from. Requests that were not let in are from nobody, who owns nothing.
func caller(r *http.Request) auth.Caller {
	c, _ := r.Context().Value(callerKey).(auth.Caller)
	return c
}

var errRevoked = errors.New("the token was revoked")

// permit lets those in whose role includes the one that is needed. When their token is revoked, what they have asked for
// ends there: it is answered as if they came now, unless the answer has begun.
func (a *API) permit(needed auth.Role, next http.Handler) http.Handler {
	if needed == anyone {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		permitted, done := a.admit(w, r, needed)
		if permitted == nil {
			return
		}
		defer done()
		ww, ok := w.(middleware.WrapResponseWriter) // whoever observes it has wrapped it
		if !ok {
			ww = middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		}
		next.ServeHTTP(ww, permitted)
		if ww.Status() == 0 && errors.Is(context.Cause(permitted.Context()), errRevoked) {
			refuse(w, r)
		}
	})
}

// admit gives the request as its handler is to see it, or answers that it may not. Done ends its context, which else ends when the
// caller's token is revoked.
func (a *API) admit(w http.ResponseWriter, r *http.Request, needed auth.Role) (permitted *http.Request, done func()) {
	who, good, ok := a.authenticate(r)
	if !ok {
		refuse(w, r)
		return nil, nil
	}
	if !who.Role.Includes(needed) {
		writeProblem(w, r, lowRole(who, needed))
		return nil, nil
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), callerKey, who))
	stop := context.AfterFunc(good, func() { cancel(errRevoked) })
	return r.WithContext(ctx), func() {
		stop()
		cancel(nil)
	}
}

// authenticate finds out who a request is from. The context ends when that is no longer so.
func (a *API) authenticate(r *http.Request) (who auth.Caller, good context.Context, ok bool) {
	if a.cfg.Tokens == nil {
		return localCaller(), context.Background(), true
	}
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return who, nil, false
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return who, nil, false
	}
	return a.cfg.Tokens.Find(strings.TrimLeft(token, " "))
}

// refuse answers whoever has no good token. It does not tell a token that is wrong from one that was revoked.
func refuse(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="runledger"`)
	writeProblem(w, r, newProblem(http.StatusUnauthorized, "token-needed", "a good token is needed, as in Authorization: Bearer TOKEN"))
}

// lowRole is the problem of a caller who asks for what needs another role.
func lowRole(who auth.Caller, needed auth.Role) *problem {
	if needed == auth.User {
		return newProblem(http.StatusForbidden, "user-role-needed", "this needs a token of role user; this one has role %s", who.Role)
	}
	return newProblem(http.StatusForbidden, "operator-role-needed", "this needs a token of role operator; this one has role %s", who.Role)
}

// requireHome returns a problem where a conversation would have to be made for a caller who works with everybody's.
func requireHome(who auth.Caller, conversationID string) error {
	if who.Owner != agent.AnyOwner || conversationID != "" {
		return nil
	}
	return faultyBody(http.StatusUnprocessableEntity, "invalid-request",
		[]fault{{"/conversation_id", "a token for every owner works in conversations that exist; name one"}})
}

// by is what the record says of who asked for something. A caller may say which person that is; with tokens, the name of
// the token stands behind it, so that nobody can speak for another.
func (a *API) by(r *http.Request, claimed string) string {
	name := caller(r).Name
	switch {
	case claimed == "" || claimed == name:
		return name
	case a.cfg.Tokens == nil:
		return claimed
	default:
		return claimed + " (" + name + ")"
	}
}
