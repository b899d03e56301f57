package ledger

import "time"

// LeadFor is Lead with its own timing, for tests.
var LeadFor = (*Ledger).lead

// Misremember shifts what a ledger takes the database's clock to be.
func Misremember(l *Ledger, by time.Duration) {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	l.memory.clock.theirs = l.memory.clock.theirs.Add(by)
}
