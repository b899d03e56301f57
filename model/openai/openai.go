// Package openai talks to OpenAI and to every endpoint that is compatible with its chat completions: vLLM, Ollama,
// llama.cpp, LM Studio, Groq, DeepSeek, OpenRouter, gateways.
//
// It asks for a stream always, sends each request once, and keeps to the parts of the API that compatible servers know: no
// parallel_tool_calls, no store, max_tokens instead of max_completion_tokens unless OpenAI's own models are meant.
package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"runledger/agent"
	"runledger/model"
)

// DefaultBaseURL is OpenAI's own endpoint.
const DefaultBaseURL = "https://api.openai.com/v1"

// Options configure a client.
type Options struct {
	// BaseURL is the part before /chat/completions, as in "http://127.0.0.1:11434/v1"; DefaultBaseURL when empty.
	BaseURL string
	// APIKey is sent as a bearer token; none is sent when it is empty. The environment is never looked at, so that OpenAI's key
	// does not travel to another vendor's endpoint.
	APIKey string
	// HTTPClient makes the requests. It should have no Timeout, which would cut long streams. Nil means one made for this client.
	HTTPClient *http.Client
}

// Client is a [model.Client] for one endpoint.
type Client struct {
	api    openai.Client
	base   *url.URL
	apiKey string
}

var _ model.Client = (*Client)(nil)

// New checks the options and makes a client; it sends nothing.
func New(o Options) (model.Client, error) {
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	base, err := url.Parse(o.BaseURL)
	if err != nil {
		// The parser's error quotes the whole address, which may hold a password.
		return nil, errors.New("openai: the base URL cannot be parsed")
	}
	if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("openai: base URL %q is not an http or https address", base.Redacted())
	}
	key := strings.TrimSpace(o.APIKey)
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, errors.New("openai: the API key holds a control character")
	}
	httpClient := o.HTTPClient
	if httpClient == nil {
		httpClient = newHTTPClient()
	}
	options := []option.RequestOption{
		option.WithBaseURL(o.BaseURL),
		option.WithHTTPClient(httpClient),
		option.WithMaxRetries(0),
		option.WithHeader("Accept", "text/event-stream"),
	}
	if key != "" {
		options = append(options, option.WithAPIKey(key))
	}
	for name, values := range base.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	// Not openai.NewClient: that one reads keys, organisation and headers from the environment.
	return &Client{api: openai.Client{Options: options}, base: base, apiKey: key}, nil
}

// newHTTPClient keeps connections for many calls at once, and shows a redirect instead of following it: the vendor's key
// must not go where nobody configured it to go.
func newHTTPClient() *http.Client {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t = t.Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 256, 256
		client.Transport = t
	}
	return client
}

// Generate implements [model.Client].
func (c *Client) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	if err := ctx.Err(); err != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	names := newNames(req)
	params, err := c.params(req, names)
	if err != nil {
		return model.Reply{}, err
	}
	options := []option.RequestOption{option.WithJSONSet("stream", true)}
	if req.Key != "" {
		options = append(options, option.WithHeader("Idempotency-Key", req.Key))
	}
	// The raw response, not the SDK's stream: that one takes an end of the body for the end of the answer, and
	// `"error": null`, which some servers put into every chunk, for an error.
	var response *http.Response
	err = c.api.Post(ctx, "chat/completions", params, &response, options...)
	if response != nil && response.Body != nil {
		defer response.Body.Close()
	}
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	if response != nil && (response.StatusCode < 200 || response.StatusCode > 299) {
		return model.Reply{}, c.refused(response)
	}
	if err != nil {
		return model.Reply{}, c.unreachable(err)
	}
	if emit == nil {
		emit = func(model.Delta) {}
	}
	return c.read(ctx, response, &answer{names: names, emit: emit, reply: model.Reply{Model: req.Model}})
}

// refused turns an HTTP answer that is not a success into an error. By then the SDK has put the body into memory.
func (c *Client) refused(response *http.Response) *agent.Error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if err != nil && len(body) == 0 {
		return model.StatusError(response.StatusCode, response.Header, "")
	}
	if location, err := response.Location(); err == nil && response.StatusCode < 400 {
		location.RawQuery, location.User = "", nil
		return model.StatusError(response.StatusCode, response.Header, c.redact("it redirects to "+location.String()))
	}
	return model.StatusError(response.StatusCode, response.Header, c.redact(vendorMessage(body)))
}

// unreachable classifies an error of the transport: no answer came.
func (c *Client) unreachable(err error) *agent.Error {
	var where *url.Error
	if errors.As(err, &where) {
		// Without the address, which may carry credentials in its query.
		err = where.Err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		// A timeout of the HTTP client, not of the caller's context, for which it must not be taken.
		return agent.Transient(agent.CodeModelUnavailable, "no answer from the model's vendor at %s: %s", c.base.Host, c.redact(err.Error()))
	}
	if text := err.Error(); c.redact(text) != text {
		return agent.Transient(agent.CodeModelUnavailable, "no answer from the model's vendor at %s: %s", c.base.Host, c.redact(text))
	}
	return agent.Transient(agent.CodeModelUnavailable, "no answer from the model's vendor at %s: %w", c.base.Host, err)
}
