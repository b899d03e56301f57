// Package anthropic talks to Anthropic's Messages API.
//
// It asks for a stream always and sends each request once. A request with a schema becomes a request for one call of a tool
// whose arguments are the answer. The call is asked for in words: models that always think refuse to be forced, and the API's
// own output format takes some schemas only. A model that answers in words all the same has its words taken for the answer.
//
// Thinking is left to the model's default and what it shows of it is told, but it is not sent back with later requests.
package anthropic

import (
	"context"
	"fmt"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"runledger/model"
	"runledger/model/wire"
)

const (
	// DefaultBaseURL is Anthropic's own endpoint.
	DefaultBaseURL = "https://api.anthropic.com"
	// DefaultMaxTokens bounds an answer where neither request nor options do, since the API wants a bound: low enough for
	// every model since Claude 4, and with room for thinking, which counts.
	DefaultMaxTokens = 32000
)

// Options configure a client.
type Options struct {
	// BaseURL is the part before /v1/messages; DefaultBaseURL when empty.
	BaseURL string
	// APIKey is sent as x-api-key; none is sent when it is empty. The environment is never looked at.
	APIKey string
	// MaxTokens bounds the answer to a request that names no bound itself; DefaultMaxTokens when 0.
	MaxTokens int
	// HTTPClient makes the requests. It should have no Timeout, which would cut long streams. Nil means one made for this client.
	HTTPClient *http.Client
}

// Client is a [model.Client] for one endpoint.
type Client struct {
	api       anthropic.Client
	endpoint  *wire.Endpoint
	maxTokens int
}

var _ model.Client = (*Client)(nil)

// New checks the options and makes a client; it sends nothing.
func New(o Options) (model.Client, error) {
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	endpoint, err := wire.Open(o.BaseURL, o.APIKey)
	if err != nil {
		return nil, fmt.Errorf("anthropic: %w", err)
	}
	if o.MaxTokens < 0 {
		return nil, fmt.Errorf("anthropic: %d is no number of tokens for an answer", o.MaxTokens)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = DefaultMaxTokens
	}
	if o.HTTPClient == nil {
		o.HTTPClient = wire.NewHTTPClient()
	}
	options := []option.RequestOption{
		option.WithBaseURL(o.BaseURL),
		option.WithHTTPClient(o.HTTPClient),
		option.WithMaxRetries(0),
		option.WithHeader("Accept", "text/event-stream"),
	}
	if key := endpoint.Key(); key != "" {
		options = append(options, option.WithAPIKey(key))
	}
	base := endpoint.URL()
	for name, values := range base.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	// Not anthropic.NewClient: that one reads keys, profiles and headers from the environment.
	return &Client{api: anthropic.Client{Options: options}, endpoint: endpoint, maxTokens: o.MaxTokens}, nil
}

// Generate implements [model.Client].
func (c *Client) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	if err := ctx.Err(); err != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	names := wire.NewNames(req)
	params, err := c.params(req, names)
	if err != nil {
		return model.Reply{}, err
	}
	options := []option.RequestOption{option.WithJSONSet("stream", true)}
	if req.Key != "" {
		options = append(options, option.WithHeader("Idempotency-Key", req.Key))
	}
	// The raw response, not the SDK's stream: that one takes an end of the body for the end of the answer.
	var response *http.Response
	err = c.api.Post(ctx, "v1/messages", params, &response, options...)
	if response != nil && response.Body != nil {
		defer response.Body.Close()
	}
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	if response != nil && (response.StatusCode < 200 || response.StatusCode > 299) {
		return model.Reply{}, c.endpoint.Refused(response)
	}
	if err != nil {
		return model.Reply{}, c.endpoint.Unreachable(err)
	}
	if emit == nil {
		emit = func(model.Delta) {}
	}
	a := &answer{names: names, emit: emit, reply: model.Reply{Model: req.Model}}
	if len(req.Schema) > 0 {
		a.asked = wire.SafeName(schemaName(req))
	}
	return c.read(ctx, response, a)
}
