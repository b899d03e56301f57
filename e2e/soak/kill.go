package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// dispatch is one execution of a command's effect: its idempotency key and its number.
type dispatch struct {
	Key string
	No  int
}

// killer carries the kills out, one after the other, and counts what each has cut off.
type killer struct {
	stack *stack

	mu    sync.Mutex
	done  []killed
	lost  map[dispatch]int // external dispatches that died with their worker, and with which kill
	aside []unseen
}

// killed is a kill that was carried out.
type killed struct {
	Victim victim `json:"victim"`
	// Serving is how many calls of the victim, or of everybody where the victim is a server, were at work at the tool server.
	Serving int `json:"serving"`
	// Lost is how many external dispatches it has left behind, Unseen how many of them had not reached the tool server.
	Lost   int `json:"lost"`
	Unseen int `json:"unseen"`
	// Lasting is how many calls were at work for as long as Temporal was away, or longer.
	Lasting int `json:"lasting,omitempty"`
	// Seconds is how long it took, until the victim was back.
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
	Error   string    `json:"error,omitempty"`
}

// unseen is a dispatch that had not reached the tool server yet when a worker was killed: that worker's, or that of another
// one which was about to call.
type unseen struct {
	dispatch
	kill, calls int
	at          time.Time
}

// seenSoon is how long a worker that lives may take between the record of a dispatch and its call.
const seenSoon = 3 * time.Second

func (k *killer) run(ctx context.Context, kills []kill) {
	for _, next := range kills {
		k.watch(ctx, next.after)
		if ctx.Err() != nil {
			return
		}
		k.carryOut(next.victim, func(what *killed) error { return k.one(ctx, next, what) })
	}
}

// carryOut does what a kill is and notes it.
func (k *killer) carryOut(v victim, do func(*killed) error) {
	what := killed{Victim: v, At: time.Now()}
	if err := do(&what); err != nil {
		what.Error = err.Error()
		fmt.Fprintf(os.Stderr, "soak: kill %d, of %s: %v\n", len(k.done)+1, v, err)
	}
	what.Seconds = time.Since(what.At).Seconds()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done = append(k.done, what)
}

// byItself is the "victim" of a kill that nobody has carried out: a process that ended.
const byItself victim = "by itself"

// watch looks after the processes for a while: it starts again whatever has ended by itself, and notes that like a kill.
func (k *killer) watch(ctx context.Context, d time.Duration) {
	s := k.stack
	until := time.Now().Add(d)
	for ctx.Err() == nil && time.Now().Before(until) {
		pause(ctx, min(200*time.Millisecond, time.Until(until)))
		k.settle()
		for _, w := range s.workers {
			if w.proc.ended() {
				fmt.Fprintf(os.Stderr, "soak: %s has ended by itself\n", w.role)
				k.carryOut(byItself, func(what *killed) error { return k.workers(ctx, kill{}, what, w) })
			}
		}
		if s.api.ended() {
			fmt.Fprintln(os.Stderr, "soak: the API has ended by itself")
			k.carryOut(byItself, func(*killed) error { return s.startAPI(ctx) })
		}
	}
}

func (k *killer) one(ctx context.Context, next kill, what *killed) error {
	s := k.stack
	switch next.victim {
	case killWorker:
		return k.workers(ctx, next, what, s.workers[next.worker])
	case killWorkers:
		return k.workers(ctx, next, what, s.workers...)
	case killAPI:
		s.api.kill()
		pause(ctx, next.away)
		return s.startAPI(ctx)
	case killTemporal, stopTemporal:
		if next.victim == stopTemporal {
			// It is about the effects that are at work all the while: there should be one.
			for until := time.Now().Add(longStop); s.tools.lasting(longStop) == 0 && time.Now().Before(until); {
				k.watch(ctx, 50*time.Millisecond)
			}
			what.Lasting = s.tools.lasting(longStop)
		}
		what.Serving = s.tools.serving()
		if next.victim == killTemporal {
			if err := syscall.Kill(s.temporal.PID(), syscall.SIGKILL); err != nil {
				return err
			}
			<-s.temporal.Done()
		}
		stopCtx, cancel := context.WithTimeout(ctx, stopPatience)
		defer cancel()
		if err := s.temporal.Stop(stopCtx); err != nil { // also gives the folder of a killed one free
			return err
		}
		pause(ctx, next.away)
		return s.startTemporal(ctx)
	case killPostgres:
		what.Serving = s.tools.serving()
		how := syscall.SIGKILL
		if next.immediate {
			how = syscall.SIGQUIT
		}
		if err := syscall.Kill(s.postgres.PID(), how); err != nil {
			return err
		}
		<-s.postgres.Done()
		stopCtx, cancel := context.WithTimeout(ctx, stopPatience)
		defer cancel()
		if err := s.postgres.Stop(stopCtx); err != nil {
			return err
		}
		pause(ctx, next.away)
		return s.startPostgres(ctx)
	}
	return fmt.Errorf("nobody knows how to kill %q", next.victim)
}

