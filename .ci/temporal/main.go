// Command temporal has the local stack find or build the Temporal CLI, and shows that the server starts. It runs in CI
// before the tests: on a fresh machine the build takes minutes, which no test's time limit should have to hold.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"runledger/devstack"
)

const (
	buildTimeout = 20 * time.Minute
	stopTimeout  = 10 * time.Second
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "runledger-ci-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	server, err := devstack.StartTemporal(ctx, devstack.TemporalConfig{DataDir: dir, UIPort: -1, InMemory: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	fmt.Printf("Temporal answered after %v.\n", time.Since(began).Round(time.Second))
	stopping, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancelStop()
	return errors.Join(err, server.Stop(stopping))
}
