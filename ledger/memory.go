package ledger

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"runledger/agent"
)

// memory is what this process knows of the runs that it writes to. A transaction that goes by it needs one round trip instead of two:
// it is decided before anything is locked, and the database takes it only if all of it still holds, see append_events in the
// migrations. The chain over the events vouches for what is too much to compare, the run's state: the same chain, the same events.
//
// It is also where those of this process who write to the same conversation take turns, which else they would do as locks in the
// database, each with a connection.
type memory struct {
	mu sync.Mutex
	// By run and by conversation. What has not been used for long is forgotten: when recent is full it becomes older, and older is gone.
	recent, older map[string]*recollection
	threads       map[string]*thread
	clock         clock
}

// thread is a conversation as this process last wrote to it.
type thread struct {
	turn  chan struct{} // full while somebody writes
	chain []byte
	last  int64
	// breaks counts how often others had written in between. What was known before that is not known any more.
	breaks int
	runs   int // that refer to it
}

// recollection is a run as this process last wrote to it.
type recollection struct {
	thread *thread
	head   runHead
	// state is as of the break of its thread, unless it is nil.
	state  *agent.State
	breaks int
	// lastFact is the number of the last fact of head.epoch as of that break of its thread, -1 when nobody has looked.
	lastFact, factBreaks int
	// atWork are the commands that this process has begun and not ended.
	atWork map[string]agent.CommandRow
}

// clock is the database's, as this process takes it to be: never behind it, since the lease of a command is counted by it, which must
// not be over before its worker takes it to be; and ahead of it by no more than the quickest of the last minute's readings took.
type clock struct {
	theirs, ours time.Time
}

// reads takes a reading of the database's clock that was asked for at a moment of ours.
func (c *clock) reads(theirs, ours time.Time) {
	slower := theirs.Sub(ours) - c.theirs.Sub(c.ours)
	if c.theirs.IsZero() || slower < 0 || slower > time.Second || ours.Sub(c.ours) > time.Minute {
		c.theirs, c.ours = theirs, ours
	}
}

func (c *clock) now() time.Time { return c.theirs.Add(time.Since(c.ours)).Truncate(time.Microsecond) }

// maxRemembered bounds how many runs a process remembers, twice this many at most.
const maxRemembered = 4096

func newMemory() *memory {
	return &memory{recent: map[string]*recollection{}, older: map[string]*recollection{}, threads: map[string]*thread{}}
}

// errMoved says that what a transaction went by is not so. It is done again, by what the database says.
var errMoved = errors.New("it is not as it was remembered")

// sqlMoved is errMoved in the words of the database.
const sqlMoved = "RL001"

// sqlIntegrity is the class of the database's errors about what a constraint is against.
const sqlIntegrity = "23"

// find must be called with the lock held.
func (m *memory) find(runID string) *recollection {
	r := m.recent[runID]
	if r == nil {
		if r = m.older[runID]; r != nil {
			delete(m.older, runID)
			m.recent[runID] = r
		}
	}
	return r
}

// turn waits until nobody else of this process writes to the run's conversation, if it knows which that is.
func (m *memory) turn(ctx context.Context, runID string) (done func(), err error) {
	m.mu.Lock()
	r := m.find(runID)
	m.mu.Unlock()
	if r == nil {
		return func() {}, nil
	}
	select {
	case r.thread.turn <- struct{}{}:
		return func() { <-r.thread.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// recall opens a transaction from memory, nil when that does not do for it.
func (m *memory) recall(scope txnScope) *txn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clock.theirs.IsZero() {
		return nil
	}
	t := &txn{tx: nothing{}, recalled: true, now: m.clock.now()}
	r := m.find(scope.runID)
	if r == nil {
		if !scope.anyLog {
			return nil
		}
		t.run = runHead{runID: scope.runID, epoch: scope.epoch, status: agent.Running}
		return t
	}
	factsKnown := r.lastFact >= 0 && r.factBreaks == r.thread.breaks
	if r.head.stuck || r.head.forked || r.head.pausedBy != 0 || r.head.epoch != scope.epoch || len(scope.facts) > 0 && !factsKnown {
		return nil
	}
	t.run, t.last, t.lastFact, t.factsKnown = r.head, r.thread.last, r.lastFact, factsKnown
	t.openedAt = r.thread.chain
	if r.state != nil && r.breaks == r.thread.breaks {
		t.state, t.hasState = *r.state, true
	}
	switch c, ok := r.atWork[scope.commandID]; {
	case ok && scope.owner == c.Owner:
		t.command = &c
	case ok, scope.owner != agent.Dispatch{}:
		return nil
	}
	if scope.withState && !t.hasState {
		return nil
	}
	return t
}

// keep remembers what a transaction has found and written.
func (m *memory) keep(t *txn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !t.recalled {
		m.clock.reads(t.now, t.askedAt)
	}
	th := m.threads[t.run.conversationID]
	if th == nil {
		th = &thread{turn: make(chan struct{}, 1)}
		m.threads[t.run.conversationID] = th
	}
	if !bytes.Equal(th.chain, t.openedAt) {
		if t.last-int64(len(t.newEvents)) < th.last { // another transaction of this process was written after it and has been here before
			return
		}
		th.breaks++
	}
	th.last, th.chain = t.last, t.chain
	r := m.find(t.run.runID)
	if r == nil {
		r = &recollection{thread: th, lastFact: -1, atWork: map[string]agent.CommandRow{}}
		th.runs++
		m.add(t.run.runID, r)
	}
	if r.head.epoch != t.run.epoch {
		r.lastFact = -1
		clear(r.atWork)
	}
	r.head = t.run
	if t.factsKnown {
		r.lastFact, r.factBreaks = t.lastFact, th.breaks
	}
	r.state = nil
	if t.hasState && t.applyNew() == nil {
		state := t.state
		r.state, r.breaks = &state, th.breaks
	}
	if t.command != nil {
		delete(r.atWork, t.command.CommandID)
	}
	if t.begun != nil {
		r.atWork[t.begun.CommandID] = *t.begun
	}
}

// add must be called with the lock held.
func (m *memory) add(runID string, r *recollection) {
	if len(m.recent) >= maxRemembered {
		for _, old := range m.older {
			m.drop(old)
		}
		m.recent, m.older = map[string]*recollection{}, m.recent
	}
	m.recent[runID] = r
}

func (m *memory) drop(r *recollection) {
	if r.thread.runs--; r.thread.runs == 0 {
		delete(m.threads, r.head.conversationID)
	}
}

// decideRecalled decides a transaction by what is remembered: errMoved if that cannot be.
func (t *txn) decideRecalled(scope txnScope, decide func(*txn) error) error {
	if t.enter(scope) != nil || decide(t) != nil || len(t.newEvents) == 0 {
		return errMoved // a refusal that stands on what is remembered is none
	}
	return nil
}

// nothing is the database of a transaction that goes by memory: there is nothing to be read.
type nothing struct{}

func (nothing) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errMoved
}
func (nothing) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errMoved }
func (nothing) QueryRow(context.Context, string, ...any) pgx.Row        { return noRow{} }
func (nothing) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults  { return noResults{} }

type noRow struct{}

func (noRow) Scan(...any) error { return errMoved }

// noResults has what is called of results: everything here is queued with what reads it.
type noResults struct{ pgx.BatchResults }

func (noResults) Close() error { return errMoved }