// stand is how long a stopped process gets to stand still, all its threads.
const stand = 30 * time.Millisecond

// workers kills workers in the middle of what they do, and finds out what that was.
func (k *killer) workers(ctx context.Context, next kill, what *killed, victims ...*worker) error {
	s := k.stack
	for _, w := range victims {
		w.proc.signal(syscall.SIGSTOP)
	}
	pause(ctx, stand)
	doors := make([]*door, len(victims))
	for i, w := range victims {
		doors[i] = w.door
	}
	what.Serving = s.tools.serving(doors...)
	for _, w := range victims {
		s.tools.dies(w.door)
		w.proc.kill()
		s.tools.shut(w.door)
	}
	if err := k.count(ctx, what, victims); err != nil {
		return err
	}
	pause(ctx, next.away)
	for _, w := range victims {
		if err := s.startWorker(w); err != nil {
			return err
		}
	}
	return nil
}

// count asks the ledger which external commands the dead workers have left dispatched, once their last transactions have ended.
func (k *killer) count(ctx context.Context, what *killed, victims []*worker) error {
	s := k.stack
	roles := make([]string, len(victims))
	dead := map[int]bool{}
	for i, w := range victims {
		roles[i] = w.role
		dead[w.door.no] = true
	}
	var left []dispatch
	err := s.query(ctx, func(conn *pgx.Conn) error {
		for {
			sessions := 0
			err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE usename = ANY ($1)`, roles).Scan(&sessions)
			if err != nil {
				return err
			}
			if sessions == 0 {
				break
			}
			pause(ctx, 10*time.Millisecond)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		rows, err := conn.Query(ctx, `SELECT run_id || '/' || command_id, dispatch_no FROM commands WHERE state = 'dispatched' AND effect_class = 'external'`)
		if err != nil {
			return err
		}
		left, err = pgx.CollectRows(rows, pgx.RowToStructByPos[dispatch])
		return err
	})
	if err != nil {
		return fmt.Errorf("count what was in flight: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range left {
		if _, known := k.lost[d]; known {
			continue // an earlier kill's: its lease is not over yet
		}
		last, calls := s.tools.last(d.Key)
		switch {
		case calls >= d.No && dead[last.no]:
			k.lost[d] = len(k.done)
			what.Lost++
		case calls < d.No:
			k.aside = append(k.aside, unseen{dispatch: d, kill: len(k.done), calls: calls, at: time.Now()})
		}
	}
	return nil
}

// settle decides about the dispatches that nobody had seen at a kill: those that were still not seen a while later died with
// the worker.
func (k *killer) settle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	var open []unseen
	for _, u := range k.aside {
		_, calls := k.stack.tools.last(u.Key)
		switch {
		case calls > u.calls:
		case time.Since(u.at) < seenSoon:
			open = append(open, u)
		default:
			if _, known := k.lost[u.dispatch]; !known {
				k.lost[u.dispatch] = u.kill
				k.done[u.kill].Lost++
				k.done[u.kill].Unseen++
			}
		}
	}
	k.aside = open
}

func (k *killer) standing() (kills, lost int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.done), len(k.lost)
}

// record gives the kills and the external dispatches that died with a worker.
func (k *killer) record() ([]killed, map[dispatch]int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.done, k.lost
}
