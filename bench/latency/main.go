// Command latency measures how soon those who watch a run see what happens in it:
//
//	go run ./bench/latency
//
// A hundred runs are at work at once. Each is a plan of three model calls, one after the other, of a model that says a word every 50 ms
// for about a second. Each run has a client that follows it over HTTP on loopback. Worker, API and clients are one process, as in
// `runledger dev` but for the clients.
//
// For an event, the time is from when it got its number, in its transaction and by the database's clock, to when the client has its
// frame: the commit itself is a part of it. For a word, it is from when the model said it; what a model says is gathered for up to 50 ms
// before it is shown, which is a part of it too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"runledger/agent"
	"runledger/bench"
	"runledger/model"
)

type options struct {
	runs, nodes, words int
	every              time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.runs, "runs", 100, "how many runs are at work at once")
	flag.IntVar(&o.nodes, "nodes", 3, "how many model calls each makes")
	flag.IntVar(&o.words, "words", 20, "how many words the model says")
	flag.DurationVar(&o.every, "every", 50*time.Millisecond, "how often it says one")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

// speaker is a model that says a word now and then. Each word is the time at which it is said.
type speaker struct {
	words int
	every time.Duration
}

func (s speaker) Generate(ctx context.Context, _ model.Request, emit func(model.Delta)) (model.Reply, error) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	var text strings.Builder
	for range s.words {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return model.Reply{}, model.ContextError(ctx)
		}
		word := strconv.FormatInt(time.Now().UnixNano(), 10) + " "
		text.WriteString(word)
		if emit != nil {
			emit(model.Delta{Channel: model.Text, Text: word})
		}
	}
	return model.Reply{Text: text.String(), Finish: model.FinishStop, Model: "bench", Usage: model.Usage{InputTokens: 10, OutputTokens: s.words}}, nil
}

// chain is the plan of a run.
func chain(nodes int) *agent.Plan {
	plan := &agent.Plan{}
	for i := range nodes {
		n := agent.Node{ID: fmt.Sprintf("n%d", i), Kind: agent.LLMNode, Prompt: "Say something."}
		if i > 0 {
			n.DependsOn = []string{fmt.Sprintf("n%d", i-1)}
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	return plan
}

func measure(ctx context.Context, o options) (report *bench.Report, err error) {
	s, err := bench.Start(ctx, bench.Config{Model: speaker{o.words, o.every}, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	handler, err := bench.NewAPI(s.Ledger)
	if err != nil {
		return nil, err
	}
	url, stop, err := bench.Serve(ctx, handler)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()

	before, err := bench.ReadProcessorTime()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make([]watcher, o.runs)
	var all sync.WaitGroup
	for i := range watched {
		all.Go(func() {
			run, err := s.Accept(ctx, bench.Run{Input: "Say something.", Mode: agent.ModePlan, Plan: chain(o.nodes)})
			if err == nil {
				err = watched[i].watch(ctx, url+"/api/v1/agent/runs/"+run.RunID+"/events")
			}
			if err == nil && !watched[i].completed {
				err = fmt.Errorf("run %s did not complete", run.RunID)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	after, err := bench.ReadProcessorTime()
	if err != nil {
		return nil, err
	}
	var events, words []float64
	for _, w := range watched {
		events, words = append(events, w.events...), append(words, w.words...)
	}
	report = bench.NewReport(fmt.Sprintf("%d runs at once that stream text", o.runs))
	report.Add(bench.Figure{Name: "event to client, p50", Value: bench.Quantile(events, 0.5), Unit: "ms"})
	report.Add(bench.Figure{Name: "event to client, p99", Value: bench.Quantile(events, 0.99), Unit: "ms", Limit: 50, LimitName: "the target", Ceiling: 1})
	report.Add(bench.Figure{Name: "word to client, p50", Value: bench.Quantile(words, 0.5), Unit: "ms"})
	report.Add(bench.Figure{Name: "word to client, p99", Value: bench.Quantile(words, 0.99), Unit: "ms"})
	used := after.Since(before)
	report.Note("%d events and %d words in %.1f s; %.1f of %d processors were busy with it: temporal %.1f, postgres %.1f, worker, API and clients %.1f.", len(events), len(words),
		took.Seconds(), used.All.Seconds()/took.Seconds(), report.Cores, used.By["temporal"].Seconds()/took.Seconds(), used.By["postgres"].Seconds()/took.Seconds(),
		(used.All-used.By["temporal"]-used.By["postgres"]).Seconds()/took.Seconds())
	return report, nil
}
