// Command start measures how long it takes until something works:
//
//	go run ./bench/start
//
// The start of `runledger dev`, a built binary, until its API says that it is ready: in an empty folder, where Postgres and Temporal
// have to make their databases, and again in the same folder.
//
// And how long a run stands still when a worker is killed (SIGKILL): from the kill to the next commit of the run, by the worker that is
// left. Two workers have a run of short commands, one after the other, at work. Killed is either the one that executes a command at that
// moment, whose effect then is lost, or the other one.
package main

import (
	"context"
	"flag"

	"runledger/bench"
)

type options struct {
	starts, kills int
}

func main() {
	bench.Part(parts())
	var o options
	flag.IntVar(&o.starts, "starts", 3, "how often dev is started in an empty folder, and again")
	flag.IntVar(&o.kills, "kills", 3, "how many workers of each kind are killed")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

func parts() map[string]func(string) error {
	return map[string]func(string) error{partWorker: work}
}

func measure(ctx context.Context, o options) (*bench.Report, error) {
	report := bench.NewReport("start and recovery")
	if err := measureDev(ctx, report, o.starts); err != nil {
		return report, err
	}
	return report, measureKills(ctx, report, o.kills)
}
