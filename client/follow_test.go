package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// The way of a program that shows a conversation: status, pages, live, and the end.
func TestFollowReplaysThenFollows(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a", numbers(25)...)
	var got reader
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{PageSize: 10, Profile: "run"}) {
		require.NoError(t, err)
		got.take(t, u)
		if u.Live {
			consecutive(t, got.numbers, 1, 25)
			api.add("a", numbers(5)...)
		}
		if len(got.numbers) == 30 {
			api.change(func() { api.logs["a"].idle = true })
		}
	}
	consecutive(t, got.numbers, 1, 30)
	require.True(t, got.status.IsRunning)
	require.EqualValues(t, 25, got.status.LastSequence)
	require.Equal(t, 1, got.live)
	require.Equal(t, []string{
		"/conversations/a/execution-status application/json ",
		"/conversations/a/events application/json from_sequence=0&limit=10&profile=run",
		"/conversations/a/events application/json from_sequence=11&limit=10&profile=run",
		"/conversations/a/events application/json from_sequence=21&limit=10&profile=run",
		"/conversations/a/events text/event-stream from_sequence=26&profile=run&until=idle",
		"/conversations/a/events text/event-stream from_sequence=31&profile=run&until=idle",
	}, api.requests())
}

// Connections break in the middle of frames, and everything comes once.
func TestFollowComesBack(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a")
	api.change(func() { api.logs["a"].cuts = []int{0, 1, 3, 0, 2, 7} })
	var got reader
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{}) {
		require.NoError(t, err)
		got.take(t, u)
		if u.Live {
			api.add("a", numbers(40)...)
			api.change(func() { api.logs["a"].idle = true })
		}
	}
	consecutive(t, got.numbers, 1, 40)
	streams := 0
	for _, r := range api.requests() {
		if strings.Contains(r, "text/event-stream") {
			streams++
		}
	}
	require.Equal(t, 8, streams, "six that broke, one that did not, and the answer that nothing follows")
}

// Whoever looks at A, then at B, then at A again while A is at work sees all of A, and nothing of A in B, however late answers come.
func TestSwitchingBackAndForth(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a", numbers(7)...)
	api.add("b", numbers(3)...)
	held := make(chan struct{})
	var late atomic.Bool
	late.Store(true)
	api.refuse = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/a/events") && late.CompareAndSwap(true, false) {
			<-held // the first page of A's first visit comes when nobody waits for it
		}
		return false
	}
	show := func(ctx context.Context, id string, until int, got *reader, began chan<- struct{}) error {
		for u, err := range c.Follow(ctx, Conversation(id), Options{}) {
			if err != nil {
				return err
			}
			got.take(t, u)
			if began != nil {
				close(began)
				began = nil
			}
			if until > 0 && len(got.numbers) == until {
				return nil
			}
		}
		return nil
	}
	ctx, leave := context.WithCancel(t.Context())
	var first, second, b reader
	done, began := make(chan error, 1), make(chan struct{})
	go func() { done <- show(ctx, "a", 0, &first, began) }()
	<-began
	leave()
	require.ErrorIs(t, <-done, context.Canceled)
	close(held)
	require.NoError(t, show(t.Context(), "b", 3, &b, nil))
	api.add("a", numbers(5)...)
	api.change(func() { api.logs["a"].idle = true })
	require.NoError(t, show(t.Context(), "a", 0, &second, nil))
	require.Empty(t, first.numbers)
	consecutive(t, b.numbers, 1, 3)
	consecutive(t, second.numbers, 1, 12)
}

func TestFollowFromANumber(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a", numbers(9)...)
	api.change(func() { api.logs["a"].idle = true })
	var got reader
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{From: 6}) {
		require.NoError(t, err)
		got.take(t, u)
	}
	consecutive(t, got.numbers, 6, 9)
	got = reader{}
	for u, err := range c.Replay(t.Context(), Conversation("a"), Options{From: 10}) {
		require.NoError(t, err)
		got.take(t, u)
	}
	require.Empty(t, got.numbers)
	require.Zero(t, got.live)
}

// A position that is no longer kept: an error that names the oldest, or all from there, as the reader wants it.
func TestFollowWhatIsGone(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a", numbers(20)...)
	api.change(func() { api.logs["a"].idle, api.logs["a"].oldest = true, 12 })
	var gone *GoneError
	for _, err := range c.Follow(t.Context(), Conversation("a"), Options{From: 5}) {
		if err != nil {
			require.ErrorAs(t, err, &gone)
		}
	}
	require.Equal(t, &GoneError{From: 5, Oldest: 12}, gone)

	var got reader
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{From: 5, Restart: true}) {
		require.NoError(t, err)
		got.take(t, u)
	}
	require.Equal(t, []int64{12}, got.oldest)
	consecutive(t, got.numbers, 12, 20)

	// Without a position, the oldest is what there is.
	got = reader{}
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{}) {
		require.NoError(t, err)
		got.take(t, u)
	}
	require.Empty(t, got.oldest)
	consecutive(t, got.numbers, 12, 20)
}

// What is removed while a reader is on the way is said as well.
func TestFollowWhatGoesMeanwhile(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a", numbers(10)...)
	var got reader
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{PageSize: 4, Restart: true}) {
		require.NoError(t, err)
		got.take(t, u)
		if u.Event != nil && u.Event.Sequence == 4 {
			api.change(func() { api.logs["a"].oldest, api.logs["a"].idle = 8, true })
		}
	}
	require.Equal(t, []int64{8}, got.oldest)
	require.Equal(t, []int64{1, 2, 3, 4, 8, 9, 10}, got.numbers)
}

func TestFollowRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ status int }{"no token": {401}, "not allowed": {403}, "not there": {404}, "nonsense": {400}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, c := startFake(t)
			api.add("a", numbers(3)...)
			api.refuse = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Accept") != "text/event-stream" {
					return false
				}
				problem(w, tt.status, `{"type":"/problems/x","detail":"because"}`)
				return true
			}
			var got reader
			var last error
			for u, err := range c.Follow(t.Context(), Conversation("a"), Options{}) {
				got.take(t, u)
				last = err
			}
			var no *APIError
			require.ErrorAs(t, last, &no)
			require.Equal(t, &APIError{Operation: "GET /conversations/a/events", Status: tt.status, Type: "/problems/x", Detail: "because"}, no)
			consecutive(t, got.numbers, 1, 3)
		})
	}
	_, c := startFake(t)
	for _, err := range c.Follow(t.Context(), Conversation("nobody"), Options{}) {
		var no *APIError
		require.ErrorAs(t, err, &no)
		require.Equal(t, 404, no.Status)
	}
	for _, url := range []string{"", "127.0.0.1:8080", "ftp://x", "http://"} {
		for _, err := range (&Client{URL: url}).Follow(t.Context(), Run("r"), Options{}) {
			require.Error(t, err, url)
		}
	}
}

// A number that was left out, and an answer that is not JSON, are asked for again, but not for ever.
func TestFollowWithoutSense(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a gap":           "id: 3\ndata: {\"sequence_number\":3}\n\n",
		"half a document": "id: 1\ndata: {\"sequence_nu\n\n",
		"no number":       "id: 1\ndata: {}\n\n",
		"output":          "data: [\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, c := startFake(t)
			api.add("a", numbers(1)...)
			asked := 0
			api.refuse = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Accept") != "text/event-stream" {
					return false
				}
				asked++
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				_, _ = w.Write([]byte("retry: 1\n\n" + answer))
				return true
			}
			var last error
			for _, err := range c.Follow(t.Context(), Conversation("a"), Options{}) {
				last = err
			}
			require.ErrorIs(t, last, errUnreadable)
			require.Equal(t, mostUnreadable, asked)
		})
	}
}

// Leaving the loop closes the connection, and an update that comes later reaches nobody.
func TestLeavingTheLoop(t *testing.T) {
	t.Parallel()
	api, c := startFake(t)
	api.add("a", numbers(2)...)
	closed := make(chan struct{})
	api.refuse = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Accept") == "text/event-stream" {
			context.AfterFunc(r.Context(), func() { close(closed) })
		}
		return false
	}
	for u, err := range c.Follow(t.Context(), Conversation("a"), Options{Stay: true}) {
		require.NoError(t, err)
		if u.Live {
			api.add("a", numbers(1)...)
		}
		if u.Event != nil && u.Event.Sequence == 3 {
			break
		}
	}
	<-closed

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for u, err := range c.Follow(ctx, Conversation("a"), Options{Stay: true}) {
		last = err
		if u.Live {
			cancel()
		}
	}
	require.True(t, errors.Is(last, context.Canceled))
}

// A text that is too long for an event is read whole when it takes the place of what was shown. Its beginning does when the API has no more.
func TestCommittedTextIsWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 2000)
	for name, c := range map[string]struct {
		answers []func(http.ResponseWriter)
		text    string
	}{
		"kept": {[]func(http.ResponseWriter){
			func(w http.ResponseWriter) { problem(w, 503, `{}`) },
			func(w http.ResponseWriter) {
				_ = json.NewEncoder(w).Encode(map[string]any{"result": map[string]any{"text": long}})
			},
		}, long},
		"no longer kept": {[]func(http.ResponseWriter){func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"command_id":"main#1"}`)) }}, "word word…"},
		"refused":        {[]func(http.ResponseWriter){func(w http.ResponseWriter) { problem(w, 404, `{}`) }}, "word word…"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, follower := startFake(t)
			api.add("a", agent.Event{Type: agent.CommandEmitted, RunID: "r", CommandID: "main#1"})
			api.change(func() {
				api.logs["a"].joins = [][]byte{[]byte("event: chat_delta\n" +
					`data: {"run_id":"r","command_id":"main#1","attempt":1,"data":{"channel":"text","chunk":1,"text":"wo"}}` + "\n\n")}
			})
			asked := 0
			api.refuse = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.EscapedPath() != apiPath+"/runs/r/commands/main%231" {
					return false
				}
				c.answers[asked](w)
				asked++
				return true
			}
			var got reader
			for u, err := range follower.Follow(t.Context(), Conversation("a"), Options{}) {
				require.NoError(t, err)
				got.take(t, u)
				if u.Output != nil && u.Output.State == Arriving {
					api.add("a", agent.Event{Type: "chat_completed", RunID: "r", CommandID: "main#1", Attempt: 1,
						Data: json.RawMessage(`{"kind":"llm","output":{"bytes":10002,"preview":"\"word word…"}}`)})
					api.change(func() { api.logs["a"].idle = true })
				}
			}
			require.Len(t, got.outputs, 2)
			require.Equal(t, Committed, got.outputs[1].State)
			require.Equal(t, c.text, got.outputs[1].Text)
			require.Equal(t, len(c.answers), asked)
		})
	}
}
