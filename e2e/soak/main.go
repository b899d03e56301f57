// Command soak lets real processes run while it kills them at random, and then counts:
//
//	go run ./e2e/soak --runs 200 --kills 50 --seed 1
//
// It starts a Postgres, a Temporal, an API and some workers, posts runs of ten commands of all effect classes, half of them in
// the fast lane, kills workers, API, Temporal and Postgres while they are at work, answers for the commands in doubt as an
// operator would, and follows a sample of the runs as a client would. At the end it holds what the ledger says against what a
// tool server of its own has counted, by idempotency key. A violation is named with its run and command; the exit code is then 1.
//
// The seed decides the plans and the kills, their order and their timing; not how processes interleave.
//
// What may be in doubt is counted, not estimated. A worker is stopped (SIGSTOP) before it is killed, and calls the tool
// server through a proxy port of its own and Postgres as a role of its own. So it is known which calls it had in flight, when
// its last transaction has ended, and which external commands its death has left dispatched: those, and no others, may be in
// doubt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	runs, kills, workers int
	seed                 uint64
	gap                  time.Duration
	timeout              time.Duration
	json, keep           bool
}

func main() {
	var o options
	flag.IntVar(&o.runs, "runs", 200, "how many runs to post")
	flag.IntVar(&o.kills, "kills", 50, "how often to kill something")
	flag.Uint64Var(&o.seed, "seed", 1, "decides the plans and the kills")
	flag.IntVar(&o.workers, "workers", 3, "how many workers")
	flag.DurationVar(&o.gap, "gap", 3*time.Second, "time between a recovery and the next kill, on average")
	flag.DurationVar(&o.timeout, "timeout", 20*time.Minute, "when to give up")
	flag.BoolVar(&o.json, "json", false, "print the report as JSON, and the table to standard error")
	flag.BoolVar(&o.keep, "keep", false, "keep the folder with logs and data; it is kept after a violation anyway")
	flag.Parse()
	if flag.NArg() > 0 || o.runs < 1 || o.kills < 0 || o.workers < 1 || o.gap <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run does all of it and reports whether everything held.
func run(ctx context.Context, o options) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	began := time.Now()
	plan := newSchedule(o)
	s, err := startStack(ctx, o.workers)
	if err != nil {
		return false, err
	}
	defer func() {
		err = errors.Join(err, s.stop(ok && !o.keep))
		if !ok || o.keep {
			fmt.Fprintln(os.Stderr, "soak: logs and data stay in", s.dir)
		}
	}()
	c := &client{url: s.apiURL}
	w := newWorkload(c, plan, s.tools)
	k := &killer{stack: s, lost: map[dispatch]int{}}
	go w.post(ctx)
	go w.operate(ctx)
	go progress(ctx, began, w, k, o)
	k.run(ctx, plan.kills)
	for !w.over(ctx) {
		k.watch(ctx, time.Second)
	}
	if ctx.Err() != nil {
		return false, fmt.Errorf("ended early: %w", ctx.Err())
	}
	k.watch(ctx, seenSoon)
	e, err := gather(ctx, c, w, k)
	if err != nil {
		return false, err
	}
	r := e.report()
	r.Seed, r.Seconds = o.seed, time.Since(began).Seconds()
	table := os.Stdout
	if o.json {
		table = os.Stderr
		if err := r.encode(os.Stdout); err != nil {
			return false, err
		}
	}
	return r.OK, r.print(table)
}

// progress prints a line every ten seconds.
func progress(ctx context.Context, began time.Time, w *workload, k *killer, o options) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.over(ctx)
		posted, ended, resolved := w.standing()
		kills, lost := k.standing()
		fmt.Fprintf(os.Stderr, "%4.0f s  runs %d/%d posted, %d ended; kills %d/%d; external calls in flight at them %d; resolved %d\n",
			time.Since(began).Seconds(), posted, o.runs, ended, kills, o.kills, lost, resolved)
	}
}

// pause waits, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
