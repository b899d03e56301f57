package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"runledger/api"
	"runledger/auth"
	"runledger/ledger"
	"runledger/metrics"
	"runledger/worker"
)

// listenFlags say where the API listens, and to whom.
type listenFlags struct {
	Config         string `type:"path" help:"Configuration file; runledger.yaml in the working directory if there is one."`
	Listen         string `default:"127.0.0.1:8080" env:"RUNLEDGER_LISTEN" help:"Where the API listens; port 0 for a free one."`
	InsecureListen bool   `env:"RUNLEDGER_INSECURE_LISTEN" help:"Allow an address that is not loopback although there are no tokens: everybody who reaches it is an operator."`
}

// drainTimeout is what requests get to end when the API stops; streams end at once, with a hint to come back.
const drainTimeout = 5 * time.Second

type apiCmd struct {
	serverFlags
	listenFlags
}

// Run serves the API until ctx ends. It needs the database only; Temporal, if it has an address, is asked to verify runs.
func (c *apiCmd) Run(ctx context.Context, log *slog.Logger) error {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	keys, err := c.keyring(cfg)
	if err != nil {
		return err
	}
	store, counts, err := c.openCounted(ctx, log)
	if err != nil {
		return err
	}
	defer store.Close()
	verifier, closeVerifier, err := newVerifier(store, c.TemporalAddress, c.TemporalNamespace, log)
	if err != nil {
		return err
	}
	defer closeVerifier()
	handler, err := newAPI(cfg, store, verifier, keys, counts, log, c.InsecureListen)
	if err != nil {
		return err
	}
	return c.serve(ctx, handler, keys, log, func(url string) { log.InfoContext(ctx, "API is up", "url", url) })
}

func (f serverFlags) open(ctx context.Context, log *slog.Logger) (*ledger.Ledger, error) {
	if f.DatabaseURL == "" {
		return nil, errors.New("DATABASE_URL is not set; `runledger dev` brings a database of its own")
	}
	return ledger.Open(ctx, f.DatabaseURL, ledger.Options{Log: log})
}

func (f serverFlags) openCounted(ctx context.Context, log *slog.Logger) (*ledger.Ledger, *metrics.Metrics, error) {
	if f.DatabaseURL == "" {
		_, err := f.open(ctx, log)
		return nil, nil, err
	}
	return openCounted(ctx, f.DatabaseURL, log)
}

// keyring makes the keyring to serve with. Without one, whoever reaches the API is its operator, so that the address must be
// one that only this machine reaches.
func (f listenFlags) keyring(cfg *config) (*auth.Keyring, error) {
	keys, err := cfg.keyring()
	if err == nil && keys == nil && !f.InsecureListen {
		err = api.CheckListen(f.Listen)
	}
	return keys, err
}

// serve serves the API until ctx ends, and tells ready the URL once it listens.
func (f listenFlags) serve(ctx context.Context, handler *api.API, keys *auth.Keyring, log *slog.Logger, ready func(url string)) error {
	if keys != nil {
		reloadOnHangup(ctx, f.Config, keys, log)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", f.Listen, err)
	}
	server := handler.NewServer()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ready("http://" + listener.Addr().String())
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(stopCtx); err != nil {
		_ = server.Close()
	}
	return nil
}

type workerCmd struct {
	serverFlags
	Config        string `type:"path" help:"Configuration file; runledger.yaml in the working directory if there is one."`
	MetricsListen string `env:"RUNLEDGER_METRICS_LISTEN" help:"Where GET /metrics is answered, to everybody who reaches it; nowhere unless set."`
}

// Run works until ctx ends.
func (c *workerCmd) Run(ctx context.Context, log *slog.Logger) error {
	if c.TemporalAddress == "" {
		return errors.New("TEMPORAL_ADDRESS is not set; `runledger dev` brings a Temporal of its own")
	}
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	store, counts, err := c.openCounted(ctx, log)
	if err != nil {
		return err
	}
	defer store.Close()
	stopMetrics, err := serveMetrics(ctx, c.MetricsListen, counts.Handler(), log)
	if err != nil {
		return err
	}
	defer stopMetrics()
	return runWorker(ctx, cfg, store, c.TemporalAddress, c.TemporalNamespace, log, nil)
}

// runWorker works until ctx ends. published, if there is one, is closed when the tools are known to the API.
func runWorker(ctx context.Context, cfg *config, store *ledger.Ledger, address, namespace string, log *slog.Logger, published chan<- struct{}) error {
	models, err := cfg.clients()
	if err != nil {
		return err
	}
	box, err := cfg.openTools(ctx, log)
	if err != nil {
		return err
	}
	defer box.close()
	tools, err := box.set()
	if err != nil {
		return err
	}
	temporal, err := worker.Dial(ctx, address, namespace, log)
	if err != nil {
		return err
	}
	defer temporal.Close()
	return worker.Run(ctx, worker.Config{Ledger: store, Temporal: temporal, Models: models, Tools: tools, ToolChanges: box.changes, Log: log, Strict: true, Retention: cfg.Retention.retention(),
		Published: published})
}

type migrateCmd struct {
	DatabaseURL string `env:"DATABASE_URL" required:"" help:"The database to migrate."`
}

// Run migrates and tells how much was to do.
func (c *migrateCmd) Run(ctx context.Context) error {
	applied, err := ledger.Migrate(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	fmt.Printf("%d migrations applied\n", applied)
	return nil
}
