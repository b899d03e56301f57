package stacktest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/devstack"
	"runledger/internal/pgtest"
)

// Servers are what the processes of one test share.
type Servers struct {
	DatabaseURL string
	Temporal    *devstack.Temporal
	// TemporalDir and temporalPort are where Temporal comes back after it was stopped.
	TemporalDir  string
	temporalPort int
	settings     []string
	// Dir is the processes' working directory, which has the configuration; Env is their environment.
	Dir string
	Env []string
}

// StartServers starts them with a database of the test's own. Settings are Temporal's, if there are any.
func StartServers(t testing.TB, config string, settings ...string) *Servers {
	t.Helper()
	return StartServersOn(t, pgtest.Database(t), config, settings...)
}

// StartServersOn is StartServers with a database that is there.
func StartServersOn(t testing.TB, databaseURL, config string, settings ...string) *Servers {
	t.Helper()
	s := &Servers{DatabaseURL: databaseURL, TemporalDir: t.TempDir(), temporalPort: FreePort(t), settings: settings, Dir: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "runledger.yaml"), []byte(config), 0o600))
	s.StartTemporal(t)
	t.Cleanup(func() { _ = s.Temporal.Stop(context.Background()) })
	s.Env = []string{"DATABASE_URL=" + s.DatabaseURL, "TEMPORAL_ADDRESS=" + s.Temporal.Address()}
	return s
}

// StartTemporal starts Temporal where it was before.
func (s *Servers) StartTemporal(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	var err error
	s.Temporal, err = devstack.StartTemporal(ctx, devstack.TemporalConfig{DataDir: s.TemporalDir, Port: s.temporalPort, UIPort: -1, DynamicConfig: s.settings})
	require.NoError(t, err)
}

// StartWorker starts a worker.
func (s *Servers) StartWorker(t testing.TB) *Process {
	t.Helper()
	return Start(t, s.Dir, s.Env, "worker")
}

// StartAPI starts the API on a port of its own choice, or on the given one, and returns it with its client. It returns when
// a worker has published its tools.
func (s *Servers) StartAPI(t testing.TB, port int) (*Process, *Client) {
	t.Helper()
	p := Start(t, s.Dir, s.Env, "api", "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	line := p.Line(t, "API is up")
	_, url, found := strings.Cut(line, "url=")
	require.True(t, found, line)
	c := &Client{URL: strings.TrimSpace(url)}
	c.Ready(t)
	return p, c
}

// Runledger runs the program to its end and returns its lines and exit code.
func (s *Servers) Runledger(t testing.TB, args ...string) (lines []string, code int) {
	t.Helper()
	cmd := Command(t, s.Env, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), code
}

// RequireSound holds a run, which has ended, to its record: verify, and an audit. executions are those whose history Temporal has.
func (s *Servers) RequireSound(t testing.TB, c *Client, runID string, executions int) {
	t.Helper()
	var v agent.Verification
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/verify", nil, &v))
	require.Empty(t, v.Differences)
	require.Equal(t, executions, v.Temporal.Executions)
	lines, code := s.Runledger(t, "replay", "--run", runID, "--ledger")
	require.Zero(t, code, lines)
	lines, code = s.Runledger(t, "replay", "--run", runID)
	require.Zero(t, code, lines)
	require.Equal(t, fmt.Sprintf("%d replayed, 0 diverged", executions), lines[len(lines)-1])
}

// FreePort is a port of this machine on which nobody listens.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
