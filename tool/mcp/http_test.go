package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// site is a server over HTTP that a test can take down, start again without its sessions, and let answer what it likes.
type site struct {
	url     string
	fakes   []*sdk.Server
	handler atomic.Pointer[http.Handler]
	// instead, if set, may answer a request; it returns false to leave it to the server.
	instead atomic.Pointer[func(w http.ResponseWriter, r *http.Request, method string) bool]
	seen    atomic.Pointer[http.Header]
}

// newSite serves the fake over HTTP. stateless: without sessions, and in the protocol that knows none.
func newSite(t testing.TB, options *sdk.StreamableHTTPOptions) *site {
	t.Helper()
	s := &site{}
	s.restart(options)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Clone()
		s.seen.Store(&header)
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var message struct{ Method string }
		_ = json.Unmarshal(body, &message)
		if instead := s.instead.Load(); instead != nil && (*instead)(w, r, message.Method) {
			return
		}
		(*s.handler.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		for _, fake := range s.fakes {
			endSessions(fake)
		}
		server.Close()
	})
	s.url = server.URL
	return s
}

// endSessions ends those that no client has ended.
func endSessions(fake *sdk.Server) {
	for session := range fake.Sessions() {
		_ = session.Close()
	}
}

// restart makes a new server, which knows nothing of what was before.
func (s *site) restart(options *sdk.StreamableHTTPOptions) {
	fake := newFake(&plug{})
	s.fakes = append(s.fakes, fake)
	var handler http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return fake }, options)
	s.handler.Store(&handler)
}

// answer lets every request of a method be answered by f.
func (s *site) answer(method string, f http.HandlerFunc) {
	instead := func(w http.ResponseWriter, r *http.Request, asked string) bool {
		if asked != method {
			return false
		}
		f(w, r)
		return true
	}
	s.instead.Store(&instead)
}

func (s *site) config() Config {
	return Config{Name: "fake", URL: s.url, grace: 500 * time.Millisecond}
}

func (s *site) connect(t testing.TB) *Server {
	t.Helper()
	server, err := Connect(t.Context(), s.config())
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

// ways are the shapes in which servers answer over HTTP.
var ways = map[string]*sdk.StreamableHTTPOptions{
	"streams":   nil,
	"JSON":      {JSONResponse: true},
	"stateless": {Stateless: true},
}

func TestCallsOverHTTP(t *testing.T) {
	t.Parallel()
	for name, options := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, options).connect(t)
			out, err := call(t.Context(), t, s, "echo", `{"text": "hello"}`)
			require.NoError(t, err)
			require.Equal(t, `{"text":"hello"}`, out)
			out, err = call(t.Context(), t, s, "key", `{"n":1234567890123456789}`)
			require.NoError(t, err)
			require.JSONEq(t, `{"args":{"n":1234567890123456789},"id":9007199254740993,"key":"run-1/key"}`, out)
			require.Contains(t, out, "9007199254740993", "the digits are those of the server")
			for _, tc := range []struct {
				name  string
				fault agent.Fault
			}{{"fail", agent.FaultDefinite}, {"refuse", agent.FaultDefinite}, {"break", agent.FaultUnknown}} {
				_, err := call(t.Context(), t, s, tc.name, `{}`)
				require.Equal(t, tc.fault, failure(t, err).Fault, "%s: %v", tc.name, err)
			}
		})
	}
}

func TestCallOverHTTPIsCancelled(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).connect(t)
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := call(ctx, t, s, "wait", l.args())
		ended <- err
	}()
	require.Equal(t, "waiting", <-l.words)
	cancel()
	e := failure(t, <-ended)
	require.Equal(t, agent.CodeCancelled, e.Code)
	require.Equal(t, agent.FaultUnknown, e.Fault)
	require.Equal(t, "cancelled", <-l.words, "the server hears of it")
	out, err := call(t.Context(), t, s, "echo", `{"text": "still there"}`)
	require.NoError(t, err)
	require.Equal(t, `{"text":"still there"}`, out)
}

// hang lets calls wait for the end of their request; words come when one begins and when it ends.
func (s *site) hang() (words chan string) {
	words = make(chan string, 10)
	s.answer("tools/call", func(_ http.ResponseWriter, r *http.Request) {
		words <- "waiting"
		<-r.Context().Done()
		words <- "hung up"
	})
	return words
}

// Where there is no session, which a notification could name, the end of the request is what the server hears.
func TestCancelledCallHangsUp(t *testing.T) {
	t.Parallel()
	site := newSite(t, &sdk.StreamableHTTPOptions{Stateless: true})
	s := site.connect(t)
	words := site.hang()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := call(ctx, t, s, "echo", `{}`)
		ended <- err
	}()
	require.Equal(t, "waiting", <-words)
	cancel()
	require.Equal(t, agent.CodeCancelled, failure(t, <-ended).Code)
	require.Equal(t, "hung up", <-words)
}

func TestProgressOverHTTP(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).connect(t)
	l := listen(t)
	reports := make(chan string, 2)
	done := make(chan []string, 1)
	go func() {
		conn := <-l.conn
		defer conn.Close()
		var got []string
		for range 2 {
			got = append(got, <-reports)
			_, _ = io.WriteString(conn, "go on\n")
		}
		done <- got
	}()
	_, err := find(t, s, "progress").Call(t.Context(), tool.Call{Arguments: json.RawMessage(l.args()), Progress: func(m string) { reports <- m }})
	require.NoError(t, err)
	require.Equal(t, []string{"half way", "2 of 4"}, <-done)
}

