package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/sse"
)

func readFrames(t testing.TB, in io.Reader) (frames []frame) {
	t.Helper()
	r := newFrameReader(in)
	for {
		fr, err := r.next()
		if errors.Is(err, io.EOF) {
			return frames
		}
		require.NoError(t, err)
		frames = append(frames, fr)
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in   string
		want []frame
	}{
		"all fields":              {"id: 7\nevent: a\ndata: {}\n\n", []frame{{"7", "a", []byte("{}"), -1}}},
		"without spaces":          {"id:7\nevent:a\ndata:{}\n\n", []frame{{"7", "a", []byte("{}"), -1}}},
		"one space is taken":      {"data:  x\n\n", []frame{{"", "", []byte(" x"), -1}}},
		"several lines of data":   {"data: a\ndata\ndata: b\n\n", []frame{{"", "", []byte("a\n\nb"), -1}}},
		"CR LF":                   {"id: 1\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []frame{{"1", "", []byte("a"), -1}, {"", "", []byte("b"), -1}}},
		"CR":                      {"id: 1\rdata: a\r\rdata: b\r\r", []frame{{"1", "", []byte("a"), -1}, {"", "", []byte("b"), -1}}},
		"all mixed":               {"id: 1\rdata: a\n\r\ndata: b\r\n\n", []frame{{"1", "", []byte("a"), -1}, {"", "", []byte("b"), -1}}},
		"byte order mark":         {"\ufeffdata: a\n\n", []frame{{"", "", []byte("a"), -1}}},
		"only one mark":           {"\ufeff\ufeffdata: a\n\ndata: b\n\n", []frame{{"", "", []byte("b"), -1}}},
		"comments":                {": x\n\n:\ndata: a\n: y\n\n", []frame{{"", "", []byte("a"), -1}}},
		"no data is no frame":     {"id: 1\nevent: a\n\ndata: b\n\n", []frame{{"", "", []byte("b"), -1}}},
		"empty data":              {"id: 1\ndata\n\n", []frame{{"1", "", nil, -1}}},
		"cut off":                 {"data: a\n\ndata: b\n", []frame{{"", "", []byte("a"), -1}}},
		"cut off in a line":       {"data: a", nil},
		"retry alone":             {"retry: 1500\n\ndata: a\n\n", []frame{{"", "", nil, 1500 * time.Millisecond}, {"", "", []byte("a"), -1}}},
		"retry of no number":      {"retry: 1s\nretry: -1\ndata: a\n\n", []frame{{"", "", []byte("a"), -1}}},
		"retry beyond all bounds": {"retry: 99999999999\ndata: a\n\n", []frame{{"", "", []byte("a"), -1}}},
		"an id with NUL":          {"id: 1\x002\ndata: a\n\n", []frame{{"", "", []byte("a"), -1}}},
		"fields nobody knows":     {"Data: a\nx\ndata : b\n\n", nil},
		"nothing":                 {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, readFrames(t, strings.NewReader(tt.in)))
			require.Equal(t, tt.want, readFrames(t, iotest.OneByteReader(strings.NewReader(tt.in))))
		})
	}
}

// A frame is given when its last byte has come: nothing is waited for that may never come.
func TestFramesAreNotHeldBack(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"data: a\n\n", "data: a\r\n\r\n", "data: a\r\r", "retry: 1\n\n", "\n\ndata: a\n\n"} {
		in, out := io.Pipe()
		go func() { _, _ = io.WriteString(out, text) }() // and no end
		_, err := newFrameReader(in).next()
		require.NoError(t, err)
	}
}

func TestFramesHaveABound(t *testing.T) {
	t.Parallel()
	endless := io.MultiReader(strings.NewReader("data: "), io.LimitReader(neverEnds{}, longestFrame+1))
	_, err := newFrameReader(endless).next()
	require.ErrorIs(t, err, errFrameTooLong)
}

type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// However the bytes are cut, the frames are the same; and whatever the server puts into a frame comes out of it, as one.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("id: 1\nevent: a\ndata: b\n\n"), int64(3), "chat_delta", 1)
	f.Add([]byte("\ufeffretry: 1\r\rdata: x\r\n\r\n: c\n"), int64(0), "a\nb", 2)
	f.Add([]byte("data\n\ndata: \xff\x00\n\nid: \x00\n"), int64(1), "", 7)
	f.Fuzz(func(t *testing.T, raw []byte, id int64, event string, step int) {
		whole := readFrames(t, bytes.NewReader(raw))
		require.Equal(t, whole, readFrames(t, &cutReader{raw: raw, step: max(1, step%64)}))

		if id < 0 {
			id = 0
		}
		sent := sse.Frame{ID: id, Event: event, Data: raw}
		wire := sse.AppendRetry(sse.AppendComment(nil, event), 20*time.Millisecond)
		wire = sse.AppendFrame(wire, sent)
		got := readFrames(t, bytes.NewReader(sse.AppendFrame(wire, sse.Frame{ID: 9, Data: []byte("{}")})))
		require.Len(t, got, 3, "%q", wire)
		require.Equal(t, 20*time.Millisecond, got[0].retry)
		lines := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(raw))
		require.Equal(t, lines, string(got[1].data))
		require.Equal(t, id > 0, got[1].id != "")
		require.Equal(t, "9", got[2].id)
	})
}

// cutReader gives a few bytes at a time.
type cutReader struct {
	raw  []byte
	step int
}

func (c *cutReader) Read(p []byte) (int, error) {
	if len(c.raw) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(c.step, len(p))], c.raw)
	c.raw = c.raw[n:]
	return n, nil
}
