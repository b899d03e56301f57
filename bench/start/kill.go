package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"runledger/agent"
	"runledger/bench"
	"runledger/ledger"
	"runledger/model"
	"runledger/model/scripted"
	"runledger/tool"
	"runledger/worker"
)

const partWorker = "worker"

// effect is how long a command's effect takes.
const effect = 200 * time.Millisecond

// nap is the tool of the runs. It says when it begins, so that its worker can be killed in the middle.
func nap() (tool.Tool, error) {
	return tool.New(tool.Spec{Name: "nap", Description: "Waits a moment.", Effect: agent.Idempotent},
		func(ctx context.Context, in struct{ N int }, call tool.Call) (int, error) {
			fmt.Println(call.RunID, in.N)
			select {
			case <-time.After(effect):
				return in.N, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
}

// work is a worker. args are its servers.
func work(args string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	servers := strings.Fields(args)
	if len(servers) != 3 {
		return fmt.Errorf("want a database, an address and a namespace, not %d words", len(servers))
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	l, err := ledger.Open(ctx, servers[0], ledger.Options{Log: log})
	if err != nil {
		return err
	}
	defer l.Close()
	temporal, err := worker.Dial(ctx, servers[1], servers[2], log)
	if err != nil {
		return err
	}
	defer temporal.Close()
	t, err := nap()
	if err != nil {
		return err
	}
	set, err := tool.NewSet(t)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	go func() {
		<-ready
		fmt.Println("ready")
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	said := scripted.New(scripted.Options{})
	return worker.Run(ctx, worker.Config{Ledger: l, Temporal: temporal, Tools: set, Log: log, Models: func(string) model.Client { return said }, Published: ready})
}

// naps is a plan of one nap after the other.
func naps(n int) *agent.Plan {
	plan := &agent.Plan{}
	for i := range n {
		node := agent.Node{ID: fmt.Sprintf("n%d", i), Kind: agent.ToolNode, Tool: "nap", Args: json.RawMessage(fmt.Sprintf(`{"N": %d}`, i))}
		if i > 0 {
			node.DependsOn = []string{fmt.Sprintf("n%d", i-1)}
		}
		plan.Nodes = append(plan.Nodes, node)
	}
	return plan
}

func measureKills(ctx context.Context, report *bench.Report, kills int) (err error) {
	if kills == 0 {
		return nil
	}
	t, err := nap()
	if err != nil {
		return err
	}
	s, err := bench.Start(ctx, bench.Config{Model: scripted.New(scripted.Options{}), Tools: []tool.Tool{t}, Progress: os.Stderr, NoWorker: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	var busy, idle []float64
	for range kills {
		for _, executes := range []bool{true, false} {
			took, err := kill(ctx, s, executes)
			if err != nil {
				return err
			}
			if executes {
				busy = append(busy, took.Seconds())
			} else {
				idle = append(idle, took.Seconds())
			}
		}
	}
	report.Add(bench.Figure{Name: "SIGKILL of the worker that executes, to the next commit, median", Value: bench.Quantile(busy, 0.5), Unit: "s"})
	report.Add(bench.Figure{Name: "the longest", Value: bench.Quantile(busy, 1), Unit: "s"})
	report.Add(bench.Figure{Name: "SIGKILL of the other worker, to the commit after the one at work, median", Value: bench.Quantile(idle, 0.5), Unit: "s"})
	report.Add(bench.Figure{Name: "the longest", Value: bench.Quantile(idle, 1), Unit: "s"})
	report.Note("A command's effect takes %s, which is a part of each time. A lost effect is tried again when Temporal has missed its heartbeats and the ledger's lease is over.", effect)
	return nil
}

// kill lets two workers have a run at work, kills one of them and waits for the other's next commit.
func kill(ctx context.Context, s *bench.Stack, executes bool) (took time.Duration, err error) {
	var workers []*bench.Child
	defer func() {
		for _, w := range workers {
			err = errors.Join(err, w.Stop())
		}
	}()
	for range 2 {
		w, err := bench.StartChild(ctx, partWorker, s.Servers())
		if err != nil {
			return 0, err
		}
		workers = append(workers, w)
		if said, err := w.Line(ctx); err != nil || said != "ready" {
			return 0, errors.Join(fmt.Errorf("the worker said %q", said), err)
		}
	}
	const before = 5 // commands that are done by then
	run, err := s.Accept(ctx, bench.Run{Input: "Nap.", Mode: agent.ModePlan, Plan: naps(before + 5)})
	if err != nil {
		return 0, err
	}
	at, number := -1, 0
	for number < before {
		var line string
		select {
		case line = <-workers[0].Lines():
			at = 0
		case line = <-workers[1].Lines():
			at = 1
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		var id string
		if _, err := fmt.Sscan(line, &id, &number); err != nil || id != run.RunID {
			return 0, errors.Join(fmt.Errorf("a worker said %q", line), err)
		}
	}
	// The command number is at work now, at one of the two.
	awaited := number
	if !executes {
		at = 1 - at
		awaited++ // that one goes on
	}
	killed := time.Now()
	if err := workers[at].Kill(); err != nil {
		return 0, err
	}
	news, stop := s.Ledger.Subscribe(run.ConversationID)
	defer stop()
	for {
		c, err := s.Ledger.Command(ctx, run.RunID, fmt.Sprintf("n%d", awaited))
		var missing *agent.NotFoundError
		if err != nil && !errors.As(err, &missing) {
			return 0, err
		}
		if err == nil && c.State == agent.Committed {
			took = time.Since(killed)
			break
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	_, err = s.Wait(ctx, run)
	return took, err
}
