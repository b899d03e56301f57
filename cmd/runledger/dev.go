package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"runledger/devstack"
	"runledger/ledger"
)

// serverFlags say which servers to use. Empty ones are started by dev and refused by everything else.
type serverFlags struct {
	DatabaseURL       string `env:"DATABASE_URL" help:"Postgres to use."`
	TemporalAddress   string `env:"TEMPORAL_ADDRESS" help:"Temporal to use, host:port."`
	TemporalNamespace string `env:"TEMPORAL_NAMESPACE" default:"default" help:"Temporal namespace."`
}

type devCmd struct {
	serverFlags
	listenFlags
	DataDir        string `default:".runledger" type:"path" help:"Where Postgres and Temporal keep their data."`
	TemporalUIPort int    `name:"temporal-ui-port" default:"0" help:"Port of the Temporal Web UI; 0 for the last one, or a free one."`
	Reset          bool   `help:"Remove all data first."`
}

const (
	// stopTimeout bounds the stop of Temporal and Postgres, after API and worker have stopped.
	stopTimeout = 10 * time.Second
)

// Run starts Postgres, Temporal, the API and a worker, and stops them in the opposite order when ctx ends.
func (c *devCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	keys, err := c.keyring(cfg)
	if err != nil {
		return err
	}
	offline := cfg.goOffline()
	if c.Reset {
		if err := devstack.Reset(ctx, c.DataDir); err != nil {
			return err
		}
	}
	began := time.Now()
	stack, err := devstack.Start(ctx, devstack.Config{DataDir: c.DataDir, DatabaseURL: c.DatabaseURL, TemporalAddress: c.TemporalAddress,
		TemporalNamespace: c.TemporalNamespace, TemporalUIPort: c.TemporalUIPort, Log: log, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, stack.Stop(stopCtx))
	}()
	if _, err := ledger.Migrate(ctx, stack.DatabaseURL); err != nil {
		return err
	}
	store, counts, err := openCounted(ctx, stack.DatabaseURL, log)
	if err != nil {
		return err
	}
	defer store.Close()
	verifier, closeVerifier, err := newVerifier(store, stack.TemporalAddress, stack.TemporalNamespace, log)
	if err != nil {
		return err
	}
	defer closeVerifier()
	handler, err := newAPI(cfg, store, verifier, keys, counts, log, c.InsecureListen)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case lost := <-stack.Lost():
			cancel(lost)
		case <-ctx.Done():
		}
	}()
	// The API stops first and the worker after it: nothing new comes in while what is at work ends.
	workerCtx, stopWorker := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorker()
	worked := make(chan error, 1)
	published := make(chan struct{})
	go func() {
		err := runWorker(workerCtx, cfg, store, stack.TemporalAddress, stack.TemporalNamespace, log, published)
		if err != nil {
			cancel(err)
		}
		worked <- err
	}()
	select {
	case <-published:
	case <-ctx.Done():
	}
	served := c.serve(ctx, handler, keys, log, func(url string) {
		c.greet(url, stack, cfg, offline, time.Since(began))
	})
	stopWorker()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		served = errors.Join(served, cause)
	}
	if werr := <-worked; werr != nil && !errors.Is(served, werr) {
		served = errors.Join(served, werr)
	}
	return served
}

// greet tells where everything is, and a line to try.
func (c *devCmd) greet(url string, stack *devstack.Stack, cfg *config, offline []string, took time.Duration) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nRunledger is up after %.1f s.\n\n", took.Seconds())
	fmt.Fprintf(&b, "  API           %s\n", url)
	if stack.TemporalUIURL != "" {
		fmt.Fprintf(&b, "  Temporal UI   %s\n", stack.TemporalUIURL)
	}
	if c.TemporalAddress == "" {
		fmt.Fprintf(&b, "  Temporal      TEMPORAL_ADDRESS=%s\n", stack.TemporalAddress)
	}
	if c.DatabaseURL == "" { // another one's address may hold a password that is not for the screen
		fmt.Fprintf(&b, "  Postgres      DATABASE_URL=%s\n", stack.DatabaseURL)
	}
	fmt.Fprintf(&b, "  Data          %s\n", filepath.Clean(c.DataDir))
	m := cfg.Models["default"]
	switch {
	case len(offline) > 0:
		fmt.Fprintf(&b, "  Model         offline (scripted), since no key is set for %s\n", strings.Join(offline, ", "))
	case m.Provider == scriptedProvider:
		fmt.Fprintf(&b, "  Model         offline (scripted); set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, or OPENAI_BASE_URL for a compatible server, to use a real one\n")
	case m.Model != "":
		fmt.Fprintf(&b, "  Model         %s\n", m.Model)
	}
	token := ""
	if cfg.Auth != nil {
		token = ` -H "Authorization: Bearer $` + tokenVariable + `"`
	}
	fmt.Fprintf(&b, "\nTry:\n\n  curl -N %s/api/v1/agent/run/stream%s -H 'Content-Type: application/json' \\\n    -d '{\"input\": \"What is 17 * 23, and what time is it in Tokyo?\"}'\n\n", url, token)
	fmt.Fprint(os.Stdout, b.String())
}
