package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/devstack"
)

const (
	// startPatience bounds the start of a server, or of a process that has to answer.
	startPatience = 2 * time.Minute
	stopPatience  = 20 * time.Second
)

// config is what API and workers read. Every worker has a proxy of its own, a door of the tool server.
const config = `
models:
  default: {provider: scripted}
agents:
  default: {mode: plan, tools: ["*"], limits: {max_parallel: 4}}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"], effects: {GET: idempotent, POST: external}, proxy_env: SOAK_TOOLS}
`

// stack is everything that runs, all of it under one folder.
type stack struct {
	dir, binary string
	tools       *toolServer
	// databaseURL is the superuser's; workers have roles of their own.
	databaseURL  string
	postgres     *devstack.Postgres
	postgresPort int
	temporal     *devstack.Temporal
	temporalPort int
	api          *process
	apiURL       string
	workers      []*worker
}

// worker is a place for one worker process after the other.
type worker struct {
	role string
	url  string // its database
	proc *process
	door *door
}

func startStack(ctx context.Context, workers int) (_ *stack, err error) {
	dir, err := os.MkdirTemp("", "runledger-soak-")
	if err != nil {
		return nil, err
	}
	s := &stack{dir: dir, binary: filepath.Join(dir, "runledger"), tools: newToolServer()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w; logs stay in %s", err, s.dir), s.stop(false))
		}
	}()
	// Postgres runs under another user where we are root, and has to get to its data.
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(filepath.Join(dir, "logs"), 0o700),
		os.WriteFile(filepath.Join(dir, "runledger.yaml"), []byte(config), 0o600)); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", s.binary, "runledger/cmd/runledger")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build runledger: %w", err)
	}
	if err := errors.Join(s.startPostgres(ctx), s.startTemporal(ctx)); err != nil {
		return nil, err
	}
	s.databaseURL = s.postgres.URL()
	migrate, err := startProcess(s.binary, s.dir, "migrate", []string{"DATABASE_URL=" + s.databaseURL}, "migrate")
	if err != nil {
		return nil, err
	}
	<-migrate.done
	if !migrate.cmd.ProcessState.Success() {
		return nil, errors.New("runledger migrate failed; see logs/migrate.log")
	}
	for i := range workers {
		w := &worker{role: fmt.Sprintf("worker%d", i+1)}
		if w.url, err = s.role(ctx, w.role); err != nil {
			return nil, err
		}
		s.workers = append(s.workers, w)
		if err := s.startWorker(w); err != nil {
			return nil, err
		}
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s.apiURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	return s, s.startAPI(ctx)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// startPostgres starts Postgres, at first on any port, later on the same.
func (s *stack) startPostgres(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{DataDir: filepath.Join(s.dir, "servers"), Port: s.postgresPort, Progress: os.Stderr})
	if err != nil {
		return err
	}
	u, err := url.Parse(s.postgres.URL())
	if err != nil {
		return err
	}
	_, err = fmt.Sscan(u.Port(), &s.postgresPort)
	return err
}

func (s *stack) startTemporal(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if s.temporalPort == 0 {
		if s.temporalPort, err = freePort(); err != nil {
			return err
		}
	}
	s.temporal, err = devstack.StartTemporal(ctx, devstack.TemporalConfig{DataDir: filepath.Join(s.dir, "servers"), Port: s.temporalPort,
		UIPort: -1, Progress: os.Stderr})
	return err
}

// role makes a role of the database and gives the URL with which it connects.
func (s *stack) role(ctx context.Context, name string) (string, error) {
	u, err := url.Parse(s.databaseURL)
	if err != nil {
		return "", err
	}
	password, _ := u.User.Password()
	err = s.query(ctx, func(conn *pgx.Conn) error {
		// Both are ours: a fixed name, and letters and digits.
		_, err := conn.Exec(ctx, "CREATE ROLE "+name+" LOGIN SUPERUSER PASSWORD '"+password+"'")
		return err
	})
	u.User = url.UserPassword(name, password)
	return u.String(), err
}

// query asks the database on a connection of its own.
func (s *stack) query(ctx context.Context, ask func(*pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the soak's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return ask(conn)
}

func (s *stack) env(databaseURL, tools string) []string {
	return []string{"DATABASE_URL=" + databaseURL, "TEMPORAL_ADDRESS=" + s.temporal.Address(), "SOAK_TOOLS=" + tools}
}

func (s *stack) startWorker(w *worker) (err error) {
	if w.door, err = s.tools.open(); err != nil {
		return err
	}
	if w.proc, err = startProcess(s.binary, s.dir, w.role, s.env(w.url, w.door.url), "worker"); err != nil {
		return err
	}
	return nil
}

// startAPI returns when the API answers.
func (s *stack) startAPI(ctx context.Context) (err error) {
	listen, err := url.Parse(s.apiURL)
	if err != nil {
		return err
	}
	// It does not call tools; its configuration names the variable all the same.
	s.api, err = startProcess(s.binary, s.dir, "api", s.env(s.databaseURL, s.apiURL), "api", "--listen", listen.Host)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		if res, err := http.Get(s.apiURL + "/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		pause(ctx, 50*time.Millisecond)
		if ctx.Err() != nil {
			return errors.New("the API does not get ready; see logs/api.log")
		}
	}
}

// stop ends everything that was started, API and workers first, and removes the folder if asked to.
func (s *stack) stop(remove bool) error {
	var group sync.WaitGroup
	for _, w := range s.workers {
		if w.proc != nil {
			group.Go(w.proc.stop)
		}
	}
	if s.api != nil {
		group.Go(s.api.stop)
	}
	group.Wait()
	s.tools.close()
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	var errs []error
	if s.temporal != nil {
		errs = append(errs, s.temporal.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	if remove {
		errs = append(errs, devstack.Reset(ctx, filepath.Join(s.dir, "servers")), os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}
