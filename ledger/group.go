package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"runledger/agent"
)

// group brings transactions that go by memory to the database. Those that come while others are on their way wait for them, and go
// together then: in one round trip, one commit, and statements that start once for all of them. They are of different conversations,
// since those who write to the same one take turns.
type group struct {
	pool  *pgxpool.Pool
	tally *tally

	mu      sync.Mutex
	waiting []*ask
	flights int
}

const (
	// maxFlights bounds how many groups of a process are on their way at once, each with a connection. One alone leaves the database
	// idle while its answer is read; with more of them each is smaller, and a command costs more (bench/ledger).
	maxFlights = 2
	// maxGroup bounds how many transactions go together.
	maxGroup = 32
	// groupWaits bounds how long a group waits for a lock. Else whoever holds one conversation holds up the others of the group.
	groupWaits = "200ms"
	// flightTimeout bounds a flight that the database's own statement_timeout does not end, since nothing comes back.
	flightTimeout = 40 * time.Second
)

// ask is a transaction that has been decided by memory, and wants to be written.
type ask struct {
	t     *txn
	scope txnScope
	done  chan error
}

// errAlone says that a group was not written for the sake of one in it. Each is to go by itself.
var errAlone = errors.New("the group was refused")

// write writes a transaction: errMoved if it is not so what it goes by. Any other error leaves open whether it was written.
func (g *group) write(ctx context.Context, t *txn, scope txnScope) error {
	a := &ask{t: t, scope: scope, done: make(chan error, 1)}
	if t.run.conversationID == "" { // it has no place in the order of a group
		return g.alone(ctx, a)
	}
	g.mu.Lock()
	g.waiting = append(g.waiting, a)
	if g.flights < maxFlights {
		g.flights++
		go g.fly()
	}
	g.mu.Unlock()
	select {
	case err := <-a.done:
		if errors.Is(err, errAlone) {
			return g.alone(ctx, a)
		}
		return err
	case <-ctx.Done():
		g.mu.Lock()
		g.waiting = slices.DeleteFunc(g.waiting, func(w *ask) bool { return w == a })
		g.mu.Unlock()
		return ctx.Err()
	}
}

// alone writes a transaction on a connection of its own.
func (g *group) alone(ctx context.Context, a *ask) error {
	conn, err := g.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return g.send(ctx, conn, []*ask{a})
}

