// Command lanes measures what the fast lane saves:
//
//	go run ./bench/lanes
//
// Runs of ten tool calls, one after the other, which take no time: each call passes the commit gate, in the normal lane with an activity
// of its own and in the fast lane in segments. 1 and 16 runs at a time, both lanes on the same servers with fsync on, in turns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

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
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

func measure(ctx context.Context, o options) (_ *bench.Report, err error) {
	add, err := bench.Adder()
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: scripted.New(scripted.Options{}), Tools: []tool.Tool{add}, Progress: os.Stderr, TemporalDynamicConfig: o.settings})
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
	plan := bench.ChainIn(lane, o.steps)
	r, err := bench.TakeRuns(ctx, parallel, runs, func(ctx context.Context) error {
		_, err := s.Do(ctx, bench.Run{Input: "Take all steps.", Mode: agent.ModePlan, Plan: plan})
		return err
	})
	return float64(runs*o.steps) / r.Wall.Seconds(), err
}
