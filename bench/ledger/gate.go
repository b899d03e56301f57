package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"runledger/bench"
	"runledger/ledger"
)

// commandsPerRun is how many tool commands each run has.
const commandsPerRun = 10

// gate lets commands through the ledger.
type gate struct {
	ledger *ledger.Ledger
	pool   *pgxpool.Pool
	runs   *bench.Accepter
	// queues are the commands that each writer is to take.
	queues [][]bench.Addition
}

func openGate(ctx context.Context, url string, pool *pgxpool.Pool, writers int) (*gate, error) {
	l, err := ledger.Open(ctx, url, ledger.Options{MaxConns: int32(writers)}) //nolint:gosec // small
	if err != nil {
		return nil, err
	}
	g := &gate{ledger: l, pool: pool}
	if g.runs, err = bench.NewAccepter(l, commandsPerRun); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *gate) close() { g.ledger.Close() }

// prepare accepts as many runs as each writer needs for so many commands, and lets them be at work.
func (g *gate) prepare(ctx context.Context, writers, commands int, shared bool) error {
	g.queues = make([][]bench.Addition, writers)
	conversation := ""
	if shared {
		conversation = uuid.Must(uuid.NewV7()).String()
	}
	// The first run makes the conversation that all share, so it is there before the others.
	if err := g.accept(ctx, 0, conversation, true); err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		all.Go(func() {
			for len(g.queues[w]) < commands && errs[w] == nil {
				errs[w] = g.accept(ctx, w, conversation, !shared)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := bench.SetToWork(ctx, g.pool); err != nil {
		return err
	}
	_, err := g.pool.Exec(ctx, `VACUUM ANALYZE`)
	return err
}

// accept accepts a run for a writer, in a conversation of its own where none is named.
func (g *gate) accept(ctx context.Context, writer int, conversation string, creates bool) error {
	run, err := g.runs.Accept(ctx, conversation, creates)
	if err != nil {
		return err
	}
	for i := range commandsPerRun {
		g.queues[writer] = append(g.queues[writer], bench.Addition{Run: run, Index: i})
	}
	return nil
}

// command takes a writer's next command through the gate.
func (g *gate) command(ctx context.Context, writer int) error {
	if len(g.queues[writer]) == 0 {
		return errEnough
	}
	next := g.queues[writer][0]
	g.queues[writer] = g.queues[writer][1:]
	if err := next.Begin(ctx, g.ledger); err != nil {
		return err
	}
	return next.Commit(ctx, g.ledger)
}

// written is what a command writes.
type written struct {
	rows  int // of both transactions together
	bytes int // of all of them
}

func (w written) String() string {
	return fmt.Sprintf("%d rows of %d bytes together, in two transactions", w.rows, w.bytes)
}

// size counts it, over all commands that are committed: the events and the checkpoint as they are stored, and the command's row
// twice, since it is written at the begin and at the commit. The counter of the conversation, which is updated twice, is left out.
func (g *gate) size(ctx context.Context) (w written, err error) {
	err = g.pool.QueryRow(ctx, `WITH done AS (SELECT c.*, pg_column_size(c.*) AS size FROM commands c WHERE state = 'committed'),
			n AS (SELECT count(*) AS commands, sum(size) AS bytes FROM done),
			e AS (SELECT count(*) AS n, sum(pg_column_size(e.*)) AS bytes FROM agent_execution_events e WHERE event_type IN
				('node_started', 'command_emitted', 'command_committed', 'node_finished', 'checkpoint_saved') AND run_id IN (SELECT run_id FROM done)),
			k AS (SELECT count(*) AS n, sum(pg_column_size(k.*)) AS bytes FROM execution_checkpoints k WHERE run_id IN (SELECT run_id FROM done))
		SELECT round((2 * n.commands + e.n + k.n) / n.commands::numeric)::int, ((2 * n.bytes + e.bytes + k.bytes) / n.commands)::int FROM n, e, k`).Scan(&w.rows, &w.bytes)
	return w, err
}