// fly takes one group after the other while there are any.
func (g *group) fly() {
	for {
		g.mu.Lock()
		if len(g.waiting) == 0 {
			g.flights--
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		g.flyOnce()
	}
}

func (g *group) flyOnce() {
	ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
	defer cancel()
	conn, err := g.pool.Acquire(ctx)
	asks := g.take() // those too who have come while there was no connection
	if err == nil {
		err = g.send(ctx, conn, asks)
		conn.Release()
	}
	for _, a := range asks {
		a.done <- err
	}
}

// take gives the next group. No two of it are of the same conversation: those who did not know it when they came have taken no turns.
func (g *group) take() (asks []*ask) {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := map[string]bool{}
	g.waiting = slices.DeleteFunc(g.waiting, func(a *ask) bool {
		id := a.t.run.conversationID
		if len(asks) == maxGroup || taken[id] {
			return false
		}
		asks, taken[id] = append(asks, a), true
		return true
	})
	return asks
}

// send writes transactions in one of the database, all or none.
func (g *group) send(ctx context.Context, conn session, asks []*ask) error {
	if len(asks) == 0 {
		return nil
	}
	// Every process takes them in this order, see append_events.
	slices.SortFunc(asks, func(a, b *ask) int { return cmp.Compare(a.t.run.conversationID, b.t.run.conversationID) })
	var batch pgx.Batch
	if len(asks) == 1 {
		asks[0].queue(&batch)
	} else {
		batch.Queue(`SELECT set_config('lock_timeout', '` + groupWaits + `', true), set_config('plan_cache_mode', 'force_generic_plan', true)`)
		queueAll(&batch, asks)
	}
	queueWrites(&batch, asks)
	err := conn.SendBatch(ctx, &batch).Close()
	g.tally.trips.Add(1)
	refused := (*pgconn.PgError)(nil)
	switch {
	case !errors.As(err, &refused):
		return err
	case len(asks) > 1:
		return errAlone
	case refused.Code == sqlMoved, strings.HasPrefix(refused.Code, sqlIntegrity): // what contradicts the record was remembered wrong
		return errMoved
	}
	return err
}

// remembered is the chain that the transaction's log has to end with, nil if it may be any.
func (a *ask) remembered() []byte {
	if a.scope.anyLog {
		return nil
	}
	return a.t.openedAt
}

// dispatchNo is that of the command's row, nil if there must not be one.
func (a *ask) dispatchNo() *int {
	if a.scope.owner == (agent.Dispatch{}) {
		return nil
	}
	return &a.t.command.DispatchNo
}

// met says where the transaction has met its log, and where it has left it.
func (a *ask) met(opened []byte, last int64, chain []byte) {
	if !bytes.Equal(opened, a.t.openedAt) {
		a.t.openedAt, a.t.hasState, a.t.factsKnown = opened, false, false
	}
	a.t.last, a.t.chain = last, chain
}

func (a *ask) queue(batch *pgx.Batch) {
	t, owner := a.t, a.scope.owner
	batch.Queue(appendEvents+`true, $13, $14, $15, $16, $17, $18, $19)`,
		append(t.appended(), t.run.status, a.remembered(), a.scope.commandID, a.dispatchNo(), owner.Schedule, owner.Attempt, owner.Token)...).
		QueryRow(func(row pgx.Row) error {
			var opened, chain []byte
			var last int64
			if err := row.Scan(&t.run.conversationID, &t.run.messageID, &t.run.rootRunID, &opened, &last, &chain); err != nil {
				return err
			}
			a.met(opened, last, chain)
			return nil
		})
}

// queueAll queues append_all.
func queueAll(batch *pgx.Batch, asks []*ask) {
	n := len(asks)
	runs, statuses, commands, tokens := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	epochs, schedules, attempts := make([]int, n), make([]int, n), make([]int32, n)
	moments, logs, dispatches := make([]time.Time, n), make([][]byte, n), make([]*int, n)
	var transactions, places, dispatchNos []int
	var types, docs, nodes, of []string
	var facts []*int
	for i, a := range asks {
		t, owner := a.t, a.scope.owner
		runs[i], epochs[i], moments[i], statuses[i] = t.run.runID, t.run.epoch, t.now, string(t.run.status)
		logs[i], commands[i], dispatches[i] = a.remembered(), a.scope.commandID, a.dispatchNo()
		schedules[i], attempts[i], tokens[i] = owner.Schedule, owner.Attempt, owner.Token
		for j, e := range t.newEvents {
			var fact *int
			if t.factNos[j] > 0 {
				fact = &t.factNos[j]
			}
			transactions, places, facts = append(transactions, i+1), append(places, j+1), append(facts, fact)
			types, docs, nodes = append(types, string(e.Type)), append(docs, string(e.Data)), append(nodes, e.NodeID)
			of, dispatchNos = append(of, e.CommandID), append(dispatchNos, e.Attempt)
		}
	}
	batch.Queue(`SELECT befores, lasts, chains FROM append_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`,
		runs, epochs, moments, statuses, logs, commands, dispatches, schedules, attempts, tokens,
		transactions, places, types, docs, nodes, of, dispatchNos, facts).
		QueryRow(func(row pgx.Row) error {
			var befores, chains [][]byte
			var lasts []int64
			if err := row.Scan(&befores, &lasts, &chains); err != nil {
				return err
			}
			for i, a := range asks {
				a.met(befores[i], lasts[i], chains[i])
			}
			return nil
		})
}

// statement writes a row: one has a parameter for each of its values, many an array for each, of the rows of several transactions.
type statement struct{ one, many string }

// row is what a statement is to write.
type row struct {
	by     *statement
	values []any
}

// put queues a row that a group writes together with those of others.
func (t *txn) put(by *statement, values ...any) {
	t.writes.Queue(by.one, values...)
	t.rows = append(t.rows, row{by, values})
}

// queueWrites queues what transactions write besides events: the rows of a statement together, and by itself, in its order, what a
// transaction writes that has not only such rows.
func queueWrites(batch *pgx.Batch, asks []*ask) {
	var order []*statement
	columns := map[*statement][]any{} // of []any
	for _, a := range asks {
		if len(asks) == 1 || len(a.t.rows) < a.t.writes.Len() {
			batch.QueuedQueries = append(batch.QueuedQueries, a.t.writes.QueuedQueries...)
			continue
		}
		for _, r := range a.t.rows {
			of := columns[r.by]
			if of == nil {
				of = make([]any, len(r.values))
				columns[r.by], order = of, append(order, r.by)
			}
			for i, v := range r.values {
				column, _ := of[i].([]any)
				of[i] = append(column, v)
			}
		}
	}
	for _, by := range order {
		batch.Queue(by.many, columns[by]...)
	}
}
