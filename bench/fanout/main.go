// Command fanout measures how soon all who follow a run have its news, and what somebody who waits for news costs:
//
//	go run ./bench/fanout
//
// One run, and 100, 1,000 and 5,000 clients that follow it over HTTP/1.1 on loopback, each on a connection of its own. The run's
// commands are taken through the gate one after the other; each transaction is timed from the return of its commit to the moment at
// which the last client has its last frame. The limit is a bare net/http handler that writes the same frames, together, to as many
// clients, woken by the close of a channel; it is timed from when it is given them.
//
// The server is a process of its own, and so are all clients together. The memory is what the server's process has with the clients
// connected and idle, less what it had before, after a garbage collection each time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"

	"runledger/bench"
)

type options struct {
	clients  []int
	commands int
	pause    time.Duration
	profile  string // of the API's server, with the number of clients appended
}

func main() {
	bench.Part(parts())
	o := options{clients: []int{100, 1000, 5000}}
	flag.IntVar(&o.commands, "commands", 60, "how many commands the run has, of two transactions each")
	flag.DurationVar(&o.pause, "pause", 20*time.Millisecond, "how long everything rests between two transactions")
	flag.StringVar(&o.profile, "server-profile", "", "a file for a profile of the API server's processor time; the number of clients is appended")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

func parts() map[string]func(string) error {
	return map[string]func(string) error{partAPI: serveAPI, partBare: serveBare, partClients: follow}
}

func measure(ctx context.Context, o options) (report *bench.Report, err error) {
	db, err := bench.StartDatabase(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	w, err := newWriter(ctx, db.URL, o.commands)
	if err != nil {
		return nil, err
	}
	defer w.close()
	report = bench.NewReport("one run, many clients")
	for _, n := range o.clients {
		if free, err := files(); err != nil || n+100 > free {
			report.Note("%d clients were left out: a process may have %d files open.", n, free)
			continue
		}
		ours, frames, err := w.measureAPI(ctx, n, o)
		if err != nil {
			return report, fmt.Errorf("%d clients of the API: %w", n, err)
		}
		bare, err := measureBare(ctx, n, frames, o)
		if err != nil {
			return report, fmt.Errorf("%d clients of the bare handler: %w", n, err)
		}
		name := func(what string) string { return fmt.Sprintf("%s, %d clients", what, n) }
		const limit = "bare net/http handler"
		report.Add(bench.Figure{Name: name("commit to the last client, p50"), Value: bench.Quantile(ours.last, 0.5), Unit: "ms", Limit: bench.Quantile(bare.last, 0.5), LimitName: limit})
		report.Add(bench.Figure{Name: name("commit to the last client, p99"), Value: bench.Quantile(ours.last, 0.99), Unit: "ms", Limit: bench.Quantile(bare.last, 0.99), LimitName: limit, Ceiling: 3})
		report.Add(bench.Figure{Name: name("memory of an idle client"), Value: ours.memory, Unit: "bytes", Limit: bare.memory, LimitName: limit, Ceiling: 1.3})
		report.Add(bench.Figure{Name: name("server's processor per frame and client"), Value: ours.processor, Unit: "us", Limit: bare.processor, LimitName: limit})
	}
	report.Note("Each of %d transactions is a sample. The API sends its heartbeats meanwhile, 2 KB to each client every 10 s, and the bare handler none.", 2*o.commands)
	return report, nil
}

// files is how many files a process may have open.
func files() (int, error) {
	var l syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return int(min(l.Cur, 1<<30)), err //nolint:gosec // bounded
}

// measured is what was measured of a server.
type measured struct {
	last      []float64 // ms, from each commit to the last client
	memory    float64   // bytes of each idle client
	processor float64   // microseconds of the server for each transaction and client
}

// audience is a server with all its clients.
type audience struct {
	server, clients *bench.Child
	n               int
	memory          float64
	before          time.Duration
}

// gather starts a server with its clients. path is what they ask it for.
func gather(ctx context.Context, part, args, path string, n int) (_ *audience, err error) {
	a := &audience{n: n}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.leave())
		}
	}()
	if a.server, err = bench.StartChild(ctx, part, args); err != nil {
		return nil, err
	}
	url, err := a.server.Line(ctx)
	if err != nil {
		return nil, err
	}
	// A first client brings what all share into memory.
	if a.clients, err = follows(ctx, url, path, 1); err != nil {
		return nil, err
	}
	if err := a.clients.Stop(); err != nil {
		return nil, err
	}
	empty, err := a.resident(ctx)
	if err != nil {
		return nil, err
	}
	if a.clients, err = follows(ctx, url, path, n); err != nil {
		return nil, err
	}
	full, err := a.resident(ctx)
	if err != nil {
		return nil, err
	}
	a.memory = float64(full-empty) / float64(n)
	a.before, err = bench.ProcessorTimeOf(a.server.PID())
	return a, err
}

// follows starts clients and returns when each of them has an answer.
func follows(ctx context.Context, url, path string, n int) (*bench.Child, error) {
	c, err := bench.StartChild(ctx, partClients, fmt.Sprintf("%d %s%s", n, url, path))
	if err != nil {
		return nil, err
	}
	for said := ""; said != "ready"; { // what happened before they came is theirs too
		if said, err = c.Line(ctx); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// resident is the memory of the server after a garbage collection.
func (a *audience) resident(ctx context.Context) (int64, error) {
	if err := a.server.Tell("collect"); err != nil {
		return 0, err
	}
	if said, err := a.server.Line(ctx); err != nil || said != "collected" {
		return 0, errors.Join(fmt.Errorf("the server said %q", said), err)
	}
	return bench.ResidentBytes(a.server.PID())
}

// await returns when all clients have an event, and tells when that was.
func (a *audience) await(ctx context.Context, sequence int64) (time.Time, error) {
	for {
		line, err := a.clients.Line(ctx)
		if err != nil {
			return time.Time{}, err
		}
		var id, at int64
		if _, err := fmt.Sscan(line, &id, &at); err != nil {
			return time.Time{}, fmt.Errorf("the clients said %q: %w", line, err)
		}
		if id == sequence {
			return time.Unix(0, at), nil
		}
	}
}

// result is what was measured with so many transactions.
func (a *audience) result(last []float64) (m measured, err error) {
	after, err := bench.ProcessorTimeOf(a.server.PID())
	return measured{last: last, memory: a.memory, processor: float64((after - a.before).Microseconds()) / float64(len(last)*a.n)}, err
}

func (a *audience) leave() error {
	var errs []error
	for _, c := range []*bench.Child{a.clients, a.server} {
		if c != nil {
			errs = append(errs, c.Stop())
		}
	}
	return errors.Join(errs...)
}

func since(began, ended time.Time) float64 { return float64(ended.Sub(began).Microseconds()) / 1000 }
