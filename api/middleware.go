package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"
)

type contextKey int

const requestIDKey contextKey = 0

// requestID is the id of a request, the caller's own where it sent a sane one.
func requestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey).(string)
	return id
}

// identify gives every request an id, and tells it in the answer.
func (a *API) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !saneRequestID(id) {
			id = newID()
		}
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestIDKey, id)))
	})
}

func saneRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, r := range id {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:/+=@-", r)
		if !plain {
			return false
		}
	}
	return true
}

// newID makes an id that sorts by the time it was made.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// observe writes a line for every request and turns a panic into a problem.
func (a *API) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		defer func() {
			fault := recover()
			if fault != nil && fault != http.ErrAbortHandler { //nolint:errorlint // recover gives the very value
				a.log.ErrorContext(r.Context(), "a handler panicked", "method", r.Method, "path", r.URL.Path,
					"request_id", requestID(r), "panic", fault, "stack", string(debug.Stack()))
				if ww.Status() == 0 {
					writeProblem(ww, r, newProblem(http.StatusInternalServerError, "internal", "something went wrong here; the log has it under this request id"))
					fault = nil
				}
			}
			level := slog.LevelInfo
			if strings.HasPrefix(r.URL.Path, "/healthz") || strings.HasPrefix(r.URL.Path, "/readyz") || r.URL.Path == "/metrics" {
				level = slog.LevelDebug // asked every few seconds
			}
			a.log.Log(r.Context(), level, "request", "method", r.Method, "path", r.URL.Path, "status", ww.Status(),
				"bytes", ww.BytesWritten(), "duration", time.Since(start), "request_id", requestID(r))
			if fault != nil {
				panic(http.ErrAbortHandler) // the answer has begun: cutting it off is the only way to say that it is wrong
			}
		}()
		next.ServeHTTP(ww, r)
	})
}

// guard keeps web pages out that a caller's browser has open: those that reach this server under a name of their own
// (DNS rebinding), and those that post to it from another site.
func (a *API) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.cfg.Tokens == nil && !a.cfg.AnyHost && !loopbackHost(r.Host) {
			writeProblem(w, r, newProblem(http.StatusForbidden, "foreign-host", "requests without a token must name a loopback address, as in 127.0.0.1 or localhost, not %q", r.Host))
			return
		}
		if err := a.origin.Check(r); err != nil {
			writeProblem(w, r, newProblem(http.StatusForbidden, "foreign-origin", "a page of another site may not do this: %v", err))
			return
		}
		if preflight(w, r) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopbackHost reports whether a Host header names this machine by a name that nobody else can give away.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return isLoopback(host)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
