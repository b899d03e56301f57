package ledger

import "time"

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
