package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/ingress"
	"github.com/restatedev/sdk-go/server"

	"runledger/bench"
)

// Restate's own ports. They are free: the network namespace is ours alone.
const (
	restateIngress = "http://127.0.0.1:8080"
	restateAdmin   = "http://127.0.0.1:9070"
)

const (
	restateStart = time.Minute
	restateStop  = 15 * time.Second
)

// restateSide is a server of Restate and, in this process, a service with one handler.
type restateSide struct {
	client  *ingress.Client
	dir     string
	server  *exec.Cmd
	ended   chan error // what the server's process came to, once
	service *http.Server
}

// startRestate starts it. It returns when the server knows the service.
func startRestate(ctx context.Context, program string) (_ *restateSide, err error) {
	r := &restateSide{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start Restate: %w", err), r.stop())
		}
	}()
	if r.dir, err = bench.TempDir(); err != nil {
		return nil, err
	}
	// One connection for each caller: what net/http keeps by default is two.
	r.client = ingress.NewClient(restateIngress, ingress.WithHttpClient(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}))
	url, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.launch(program); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, restateStart)
	defer cancel()
	if err := r.retry(ctx, func() error { return request(ctx, http.MethodGet, restateAdmin+"/health", "") }); err != nil {
		return nil, err
	}
	if err := request(ctx, http.MethodPost, restateAdmin+"/deployments", fmt.Sprintf(`{"uri": %q}`, url)); err != nil {
		return nil, err
	}
	// Its partitions get their leaders a moment after it is healthy.
	return r, r.retry(ctx, func() error { return r.run(ctx) })
}

// launch starts the server's process.
func (r *restateSide) launch(program string) error {
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	r.server = exec.Command(program, "--base-dir", filepath.Join(r.dir, "data"), "--node-name", "bench", "--bind-ip", "127.0.0.1", //nolint:gosec // what was installed
		"--listen-mode", "tcp", "--no-logo", "--log-filter", "warn", "--log-disable-ansi-codes", "true", "--shutdown-timeout", "5s")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "RESTATE_") && !strings.HasPrefix(v, "RUST_LOG=") {
			r.server.Env = append(r.server.Env, v)
		}
	}
	// The last two are its defaults. They are said because the figures depend on them.
	r.server.Env = append(r.server.Env, "RESTATE_DISABLE_TELEMETRY=true",
		"RESTATE_BIFROST__DEFAULT_PROVIDER=replicated", "RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC=false")
	r.server.Stdout, r.server.Stderr = log, log
	r.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.server.Start(); err != nil {
		return err
	}
	r.ended = make(chan error, 1)
	go func() { r.ended <- r.server.Wait() }()
	return nil
}

// serve serves the service's handlers, and gives its address.
func (r *restateSide) serve(ctx context.Context) (url string, err error) {
	service := restate.NewService("Bench").Handler("Steps", restate.NewServiceHandler(restateSteps))
	log := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})
	handler, err := server.NewRestate().WithLogger(log, true).Bind(service).Handler()
	if err != nil {
		return "", err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // so that a handler and the server talk both ways at once
	r.service = &http.Server{Handler: handler, Protocols: &protocols, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = r.service.Serve(listener) }() // it ends by stop
	return "http://" + listener.Addr().String(), nil
}

// restateSteps takes so many steps.
func restateSteps(ctx restate.Context, n int) (int, error) {
	sum := 0
	for i := range n {
		got, err := restate.Run(ctx, func(restate.RunContext) (int, error) { return i + 1, nil })
		if err != nil {
			return 0, err
		}
		sum += got
	}
	return sum, nil
}

// run takes an invocation from its request to its result.
func (r *restateSide) run(ctx context.Context) error {
	return right(ingress.Service[int, int](r.client, "Bench", "Steps").Request(ctx, steps))
}

// retry repeats what fails until the server has ended or ctx does.
func (r *restateSide) retry(ctx context.Context, do func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case ended := <-r.ended:
			r.ended <- ended
			said, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			return fmt.Errorf("the server has ended: %v\n%s", ended, said)
		}
	}
}

// stop ends the server and the service and removes their data.
func (r *restateSide) stop() (err error) {
	if r.ended != nil {
		_ = r.server.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(restateStop, func() { _ = r.server.Process.Kill() })
		var exit *exec.ExitError
		if ended := <-r.ended; !errors.As(ended, &exit) { // that it ended by our signal is no error
			err = ended
		}
		kill.Stop()
	}
	if r.service != nil {
		err = errors.Join(err, r.service.Close())
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// request asks the server and expects a success.
func request(ctx context.Context, method, url, body string) error {
	ask, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	ask.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("%s %s: %s: %s", method, url, answer.Status, said)
	}
	return nil
}
