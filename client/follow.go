package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"runledger/agent"
)

// Log is what can be followed: all of a conversation, or one run of it with its child runs.
type Log struct {
	path           string
	conversationID string
}

// Conversation is the log of a conversation. Its numbers have no gaps.
func Conversation(id string) Log {
	return Log{path: "/conversations/" + url.PathEscape(id), conversationID: id}
}

// Run is the part of its conversation's log that a run has written.
func Run(id string) Log { return Log{path: "/runs/" + url.PathEscape(id)} }

// Options say how to read a log. The zero value reads all of it in the profile "run".
type Options struct {
	// From is the first number wanted: the last that is known, and 1. 0 is the oldest that is kept.
	From int64
	// Profile names the view of the log; the API's default unless set.
	Profile string
	// Stay follows a conversation beyond the end of its runs, until the context ends. A run is always over at its end.
	Stay bool
	// Restart goes on with the oldest event that is kept where the next one is kept no longer. Otherwise that is a *GoneError.
	Restart bool
	// Patience is how long the API may be away before that is an error, 0 for as long as the context lives.
	Patience time.Duration
	// PageSize is how many events are asked for at once in the replay, 500 unless set; the API gives 10,000 at most.
	PageSize int
}

const defaultPageSize = 500

// Update is the next thing that is known of a log. What does not apply is nil, 0 or false.
type Update struct {
	// Status is how the conversation stood in the beginning. It comes first, and of conversations only.
	Status *agent.ExecutionStatus
	// Event is the next event of the log.
	Event *Event
	// Output is what a model's command has said so far. It comes with the event that decided the command, or alone.
	Output *Output
	// Live says that the replay is over: what comes from here on is new, or was written while the replay went on.
	Live bool
	// Oldest says that the events before this number are no longer kept, and some of them were never given. A timeline begins anew.
	Oldest int64
}

// Event is an event as the profile shows it.
type Event struct {
	agent.Event
	// Raw is the JSON object that the API sent.
	Raw json.RawMessage
}

// GoneError says that the event with number From is no longer kept. A log can be read from number Oldest on.
type GoneError struct{ From, Oldest int64 }

func (e *GoneError) Error() string {
	return fmt.Sprintf("event %d is no longer kept; the oldest is %d", e.From, e.Oldest)
}

// Follow gives all of a log that is kept, or what follows Options.From, and then what is added to it until the run has ended, or
// until no run of the conversation is queued or at work: then the sequence ends, without an error. Broken connections and servers
// that are away are borne, with growing pauses, for as long as ctx lives. An error ends the sequence: an *APIError when the API
// says no (the token is bad, there is no such log), a *GoneError, or that of ctx.
//
// Nothing runs in the background: whoever leaves the loop has left the log, and no late answer reaches him.
func (c *Client) Follow(ctx context.Context, log Log, o Options) iter.Seq2[Update, error] {
	return c.read(ctx, log, o, true)
}

// Replay is [Client.Follow] without what is added later.
func (c *Client) Replay(ctx context.Context, log Log, o Options) iter.Seq2[Update, error] {
	return c.read(ctx, log, o, false)
}

func (c *Client) read(ctx context.Context, log Log, o Options, live bool) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		if o.PageSize <= 0 {
			o.PageSize = defaultPageSize
		}
		f := &follower{client: c, log: log, opts: o, next: o.From, outputs: newOutputs(), pace: newPace(), give: func(u Update) error {
			if !yield(u, nil) {
				return errLeft
			}
			return nil
		}}
		if err := f.run(ctx, live); err != nil && !errors.Is(err, errLeft) {
			yield(Update{}, err)
		}
	}
}

// errLeft is that the reader has left the loop.
var errLeft = errors.New("the reader has left")

// follower is one reader's way through a log.
type follower struct {
	client *Client
	log    Log
	opts   Options
	give   func(Update) error
	// next is the number of the event that comes next, 0 for the oldest kept.
	next    int64
	outputs *outputs
	pace    *pace
	// ended: the last event has ended a run, so that there may be nothing more.
	ended bool
}

func (f *follower) run(ctx context.Context, live bool) error {
	if err := f.client.check(); err != nil {
		return err
	}
	if f.log.conversationID != "" {
		var status agent.ExecutionStatus
		err := f.patiently(ctx, func() (err error) {
			status, err = f.client.Status(ctx, f.log.conversationID)
			return err
		})
		if err == nil {
			err = f.give(Update{Status: &status})
		}
		if err != nil {
			return err
		}
	}
	for {
		err := f.replay(ctx)
		if err == nil && live {
			if err = f.give(Update{Live: true}); err == nil {
				err = f.live(ctx)
			}
		}
		var gone *GoneError
		if !errors.As(err, &gone) || !f.opts.Restart || gone.Oldest <= f.next {
			return err
		}
		f.next, f.outputs = gone.Oldest, newOutputs()
		if err := f.give(Update{Oldest: gone.Oldest}); err != nil {
			return err
		}
	}
}

