package builtin

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

func newHTTP(t testing.TB, cfg HTTPConfig) tool.Tool {
	t.Helper()
	h, err := HTTPRequest(cfg)
	require.NoError(t, err)
	return h
}

var local = HTTPConfig{AllowHosts: []string{"127.0.0.1:*"}}

func serve(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

// request calls the tool with arguments written as a Go map.
func request(ctx context.Context, t testing.TB, h tool.Tool, args map[string]any) (httpOut, error) {
	t.Helper()
	data, err := json.Marshal(args)
	require.NoError(t, err)
	raw, err := h.Call(ctx, tool.Call{Key: "run-1/fetch#2.0", Arguments: data})
	if err != nil {
		return httpOut{}, err
	}
	var out httpOut
	require.NoError(t, json.Unmarshal(raw, &out))
	return out, nil
}

func failure(t testing.TB, err error) *agent.Error {
	t.Helper()
	e, ok := agent.AsError(err)
	require.True(t, ok, "%v is not classified", err)
	return e
}

func TestHTTPRequestSends(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Set-Cookie", "session=secret")
		w.Header().Set("Www-Authenticate", "Basic secret")
		w.Header().Set("X-Api-Token", "secret")
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("X-RateLimit-Remaining", "9")
		w.Header().Set("Link", strings.Repeat("x", maxHeaderValue+1))
		_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "header": r.Header, "body": string(body), "host": r.Host, "uri": r.RequestURI})
	})
	h := newHTTP(t, local)
	var echo struct {
		Method, Body, Host, URI string
		Header                  http.Header
	}
	out, err := request(t.Context(), t, h, map[string]any{
		"method": "POST", "url": s.URL + "/a?b=c#fragment", "json": map[string]any{"n": json.Number("12345678901234567890")},
		"headers": map[string]string{
			"X-One": "1", "idempotency-key": "forged", "Host": "evil.example", "Content-Length": "1", "transfer-encoding": "chunked",
			"proxy-authorization": "x", "Accept-Encoding": "br", "authorization": "Bearer abc",
		},
	})
	require.NoError(t, err)
	require.Equal(t, 200, out.Status)
	require.NoError(t, json.Unmarshal(out.JSON, &echo))
	require.Nil(t, out.Text)
	require.Equal(t, "POST", echo.Method)
	require.Equal(t, "/a?b=c", echo.URI)
	require.Equal(t, `{"n":12345678901234567890}`, echo.Body)
	require.Equal(t, strings.TrimPrefix(s.URL, "http://"), echo.Host)
	require.Equal(t, []string{"run-1/fetch#2.0"}, echo.Header["Idempotency-Key"])
	require.Equal(t, "application/json", echo.Header.Get("Content-Type"))
	require.Equal(t, "Bearer abc", echo.Header.Get("Authorization"))
	require.Equal(t, "1", echo.Header.Get("X-One"))
	require.Equal(t, "gzip", echo.Header.Get("Accept-Encoding"))
	require.Empty(t, echo.Header.Get("Proxy-Authorization"))
	delete(out.Headers, "date")
	require.Equal(t, map[string]string{"content-type": "application/json; charset=utf-8", "etag": `"1"`, "x-ratelimit-remaining": "9"}, out.Headers)

	out, err = request(t.Context(), t, h, map[string]any{"method": "PUT", "url": s.URL, "body": "text", "headers": map[string]string{"content-type": "text/csv"}})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out.JSON, &echo))
	require.Equal(t, "text", echo.Body)
	require.Equal(t, "text/csv", echo.Header.Get("Content-Type"))

	out, err = request(t.Context(), t, h, map[string]any{"method": "GET", "url": s.URL})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out.JSON, &echo))
	require.Equal(t, "run-1/fetch#2.0", echo.Header.Get("Idempotency-Key"))
}

