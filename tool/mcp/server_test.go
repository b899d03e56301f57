package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// fakeConfig runs the test binary as a server.
func fakeConfig(t testing.TB, mode string) Config {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	return Config{Name: "fake", Command: []string{program}, Env: map[string]string{fakeMode: mode}}
}

func connectFake(t testing.TB, edit func(*Config)) *Server {
	t.Helper()
	cfg := fakeConfig(t, "serve")
	if edit != nil {
		edit(&cfg)
	}
	s, err := Connect(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func find(t testing.TB, s *Server, name string) tool.Tool {
	t.Helper()
	for _, candidate := range s.Tools() {
		if candidate.Spec().Name == "fake/"+name {
			return candidate
		}
	}
	t.Fatalf("there is no tool %s", name)
	return nil
}

func call(ctx context.Context, t testing.TB, s *Server, name, args string) (string, error) {
	t.Helper()
	out, err := find(t, s, name).Call(ctx, tool.Call{Key: "run-1/" + name, Arguments: json.RawMessage(args)})
	return string(out), err
}

func failure(t testing.TB, err error) *agent.Error {
	t.Helper()
	e, ok := agent.AsError(err)
	require.True(t, ok, "%v is not classified", err)
	return e
}

// listener lets a fake server talk back: words come in on the channel, which is closed when the other side is gone.
type listener struct {
	addr  string
	words chan string
	conn  chan net.Conn
}

func listen(t testing.TB) *listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	out := &listener{addr: l.Addr().String(), words: make(chan string, 10), conn: make(chan net.Conn, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(out.words)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		out.conn <- conn
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			out.words <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		select {
		case conn := <-out.conn:
			_ = conn.Close()
		default:
		}
		<-done
	})
	return out
}

func (l *listener) args() string { return `{"addr": "` + l.addr + `"}` }

func TestToolsOfAServer(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := connectFake(t, func(c *Config) {
		c.Effects = map[string]agent.EffectClass{"plain": agent.Idempotent, "read": agent.External}
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.MaxConcurrent, c.Rate = 2, agent.Rate{Calls: 10, Per: time.Second}
		c.Timeout = map[string]agent.Duration{"echo": agent.Duration(time.Minute)}
	})
	set, err := tool.NewSet(s.Tools()...)
	require.NoError(t, err)
	got := map[string]agent.EffectClass{}
	for _, spec := range set.Specs() {
		got[spec.Name] = spec.Effect
	}
	for name, want := range map[string]agent.EffectClass{
		"echo": agent.Idempotent, "read": agent.External, "destroy": agent.External, "plain": agent.Idempotent, "die": agent.External, "key": agent.External,
	} {
		require.Equal(t, want, got["fake/"+name], name)
	}
	require.NotContains(t, got, "fake/bad", "its schema refers to another server")
	require.Contains(t, got, "fake/dotted_name")
	require.Len(t, got, len(s.Tools()))
	require.Contains(t, log.String(), "tool=bad")
	require.Contains(t, log.String(), "two tools have this name")

	echo, _ := set.Lookup("fake/echo")
	require.Equal(t, "Does echo.", echo.Spec().Description)
	require.Equal(t, time.Minute, echo.Spec().Timeout)
	for _, spec := range set.Specs() {
		require.Equal(t, tool.CallLimit{Name: "fake/*", MaxConcurrent: 2, Rate: agent.Rate{Calls: 10, Per: time.Second}}, spec.Limit, "one limit for all")
	}
	key, _ := set.Lookup("fake/key")
	require.Equal(t, "Title of key", key.Spec().Description)
	require.NoError(t, set.Validate("fake/echo", json.RawMessage(`{"text": "x"}`)))
	require.ErrorContains(t, set.Validate("fake/echo", json.RawMessage(`{"text": 1}`)), "/text")
	chosen, err := set.Select("fake/*")
	require.NoError(t, err)
	require.Equal(t, set.Len(), chosen.Len())
}

func TestCall(t *testing.T) {
	t.Parallel()
	s := connectFake(t, func(c *Config) { c.MaxOutputBytes = 101 })
	for _, tc := range []struct{ name, args, want string }{
		{"echo", `{"text": "hello"}`, `{"text":"hello"}`},
		{"echo", ``, `{"text":""}`},
		{"key", `{"n":1234567890123456789}`, `{"args":{"n":1234567890123456789},"id":9007199254740993,"key":"run-1/key"}`},
		{"picture", `{}`, `{"text":"a picture\nand more","content":[{"data":"cG5n","mimeType":"image/png","type":"image"}]}`},
		{"large", `{"size": 100}`, `{"text":"` + strings.Repeat("é", 50) + `","truncated":true}`},
	} {
		out, err := call(t.Context(), t, s, tc.name, tc.args)
		require.NoError(t, err, tc.name)
		if tc.name == "key" {
			require.JSONEq(t, tc.want, out)
			require.Contains(t, out, "9007199254740993", "the digits are those of the server")
			continue
		}
		require.Equal(t, tc.want, out, tc.name)
	}
	for _, tc := range []struct {
		name, message string
		fault         agent.Fault
	}{
		{"fail", "fake/fail: no such account", agent.FaultDefinite},
		{"refuse", "fake/refuse: what is that?", agent.FaultDefinite},
		{"break", "fake/break: stack overflow", agent.FaultUnknown},
	} {
		_, err := call(t.Context(), t, s, tc.name, `{}`)
		e := failure(t, err)
		require.Equal(t, agent.CodeToolFailed, e.Code)
		require.Equal(t, tc.fault, e.Fault, tc.name)
		require.Equal(t, tc.message, e.Message)
	}
	_, err := call(t.Context(), t, s, "echo", `{"text": `)
	require.Equal(t, agent.CodeInvalidArguments, failure(t, err).Code)
}

func TestCallsRunSideBySide(t *testing.T) {
	t.Parallel()
	s := connectFake(t, nil)
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = call(ctx, t, s, "wait", l.args()) })
	require.Equal(t, "waiting", <-l.words)
	for i := range 20 {
		wg.Go(func() {
			text := strings.Repeat("x", i*1000)
			out, err := call(t.Context(), t, s, "echo", `{"text": "`+text+`"}`)
			require.NoError(t, err)
			require.Equal(t, `{"text":"`+text+`"}`, out)
		})
	}
	cancel()
	wg.Wait()
}

