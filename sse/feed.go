package sse

import (
	"context"
	"fmt"
	"sync"
	"time"

	"runledger/agent"
)

// entry is a frame that a feed keeps.
type entry struct {
	// sequence is the number of the event, 0 for model output.
	sequence         int64
	runID, rootRunID string
	terminal         bool
	// frame is shared by all who send it.
	frame []byte
}

func (e *entry) in(scope agent.LogScope) bool {
	return scope.RunID == "" || e.runID == scope.RunID || e.rootRunID == scope.RunID
}

// feed is the newest part of a conversation's log, encoded for one profile. Those who follow it have no queue: each knows up to which
// place it has sent, takes what stands behind it, and goes back to the ledger when that is no longer kept.
type feed struct {
	hub            *hub
	conversationID string
	profile        Profile
	followers      int // guarded by the hub

	mu sync.RWMutex
	// changed is closed when there is something to take.
	changed chan struct{}
	// entries are the frames at the places from first on, of size bytes. Among them is every event above base, up to last.
	entries    []entry
	first      int
	size       int
	base, last int64
	// output is nil where the profile shows none.
	output *output
	// started: the feed knows from where to read.
	started bool
	// failing is when the ledger could not be read for the first time since it last could, err why the feed has given up.
	failing time.Time
	err     error
	extents map[string]*extentCall
}

func newFeed(h *hub, conversationID string, p Profile) *feed {
	f := &feed{hub: h, conversationID: conversationID, profile: p, changed: make(chan struct{}), extents: map[string]*extentCall{}}
	if p.OutputEvent != nil {
		f.output = newOutput(p.OutputEvent)
	}
	return f
}

// taken is what somebody takes from a feed: frames to send, the number up to which they have the log with them, and the place behind
// them. ended is set when an event among them may have been the last of the scope. more is closed when there is more to take; nil
// when there is already.
type taken struct {
	frames [][]byte
	after  int64
	place  int
	ended  bool
	more   <-chan struct{}
}

func (t *taken) add(e *entry) {
	t.frames = append(t.frames, e.frame)
	t.ended = t.ended || e.terminal
}

// join takes what somebody lacks who has the log of a scope up to a number: the events behind it, and what the open commands have said
// so far. It reports false when the feed does not hold that: it begins after that number, or it is not there yet, and more is closed when
// it has read on. A feed that has not begun to read begins there, if the log's last number is near.
func (f *feed) join(scope agent.LogScope, after, last int64) (t taken, holds bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return t, true, f.err
	}
	if !f.started && last-after <= int64(f.hub.cfg.PageSize) {
		f.started, f.base, f.last = true, after, after
		f.hub.wake(f)
	}
	switch {
	case !f.started || after < f.base:
		return t, false, nil
	case after > f.last: // what it takes for open commands may have ended in what it has not read
		f.hub.wake(f)
		return taken{more: f.changed}, false, nil
	}
	for i := range f.entries {
		if e := &f.entries[i]; e.sequence > after && e.in(scope) {
			t.add(e)
		}
	}
	if f.output != nil {
		for _, e := range f.output.whole(nil) {
			if e.in(scope) {
				t.add(&e)
			}
		}
	}
	t.after, t.place, t.more = f.last, f.first+len(f.entries), f.changed
	return t, true, nil
}

// maxTail bounds how many frames a feed keeps, besides their size.
const maxTail = 4096

const extentTimeout = 10 * time.Second

// takeAtOnce bounds how many frames are taken at once.
const takeAtOnce = 256

