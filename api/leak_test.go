package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

const (
	leakRounds  = 10_000
	leakWarmUp  = 1_000
	leakClients = 16
	leakPool    = 8
)

// visit is one way to connect and to go away.
type visit struct {
	name string
	run  func(ctx context.Context, n int) error
}

// countedLedger counts who is subscribed.
type countedLedger struct {
	*ledger.Ledger
	watching atomic.Int64
}

func (l *countedLedger) Watch(news func(string)) func() {
	l.watching.Add(1)
	cancel := l.Ledger.Watch(news)
	return func() { l.watching.Add(-1); cancel() }
}

func (l *countedLedger) Subscribe(id string) (<-chan struct{}, func()) {
	l.watching.Add(1)
	news, cancel := l.Ledger.Subscribe(id)
	return news, func() { l.watching.Add(-1); cancel() }
}

// TestNothingIsLeftOfClientsThatWent counts what this process has before and after many clients came and went, so that no other test
// runs beside it.
func TestNothingIsLeftOfClientsThatWent(t *testing.T) { //nolint:paralleltest // it counts what the whole process has
	store, err := ledger.Open(t.Context(), pgtest.Database(t), ledger.Options{MaxConns: leakPool, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	require.NoError(t, store.PublishTools(t.Context(), "default", newFakeLedger().tools))
	counted := &countedLedger{Ledger: store}
	b := newBench(t, func(c *Config) { c.Ledger, c.Logger = counted, slog.New(slog.DiscardHandler) })
	var busy, connected atomic.Int64
	server := b.api.NewServer()
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connected.Add(1)
		case http.StateClosed, http.StateHijacked:
			connected.Add(-1)
		}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		busy.Add(1)
		defer busy.Add(-1)
		b.api.ServeHTTP(w, r)
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	one, two := speaking(1), speaking(2)

	start := func() agent.Run {
		w := b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`)
		require.Equal(t, 202, w.Code, "%s", w.Body)
		return document[agent.Run](t, w)
	}
	open, ended := start(), start()
	require.Equal(t, 200, b.do("POST", "/api/v1/agent/runs/"+ended.RunID+"/cancel", "").Code)
	visits := leakVisits("http://"+listener.Addr().String(), one, two, open, ended)

	come := func(rounds int) {
		t.Helper()
		next, failures := atomic.Int64{}, make(chan error, leakClients)
		var group sync.WaitGroup
		for range leakClients {
			group.Go(func() {
				for n := int(next.Add(1)); n <= rounds; n = int(next.Add(1)) {
					v := visits[n%len(visits)]
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					err := v.run(ctx, n)
					cancel()
					if err != nil {
						failures <- fmt.Errorf("%s: %w", v.name, err)
						return
					}
				}
			})
		}
		group.Wait()
		close(failures)
		require.NoError(t, <-failures)
		one.CloseIdleConnections()
		two.CloseIdleConnections()
	}
	gone := func() bool { return busy.Load() == 0 && connected.Load() == 0 && counted.watching.Load() == 0 }
	come(leakWarmUp)
	require.Eventually(t, gone, 30*time.Second, 5*time.Millisecond)
	before := settled(t, have{goroutines: 1 << 20, files: 1 << 20})
	come(leakRounds)
	require.Eventually(t, gone, 30*time.Second, 5*time.Millisecond, "no request is at work, no connection is open, nobody is subscribed to the ledger")
	// How many connections the ledger has to its database varies.
	after := settled(t, have{goroutines: before.goroutines, files: before.files + leakPool})
	t.Logf("before %+v, after %+v", before, after)
	// The ledger's connections keep 1 MB more, after 10,000 clients as after 30,000; what is kept of a client is more than 300 bytes.
	require.LessOrEqual(t, after.heap, before.heap+leakRounds*300)
	require.Empty(t, b.api.slots.taken)
}

// leakVisits are the ways to come and go: by both protocols, in the middle of a stream, before and after its first bytes, and with
// streams that end by themselves.
func leakVisits(url string, one, two *http.Client, open, ended agent.Run) []visit {
	follow := func(client *http.Client, path, until string) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			ctx, leave := context.WithCancel(ctx)
			defer leave()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
			if err != nil {
				return err
			}
			r.Header.Set("Accept", "text/event-stream")
			res, err := client.Do(r)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode >= 300 {
				return fmt.Errorf("status %d", res.StatusCode)
			}
			in := bufio.NewReader(res.Body)
			for line := ""; until != "" && !strings.HasPrefix(line, until); {
				if line, err = in.ReadString('\n'); err != nil {
					return err
				}
			}
			if until == "" {
				return nil
			}
			leave()
			_, _ = io.Copy(io.Discard, in)
			return nil
		}
	}
	conversation := "/api/v1/agent/conversations/" + open.ConversationID + "/events"
	return []visit{
		{"leaves a run", follow(one, runEvents(open), "event: message_added")},
		{"leaves a run by HTTP/2", follow(two, runEvents(open)+"?profile=react", "event: message_added")},
		{"leaves a conversation", follow(one, conversation, "retry:")},
		{"leaves at once by HTTP/2", follow(two, conversation, "")},
		{"reads a run that has ended", follow(one, runEvents(ended), "event: run_cancelled")},
		{"is told that there is no more", follow(two, runEvents(ended)+"?after=3", "")},
		{"closes the connection when it has asked", func(ctx context.Context, _ int) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				return err
			}
			_, err = io.WriteString(conn, "GET "+runEvents(open)+" HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
			if closed := conn.Close(); err == nil {
				err = closed
			}
			return err
		}},
		{"lets a run write, now and then", func(ctx context.Context, n int) error {
			if n%10 != 0 {
				return follow(one, conversation, "event: ")(ctx, n)
			}
			for _, what := range []string{"/pause", "/unpause"} {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/v1/agent/runs/"+open.RunID+what, nil)
				if err != nil {
					return err
				}
				res, err := one.Do(r)
				if err != nil {
					return err
				}
				_ = res.Body.Close()
			}
			return nil
		}},
	}
}

// have is what a process has.
type have struct {
	goroutines, files int
	heap              uint64
}

// settled counts when goroutines and open files are no more than they may be, and no longer change.
func settled(t *testing.T, atMost have) have {
	t.Helper()
	var now have
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("there are %+v, at most %+v: %s", now, atMost, strings.Join(goroutines(), "\n\n"))
	})
	require.Eventually(t, func() bool {
		before := now
		runtime.GC()
		files, err := os.ReadDir("/dev/fd")
		if err != nil {
			return false
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		now = have{goroutines: len(goroutines()), files: len(files), heap: m.HeapAlloc}
		return now.goroutines == before.goroutines && now.files == before.files && now.goroutines <= atMost.goroutines && now.files <= atMost.files
	}, 30*time.Second, 200*time.Millisecond, "at most %+v", atMost)
	return now
}

// goroutines are the stacks of those that are there, without those that pgx keeps behind an idle connection now and then: the pool bounds
// how many these are.
func goroutines() []string {
	stacks := make([]byte, 4<<20)
	all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
	return slices.DeleteFunc(all, func(stack string) bool { return strings.Contains(stack, "github.com/jackc/pgx/v5") })
}