func TestHTTPRequestReads(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, HTTPConfig{AllowHosts: local.AllowHosts, MaxResponseBytes: 10})
	text := func(s string) *string { return &s }
	for _, tc := range []struct {
		name, contentType, body string
		want                    httpOut
	}{
		{"JSON", "application/json", `{"a":1}`, httpOut{JSON: json.RawMessage(`{"a":1}`), Bytes: 7}},
		{"a kind of JSON", "application/problem+json", `[1]`, httpOut{JSON: json.RawMessage(`[1]`), Bytes: 3}},
		{"a plain JSON value", "application/json", `12`, httpOut{JSON: json.RawMessage(`12`), Bytes: 2}},
		{"JSON in disguise", "text/plain", ` {"a":1}`, httpOut{JSON: json.RawMessage(`{"a":1}`), Bytes: 8}},
		{"a number in a text", "text/plain", `12`, httpOut{Text: text("12"), Bytes: 2}},
		{"JSON in HTML", "text/html", `[1]`, httpOut{Text: text("[1]"), Bytes: 3}},
		{"broken JSON", "application/json", `{"a":`, httpOut{Text: text(`{"a":`), Bytes: 5}},
		{"byte order mark", "application/json", "\ufeff[1]", httpOut{JSON: json.RawMessage(`[1]`), Bytes: 6}},
		{"nothing", "application/json", "", httpOut{Text: text(""), Bytes: 0}},
		{"at the limit", "text/plain", "0123456789", httpOut{Text: text("0123456789"), Bytes: 10}},
		{"over the limit", "text/plain", "0123456789x", httpOut{Text: text("0123456789"), Bytes: 10, Truncated: true}},
		{"over the limit in a character", "text/plain", "012345678é", httpOut{Text: text("012345678"), Bytes: 9, Truncated: true}},
		{"JSON over the limit", "application/json", `[1,2,3,4,5,6]`, httpOut{Text: text("[1,2,3,4,5"), Bytes: 10, Truncated: true}},
		{"binary", "application/octet-stream", "\x00\xff\xfe", httpOut{Bytes: 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.contentType)
				_, _ = io.WriteString(w, tc.body)
			})
			out, err := request(t.Context(), t, h, map[string]any{"method": "GET", "url": s.URL})
			require.NoError(t, err)
			tc.want.Status, out.Headers = 200, nil
			require.Equal(t, tc.want, out)
		})
	}
}

func TestHTTPRequestBoundsWhatUnpacks(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		zeros := make([]byte, 1<<20)
		for range 64 {
			if _, err := z.Write(zeros); err != nil {
				return
			}
		}
		_ = z.Close()
	})
	out, err := request(t.Context(), t, newHTTP(t, local), map[string]any{"method": "GET", "url": s.URL})
	require.NoError(t, err)
	require.True(t, out.Truncated)
	require.Equal(t, defaultResponseSize, out.Bytes)
}

func TestHTTPRequestClassifiesStatus(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, local)
	for status, fault := range map[int]agent.Fault{
		400: agent.FaultDefinite, 401: agent.FaultDefinite, 403: agent.FaultDefinite, 404: agent.FaultDefinite, 410: agent.FaultDefinite, 422: agent.FaultDefinite,
		408: agent.FaultUnknown, 409: agent.FaultUnknown, 425: agent.FaultUnknown, 429: agent.FaultUnknown,
		500: agent.FaultUnknown, 502: agent.FaultUnknown, 503: agent.FaultUnknown, 504: agent.FaultUnknown,
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			http.Error(w, "what was wrong", status)
		})
		_, err := request(t.Context(), t, h, map[string]any{"method": "POST", "url": s.URL + "/?token=secret"})
		e := failure(t, err)
		require.Equal(t, fault, e.Fault, "%d", status)
		require.Equal(t, agent.CodeToolFailed, e.Code)
		require.Equal(t, 7*time.Second, e.RetryAfter)
		require.Contains(t, e.Message, fmt.Sprintf("status %d", status))
		require.Contains(t, e.Message, "what was wrong")
		require.NotContains(t, e.Message, "secret")
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-1": 0, "soon": 0, "99999999": time.Hour, "1.5": 0,
		"Sat, 21 Nov 2026 12:00:30 GMT": 30 * time.Second, "Sat, 21 Nov 2026 11:00:00 GMT": 0,
	} {
		require.Equal(t, want, retryAfter(value, now), value)
	}
}

