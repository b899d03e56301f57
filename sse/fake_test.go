package sse

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// fakeLog is a ledger in memory. Its hooks run before a read answers, so that a test can put a commit where it hurts.
type fakeLog struct {
	mu          sync.Mutex
	events      []agent.Event
	open        map[string]bool
	chunks      []agent.OutputChunk
	watchers    map[*func(string)]struct{}
	failure     error
	reads       int
	afterExtent func()
	afterOutput func()
	afterEvents func()
}

func newFakeLog() *fakeLog {
	return &fakeLog{open: map[string]bool{}, watchers: map[*func(string)]struct{}{}}
}

// write commits events of a run without waking anybody.
func (l *fakeLog) write(runID string, kinds ...agent.EventType) {
	l.mu.Lock()
	defer l.mu.Unlock()
	root := runID
	if runID == "child" {
		root = "r"
	}
	for _, kind := range kinds {
		n := int64(len(l.events) + 1)
		switch {
		case kind.Terminal():
			l.open[runID] = false
		case kind == agent.RunStarted || kind == agent.RunReopened:
			l.open[runID] = true
		}
		l.events = append(l.events, agent.Event{Sequence: n, Type: kind, ConversationID: "c", RunID: runID, RootRunID: root,
			CommandID: "say", Attempt: 1, CreatedAt: time.Date(2026, 11, 20, 0, 0, int(n), 0, time.UTC),
			Data: json.RawMessage(fmt.Sprintf(`{"kind":"llm","reason":"event %d"}`, n))})
	}
}

func (l *fakeLog) wake() {
	l.mu.Lock()
	watchers := slices.Collect(maps.Keys(l.watchers))
	l.mu.Unlock()
	for _, news := range watchers {
		(*news)("c")
	}
}

func (l *fakeLog) publish(runID string, kinds ...agent.EventType) {
	l.write(runID, kinds...)
	l.wake()
}

func (l *fakeLog) say(attempt, chunk int, channel, text string) {
	l.mu.Lock()
	l.chunks = append(l.chunks, agent.OutputChunk{ConversationID: "c", RunID: "r", RootRunID: "r", NodeID: "say", CommandID: "say",
		Attempt: attempt, Chunk: chunk, Channel: channel, Text: text})
	l.mu.Unlock()
	l.wake()
}

func (l *fakeLog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chunks = nil
}

func (l *fakeLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

// watched is how many watch the log.
func (l *fakeLog) watched() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watchers)
}

func (l *fakeLog) Watch(news func(string)) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[&news] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, &news)
	}
}

func inScope(scope agent.LogScope, e agent.Event) bool {
	return scope.RunID == "" || e.RunID == scope.RunID || e.RootRunID == scope.RunID
}

func (l *fakeLog) Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error) {
	defer runHook(l.afterEvents)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if err := firstError(ctx.Err(), l.failure); err != nil {
		return nil, err
	}
	var page []agent.Event
	for _, e := range l.events {
		if e.Sequence > after && inScope(scope, e) && len(page) < limit {
			page = append(page, e)
		}
	}
	return page, nil
}

func (l *fakeLog) Extent(ctx context.Context, scope agent.LogScope) (agent.Extent, error) {
	defer runHook(l.afterExtent)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := firstError(ctx.Err(), l.failure); err != nil {
		return agent.Extent{}, err
	}
	x := agent.Extent{Last: int64(len(l.events)), Oldest: min(int64(len(l.events)), 1)}
	for _, e := range l.events {
		if inScope(scope, e) {
			x.LastInScope = e.Sequence
		}
	}
	for run, open := range l.open {
		x.Open = x.Open || open && (scope.RunID == "" || run == scope.RunID)
	}
	return x, nil
}

func (l *fakeLog) News(ctx context.Context, from []agent.LogCursor, limit int) ([]agent.LogNews, error) {
	news := make([]agent.LogNews, len(from))
	for i, c := range from {
		if c.ConversationID != "c" {
			continue
		}
		var err error
		if c.Output {
			if news[i].Output, err = l.output(ctx, c.Have); err != nil {
				return nil, err
			}
		}
		if news[i].Events, err = l.Events(ctx, agent.LogScope{ConversationID: "c"}, c.After, limit); err != nil {
			return nil, err
		}
	}
	return news, nil
}

