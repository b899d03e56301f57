package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// client talks to the API as any program would.
type client struct{ url string }

type object = map[string]any

// call sends a request and decodes the answer.
func (c *client) call(t testing.TB, method, path string, body any, into any) int {
	t.Helper()
	res := c.send(t.Context(), t, method, path, nil, body)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if into != nil {
		require.NoError(t, json.Unmarshal(raw, into), "%s %s: %d %s", method, path, res.StatusCode, raw)
	}
	return res.StatusCode
}

func (c *client) send(ctx context.Context, t testing.TB, method, path string, header http.Header, body any) *http.Response {
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
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, reader)
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

// post starts a run and returns it at once.
func (c *client) post(t testing.TB, body object) agent.Run {
	t.Helper()
	body["wait"] = 0
	var run agent.Run
	status := c.call(t, http.MethodPost, "/api/v1/agent/run", body, &run)
	require.Equal(t, http.StatusAccepted, status)
	require.NotEmpty(t, run.RunID)
	return run
}

// frame is a Server-Sent Event, and the bytes it came as.
type frame struct {
	ID    string
	Name  string
	Data  string
	Bytes string
	Event agent.Event
}

// readFrame reads up to the end of the next frame that has data. io.EOF is a stream that ended.
func readFrame(in *bufio.Reader) (frame, error) {
	var f frame
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return frame{}, err
		}
		if line == "\n" {
			if f.Data != "" {
				f.Bytes += line
				return f, json.Unmarshal([]byte(f.Data), &f.Event)
			}
			f = frame{}
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			f.ID = value
		case "event":
			f.Name = value
		case "data":
			f.Data += value
		default: // comments and retry hints
			continue
		}
		f.Bytes += line
	}
}

// readStream reads a response's stream to its end.
func readStream(t testing.TB, res *http.Response) []frame {
	t.Helper()
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	in := bufio.NewReader(res.Body)
	var frames []frame
	for {
		f, err := readFrame(in)
		if err == io.EOF {
			return frames
		}
		require.NoError(t, err)
		frames = append(frames, f)
	}
}

// stream asks for a run's stream after a number and reads it to its end.
func (c *client) stream(t testing.TB, runID string, after int64, profile string) []frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if after > 0 {
		header.Set("Last-Event-Id", strconv.FormatInt(after, 10))
	}
	return readStream(t, c.send(ctx, t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/events?profile="+profile, header, nil))
}

// numbered are the frames that carry an id; they must be consecutive.
func numbered(t testing.TB, frames []frame) []frame {
	t.Helper()
	var out []frame
	for _, f := range frames {
		if f.ID == "" {
			continue
		}
		n, err := strconv.ParseInt(f.ID, 10, 64)
		require.NoError(t, err)
		require.Equal(t, n, f.Event.Sequence)
		if len(out) > 0 {
			require.Equal(t, out[len(out)-1].Event.Sequence+1, n, "ids are consecutive")
		}
		out = append(out, f)
	}
	return out
}

func names(frames []frame) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[i] = f.Name
	}
	return out
}

// finished reads a run's events after its end and checks what holds for every run: numbers without a gap, one commit per
// command, and the order of the record.
func (c *client) finished(t testing.TB, runID string) []frame {
	t.Helper()
	frames := numbered(t, c.stream(t, runID, 0, "ledger"))
	require.NotEmpty(t, frames)
	require.EqualValues(t, agent.RunStarted, frames[0].Event.Type)
	require.True(t, frames[len(frames)-1].Event.Type.Terminal())
	checkOrder(t, frames)
	return frames
}

func checkOrder(t testing.TB, frames []frame) {
	t.Helper()
	emitted, committed, ended := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for _, f := range frames {
		e := f.Event
		switch e.Type {
		case agent.CommandEmitted:
			require.NotContains(t, emitted, e.CommandID, "emitted twice")
			emitted[e.CommandID] = e.Sequence
		case agent.CommandCommitted:
			require.NotContains(t, committed, e.CommandID, "committed twice")
			require.Contains(t, emitted, e.CommandID, "committed before it was emitted")
			committed[e.CommandID] = e.Sequence
		case agent.NodeFinished:
			var d agent.NodeFinishedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			require.Contains(t, committed, d.ResultCommand, "node finished before its command was committed")
			ended[e.NodeID] = e.Sequence
		case agent.CheckpointSaved:
			var d agent.CheckpointSavedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			if d.Type == agent.NodeBoundary {
				require.Contains(t, ended, e.NodeID, "checkpoint before the end of its node")
			}
		default:
		}
	}
	require.Len(t, ended, count(frames, agent.NodeFinished), "a node finished twice")
}

func count(frames []frame, typ agent.EventType) (n int) {
	for _, f := range frames {
		if f.Event.Type == typ {
			n++
		}
	}
	return n
}

// followOnce reads one connection from where frames end and reports whether the server said that nothing more follows.
func (c *client) followOnce(ctx context.Context, runID string, frames *[]frame, seen chan<- struct{}) (over bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/api/v1/agent/runs/"+runID+"/events", nil)
	if err != nil {
		return true
	}
	req.Header.Set("Accept", "text/event-stream")
	if n := len(*frames); n > 0 {
		req.Header.Set("Last-Event-Id", (*frames)[n-1].ID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return res.StatusCode == http.StatusNoContent
	}
	in := bufio.NewReader(res.Body)
	for {
		f, err := readFrame(in)
		if err != nil {
			return false
		}
		if f.ID != "" {
			*frames = append(*frames, f)
			seen <- struct{}{}
		}
	}
}
