// Command long measures a run that outgrows one execution in Temporal:
//
//	go run ./bench/long
//
// It starts servers of its own, with Temporal's thresholds as they are, and lets a react run of 5,000 commands and a plan of 200 nodes
// go to their ends. It prints how long they took, into how many executions Temporal's history was cut, and how large each is. Then both
// witnesses are asked: at every hand-over the state that one execution took the run to be in, the one that the ledger gave and the one
// that the next execution began with must be the fold of the events. The exit code is 1 when they are not.
//
// The model and the tool answer at once. Everything else is as in production: the worker, the ledger with durable writes, Temporal's
// server.
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

	"runledger/agent"
	"runledger/bench"
	"runledger/tool"
	"runledger/verify"
)

type options struct {
	turns, calls int // of the react run
	nodes        int // of the plan; 0 for none
	timeout      time.Duration
	profile      string
	settings     []string // of Temporal's server, in tests
}

func main() {
	var o options
	flag.IntVar(&o.turns, "turns", 1000, "how many turns of the react run call tools")
	flag.IntVar(&o.calls, "calls", 4, "how many tools each of them calls")
	flag.IntVar(&o.nodes, "nodes", 200, "how many nodes the plan has; 0 for no plan")
	flag.DurationVar(&o.timeout, "timeout", 15*time.Minute, "when to give up")
	flag.StringVar(&o.profile, "profile", "", "a file for a profile of this process' processor time during the react run")
	flag.Parse()
	if flag.NArg() > 0 || o.turns < 1 || o.calls < 1 || o.nodes < 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	reports, err := measure(ctx, o)
	stop()
	for _, r := range reports {
		r.print()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "long:", err)
		os.Exit(1)
	}
}

// report is what was measured of a run.
type report struct {
	name string
	bench.Histories
	commands, events int // in the ledger
	took             time.Duration
	largestPrompt    int // tokens
	verified         agent.Verification
	verifiedIn       time.Duration
}

// measure does all of it. What was measured before an error is returned with it.
func measure(ctx context.Context, o options) (reports []report, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	caller := &callerModel{turns: o.turns, calls: o.calls}
	add, err := tool.New(tool.Spec{Name: "add", Description: "Adds two numbers.", Effect: agent.Idempotent}, add)
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: caller, Tools: []tool.Tool{add}, Progress: os.Stderr, TemporalDynamicConfig: o.settings})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()

	loop := bench.Run{Input: "Add all of them.", Mode: agent.ModeReact, Limits: agent.Limits{MaxSteps: o.turns + 1, Timeout: agent.Duration(o.timeout)}}
	stop, err := bench.Profile(o.profile)
	if err != nil {
		return nil, err
	}
	r, err := one(ctx, s, "a loop", loop)
	err = errors.Join(err, stop())
	r.largestPrompt = caller.largestPrompt()
	reports = append(reports, r)
	if err != nil || o.nodes == 0 {
		return reports, err
	}
	r, err = one(ctx, s, "a plan", bench.Run{Input: "Add all of them.", Mode: agent.ModePlan, Plan: lanes(o.nodes),
		Limits: agent.Limits{MaxSteps: o.nodes + 1, Timeout: agent.Duration(o.timeout)}})
	return append(reports, r), err
}

// one executes a run to its end and asks both witnesses.
func one(ctx context.Context, s *bench.Stack, name string, run bench.Run) (report, error) {
	r := report{name: name}
	began := time.Now()
	ended, err := s.Do(ctx, run)
	r.took = time.Since(began)
	if err != nil {
		return r, err
	}
	commands, err := s.Ledger.Commands(ctx, ended.RunID)
	if err != nil {
		return r, err
	}
	fold, err := s.Ledger.State(ctx, ended.RunID)
	if err != nil {
		return r, err
	}
	r.commands, r.events = len(commands), int(fold.Sequence)
	if r.Histories, err = s.Histories(ctx, ended.RunID); err != nil {
		return r, err
	}
	began = time.Now()
	r.verified, err = (&verify.Verifier{Ledger: s.Ledger, Temporal: s.Temporal, Patience: time.Minute}).Verify(ctx, ended.RunID)
	r.verifiedIn = time.Since(began)
	switch told := r.verified.Temporal; {
	case err != nil:
		return r, err
	case !r.verified.OK:
		return r, fmt.Errorf("run %s: %s", ended.RunID, r.verified.Differences[0])
	case told.Status != agent.WitnessAgrees || told.Detail != "" || told.HandOvers != r.Executions-1:
		return r, fmt.Errorf("run %s: %d executions, and Temporal's histories tell of %d hand-overs; %s %s", ended.RunID, r.Executions, told.HandOvers, told.Status, told.Detail)
	}
	return r, nil
}

// lanes is a plan of nodes in eight chains.
func lanes(nodes int) *agent.Plan {
	plan := &agent.Plan{}
	for i := range nodes {
		n := agent.Node{ID: fmt.Sprintf("n%d", i), Kind: agent.ToolNode, Tool: "add", Args: json.RawMessage(fmt.Sprintf(`{"a": %d, "b": 1}`, i))}
		if i >= 8 {
			n.DependsOn = []string{fmt.Sprintf("n%d", i-8)}
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	return plan
}

func (r *report) print() {
	fmt.Printf("%s\n", r.name)
	fmt.Printf("  commands                     %9d in %.1f s, %.0f a second\n", r.commands, r.took.Seconds(), float64(r.commands)/r.took.Seconds())
	fmt.Printf("  events in the ledger         %9d\n", r.events)
	if r.largestPrompt > 0 {
		fmt.Printf("  largest prompt               %9d tokens\n", r.largestPrompt)
	}
	fmt.Printf("  executions in Temporal       %9d\n", r.Executions)
	for i, e := range r.Each {
		fmt.Printf("    %2d                         %9d events %9d bytes\n", i+1, e.Events, e.ServerBytes)
	}
	fmt.Printf("  history                      %9d events %9d bytes, as the server says\n", r.Events, r.ServerBytes)
	fmt.Printf("  largest payload              %9d bytes, in %s\n", r.LargestPayload, r.LargestIn)
	fmt.Printf("  hand-overs                   %9d, state equal to the fold at each\n", r.verified.Temporal.HandOvers)
	fmt.Printf("  verify                       %9s in %.1f s, %d activities compared, %d differences\n", r.verified.Temporal.Status, r.verifiedIn.Seconds(),
		r.verified.Temporal.Activities, len(r.verified.Differences))
}
