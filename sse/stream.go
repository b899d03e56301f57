package sse

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"runledger/agent"
)

// padding is how much a heartbeat and the beginning of a stream carry so that proxies which collect small writes pass
// them on, and the frames before them too.
const padding = 2048

// flushAt bounds what is written under one deadline.
const flushAt = 32 << 10

// stream is one client's way through a log.
type stream struct {
	*Server
	req    Request
	writer *frameWriter
	output *output
	// after is the number of the last event that was sent.
	after int64
	// canEnd: a run's log ends, and a conversation's when the client asked for that.
	canEnd bool
	// checkEnd: something was read that may have ended the log, so that its extent is worth asking for.
	checkEnd bool
	// failing is when the ledger could not be read for the first time since it last could.
	failing time.Time
}

func (st *stream) run(ctx context.Context) error {
	// Subscribed before the first read: what is committed after that read comes with a wake-up.
	wake, cancel := st.cfg.Log.Subscribe(st.req.Scope.ConversationID)
	defer cancel()
	heartbeat := time.NewTicker(st.cfg.Heartbeat)
	defer heartbeat.Stop()
	poll := time.NewTicker(st.cfg.Poll)
	defer poll.Stop()

	pad := strings.Repeat(" ", padding)
	if err := st.writer.write(AppendRetry(AppendComment(nil, pad), st.cfg.Retry)); err != nil {
		return err
	}
	woken := true
	for {
		end, err := st.round(ctx, woken)
		switch {
		case ctx.Err() != nil:
			return nil // whatever failed, failed of that
		case errors.Is(err, ErrClient):
			return err
		case err != nil:
			if err := st.bear(ctx, err); err != nil {
				return err
			}
			if err := st.writer.flush(); err != nil {
				return err
			}
		case end:
			return nil
		default:
			st.failing = time.Time{}
			if st.checkEnd {
				woken = false
				continue
			}
		}
		for read := false; !read; {
			select {
			case <-ctx.Done():
				return nil
			case <-wake:
				read, woken = true, true
			case <-poll.C:
				read, woken = true, !st.failing.IsZero()
			case <-heartbeat.C:
				if err := st.writer.write(AppendComment(nil, pad)); err != nil {
					return err
				}
			}
		}
	}
}

// round reads and sends everything that is new. end reports that nothing can follow: the log was closed before the events
// were read, and there were none. Output is read before the events too: whatever opened the command of a chunk is then
// among the events that go first, and a chunk of a command that has been decided meanwhile is dropped.
func (st *stream) round(ctx context.Context, woken bool) (end bool, err error) {
	if st.checkEnd {
		extent, err := st.cfg.Log.Extent(ctx, st.req.Scope)
		if err != nil {
			return false, fmt.Errorf("read the extent of the log: %w", err)
		}
		end = !extent.Open
		st.checkEnd = end // an open log is asked again when the next event says that something ended
	}
	var chunks []agent.OutputChunk
	follows := st.output != nil && !end && (woken || len(st.output.seen) > 0)
	if follows {
		if chunks, err = st.cfg.Log.Output(ctx, st.req.Scope, st.output.cursors()); err != nil {
			return false, fmt.Errorf("read model output: %w", err)
		}
	}
	for {
		events, err := st.cfg.Log.Events(ctx, st.req.Scope, st.after, st.cfg.PageSize)
		if err != nil {
			return false, fmt.Errorf("read events after %d: %w", st.after, err)
		}
		for _, e := range events {
			if e.Sequence <= st.after {
				continue
			}
			if err := st.send(e); err != nil {
				return false, err
			}
			end = false
		}
		if len(events) < st.cfg.PageSize {
			break
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	if follows {
		st.writer.buf = st.output.append(st.writer.buf, chunks)
	}
	if err := st.writer.flush(); err != nil {
		return false, err
	}
	return end, nil
}

func (st *stream) send(e agent.Event) error {
	if st.output != nil {
		st.output.note(e)
	}
	st.writer.buf = appendEvent(st.writer.buf, st.req.Profile, e)
	st.after = e.Sequence
	st.checkEnd = st.checkEnd || st.canEnd && e.Type.Terminal()
	return st.writer.flushOver(flushAt)
}

// bear takes a failure to read the ledger: the stream stays and tries again at the next poll, until patience ends.
func (st *stream) bear(ctx context.Context, err error) error {
	now := time.Now()
	if st.failing.IsZero() {
		st.failing = now
		st.cfg.Logger.WarnContext(ctx, "a stream cannot read the ledger and tries again",
			"conversation_id", st.req.Scope.ConversationID, "run_id", st.req.Scope.RunID, "after", st.after, "error", err)
	}
	if now.Sub(st.failing) >= st.cfg.Patience {
		return fmt.Errorf("the ledger could not be read for %s: %w", st.cfg.Patience, err)
	}
	return nil
}

// frameWriter writes with a deadline of its own for each write and flushes it.
type frameWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	buf     []byte
}

// flush sends what has been collected. The stream may be idle for hours then and keeps no large buffer.
func (f *frameWriter) flush() error {
	err := f.flushOver(0)
	if cap(f.buf) > flushAt/8 {
		f.buf = nil
	}
	return err
}

// flushOver sends what has been collected when it is more than limit.
func (f *frameWriter) flushOver(limit int) error {
	if len(f.buf) <= limit {
		return nil
	}
	pending := f.buf
	f.buf = f.buf[:0]
	return f.write(pending)
}

func (f *frameWriter) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), flushAt)
		if err := f.writePart(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (f *frameWriter) writePart(b []byte) error {
	if err := f.deadline(time.Now().Add(f.timeout)); err != nil {
		return fmt.Errorf("%w: set write deadline: %w", ErrClient, err)
	}
	if _, err := f.w.Write(b); err != nil {
		return writeError(err, f.timeout)
	}
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