// replay reads pages until none follows.
func (f *follower) replay(ctx context.Context) error {
	for {
		var page struct {
			Events  []json.RawMessage `json:"events"`
			HasMore bool              `json:"has_more"`
		}
		query := f.query()
		query.Set("limit", strconv.Itoa(f.opts.PageSize))
		err := f.patiently(ctx, func() error {
			return f.client.document(ctx, f.log.path+"/events", query, &page)
		})
		if err != nil {
			return err
		}
		before := f.next
		for _, raw := range page.Events {
			if err = f.event(ctx, raw); err != nil {
				break
			}
		}
		if err == nil && page.HasMore && f.next == before {
			err = fmt.Errorf("%w: there is more after a page that has nothing new", errUnreadable)
		}
		switch {
		case errors.Is(err, errUnreadable):
			if err := f.wait(ctx, err); err != nil {
				return err
			}
		case err != nil:
			return err
		case !page.HasMore:
			return nil
		}
	}
}

// live reads streams, one after the other, until the server says that nothing follows.
func (f *follower) live(ctx context.Context) error {
	for {
		began := time.Now()
		over, err := f.stream(ctx)
		switch {
		case over || errors.Is(err, errLeft):
			return err
		case errors.Is(err, io.EOF) && f.ended:
			f.ended = false // whether that was all, the next answer tells: there is nothing to wait for
			continue
		}
		f.pace.lived(time.Since(began))
		if err := f.wait(ctx, err); err != nil {
			return err
		}
	}
}

var errSilent = errors.New("the connection was silent for too long")

// stream reads one stream. over reports that nothing can follow.
func (f *follower) stream(parent context.Context) (over bool, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	silence := time.AfterFunc(f.client.silence(), func() { cancel(errSilent) })
	defer silence.Stop()
	// Of what failed in reading only: the last that came may have come in the moment in which it was given up, and the reader may leave
	// at that.
	silent := func(err error) error {
		if context.Cause(ctx) == errSilent { //nolint:errorlint // the very value
			return errSilent
		}
		return err
	}
	query := f.query()
	if f.log.conversationID != "" && !f.opts.Stay {
		query.Set("until", "idle")
	}
	res, err := f.client.get(ctx, f.log.path+"/events", query, "text/event-stream")
	if err != nil {
		return false, silent(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent {
		return true, nil
	}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return false, fmt.Errorf("%w: GET %s/events gave %q, not a stream", errUnreadable, f.log.path, res.Header.Get("Content-Type"))
	}
	in := newFrameReader(&watched{in: res.Body, timer: silence, limit: f.client.silence()})
	for {
		fr, err := in.next()
		if err != nil {
			return false, silent(err)
		}
		if fr.retry >= 0 {
			f.pace.hint = fr.retry
		}
		switch {
		case len(fr.data) == 0:
		case fr.id != "":
			err = f.event(parent, fr.data)
		default:
			err = f.piece(fr.data)
		}
		if err != nil {
			return false, err
		}
	}
}

// watched reads with a timer that runs only while it waits: a reader who takes his time is no silence.
type watched struct {
	in    io.Reader
	timer *time.Timer
	limit time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	defer w.timer.Stop()
	return w.in.Read(p)
}

func (f *follower) query() url.Values {
	query := url.Values{"from_sequence": {strconv.FormatInt(f.next, 10)}}
	if f.opts.Profile != "" {
		query.Set("profile", f.opts.Profile)
	}
	return query
}

// event takes in the next event of the log, or one that is known.
func (f *follower) event(ctx context.Context, raw []byte) (err error) {
	e := Event{Raw: raw}
	if err = json.Unmarshal(raw, &e.Event); err != nil {
		return fmt.Errorf("event after %d: %w: %w", f.next-1, errUnreadable, err)
	}
	switch {
	case e.Sequence < 1 || f.log.conversationID != "" && f.next > 0 && e.Sequence > f.next:
		return fmt.Errorf("%w: event %d came where %d is next", errUnreadable, e.Sequence, f.next)
	case e.Sequence < f.next:
		return nil
	}
	output, cut := f.outputs.note(e.Event)
	if cut {
		if output.Text, err = f.whole(ctx, e.Event, output.Text); err != nil {
			return err
		}
	}
	f.next, f.ended = e.Sequence+1, e.Type.Terminal() || e.Type == complete
	f.pace.progress()
	return f.give(Update{Event: &e, Output: output})
}

// whole reads a committed text of which the event has only the beginning. When the API says no, or no longer has the text, that is all
// that can be had.
func (f *follower) whole(ctx context.Context, e agent.Event, beginning string) (text string, err error) {
	err = f.patiently(ctx, func() error {
		text, err = f.client.said(ctx, e.RunID, e.CommandID)
		return err
	})
	var no *APIError
	if errors.As(err, &no) || err == nil && text == "" {
		return beginning, nil
	}
	return text, err
}

// complete is run_completed in the profile "react".
const complete agent.EventType = "complete"

// piece takes in a frame without a number: model output while it arrives.
func (f *follower) piece(raw []byte) error {
	var d delta
	if err := json.Unmarshal(raw, &d); err != nil {
		return fmt.Errorf("frame after event %d: %w: %w", f.next-1, errUnreadable, err)
	}
	f.pace.connected()
	if output := f.outputs.add(d); output != nil {
		return f.give(Update{Output: output})
	}
	return nil
}
