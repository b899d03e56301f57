package sse

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"runledger/agent"
)

// padding is how much a heartbeat and the beginning of a stream carry so that proxies which collect small writes pass
// them on, and the frames before them too.
const padding = 2048

var pad = AppendComment(nil, strings.Repeat(" ", padding))

// stream is one client's way through a log: it reads pages of the ledger by itself until it has caught up, and then follows the feed
// that all who have caught up share.
type stream struct {
	*Server
	req    *Request
	writer *frameWriter
	// extent is how far the log went when it was last asked for.
	extent agent.Extent
	// at says up to which number everything of the scope was sent, and where in the feed the stream goes on, while follows is set. Its more
	// is what the stream waits for, nil for nothing.
	at      taken
	feed    *feed
	follows bool
	// canEnd: a run's log ends, and a conversation's when the client asked for that. asks: something was read that may have ended
	// it, so that its extent is to be asked for.
	canEnd, asks bool
	// ahead is the page that is being read, nil for none.
	ahead chan page
	// failing is when the ledger could not be read for the first time since it last could.
	failing time.Time
}

func (st *stream) run(ctx context.Context) error {
	heartbeat := time.NewTicker(st.cfg.Heartbeat)
	defer heartbeat.Stop()
	defer func() {
		if st.feed != nil {
			st.hub.leave(st.feed)
		}
	}()
	if err := st.writer.frames([][]byte{pad, AppendRetry(nil, st.cfg.Retry)}); err != nil {
		return err
	}
	for {
		end, err := st.step(ctx)
		var more <-chan struct{}
		var again <-chan time.Time
		switch {
		case ctx.Err() != nil, st.drain.Err() != nil, isGone(err):
			return nil // whatever failed, failed of that; who comes back to a log that is gone is told so
		case errors.Is(err, ErrClient), errors.Is(err, errUnreadable):
			return err
		case err != nil:
			if err := st.bear(ctx, err); err != nil {
				return err
			}
			again = time.After(st.cfg.Poll)
		case end:
			return nil
		default:
			st.failing = time.Time{}
			if more = st.at.more; st.asks || more == nil {
				continue
			}
		}
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return nil
			case <-st.drain.Done():
				return nil
			case <-more:
				waits = false
			case <-again:
				waits = false
			case <-heartbeat.C:
				if err := st.writer.write(pad); err != nil {
					return err
				}
			}
		}
	}
}

// step sends what comes next. end reports that nothing can follow.
func (st *stream) step(ctx context.Context) (end bool, err error) {
	switch {
	case st.asks:
		return st.ask(ctx)
	case st.follows:
		return false, st.take()
	case st.canEnd && !st.extent.Open:
		return false, st.page(ctx) // it has ended: there is nothing to follow
	}
	if st.feed == nil {
		st.feed = st.hub.join(st.req.Scope.ConversationID, st.req.Profile)
	}
	t, holds, err := st.feed.join(st.req.Scope, st.at.after, st.extent.Last)
	switch st.at.more = t.more; {
	case err != nil:
		return false, err
	case !holds && t.more != nil:
		return false, nil
	case !holds:
		return false, st.page(ctx)
	}
	st.follows, st.ahead = true, nil
	return false, st.send(t)
}

// ask asks whether the log has ended with what was sent.
func (st *stream) ask(ctx context.Context) (end bool, err error) {
	var now agent.Extent
	if st.follows {
		now, err = st.feed.extent(ctx, st.req.Scope, st.at.after)
	} else {
		now, err = st.cfg.Log.Extent(ctx, st.req.Scope)
	}
	if err != nil {
		return false, fmt.Errorf("read the extent of the log: %w", err)
	}
	st.extent, st.asks = now, false
	return Over(now, st.at.after), nil
}

// take sends what the feed has.
func (st *stream) take() error {
	t, holds, err := st.feed.take(st.req.Scope, st.at)
	if err != nil {
		return err
	}
	if !holds {
		st.count.behind.Add(1)
		st.follows, st.at.more, st.extent.Last = false, nil, st.feed.upTo()
		return nil
	}
	return st.send(t)
}

func (st *stream) send(t taken) error {
	// A log that was found to have ended ends with the last number that it had then.
	st.at, st.asks = t, st.canEnd && (t.ended || !st.extent.Open && st.extent.LastInScope <= t.after)
	st.count.frames.Add(int64(len(t.frames)))
	return st.writer.frames(t.frames)
}

// page is what was read of the ledger behind a number. What is not in a page that is not full, and precedes the number that was known
// before the read, is not of the scope.
type page struct {
	events []agent.Event
	known  int64
	err    error
}

// page sends a page of the ledger, while the next one is being read.
func (st *stream) page(ctx context.Context) error {
	if st.ahead == nil {
		st.readAhead(ctx, st.at.after)
	}
	var p page
	select {
	case p = <-st.ahead:
	case <-st.drain.Done():
		return nil
	}
	st.ahead = nil
	if p.err != nil {
		return fmt.Errorf("read events after %d: %w", st.at.after, p.err)
	}
	full := len(p.events) >= st.cfg.PageSize
	if full {
		st.readAhead(ctx, p.events[len(p.events)-1].Sequence)
	}
	ended := false
	buf := make([]byte, 0, flushAt+flushAt/4)
	for i := range p.events {
		e := &p.events[i]
		buf = appendEvent(buf, st.req.Profile, *e)
		ended = ended || e.Type.Terminal()
		if len(buf) >= flushAt {
			if err := st.writer.write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		st.at.after = e.Sequence
	}
	if !full {
		st.at.after = max(st.at.after, p.known)
		ended = ended || !st.extent.Open
	}
	st.asks = st.canEnd && ended
	st.count.frames.Add(int64(len(p.events)))
	return st.writer.write(buf)
}

// readAhead begins to read the page behind a number.
func (st *stream) readAhead(ctx context.Context, after int64) {
	ahead := make(chan page, 1)
	st.ahead = ahead
	known := st.extent.Last
	if st.feed != nil {
		known = max(known, st.feed.upTo())
	}
	go func() {
		events, err := st.cfg.Log.Events(ctx, st.req.Scope, after, st.cfg.PageSize)
		ahead <- page{events, known, err}
	}()
}

// errUnreadable ends streams when the ledger could not be read for too long.
var errUnreadable = errors.New("the ledger could not be read")

// errGone ends streams whose conversation was deleted, or whose next event is no longer kept.
var errGone = errors.New("the log is no longer kept")

func isGone(err error) bool {
	var missing *agent.NotFoundError
	var removed *agent.GoneError
	return errors.Is(err, errGone) || errors.As(err, &missing) || errors.As(err, &removed)
}

// bear takes a failure to read the ledger: the stream stays and tries again at the next poll, until patience ends.
func (st *stream) bear(ctx context.Context, err error) error {
	now := time.Now()
	if st.failing.IsZero() {
		st.failing = now
		st.cfg.Logger.WarnContext(ctx, "a stream cannot read the ledger and tries again",
			"conversation_id", st.req.Scope.ConversationID, "run_id", st.req.Scope.RunID, "after", st.at.after, "error", err)
	}
	if now.Sub(st.failing) >= st.cfg.Patience {
		return fmt.Errorf("%w for %s: %w", errUnreadable, st.cfg.Patience, err)
	}
	return nil
}
