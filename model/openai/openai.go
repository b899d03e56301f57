// Package openai talks to OpenAI and to every endpoint that is compatible with its chat completions: vLLM, Ollama,
// llama.cpp, LM Studio, Groq, DeepSeek, OpenRouter, gateways.
//
// It asks for a stream always, sends each request once, and keeps to the parts of the API that compatible servers know: no
// parallel_tool_calls, no store, max_tokens instead of max_completion_tokens unless OpenAI's own models are meant.
package openai

import (
	"context"
	"fmt"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"runledger/model"
	"runledger/model/wire"
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
	api      openai.Client
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
		return nil, fmt.Errorf("openai: %w", err)
	}
	httpClient := o.HTTPClient
	if httpClient == nil {
		httpClient = wire.NewHTTPClient()
	}
	options := []option.RequestOption{
		option.WithBaseURL(o.BaseURL),
		option.WithHTTPClient(httpClient),
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
	// Not openai.NewClient: that one reads keys, organisation and headers from the environment.
	return &Client{api: openai.Client{Options: options}, endpoint: endpoint}, nil
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
		return model.Reply{}, c.endpoint.Refused(response)
	}
	if err != nil {
		return model.Reply{}, c.endpoint.Unreachable(err)
	}
	if emit == nil {
		emit = func(model.Delta) {}
	}
	return c.read(ctx, response, &answer{names: names, emit: emit, reply: model.Reply{Model: req.Model}})
}
