package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/devstack"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

// patience bounds every wait. A machine under load is slow; nothing here measures time.
const patience = 90 * time.Second

// process is a runledger that runs.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	// lines is what it prints on both outputs, for whoever waits for a line; the rest goes to the test's log.
	lines chan string
}

func start(t testing.TB, dir string, env []string, args ...string) *process {
	t.Helper()
	return startProgram(t, binary, dir, env, args...)
}

func startProgram(t testing.TB, program, dir string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{}), lines: make(chan string, 4096)}
	p.cmd.Dir = dir
	p.cmd.Env = append(cleanEnv(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	require.NoError(t, p.cmd.Start())
	require.NoError(t, w.Close())
	name := strings.Join(append([]string{filepath.Base(program)}, args...), " ")
	log := t.Output()
	go func() {
		defer close(p.lines)
		in := bufio.NewScanner(r)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			fmt.Fprintln(log, name+": "+in.Text())
			select {
			case p.lines <- in.Text():
			default:
			}
		}
	}()
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

// cleanEnv is the environment without what would steer the program under test.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "RUNLEDGER_"), strings.HasPrefix(name, "TEMPORAL_"), strings.HasPrefix(name, "OPENAI_"), name == "DATABASE_URL":
		default:
			env = append(env, e)
		}
	}
	return env
}

// line waits for a line that contains text.
func (p *process) line(t testing.TB, text string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				t.Fatalf("the process ended before it printed %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-deadline:
			t.Fatalf("the process does not print %q", text)
		}
	}
}

// stop ends the process as Ctrl-C does and waits for it.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.end(t, syscall.SIGINT)
}

// kill ends the process without a chance to do anything.
func (p *process) kill(t testing.TB) {
	t.Helper()
	p.end(t, syscall.SIGKILL)
}

func (p *process) end(t testing.TB, how syscall.Signal) {
	t.Helper()
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(how)
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		t.Errorf("%v does not stop", p.cmd.Args)
	}
}

// servers are what the processes of one test share.
type servers struct {
	databaseURL string
	temporal    *devstack.Temporal
	// temporalDir and temporalPort are where Temporal comes back after it was stopped.
	temporalDir  string
	temporalPort int
	settings     []string
	dir          string
	env          []string
}

// startServers gives Temporal settings of its own, if there are any.
func startServers(t testing.TB, config string, settings ...string) *servers {
	t.Helper()
	return startServersOn(t, pgtest.Database(t), config, settings...)
}

// startServersOn is startServers with a database that is there.
func startServersOn(t testing.TB, databaseURL, config string, settings ...string) *servers {
	t.Helper()
	s := &servers{databaseURL: databaseURL, temporalDir: t.TempDir(), temporalPort: freePort(t), settings: settings, dir: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "runledger.yaml"), []byte(config), 0o600))
	s.startTemporal(t)
	t.Cleanup(func() { _ = s.temporal.Stop(context.Background()) })
	s.env = []string{"DATABASE_URL=" + s.databaseURL, "TEMPORAL_ADDRESS=" + s.temporal.Address()}
	return s
}

func (s *servers) startTemporal(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	s.temporal, err = devstack.StartTemporal(ctx, devstack.TemporalConfig{DataDir: s.temporalDir, Port: s.temporalPort, UIPort: -1, DynamicConfig: s.settings})
	require.NoError(t, err)
}

func (s *servers) startWorker(t testing.TB) *process {
	t.Helper()
	return start(t, s.dir, s.env, "worker")
}

// startAPI starts the API on a port of its own choice, or on the given one, and returns it with its client. It returns when
// a worker has published its tools.
func (s *servers) startAPI(t testing.TB, port int) (*process, *client) {
	t.Helper()
	p := start(t, s.dir, s.env, "api", "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	line := p.line(t, "API is up")
	_, url, found := strings.Cut(line, "url=")
	require.True(t, found, line)
	c := &client{url: strings.TrimSpace(url)}
	c.ready(t)
	return p, c
}

func (s *servers) open(t testing.TB) *ledger.Ledger {
	t.Helper()
	store, err := ledger.Open(t.Context(), s.databaseURL, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// ready waits until /readyz says 200.
func (c *client) ready(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(patience)
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		res, err := http.Get(c.url + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		require.True(t, time.Now().Before(deadline), "the API does not get ready")
		<-pause.C
	}
}
