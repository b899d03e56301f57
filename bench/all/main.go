// Command all runs every benchmark, one after the other, and prints one table:
//
//	go run ./bench/all
//
// Each is a process and a stack of servers of its own, so that none profits or suffers from another. With --json it prints one line of
// JSON for each. It goes on when one fails; the exit code is then 1. bench/peers is apart, a module of its own: it requires other engines.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"runledger/bench"
)

// benchmark is one program with its arguments.
type benchmark struct {
	name string
	args []string
	// quick are the arguments for a look at whether it works at all.
	quick []string
}

// benchmarks are all that make a report.
func benchmarks() []benchmark {
	return []benchmark{
		{"steps", nil, []string{"-alone", "2", "-together", "4", "-at", "2", "-rounds", "1"}},
		{"ledger", nil, []string{"-rounds", "1", "-each", "200ms"}},
		{"replay", nil, []string{"-events", "2000", "-rounds", "1"}},
		{"fanout", nil, []string{"-commands", "2"}},
		{"latency", nil, []string{"-runs", "3", "-nodes", "1", "-words", "4"}},
		{"sizes", nil, []string{"-commands", "8", "-runs", "1"}},
		{"start", nil, []string{"-starts", "1", "-kills", "0"}},
		{"lanes", nil, []string{"-runs", "4", "-rounds", "1"}},
	}
}

type options struct {
	only  []string
	quick bool
}

func main() {
	asJSON := bench.JSONFlag()
	only := flag.String("only", "", "the names of those to run, with commas between them; all unless given")
	quick := flag.Bool("quick", false, "small sizes, to see whether everything works; the figures mean nothing")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	o := options{quick: *quick}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	reports, err := runAll(ctx, o)
	stop()
	for i, r := range reports {
		if i > 0 && !*asJSON {
			fmt.Println()
		}
		err = errors.Join(err, r.Print(*asJSON))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "all:", err)
		os.Exit(1)
	}
}

// runAll runs those that are wanted. The error tells of all that failed.
func runAll(ctx context.Context, o options) (reports []*bench.Report, err error) {
	all := benchmarks()
	for _, name := range o.only {
		if !slices.ContainsFunc(all, func(b benchmark) bool { return b.name == name }) {
			return nil, fmt.Errorf("there is no benchmark %q", name)
		}
	}
	for _, b := range all {
		if len(o.only) > 0 && !slices.Contains(o.only, b.name) {
			continue
		}
		r, failed := b.run(ctx, o.quick)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", b.name, failed))
			continue
		}
		reports = append(reports, r)
	}
	return reports, err
}

// stopPatience is what a benchmark gets to stop its servers when it is asked to end.
const stopPatience = 40 * time.Second

func (b benchmark) run(ctx context.Context, quick bool) (*bench.Report, error) {
	args := append([]string{"run", "runledger/bench/" + b.name, "-json"}, b.args...)
	if quick {
		args = append(args, b.quick...)
	}
	fmt.Fprintln(os.Stderr, "running", b.name)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // our own words
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	// `go run` and its program are a group, since it passes no signal on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	r := new(bench.Report)
	if err := json.Unmarshal(out.Bytes(), r); err != nil {
		return nil, fmt.Errorf("its report %q: %w", out.String(), err)
	}
	return r, nil
}
