package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"runledger/agent"
	"runledger/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeAPI is an API over logs in memory, which breaks as it is told to.
type fakeAPI struct {
	mu      sync.Mutex
	logs    map[string]*fakeLog
	changed chan struct{}
	// refuse answers a request in the API's stead, when it is set and says true.
	refuse func(w http.ResponseWriter, r *http.Request) bool
	asked  []string
}

// fakeLog is a conversation. Its stream breaks off after each of cuts frames in turn, and ends when the log is idle.
type fakeLog struct {
	events []agent.Event
	oldest int64
	idle   bool
	cuts   []int
	// joins are frames that a stream begins with, after what is missing.
	joins [][]byte
}

func startFake(t testing.TB) (*fakeAPI, *Client) {
	f := &fakeAPI{logs: map[string]*fakeLog{}, changed: make(chan struct{})}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return f, &Client{URL: server.URL, HTTP: &http.Client{Transport: transport}}
}

func (f *fakeAPI) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// add appends events to a conversation.
func (f *fakeAPI) add(id string, events ...agent.Event) {
	f.change(func() {
		log := f.logs[id]
		if log == nil {
			log = &fakeLog{oldest: 1}
			f.logs[id] = log
		}
		for _, e := range events {
			e.Sequence, e.ConversationID = int64(len(log.events)+1), id
			if e.Data == nil {
				e.Data = json.RawMessage(`{}`)
			}
			log.events = append(log.events, e)
		}
	})
}

// numbers are n events that say nothing.
func numbers(n int) []agent.Event {
	events := make([]agent.Event, n)
	for i := range events {
		events[i] = agent.Event{Type: agent.Progress, RunID: "r", Data: json.RawMessage(fmt.Sprintf(`{"i":%d}`, i))}
	}
	return events
}

func (f *fakeAPI) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, strings.TrimPrefix(r.URL.Path, apiPath)+" "+r.Header.Get("Accept")+" "+r.URL.RawQuery)
	refuse := f.refuse
	f.mu.Unlock()
	if refuse != nil && refuse(w, r) {
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, apiPath+"/conversations/"), "/")
	f.mu.Lock()
	log := f.logs[parts[0]]
	f.mu.Unlock()
	if log == nil || len(parts) != 2 {
		problem(w, 404, `{"type":"/problems/not-found","detail":"there is no such conversation"}`)
		return
	}
	switch {
	case parts[1] == "execution-status":
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = json.NewEncoder(w).Encode(agent.ExecutionStatus{IsRunning: !log.idle, LastSequence: int64(len(log.events))})
	case r.Header.Get("Accept") == "text/event-stream":
		f.stream(w, r, log)
	default:
		f.page(w, r, log)
	}
}

func problem(w http.ResponseWriter, status int, document string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, document)
}

// position answers 410 when what is asked for is gone.
func (f *fakeAPI) position(w http.ResponseWriter, r *http.Request, log *fakeLog) (next int64, ok bool) {
	next, _ = strconv.ParseInt(r.URL.Query().Get("from_sequence"), 10, 64)
	f.mu.Lock()
	oldest := log.oldest
	f.mu.Unlock()
	if next > 0 && next < oldest {
		problem(w, 410, fmt.Sprintf(`{"type":"/problems/position-gone","detail":"gone","oldest_sequence":%d}`, oldest))
		return 0, false
	}
	return max(next, oldest), true
}

func (f *fakeAPI) page(w http.ResponseWriter, r *http.Request, log *fakeLog) {
	next, ok := f.position(w, r, log)
	if !ok {
		return
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	f.mu.Lock()
	defer f.mu.Unlock()
	rest := log.events[min(int(next)-1, len(log.events)):]
	shown := rest[:min(limit, len(rest))]
	objects := make([]json.RawMessage, len(shown))
	for i, e := range shown {
		objects[i] = sse.EncodeEvent(e)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"events": objects, "has_more": len(rest) > limit})
}

func (f *fakeAPI) stream(w http.ResponseWriter, r *http.Request, log *fakeLog) {
	next, ok := f.position(w, r, log)
	if !ok {
		return
	}
	f.mu.Lock()
	if log.idle && int(next) > len(log.events) {
		f.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	cut := -1
	if len(log.cuts) > 0 {
		cut, log.cuts = log.cuts[0], log.cuts[1:]
	}
	joins := log.joins
	f.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write(append(sse.AppendComment(nil, "hello"), sse.AppendRetry(nil, time.Millisecond)...))
	for sent := 0; ; {
		f.mu.Lock()
		changed, idle := f.changed, log.idle
		var rest []agent.Event
		if int(next) <= len(log.events) {
			rest = log.events[next-1:]
		}
		f.mu.Unlock()
		for _, e := range rest {
			encoded := sse.AppendFrame(nil, sse.Frame{ID: e.Sequence, Event: string(e.Type), Data: sse.EncodeEvent(e)})
			if sent == cut {
				_, _ = w.Write(encoded[:len(encoded)/2])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(encoded)
			sent++
			next = e.Sequence + 1
		}
		for _, j := range joins {
			_, _ = w.Write(j)
		}
		joins = nil
		if idle {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// reader keeps what a follower gives.
type reader struct {
	numbers []int64
	outputs []Output
	status  *agent.ExecutionStatus
	live    int
	oldest  []int64
}

func (r *reader) take(t testing.TB, u Update) {
	t.Helper()
	if u.Status != nil {
		require.Nil(t, r.status, "the status comes once")
		r.status = u.Status
	}
	if u.Event != nil {
		require.NotEmpty(t, u.Event.Raw)
		r.numbers = append(r.numbers, u.Event.Sequence)
	}
	if u.Output != nil {
		r.outputs = append(r.outputs, *u.Output)
	}
	if u.Live {
		r.live++
	}
	if u.Oldest > 0 {
		r.oldest = append(r.oldest, u.Oldest)
	}
}

// consecutive requires the numbers from first to last, each once.
func consecutive(t testing.TB, got []int64, first, last int64) {
	t.Helper()
	var want []int64
	for n := first; n <= last; n++ {
		want = append(want, n)
	}
	require.Equal(t, want, got)
}
