package builtin

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
	"runledger/tool"
)

const (
	defaultHTTPTimeout  = 30 * time.Second
	maxHTTPTimeout      = tool.DefaultTimeout
	defaultResponseSize = 1 << 20
	maxResponseHeader   = 64 << 10
	maxURL              = 8 << 10
	maxRedirects        = 5
)

var httpMethods = []any{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}

// HTTPConfig says what http_request may do. The zero value lets it call every public host.
type HTTPConfig struct {
	// AllowHosts lists the only hosts that may be called: "api.example.org" (on the port of the URL's scheme),
	// "api.example.org:8443", "127.0.0.1:*", "[::1]:8080", "*.example.org". Private addresses on the list may be called too.
	// nil is no list: every host with a public address. An empty list allows nothing.
	AllowHosts []string `yaml:"allow_hosts"`
	// Effects gives the effect class by method. Without an entry GET, HEAD and OPTIONS are idempotent and every other method
	// is external: also PUT and DELETE, which HTTP calls idempotent, since a late repetition would undo what somebody else
	// has written meanwhile.
	Effects map[string]agent.EffectClass `yaml:"effects"`
	// ProxyEnv names the environment variable with the URL of an HTTP proxy for all calls. Only its name stands here, as
	// with every secret. A proxy resolves names by itself, so it needs AllowHosts. The usual variables are not looked at.
	ProxyEnv string `yaml:"proxy_env"`
	// MaxResponseBytes is how much of a response body is read; 0 means 1 MiB.
	MaxResponseBytes int64 `yaml:"max_response_bytes"`
	// Approve is the predicate on calls that need somebody's approval, as in [tool.Spec].
	Approve string `yaml:"approve"`
	// Lane is that of its calls, as in [tool.Spec].
	Lane agent.Lane `yaml:"lane"`
	// Limit bounds its calls over all workers, as in [tool.Spec].
	Limit Limit `yaml:",inline"`
	// Reconcile says how to find out what became of a call whose answer was lost. The first rule that is for the call counts;
	// without any the tool cannot reconcile.
	Reconcile []HTTPReconcile `yaml:"reconcile"`
}

type httpIn struct {
	Method  string            `json:"method" jsonschema:"the HTTP method"`
	URL     string            `json:"url" jsonschema:"an absolute http or https URL"`
	Headers map[string]string `json:"headers,omitempty" jsonschema:"request headers"`
	JSON    json.RawMessage   `json:"json,omitempty" jsonschema:"a JSON value to send as the body"`
	Body    *string           `json:"body,omitempty" jsonschema:"a text to send as the body, instead of json"`
	Timeout float64           `json:"timeout,omitempty" jsonschema:"seconds to wait for the whole answer; 30 when left out"`
}

// HTTPRequest calls HTTP servers.
//
// Its output is {"status", "headers", "json" or "text"}: headers are the useful ones, with names in lower case; json is
// the body where it is JSON, text any other body that is text. A body over the limit is cut and marked "truncated", not
// refused: the call may have changed something, and that must be on record.
//
// A request goes out once. It carries the command's idempotency key as Idempotency-Key, whatever the arguments say, and is
// never repeated here: neither by the transport on a connection that broke nor by a redirect, which only a GET or HEAD
// without a body follows. An error means, by its fault: definite, the server answered 4xx or the request was refused
// (POLICY_REFUSED) or cannot be made; transient, no connection came about; unknown, the request may have arrived (a
// timeout, a lost connection, 5xx, 408, 409, 425, 429).
//
// An error of HTTPRequest itself names what is wrong with the configuration.
func HTTPRequest(cfg HTTPConfig) (tool.Tool, error) {
	h := &httpRequest{effects: map[string]agent.EffectClass{"GET": agent.Idempotent, "HEAD": agent.Idempotent, "OPTIONS": agent.Idempotent}}
	for method, class := range cfg.Effects {
		if !slices.Contains(httpMethods, any(method)) {
			return nil, fmt.Errorf("http_request: effects: %q is not one of the methods %v", method, httpMethods)
		}
		if class != agent.Idempotent && class != agent.External {
			return nil, fmt.Errorf("http_request: effects: %s: %q; want idempotent or external", method, class)
		}
		h.effects[method] = class
	}
	if h.maxBody = cfg.MaxResponseBytes; h.maxBody == 0 {
		h.maxBody = defaultResponseSize
	}
	if h.maxBody < 0 {
		return nil, errors.New("http_request: max_response_bytes is negative")
	}
	var err error
	if h.hosts, err = newHostPolicy(cfg.AllowHosts); err != nil {
		return nil, fmt.Errorf("http_request: %w", err)
	}
	proxy, err := proxyFrom(cfg)
	if err != nil {
		return nil, fmt.Errorf("http_request: %w", err)
	}
	h.client = h.newClient(proxy)
	schema, err := tool.Schema[httpIn](func(s *jsonschema.Schema) {
		// Headers carry credentials; no stream shows them.
		s.Properties["headers"].WriteOnly = true
		s.Properties["method"].Enum = httpMethods
		s.Properties["timeout"].ExclusiveMinimum = jsonschema.Ptr(0.0)
		s.Properties["timeout"].Maximum = jsonschema.Ptr(maxHTTPTimeout.Seconds())
		s.Properties["body"].Type, s.Properties["body"].Types = "string", nil
	})
	if err != nil {
		return nil, err
	}
	h.Tool, err = tool.New(tool.Spec{
		Name: "http_request",
		Description: "Makes one HTTP request. Returns {\"status\": 200, \"headers\": {\"content-type\": ...}, \"json\": ...} for a JSON body, " +
			"with \"text\" in place of \"json\" for another text. A 4xx or 5xx status is an error.",
		InputSchema: schema,
		Effect:      agent.External,
		Timeout:     maxHTTPTimeout,
		Approve:     cfg.Approve,
		Lane:        cfg.Lane,
		Limit:       cfg.Limit.calls(),
	}, h.call)
	if err != nil || len(cfg.Reconcile) == 0 {
		return h, err
	}
	return h.reconciling(cfg.Reconcile)
}

