package client

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

// frame is one Server-Sent Event, or a retry hint, which may come alone.
type frame struct {
	// id is the field of that name in this very frame; an earlier one does not last.
	id    string
	event string
	data  []byte
	// retry is the hint that came with the frame or before it, negative for none.
	retry time.Duration
}

// longestFrame bounds the lines of one frame, in bytes. The ledger's largest values reach streams as previews.
const longestFrame = 64 << 20

var errFrameTooLong = fmt.Errorf("a frame is longer than %d bytes", longestFrame)

// frameReader reads the event stream format of the HTML standard: lines end with LF, CR LF or CR, comments and unknown
// fields are passed over, and a frame that the stream's end cut off is none.
type frameReader struct {
	in *bufio.Reader
	// line is the line at hand; size is how much the frame at hand has by now.
	line []byte
	size int
	// begun: the byte order mark, if there was one, has been dealt with. afterCR: an LF that comes next belongs to the last line.
	begun, afterCR bool
}

func newFrameReader(in io.Reader) *frameReader {
	return &frameReader{in: bufio.NewReaderSize(in, 32<<10)}
}

// next reads the next frame that has data, or a retry hint on its own. The error is io.EOF at the end of the stream.
func (r *frameReader) next() (frame, error) {
	fr := frame{retry: -1}
	r.size = 0
	hasData := false
	for {
		if err := r.readLine(); err != nil {
			return frame{}, err
		}
		if len(r.line) == 0 {
			if hasData || fr.retry >= 0 {
				return fr, nil
			}
			fr, r.size = frame{retry: -1}, 0
			continue
		}
		name, value, _ := bytes.Cut(r.line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				fr.id = string(value)
			}
		case "event":
			fr.event = string(value)
		case "data":
			if hasData {
				fr.data = append(fr.data, '\n')
			}
			hasData, fr.data = true, append(fr.data, value...)
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				fr.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// readLine reads a line without its end. What the stream's end cut off is no line.
func (r *frameReader) readLine() error {
	r.line = r.line[:0]
	if !r.begun {
		r.begun = true
		if first, err := r.in.Peek(1); err == nil && first[0] == "\ufeff"[0] { // a stream may begin with a byte order mark
			if mark, err := r.in.Peek(3); err == nil && string(mark) == "\ufeff" {
				_, _ = r.in.Discard(3)
			}
		}
	}
	for {
		if _, err := r.in.Peek(1); err != nil { // waits for bytes; what has come stands in the buffer then
			return err
		}
		chunk, _ := r.in.Peek(r.in.Buffered())
		if r.afterCR {
			r.afterCR = false
			if chunk[0] == '\n' {
				_, _ = r.in.Discard(1)
				continue
			}
		}
		at := bytes.IndexAny(chunk, "\r\n")
		taken := len(chunk)
		if at >= 0 {
			taken = at + 1
			r.afterCR = chunk[at] == '\r'
			chunk = chunk[:at]
		}
		if r.size += len(chunk); r.size > longestFrame {
			return errFrameTooLong
		}
		r.line = append(r.line, chunk...)
		_, _ = r.in.Discard(taken)
		if at >= 0 {
			return nil
		}
	}
}
