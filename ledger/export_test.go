package ledger

import (
	"runtime"
	"time"
)

// LeadFor is Lead with its own timing, for tests.
var LeadFor = (*Ledger).lead

// Now is what a ledger takes the database's time to be.
func Now(l *Ledger) time.Time {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	return l.memory.clock.now()
}

// Misremember shifts what a ledger takes the database's clock to be.
func Misremember(l *Ledger, by time.Duration) {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	l.memory.clock.theirs = l.memory.clock.theirs.Add(by)
}

// HoldGroups keeps transactions that go by memory from leaving until release, so that so many of them leave together.
func HoldGroups(l *Ledger) (waiting func() int, release func()) {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.flights > 0 { // one that has brought its group and not yet seen that nobody waits
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	g.flights = maxFlights
	return func() int {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.waiting)
		}, func() {
			g.mu.Lock()
			g.flights = 1
			g.mu.Unlock()
			go g.fly()
		}
}

// Remembers tells whether a ledger knows a run's state.
func Remembers(l *Ledger, runID string) bool {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	r := l.memory.find(runID)
	return r != nil && r.state != nil && r.breaks == r.thread.breaks
}

// FindDocuments is the statement of a search.
const FindDocuments = findDocuments