func TestHTTPRequestNothingHappened(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, HTTPConfig{AllowHosts: []string{"127.0.0.1:*", "localhost:*"}})

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := "http://" + l.Addr().String()
	require.NoError(t, l.Close())
	_, err = request(t.Context(), t, h, map[string]any{"method": "POST", "url": closed + "/?secret"})
	require.Equal(t, agent.FaultTransient, failure(t, err).Fault)
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "secret")

	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	_, err = request(t.Context(), t, h, map[string]any{"method": "POST", "url": s.URL})
	require.Equal(t, agent.FaultDefinite, failure(t, err).Fault, "a wrong certificate does not get better")

	for _, tc := range []struct {
		name      string
		err       error
		connected bool
		fault     agent.Fault
	}{
		{"no such host", &net.DNSError{IsNotFound: true, Name: "x"}, false, agent.FaultDefinite},
		{"no name server", &net.DNSError{IsTemporary: true, Name: "x"}, false, agent.FaultTransient},
		{"no route", errors.New("network is unreachable"), false, agent.FaultTransient},
		{"lost", io.ErrUnexpectedEOF, true, agent.FaultUnknown},
	} {
		err := requestFailure(t.Context(), "POST http://x", &url.Error{Op: "Post", URL: "http://x/?secret", Err: tc.err}, tc.connected)
		require.Equal(t, tc.fault, failure(t, err).Fault, tc.name)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A connection that is lost after the request was written must not make net/http send the request again, which it does for
// requests with an Idempotency-Key on a connection that it keeps.
func TestHTTPRequestGoesOutOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var requests atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			for answered := false; ; answered = true {
				req, err := http.ReadRequest(r)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, req.Body)
				requests.Add(1)
				if answered || req.URL.Path == "/lost" {
					break // the second request on a connection, and every lost one, gets no answer
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	h := newHTTP(t, local)
	base := "http://" + l.Addr().String()
	for i, method := range []string{"POST", "DELETE", "GET"} {
		_, err = request(t.Context(), t, h, map[string]any{"method": method, "url": base})
		require.NoError(t, err)
		_, err = request(t.Context(), t, h, map[string]any{"method": method, "url": base + "/lost"})
		require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)
		require.EqualValues(t, 2*(i+1), requests.Load())
	}
}

func TestHTTPRequestTimeoutAndCancel(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 10)
	release := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/headers" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-release
	})
	t.Cleanup(func() { close(release) })
	h := newHTTP(t, local)
	for _, path := range []string{"/", "/headers"} {
		over := &deadline{Context: t.Context(), ended: make(chan struct{})}
		go func() { <-arrived; close(over.ended) }()
		_, err := request(over, t, h, map[string]any{"method": "POST", "url": s.URL + path})
		require.Equal(t, agent.CodeTimeout, failure(t, err).Code, path)
		require.Equal(t, agent.FaultUnknown, failure(t, err).Fault, path)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-arrived; cancel() }()
		_, err = request(ctx, t, h, map[string]any{"method": "POST", "url": s.URL + path})
		require.Equal(t, agent.CodeCancelled, failure(t, err).Code, path)
		require.Equal(t, agent.FaultUnknown, failure(t, err).Fault, path)
		_, err = request(ctx, t, h, map[string]any{"method": "POST", "url": s.URL + path})
		require.Equal(t, agent.FaultTransient, failure(t, err).Fault, "nothing was sent")
	}
	_, err := request(t.Context(), t, h, map[string]any{"method": "POST", "url": s.URL, "timeout": 0.01})
	require.Equal(t, agent.CodeTimeout, failure(t, err).Code, "the argument bounds the call")
}

// A request that is cancelled leaves nothing behind at the server: its connection is closed, whatever had come by then.
func TestHTTPRequestThatIsCancelledClosesItsConnection(t *testing.T) {
	t.Parallel()
	arrived, gone := make(chan struct{}, 10), make(chan string, 10)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/headers" {
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "half of")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- r.Method + r.URL.Path
	})
	h := newHTTP(t, local)
	for _, method := range []string{"GET", "POST"} {
		for _, path := range []string{"/", "/headers"} {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-arrived; cancel() }()
			args := map[string]any{"method": method, "url": s.URL + path}
			if method == "POST" {
				args["body"] = "for you"
			}
			_, err := request(ctx, t, h, args)
			require.Equal(t, agent.CodeCancelled, failure(t, err).Code)
			require.Equal(t, method+path, <-gone)
		}
	}
}

// deadline is a context whose deadline comes when the test says so.
type deadline struct {
	context.Context
	ended chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.ended }