func TestCallIsCancelled(t *testing.T) {
	t.Parallel()
	s := connectFake(t, nil)
	for _, code := range []agent.Code{agent.CodeCancelled, agent.CodeTimeout} {
		ctx, end := context.WithCancel(t.Context())
		if code == agent.CodeTimeout {
			over := &deadline{Context: t.Context(), ended: make(chan struct{})}
			ctx, end = over, func() { close(over.ended) }
		}
		l := listen(t)
		ended := make(chan error, 1)
		go func() {
			_, err := call(ctx, t, s, "wait", l.args())
			ended <- err
		}()
		require.Equal(t, "waiting", <-l.words)
		end()
		e := failure(t, <-ended)
		require.Equal(t, code, e.Code)
		require.Equal(t, agent.FaultUnknown, e.Fault)
		require.Equal(t, "cancelled", <-l.words, "the server hears of it")

		_, err := call(ctx, t, s, "echo", `{}`)
		require.Equal(t, agent.FaultTransient, failure(t, err).Fault, "nothing was sent")
	}
	out, err := call(t.Context(), t, s, "echo", `{"text": "still there"}`)
	require.NoError(t, err)
	require.Equal(t, `{"text":"still there"}`, out)
}

// deadline is a context whose deadline comes when the test says so.
type deadline struct {
	context.Context
	ended chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.ended }

func (d *deadline) Err() error {
	select {
	case <-d.ended:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	s := connectFake(t, nil)
	l := listen(t)
	reports := make(chan string, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn := <-l.conn
		defer conn.Close()
		for _, want := range []string{"half way", "2 of 4"} {
			if got := <-reports; got != want {
				t.Errorf("progress %q, want %q", got, want)
			}
			_, _ = io.WriteString(conn, "go on\n")
		}
	}()
	out, err := find(t, s, "progress").Call(t.Context(), tool.Call{Arguments: json.RawMessage(l.args()), Progress: func(m string) { reports <- m }})
	require.NoError(t, err)
	require.Equal(t, `{"text":"done"}`, string(out))
	<-done
	require.Empty(t, s.progress.calls)
}

// A server that dies takes down the call it was at, and no other.
func TestServerDiesAndIsStartedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	clock := time.Unix(0, 0)
	now := func() time.Time { mu.Lock(); defer mu.Unlock(); return clock }
	advance := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); clock = clock.Add(d) }
	s, err := connect(t.Context(), fakeConfig(t, "serve"), now)
	require.NoError(t, err)
	t.Cleanup(s.Close)

	die := func() {
		t.Helper()
		_, err := call(t.Context(), t, s, "die", `{}`)
		e := failure(t, err)
		require.Equal(t, agent.FaultUnknown, e.Fault, "it was sent: %v", err)
	}
	die()
	out, err := call(t.Context(), t, s, "echo", `{"text": "back"}`)
	require.NoError(t, err)
	require.Equal(t, `{"text":"back"}`, out)

	// Twice in a row without an answer: the next start has to wait, longer each time.
	die()
	die()
	for _, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		_, err = call(t.Context(), t, s, "echo", `{}`)
		e := failure(t, err)
		require.Equal(t, agent.FaultTransient, e.Fault)
		require.Equal(t, wait, e.RetryAfter)
		require.ErrorContains(t, err, "mcp server fake: is down")
		advance(wait)
		die()
	}
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.Equal(t, 8*time.Second, failure(t, err).RetryAfter)
	advance(8 * time.Second)
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.NoError(t, err)
	die()
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.NoError(t, err, "an answer makes up for what was before")
}

func TestServerCannotBeStartedAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "down")
	cfg := fakeConfig(t, "flaky")
	cfg.Env["FAKE_FILE"] = file
	var mu sync.Mutex
	clock := time.Unix(0, 0)
	s, err := connect(t.Context(), cfg, func() time.Time { mu.Lock(); defer mu.Unlock(); return clock })
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = call(t.Context(), t, s, "die", `{}`)
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)
	_, err = call(t.Context(), t, s, "echo", `{}`)
	e := failure(t, err)
	require.Equal(t, agent.FaultTransient, e.Fault)
	require.Equal(t, "mcp server fake: cannot be started", e.Message)
	require.Equal(t, 2*time.Second, e.RetryAfter)
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.ErrorContains(t, err, "is down")
	require.NoError(t, os.Remove(file))
	mu.Lock()
	clock = clock.Add(2 * time.Second)
	mu.Unlock()
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.NoError(t, err)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	var got []time.Duration
	for n := range int32(9) {
		got = append(got, backoff(n))
	}
	s := time.Second
	require.Equal(t, []time.Duration{0, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, time.Minute, time.Minute}, got)
	require.Equal(t, time.Minute, backoff(1<<30))
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	s := connectFake(t, nil)
	grandchild, waiting := listen(t), listen(t)
	_, err := call(t.Context(), t, s, "spawn", grandchild.args())
	require.NoError(t, err)
	require.Equal(t, "holding", <-grandchild.words)
	ended := make(chan error, 1)
	go func() {
		_, err := call(t.Context(), t, s, "wait", waiting.args())
		ended <- err
	}()
	require.Equal(t, "waiting", <-waiting.words)

	s.Close()
	for range grandchild.words { // ends when the grandchild, which ignores SIGTERM, is gone
	}
	require.Equal(t, agent.FaultUnknown, failure(t, <-ended).Fault)
	s.Close()
	_, err = call(t.Context(), t, s, "echo", `{}`)
	require.Equal(t, agent.FaultTransient, failure(t, err).Fault)
	require.ErrorIs(t, err, errClosed)
}

// When the command itself dies, what it has started does not live on with the pipes.
func TestDeathEndsGrandchildren(t *testing.T) {
	t.Parallel()
	s := connectFake(t, nil)
	grandchild := listen(t)
	_, err := call(t.Context(), t, s, "spawn", grandchild.args())
	require.NoError(t, err)
	require.Equal(t, "holding", <-grandchild.words)
	_, err = call(t.Context(), t, s, "die", `{}`)
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)
	for range grandchild.words {
	}
}

func TestCloseEndsAStubbornServer(t *testing.T) {
	t.Parallel()
	l := listen(t)
	cfg := fakeConfig(t, "stubborn")
	cfg.Env["FAKE_ADDR"], cfg.grace = l.addr, 50*time.Millisecond
	s, err := Connect(t.Context(), cfg)
	require.NoError(t, err)
	s.Close()
	for range l.words {
	}
}