func proxyFrom(cfg HTTPConfig) (*url.URL, error) {
	if cfg.ProxyEnv == "" {
		return nil, nil
	}
	if cfg.AllowHosts == nil {
		return nil, errors.New("proxy_env needs allow_hosts: behind a proxy nobody here sees which address is called")
	}
	proxy, err := url.Parse(os.Getenv(cfg.ProxyEnv))
	if err != nil || proxy.Host == "" || proxy.Scheme != "http" && proxy.Scheme != "https" {
		// The value stays out of the error: it may hold a password.
		return nil, fmt.Errorf("proxy_env: the environment variable %s does not hold an http or https URL", cfg.ProxyEnv)
	}
	return proxy, nil
}

var _ tool.HTTPSender = (*httpRequest)(nil)

type httpRequest struct {
	tool.Tool
	effects map[string]agent.EffectClass
	hosts   *hostPolicy
	client  *http.Client
	maxBody int64
}

// EffectOf goes by the method.
func (h *httpRequest) EffectOf(arguments json.RawMessage) agent.EffectClass {
	var in struct {
		Method string `json:"method"`
	}
	if json.Unmarshal(arguments, &in) == nil {
		if class, ok := h.effects[in.Method]; ok {
			return class
		}
	}
	return agent.External
}

func (h *httpRequest) newClient(proxy *url.URL) *http.Client {
	transport := &http.Transport{
		DialContext: h.dial,
		// A connection that is used twice can die under a request, and net/http then sends the request again by itself if it
		// carries an Idempotency-Key. A fresh connection for each request is the documented way around that.
		DisableKeepAlives:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	if proxy != nil {
		transport.Proxy = http.ProxyURL(proxy)
		transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	return &http.Client{Transport: transport, CheckRedirect: h.redirect}
}

// dial holds the policy against the address that is really dialled, so that neither a name server nor a redirect can lead
// inside after the name has been checked.
func (h *httpRequest) dial(ctx context.Context, network, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	target, err := parseHost(name)
	if err != nil {
		return nil, &refusal{name, err.Error()}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, resolved string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return &refusal{name, "resolves to something that is no address"}
		}
		return h.hosts.checkIP(target, to.Addr())
	}}
	return dialer.DialContext(ctx, network, address)
}

// errRedirects ends a chain of redirects.
var errRedirects = fmt.Errorf("more than %d redirects", maxRedirects)

func (h *httpRequest) redirect(next *http.Request, via []*http.Request) error {
	first := via[0]
	if first.Method != http.MethodGet && first.Method != http.MethodHead || first.Body != nil {
		return http.ErrUseLastResponse // the redirect itself is the answer
	}
	if len(via) > maxRedirects {
		return errRedirects
	}
	if err := h.hosts.checkURL(next.URL); err != nil {
		return err
	}
	next.Header.Del("Referer") // the query of the last URL is none of the next server's business
	// net/http lets Authorization pass to subdomains and knows no X-Api-Key. Once another origin is involved, nothing that
	// the arguments brought goes further.
	elsewhere := func(r *http.Request) bool { return r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host }
	if elsewhere(next) || slices.ContainsFunc(via, elsewhere) {
		for name := range next.Header {
			switch name {
			case "Accept", "Accept-Language", "User-Agent":
			default:
				next.Header.Del(name)
			}
		}
	}
	return nil
}

func (h *httpRequest) call(ctx context.Context, in httpIn, call tool.Call) (httpOut, error) {
	out, err := h.Send(ctx, call.Key, tool.HTTPRequest{Method: in.Method, URL: in.URL, Headers: in.Headers, JSON: in.JSON, Body: in.Body,
		Timeout: agent.Duration(in.Timeout * float64(time.Second))})
	out.Data = nil
	return out, err
}

