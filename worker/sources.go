package worker

import (
	"bytes"
	"crypto/rand"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"runledger/workflows"
)

// WatchSources lets strict workers see two raw sources in workflow code: UUIDs of github.com/google/uuid, and requests
// through [http.DefaultTransport], which [http.Get] and the like use. It changes both for the whole process, and neither can
// be changed while in use: call it first thing in main. Outside of workflow code it costs some microseconds per request or
// UUID and changes nothing. The second call does nothing.
//
// What nobody can see at run time is left to workflowcheck: [time.Now], math/rand, other HTTP clients, goroutines and maps.
// crypto/rand.Reader is left alone: every TLS handshake of the process depends on it.
func WatchSources() {
	watchSources()
}

var watchSources = sync.OnceFunc(func() {
	uuid.SetRand(watchedRand{})
	if transport, ok := http.DefaultTransport.(*http.Transport); ok {
		proxy := transport.Proxy
		// The one hook of a transport that every request passes on the goroutine of its caller.
		transport.Proxy = func(req *http.Request) (*url.URL, error) {
			if err := refuseSource("an HTTP request through http.DefaultTransport"); err != nil {
				return nil, err
			}
			if proxy == nil {
				return nil, nil
			}
			return proxy(req)
		}
	}
})

// watchedRand is the operating system's randomness, and tells on workflow code that reads it. It gives what was asked for all
// the same: package uuid panics on an error, and a panic would only block the workflow, where the refusal fails it.
type watchedRand struct{}

func (watchedRand) Read(p []byte) (int, error) {
	_ = refuseSource("a UUID of package uuid")
	return rand.Read(p)
}

// refuseSource refuses what is about to happen if this is a coroutine of guarded workflow code.
func refuseSource(what string) error {
	if coroutines.count.Load() == 0 {
		return nil
	}
	at := here()
	if at == nil {
		return nil
	}
	return refusal(at.watch.Refuse(at.node, what))
}

// coroutines are those of guarded workflow code, which is to say their goroutines. They are the state of the process, as the
// sources are that they are told from.
var coroutines struct {
	byGoroutine sync.Map // of uint64 to *coroutine
	count       atomic.Int64
}

type coroutine struct {
	watch *workflows.Watch
	node  workflows.Node
}

// enter marks the goroutine as one of workflow code until leave is called.
func enter(w *workflows.Watch, n workflows.Node) (leave func()) {
	id, ok := goroutineID()
	if !ok {
		return func() {}
	}
	coroutines.byGoroutine.Store(id, &coroutine{watch: w, node: n})
	coroutines.count.Add(1)
	return func() {
		coroutines.byGoroutine.Delete(id)
		coroutines.count.Add(-1)
	}
}

// entered notes the node that a coroutine works for from now on.
func entered(n workflows.Node) {
	if at := here(); at != nil {
		at.node = n
	}
}

// here is the coroutine of guarded workflow code that calls, nil when something else does.
func here() *coroutine {
	if id, ok := goroutineID(); ok {
		if c, ok := coroutines.byGoroutine.Load(id); ok {
			return c.(*coroutine)
		}
	}
	return nil
}

// goroutineID reads the number of the goroutine where the runtime tells it: in the first line of its trace. A runtime that
// tells it no more leaves the sources unwatched.
func goroutineID() (id uint64, ok bool) {
	var buf [64]byte
	line := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(line, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	return id, err == nil
}
