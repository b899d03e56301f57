package sse

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// serveHTTP runs a real server for one scope. results has what each stream ended with.
func serveHTTP(t *testing.T, log Log, change ...func(*Config)) (srv *httptest.Server, s *Server, results chan error) {
	t.Helper()
	s = newServer(t, log, change...)
	results = make(chan error, 8)
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		results <- s.Serve(w, r, &Request{Scope: runScope(), Profile: runProfile()})
	}))
	t.Cleanup(func() { s.Drain(); srv.Close() })
	return srv, s, results
}

func get(t *testing.T, ctx context.Context, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	res, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// readUntil reads up to and including the frame that holds what.
func readUntil(t *testing.T, r *bufio.Reader, what string) string {
	t.Helper()
	var got strings.Builder
	for {
		line, err := r.ReadString('\n')
		require.NoError(t, err, "after %q", got.String())
		got.WriteString(line)
		if line == "\n" && strings.Contains(got.String(), what) {
			return got.String()
		}
	}
}

func TestOverHTTP(t *testing.T) {
	t.Parallel()
	log := newFakeLog()
	srv, _, results := serveHTTP(t, log)
	log.write("r", agent.RunStarted)
	res := get(t, t.Context(), srv.URL)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	body := bufio.NewReader(res.Body)
	require.Equal(t, opening(), readUntil(t, body, "retry: "))
	require.True(t, strings.HasPrefix(readUntil(t, body, "run_started"), "id: 1\nevent: run_started\n"))
	log.publish("r", agent.MessageAdded)
	require.True(t, strings.HasPrefix(readUntil(t, body, "message_added"), "id: 2\n"))
	log.publish("r", agent.RunCompleted)
	rest, err := io.ReadAll(body)
	require.NoError(t, err, "the body ends as it should")
	require.True(t, strings.HasPrefix(string(rest), "id: 3\nevent: run_completed\n"))
	require.NoError(t, <-results)
}

func TestDrainOverHTTPEndsTheBody(t *testing.T) {
	t.Parallel()
	log := newFakeLog()
	log.write("r", agent.RunStarted)
	srv, s, results := serveHTTP(t, log)
	body := bufio.NewReader(get(t, t.Context(), srv.URL).Body)
	readUntil(t, body, "run_started")
	s.Drain()
	rest, err := io.ReadAll(body)
	require.NoError(t, err)
	require.Regexp(t, `^retry: [1-4][0-9]{3}\n\n$`, string(rest), "when to come back")
	require.NoError(t, <-results)
}

func TestClientOverHTTPGoesAway(t *testing.T) {
	t.Parallel()
	log := newFakeLog()
	log.write("r", agent.RunStarted)
	srv, _, results := serveHTTP(t, log)
	ctx, cancel := context.WithCancel(t.Context())
	body := bufio.NewReader(get(t, ctx, srv.URL).Body)
	readUntil(t, body, "run_started")
	cancel()
	require.NoError(t, <-results)
	require.Zero(t, log.watched())
}

func TestSocketThatIsNotReadIsCutOff(t *testing.T) {
	t.Parallel()
	log := newFakeLog()
	for i := range 1000 { // 32 MB, more than two socket buffers hold
		log.write("r", agent.Progress)
		log.events[i].Data = json.RawMessage(`{"message":"` + strings.Repeat("x", 32<<10) + `"}`)
	}
	srv, _, results := serveHTTP(t, log, func(c *Config) { c.WriteTimeout = 200 * time.Millisecond })
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	// The result is ErrClient, or nil where net/http has given the connection up, and cancelled the request, first.
	if err := <-results; err != nil {
		require.True(t, errors.Is(err, ErrClient), "%v", err)
	}
	require.Zero(t, log.watched())
}
