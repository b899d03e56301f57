// Command sizes measures what a command leaves behind, in Temporal's history and in Postgres:
//
//	go run ./bench/sizes
//
// A run of each shape: a plan of tool commands that do not depend on each other, a plan of one after the other, and a loop whose model
// calls four tools a turn. Tools and model answer at once and say little, so what is measured is the cost of the record, not of what is
// in it. Everything of a run counts, its start and its end too, and is divided by its commands. The limit of Temporal's history is a bare
// workflow of as many activities that take and give a number.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"runledger/agent"
	"runledger/bench"
	"runledger/model"
	"runledger/tool"
)

type options struct {
	commands, runs int
}

func main() {
	var o options
	flag.IntVar(&o.commands, "commands", 50, "how many tool commands a run has")
	flag.IntVar(&o.runs, "runs", 20, "how many runs of each shape")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

// shape is a kind of run.
type shape struct {
	name string
	run  bench.Run
}

func shapes(commands int) []shape {
	limits := agent.Limits{MaxSteps: 2*commands + 2}
	return []shape{
		{"plan, side by side", bench.Run{Input: "Add.", Mode: agent.ModePlan, Plan: bench.Additions(commands), Limits: limits}},
		{"plan, one by one", bench.Run{Input: "Add.", Mode: agent.ModePlan, Plan: bench.Chain(commands), Limits: limits}},
		{"loop", bench.Run{Input: "Add.", Mode: agent.ModeReact, Limits: limits}},
	}
}

func measure(ctx context.Context, o options) (report *bench.Report, err error) {
	add, err := bench.Adder()
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: caller{o.commands}, Tools: []tool.Tool{add}, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	pool, err := pgxpool.New(ctx, s.DatabaseURL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	report = bench.NewReport("what a command leaves behind")
	bare, stop, err := bareHistory(ctx, s, o.commands)
	if err != nil {
		return nil, err
	}
	defer stop()
	for _, sh := range shapes(o.commands) {
		if err := one(ctx, report, s, pool, sh, bare, o); err != nil {
			return report, fmt.Errorf("%s: %w", sh.name, err)
		}
	}
	return report, nil
}

// one measures a shape.
func one(ctx context.Context, report *bench.Report, s *bench.Stack, pool *pgxpool.Pool, sh shape, bare float64, o options) error {
	// What an earlier shape has left free would hide what this one needs.
	if _, err := pool.Exec(ctx, `VACUUM FULL`); err != nil {
		return err
	}
	before, err := sizes(ctx, pool)
	if err != nil {
		return err
	}
	commands, events, history := 0, 0, 0
	for range o.runs {
		run, err := s.Do(ctx, sh.run)
		if err != nil {
			return err
		}
		done, err := s.Ledger.Commands(ctx, run.RunID)
		if err != nil {
			return err
		}
		kept, err := s.Histories(ctx, run.RunID)
		if err != nil {
			return err
		}
		// As autovacuum does in a large table: the space of old versions of rows is used again by the next run.
		if _, err := pool.Exec(ctx, `VACUUM`); err != nil {
			return err
		}
		commands, events, history = commands+len(done), events+kept.Events, history+int(kept.ServerBytes)
	}
	after, err := sizes(ctx, pool)
	if err != nil {
		return err
	}
	each := func(bytes int64) float64 { return float64(bytes) / float64(commands) }
	name := func(what string) string { return what + ", " + sh.name }
	report.Add(bench.Figure{Name: name("Temporal's history"), Value: each(int64(history)), Unit: "bytes/command", Limit: bare, LimitName: "a bare activity"})
	report.Add(bench.Figure{Name: name("its events"), Value: each(int64(events)), Unit: "events/command"})
	var heap, indexes int64
	var parts []string
	for _, table := range after.tables {
		was := before.of(table.name)
		heap, indexes = heap+table.heap-was.heap, indexes+table.indexes-was.indexes
		if grown := table.heap + table.indexes - was.heap - was.indexes; grown > 0 {
			parts = append(parts, fmt.Sprintf("%s %.0f+%.0f", table.name, each(table.heap-was.heap), each(table.indexes-was.indexes)))
		}
	}
	report.Add(bench.Figure{Name: name("Postgres, tables"), Value: each(heap), Unit: "bytes/command"})
	report.Add(bench.Figure{Name: name("Postgres, indexes"), Value: each(indexes), Unit: "bytes/command"})
	report.Note("%s, bytes of each command in tables+indexes: %s.", sh.name, strings.Join(parts, ", "))
	return nil
}

// tableSize is what a table has, in bytes of whole pages.
type tableSize struct {
	name          string
	heap, indexes int64
}

type database struct{ tables []tableSize }

func (d database) of(name string) tableSize {
	for _, t := range d.tables {
		if t.name == name {
			return t
		}
	}
	return tableSize{name: name}
}

func sizes(ctx context.Context, pool *pgxpool.Pool) (d database, err error) {
	rows, err := pool.Query(ctx, `SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class
		WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace ORDER BY pg_total_relation_size(oid) DESC`)
	if err != nil {
		return d, err
	}
	for rows.Next() {
		var t tableSize
		if err := rows.Scan(&t.name, &t.heap, &t.indexes); err != nil {
			return d, err
		}
		d.tables = append(d.tables, t)
	}
	return d, rows.Err()
}

// caller is a model that calls four tools a turn, until it has called as many as it is to, and answers.
type caller struct{ commands int }

// Generate counts the calls by the newest one's id.
func (c caller) Generate(_ context.Context, req model.Request, _ func(model.Delta)) (model.Reply, error) {
	done := 0
	for _, m := range req.Messages {
		for _, call := range m.ToolCalls {
			if n, err := strconv.Atoi(call.ID); err == nil {
				done = max(done, n)
			}
		}
	}
	reply := model.Reply{Model: "bench", Finish: model.FinishStop, Usage: model.Usage{InputTokens: 10, OutputTokens: 2}}
	if len(req.Tools) == 0 || done >= c.commands {
		reply.Text = "Done."
		return reply, nil
	}
	reply.Finish = model.FinishTools
	for k := done + 1; k <= min(done+4, c.commands); k++ {
		args, err := json.Marshal(struct{ A, B int }{k, 1})
		if err != nil {
			return reply, err
		}
		reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: strconv.Itoa(k), Name: "add", Arguments: string(args)})
	}
	return reply, nil
}