// Send makes the requests of HTTP effects too; see [tool.HTTPSender].
func (h *httpRequest) Send(ctx context.Context, key string, in tool.HTTPRequest) (tool.HTTPResponse, error) {
	if !slices.Contains(httpMethods, any(in.Method)) {
		return httpOut{}, &tool.ArgumentError{Pointer: "/method", Message: fmt.Sprintf("is not one of %v", httpMethods)}
	}
	timeout := defaultHTTPTimeout
	if in.Timeout > 0 {
		timeout = time.Duration(in.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// From the moment there is a connection the request may have arrived. net/http reports one before it writes.
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := h.newRequest(ctx, in, key)
	if err != nil {
		return httpOut{}, err
	}
	shown := in.Method + " " + req.URL.Scheme + "://" + req.URL.Host
	resp, err := h.client.Do(req)
	if err != nil {
		return httpOut{}, requestFailure(ctx, shown, err, connected.Load())
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 400 {
		return httpOut{}, statusFailure(shown, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, h.maxBody+1))
	if err != nil {
		return httpOut{}, requestFailure(ctx, shown+": read the response", err, true)
	}
	return answer(resp, body, h.maxBody), nil
}

func (h *httpRequest) newRequest(ctx context.Context, in tool.HTTPRequest, key string) (*http.Request, error) {
	if len(in.URL) > maxURL {
		return nil, &tool.ArgumentError{Pointer: "/url", Message: fmt.Sprintf("is longer than %d bytes", maxURL)}
	}
	u, err := url.Parse(in.URL)
	if err != nil {
		// The parser's error repeats the URL; its cause says what is wrong.
		if wrong, ok := errors.AsType[*url.Error](err); ok {
			err = wrong.Err
		}
		return nil, &tool.ArgumentError{Pointer: "/url", Message: "is not a URL: " + err.Error()}
	}
	if err := h.hosts.checkURL(u); err != nil {
		return nil, agent.Failed(agent.CodeRefused, "%w", err)
	}
	u.Fragment, u.RawFragment = "", ""
	var body io.Reader
	contentType := ""
	switch {
	case in.JSON != nil && in.Body != nil:
		return nil, &tool.ArgumentError{Pointer: "/body", Message: "is there beside json; want one of the two"}
	case in.JSON != nil:
		body, contentType = bytes.NewReader(in.JSON), "application/json"
	case in.Body != nil:
		body, contentType = strings.NewReader(*in.Body), "text/plain; charset=utf-8"
	}
	req, err := http.NewRequestWithContext(ctx, in.Method, u.String(), body)
	if err != nil {
		return nil, &tool.ArgumentError{Pointer: "/url", Message: err.Error()}
	}
	req.Header.Set("User-Agent", "runledger")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for name, value := range in.Headers {
		if err := setHeader(req.Header, name, value); err != nil {
			return nil, err
		}
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return req, nil
}

// setHeader takes a header from the arguments. Those that the tool and the transport set themselves are left alone.
func setHeader(header http.Header, name, value string) error {
	if wrong := headerFault(name, value); wrong != "" {
		return &tool.ArgumentError{Pointer: "/headers/" + agent.EscapeToken(name), Message: wrong}
	}
	if canonical := http.CanonicalHeaderKey(name); canonical != "Idempotency-Key" && !ownHeader(canonical) {
		header.Set(canonical, value)
	}
	return nil
}

// headerFault says what is wrong with a header, "" when nothing is.
func headerFault(name, value string) string {
	if name == "" || strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~") != "" {
		return "is not a header name"
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return "holds a control character"
	}
	return ""
}

// ownHeader reports whether a header is the transport's own business.
func ownHeader(canonical string) bool {
	switch canonical {
	case "Accept-Encoding", "Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return strings.HasPrefix(canonical, "Proxy-")
}

// requestFailure says what is known after a request that got no answer.
func requestFailure(ctx context.Context, shown string, err error, connected bool) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // without the URL and its query
	}
	if refused, ok := errors.AsType[*refusal](err); ok {
		return agent.Failed(agent.CodeRefused, "%w", refused)
	}
	if errors.Is(err, errRedirects) {
		return agent.Failed(agent.CodeToolFailed, "%s: %w", shown, err)
	}
	code := agent.CodeToolFailed
	switch ctx.Err() {
	case context.DeadlineExceeded:
		code, err = agent.CodeTimeout, ctx.Err()
	case context.Canceled:
		code, err = agent.CodeCancelled, ctx.Err()
	}
	if connected {
		return agent.Unknown(code, "%s: %w", shown, err)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return agent.Failed(code, "%s: there is no such host", shown)
		}
		return agent.Transient(code, "%s: the name cannot be looked up", shown)
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return agent.Failed(code, "%s: %w", shown, cert)
	}
	return agent.Transient(code, "%s: %w", shown, err)
}