// take takes what stands behind a place. It reports false when that is no longer kept. The error says that the feed has given up.
func (f *feed) take(scope agent.LogScope, from taken) (t taken, holds bool, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.err != nil {
		return t, true, f.err
	}
	if from.place < f.first {
		return t, false, nil
	}
	t = taken{frames: from.frames[:0], after: from.after, place: from.place}
	for t.place < f.first+len(f.entries) && len(t.frames) < takeAtOnce {
		e := &f.entries[t.place-f.first]
		t.place++
		if e.sequence > 0 && e.sequence <= from.after {
			continue
		}
		t.after = max(t.after, e.sequence)
		if e.in(scope) {
			t.add(e)
		}
	}
	if t.place == f.first+len(f.entries) {
		t.after, t.more = max(t.after, f.last), f.changed
	}
	return t, true, nil
}

// upTo is the number up to which the feed has read the log, 0 before it has.
func (f *feed) upTo() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.last
}

// cursor says from where the feed reads on; ok is false before it has begun.
func (f *feed) cursor() (c agent.LogCursor, ok bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	c = agent.LogCursor{ConversationID: f.conversationID, After: f.last, Output: f.output != nil}
	if f.output != nil {
		c.Have = f.output.cursors()
	}
	return c, f.started
}

// publish takes in what was read. It reports true when there is no log to follow any more.
func (f *feed) publish(news agent.LogNews) (over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if news.Gone {
		f.err = errGone
		f.announce()
		return true
	}
	f.failing = time.Time{}
	before := len(f.entries)
	for _, e := range news.Events {
		if e.Sequence <= f.last {
			continue
		}
		f.last = e.Sequence
		if f.output != nil {
			f.output.note(e)
		}
		f.entries = append(f.entries, entry{sequence: e.Sequence, runID: e.RunID, rootRunID: e.RootRunID, terminal: e.Type.Terminal(),
			frame: appendEvent(nil, f.profile, e)})
	}
	if f.output != nil {
		f.entries = f.output.take(f.entries, news.Output)
	}
	if len(f.entries) == before {
		return false
	}
	for i := before; i < len(f.entries); i++ {
		f.size += len(f.entries[i].frame)
	}
	f.trim()
	clear(f.extents)
	f.announce()
	return false
}

// trim lets the oldest frames go when they are too many. The newest stays, whatever its size.
func (f *feed) trim() {
	n := 0
	for ; n < len(f.entries)-1 && (f.size > f.hub.cfg.TailBytes || len(f.entries)-n > maxTail); n++ {
		f.size -= len(f.entries[n].frame)
		f.base = max(f.base, f.entries[n].sequence)
	}
	clear(f.entries[:n])
	f.entries = f.entries[n:]
	f.first += n
}

func (f *feed) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// fail takes in that the ledger could not be read. It reports true when the feed gives up.
func (f *feed) fail(err error, patience time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.failing.IsZero() {
		f.failing = now
	}
	if now.Sub(f.failing) < patience {
		return false
	}
	f.err = fmt.Errorf("%w for %s: %w", errUnreadable, patience, err)
	f.announce()
	return true
}

// extentCall is a question how far a scope's log goes, which all who ask at the same number share.
type extentCall struct {
	// asked is the number up to which the feed had read when the question was put.
	asked  int64
	done   chan struct{}
	extent agent.Extent
	err    error
}

// extent asks how far a scope's log goes, at a moment when it went up to a number at least.
func (f *feed) extent(ctx context.Context, scope agent.LogScope, after int64) (agent.Extent, error) {
	f.mu.Lock()
	call := f.extents[scope.RunID]
	asks := call == nil || call.asked < after
	if asks {
		call = &extentCall{asked: f.last, done: make(chan struct{})}
		f.extents[scope.RunID] = call
	}
	f.mu.Unlock()
	if asks {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), extentTimeout)
		defer cancel()
		call.extent, call.err = f.hub.cfg.Log.Extent(ctx, scope)
		if call.err != nil {
			f.mu.Lock()
			if f.extents[scope.RunID] == call {
				delete(f.extents, scope.RunID) // the next one asks again
			}
			f.mu.Unlock()
		}
		close(call.done)
	}
	select {
	case <-call.done:
		return call.extent, call.err
	case <-ctx.Done():
		return agent.Extent{}, ctx.Err()
	}
}