func TestHeadersFromTheEnvironment(t *testing.T) {
	t.Setenv("RUNLEDGER_TEST_BEARER", "Bearer of a secret")
	site := newSite(t, nil)
	elsewhere := newSite(t, nil)
	cfg := site.config()
	cfg.HeadersEnv = map[string]string{"Authorization": "RUNLEDGER_TEST_BEARER"}
	site.answer("initialize", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer of a secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		(*site.handler.Load()).ServeHTTP(w, r)
	})
	s, err := Connect(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.NoError(t, err)
	require.Equal(t, "Bearer of a secret", site.seen.Load().Get("Authorization"), "calls carry it too")

	for value, message := range map[string]string{" \n": "is empty or holds", "a\nX-More: b": "is empty or holds"} {
		t.Setenv("RUNLEDGER_TEST_BEARER", value)
		_, err = Connect(t.Context(), cfg)
		require.ErrorContains(t, err, "headers_env: Authorization: the environment variable RUNLEDGER_TEST_BEARER "+message)
	}
	t.Setenv("RUNLEDGER_TEST_BEARER", "Bearer of a secret\n")

	_, err = Connect(t.Context(), site.config())
	require.ErrorContains(t, err, "Unauthorized")
	require.NotContains(t, err.Error(), "secret")

	// An answer that points elsewhere does not get the secret there.
	redirecting := newSite(t, nil)
	all := func(w http.ResponseWriter, r *http.Request, _ string) bool {
		http.Redirect(w, r, elsewhere.url, http.StatusTemporaryRedirect)
		return true
	}
	redirecting.instead.Store(&all)
	cfg.URL = redirecting.url
	_, err = Connect(t.Context(), cfg)
	require.Error(t, err)
	require.Nil(t, elsewhere.seen.Load())
}

func TestWhatAStatusSaysOfACall(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]agent.Fault{
		400: agent.FaultDefinite, 401: agent.FaultDefinite, 403: agent.FaultDefinite, 408: agent.FaultUnknown, 409: agent.FaultUnknown,
		425: agent.FaultUnknown, 429: agent.FaultUnknown, 500: agent.FaultUnknown, 503: agent.FaultUnknown,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			site := newSite(t, nil)
			s := site.connect(t)
			site.answer("tools/call", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(status)
			})
			_, err := call(t.Context(), t, s, "echo", `{}`)
			e := failure(t, err)
			require.Equal(t, want, e.Fault, "%v", err)
			require.Equal(t, "fake/echo: the server answered with status "+strconv.Itoa(status), e.Message)
			require.Equal(t, 7*time.Second, e.RetryAfter)
		})
	}
}

// An answer that breaks off leaves open what became of the call.
func TestAnswerOverHTTPBreaksOff(t *testing.T) {
	t.Parallel()
	for kind, begin := range map[string]string{"application/json": `{"jsonrpc": "2.0", `, "text/event-stream": "data: {\"jsonrpc\""} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			site := newSite(t, nil)
			s := site.connect(t)
			site.answer("tools/call", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				_, _ = io.WriteString(w, begin)
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			_, err := call(t.Context(), t, s, "echo", `{}`)
			require.Equal(t, agent.FaultUnknown, failure(t, err).Fault, "%v", err)
			site.instead.Store(nil)
			_, err = call(t.Context(), t, s, "echo", `{}`)
			require.NoError(t, err)
		})
	}
}

// A server that was started again does not know the session: the call that finds that out is made in a new one.
func TestSessionOverHTTPIsForgotten(t *testing.T) {
	t.Parallel()
	site := newSite(t, nil)
	s := site.connect(t)
	_, err := call(t.Context(), t, s, "grow", `{"text": "before"}`)
	require.NoError(t, err)
	site.restart(nil)
	out, err := call(t.Context(), t, s, "echo", `{"text": "new"}`)
	require.NoError(t, err)
	require.Equal(t, `{"text":"new"}`, out)
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	fake := newFake(&plug{})
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return fake }, nil)}}
	server.Start()
	t.Cleanup(func() { endSessions(fake); server.Close() })
	s, err := Connect(t.Context(), Config{Name: "fake", URL: server.URL + "/?key=secret", grace: 100 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	server.CloseClientConnections()
	server.Close()
	s.current.remote.pool.CloseIdleConnections() // else the first call may be written before its end shows
	_, err = call(t.Context(), t, s, "echo", `{}`)
	e := failure(t, err)
	require.Equal(t, agent.FaultTransient, e.Fault, "%v", err)
	require.NotContains(t, e.Message, "secret", "errors go on record")
}

func TestCloseOverHTTP(t *testing.T) {
	t.Parallel()
	site := newSite(t, nil)
	s := site.connect(t)
	words := site.hang()
	ended := make(chan error, 1)
	go func() {
		_, err := call(t.Context(), t, s, "echo", `{}`)
		ended <- err
	}()
	require.Equal(t, "waiting", <-words)
	s.Close()
	require.Equal(t, agent.FaultUnknown, failure(t, <-ended).Fault)
	s.Close()
	_, err := call(t.Context(), t, s, "echo", `{}`)
	require.ErrorIs(t, err, errClosed)
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "x": 0, "-1": 0, "3": 3 * time.Second, "99999999999": time.Hour, now.Add(time.Minute).Format(http.TimeFormat): time.Minute,
		now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		require.Equal(t, want, retryAfter(value, now), value)
	}
}