// A server that stops reading must not hold up a call beyond its context, nor take in half of one and the next one's rest.
func TestServerThatStopsReadingIsKilled(t *testing.T) {
	t.Parallel()
	s := connectFake(t, func(c *Config) { c.grace = 50 * time.Millisecond })
	l := listen(t)
	_, err := call(t.Context(), t, s, "plug", l.args())
	require.NoError(t, err)
	ctx := &deadline{Context: t.Context(), ended: make(chan struct{})}
	go func() { <-l.words; close(ctx.ended) }() // it has read some of the message and will read no more
	_, err = call(ctx, t, s, "echo", `{"text": "`+strings.Repeat("x", 256<<10)+`"}`)
	require.Equal(t, agent.CodeTimeout, failure(t, err).Code)
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault, "part of it was sent")
	out, err := call(t.Context(), t, s, "echo", `{"text": "new process"}`)
	require.NoError(t, err)
	require.Equal(t, `{"text":"new process"}`, out)
}

func TestConnectFails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, message string
		edit          func(*Config)
	}{
		{"no name", "is not a server name", func(c *Config) { c.Name = "" }},
		{"a slash", "is not a server name", func(c *Config) { c.Name = "a/b" }},
		{"no command", "the command is missing", func(c *Config) { c.Command = nil }},
		{"env over HTTP", "dir, env and env_from go with a command", func(c *Config) { c.Command, c.URL = nil, "https://example.org/mcp" }},
		{"no URL", "url: want http://host/path", func(c *Config) { c.Command, c.Env, c.URL = nil, nil, "example.org/mcp" }},
		{"a password", "url: holds a user or a password", func(c *Config) { c.Command, c.Env, c.URL = nil, nil, "https://a:b@example.org/mcp" }},
		{"a header of nothing", "headers_env: Authorization: the environment variable RUNLEDGER_NOT_SET is not set", func(c *Config) {
			c.Command, c.Env, c.URL, c.HeadersEnv = nil, nil, "https://example.org/mcp", map[string]string{"Authorization": "RUNLEDGER_NOT_SET"}
		}},
		{"both", "both a command and a url", func(c *Config) { c.URL = "https://example.org/mcp" }},
		{"headers", "headers_env goes with a url", func(c *Config) { c.HeadersEnv = map[string]string{"A": "B"} }},
		{"effect", `effects: echo: "harmless" is not an effect class`, func(c *Config) { c.Effects = map[string]agent.EffectClass{"echo": "harmless"} }},
		{"effect of nothing", `effects: the server has no tool "ehco"`, func(c *Config) { c.Effects = map[string]agent.EffectClass{"ehco": agent.Idempotent} }},
		{"program", "no such file", func(c *Config) { c.Command = []string{"/nowhere/server"} }},
		{"directory", "no such file", func(c *Config) { c.Dir = "/nowhere" }},
		{"secret", "env_from: TOKEN: the environment variable RUNLEDGER_NOT_SET is not set", func(c *Config) { c.EnvFrom = map[string]string{"TOKEN": "RUNLEDGER_NOT_SET"} }},
		{"negative timeout", "start_timeout is negative", func(c *Config) { c.StartTimeout = -1 }},
		{"negative size", "max_output_bytes is negative", func(c *Config) { c.MaxOutputBytes = -1 }},
		{"dies", "cannot find the database", func(c *Config) { c.Env[fakeMode] = "noisy" }},
		{"silent", "did not answer in time", func(c *Config) { c.Env[fakeMode], c.StartTimeout = "silent", 100*time.Millisecond }},
		{"deaf", "did not answer in time", func(c *Config) { c.Env[fakeMode], c.StartTimeout = "deaf", 100*time.Millisecond }},
		{"no protocol", "mcp server fake", func(c *Config) { c.Env[fakeMode] = "babbler" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := fakeConfig(t, "serve")
			tc.edit(&cfg)
			_, err := Connect(t.Context(), cfg)
			require.ErrorContains(t, err, tc.message)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Connect(ctx, fakeConfig(t, "serve"))
	require.ErrorIs(t, err, context.Canceled)
}

func TestEnvironmentOfAServer(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "top secret")
	t.Setenv("GITHUB_FOR_RUNLEDGER", "for this server")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	s := connectFake(t, func(c *Config) {
		c.Dir = dir
		c.Env["PLAIN"] = "value"
		c.EnvFrom = map[string]string{"GITHUB_TOKEN": "GITHUB_FOR_RUNLEDGER"}
	})
	out, err := call(t.Context(), t, s, "environment", `{}`)
	require.NoError(t, err)
	require.Contains(t, out, dir)
	require.Contains(t, out, "PATH=")
	require.Contains(t, out, "PLAIN=value")
	require.Contains(t, out, "GITHUB_TOKEN=for this server")
	require.NotContains(t, out, "top secret")
	require.NotContains(t, out, "GITHUB_FOR_RUNLEDGER")
}
