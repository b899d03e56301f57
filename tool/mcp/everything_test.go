package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/internal/stacktest"
	"runledger/tool"
)

// everythingVersion pins the reference server, one that is not ours.
const everythingVersion = "2026.8.31"

func everything(t testing.TB) string {
	t.Helper()
	dir := stacktest.NpmPackages(t, "mcp-everything-"+everythingVersion, "@modelcontextprotocol/server-everything@"+everythingVersion)
	return filepath.Join(dir, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// TestEverythingServer calls the reference server over both transports: an answer, progress, and a call that is given up.
func TestEverythingServer(t *testing.T) {
	t.Parallel()
	program := everything(t)
	for name, config := range map[string]func(t *testing.T) Config{
		"command": func(*testing.T) Config { return Config{Name: "everything", Command: []string{"node", program}} },
		"HTTP":    func(t *testing.T) Config { return Config{Name: "everything", URL: serveEverything(t, program)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Connect(t.Context(), config(t))
			require.NoError(t, err)
			t.Cleanup(s.Close)
			set, err := tool.NewSet(s.Tools()...)
			require.NoError(t, err)
			ask := func(ctx context.Context, name, arguments string, progress func(string)) (string, error) {
				t.Helper()
				called, ok := set.Lookup("everything/" + name)
				require.True(t, ok, "%s is not among %v", name, set.Names())
				out, err := called.Call(ctx, tool.Call{Key: "run/a", Arguments: json.RawMessage(arguments), Progress: progress})
				return string(out), err
			}
			out, err := ask(t.Context(), "echo", `{"message": "hello"}`, nil)
			require.NoError(t, err)
			require.Contains(t, out, "hello")

			var mu sync.Mutex
			var reports []string
			_, err = ask(t.Context(), "trigger-long-running-operation", `{"duration": 0.3, "steps": 3}`, func(m string) {
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, m)
			})
			require.NoError(t, err)
			mu.Lock()
			require.NotEmpty(t, reports)
			require.Subset(t, []string{"1 of 3", "2 of 3", "3 of 3"}, reports)
			mu.Unlock()

			// Given up at its first report, a call ends at once, and the server goes on serving.
			ctx, cancel := context.WithCancel(t.Context())
			began := time.Now()
			_, err = ask(ctx, "trigger-long-running-operation", `{"duration": 60, "steps": 300}`, func(string) { cancel() })
			require.Error(t, err)
			require.Less(t, time.Since(began), 30*time.Second)
			_, err = ask(t.Context(), "echo", `{"message": "still there"}`, nil)
			require.NoError(t, err)
		})
	}
}

// serveEverything runs the server over streamable HTTP until the test ends, and returns its address.
func serveEverything(t *testing.T, program string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, l.Close())
	cmd := exec.Command("node", program, "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT="+port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
	})
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(said)
		for first := true; lines.Scan(); {
			if conn, err := net.Dial("tcp", "127.0.0.1:"+port); first && err == nil {
				_ = conn.Close()
				first = false
				close(ready)
			}
		}
	}()
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("the server does not listen")
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return "http://127.0.0.1:" + port + "/mcp"
}
