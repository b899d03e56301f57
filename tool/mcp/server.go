package mcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"runledger/agent"
	"runledger/tool"
)

// maxBackoff bounds the time between two attempts to start a server that does not stay up.
const maxBackoff = time.Minute

// Server is a connection to an MCP server that outlives the server's process and, over HTTP, its sessions. It may be used
// concurrently.
type Server struct {
	cfg      Config
	client   *sdk.Client
	progress progressReports
	// life ends at Close.
	life context.Context
	end  context.CancelFunc
	// turn guards what follows. It is a channel, since a start takes its time and waiting for it must end with the caller.
	turn    chan struct{}
	current *session
	retryAt time.Time
	// failures counts ends and failed starts since the last call that was answered.
	failures atomic.Int32
	now      func() time.Time

	// mu guards tools, which are nil until the server has listed them.
	mu    sync.Mutex
	tools []tool.Tool
	// stale is sent to when the tools have to be listed again, changed when they are others; following is closed when nobody
	// lists them any more.
	stale, changed chan struct{}
	following      chan struct{}
}

// session is the time between one start of the server and its end, or that of a session over HTTP.
type session struct {
	client *sdk.ClientSession
	conn   *connection   // nil over HTTP
	p      *process      // nil over HTTP
	remote *remote       // nil for a command
	gone   chan struct{} // closed when nothing more can be asked
}

func (s *session) alive() bool {
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// stop ends the session, with the process if it has one. It returns soon: at gone nothing of it is left.
func (s *session) stop(grace time.Duration) {
	if s.p != nil {
		s.p.stop()
		return
	}
	// A server over HTTP is told; one that does not answer is not waited for.
	defer time.AfterFunc(grace, s.remote.close).Stop()
	_ = s.client.Close() // it is over either way
	s.remote.close()
}

// Connect starts a server, or begins a session with one over HTTP, and asks it for its tools. It fails when the configuration is
// wrong, when the server does not answer in time, and when Effects names a tool that it does not have; the error names the
// server, and holds the end of what it wrote to its standard error. Nothing is left running then.
func Connect(ctx context.Context, cfg Config) (*Server, error) {
	s, err := connect(ctx, cfg, time.Now)
	if err != nil {
		return nil, fmt.Errorf("mcp server %s: %w", cfg.Name, err)
	}
	return s, nil
}

// Open is Connect for those who can do without the server for a while: when it cannot be reached, or has not what the
// configuration says, that is logged and tried again, with growing pauses, until Close. Until then it has no tools. Only a wrong
// configuration is an error. It returns when the first try has ended.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	s, err := newServer(cfg, time.Now)
	if err != nil {
		return nil, fmt.Errorf("mcp server %s: %w", cfg.Name, err)
	}
	if err := s.begin(ctx); err != nil {
		s.cfg.Log.WarnContext(ctx, "mcp server is not there; its tools are missing until it is", "error", err)
		s.retryAt = s.now().Add(backoff(s.failures.Add(1)))
		s.isStale()
	}
	go s.follow()
	return s, nil
}

func connect(ctx context.Context, cfg Config, now func() time.Time) (*Server, error) {
	s, err := newServer(cfg, now)
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		s.end()
		return nil, err
	}
	go s.follow()
	return s, nil
}

func newServer(cfg Config, now func() time.Time) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, turn: make(chan struct{}, 1), now: now,
		stale: make(chan struct{}, 1), changed: make(chan struct{}, 1), following: make(chan struct{})}
	s.life, s.end = context.WithCancel(context.Background())
	s.client = sdk.NewClient(&sdk.Implementation{Name: "runledger", Version: "1"}, &sdk.ClientOptions{
		Logger: cfg.Log,
		// No roots, no sampling, no elicitation: a run has nobody to answer them. And no repeating of calls behind our back.
		Capabilities:                &sdk.ClientCapabilities{},
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: s.progress.handle,
		ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { s.isStale() },
	})
	return s, nil
}

// begin opens the first session and lists the tools. After an error nothing is left of it.
func (s *Server) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	current, err := s.start(ctx)
	if err != nil {
		return err
	}
	if s.tools, err = s.list(ctx, current); err != nil {
		current.stop(s.cfg.grace)
		<-current.gone
		s.tools = nil
		return current.explain(err)
	}
	s.current = current
	return nil
}

// Close ends the server and everything it has started. Calls that are under way end in errors. It returns when the
// processes have ended, after some seconds at most, and may be called more than once.
func (s *Server) Close() {
	s.end()
	<-s.following
	s.turn <- struct{}{} // a start that is under way ends with life
	current := s.current
	s.current = nil
	<-s.turn
	if current != nil {
		current.stop(s.cfg.grace)
		<-current.gone
	}
}

