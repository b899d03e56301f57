package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"runledger/agent"
	"runledger/api"
	"runledger/devstack"
	"runledger/ledger"
	"runledger/model"
	"runledger/model/scripted"
	"runledger/tool"
	"runledger/worker"
)

const listen = "127.0.0.1:8080"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tools are what the agent can call.
func tools() (*tool.Set, error) {
	refund, err := (&provider{paid: map[string]receipt{}}).refund()
	if err != nil {
		return nil, err
	}
	orders := shop{"17": {Order: "17", Cents: 4200, Status: "delivered"}, "18": {Order: "18", Cents: 99900, Status: "delivered"}}
	return tool.NewSet(orders.lookup(), refund)
}

// support is the agent as the API offers it.
func support() agent.Blueprint {
	return agent.Blueprint{Name: "support", Mode: agent.ModeReact, Tools: []string{"*"},
		Model:        agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"},
		Instructions: "You work for a shop's support. Look an order up before you pay it back."}
}

// run is API and worker in one process, on servers of DATABASE_URL and TEMPORAL_ADDRESS, or on local ones where they are not set.
func run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	stack, err := devstack.Start(ctx, devstack.Config{DataDir: ".runledger", DatabaseURL: os.Getenv("DATABASE_URL"),
		TemporalAddress: os.Getenv("TEMPORAL_ADDRESS"), Log: log, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = stack.Stop(stopping)
	}()
	if _, err := ledger.Migrate(ctx, stack.DatabaseURL); err != nil {
		return err
	}
	store, err := ledger.Open(ctx, stack.DatabaseURL, ledger.Options{Log: log})
	if err != nil {
		return err
	}
	defer store.Close()
	temporal, err := worker.Dial(ctx, stack.TemporalAddress, stack.TemporalNamespace, log)
	if err != nil {
		return err
	}
	defer temporal.Close()

	set, err := tools()
	if err != nil {
		return err
	}
	offline := scripted.New(scripted.Options{}) // your model: openai.New(...), or a client of your own
	handler, err := api.New(api.Config{Ledger: store, Agents: []agent.Blueprint{support()}, CheckPlans: tool.CheckPlans,
		EditArguments: tool.EditCall, Logger: log})
	if err != nil {
		return err
	}
	server := handler.NewServer()
	server.Addr = listen
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			cancel(err)
		}
	}()
	published := make(chan struct{})
	go func() {
		select {
		case <-published:
			fmt.Println("The agent support is at http://" + listen)
		case <-ctx.Done():
		}
	}()
	err = worker.Run(ctx, worker.Config{Ledger: store, Temporal: temporal, Tools: set, Log: log, Published: published,
		Models: func(string) model.Client { return offline }})
	stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stopped()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return errors.Join(err, server.Shutdown(stopping))
}
