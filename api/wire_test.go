package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
)

// What a recorder cannot show is shown here, over real connections: that first bytes come at once, that wrappers let flushes and
// deadlines through, and that what holds for HTTP/1.1 holds for HTTP/2.

// wire is an API behind the server that it is served with.
type wire struct {
	*bench
	server *httptest.Server
	client *http.Client
	proto  int
	// conns counts the connections that were made, handled is sent to after each request that was answered.
	conns   atomic.Int64
	handled chan string
}

// overTheWire runs a test by each protocol.
func overTheWire(t *testing.T, test func(t *testing.T, x *wire), change ...func(*Config)) {
	for proto := 1; proto <= 2; proto++ {
		t.Run(fmt.Sprintf("HTTP/%d", proto), func(t *testing.T) {
			t.Parallel()
			test(t, newWire(t, proto, change...))
		})
	}
}

func newWire(t testing.TB, proto int, change ...func(*Config)) *wire {
	x := &wire{bench: newBench(t, change...), proto: proto, handled: make(chan string, 1000)}
	server := x.api.NewServer()
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { x.handled <- r.URL.Path }()
		x.api.ServeHTTP(w, r)
	})
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			x.conns.Add(1)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	x.server = &httptest.Server{Listener: listener, Config: server}
	x.server.Start()
	x.client = speaking(proto)
	t.Cleanup(func() {
		x.api.Drain()
		x.client.CloseIdleConnections()
		x.server.Close()
	})
	return x
}

// speaking is a client that speaks one protocol and asks for nothing by itself.
func speaking(proto int) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(proto == 1)
	protocols.SetUnencryptedHTTP2(proto == 2)
	return &http.Client{Transport: &http.Transport{Protocols: protocols, DisableCompression: true}}
}

// ask sends a request, with a context of its own that the answer's body needs.
func (x *wire) ask(method, path, body string, headers ...string) (*http.Response, context.CancelFunc) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), 30*time.Second)
	r, err := http.NewRequestWithContext(ctx, method, x.server.URL+path, strings.NewReader(body))
	require.NoError(x.t, err)
	r.Header = request(method, path, body, headers...).Header
	res, err := x.client.Do(r)
	require.NoError(x.t, err)
	require.Equal(x.t, x.proto, res.ProtoMajor)
	x.t.Cleanup(func() { cancel(); _ = res.Body.Close() })
	return res, cancel
}

// stream asks for a stream and gives its body, behind the bytes that come at once.
func (x *wire) stream(path string, headers ...string) (*bufio.Reader, *http.Response, context.CancelFunc) {
	x.t.Helper()
	res, cancel := x.ask("GET", path, "", append([]string{"Accept: text/event-stream"}, headers...)...)
	require.Equal(x.t, 200, res.StatusCode)
	in := bufio.NewReader(res.Body)
	x.opening(in)
	return in, res, cancel
}

const padded = 2048

// padding reads a comment that is long enough to get through a proxy's buffer.
func (x *wire) padding(in *bufio.Reader) {
	x.t.Helper()
	line, err := in.ReadString('\n')
	require.NoError(x.t, err)
	require.True(x.t, strings.HasPrefix(line, ":"), line)
	require.Greater(x.t, len(line), padded)
	line, err = in.ReadString('\n')
	require.NoError(x.t, err)
	require.Equal(x.t, "\n", line)
}

func (x *wire) opening(in *bufio.Reader) {
	x.t.Helper()
	x.padding(in)
	line, err := in.ReadString('\n')
	require.NoError(x.t, err)
	require.Equal(x.t, "retry: 1000\n", line)
	_, err = in.ReadString('\n')
	require.NoError(x.t, err)
}

// rest reads a stream to its end, which has to be one: not a broken connection.
func (x *wire) rest(in io.Reader) []frame {
	x.t.Helper()
	raw, err := io.ReadAll(in)
	require.NoError(x.t, err)
	return parseFrames(x.t, string(raw))
}

func runEvents(run agent.Run) string { return "/api/v1/agent/runs/" + run.RunID + "/events" }

