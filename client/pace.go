package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	// firstPause is the pause after a broken connection until the server says another, longestPause what pauses grow to.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// settled is how long a connection must have held for its end not to count as one more failure.
	settled = 10 * time.Second
	// mostUnreadable answers in a row, and it is no accident.
	mostUnreadable = 3
)

// pace says how long to wait before the API is asked again.
type pace struct {
	// hint is the server's own word.
	hint time.Duration
	// failures counts what went wrong since something went well, unreadable what could not be read since an event came.
	failures, unreadable int
	// since is when the first of these failures was.
	since time.Time
	// jitter gives a random duration below the one it is given.
	jitter func(time.Duration) time.Duration
}

func newPace() *pace {
	return &pace{hint: firstPause, jitter: func(below time.Duration) time.Duration { return rand.N(max(below, 1)) }}
}

// next is the pause before the next try: the server's hint, doubled with every failure in a row, never less than the server asked for,
// and up to half as much again, so that the clients of a server that comes back do not come all at once.
func (p *pace) next(retryAfter time.Duration) time.Duration {
	pause := p.hint
	for range min(p.failures, 30) {
		pause = min(2*pause, max(longestPause, p.hint))
	}
	if p.failures++; p.failures == 1 {
		p.since = time.Now()
	}
	pause = max(pause, retryAfter)
	return pause + p.jitter(pause/2)
}

// connected says that the server has sent something of use, progress that it was the next event.
func (p *pace) connected() { p.failures = 0 }

func (p *pace) progress() { p.failures, p.unreadable = 0, 0 }

// lived says how long a connection held.
func (p *pace) lived(d time.Duration) {
	if d >= settled {
		p.failures = 0
	}
}

// patiently does something until it succeeds, or fails in a way that another try does not mend.
func (f *follower) patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			f.pace.connected()
			return nil
		}
		if err := f.wait(ctx, err); err != nil {
			return err
		}
	}
}

// wait waits before the next try. The error is the one that it was given, if that is the end, or that of ctx.
func (f *follower) wait(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var gone *GoneError
	var no *APIError
	switch {
	case errors.As(err, &gone):
		return err
	case errors.As(err, &no):
		if no.Status == http.StatusGone && no.oldest > 0 {
			return &GoneError{From: f.next, Oldest: no.oldest}
		}
		if !no.passes() {
			return err
		}
	case errors.Is(err, errUnreadable), errors.Is(err, errFrameTooLong):
		if f.pace.unreadable++; f.pace.unreadable >= mostUnreadable {
			return fmt.Errorf("%d times in a row: %w", f.pace.unreadable, err)
		}
	}
	var asked time.Duration
	if no != nil {
		asked = no.RetryAfter
	}
	pause := f.pace.next(asked)
	if f.opts.Patience > 0 && time.Since(f.pace.since)+pause > f.opts.Patience {
		return err
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
