// Command lanes measures what the fast lane saves:
//
//	go run ./bench/lanes
//
// Runs of ten tool calls, one after the other, which take no time: each call passes the commit gate, in the normal lane with an activity
// of its own and in the fast lane in segments. 1 and 16 runs at a time, both lanes on the same servers with fsync on, in turns.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"runledger/agent"
	"runledger/bench"
	"runledger/model/scripted"
	"runledger/tool"
)

type options struct {
	runs, steps, rounds int
	settings            []string
}

func main() {
	var o options
	flag.IntVar(&o.runs, "runs", 64, "how many runs at 16 at a time; a quarter of them one at a time")
	flag.IntVar(&o.steps, "steps", 10, "how many calls a run has")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each is measured; the median counts")
	asJSON := bench.JSONFlag()
	flag.Parse()
	if flag.NArg() > 0 || o.runs < 4 || o.steps < 1 || o.rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	report, err := measure(ctx, o)
	stop()
	if err == nil {
		err = report.Print(*asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanes:", err)
		os.Exit(1)
	}
}

func nothing(_ context.Context, in struct{ N int }, _ tool.Call) (int, error) { return in.N, nil }

func measure(ctx context.Context, o options) (_ *bench.Report, err error) {
	step, err := tool.New(tool.Spec{Name: "step", Description: "Does nothing.", Effect: agent.Idempotent}, nothing)
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: scripted.New(scripted.Options{}), Tools: []tool.Tool{step}, Progress: os.Stderr, TemporalDynamicConfig: o.settings})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	report := bench.NewReport(fmt.Sprintf("runs of %d calls in a row", o.steps))
	if _, err := rate(ctx, s, o, 1, 4, agent.FastLane); err != nil { // warm up
		return nil, err
	}
	for _, parallel := range []int{1, 16} {
		runs := o.runs
		if parallel == 1 {
			runs = max(1, o.runs/4)
		}
		var normal, fast []float64
		for range o.rounds {
			n, err := rate(ctx, s, o, parallel, runs, agent.NormalLane)
			if err != nil {
				return nil, err
			}
			f, err := rate(ctx, s, o, parallel, runs, agent.FastLane)
			if err != nil {
				return nil, err
			}
			normal, fast = append(normal, n), append(fast, f)
		}
		figure := bench.Figure{Name: fmt.Sprintf("fast lane, %d at a time", parallel), Value: bench.Quantile(fast, 0.5), Unit: "steps/s",
			Limit: bench.Quantile(normal, 0.5), LimitName: "the normal lane"}
		if parallel == 16 {
			figure.Floor = 8
		}
		report.Add(figure)
	}
	return report, nil
}

// rate executes runs and gives their calls a second.
func rate(ctx context.Context, s *bench.Stack, o options, parallel, runs int, lane agent.Lane) (float64, error) {
	plan := &agent.Plan{Output: fmt.Sprintf("n%d", o.steps-1)}
	for i := range o.steps {
		n := agent.Node{ID: fmt.Sprintf("n%d", i), Kind: agent.ToolNode, Tool: "step", Args: json.RawMessage(fmt.Sprintf(`{"N": %d}`, i)), Lane: lane}
		if i > 0 {
			n.DependsOn = []string{fmt.Sprintf("n%d", i-1)}
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	began := time.Now()
	for range runs {
		group.Go(func() error {
			_, err := s.Do(ctx, bench.Run{Input: "Take all steps.", Mode: agent.ModePlan, Plan: plan})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return float64(runs*o.steps) / time.Since(began).Seconds(), nil
}
