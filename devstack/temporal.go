package devstack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
)

const (
	temporalName     = "temporal"
	defaultNamespace = "default"
)

// temporalStop asks once; its state is safe in its database however it ends.
var temporalStop = []stopStep{{syscall.SIGTERM, 3 * time.Second}}

// temporalTuning makes the development server as quick as a real one. By itself it looks for new work 20 times a
// second, so that every dispatch waits up to 50 ms.
var temporalTuning = []string{
	"history.transferProcessorMaxPollRPS=2000",
	"history.timerProcessorMaxPollRPS=500",
	"system.enableActivityEagerExecution=true",
	"system.enableEagerWorkflowStart=true",
}

// TemporalConfig says where and how a Temporal server runs.
type TemporalConfig struct {
	// DataDir is the data folder, made if missing.
	DataDir string
	// Port on 127.0.0.1. 0: the one it had before if that is free, else any.
	Port int
	// UIPort is where the Web UI is served. 0 as above; below 0: no Web UI.
	UIPort int
	// Namespace is made at the start; it defaults to "default".
	Namespace string
	// InMemory keeps no state over restarts.
	InMemory bool
	// DynamicConfig are settings of the server on top of ours, "key=value" with the value in JSON.
	DynamicConfig []string
	Log           *slog.Logger
	// Progress hears how the Temporal CLI is built, if it has to be.
	Progress io.Writer
}

// Temporal is a running Temporal development server.
type Temporal struct {
	*server
	namespace string
}

// StartTemporal starts a server, or takes over the one that a killed program left behind in the data folder. It
// returns when the server is healthy and has the namespace; ctx bounds the start, not the server's life.
func StartTemporal(ctx context.Context, cfg TemporalConfig) (*Temporal, error) {
	t, err := startTemporal(ctx, cfg, installedTemporal())
	if err != nil {
		return nil, fmt.Errorf("devstack: start Temporal in %s: %w", cfg.DataDir, err)
	}
	return t, nil
}

func startTemporal(ctx context.Context, cfg TemporalConfig, cli temporalFinder) (_ *Temporal, err error) {
	cfg.Log, cfg.Progress = loggerOr(cfg.Log), writerOr(cfg.Progress)
	if cfg.Namespace == "" {
		cfg.Namespace = defaultNamespace
	}
	dir, err := prepareFolder(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	s, err := hold(dir, temporalName, cfg.Log)
	if err != nil {
		return nil, err
	}
	s.stop = temporalStop
	defer func() {
		if err != nil {
			s.lock.release()
		}
	}()

	options := temporalOptions(cfg, filepath.Join(dir, temporalName))
	shape, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	want := plan{shape: string(shape), ports: []int{cfg.Port}}
	if cfg.UIPort >= 0 {
		want.ports = append(want.ports, cfg.UIPort)
	}
	want.ready = func(ctx context.Context, _ int, ports []int) error {
		return temporalAnswers(ctx, address(ports[0]), cfg.Namespace)
	}
	t := &Temporal{server: s, namespace: cfg.Namespace}
	if adopted, err := s.adoptOrEnd(ctx, want); adopted || err != nil {
		return t, err
	}

	path, err := cli.find(ctx, cfg.Progress)
	if err != nil {
		return nil, err
	}
	s.rec.Home = filepath.Join(dir, temporalName)
	if err := os.MkdirAll(s.rec.Home, 0o700); err != nil {
		return nil, err
	}
	want.command = func(ports []int) command {
		args := append(slices.Clip(options), "--port", strconv.Itoa(ports[0]))
		if len(ports) > 1 {
			args = append(args, "--ui-port", strconv.Itoa(ports[1]))
		}
		return command{path: path, args: args, dir: s.rec.Home, env: temporalEnv()}
	}
	if err := s.launch(ctx, want); err != nil {
		return nil, err
	}
	cfg.Log.Info("Temporal started", "address", t.Address(), "ui", t.UIURL(), "namespace", cfg.Namespace, "cli", path)
	return t, nil
}

// temporalOptions is the command line without the ports.
func temporalOptions(cfg TemporalConfig, home string) []string {
	options := []string{"server", "start-dev", "--ip", loopback, "--log-level", "error", "--namespace", cfg.Namespace}
	for _, value := range append(slices.Clip(temporalTuning), cfg.DynamicConfig...) {
		options = append(options, "--dynamic-config-value", value)
	}
	if !cfg.InMemory {
		options = append(options, "--db-filename", filepath.Join(home, "temporal.db"))
	}
	if cfg.UIPort < 0 {
		options = append(options, "--headless")
	}
	return options
}

// Address is the host:port that clients dial.
func (t *Temporal) Address() string { return address(t.rec.Ports[0]) }

// Namespace is the one that was asked for.
func (t *Temporal) Namespace() string { return t.namespace }

// UIURL is the address of the Web UI, empty without one.
func (t *Temporal) UIURL() string {
	if len(t.rec.Ports) < 2 {
		return ""
	}
	return "http://" + address(t.rec.Ports[1])
}

// PID is the process id of the server, for tests that kill it.
func (t *Temporal) PID() int { return t.proc.pid }

// Done is closed when the server has ended, asked or not.
func (t *Temporal) Done() <-chan struct{} { return t.proc.ended }

// temporalAnswers asks whether the server is healthy and knows the namespace.
func temporalAnswers(ctx context.Context, address, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := client.NewLazyClient(client.Options{
		HostPort:  address,
		Namespace: namespace,
		Logger:    sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return err
	}
	_, err = c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: namespace})
	return err
}

// temporalEnv is ours without what would steer the CLI.
func temporalEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TEMPORAL_") })
}
