package sse

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"runledger/agent"
)

// Config says how streams behave. Only Log is required.
type Config struct {
	Log Log
	// Heartbeat is the time between two padded comments, 10 s unless set.
	Heartbeat time.Duration
	// Poll is how often a stream reads without having been woken, 1 s unless set.
	Poll time.Duration
	// WriteTimeout bounds each write of at most 32 KiB, 10 s unless set. A client that does not take them is cut off.
	WriteTimeout time.Duration
	// Patience is how long a stream waits for a ledger that cannot be read, 1 min unless set. It waits at all because an
	// EventSource gives up for good when it connects again and is answered with an error.
	Patience time.Duration
	// Retry is how long clients wait before they connect again, 1 s unless set. When the server drains they are told to wait up to Spread
	// longer, 4 s unless set, each its own time, so that they do not all come at once to the servers that are left.
	Retry, Spread time.Duration
	// PageSize bounds how many events of a conversation are read at once, 500 unless set.
	PageSize int
	// TailBytes bounds the frames that are kept in memory of each conversation that is being followed, 1 MiB unless set. Clients that are
	// further behind read the ledger.
	TailBytes int
	// Logger is slog's default unless set.
	Logger *slog.Logger
}

// Server writes streams.
type Server struct {
	cfg   Config
	hub   *hub
	count counters
	drain context.Context
	stop  context.CancelFunc
}

// NewServer makes a Server. Drain ends its streams.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		return nil, errors.New("sse: a server needs a log")
	}
	cfg.Heartbeat = orElse(cfg.Heartbeat, 10*time.Second)
	cfg.Poll = orElse(cfg.Poll, time.Second)
	cfg.WriteTimeout = orElse(cfg.WriteTimeout, 10*time.Second)
	cfg.Patience = orElse(cfg.Patience, time.Minute)
	cfg.Retry = orElse(cfg.Retry, time.Second)
	cfg.Spread = orElse(cfg.Spread, 4*time.Second)
	cfg.PageSize = orElse(cfg.PageSize, 500)
	cfg.TailBytes = orElse(cfg.TailBytes, 1<<20)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg}
	s.hub = newHub(&s.cfg)
	s.drain, s.stop = context.WithCancel(context.Background())
	return s, nil
}

func orElse[N ~int | ~int64](n, fallback N) N {
	if n > 0 {
		return n
	}
	return fallback
}

// Drain ends all streams, between two frames, and those that begin later at once. Clients come back to another server
// with the number of the last event they have. It does not wait; calling it twice is fine. http.Server.Shutdown does not
// end streams by itself: give it Drain by RegisterOnShutdown.
func (s *Server) Drain() { s.stop() }

// Draining is closed when Drain has been called.
func (s *Server) Draining() <-chan struct{} { return s.drain.Done() }

// Request is one stream that a client asks for.
type Request struct {
	Scope   agent.LogScope
	Profile Profile
	// After is the number of the last event that the client has.
	After int64
	// Extent is how far the scope's log goes.
	Extent agent.Extent
	// UntilIdle ends a conversation's stream when no run of it is queued or at work. A run's stream always ends with its run.
	UntilIdle bool
}

// ErrClient marks what Serve returns when the client could not be written to.
var ErrClient = errors.New("the client did not take what was sent")

// Serve answers with a stream and returns when it is over: the log has ended and all of it is sent, the client went away,
// or the server drains. All of these are nil. It returns an error that wraps [ErrClient] when a write failed or did not
// end in time, and the ledger's error when that could not be read for too long.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, req *Request) error {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-transform")
	header.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	st := newStream(s, w, req)
	// What net/http needs of the stack for the header is more than anything that comes later; here it is least deep.
	if err := st.writer.begin(); err != nil {
		return err
	}
	s.count.opened.Add(1)
	s.count.open.Add(1)
	defer s.count.open.Add(-1)
	defer st.writer.close()
	if err := st.run(r.Context()); err != nil || s.drain.Err() == nil || r.Context().Err() != nil {
		return err
	}
	return st.writer.write(AppendRetry(nil, s.cfg.Retry+rand.N(s.cfg.Spread)))
}

func newStream(s *Server, w http.ResponseWriter, req *Request) *stream {
	return &stream{
		Server: s, req: req, extent: req.Extent, at: taken{after: req.After}, canEnd: req.Scope.RunID != "" || req.UntilIdle,
		writer: &frameWriter{w: w, rc: http.NewResponseController(w), timeout: s.cfg.WriteTimeout, count: &s.count},
	}
}