func (l *fakeLog) output(ctx context.Context, have []agent.OutputCursor) ([]agent.OutputChunk, error) {
	defer runHook(l.afterOutput)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := firstError(ctx.Err(), l.failure); err != nil {
		return nil, err
	}
	var news []agent.OutputChunk
	for _, c := range l.chunks {
		beyond := true
		for _, h := range have {
			if h.RunID == c.RunID && h.CommandID == c.CommandID {
				beyond = c.Attempt > h.Attempt || c.Attempt == h.Attempt && c.Chunk > h.Chunk
			}
		}
		if beyond {
			news = append(news, c)
		}
	}
	return news, nil
}

func runHook(hook func()) {
	if hook != nil {
		hook()
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// fakeClient is a connection: it takes what is written when it likes, and honours write deadlines as a socket does.
type fakeClient struct {
	header   http.Header
	mu       sync.Mutex
	status   int
	body     bytes.Buffer
	flushed  int
	writes   int
	deadline time.Time
	// takes is how long it takes to send what was written.
	takes time.Duration
}

func newFakeClient() *fakeClient { return &fakeClient{header: http.Header{}} }

func (c *fakeClient) Header() http.Header { return c.header }

func (c *fakeClient) WriteHeader(status int) { c.status = status }

func (c *fakeClient) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = at
	return nil
}

func (c *fakeClient) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline.IsZero() {
		return 0, fmt.Errorf("a write without a deadline")
	}
	return c.body.Write(b)
}

func (c *fakeClient) FlushError() error {
	c.mu.Lock()
	takes, left := c.takes, time.Until(c.deadline)
	c.mu.Unlock()
	if takes > left {
		<-time.After(left)
		return fmt.Errorf("write tcp: %w", os.ErrDeadlineExceeded)
	}
	if takes > 0 {
		<-time.After(takes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	c.flushed = c.body.Len()
	return nil
}

// received is what has been flushed to the client so far.
func (c *fakeClient) received() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.body.Bytes()[:c.flushed])
}

// opening is what every stream begins with.
func opening() string {
	return ": " + strings.Repeat(" ", 2048) + "\n\nretry: 1000\n\n"
}

func heartbeat() string { return ": " + strings.Repeat(" ", 2048) + "\n\n" }

// frames is what the client has got after the opening, without heartbeats.
func (c *fakeClient) frames(t testing.TB) string {
	t.Helper()
	rest, ok := strings.CutPrefix(c.received(), opening())
	require.True(t, ok, "a stream begins with its opening")
	return strings.ReplaceAll(rest, heartbeat(), "")
}

// ids are the event ids that the client has got, in order.
func (c *fakeClient) ids(t testing.TB) []string {
	t.Helper()
	var ids []string
	for _, line := range strings.Split(c.frames(t), "\n") {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// following is one stream at work.
type following struct {
	*fakeClient
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func runScope() agent.LogScope { return agent.LogScope{ConversationID: "c", RunID: "r"} }

func newServer(t testing.TB, log Log, change ...func(*Config)) *Server {
	t.Helper()
	cfg := Config{Log: log}
	for _, c := range change {
		c(&cfg)
	}
	s, err := NewServer(cfg)
	require.NoError(t, err)
	return s
}

// follow starts a stream. It ends with the test at the latest.
func follow(t testing.TB, s *Server, req Request, client *fakeClient) *following {
	t.Helper()
	if req.Profile.Name == "" {
		req.Profile = runProfile()
	}
	if req.Extent == (agent.Extent{}) {
		var err error
		req.Extent, err = s.cfg.Log.Extent(context.Background(), req.Scope)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &following{fakeClient: client, cancel: cancel, done: make(chan struct{})}
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	go func() {
		defer close(f.done)
		f.err = s.Serve(client, r, &req)
	}()
	t.Cleanup(func() {
		cancel()
		<-f.done
	})
	return f
}

// ended reports whether the stream is over; err is its result then.
func (f *following) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
