package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxAnswer bounds one answer in bytes, as the SDK bounds an event of a stream.
	maxAnswer = sdk.DefaultMaxEventSize

	sessionHeader = "Mcp-Session-Id"
	maxRetryAfter = time.Hour
)

// checkURL says what is wrong with the address of a server.
func checkURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return errors.New("url: is not a URL") // the parser's words repeat it, and it may hold a secret
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("url: want http://host/path or https://host/path")
	case u.User != nil:
		return errors.New("url: holds a user or a password; use headers_env")
	}
	return nil
}

// headers are those that every request carries. The error names the variable that is missing or cannot be sent; never its value.
func (c Config) headers() (http.Header, error) {
	headers := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(c.HeadersEnv)) {
		value, ok := os.LookupEnv(c.HeadersEnv[name])
		if !ok {
			return nil, fmt.Errorf("headers_env: %s: the environment variable %s is not set", name, c.HeadersEnv[name])
		}
		value = strings.TrimSpace(value) // files of secrets end in a line end
		if value == "" || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, fmt.Errorf("headers_env: %s: the environment variable %s is empty or holds control characters", name, c.HeadersEnv[name])
		}
		headers.Set(name, value)
	}
	return headers, nil
}

// withoutURL takes the address out of an error of a request: the query may hold a secret, and calls' errors go on record.
func withoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// remote is the way to a server over streamable HTTP, for the length of one session. Requests end with it.
type remote struct {
	pool    *http.Transport
	headers http.Header
	life    context.Context
	end     context.CancelFunc
}

func newRemote(cfg Config) (*remote, error) {
	headers, err := cfg.headers()
	if err != nil {
		return nil, err
	}
	pool, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		pool = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	r := &remote{pool: pool.Clone(), headers: headers}
	r.life, r.end = context.WithCancel(context.Background())
	return r, nil
}

// transport is the SDK's transport over r.
func (r *remote) transport(address string) *streamable {
	return &streamable{inner: sdk.StreamableClientTransport{Endpoint: address, HTTPClient: &http.Client{
		Transport: r,
		// Headers with secrets must not travel on to where an answer points.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}}
}

// close ends every request that is under way.
func (r *remote) close() {
	r.end()
	r.pool.CloseIdleConnections()
}

// streamable keeps the SDK's connection, to close it when a session does not come about.
type streamable struct {
	inner sdk.StreamableClientTransport
	conn  sdk.Connection
}

// Connect implements the SDK's Transport. The connection is the SDK's own: it has powers that a wrapper would hide.
func (t *streamable) Connect(ctx context.Context) (conn sdk.Connection, err error) {
	t.conn, err = t.inner.Connect(ctx)
	return t.conn, err
}

// RoundTrip implements http.RoundTripper. It adds the headers, and notes what becomes of a call whose request the context
// holds.
func (r *remote) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	unhook := context.AfterFunc(r.life, cancel)
	release := func() { unhook(); cancel() }
	followed, isCall := followedBy(req)
	if followed != nil && isCall {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			// A request is tried on another connection only when nothing of it was written to the one before.
			GetConn:      func(string) { followed.markSent(false) },
			WroteHeaders: func() { followed.markSent(true) },
		})
	}
	req = req.Clone(ctx)
	for name, values := range r.headers {
		req.Header[name] = values
	}
	resp, err := r.pool.RoundTrip(req)
	if err != nil {
		release()
		return nil, err
	}
	body := &answer{ReadCloser: resp.Body, release: release}
	if followed != nil {
		if isCall {
			followed.markStatus(resp.StatusCode, req.Header.Get(sessionHeader) != "" && resp.StatusCode == http.StatusNotFound,
				retryAfter(resp.Header.Get("Retry-After"), time.Now()))
		}
		body.followed = followed
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	body.stream = kind == "text/event-stream"
	resp.Body = body
	return resp, nil
}

// followedBy gives the call that a request belongs to, and whether it carries the call itself: what is sent about a call, as
// its cancellation, has the same context.
func followedBy(req *http.Request) (followed *request, isCall bool) {
	followed, _ = req.Context().Value(requestKey{}).(*request)
	if followed == nil || req.GetBody == nil {
		return followed, false
	}
	body, err := req.GetBody()
	if err != nil {
		return followed, false
	}
	defer func() { _ = body.Close() }()
	raw, err := io.ReadAll(body)
	if err != nil {
		return followed, false
	}
	msg, err := jsonrpc.DecodeMessage(raw)
	call, ok := msg.(*jsonrpc.Request)
	if err != nil || !ok || !call.IsCall() {
		return nil, false
	}
	followed.markTried(call.ID)
	return followed, true
}

// retryAfter reads a Retry-After header, 0 when there is none that can be read.
func retryAfter(value string, now time.Time) time.Duration {
	var wait time.Duration
	if seconds, err := strconv.Atoi(value); err == nil {
		wait = time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}

// answer is the body of a response. It picks out the result of the call that is followed, in the server's own bytes.
type answer struct {
	io.ReadCloser
	release  func()
	followed *request // nil when no call is
	stream   bool
	kept     []byte // what has been read and not looked at yet
	read     int
}

// Read implements io.Reader.
func (a *answer) Read(data []byte) (int, error) {
	n, err := a.ReadCloser.Read(data)
	if a.read += n; !a.stream && a.read > maxAnswer {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if a.followed == nil {
		return n, err
	}
	a.kept = append(a.kept, data[:n]...)
	switch {
	case a.stream:
		a.events()
		if len(a.kept) > maxAnswer {
			a.followed = nil // the SDK gives up on such an event
			a.kept = nil
		}
	case err != nil:
		a.followed.markAnswer(a.kept)
		a.kept = nil
	}
	return n, err
}

// events looks at the events that are whole.
func (a *answer) events() {
	for {
		end, next := eventEnd(a.kept)
		if end < 0 {
			return
		}
		var data []byte
		for line := range bytes.Lines(a.kept[:end]) {
			if value, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:")); ok {
				if data != nil {
					data = append(data, '\n')
				}
				data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
			}
		}
		a.kept = a.kept[next:]
		a.followed.markAnswer(data)
	}
}

// eventEnd finds the empty line that ends the first event: where it begins and what comes after it, -1 when it is not there.
func eventEnd(text []byte) (end, next int) {
	end = -1
	for _, gap := range []string{"\n\n", "\r\n\r\n"} {
		if at := bytes.Index(text, []byte(gap)); at >= 0 && (end < 0 || at < end) {
			end, next = at, at+len(gap)
		}
	}
	return end, next
}

// Close implements io.Closer.
func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.release()
	return err
}

// markSent notes whether the server may have got the call.
func (r *request) markSent(sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = sent
}

func (r *request) markTried(id jsonrpc.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.tried = id, true
}

func (r *request) wasTried() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tried
}

func (r *request) markStatus(status int, sessionLost bool, retryAfter time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.sessionLost, r.retryAfter = status, sessionLost, retryAfter
}

// markAnswer keeps the result when a message is the answer to the call.
func (r *request) markAnswer(raw []byte) {
	msg, err := jsonrpc.DecodeMessage(raw)
	response, ok := msg.(*jsonrpc.Response)
	if err != nil || !ok || response.Error != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if response.ID == r.id {
		r.result = append(json.RawMessage{}, response.Result...)
	}
}
