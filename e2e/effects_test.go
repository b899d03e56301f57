package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"runledger/internal/stacktest"
)

// effects is a server that does what tools ask for and counts it by idempotency key. Paths below /hold/ wait until they
// are released, so that a test can break things while an effect is at work. Paths below /broken/ are refused until they are
// mended; of those below /lost/ nobody learns that they took place.
type effects struct {
	*httptest.Server
	mu      sync.Mutex
	calls   map[string]int
	paths   map[string][]string // what was asked for, by idempotency key
	holding chan string
	gone    chan string // those whose caller went away while they were held
	release chan struct{}
	once    sync.Once
	mended  atomic.Bool
}

func startEffects(t testing.TB) *effects {
	t.Helper()
	e := &effects{calls: map[string]int{}, paths: map[string][]string{}, holding: make(chan string, 1024), gone: make(chan string, 1024), release: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/do/{what}", func(w http.ResponseWriter, r *http.Request) { e.answer(w, r) })
	mux.HandleFunc("/hold/{what}", func(w http.ResponseWriter, r *http.Request) {
		e.holding <- r.Header.Get("Idempotency-Key")
		select {
		case <-e.release:
		case <-r.Context().Done():
			e.gone <- r.Header.Get("Idempotency-Key")
			return
		}
		e.answer(w, r)
	})
	mux.HandleFunc("/busy", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/broken/{what}", func(w http.ResponseWriter, r *http.Request) {
		if !e.mended.Load() {
			http.Error(w, `{"error": "broken"}`, http.StatusBadRequest)
			return
		}
		e.answer(w, r)
	})
	mux.HandleFunc("/lost/{what}", func(_ http.ResponseWriter, r *http.Request) {
		e.note(r)
		panic(http.ErrAbortHandler) // the connection ends instead of the answer
	})
	e.Server = httptest.NewServer(mux)
	t.Cleanup(func() { e.letGo(); e.Close() })
	return e
}

func (e *effects) note(r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	e.calls[key]++
	e.paths[key] = append(e.paths[key], r.Method+" "+r.URL.Path)
}

func (e *effects) answer(w http.ResponseWriter, r *http.Request) {
	e.note(r)
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"did": %q}`, r.PathValue("what"))
}

// letGo releases what is held, now and later.
func (e *effects) letGo() { e.once.Do(func() { close(e.release) }) }

func (e *effects) count(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[key]
}

// did is what was asked for under an idempotency key.
func (e *effects) did(key string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.paths[key]
}

// held waits until an effect is at work and returns its idempotency key.
func (e *effects) held(t testing.TB) string {
	t.Helper()
	return stacktest.Receive(t, e.holding, "no effect arrives")
}

// abandoned waits until the server knows that the caller of an effect has gone, so that it does not take place.
func (e *effects) abandoned(t testing.TB) {
	t.Helper()
	stacktest.Receive(t, e.gone, "the caller of the effect does not go")
}

// get is a node that asks the server for something.
func (e *effects) get(id, path string, dependsOn ...string) object {
	return object{"id": id, "kind": "tool", "tool": "http_request", "depends_on": dependsOn,
		"args": object{"method": "GET", "url": e.URL + path}}
}

// send is a node that lets the server do something that must not be done twice.
func (e *effects) send(id, path string, dependsOn ...string) object {
	node := e.get(id, path, dependsOn...)
	node["args"].(object)["method"] = "POST"
	return node
}
