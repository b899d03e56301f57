// Package gemini talks to Google's Gemini API.
//
// It asks for a stream always and sends each request once. Thoughts are not asked for; those that come are told.
//
// The SDK writes the requests. The answers are read here: the SDK takes an end of the body for the end of the answer, puts
// numbers in the arguments of a call through floating point, which loses digits of large ids, does not tell the headers of a
// refusal, may send a second request on its own, and writes to the process's log.
package gemini

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/genai"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// DefaultBaseURL is Google's own endpoint.
const DefaultBaseURL = "https://generativelanguage.googleapis.com"

// Options configure a client.
type Options struct {
	// BaseURL is the part before /v1beta/models; DefaultBaseURL when empty.
	BaseURL string
	// APIKey is sent as x-goog-api-key; none is sent when it is empty. The environment is never looked at.
	APIKey string
	// HTTPClient makes the requests. It should have no Timeout, which would cut long streams. Nil means one made for this client.
	HTTPClient *http.Client
}

// Client is a [model.Client] for one endpoint.
type Client struct {
	api      *genai.Client
	endpoint *wire.Endpoint
}

var _ model.Client = (*Client)(nil)

// New checks the options and makes a client; it sends nothing.
func New(o Options) (model.Client, error) {
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	endpoint, err := wire.Open(o.BaseURL, o.APIKey)
	if err != nil {
		return nil, fmt.Errorf("gemini: %w", err)
	}
	client := o.HTTPClient
	if client == nil {
		client = wire.NewHTTPClient()
	}
	through := *client
	through.Transport = &transport{next: client.Transport, endpoint: endpoint}
	api, err := genai.NewClient(context.Background(), &genai.ClientConfig{
		Backend:    genai.BackendGeminiAPI,
		HTTPClient: &through,
		// Named, or they would be taken from the environment. The SDK quotes its configuration in errors, so that the real key is
		// known to the transport alone.
		HTTPOptions: genai.HTTPOptions{BaseURL: o.BaseURL},
		APIKey:      "none",
	})
	if err != nil {
		return nil, errors.New("gemini: " + endpoint.Redact(err.Error()))
	}
	return &Client{api: api, endpoint: endpoint}, nil
}

// Generate implements [model.Client].
func (c *Client) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	if err := ctx.Err(); err != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	names := wire.NewNames(req)
	contents, config, err := params(req, names)
	if err != nil {
		return model.Reply{}, err
	}
	response, err := c.send(ctx, req.Model, contents, config)
	if response != nil {
		defer response.Body.Close()
	}
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	if err != nil {
		return model.Reply{}, err
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return model.Reply{}, c.endpoint.Refused(response)
	}
	if emit == nil {
		emit = func(model.Delta) {}
	}
	return c.read(ctx, response, &answer{names: names, emit: emit, reply: model.Reply{Model: req.Model}})
}

// send makes the request and gives the answer with its body unread.
func (c *Client) send(ctx context.Context, name string, contents []*genai.Content, config *genai.GenerateContentConfig) (*http.Response, error) {
	once := false
	config.AutomaticContinuation = &once
	config.HTTPOptions = &genai.HTTPOptions{ExtrasRequestProvider: func(body map[string]any) map[string]any {
		body["contents"] = contents // as they are: the SDK's own have been through floating point
		return body
	}}
	var e exchange
	var failed error
	for _, err := range c.api.Models.GenerateContentStream(context.WithValue(ctx, exchangeKey{}, &e), name, contents, config) {
		failed = err
	}
	switch {
	case e.err != nil:
		return nil, c.endpoint.Unreachable(e.err)
	case e.response != nil:
		return e.response, nil
	case failed != nil:
		return nil, agent.Failed(agent.CodeModelFailed, "the request cannot be written: %s", c.endpoint.Redact(failed.Error()))
	}
	return nil, agent.Failed(agent.CodeModelFailed, "the vendor's SDK sent no request")
}

// exchange is what came of a request.
type exchange struct {
	response *http.Response
	err      error
}

type exchangeKey struct{}

// transport puts the key into requests and keeps the answers for [Client.send]; the SDK sees an empty one.
type transport struct {
	next     http.RoundTripper
	endpoint *wire.Endpoint
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	e, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("gemini: a request that nobody waits for")
	}
	r = r.Clone(r.Context())
	r.Header.Del("X-Goog-Api-Key")
	if key := t.endpoint.Key(); key != "" {
		r.Header.Set("X-Goog-Api-Key", key)
	}
	base := t.endpoint.URL()
	query := r.URL.Query()
	for name, values := range base.Query() {
		query[name] = values
	}
	r.URL.RawQuery = query.Encode()
	next := t.next
	if next == nil {
		next = http.DefaultTransport
	}
	e.response, e.err = next.RoundTrip(r)
	if e.err != nil {
		return nil, e.err
	}
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}