func TestStreamsOverTheWire(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		run := x.ledger.seed(t, "local", "")
		in, res, _ := x.stream(runEvents(run), "Accept-Encoding: gzip, br, deflate")
		require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
		require.Equal(t, "no-cache, no-transform", res.Header.Get("Cache-Control"))
		require.Equal(t, "no", res.Header.Get("X-Accel-Buffering"))
		require.Empty(t, res.Header.Get("Content-Encoding"), "a stream is never compressed")
		require.Empty(t, res.Header.Get("Content-Length"))
		readUntil(t, in, "event: message_added")
		x.ledger.write(run.RunID, agent.Event{Type: agent.PlanStarted}, agent.PlanStartedData{Source: "planner"})
		readUntil(t, in, "event: plan_started")
		x.ledger.end(run.RunID, agent.Completed)
		readUntil(t, in, "event: run_completed")
		require.Empty(t, x.rest(in)[1:], "only the data of the last frame is left")

		for path, header := range map[string]string{runEvents(run): "Last-Event-ID: 4", runEvents(run) + "?after=4": "", runEvents(run) + "?from_sequence=5": "",
			"/api/v1/agent/conversations/" + run.ConversationID + "/events?until=idle&after=4": ""} {
			res, _ := x.ask("GET", path, "", "Accept: text/event-stream", header)
			require.Equal(t, 204, res.StatusCode, "an EventSource is told to stay away: %s", path)
			raw, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Empty(t, raw)
		}
		in, _, _ = x.stream(runEvents(run)+"?from_sequence=1", "Last-Event-ID: 3")
		require.Equal(t, []string{"4"}, ids(x.rest(in)), "the header wins")
	})
}

// The stream of a POST names its GET twin, which goes on where the connection broke. Breaking it does not touch the run.
func TestPostStreamOverTheWire(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/api/v1/agent/run/stream": `{"input":"x"}`, "/api/v1/agent/chat": `{"message":"x"}`} {
		overTheWire(t, func(t *testing.T, x *wire) {
			res, leave := x.ask("POST", path+"?profile=react", body)
			in := bufio.NewReader(res.Body)
			x.opening(in)
			readUntil(t, in, "event: run_started")
			twin := res.Header.Get("Content-Location")
			run := x.ledger.runs[x.lastRun()].Run
			require.Equal(t, runEvents(run)+"?profile=react", twin)
			leave()
			require.Equal(t, path, <-x.handled)
			require.Empty(t, x.ledger.cancels)
			require.Equal(t, agent.Queued, x.ledger.runs[run.RunID].Status)
			require.Empty(t, x.ledger.watchers)
			x.ledger.end(run.RunID, agent.Completed)
			in, _, _ = x.stream(twin, "Last-Event-ID: 1")
			require.Equal(t, []string{"message_added", "complete"}, names(x.rest(in)))
		})
	}
}

func TestRefusedStreamsOverTheWire(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		run, foreign := x.ledger.seed(t, "a", ""), x.ledger.seed(t, "b", "")
		for range 6 {
			x.ledger.write(run.RunID, agent.Event{Type: agent.Progress}, struct{}{})
		}
		x.ledger.conversations[run.ConversationID].oldest = 5
		for name, tc := range map[string]struct {
			path, header string
			status       int
			kind         string
		}{
			"gone by id":        {runEvents(run), "Last-Event-ID: 3", 410, "position-gone"},
			"gone by query":     {runEvents(run) + "?from_sequence=4", "", 410, "position-gone"},
			"no number":         {runEvents(run), "Last-Event-ID: x", 400, "invalid-position"},
			"beyond":            {runEvents(run) + "?after=9", "", 400, "invalid-position"},
			"no profile":        {runEvents(run) + "?profile=dream", "", 400, "invalid-parameter"},
			"of another":        {runEvents(foreign), "", 404, "not-found"},
			"nobody's":          {"/api/v1/agent/runs/0192f0c8-0000-7000-8000-000000000000/events", "", 404, "not-found"},
			"of another thread": {"/api/v1/agent/conversations/" + foreign.ConversationID + "/events", "", 404, "not-found"},
			"not for users":     {runEvents(run) + "?profile=ledger", "", 403, "operator-role-needed"},
			"no token":          {runEvents(run), "Authorization: Bearer x", 401, "token-needed"},
		} {
			res, _ := x.ask("GET", tc.path, "", bearer("a", auth.User), "Accept: text/event-stream", tc.header)
			require.Equal(t, tc.status, res.StatusCode, name)
			require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"), name)
			var p problem
			require.NoError(t, json.NewDecoder(res.Body).Decode(&p))
			require.Equal(t, "/problems/"+tc.kind, p.Type, name)
			if tc.status == 410 {
				require.EqualValues(t, 5, p.OldestSequence)
			}
		}
		in, _, _ := x.stream(runEvents(run), bearer("a", auth.User), "Last-Event-ID: 4")
		readUntil(t, in, "id: 5")
	}, withTokens)
}

