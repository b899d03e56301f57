package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
)

// dbosSide is DBOS with one workflow, in a database of its own on the Postgres that Runledger has.
type dbosSide struct {
	ctx dbos.Context
	// durability is what that Postgres says of how it commits.
	durability string
}

// startDBOS starts it. It makes its database, and has its own pool of 20 connections (its default).
func startDBOS(ctx context.Context, databaseURL string) (_ *dbosSide, err error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, err
	}
	u.Path = "/dbos"
	d := &dbosSide{}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	// It ends by stop, which lets what is at work end first.
	d.ctx, err = dbos.NewContext(context.WithoutCancel(ctx), dbos.Config{AppName: "peers", DatabaseURL: u.String(), Logger: log})
	if err != nil {
		return nil, fmt.Errorf("start DBOS: %w", err)
	}
	dbos.RegisterWorkflow(d.ctx, dbosSteps)
	if err = dbos.Launch(d.ctx); err == nil {
		d.durability, err = durability(ctx, u.String())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start DBOS: %w", err), d.stop())
	}
	return d, nil
}

func (d *dbosSide) stop() error { return dbos.Shutdown(d.ctx, 10*time.Second) }

// dbosSteps takes so many steps.
func dbosSteps(ctx dbos.Context, n int) (int, error) {
	sum := 0
	for i := range n {
		got, err := dbos.RunAsStep(ctx, func(context.Context) (int, error) { return i + 1, nil })
		if err != nil {
			return 0, err
		}
		sum += got
	}
	return sum, nil
}

// run takes a workflow from its start to its result.
func (d *dbosSide) run(ctx context.Context) error {
	handle, err := dbos.RunWorkflow(d.ctx.From(d.ctx, ctx), dbosSteps, steps)
	if err != nil {
		return err
	}
	return right(handle.GetResult())
}

// right checks what a run gives: the sum of what its steps did.
func right(sum int, err error) error {
	if err == nil && sum != steps*(steps+1)/2 {
		err = fmt.Errorf("a run gave %d", sum)
	}
	return err
}

// durability asks a Postgres how it commits, as sessions of this database have it, and refuses less than everything.
func durability(ctx context.Context, databaseURL string) (string, error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var fsync, commit string
	if err := conn.QueryRow(ctx, `SELECT current_setting('fsync'), current_setting('synchronous_commit')`).Scan(&fsync, &commit); err != nil {
		return "", err
	}
	if fsync != "on" || commit != "on" {
		return "", fmt.Errorf("fsync is %s and synchronous_commit %s in Postgres", fsync, commit)
	}
	return "Postgres has fsync and synchronous_commit on", nil
}
