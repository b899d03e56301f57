package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"runledger/agent"
	"runledger/model"
)

// Endpoint is where a client's requests go, and the key that must not be shown to anybody else.
type Endpoint struct {
	base *url.URL
	key  string
}

// Open checks the address and the key of a vendor; it sends nothing. Its errors name neither key nor password. White space
// around the key is dropped.
func Open(baseURL, apiKey string) (*Endpoint, error) {
	base, err := url.Parse(baseURL)
	if err != nil {
		// The parser's error quotes the whole address, which may hold a password.
		return nil, errors.New("the base URL cannot be parsed")
	}
	if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("base URL %q is not an http or https address", base.Redacted())
	}
	key := strings.TrimSpace(apiKey)
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, errors.New("the API key holds a control character")
	}
	return &Endpoint{base: base, key: key}, nil
}

// Host is the name and port of the address, for messages.
func (e *Endpoint) Host() string { return e.base.Host }

// URL is a copy of the base address.
func (e *Endpoint) URL() url.URL { return *e.base }

// Key is the credential, empty where none is to be sent.
func (e *Endpoint) Key() string { return e.key }

// NewHTTPClient makes a client that keeps connections for many calls at once, has no timeout, which would cut long streams,
// and shows a redirect instead of following it: the vendor's key must not go where nobody configured it to go.
func NewHTTPClient() *http.Client {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t = t.Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 256, 256
		client.Transport = t
	}
	return client
}

// Refused turns an HTTP answer that is not a success into an error. It reads the body and leaves closing it to the caller.
func (e *Endpoint) Refused(response *http.Response) *agent.Error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if err != nil && len(body) == 0 {
		return model.StatusError(response.StatusCode, response.Header, "")
	}
	if location, err := response.Location(); err == nil && response.StatusCode < 400 {
		location.RawQuery, location.User = "", nil
		return model.StatusError(response.StatusCode, response.Header, e.Redact("it redirects to "+location.String()))
	}
	refusal := model.StatusError(response.StatusCode, response.Header, e.Redact(messageOf(body)))
	if refusal.Fault == agent.FaultTransient && refusal.RetryAfter == 0 {
		refusal.RetryAfter = retryInfo(body)
	}
	return refusal
}

// Unreachable classifies an error of the transport: no answer came.
func (e *Endpoint) Unreachable(err error) *agent.Error {
	var where *url.Error
	if errors.As(err, &where) {
		// Without the address, which may carry credentials in its query.
		err = where.Err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		// A timeout of the HTTP client, not of the caller's context, for which it must not be taken.
		return agent.Transient(agent.CodeModelUnavailable, "no answer from the model's vendor at %s: %s", e.base.Host, e.Redact(err.Error()))
	}
	if text := err.Error(); e.Redact(text) != text {
		return agent.Transient(agent.CodeModelUnavailable, "no answer from the model's vendor at %s: %s", e.base.Host, e.Redact(text))
	}
	return agent.Transient(agent.CodeModelUnavailable, "no answer from the model's vendor at %s: %w", e.base.Host, err)
}
