// Command ledger measures how fast the commit gate lets commands through:
//
//	go run ./bench/ledger
//
// A command is a begin and a commit, with everything that they write: the command's row, its five events, a checkpoint, the numbers. A
// writer takes one command of its run after the other, as a worker would. There are 1, 8 and 64 of them, each with runs in conversations
// of their own, and all with their runs in one conversation. There is no worker and no Temporal.
//
// The limit are plain inserts: as many rows of as many bytes, in as many transactions of one statement and one round trip each, by as
// many writers over as many connections, into a table with a primary key. pgbench does the same, if it is installed. They are measured
// in turns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"runledger/bench"
)

type options struct {
	writers []int
	rounds  int
	each    time.Duration
}

func main() {
	o := options{writers: []int{1, 8, 64}}
	flag.IntVar(&o.rounds, "rounds", 3, "how often each is measured; the median counts")
	flag.DurationVar(&o.each, "each", 2*time.Second, "how long")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

func measure(ctx context.Context, o options) (report *bench.Report, err error) {
	db, err := bench.StartDatabase(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	pool, err := pgxpool.New(ctx, db.URL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)`); err != nil {
		return nil, err
	}
	report = bench.NewReport("commands through the commit gate")
	for _, n := range o.writers {
		if err := level(ctx, report, db.URL, pool, n, o); err != nil {
			return report, err
		}
	}
	return report, nil
}

// level measures everything at a number of writers.
func level(ctx context.Context, report *bench.Report, url string, pool *pgxpool.Pool, writers int, o options) (err error) {
	g, err := openGate(ctx, url, pool, writers)
	if err != nil {
		return err
	}
	defer g.close()
	// How much a command writes is counted once, before anything is measured.
	if err := g.prepare(ctx, writers, 40, false); err != nil {
		return err
	}
	if _, _, err = repeat(ctx, writers, time.Second, g.command); err != nil {
		return err
	}
	size, err := g.size(ctx)
	if err != nil {
		return err
	}
	plain, err := openPlain(ctx, url, writers, size)
	if err != nil {
		return err
	}
	defer plain.pool.Close()

	var many, one, rows []rate
	var benched []float64
	enough := int(6000 * o.each.Seconds())
	for range o.rounds {
		for _, shared := range []bool{false, true} {
			if err := g.prepare(ctx, writers, enough/writers+commandsPerRun, shared); err != nil {
				return err
			}
			r, err := measured(ctx, pool, writers, o.each, g.command)
			if err != nil {
				return err
			}
			if shared {
				one = append(one, r)
			} else {
				many = append(many, r)
			}
		}
		r, err := measured(ctx, pool, writers, o.each, plain.command)
		if err != nil {
			return err
		}
		rows = append(rows, r)
		perSecond, ok, err := pgbench(ctx, url, writers, o.each, size)
		if err != nil {
			return err
		}
		if ok {
			benched = append(benched, perSecond)
		}
	}
	name := func(what string) string { return fmt.Sprintf("%s, %d writers", what, writers) }
	const limit, unit = "plain inserts", "commands/s"
	ours, plainly := median(many, rate.perSecond), median(rows, rate.perSecond)
	report.Add(bench.Figure{Name: name("many conversations"), Value: ours, Unit: unit, Limit: plainly, LimitName: limit, Floor: 0.6})
	report.Add(bench.Figure{Name: name("one conversation"), Value: median(one, rate.perSecond), Unit: unit, Limit: plainly, LimitName: limit})
	if len(benched) > 0 {
		report.Add(bench.Figure{Name: name("many conversations"), Value: ours, Unit: unit, Limit: bench.Quantile(benched, 0.5), LimitName: "the same inserts by pgbench"})
	}
	report.Add(bench.Figure{Name: name("Postgres' processor"), Value: median(many, rate.server), Unit: "us/command", Limit: median(rows, rate.server), LimitName: limit})
	report.Add(bench.Figure{Name: name("the writers' processor"), Value: median(many, rate.client), Unit: "us/command", Limit: median(rows, rate.client), LimitName: limit})
	report.Add(bench.Figure{Name: name("log written (WAL)"), Value: median(many, rate.log), Unit: "bytes/command", Limit: median(rows, rate.log), LimitName: limit})
	report.Note("%d writers: a command writes %s.", writers, size)
	return nil
}

// rate is what was measured of one side in one round.
type rate struct {
	n    float64 // commands
	took time.Duration
	wal  float64 // bytes of Postgres' log
	used bench.ProcessorTime
}

func (r rate) perSecond() float64 { return r.n / r.took.Seconds() }
func (r rate) log() float64       { return r.wal / r.n }
func (r rate) server() float64    { return float64(r.used.By["postgres"].Microseconds()) / r.n }
func (r rate) client() float64 {
	return float64((r.used.All - r.used.By["postgres"]).Microseconds()) / r.n
}

func median(rates []rate, of func(rate) float64) float64 {
	var values []float64
	for _, r := range rates {
		values = append(values, of(r))
	}
	return bench.Quantile(values, 0.5)
}

// measured is repeat with everything that is measured of it.
func measured(ctx context.Context, pool *pgxpool.Pool, writers int, during time.Duration, do func(context.Context, int) error) (r rate, err error) {
	const position = `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`
	var before, after float64
	if err := pool.QueryRow(ctx, position).Scan(&before); err != nil {
		return r, err
	}
	used, err := bench.ReadProcessorTime()
	if err != nil {
		return r, err
	}
	n, took, err := repeat(ctx, writers, during, do)
	if err != nil {
		return r, err
	}
	now, err := bench.ReadProcessorTime()
	if err != nil {
		return r, err
	}
	if err := pool.QueryRow(ctx, position).Scan(&after); err != nil {
		return r, err
	}
	return rate{n: float64(max(n, 1)), took: took, wal: after - before, used: now.Since(used)}, nil
}

// errEnough ends a writer who has nothing left to do.
var errEnough = errors.New("nothing is left to do")

// repeat lets each writer do it again and again.
func repeat(ctx context.Context, writers int, during time.Duration, do func(ctx context.Context, writer int) error) (n int64, took time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for w := range writers {
		all.Go(func() {
			for time.Since(began) < during && ctx.Err() == nil {
				if err := do(ctx, w); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	took = time.Since(began)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errEnough) {
		return 0, took, cause
	}
	return done.Load(), took, nil
}