func (d *deadline) Err() error {
	select {
	case <-d.ended:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestHTTPRequestFollowsRedirectsOfReads(t *testing.T) {
	t.Parallel()
	var seen http.Header
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		_, _ = io.WriteString(w, "other")
	})
	var hits atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/inside":
			http.Redirect(w, r, "/end?q", http.StatusMovedPermanently)
		case "/there-and-back":
			http.Redirect(w, r, strings.Replace(s0(r), "127.0.0.1", "localhost", 1)+"/back", http.StatusTemporaryRedirect)
		case "/back":
			http.Redirect(w, r, strings.Replace(s0(r), "localhost", "127.0.0.1", 1)+"/end", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/metadata":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/end":
			seen = r.Header.Clone()
			_, _ = io.WriteString(w, "end")
		}
	})
	h := newHTTP(t, HTTPConfig{AllowHosts: []string{"127.0.0.1:*", "localhost:*"}})
	get := func(path string) (httpOut, error) {
		return request(t.Context(), t, h, map[string]any{"method": "GET", "url": s.URL + path, "headers": map[string]string{
			"Authorization": "Bearer secret", "X-Api-Key": "secret", "Accept": "text/plain", "Cookie": "a=b",
		}})
	}
	out, err := get("/inside")
	require.NoError(t, err)
	require.Equal(t, "end", *out.Text)
	require.Equal(t, "Bearer secret", seen.Get("Authorization"))
	require.Equal(t, "run-1/fetch#2.0", seen.Get("Idempotency-Key"))

	for path, text := range map[string]string{"/away": "other", "/there-and-back": "end"} {
		out, err = get(path)
		require.NoError(t, err)
		require.Equal(t, text, *out.Text)
		require.Equal(t, "text/plain", seen.Get("Accept"))
		for _, name := range []string{"Authorization", "X-Api-Key", "Cookie", "Idempotency-Key", "Referer"} {
			require.Empty(t, seen.Get(name), "%s after %s", name, path)
		}
	}

	for _, path := range []string{"/metadata", "/file"} {
		_, err = get(path)
		require.Equal(t, agent.CodeRefused, failure(t, err).Code, path)
		require.Equal(t, agent.FaultDefinite, failure(t, err).Fault, path)
	}
	hits.Store(0)
	_, err = get("/loop")
	require.Equal(t, agent.FaultDefinite, failure(t, err).Fault)
	require.ErrorContains(t, err, "more than 5 redirects")
	require.EqualValues(t, maxRedirects+1, hits.Load())

	hits.Store(0)
	for _, args := range []map[string]any{
		{"method": "POST", "url": s.URL + "/inside"},
		{"method": "DELETE", "url": s.URL + "/inside"},
		{"method": "GET", "url": s.URL + "/inside", "body": "x"},
	} {
		out, err = request(t.Context(), t, h, args)
		require.NoError(t, err)
		require.Equal(t, http.StatusMovedPermanently, out.Status)
		require.Equal(t, "/end?q", out.Headers["location"])
	}
	require.EqualValues(t, 3, hits.Load(), "the redirect of a write is its answer")
}

// s0 is the origin that a request was sent to.
func s0(r *http.Request) string { return "http://" + r.Host }

