package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// GateCall names a transaction of the commit gate.
type GateCall string

const (
	GateBegin    GateCall = "begin"
	GateCommit   GateCall = "commit"
	GateConclude GateCall = "conclude"
	GateSettle   GateCall = "settle"
)

// Meter is told what a ledger has done, after it is durable. It must not wait, and is called by many at once. It has a method for each
// thing that is counted, so that none is counted by a name that somebody made up.
type Meter interface {
	// Gate tells of a transaction of the gate, and how long it took with its waits for a connection and for locks. err is what it
	// failed of: an *agent.Error is an answer to its caller, anything else is the database's, and tried again by the caller.
	Gate(call GateCall, took time.Duration, err error)
	// RunAccepted tells of a run that is new.
	RunAccepted()
	// RunEnded tells of a terminal event.
	RunEnded(status agent.Status)
	// CommandDecided tells of a command's outcome: committed, failed, aborted or in_doubt. effect is "" for those that ended with
	// their run.
	CommandDecided(kind agent.CommandKind, effect agent.EffectClass, outcome agent.CommandState)
	// IntentTried tells of an intent that was delivered to Temporal, or put off.
	IntentTried(kind IntentKind, delivered bool)
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Gate(GateCall, time.Duration, error)                                     {}
func (noMeter) RunAccepted()                                                            {}
func (noMeter) RunEnded(agent.Status)                                                   {}
func (noMeter) CommandDecided(agent.CommandKind, agent.EffectClass, agent.CommandState) {}
func (noMeter) IntentTried(IntentKind, bool)                                            {}

// measured runs a transaction of the gate under the meter.
func (l *Ledger) measured(call GateCall, began time.Time, err *error) {
	l.meter.Gate(call, time.Since(began), *err)
}

// count tells the meter what a transaction has written.
func (t *txn) count(m Meter) {
	for _, e := range t.newEvents {
		var outcome agent.CommandState
		switch e.Type {
		case agent.RunCompleted:
			m.RunEnded(agent.Completed)
		case agent.RunFailed:
			m.RunEnded(agent.FailedStatus)
		case agent.RunCancelled:
			m.RunEnded(agent.Cancelled)
		case agent.CommandCommitted:
			outcome = agent.Committed
		case agent.CommandFailedType:
			outcome = agent.CommandFailed
		case agent.CommandAbortType:
			outcome = agent.CommandAborted
		case agent.CommandDoubtType:
			outcome = agent.CommandInDoubt
		default:
		}
		if outcome == "" {
			continue
		}
		if c := t.command; c != nil && c.CommandID == e.CommandID {
			m.CommandDecided(c.Kind, c.Effect, outcome)
			continue
		}
		var d struct {
			Kind agent.CommandKind `json:"kind"`
		}
		_ = json.Unmarshal(e.Data, &d) // of this process's making
		m.CommandDecided(d.Kind, "", outcome)
	}
}

// tally counts what no transaction is of.
type tally struct {
	notified, notifyFailed, listenConnects, recalled, moved, trips atomic.Int64
}

// Stats are the counts of one process's ledger since it was opened, and its pool as it is.
type Stats struct {
	// Notified and NotifyFailed count batches of notifications; those that failed are sent again.
	Notified, NotifyFailed int64
	// ListenConnects counts how often the listening connection was made; the first time counts.
	ListenConnects int64
	// Recalled counts transactions of the gate that went by what the process remembered, in one round trip; Moved those that were to,
	// and were done the general way after all: it was not so any more, or could not be decided without reading.
	Recalled, Moved int64
	// Trips counts the round trips of those that went by memory: several transactions share one while many are under way.
	Trips int64
	// Connections of the pool: at most MaxConns; InUse and Idle of those that there are. Acquired counts how often one was taken,
	// Waited how often somebody had to wait for it, for WaitTime together.
	MaxConns, InUse, Idle int64
	Acquired, Waited      int64
	WaitTime              time.Duration
}

// Stats tells what this process's ledger has done.
func (l *Ledger) Stats() Stats {
	p := l.pool.Stat()
	return Stats{Notified: l.tally.notified.Load(), NotifyFailed: l.tally.notifyFailed.Load(), ListenConnects: l.tally.listenConnects.Load(), Recalled: l.tally.recalled.Load(), Moved: l.tally.moved.Load(), Trips: l.tally.trips.Load(),
		MaxConns: int64(p.MaxConns()), InUse: int64(p.AcquiredConns()), Idle: int64(p.IdleConns()),
		Acquired: p.AcquireCount(), Waited: p.EmptyAcquireCount(), WaitTime: p.EmptyAcquireWaitTime()}
}

// Standing is what a database holds that is not over: the same whichever process asks.
type Standing struct {
	// Open counts runs that have not ended, by the status that readers see.
	Open map[agent.Status]int64
	// InDoubt counts commands that somebody has to resolve, those of ended runs too.
	InDoubt int64
	// Pending counts intents that are not delivered, and OldestPending is how long the oldest has waited.
	Pending       int64
	OldestPending time.Duration
	// Enqueued counts runs that wait for others of their conversation.
	Enqueued int64
}

// Standing reads what is not over. It looks at that only, however much has ended.
func (l *Ledger) Standing(ctx context.Context) (Standing, error) {
	s := Standing{Open: map[agent.Status]int64{}}
	var batch pgx.Batch
	batch.Queue(`SELECT ` + runStatus + `, count(*) FROM agent_executions r WHERE r.finished_at IS NULL GROUP BY 1`).Query(func(rows pgx.Rows) error {
		var status agent.Status
		var n int64
		_, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error {
			s.Open[status] = n
			return nil
		})
		return err
	})
	batch.Queue(`SELECT (SELECT count(*) FROM commands WHERE state = 'in_doubt'), (SELECT count(*) FROM enqueued), count(*),
			coalesce((extract(epoch FROM clock_timestamp() - min(created_at)) * 1000)::bigint, 0)
		FROM intents WHERE delivered_at IS NULL`).QueryRow(func(row pgx.Row) error {
		var ms int64
		err := row.Scan(&s.InDoubt, &s.Enqueued, &s.Pending, &ms)
		s.OldestPending = time.Duration(ms) * time.Millisecond
		return err
	})
	if err := l.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return s, fmt.Errorf("read what is not over: %w", err)
	}
	return s, nil
}
