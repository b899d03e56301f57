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

// Server is a connection to an MCP server that outlives the server's process. It may be used concurrently.
type Server struct {
	cfg      Config
	client   *sdk.Client
	tools    []tool.Tool
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
}

// session is the time between one start of the server and its end.
type session struct {
	client *sdk.ClientSession
	conn   *connection
	p      *process
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

// Connect starts a server and asks it for its tools. It fails when the configuration is wrong, when the server does not
// answer in time, and when Effects names a tool that it does not have; the error names the server, and holds the end of
// what it wrote to its standard error. Nothing is left running then. A caller with several servers can log the error and go
// on without this one.
//
// The tools are those of this moment; a server that changes them while it runs is not followed.
func Connect(ctx context.Context, cfg Config) (*Server, error) {
	s, err := connect(ctx, cfg, time.Now)
	if err != nil {
		return nil, fmt.Errorf("mcp server %s: %w", cfg.Name, err)
	}
	return s, nil
}

func connect(ctx context.Context, cfg Config, now func() time.Time) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, turn: make(chan struct{}, 1), now: now}
	s.life, s.end = context.WithCancel(context.Background())
	s.client = sdk.NewClient(&sdk.Implementation{Name: "runledger", Version: "1"}, &sdk.ClientOptions{
		Logger: cfg.Log,
		// No roots, no sampling, no elicitation: a run has nobody to answer them. And no repeating of calls behind our back.
		Capabilities:                &sdk.ClientCapabilities{},
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: s.progress.handle,
	})
	ctx, cancel := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancel()
	current, err := s.start(ctx)
	if err != nil {
		s.end()
		return nil, err
	}
	s.current = current
	if s.tools, err = s.list(ctx, current); err != nil {
		err = current.p.explain(err)
		s.Close()
		return nil, err
	}
	return s, nil
}

// Tools are the server's tools, named "server/tool", in the order the server lists them.
func (s *Server) Tools() []tool.Tool { return append([]tool.Tool{}, s.tools...) }

// Close ends the server and everything it has started. Calls that are under way end in errors. It returns when the
// processes have ended, after some seconds at most, and may be called more than once.
func (s *Server) Close() {
	s.end()
	s.turn <- struct{}{} // a start that is under way ends with life
	current := s.current
	s.current = nil
	<-s.turn
	if current != nil {
		current.p.stop()
		<-current.gone
	}
}

// start starts the process and opens a session with it.
func (s *Server) start(ctx context.Context) (*session, error) {
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
	}
	if err != nil {
		stop()
		p.kill()
		p.stop()
		if ctx.Err() != nil {
			err = fmt.Errorf("did not answer in time: %w", ctx.Err())
		}
		return nil, p.explain(err)
	}
	current := &session{client: client, conn: t.conn, p: p, gone: make(chan struct{})}
	go func() {
		defer close(current.gone)
		err := client.Wait()
		p.stop()
		if s.life.Err() == nil {
			s.cfg.Log.Warn("mcp server has ended unasked", "error", err, "last_words", p.stderr.String())
		}
	}()
	return current, nil
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
	s.cfg.Log.Info("mcp server has been started again")
	s.current = current
	return current, nil
}

// backoff is how long to leave a server alone after so many failures in a row: 0, 1 s, 2 s, 4 s, up to a minute.
func backoff(failures int32) time.Duration {
	if failures <= 0 {
		return 0
	}
	return min(time.Second<<min(failures-1, 10), maxBackoff)
}

// progressReports leads progress notifications to the calls they belong to.
type progressReports struct {
	mu    sync.Mutex
	last  int64
	calls map[string]*progressReport
}

type progressReport struct {
	mu     sync.Mutex
	report func(string)
}

// open registers a call. Once the returned function has returned, report is not called any more.
func (p *progressReports) open(report func(string)) (token string, done func()) {
	r := &progressReport{report: report}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	token = fmt.Sprintf("runledger-%d", p.last)
	if p.calls == nil {
		p.calls = map[string]*progressReport{}
	}
	p.calls[token] = r
	return token, func() {
		p.mu.Lock()
		delete(p.calls, token)
		p.mu.Unlock()
		r.mu.Lock()
		r.report = nil
		r.mu.Unlock()
	}
}

func (p *progressReports) handle(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
	token, _ := n.Params.ProgressToken.(string)
	p.mu.Lock()
	r := p.calls[token]
	p.mu.Unlock()
	if r == nil {
		return
	}
	message := n.Params.Message
	if message == "" {
		if message = fmt.Sprintf("%g", n.Params.Progress); n.Params.Total > 0 {
			message = fmt.Sprintf("%g of %g", n.Params.Progress, n.Params.Total)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report != nil {
		r.report(clip(message, maxProgress))
	}
}