func TestHTTPRequestRefusesByPolicy(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	s := serve(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	port := s.URL[strings.LastIndexByte(s.URL, ':'):]
	open := newHTTP(t, HTTPConfig{})
	for _, tc := range []struct {
		h   tool.Tool
		url string
	}{
		{open, s.URL},
		{open, "http://localhost" + port}, // a name: found out when the address is known, before a byte is sent
		{open, "http://[::ffff:127.0.0.1]" + port},
		{open, "http://user@example.org"},
		{newHTTP(t, HTTPConfig{AllowHosts: []string{"api.example.org"}}), s.URL},
		{newHTTP(t, HTTPConfig{AllowHosts: []string{}}), "https://example.org"},
		{newHTTP(t, HTTPConfig{AllowHosts: []string{"127.0.0.1:1"}}), s.URL},
	} {
		_, err := request(t.Context(), t, tc.h, map[string]any{"method": "GET", "url": tc.url})
		require.Equal(t, agent.CodeRefused, failure(t, err).Code, "%s: %v", tc.url, err)
		require.Equal(t, agent.FaultDefinite, failure(t, err).Fault)
		require.NotContains(t, err.Error(), "127.0.0.1:80", "where a name leads stays inside")
	}
	require.Zero(t, hits.Load())
	_, err := request(t.Context(), t, newHTTP(t, HTTPConfig{AllowHosts: []string{"localhost:*"}}), map[string]any{"method": "GET", "url": "http://localhost" + port})
	require.NoError(t, err)
	require.EqualValues(t, 1, hits.Load())
}

func TestHTTPRequestIgnoresTheEnvironmentsProxy(t *testing.T) {
	proxied := make(chan string, 1)
	proxy := serve(t, func(_ http.ResponseWriter, r *http.Request) { proxied <- r.URL.String() })
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("MY_PROXY", proxy.URL)
	t.Setenv("NO_URL", "user:secret")
	_, err := request(t.Context(), t, newHTTP(t, HTTPConfig{AllowHosts: []string{"nowhere.invalid"}}), map[string]any{"method": "GET", "url": "http://nowhere.invalid/"})
	require.Error(t, err)
	require.Empty(t, proxied)

	h := newHTTP(t, HTTPConfig{AllowHosts: []string{"nowhere.invalid"}, ProxyEnv: "MY_PROXY"})
	_, err = request(t.Context(), t, h, map[string]any{"method": "GET", "url": "http://nowhere.invalid/x"})
	require.NoError(t, err)
	require.Equal(t, "http://nowhere.invalid/x", <-proxied)
	_, err = request(t.Context(), t, h, map[string]any{"method": "GET", "url": "http://127.0.0.1/"})
	require.Equal(t, agent.CodeRefused, failure(t, err).Code)

	_, err = HTTPRequest(HTTPConfig{ProxyEnv: "MY_PROXY"})
	require.ErrorContains(t, err, "needs allow_hosts")
	_, err = HTTPRequest(HTTPConfig{ProxyEnv: "NO_URL", AllowHosts: []string{"x.example"}})
	require.ErrorContains(t, err, "NO_URL does not hold")
	require.NotContains(t, err.Error(), "secret")
}

func TestHTTPRequestRefusesArguments(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, local)
	for _, tc := range []struct{ args, pointer string }{
		{`{"url": "http://127.0.0.1/"}`, "/method"},
		{`{"method": "get", "url": "http://127.0.0.1/"}`, "/method"},
		{`{"method": "CONNECT", "url": "http://127.0.0.1/"}`, "/method"},
		{`{"method": "GET"}`, "/url"},
		{`{"method": "GET", "url": "http://127.0.0.1:x/hushhush"}`, "/url"},
		{`{"method": "GET", "url": "http://127.0.0.1/` + strings.Repeat("x", maxURL) + `"}`, "/url"},
		{`{"method": "POST", "url": "http://127.0.0.1/", "json": 1, "body": "x"}`, "/body"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "headers": {"a b": "c"}}`, "/headers/a b"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "headers": {"": "c"}}`, "/headers/"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "headers": {"a": "b\r\nc: d"}}`, "/headers/a"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "headers": {"a": 1}}`, "/headers/a"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "timeout": 0}`, "/timeout"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "timeout": 301}`, "/timeout"},
		{`{"method": "GET", "url": "http://127.0.0.1/", "retries": 3}`, "/retries"},
	} {
		_, err := h.Call(t.Context(), tool.Call{Arguments: json.RawMessage(tc.args)})
		var fault *tool.ArgumentError
		require.ErrorAs(t, err, &fault, tc.args)
		require.Equal(t, tc.pointer, fault.Pointer)
		require.NotContains(t, err.Error(), "hushhush")
	}
}

func TestHTTPRequestEffects(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, HTTPConfig{Effects: map[string]agent.EffectClass{"PUT": agent.Idempotent, "GET": agent.External}})
	require.Equal(t, agent.External, h.Spec().Effect)
	for args, want := range map[string]agent.EffectClass{
		`{"method": "GET"}`: agent.External, `{"method": "HEAD"}`: agent.Idempotent, `{"method": "OPTIONS"}`: agent.Idempotent,
		`{"method": "POST"}`: agent.External, `{"method": "PATCH"}`: agent.External, `{"method": "DELETE"}`: agent.External,
		`{"method": "PUT"}`: agent.Idempotent, `{"method": "get"}`: agent.External, `{}`: agent.External, `nonsense`: agent.External,
		`{"method": {"$from": "/input"}}`: agent.External,
	} {
		require.Equal(t, want, tool.ClassOf(h, json.RawMessage(args)), args)
	}
	for _, cfg := range []HTTPConfig{
		{Effects: map[string]agent.EffectClass{"get": agent.Idempotent}},
		{Effects: map[string]agent.EffectClass{"GET": agent.Deterministic}},
		{MaxResponseBytes: -1},
		{AllowHosts: []string{"http://x"}},
	} {
		_, err := HTTPRequest(cfg)
		require.ErrorContains(t, err, "http_request: ")
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	tools, err := Tools(Config{})
	require.NoError(t, err)
	set, err := tool.NewSet(tools...)
	require.NoError(t, err)
	require.Equal(t, []string{"calculator", "clock", "http_request"}, set.Names())
	require.NoError(t, set.ValidatePlan("http_request", json.RawMessage(`{"method": "POST", "url": {"$from": "/input"}, "json": {"a": {"$from": "/nodes/a/output"}}}`)))
	_, err = Tools(Config{HTTP: HTTPConfig{AllowHosts: []string{""}}})
	require.Error(t, err)
}
