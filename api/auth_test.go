package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
)

// tokenOf is the token of an owner with a role.
func tokenOf(owner string, role auth.Role) string {
	return "s3cret-of-" + owner + "-the-" + string(role)
}

// bearer is the header that brings it.
func bearer(owner string, role auth.Role) string {
	return "Authorization: Bearer " + tokenOf(owner, role)
}

// allTokens are those of every role of owners a, b and *.
func allTokens() (tokens []auth.Token) {
	for _, owner := range []string{"a", "b", agent.AnyOwner} {
		for _, role := range auth.Roles() {
			tokens = append(tokens, auth.Token{Hash: auth.HashOf(tokenOf(owner, role)), Caller: auth.Caller{Owner: owner, Name: owner + "-" + string(role), Role: role}})
		}
	}
	return tokens
}

func withTokens(c *Config) { c.Tokens = auth.NewKeyring(allTokens()) }

// eachRoute visits what is served, as the router knows it.
func (b *bench) eachRoute(visit func(method, pattern string)) {
	b.t.Helper()
	n := 0
	require.NoError(b.t, chi.Walk(b.api.router, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		visit(method, pattern)
		n++
		return nil
	}))
	require.Greater(b.t, n, 20)
}

// roleOf is the role that a route needs.
func (b *bench) roleOf(method, pattern string) auth.Role {
	b.t.Helper()
	for _, e := range b.api.endpoints() {
		if e.method == method && e.path == pattern {
			return e.role
		}
	}
	b.t.Fatalf("%s %s is not among the endpoints, so that nobody asks who calls it: add it there, with a role", method, pattern)
	return ""
}

func TestEveryRouteHasARole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	free := map[string]bool{"GET /healthz": true, "GET /readyz": true, "GET /openapi.yaml": true}
	b.eachRoute(func(method, pattern string) {
		role, name := b.roleOf(method, pattern), method+" "+pattern
		if free[name] {
			require.Equal(t, anyone, role, name)
			return
		}
		require.Contains(t, auth.Roles(), role, name)
		if method != http.MethodGet {
			require.True(t, role.Includes(auth.User), "%s acts: a viewer may not", name)
		}
		require.NotNil(t, b.spec.Paths.Value(pattern), "%s is not in openapi.yaml", pattern)
		operation := b.spec.Paths.Value(pattern).GetOperation(method)
		require.Nil(t, operation.Security, name)
		for _, status := range []int{401, 403} {
			require.NotNil(t, operation.Responses.Status(status), "openapi.yaml: %s does not tell of %d; say <<: *problems", name, status)
		}
	})
}

// A route that was added without a role is for nobody.
func TestForgottenRoleLetsNobodyIn(t *testing.T) {
	t.Parallel()
	for _, b := range []*bench{newBench(t), newBench(t, withTokens)} {
		h := b.api.permit("", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was let in") }))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("GET", "/", "", bearer("*", auth.Operator)))
		require.Equal(t, 403, w.Code)
	}
}

func TestAuthorizationHeader(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens)
	token := tokenOf("a", auth.Viewer)
	path := "/api/v1/agent/runs"
	for _, good := range []string{"Bearer " + token, "bearer " + token, "BEARER  " + token} {
		require.Equal(t, 200, b.do("GET", path, "", "Authorization: "+good).Code, good)
	}
	for _, bad := range []string{"Bearer", "Bearer x", token, "Basic " + token, "Bearer" + token, "Bearer " + token + "x", "Bearer " + token[1:], "Bearer " + strings.ToUpper(token),
		"Bearer " + token + " " + token, "Bearer " + token + ", Bearer " + token, `Bearer "` + token + `"`} {
		w := b.do("GET", path, "", "Authorization: "+bad)
		requireProblem(t, w, 401, "token-needed", "")
		require.Equal(t, `Bearer realm="runledger"`, w.Header().Get("WWW-Authenticate"), bad)
	}
	twice := request("GET", path, "", "Authorization: Bearer "+token)
	twice.Header.Add("Authorization", "Bearer "+token)
	requireProblem(t, b.send(twice), 401, "token-needed", "")
	requireProblem(t, b.do("GET", path+"?access_token="+token, ""), 401, "token-needed", "")
	require.NotContains(t, b.logged.String(), token)
}

func TestOpenPathsNeedNoToken(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens)
	for _, path := range []string{"/healthz", "/readyz", "/openapi.yaml"} {
		require.Equal(t, 200, b.do("GET", path, "").Code, path)
		require.Equal(t, 200, b.do("GET", path, "", "Authorization: Bearer wrong").Code, path)
	}
}

// With tokens it is they who say who may come in, and the API is called by its own name.
func TestHostIsFreeWithTokens(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens)
	require.Equal(t, 200, b.do("GET", "/api/v1/agent/runs", "", "Host: api.example.org", bearer("a", auth.Viewer)).Code)
	requireProblem(t, b.do("GET", "/api/v1/agent/runs", "", "Host: api.example.org"), 401, "token-needed", "")
}

func TestLedgerProfileIsForOperators(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens)
	run := b.ledger.seed(t, "a", "")
	for _, path := range []string{"/api/v1/agent/runs/" + run.RunID + "/events", "/api/v1/agent/conversations/" + run.ConversationID + "/events"} {
		require.Equal(t, 200, b.do("GET", path+"?profile=run", "", bearer("a", auth.Viewer)).Code)
		for _, role := range []auth.Role{auth.Viewer, auth.User} {
			for _, accept := range []string{"application/json", "text/event-stream"} {
				p := requireProblem(t, b.do("GET", path+"?profile=ledger", "", bearer("a", role), "Accept: "+accept), 403, "operator-role-needed", "")
				require.Contains(t, p.Detail, "role "+string(role))
				require.Equal(t, "profile", p.Parameter)
			}
		}
		require.Equal(t, 200, b.do("GET", path+"?profile=ledger", "", bearer("a", auth.Operator)).Code)
	}
	for _, path := range []string{"/run/stream", "/chat"} {
		requireProblem(t, b.do("POST", "/api/v1/agent"+path+"?profile=ledger", `{"input":"x","message":"x"}`, bearer("a", auth.User)), 403, "operator-role-needed", "")
	}
	require.Empty(t, b.ledger.accepted)
}

