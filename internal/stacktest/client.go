package stacktest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// Client talks to the API as any program would.
type Client struct{ URL string }

// Object is JSON.
type Object = map[string]any

// Ends are the terminal events.
var Ends = []agent.EventType{agent.RunCompleted, agent.RunFailed, agent.RunCancelled}

// Ready waits until /readyz says 200.
func (c *Client) Ready(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		res, err := http.Get(c.URL + "/readyz")
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

// Call sends a request and decodes the answer.
func (c *Client) Call(t testing.TB, method, path string, body any, into any) int {
	t.Helper()
	res := c.Send(t.Context(), t, method, path, nil, body)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if into != nil {
		require.NoError(t, json.Unmarshal(raw, into), "%s %s: %d %s", method, path, res.StatusCode, raw)
	}
	return res.StatusCode
}

// Send sends a request, whose body is text or becomes JSON.
func (c *Client) Send(ctx context.Context, t testing.TB, method, path string, header http.Header, body any) *http.Response {
	t.Helper()
	var reader io.Reader
	switch body := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(body)
	default:
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, reader)
	require.NoError(t, err)
	for name, values := range header {
		req.Header[name] = values
	}
	if reader != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	return res
}

// Post starts a run and returns it at once.
func (c *Client) Post(t testing.TB, body Object) agent.Run {
	t.Helper()
	body["wait"] = 0
	var run agent.Run
	status := c.Call(t, http.MethodPost, "/api/v1/agent/run", body, &run)
	require.Equal(t, http.StatusAccepted, status)
	require.NotEmpty(t, run.RunID)
	return run
}

// Stream asks for a run's stream after a number and reads it to its end.
func (c *Client) Stream(t testing.TB, runID string, after int64, profile string) []Frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if after > 0 {
		header.Set("Last-Event-Id", strconv.FormatInt(after, 10))
	}
	return ReadStream(t, c.Send(ctx, t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/events?profile="+profile, header, nil))
}

// Finished reads a run's events after its end and checks what holds for every run: numbers without a gap, one commit per
// command, and the order of the record.
func (c *Client) Finished(t testing.TB, runID string) []Frame {
	t.Helper()
	frames := Numbered(t, c.Stream(t, runID, 0, "ledger"))
	require.NotEmpty(t, frames)
	require.EqualValues(t, agent.RunStarted, frames[0].Event.Type)
	require.True(t, frames[len(frames)-1].Event.Type.Terminal())
	CheckOrder(t, frames)
	return frames
}

// Verifies requires that the record of a run and its history say the same.
func (c *Client) Verifies(t testing.TB, runID string) {
	t.Helper()
	var v agent.Verification
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/verify", nil, &v))
	require.True(t, v.OK, "%v", v.Differences)
}

// Becomes waits until a run has a status.
func (c *Client) Becomes(t testing.TB, runID string, status agent.Status) {
	t.Helper()
	require.Eventually(t, func() bool {
		var run agent.Run
		return c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID, nil, &run) == http.StatusOK && run.Status == status
	}, Patience, Frequency, "it does not become %s", status)
}

// ComesTo follows a run until it has an event of one of the types, over as many connections as it takes, and returns it.
func (c *Client) ComesTo(t testing.TB, runID string, types ...agent.EventType) agent.Event {
	t.Helper()
	return c.FollowTo(t, runID, types, func(agent.Event) bool { return true })
}

// FollowTo reads a run's events until one of the types is wanted, over as many connections as it takes, and returns that one.
func (c *Client) FollowTo(t testing.TB, runID string, types []agent.EventType, wanted func(agent.Event) bool) agent.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	var after int64
	for {
		if e := c.next(ctx, runID, &after, types); e != nil {
			if wanted(*e) {
				return *e
			}
			continue
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("run %s does not come to what is wanted of %v; its last event is number %d", runID, types, after)
		}
	}
}

// next reads one connection's events after a number up to one of the types, nil when it ends before.
func (c *Client) next(ctx context.Context, runID string, after *int64, types []agent.EventType) *agent.Event {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/api/v1/agent/runs/"+runID+"/events?profile=ledger", nil)
	if err != nil {
		return nil
	}
	req.Header.Set("Accept", "text/event-stream")
	if *after > 0 {
		req.Header.Set("Last-Event-Id", strconv.FormatInt(*after, 10))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil
	}
	for in := bufio.NewReader(res.Body); ; {
		f, err := ReadFrame(in)
		if err != nil {
			return nil
		}
		if f.ID != "" {
			*after = f.Event.Sequence
		}
		if slices.Contains(types, f.Event.Type) {
			return &f.Event
		}
	}
}
