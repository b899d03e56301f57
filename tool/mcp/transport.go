package mcp

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// request follows one call through the transport. The SDK tells neither whether a call that failed was sent, which
// decides whether its effect is in doubt, nor the bytes of a result, which it has read into float64 where numbers stood.
type request struct {
	mu     sync.Mutex
	sent   bool
	result json.RawMessage
	// What follows is known of calls over HTTP only. tried: the session was open, so that the call went out or found nobody.
	id    jsonrpc.ID
	tried bool
	// status is that of the response, 0 while there is none. sessionLost: the server does not know the session any more, so that
	// it has not looked at the call.
	status      int
	sessionLost bool
	retryAfter  time.Duration
}

func (r *request) wasSent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// answered returns the bytes of the result, nil while there is none.
func (r *request) answered() json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result
}

type requestKey struct{}

// withRequest makes the transport note in r what becomes of the call made with the context.
func withRequest(ctx context.Context, r *request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// refusal is what an HTTP status of 400 or more says of the call; status is 0 when there was none.
func (r *request) refusal() (status int, sessionLost bool, retryAfter time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status < 400 {
		return 0, false, 0
	}
	return r.status, r.sessionLost, r.retryAfter
}

// transport is the SDK's transport over pipes, with a view of what passes.
type transport struct {
	p    *process
	conn *connection // set by Connect
}

// Connect implements the SDK's Transport.
func (t *transport) Connect(ctx context.Context) (sdk.Connection, error) {
	w := &countingWriter{File: t.p.stdin}
	inner, err := (&sdk.IOTransport{Reader: t.p.stdout, Writer: w}).Connect(ctx)
	if err != nil {
		return nil, err
	}
	t.conn = &connection{Connection: inner, p: t.p, stdin: w, turn: make(chan struct{}, 1), open: map[jsonrpc.ID]*request{}}
	return t.conn, nil
}

type countingWriter struct {
	*os.File
	written int
}

func (w *countingWriter) Write(data []byte) (int, error) {
	n, err := w.File.Write(data)
	w.written += n
	return n, err
}

type connection struct {
	sdk.Connection
	p     *process
	stdin *countingWriter
	// turn is held while writing; a channel, so that waiting for it ends with the context.
	turn chan struct{}
	mu   sync.Mutex
	open map[jsonrpc.ID]*request
}

// Write implements the SDK's Connection.
func (c *connection) Write(ctx context.Context, msg jsonrpc.Message) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.turn }()
	call, _ := msg.(*jsonrpc.Request)
	followed, _ := ctx.Value(requestKey{}).(*request)
	if call == nil || !call.IsCall() {
		followed = nil
	}
	if followed != nil {
		c.mu.Lock()
		c.open[call.ID] = followed
		c.mu.Unlock()
	}
	written := make(chan struct{})
	defer close(written)
	// A server that does not read its input has to be killed: half a message cannot be taken back.
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(c.p.grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			c.p.kill()
		case <-written:
		}
	})
	defer stop()
	c.stdin.written = 0
	err := c.Connection.Write(ctx, msg)
	if followed != nil && c.stdin.written > 0 {
		followed.mu.Lock()
		followed.sent = true
		followed.mu.Unlock()
	}
	if err != nil && c.stdin.written > 0 {
		c.p.kill() // what follows would be read as the rest of this message
	}
	return err
}

// Read implements the SDK's Connection.
func (c *connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if answer, ok := msg.(*jsonrpc.Response); ok && err == nil {
		c.mu.Lock()
		followed := c.open[answer.ID]
		delete(c.open, answer.ID)
		c.mu.Unlock()
		if followed != nil && answer.Error == nil {
			followed.mu.Lock()
			followed.result = answer.Result
			followed.mu.Unlock()
		}
	}
	return msg, err
}

// forget drops a call that nobody waits for any more.
func (c *connection) forget(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, followed := range c.open {
		if followed == r {
			delete(c.open, id)
		}
	}
}

// Close implements the SDK's Connection. The SDK calls it also when the server has closed its output; nothing more can come
// of such a process. Its end is not waited for: the SDK holds a lock.
func (c *connection) Close() error {
	go c.p.stop()
	return c.Connection.Close()
}