func TestRecordNamesTheCaller(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens)
	run := b.ledger.seed(t, "a", "")
	b.ledger.commands[run.RunID] = []agent.Command{
		{CommandID: "pay", Kind: agent.ToolCommand, State: agent.CommandInDoubt}, {CommandID: "ship", Kind: agent.ToolCommand, State: agent.CommandInDoubt}}
	path := "/api/v1/agent/runs/" + run.RunID
	require.Equal(t, 200, b.do("POST", path+"/commands/pay/resolve", `{"outcome":"failed"}`, bearer("a", auth.User)).Code)
	require.Equal(t, 200, b.do("POST", path+"/commands/ship/resolve", `{"outcome":"failed","by":"b-operator"}`, bearer("*", auth.Operator)).Code)
	require.Equal(t, 202, b.do("POST", path+"/cancel", `{"reason":"enough"}`, bearer("*", auth.User)).Code)
	require.Equal(t, []string{"a pay failed  by a-user: ", "* ship failed  by b-operator (*-operator): "}, b.ledger.resolutions)
	require.Equal(t, []string{"* *-user enough"}, b.ledger.cancels)
}

// served is the API behind a real server, whose streams do nothing by themselves: what ends them is what the test does.
// following is told when somebody waits for news.
func served(t testing.TB) (b *bench, keys *auth.Keyring, server *httptest.Server, following <-chan struct{}) {
	t.Helper()
	keys = auth.NewKeyring(allTokens())
	heard := &heardLedger{following: make(chan struct{}, 10)}
	b = newBench(t, func(c *Config) {
		heard.Ledger = c.Ledger
		c.Ledger, c.Tokens = heard, keys
		c.Streams.Heartbeat, c.Streams.Poll = time.Hour, time.Hour
	})
	server = httptest.NewServer(b.api)
	t.Cleanup(server.Close)
	return b, keys, server, heard.following
}

// heardLedger tells when somebody subscribes, or when the first stream follows the log.
type heardLedger struct {
	Ledger
	following chan struct{}
}

func (l *heardLedger) Subscribe(id string) (<-chan struct{}, func()) {
	defer func() { l.following <- struct{}{} }()
	return l.Ledger.Subscribe(id)
}

func (l *heardLedger) Watch(news func(string)) func() {
	defer func() { l.following <- struct{}{} }()
	return l.Ledger.Watch(news)
}

func call(t testing.TB, server *httptest.Server, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header = request(method, path, body, headers...).Header
	res, err := server.Client().Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// without are all tokens but one.
func without(owner string, role auth.Role) []auth.Token {
	return slices.DeleteFunc(allTokens(), func(token auth.Token) bool { return token.Hash == auth.HashOf(tokenOf(owner, role)) })
}

func TestRevokedTokenEndsItsStreams(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(agent.Run) (method, path, body string){
		"run": func(r agent.Run) (string, string, string) {
			return "GET", "/api/v1/agent/runs/" + r.RunID + "/events", ""
		},
		"conversation": func(r agent.Run) (string, string, string) {
			return "GET", "/api/v1/agent/conversations/" + r.ConversationID + "/events", ""
		},
		"post": func(r agent.Run) (string, string, string) {
			return "POST", "/api/v1/agent/run/stream", `{"input":"x","conversation_id":"` + r.ConversationID + `"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, keys, server, following := served(t)
			run := b.ledger.seed(t, "a", "")
			method, path, body := ask(run)
			headers := []string{"Accept: text/event-stream", bearer("a", auth.User)}
			res := call(t, server, method, path, body, headers...)
			require.Equal(t, 200, res.StatusCode)
			<-following
			in := bufio.NewReader(res.Body)
			until := func(event string) {
				t.Helper()
				for line := ""; !strings.Contains(line, "event: "+event); {
					var err error
					line, err = in.ReadString('\n')
					require.NoError(t, err)
				}
			}
			until("message_added")

			// Others that go do not disturb it.
			require.Equal(t, 1, keys.Replace(without("b", auth.User)))
			b.ledger.write(b.ledger.order[len(b.ledger.order)-1], agent.Event{Type: agent.PlanStarted}, agent.PlanStartedData{})
			until("plan_started")

			require.Equal(t, 1, keys.Replace(without("a", auth.User)), "b's is good again, a's is gone")
			_, err := io.ReadAll(in)
			require.NoError(t, err, "it ends between two frames")
			res = call(t, server, method, path, body, headers...)
			require.Equal(t, 401, res.StatusCode)
		})
	}
}

func TestRevokedTokenEndsItsWaits(t *testing.T) {
	t.Parallel()
	b, keys, server, following := served(t)
	go func() {
		<-following
		keys.Replace(without("a", auth.User))
	}()
	res := call(t, server, "POST", "/api/v1/agent/run", `{"input":"x","wait":600}`, bearer("a", auth.User))
	require.Equal(t, 401, res.StatusCode)
	require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"))
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "/problems/token-needed")
	require.Len(t, b.ledger.accepted, 1, "what was accepted stays accepted")
}
