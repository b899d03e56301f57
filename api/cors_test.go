package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
	"runledger/tool"
)

const page = "https://app.example.org"

func withOrigins(c *Config) { c.CORSOrigins = []string{page, "http://localhost:5173"} }

// requireShared holds that a browser lets the page read an answer, or that it does not.
func requireShared(t *testing.T, w *httptest.ResponseRecorder, origin string) {
	t.Helper()
	h := w.Header()
	require.Equal(t, origin, h.Get("Access-Control-Allow-Origin"))
	require.Empty(t, h.Get("Access-Control-Allow-Credentials"), "pages bring tokens, not cookies")
	if origin == "" {
		require.Empty(t, h.Get("Access-Control-Expose-Headers"))
		require.Empty(t, h.Get("Access-Control-Allow-Headers"))
		return
	}
	require.Contains(t, h.Values("Vary"), "Origin")
}

func TestPagesOfOtherOrigins(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens, withOrigins)
	run := b.ledger.seed(t, "a", "")
	const fromPage, crossSite = "Origin: " + page, "Sec-Fetch-Site: cross-site"
	get := func(headers ...string) *httptest.ResponseRecorder {
		return b.do("GET", runEvents(run), "", append(headers, crossSite)...)
	}
	w := get(fromPage, bearer("a", auth.User))
	require.Equal(t, 200, w.Code)
	requireShared(t, w, page)
	require.Equal(t, "Content-Location, Location, Retry-After, X-Request-Id", w.Header().Get("Access-Control-Expose-Headers"))
	require.Contains(t, w.Header().Values("Vary"), "Accept")
	requireShared(t, get("Origin: http://localhost:5173", bearer("a", auth.User)), "http://localhost:5173")
	w = get(fromPage)
	requireProblem(t, w, 401, "token-needed", "")
	requireShared(t, w, page) // so that the page can read what it lacks
	for _, foreign := range []string{"https://evil.example", "null", "http://app.example.org", "https://app.example.org:8443", "https://app.example.org.evil.example", "https://xapp.example.org"} {
		requireShared(t, get("Origin: "+foreign, bearer("a", auth.User)), "")
		p := b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, "Origin: "+foreign, crossSite, bearer("a", auth.User))
		requireProblem(t, p, 403, "foreign-origin", "")
		requireShared(t, p, "")
	}
	require.Empty(t, b.ledger.accepted)

	w = b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, fromPage, crossSite, bearer("a", auth.User))
	require.Equal(t, 202, w.Code)
	requireShared(t, w, page)
	require.NotEmpty(t, w.Header().Get("Location"))
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, fromPage, crossSite, bearer("a", auth.Viewer)), 403, "user-role-needed", "")
}

func TestStreamIsSharedWithThePage(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens, withOrigins)
	run := b.ledger.seed(t, "a", "")
	b.ledger.end(run.RunID, agent.Completed)
	w := b.do("GET", runEvents(run), "", "Accept: text/event-stream", "Origin: "+page, bearer("a", auth.User))
	require.Len(t, b.frames(w), 3)
	requireShared(t, w, page)
	w = b.do("GET", runEvents(run), "", "Accept: text/event-stream", "Origin: "+page, "Last-Event-ID: 3", bearer("a", auth.User))
	require.Equal(t, 204, w.Code)
	requireShared(t, w, page)
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens, withOrigins)
	run := b.ledger.seed(t, "a", "")
	ask := func(path string, headers ...string) *httptest.ResponseRecorder {
		return b.do("OPTIONS", path, "", headers...)
	}
	const method = "Access-Control-Request-Method: POST"
	for _, path := range []string{"/api/v1/agent/chat", runEvents(run)} {
		w := ask(path, "Origin: "+page, method, "Sec-Fetch-Site: cross-site", "Access-Control-Request-Headers: authorization,content-type")
		require.Equal(t, 204, w.Code, "without a token: browsers send none")
		requireShared(t, w, page)
		require.Equal(t, "GET, POST, DELETE", w.Header().Get("Access-Control-Allow-Methods"))
		require.Equal(t, "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id", w.Header().Get("Access-Control-Allow-Headers"))
		require.Equal(t, "600", w.Header().Get("Access-Control-Max-Age"))
	}
	for name, headers := range map[string][]string{
		"another origin":            {"Origin: https://evil.example", method},
		"no origin":                 {method},
		"no method: no preflight":   {"Origin: " + page},
		"another origin, its token": {"Origin: https://evil.example", method, bearer("a", auth.User)},
	} {
		w := ask("/api/v1/agent/chat", headers...)
		require.Equal(t, 405, w.Code, name)
		require.Empty(t, w.Header().Get("Access-Control-Allow-Methods"), name)
	}
	require.Empty(t, b.ledger.accepted)
}

// Origins let pages in that their server's owner named. They do not make a name that points here one of ours, and without them
// nothing is shared.
func TestOriginsWithoutTokens(t *testing.T) {
	t.Parallel()
	const method = "Access-Control-Request-Method: POST"
	b := newBench(t, withOrigins)
	require.Equal(t, 202, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, "Origin: "+page, "Sec-Fetch-Site: cross-site").Code)
	for _, m := range []string{"GET", "OPTIONS"} {
		requireProblem(t, b.do(m, "/api/v1/agent/runs", "", "Origin: "+page, method, "Host: evil.example"), 403, "foreign-host", "")
	}
	b = newBench(t)
	w := b.do("GET", "/api/v1/agent/runs", "", "Origin: "+page)
	requireShared(t, w, "")
	require.Empty(t, w.Header().Values("Vary"))
	require.Equal(t, 405, b.do("OPTIONS", "/api/v1/agent/runs", "", "Origin: "+page, method).Code)
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, "Origin: "+page), 403, "foreign-origin", "")
}

func TestCheckOrigin(t *testing.T) {
	t.Parallel()
	for origin, ok := range map[string]bool{
		"https://app.example.org": true, "https://app.example.org:8443": true, "http://localhost:5173": true, "http://127.0.0.1": true, "http://[::1]:3000": true,
		"": false, "*": false, "null": false, "app.example.org": false, "https://": false, "https://app.example.org/": false, "https://app.example.org/x": false,
		"https://app.example.org?x": false, "https://a@app.example.org": false, "https://*.example.org": false, "https://App.example.org": false,
		"HTTPS://app.example.org": false, "https://app.example.org:443": false, "http://app.example.org:80": false, "https://app.example.org:": false,
		"ftp://app.example.org": false, "file:///x": false, "https://a.example https://b.example": false, "https://a.example,https://b.example": false,
	} {
		require.Equal(t, ok, CheckOrigin(origin) == nil, origin)
		cfg := Config{Ledger: newFakeLedger(), Agents: testAgents(), CheckPlans: checkCalculator, EditArguments: tool.EditCall, CORSOrigins: []string{origin}}
		_, err := New(cfg)
		require.Equal(t, ok, err == nil, origin)
	}
}

func TestOverTheWireFromAPage(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		res, _ := x.ask(http.MethodOptions, "/api/v1/agent/chat", "", "Origin: "+page, "Access-Control-Request-Method: POST")
		require.Equal(t, 204, res.StatusCode)
		require.Equal(t, page, res.Header.Get("Access-Control-Allow-Origin"))
	}, withOrigins)
}
