// Command peers measures Runledger's two lanes beside two other engines of durable execution, DBOS and Restate:
//
//	cd bench/peers && go run .
//
// A run is ten steps, one after the other, that return at once: calls of a tool through the commit gate in the normal and in the fast
// lane, steps of a workflow of DBOS, and journaled functions of a handler of Restate. 1 and 16 runs at a time, in turns, each with its
// worker in this process, and each step durable (with fsync) before the next one begins. docs/performance.md says what that is for each.
//
// It is a module of its own, so that the main one does not require the other engines. Restate's server comes from npm, once, into the
// user's cache folder. It asks the internet for news whatever its settings are, so everything runs in a network namespace that has
// nothing but loopback, for which unshare(1) is needed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"

	"runledger/agent"
	"runledger/bench"
	"runledger/model/scripted"
	"runledger/tool"
)

// steps is how many a run has.
const steps = 10

type options struct {
	runs, at, rounds int
}

func main() {
	restate, err := confine()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	var o options
	flag.IntVar(&o.runs, "runs", 64, "runs of a round in the normal lane, several at a time; a quarter of them one at a time, and more of what is faster")
	flag.IntVar(&o.at, "at", 16, "how many those are")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each is measured")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, restate, o) })
}

// side is one of those that are compared.
type side struct {
	name string
	do   func(ctx context.Context) error
	// servers are the programs whose processor time is its own, beside this one's.
	servers []string
	// more is how many runs it takes for one of the normal lane, so that a round is not too short to be measured.
	more   int
	rounds []bench.Round
}

// measure measures everything. restate is the program of Restate's server.
func measure(ctx context.Context, restate string, o options) (report *bench.Report, err error) {
	add, err := bench.Adder()
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: scripted.New(scripted.Options{}), Tools: []tool.Tool{add}, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	d, err := startDBOS(ctx, s.DatabaseURL)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	r, err := startRestate(ctx, restate)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()

	lane := func(l agent.Lane) func(ctx context.Context) error {
		plan := bench.ChainIn(l, steps)
		return func(ctx context.Context) error {
			_, err := s.Do(ctx, bench.Run{Input: "Take all steps.", Mode: agent.ModePlan, Plan: plan})
			return err
		}
	}
	report = bench.NewReport(fmt.Sprintf("runs of %d steps without latency, beside other engines", steps))
	report.Note("Every engine writes durably: %s; Restate's log server syncs its log (rocksdb-disable-wal-fsync = false).", d.durability)
	report.Note("Processor time is that of this process, which holds every engine's worker and the callers, and of the engine's own servers.")
	for _, level := range []struct{ at, runs int }{{1, max(1, o.runs/4)}, {o.at, o.runs}} {
		normal := &side{name: "normal lane", do: lane(agent.NormalLane), servers: []string{"postgres", "temporal"}, more: 1}
		fast := &side{name: "fast lane", do: lane(agent.FastLane), servers: []string{"postgres", "temporal"}, more: 4}
		dbos := &side{name: "DBOS", do: d.run, servers: []string{"postgres"}, more: 4}
		restate := &side{name: "Restate", do: r.run, servers: []string{"restate-server"}, more: 4}
		sides := []*side{normal, fast, dbos, restate}
		for _, one := range sides { // what is slow only the first time is not measured
			if err := one.round(ctx, level.at, 2*level.at); err != nil {
				return report, err
			}
			one.rounds = nil
		}
		for round := range o.rounds {
			for i := range sides {
				one := sides[(round+i)%len(sides)] // the first in its turn
				if err := one.round(ctx, level.at, level.runs*one.more); err != nil {
					return report, err
				}
			}
		}
		compare(report, level.at, normal, fast, dbos, restate)
	}
	return report, nil
}

func (s *side) round(ctx context.Context, at, runs int) error {
	r, err := bench.TakeRuns(ctx, at, runs, s.do)
	if err != nil {
		return fmt.Errorf("%s, %d at a time: %w", s.name, at, err)
	}
	s.rounds = append(s.rounds, r)
	return nil
}

// perSecond is the median of the rounds.
func (s *side) perSecond() float64 {
	var rates []float64
	for _, r := range s.rounds {
		rates = append(rates, float64(len(r.Times)*steps)/r.Wall.Seconds())
	}
	return bench.Quantile(rates, 0.5)
}

// quantile is that of the times of all runs, in milliseconds.
func (s *side) quantile(p float64) float64 {
	var times []float64
	for _, r := range s.rounds {
		times = append(times, r.Times...)
	}
	return bench.Quantile(times, p)
}

// processor is what a run takes of the processors, in milliseconds, and of that each server's. What the servers of the other sides do
// meanwhile is left out.
func (s *side) processor() (all float64, servers map[string]float64) {
	servers = map[string]float64{}
	runs := 0
	for _, r := range s.rounds {
		all += r.Used.All.Seconds() * 1000
		for _, name := range []string{"postgres", "temporal", "restate-server"} {
			used := r.Used.By[name].Seconds() * 1000
			if slices.Contains(s.servers, name) {
				servers[name] += used
			} else {
				all -= used
			}
		}
		runs += len(r.Times)
	}
	for name := range servers {
		servers[name] /= float64(runs)
	}
	return all / float64(runs), servers
}

// split says which programs the processor time of a run belongs to.
func (s *side) split() string {
	own, servers := s.processor()
	text := ""
	for _, name := range s.servers {
		text += fmt.Sprintf("%s %.1f ms, ", name, servers[name])
		own -= servers[name]
	}
	return text + fmt.Sprintf("worker and caller %.1f ms", own)
}

// compare adds the figures of one level. The fast lane is to be no slower than Restate, and several times as fast as the normal one
// where runs come side by side.
func compare(report *bench.Report, at int, normal, fast, dbos, restate *side) {
	for _, pair := range []struct {
		ours, theirs *side
		floor        float64
	}{{fast, restate, 1}, {fast, dbos, 0}, {fast, normal, 8}, {normal, restate, 0}} {
		if pair.theirs == normal && at == 1 {
			pair.floor = 0
		}
		ours, _ := pair.ours.processor()
		theirs, _ := pair.theirs.processor()
		name := func(what string) string { return fmt.Sprintf("%s, %s, %d at a time", pair.ours.name, what, at) }
		report.Add(bench.Figure{Name: name("steps"), Value: pair.ours.perSecond(), Unit: "steps/s", Limit: pair.theirs.perSecond(), LimitName: pair.theirs.name, Floor: pair.floor})
		report.Add(bench.Figure{Name: name("p50 of a run"), Value: pair.ours.quantile(0.5), Unit: "ms", Limit: pair.theirs.quantile(0.5), LimitName: pair.theirs.name})
		report.Add(bench.Figure{Name: name("p99 of a run"), Value: pair.ours.quantile(0.99), Unit: "ms", Limit: pair.theirs.quantile(0.99), LimitName: pair.theirs.name})
		report.Add(bench.Figure{Name: name("processor of a run"), Value: ours, Unit: "ms", Limit: theirs, LimitName: pair.theirs.name})
	}
	for _, one := range []*side{normal, fast, dbos, restate} {
		report.Note("Processor of a run, %d at a time, %s: %s.", at, one.name, one.split())
	}
}
