package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// CheckOrigin refuses what no browser would send as the origin of a page: "https://app.example.org" is one, with a port where it
// is not the scheme's own. There is no word for every origin: without tokens it would make each web page an operator.
func CheckOrigin(origin string) error {
	u, err := url.Parse(origin)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Scheme+"://"+u.Host != origin || strings.ContainsAny(origin, "*, "):
		return fmt.Errorf("origin %q: want scheme://host or scheme://host:port, as in https://app.example.org", origin)
	case origin != strings.ToLower(origin):
		return fmt.Errorf("origin %q: browsers send it in lower case", origin)
	case u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443" || strings.HasSuffix(u.Host, ":"):
		return fmt.Errorf("origin %q: browsers leave the port of the scheme out", origin)
	}
	return nil
}

// What pages of other origins may send, apart from what they always may, and read, apart from bodies. None of it is a cookie: a page
// brings its token as every other client does.
const (
	corsMethods = "GET, POST, DELETE"
	corsHeaders = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id"
	corsExposed = "Content-Location, Location, Retry-After, X-Request-Id"
	// corsMaxAge is for how many seconds a browser need not ask again.
	corsMaxAge = "600"
)

const allowOrigin = "Access-Control-Allow-Origin"

// share lets the pages of the configured origins read the answers, problems too.
func (a *API) share(next http.Handler) http.Handler {
	if len(a.cfg.CORSOrigins) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Origin")
		if origin := r.Header.Get("Origin"); slices.Contains(a.cfg.CORSOrigins, origin) {
			w.Header().Set(allowOrigin, origin)
			w.Header().Set("Access-Control-Expose-Headers", corsExposed)
		}
		next.ServeHTTP(w, r)
	})
}

// preflight answers the question that a browser puts before the request of a page. It brings no token, and learns nothing but what
// such a page may do.
func preflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" || w.Header().Get(allowOrigin) == "" {
		return false
	}
	w.Header().Set("Access-Control-Allow-Methods", corsMethods)
	w.Header().Set("Access-Control-Allow-Headers", corsHeaders)
	w.Header().Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}
