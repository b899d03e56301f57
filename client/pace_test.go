package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// scripted answers requests in turn, and keeps when each came.
type scripted struct {
	began   time.Time
	at      []time.Duration
	answers []func(*http.Request) (*http.Response, error)
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.at = append(s.at, time.Since(s.began))
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return answer(r)
}

func answer(status int, body string, header ...string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		res := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
		for i := 0; i+1 < len(header); i += 2 {
			res.Header.Set(header[i], header[i+1])
		}
		return res, nil
	}
}

func stream(body string) func(*http.Request) (*http.Response, error) {
	return answer(200, body, "Content-Type", "text/event-stream")
}

func refused(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

// pauses follows a run over scripted answers and gives the seconds between requests.
func pauses(t *testing.T, o Options, answers ...func(*http.Request) (*http.Response, error)) (seconds []int, last error) {
	t.Helper()
	s := &scripted{answers: answers}
	f := &follower{client: &Client{URL: "http://api", HTTP: &http.Client{Transport: s}}, log: Run("r"), opts: o, outputs: newOutputs(), pace: newPace(),
		give: func(Update) error { return nil }}
	f.pace.jitter = func(time.Duration) time.Duration { return 0 }
	last = f.run(t.Context(), true)
	for i := 1; i < len(s.at); i++ {
		seconds = append(seconds, int((s.at[i] - s.at[i-1]).Seconds()))
	}
	return seconds, last
}

const noEvents = `{"events":[],"has_more":false}`

func TestPausesGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, err := pauses(t, Options{}, answer(200, noEvents), refused, refused, refused, refused, refused, refused, refused, answer(204, ""))
		require.NoError(t, err)
		require.Equal(t, []int{0, 1, 2, 4, 8, 16, 30, 30}, got)
	})
}

func TestPausesHonourTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		event := "id: 1\ndata: {\"sequence_number\":1}\n\n"
		got, err := pauses(t, Options{}, answer(503, "", "Retry-After", "7"), answer(429, "", "Retry-After", "3"), answer(200, noEvents),
			stream("retry: 5000\n\n"), // ends without an event: the pause grows
			refused,
			stream("retry: 2000\n\n"+event), // an event: the count begins anew
			stream("retry: 45000\n\n"),      // the server's word is more than ours
			answer(503, ""),
			answer(503, "", "Retry-After", time.Now().Add(100*time.Second).UTC().Format(http.TimeFormat)), // about now in the bubble, some seconds on
			answer(204, ""))
		require.NoError(t, err)
		require.Equal(t, []int{7, 3, 0, 5, 10, 2, 45, 45}, got[:8])
		require.GreaterOrEqual(t, got[8], 45)
	})
}

// A stream that held for a while, without an event, was no failure.
func TestPausesAfterALongSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := func(*http.Request) (*http.Response, error) {
			in, out := io.Pipe()
			go func() {
				for range 4 {
					time.Sleep(20 * time.Second)
					_, _ = io.WriteString(out, ": heartbeat\n\n")
				}
				_ = out.Close()
			}()
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: in}, nil
		}
		got, err := pauses(t, Options{}, answer(200, noEvents), held, held, held, answer(204, ""))
		require.NoError(t, err)
		require.Equal(t, []int{0, 81, 81, 81}, got)
	})
}

// Nothing comes any more, not even a heartbeat: the connection is given up.
func TestSilenceIsABrokenConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mute := func(r *http.Request) (*http.Response, error) {
			in, out := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = out.CloseWithError(r.Context().Err()) })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: in}, nil
		}
		hangs := func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		got, err := pauses(t, Options{}, hangs, answer(200, noEvents), mute, hangs, answer(204, ""))
		require.NoError(t, err)
		require.Equal(t, []int{31, 0, 31, 31}, got)
	})
}

// What comes in the moment in which the connection is given up has come, and who leaves at it has left.
func TestLeavingAtTheEndOfTheSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := func(r *http.Request) (*http.Response, error) {
			in, out := io.Pipe()
			context.AfterFunc(r.Context(), func() { _, _ = io.WriteString(out, "id: 1\ndata: {\"sequence_number\":1}\n\n") })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: in}, nil
		}
		s := &scripted{began: time.Now(), answers: []func(*http.Request) (*http.Response, error){answer(200, noEvents), late, answer(204, "")}}
		c := &Client{URL: "http://api.example", HTTP: &http.Client{Transport: s}}
		var numbers []int64
		for u, err := range c.Follow(t.Context(), Run("r"), Options{}) {
			require.NoError(t, err)
			if u.Event != nil {
				numbers = append(numbers, u.Event.Sequence)
				break
			}
		}
		require.Equal(t, []int64{1}, numbers)
		require.Equal(t, defaultSilence, time.Since(s.began))
	})
}

func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, err := pauses(t, Options{Patience: 10 * time.Second}, answer(200, noEvents), refused)
		require.ErrorContains(t, err, "connection refused")
		require.Equal(t, []int{0, 1, 2, 4}, got)
		got, err = pauses(t, Options{Patience: 1}, answer(503, `{"detail":"closed today"}`))
		require.ErrorContains(t, err, "closed today")
		require.Empty(t, got)
	})
}

// Each client waits a time of its own, never less than it was told.
func TestPausesAreSpread(t *testing.T) {
	t.Parallel()
	p := newPace()
	p.hint = 4 * time.Second
	seen := map[time.Duration]bool{}
	for range 100 {
		p.failures = 0
		pause := p.next(0)
		require.GreaterOrEqual(t, pause, 4*time.Second)
		require.Less(t, pause, 6*time.Second)
		seen[pause] = true
	}
	require.Greater(t, len(seen), 50)
	require.Equal(t, longestRetryAfter, retryAfter("99999999999"))
	require.Zero(t, retryAfter("soon"))
	require.Zero(t, retryAfter("-5"))
}
