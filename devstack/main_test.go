package devstack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	sdklog "go.temporal.io/sdk/log"
)

// holderEnv turns the test binary into a program that starts the servers of a data folder and waits to be killed.
const holderEnv = "DEVSTACK_TEST_HOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holderEnv); dir != "" {
		holdServers(dir)
		return
	}
	os.Exit(m.Run())
}

// holding is what the holder tells its parent.
type holding struct {
	PostgresPID int
	URL         string
	TemporalPID int
	Address     string
	Err         string
}

func holdServers(dir string) {
	ctx := context.Background()
	var h holding
	pg, err := StartPostgres(ctx, quick(dir))
	if err == nil {
		h.PostgresPID, h.URL = pg.PID(), pg.URL()
		var temporal *Temporal
		if temporal, err = StartTemporal(ctx, TemporalConfig{DataDir: dir}); err == nil {
			h.TemporalPID, h.Address = temporal.PID(), temporal.Address()
		}
	}
	if err != nil {
		h.Err = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(h)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// abandon starts both servers in dir by a program that is then killed.
func abandon(t *testing.T, dir string) holding {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err)
	var h holding
	require.NoError(t, json.Unmarshal(line, &h))
	require.Empty(t, h.Err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	return h
}

// quick is a Postgres for tests: nothing that only a power failure could take is made safe from it.
func quick(dir string) PostgresConfig {
	return PostgresConfig{DataDir: dir, Settings: map[string]string{"fsync": "off"}}
}

// dataFolder is a data folder that every user can pass through, gone at the end with all that runs in it.
func dataFolder(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "devstack-test-*")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(parent, 0o755))
	dir := filepath.Join(parent, "data")
	cleanUp(t, dir)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(parent)) })
	return dir
}

// closedFolder is a data folder below a directory that only we can enter.
func closedFolder(t *testing.T) string {
	t.Helper()
	parent := t.TempDir()
	require.NoError(t, os.Chmod(parent, 0o700))
	dir := filepath.Join(parent, "data")
	cleanUp(t, dir)
	return dir
}

func cleanUp(t *testing.T, dir string) {
	t.Cleanup(func() { require.NoError(t, Reset(context.Background(), dir)) })
}

func startPG(t *testing.T, cfg PostgresConfig) *Postgres {
	t.Helper()
	began := time.Now()
	pg, err := StartPostgres(t.Context(), cfg)
	require.NoError(t, err)
	t.Logf("Postgres answered after %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() { require.NoError(t, pg.Stop(context.Background())) })
	return pg
}

func startTemporalServer(t *testing.T, cfg TemporalConfig) *Temporal {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a Temporal server")
	}
	began := time.Now()
	temporal, err := StartTemporal(t.Context(), cfg)
	require.NoError(t, err)
	t.Logf("Temporal answered after %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() { require.NoError(t, temporal.Stop(context.Background())) })
	return temporal
}

// query executes statements in the database at url; the last one's only value is returned.
func query(t *testing.T, url string, statements ...string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	var value string
	for i, sql := range statements {
		if i < len(statements)-1 {
			_, err = conn.Exec(t.Context(), sql)
		} else {
			err = conn.QueryRow(t.Context(), sql).Scan(&value)
		}
		require.NoError(t, err, sql)
	}
	return value
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root runs servers as another user")
	}
}

// lines collects what is written to it and lets a test wait for a text.
type lines struct {
	mu     sync.Mutex
	text   strings.Builder
	change chan struct{}
}

func newLines() *lines { return &lines{change: make(chan struct{}, 1)} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.text.Write(p)
	l.mu.Unlock()
	select {
	case l.change <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) waitFor(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(l.String(), text) {
		select {
		case <-l.change:
		case <-t.Context().Done():
			t.Fatalf("never said %q, only %q", text, l)
		}
	}
}

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// script writes an executable shell script.
func script(t *testing.T, path, format string, args ...any) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+fmt.Sprintf(format, args...)), 0o755))
	return path
}

func discardTemporal() sdklog.Logger {
	return sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))
}