// A deadline is of a write. One that stayed behind would end the stream between two heartbeats, by HTTP/2 whether something is being
// written or not.
func TestHeartbeatsOverTheWire(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		run := x.ledger.seed(t, "local", "")
		in, _, _ := x.stream(runEvents(run) + "?after=2")
		for range 3 {
			x.padding(in)
		}
		x.ledger.end(run.RunID, agent.Completed)
		require.Equal(t, []string{"3"}, ids(x.rest(in)))
	}, func(c *Config) {
		c.Streams.WriteTimeout, c.Streams.Heartbeat = 400*time.Millisecond, 600*time.Millisecond
	})
}

// A client that takes nothing is cut off, so that it sees that frames are missing. Others go on, those on its connection too.
func TestWriteDeadlinesOverTheWire(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		large, other := x.ledger.seed(t, "local", ""), x.ledger.seed(t, "local", "")
		message := strings.Repeat("x", 64<<10)
		for range 220 { // 14 MB, more than sockets and windows hold
			x.ledger.write(large.RunID, agent.Event{Type: agent.Progress}, map[string]string{"message": message})
		}
		in, _, _ := x.stream(runEvents(other))
		readUntil(t, in, "event: message_added")
		res, _ := x.ask("GET", runEvents(large), "", "Accept: text/event-stream")
		require.Equal(t, runEvents(large), <-x.handled)
		raw, err := io.ReadAll(res.Body)
		require.Error(t, err, "%d bytes", len(raw))
		require.False(t, errors.Is(err, context.DeadlineExceeded), "by the server: %v", err)
		x.ledger.end(other.RunID, agent.Completed)
		frames := x.rest(in)
		require.Equal(t, "run_completed", frames[len(frames)-1].event)
		if x.proto == 2 {
			require.EqualValues(t, 1, x.conns.Load())
		}
	}, func(c *Config) { c.Streams.WriteTimeout = 300 * time.Millisecond })
}

func TestTooManyStreamsOverTheWire(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		a, b := x.ledger.seed(t, "a", ""), x.ledger.seed(t, "b", "")
		_, _, leave := x.stream(runEvents(a), bearer("a", auth.User))
		x.stream(runEvents(a), bearer("a", auth.User))
		res, _ := x.ask("GET", runEvents(a), "", bearer("a", auth.User), "Accept: text/event-stream")
		require.Equal(t, 429, res.StatusCode)
		require.Equal(t, "5", res.Header.Get("Retry-After"))
		require.Equal(t, runEvents(a), <-x.handled)
		x.stream(runEvents(b), bearer("b", auth.User)) // who is another client
		leave()
		require.Equal(t, runEvents(a), <-x.handled)
		x.stream(runEvents(a), bearer("a", auth.User))
	}, withTokens, func(c *Config) { c.MaxStreams = 2 })
}

func TestShutdownOverTheWire(t *testing.T) {
	t.Parallel()
	overTheWire(t, func(t *testing.T, x *wire) {
		run := x.ledger.seed(t, "local", "")
		in, _, _ := x.stream(runEvents(run))
		readUntil(t, in, "event: message_added")
		require.NoError(t, x.server.Config.Shutdown(t.Context()), "streams end with the server")
		raw, err := io.ReadAll(in)
		require.NoError(t, err, "and the body is whole")
		require.Regexp(t, `\n\nretry: [1-5][0-9]{3}\n\n$`, string(raw), "with a time to come back at")
		require.Equal(t, agent.Queued, x.ledger.runs[run.RunID].Status)
	})
}

// A browser has six connections to a host by HTTP/1.1. By HTTP/2 it needs one for all its streams.
func TestManyStreamsOnOneConnection(t *testing.T) {
	t.Parallel()
	x := newWire(t, 2)
	run := x.ledger.seed(t, "local", "")
	streams := make([]*bufio.Reader, 100)
	for i := range streams {
		streams[i], _, _ = x.stream(runEvents(run))
	}
	x.ledger.end(run.RunID, agent.Completed)
	for _, in := range streams {
		require.Equal(t, []string{"1", "2", "3"}, ids(x.rest(in)))
	}
	require.EqualValues(t, 1, x.conns.Load())
}
