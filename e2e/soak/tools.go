package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// toolServer is the world outside: it does what tools ask for and counts it by idempotency key. It trusts nobody to send a
// key once.
type toolServer struct {
	mu    sync.Mutex
	calls map[string][]*call
	doors []*door
}

// call is one request.
type call struct {
	Door           int
	Arrived, Ended time.Time // Ended is zero while it is served
	// Took: its effect took place. Gone: its caller was gone before it was answered.
	Took, Gone bool
	due        time.Time // when it is to be answered
	answer     json.RawMessage
}

// door is a way to the tool server for one process: its proxy, so that every call is known to be of that process.
type door struct {
	no      int
	url     string
	server  *http.Server
	deadAt  time.Time     // its process was killed then
	drained chan struct{} // nothing can come through it any more
}

func newToolServer() *toolServer { return &toolServer{calls: map[string][]*call{}} }

// open makes a door for a process that is about to start.
func (t *toolServer) open() (*door, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a port for the tools of a worker: %w", err)
	}
	d := &door{url: "http://" + listener.Addr().String(), drained: make(chan struct{})}
	t.mu.Lock()
	d.no = len(t.doors)
	t.doors = append(t.doors, d)
	t.mu.Unlock()
	d.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.serve(d, w, r) }), ReadHeaderTimeout: time.Minute}
	go func() { _ = d.server.Serve(listener) }()
	return d, nil
}

// dies notes that the process behind a door is dead from now on.
func (t *toolServer) dies(d *door) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.deadAt.IsZero() {
		d.deadAt = time.Now()
	}
}

// shut closes the door of a dead process. What came through is served to its end.
func (t *toolServer) shut(d *door) {
	go func() {
		defer close(d.drained)
		_ = d.server.Shutdown(context.Background())
	}()
}

func (t *toolServer) serve(d *door, w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the caller is gone
	q := r.URL.Query()
	ms, _ := strconv.Atoi(q.Get("ms"))
	late := q.Get("late") == "true"
	key := r.Header.Get("Idempotency-Key")
	c := &call{Door: d.no, Arrived: time.Now()}
	c.due = c.Arrived.Add(time.Duration(ms) * time.Millisecond)
	c.answer, _ = json.Marshal(object{"did": key, "expression": q.Get("a") + " + " + q.Get("b")})
	t.mu.Lock()
	t.calls[key] = append(t.calls[key], c)
	c.Took = !late
	t.mu.Unlock()

	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	gone := false
	select {
	case <-timer.C:
	case <-r.Context().Done():
		gone = true
	}
	t.mu.Lock()
	c.Gone = gone
	c.Took = c.Took || !gone
	took := c.Took
	t.mu.Unlock()
	if took && !gone {
		w.Header().Set("Content-Type", "application/json")
		_, err := w.Write(c.answer)
		gone = err != nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c.Ended, c.Gone = time.Now(), gone
}

// serving counts the calls at work for the processes behind some doors; all doors when there are none named.
func (t *toolServer) serving(doors ...*door) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, calls := range t.calls {
		for _, c := range calls {
			if !c.Ended.IsZero() {
				continue
			}
			for _, d := range doors {
				if d.no == c.Door {
					n++
				}
			}
			if len(doors) == 0 {
				n++
			}
		}
	}
	return n
}

// lasting counts the calls at work that will not be answered for some time yet.
func (t *toolServer) lasting(d time.Duration) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, calls := range t.calls {
		for _, c := range calls {
			if c.Ended.IsZero() && time.Until(c.due) > d {
				n++
			}
		}
	}
	return n
}

// last gives the door of the newest call under a key, and how many there are.
func (t *toolServer) last(key string) (*door, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls[key]
	if len(calls) == 0 {
		return nil, 0
	}
	return t.doors[calls[len(calls)-1].Door], len(calls)
}

// finding is what the tool server can say of a key.
type finding int

const (
	// open: a call is at work, or may still arrive.
	open finding = iota
	// took: the effect took place.
	took
	// never: it did not and no longer can.
	never
)

// find says what became of the calls under a key, with the answer where the effect took place.
func (t *toolServer) find(key string) (finding, json.RawMessage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.calls[key] {
		switch {
		case c.Took:
			return took, c.answer
		case c.Ended.IsZero():
			return open, nil
		}
	}
	for _, d := range t.doors {
		if d.deadAt.IsZero() {
			continue
		}
		select {
		case <-d.drained:
		default:
			return open, nil
		}
	}
	return never, nil
}

// record copies everything that was counted.
func (t *toolServer) record() (calls map[string][]call, deadAt []time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls = make(map[string][]call, len(t.calls))
	for key, all := range t.calls {
		for _, c := range all {
			calls[key] = append(calls[key], *c)
		}
	}
	for _, d := range t.doors {
		deadAt = append(deadAt, d.deadAt)
	}
	return calls, deadAt
}

func (t *toolServer) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.doors {
		_ = d.server.Close()
	}
}
