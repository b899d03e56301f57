package stacktest

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// Frame is a Server-Sent Event, and the bytes it came as.
type Frame struct {
	ID    string
	Name  string
	Data  string
	Bytes string
	Event agent.Event
}

// ReadFrame reads up to the end of the next frame that has data. io.EOF is a stream that ended.
func ReadFrame(in *bufio.Reader) (Frame, error) {
	var f Frame
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return Frame{}, err
		}
		if line == "\n" {
			if f.Data != "" {
				f.Bytes += line
				return f, json.Unmarshal([]byte(f.Data), &f.Event)
			}
			f = Frame{}
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

// ReadStream reads a response's stream to its end.
func ReadStream(t testing.TB, res *http.Response) []Frame {
	t.Helper()
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	in := bufio.NewReader(res.Body)
	var frames []Frame
	for {
		f, err := ReadFrame(in)
		if err == io.EOF {
			return frames
		}
		require.NoError(t, err)
		frames = append(frames, f)
	}
}

// Numbered are the frames that carry an id; they must be consecutive.
func Numbered(t testing.TB, frames []Frame) []Frame {
	t.Helper()
	var out []Frame
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

// Count counts the frames of a type.
func Count(frames []Frame, typ agent.EventType) (n int) {
	for _, f := range frames {
		if f.Event.Type == typ {
			n++
		}
	}
	return n
}

// CheckOrder checks what holds for the record of every run: one commit per command, and the order around it.
func CheckOrder(t testing.TB, frames []Frame) {
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
	require.Len(t, ended, Count(frames, agent.NodeFinished), "a node finished twice")
}
