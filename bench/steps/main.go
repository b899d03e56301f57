// Command steps measures what a step of a run costs beside the activity that it is:
//
//	go run ./bench/steps
//
// A run is a plan of ten tool commands, one after the other, whose tool returns at once. The limit is a bare workflow of ten
// activities, one after the other too, each of which writes one row twice and commits both times, on the same Temporal, the same
// Postgres and a worker with the same options. A second one has ten activities that do nothing at all. They are measured in turns, one
// run at a time and twenty at a time.
//
// A run is accepted and its end waited for as the API does it: from before the request is on record until its end is. A bare workflow is
// started and waited for with Temporal's client.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"runledger/agent"
	"runledger/bench"
	"runledger/tool"
)

// steps is how many commands a run has.
const steps = 10

type options struct {
	alone, together int // runs of a round, one at a time and so many at a time
	at              int
	rounds          int
}

func main() {
	var o options
	flag.IntVar(&o.alone, "alone", 25, "runs of a round, one at a time")
	flag.IntVar(&o.together, "together", 100, "runs of a round, several at a time")
	flag.IntVar(&o.at, "at", 20, "how many those are")
	flag.IntVar(&o.rounds, "rounds", 4, "how often each is measured")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

// side is one of those that are compared.
type side struct {
	name string
	do   func(ctx context.Context) error
	// what was measured of it.
	times []float64 // of each run, ms
	wall  time.Duration
	used  bench.ProcessorTime
}

func measure(ctx context.Context, o options) (report *bench.Report, err error) {
	add, err := bench.Adder()
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Tools: []tool.Tool{add}, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	bare, err := startBare(ctx, s)
	if err != nil {
		return nil, err
	}
	defer bare.stop()

	report = bench.NewReport(fmt.Sprintf("runs of %d steps without latency", steps))
	plan := bench.Chain(steps)
	plan.Output = plan.Nodes[steps-1].ID // no model is asked for an answer
	for _, level := range []struct{ at, runs int }{{1, o.alone}, {o.at, o.together}} {
		ours := &side{name: "runs", do: func(ctx context.Context) error {
			_, err := s.Do(ctx, bench.Run{Input: "Do nothing.", Mode: agent.ModePlan, Plan: plan})
			return err
		}}
		commits := &side{name: "two commits each", do: bare.run(activityCommits, steps)}
		nothing := &side{name: "no-op activities", do: bare.run(activityNothing, steps)}
		sides := []*side{ours, commits, nothing}
		for _, one := range sides { // what is slow only the first time is not measured
			if err := one.round(ctx, level.at, 2*level.at); err != nil {
				return report, err
			}
			*one = side{name: one.name, do: one.do}
		}
		for range o.rounds {
			for _, one := range sides {
				if err := one.round(ctx, level.at, level.runs); err != nil {
					return report, err
				}
			}
		}
		compare(report, level.at, ours, commits, nothing)
	}
	report.Note("A run is %d activities, one for each tool command; that it is accepted, sent to Temporal and ended is part of it.", steps)
	return report, nil
}

// round takes a number of runs, some at a time.
func (s *side) round(ctx context.Context, at, runs int) error {
	r, err := bench.TakeRuns(ctx, at, runs, s.do)
	if err != nil {
		return fmt.Errorf("%s, %d at a time: %w", s.name, at, err)
	}
	s.times = append(s.times, r.Times...)
	s.wall += r.Wall
	s.used.All += r.Used.All
	if s.used.By == nil {
		s.used.By = map[string]time.Duration{}
	}
	for name, d := range r.Used.By {
		s.used.By[name] += d
	}
	return nil
}

func (s *side) runs() float64      { return float64(len(s.times)) }
func (s *side) perSecond() float64 { return s.runs() / s.wall.Seconds() }
func (s *side) processor() float64 { return s.used.All.Seconds() / s.runs() }

// split says which programs the processor time of a run belongs to.
func (s *side) split() string {
	text := ""
	for _, name := range []string{"temporal", "postgres"} {
		text += fmt.Sprintf("%s %.0f ms, ", name, s.used.By[name].Seconds()*1000/s.runs())
	}
	own := s.used.All - s.used.By["temporal"] - s.used.By["postgres"]
	return text + fmt.Sprintf("worker and client %.0f ms", own.Seconds()*1000/s.runs())
}

func compare(report *bench.Report, at int, ours, commits, nothing *side) {
	name := func(what string) string { return fmt.Sprintf("%s, %d at a time", what, at) }
	p := func(s *side, q float64) float64 { return bench.Quantile(s.times, q) }
	report.Add(bench.Figure{Name: name("p50"), Value: p(ours, 0.5), Unit: "ms", Limit: p(commits, 0.5), LimitName: "ten activities, two commits each", Ceiling: 1.25})
	report.Add(bench.Figure{Name: name("p99"), Value: p(ours, 0.99), Unit: "ms", Limit: p(commits, 0.99), LimitName: "ten activities, two commits each"})
	report.Add(bench.Figure{Name: name("throughput"), Value: ours.perSecond(), Unit: "runs/s", Limit: commits.perSecond(), LimitName: "ten activities, two commits each", Floor: 0.85})
	report.Add(bench.Figure{Name: name("processor per run"), Value: ours.processor() * 1000, Unit: "ms", Limit: commits.processor() * 1000, LimitName: "ten activities, two commits each"})
	report.Add(bench.Figure{Name: name("p50"), Value: p(ours, 0.5), Unit: "ms", Limit: p(nothing, 0.5), LimitName: "ten no-op activities"})
	report.Add(bench.Figure{Name: name("throughput"), Value: ours.perSecond(), Unit: "runs/s", Limit: nothing.perSecond(), LimitName: "ten no-op activities"})
	for _, s := range []*side{ours, commits, nothing} {
		report.Note("Processor per run, %d at a time, %s: %s.", at, s.name, s.split())
	}
}