// start opens a session, which is to say that it starts the process where there is a command.
func (s *Server) start(ctx context.Context) (*session, error) {
	if s.cfg.URL != "" {
		return s.startRemote(ctx)
	}
	return s.startCommand(ctx)
}

// startCommand starts the process and opens a session with it.
func (s *Server) startCommand(ctx context.Context) (*session, error) {
	p, err := startProcess(s.cfg)
	if err != nil {
		return nil, err
	}
	t := &transport{p: p}
	// The SDK waits for answers to the first messages with the context, but writes them without; the end of the process ends
	// both.
	stop := context.AfterFunc(ctx, p.kill)
	client, err := s.client.Connect(ctx, t, nil)
	if err == nil && !stop() {
		err = ctx.Err()
		p.kill()
		_ = client.Close()
	}
	if err != nil {
		stop()
		p.kill()
		p.stop()
		return nil, p.explain(inTime(ctx, err))
	}
	current := &session{client: client, conn: t.conn, p: p, gone: make(chan struct{})}
	go func() {
		defer close(current.gone)
		err := client.Wait()
		_ = client.Close() // it is over; this ends what the SDK keeps for it
		p.stop()
		if s.life.Err() == nil {
			s.cfg.Log.Warn("mcp server has ended unasked", "error", err, "last_words", p.stderr.String())
		}
	}()
	return current, nil
}

// startRemote opens a session over HTTP.
func (s *Server) startRemote(ctx context.Context) (*session, error) {
	r, err := newRemote(s.cfg)
	if err != nil {
		return nil, err
	}
	t := r.transport(s.cfg.URL)
	client, err := s.client.Connect(ctx, t, nil)
	if err != nil {
		r.close()
		if t.conn != nil {
			_ = t.conn.Close() // the SDK leaves it open after some errors
		}
		return nil, inTime(ctx, withoutURL(err))
	}
	current := &session{client: client, remote: r, gone: make(chan struct{})}
	go func() {
		defer close(current.gone)
		err := client.Wait()
		_ = client.Close() // it is over; this ends what the SDK keeps for it
		// A call that is on its way just now will hear from the server that there is no such session, and is better off knowing.
		time.AfterFunc(s.cfg.grace, r.close)
		if s.life.Err() == nil {
			s.cfg.Log.Warn("session with mcp server has ended unasked", "error", withoutURL(err))
			s.isStale() // what comes after it may have other tools
		}
	}()
	return current, nil
}

// inTime tells an error that came of ctx from others.
func inTime(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("did not answer in time: %w", ctx.Err())
	}
	return err
}

func (s *session) explain(err error) error {
	if s.p == nil {
		return err
	}
	return s.p.explain(err)
}

var errClosed = errors.New("closed")

// acquire gives a session that is open, and starts the server again if it has died: at once the first time, then with
// growing pauses, until a call is answered. All its errors are transient: no call was made.
func (s *Server) acquire(ctx context.Context) (*session, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, agent.Transient(agent.CodeToolFailed, "mcp server %s: wait for its start: %w", s.cfg.Name, ctx.Err())
	}
	defer func() { <-s.turn }()
	if s.life.Err() != nil {
		return nil, agent.Transient(agent.CodeToolFailed, "mcp server %s: %w", s.cfg.Name, errClosed)
	}
	if s.current != nil && s.current.alive() {
		return s.current, nil
	}
	if s.current != nil {
		s.current = nil
		s.retryAt = s.now().Add(backoff(s.failures.Add(1) - 1))
	}
	if wait := s.retryAt.Sub(s.now()); wait > 0 {
		err := agent.Transient(agent.CodeToolFailed, "mcp server %s: is down", s.cfg.Name)
		err.RetryAfter = wait
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	current, err := s.start(starting)
	if err != nil {
		failure := agent.Transient(agent.CodeToolFailed, "mcp server %s: cannot be started", s.cfg.Name)
		if ctx.Err() == nil && s.life.Err() == nil { // it was not given up by us
			failure.RetryAfter = backoff(s.failures.Add(1))
			s.retryAt = s.now().Add(failure.RetryAfter)
			s.cfg.Log.Error("mcp server cannot be started", "error", err, "retry_after", failure.RetryAfter)
		}
		return nil, failure
	}
	s.cfg.Log.Info("mcp server is there again")
	s.current = current
	s.isStale()
	return current, nil
}

// backoff is how long to leave a server alone after so many failures in a row: 0, 1 s, 2 s, 4 s, up to a minute.
func backoff(failures int32) time.Duration {
	if failures <= 0 {
		return 0
	}
	return min(time.Second<<min(failures-1, 10), maxBackoff)
}
