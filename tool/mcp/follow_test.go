package mcp

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

func has(s *Server, name string) bool {
	for _, t := range s.Tools() {
		if t.Spec().Name == "fake/"+name {
			return true
		}
	}
	return false
}

// until waits for news of the tools until they are as wanted.
func until(t testing.TB, s *Server, wanted func() bool) {
	t.Helper()
	for !wanted() {
		select {
		case <-s.Changed():
		case <-t.Context().Done():
			t.Fatal("the tools did not become what they should")
		case <-time.After(20 * time.Second):
			t.Fatal("no news of the tools")
		}
	}
}

func TestToolListChanges(t *testing.T) {
	t.Parallel()
	servers := map[string]func(t *testing.T) *Server{
		"command":   func(t *testing.T) *Server { return connectFake(t, nil) },
		"streams":   func(t *testing.T) *Server { return newSite(t, nil).connect(t) },
		"stateless": func(t *testing.T) *Server { return newSite(t, &sdk.StreamableHTTPOptions{Stateless: true}).connect(t) },
	}
	for name, connect := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := connect(t)
			before := len(s.Tools())
			_, err := call(t.Context(), t, s, "grow", `{"text": "grown"}`)
			require.NoError(t, err)
			until(t, s, func() bool { return has(s, "grown") })
			out, err := call(t.Context(), t, s, "grown", `{"text": "hello"}`)
			require.NoError(t, err)
			require.Equal(t, `{"text":"hello"}`, out)
			gone := find(t, s, "grown")

			_, err = call(t.Context(), t, s, "shrink", `{"text": "grown"}`)
			require.NoError(t, err)
			until(t, s, func() bool { return !has(s, "grown") })
			require.Len(t, s.Tools(), before)
			_, err = gone.Call(t.Context(), tool.Call{Arguments: json.RawMessage(`{}`)})
			require.Equal(t, agent.FaultDefinite, failure(t, err).Fault, "a run may still have it")
		})
	}
}

// A list with which the configuration does not agree is not taken.
func TestToolListThatLosesAConfiguredTool(t *testing.T) {
	t.Parallel()
	refused := make(chan struct{}, 10)
	s := connectFake(t, func(c *Config) {
		c.Effects = map[string]agent.EffectClass{"plain": agent.External}
		c.Log = slog.New(messages(func(message string) {
			if message == "the tools of an mcp server stay as they were" {
				refused <- struct{}{}
			}
		}))
	})
	_, err := call(t.Context(), t, s, "shrink", `{"text": "plain"}`)
	require.NoError(t, err)
	<-refused
	require.True(t, has(s, "plain"))
}

// A server that cannot be reached when the worker starts is tried again, and its tools come then.
func TestOpenWithoutTheServer(t *testing.T) {
	t.Parallel()
	t.Run("command", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "down")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		cfg := fakeConfig(t, "flaky")
		cfg.Env["FAKE_FILE"] = file
		s, err := Open(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(s.Close)
		require.Nil(t, s.Tools())
		require.NoError(t, os.Remove(file))
		until(t, s, func() bool { return has(s, "echo") })
		_, err = call(t.Context(), t, s, "echo", `{}`)
		require.NoError(t, err)
	})
	t.Run("HTTP", func(t *testing.T) {
		t.Parallel()
		site := newSite(t, nil)
		down := func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		site.instead.Store(&down)
		s, err := Open(t.Context(), site.config())
		require.NoError(t, err)
		t.Cleanup(s.Close)
		require.Nil(t, s.Tools())
		site.instead.Store(nil)
		until(t, s, func() bool { return has(s, "echo") })
		_, err = call(t.Context(), t, s, "echo", `{}`)
		require.NoError(t, err)
	})
	t.Run("a wrong configuration", func(t *testing.T) {
		t.Parallel()
		_, err := Open(t.Context(), Config{Name: "fake"})
		require.ErrorContains(t, err, "mcp server fake: the command is missing")
	})
	t.Run("closed while it waits", func(t *testing.T) {
		t.Parallel()
		s, err := Open(t.Context(), Config{Name: "fake", Command: []string{"/nowhere/server"}})
		require.NoError(t, err)
		s.Close()
		require.Empty(t, s.Tools())
	})
}

// What comes after a session that was lost may have other tools.
func TestToolsAfterARestartOverHTTP(t *testing.T) {
	t.Parallel()
	site := newSite(t, nil)
	s := site.connect(t)
	_, err := call(t.Context(), t, s, "grow", `{"text": "before"}`)
	require.NoError(t, err)
	until(t, s, func() bool { return has(s, "before") })
	site.restart(nil)
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.NoError(t, err)
	until(t, s, func() bool { return !has(s, "before") })
	require.True(t, has(s, "echo"))
}

// messages is a slog.Handler that tells what was logged.
type messages func(message string)

func (m messages) Enabled(context.Context, slog.Level) bool      { return true }
func (m messages) Handle(_ context.Context, r slog.Record) error { m(r.Message); return nil }
func (m messages) WithAttrs([]slog.Attr) slog.Handler            { return m }
func (m messages) WithGroup(string) slog.Handler                 { return m }
