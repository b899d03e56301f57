package sse

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// flushAt bounds what is written under one deadline.
const flushAt = 32 << 10

// frameWriter writes with a deadline of its own for each write and flushes it.
type frameWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	count   *counters
}

// write sends bytes, and frames sends frames, with one flush for as many as fit under one deadline.
// begin sends the header.
func (f *frameWriter) begin() error {
	if err := f.deadline(time.Now().Add(f.timeout)); err != nil {
		return fmt.Errorf("%w: set write deadline: %w", ErrClient, err)
	}
	return f.flush()
}

func (f *frameWriter) write(b []byte) error { return f.frames([][]byte{b}) }

func (f *frameWriter) frames(frames [][]byte) error {
	pending := 0
	for _, b := range frames {
		for len(b) > 0 {
			if pending == 0 {
				if err := f.deadline(time.Now().Add(f.timeout)); err != nil {
					return fmt.Errorf("%w: set write deadline: %w", ErrClient, err)
				}
			}
			n := min(len(b), flushAt-pending)
			if _, err := f.w.Write(b[:n]); err != nil {
				return writeError(err, f.timeout)
			}
			b = b[n:]
			f.count.bytes.Add(int64(n))
			if pending += n; pending == flushAt {
				if err := f.flush(); err != nil {
					return err
				}
				pending = 0
			}
		}
	}
	if pending == 0 {
		return nil
	}
	return f.flush()
}

func (f *frameWriter) flush() error {
	if err := f.rc.Flush(); err != nil {
		return writeError(err, f.timeout)
	}
	// An HTTP/2 stream is reset when its deadline passes, whether something is being written or not.
	if err := f.deadline(time.Time{}); err != nil {
		return fmt.Errorf("%w: clear write deadline: %w", ErrClient, err)
	}
	return nil
}

// close leaves a deadline for what net/http writes after the handler: the end of the body.
func (f *frameWriter) close() { _ = f.deadline(time.Now().Add(f.timeout)) }

// deadline sets the write deadline. A writer without deadlines (a recorder, a wrapper) is written to all the same.
func (f *frameWriter) deadline(at time.Time) error {
	if err := f.rc.SetWriteDeadline(at); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func writeError(err error, timeout time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w within %s: %w", ErrClient, timeout, err)
	}
	return fmt.Errorf("%w: %w", ErrClient, err)
}
