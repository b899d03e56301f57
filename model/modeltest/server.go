package modeltest

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"runledger/agent"
	"runledger/model"
)

// Endpoint is an http.Handler that behaves like an OpenAI-compatible endpoint: POST .../chat/completions, streaming or not,
// and GET .../models. A [model.Client] decides what is said: it gets the request in Runledger's form, with the tool names of
// the wire. Its reply is streamed as it comes, tool calls in fragments; its errors become HTTP answers, or, once something
// has been said, an error event or a broken stream.
//
// It refuses what vendors refuse: names outside [a-zA-Z0-9_-]{1,64}, calls without answers, answers without calls.
type Endpoint struct {
	client  model.Client
	options EndpointOptions

	mu    sync.Mutex
	calls []EndpointCall
}

// EndpointOptions configure an [Endpoint].
type EndpointOptions struct {
	// APIKey is the bearer token that requests must carry; empty lets everybody in.
	APIKey string
	// Before is asked first, with the number of the call, from 1. Its error is answered in place of a reply: an *agent.Error by
	// its fault and its RetryAfter. It may wait, to hold a call back.
	Before func(number int, r *http.Request, req model.Request) error
}

// EndpointCall is a call that an [Endpoint] has accepted: one that was authorised and well-formed.
type EndpointCall struct {
	// Key is the Idempotency-Key of the request: for Runledger, run_id/command_id.
	Key     string
	Request model.Request
	// Done is set once the reply has been sent in full; then Reply holds it.
	Done  bool
	Reply model.Reply
}

// NewEndpoint makes an endpoint at which client speaks.
func NewEndpoint(client model.Client, o EndpointOptions) *Endpoint {
	return &Endpoint{client: client, options: o}
}

// Server is an [Endpoint] that listens.
type Server struct {
	*Endpoint
	// URL is the base URL for clients; it ends in /v1.
	URL string
}

// NewServer starts an endpoint on a free port of the loopback interface; it is closed with the test.
func NewServer(t testing.TB, client model.Client) *Server {
	t.Helper()
	e := NewEndpoint(client, EndpointOptions{})
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return &Server{Endpoint: e, URL: s.URL + "/v1"}
}

// Calls lists the calls so far, in the order in which they came.
func (e *Endpoint) Calls() []EndpointCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]EndpointCall(nil), e.calls...)
}

// CallsByKey counts the calls of each Idempotency-Key.
func (e *Endpoint) CallsByKey() map[string]int {
	counts := make(map[string]int)
	for _, c := range e.Calls() {
		counts[c.Key]++
	}
	return counts
}

// ServeHTTP implements http.Handler.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case e.options.APIKey != "" && r.Header.Get("Authorization") != "Bearer "+e.options.APIKey:
		refuse(w, http.StatusUnauthorized, "Incorrect API key provided: "+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")+".", "invalid_api_key")
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/chat/completions"):
		e.complete(w, r)
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"scripted","object":"model","created":0,"owned_by":"runledger"}]}`+"\n")
	default:
		refuse(w, http.StatusNotFound, "Unknown request URL: "+r.Method+" "+r.URL.Path+".", "unknown_url")
	}
}

func refuse(w http.ResponseWriter, status int, message, code string) {
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wireError{wireErrorBody{Message: message, Type: kind, Code: code}})
}

func (e *Endpoint) complete(w http.ResponseWriter, r *http.Request) {
	var wire wireRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<20)).Decode(&wire); err != nil {
		refuse(w, http.StatusBadRequest, "We could not parse the JSON body of your request: "+err.Error(), "")
		return
	}
	req, err := wire.request()
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error(), "invalid_value")
		return
	}
	req.Key = r.Header.Get("Idempotency-Key")
	number := e.record(req)
	s := &sender{w: w, model: req.Model, stream: wire.Stream, usage: wire.StreamOptions != nil && wire.StreamOptions.IncludeUsage}
	if e.options.Before != nil {
		if err := e.options.Before(number, r, req); err != nil {
			s.fail(err)
			return
		}
	}
	reply, err := e.client.Generate(r.Context(), req, s.delta)
	if err != nil {
		s.fail(err)
		return
	}
	s.end(reply)
	e.mu.Lock()
	e.calls[number-1].Done, e.calls[number-1].Reply = true, reply
	e.mu.Unlock()
}

func (e *Endpoint) record(req model.Request) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, EndpointCall{Key: req.Key, Request: req})
	return len(e.calls)
}

// sender writes one answer. Nothing is written before the first piece, so that an error can still be a status.
type sender struct {
	w      http.ResponseWriter
	model  string
	stream bool
	usage  bool
	begun  bool
}

func (s *sender) delta(d model.Delta) {
	if !s.stream {
		return
	}
	switch d.Channel {
	case model.Text:
		s.chunk(wireDelta{Content: &d.Text}, nil)
	case model.Thinking:
		s.chunk(wireDelta{Reasoning: d.Text}, nil)
	case model.ToolArgs: // the calls follow whole, with their ids
	}
}

func (s *sender) begin() {
	if s.begun {
		return
	}
	s.begun = true
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.w.Header().Set("Cache-Control", "no-cache")
	empty := ""
	s.chunk(wireDelta{Role: "assistant", Content: &empty}, nil)
}

func (s *sender) chunk(delta wireDelta, finish *string) {
	s.begin()
	s.send(wireChunk{Choices: []wireChoice{{Delta: &delta, Finish: finish}}})
}

func (s *sender) send(c wireChunk) {
	c.ID, c.Object, c.Created, c.Model = "chatcmpl-endpoint", "chat.completion.chunk", 1700000000, s.model
	raw, err := json.Marshal(c)
	if err != nil {
		return
	}
	s.event(string(raw))
}

func (s *sender) event(data string) {
	_, _ = io.WriteString(s.w, "data: "+data+"\n\n")
	_ = http.NewResponseController(s.w).Flush()
}

// end says the rest of a reply: the tool calls in fragments, the finish reason, the usage, the end mark.
func (s *sender) end(reply model.Reply) {
	finish := string(reply.Finish)
	if !s.stream {
		s.whole(reply, finish)
		return
	}
	s.begin()
	for i, call := range reply.ToolCalls {
		first := wireCall{Index: &i, ID: call.ID, Type: "function"}
		first.Function.Name = call.Name
		s.chunk(wireDelta{ToolCalls: []wireCall{first}}, nil)
		for _, piece := range fragments(call.Arguments) {
			next := wireCall{Index: &i}
			next.Function.Arguments = piece
			s.chunk(wireDelta{ToolCalls: []wireCall{next}}, nil)
		}
	}
	s.chunk(wireDelta{}, &finish)
	if s.usage {
		s.send(wireChunk{Choices: []wireChoice{}, Usage: wireUsageOf(reply.Usage)})
	}
	s.event("[DONE]")
}

// whole answers a request that did not ask for a stream.
func (s *sender) whole(reply model.Reply, finish string) {
	message := wireDelta{Role: "assistant", Content: &reply.Text, Reasoning: reply.Thinking}
	for _, call := range reply.ToolCalls {
		c := wireCall{ID: call.ID, Type: "function"}
		c.Function.Name, c.Function.Arguments = call.Name, call.Arguments
		message.ToolCalls = append(message.ToolCalls, c)
	}
	s.w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(s.w).Encode(wireChunk{
		ID: "chatcmpl-endpoint", Object: "chat.completion", Created: 1700000000, Model: s.model,
		Choices: []wireChoice{{Message: &message, Finish: &finish}}, Usage: wireUsageOf(reply.Usage),
	})
}

func wireUsageOf(u model.Usage) *wireUsage {
	w := &wireUsage{Prompt: u.InputTokens, Completion: u.OutputTokens, Total: u.InputTokens + u.OutputTokens}
	w.PromptMore.Cached, w.CompletionMore.Reasoning = u.CachedTokens, u.ReasoningTokens
	return w
}

// fail says an error the way a vendor would: as a status while nothing has been said, then as an event, or, for a stream
// that is to break off, not at all.
func (s *sender) fail(err error) {
	e, ok := agent.AsError(err)
	if !ok {
		e = agent.Failed(agent.CodeModelFailed, "%w", err)
	}
	if e.Code == agent.CodeModelStream {
		s.begin() // a stream without its end mark
		return
	}
	status, code := http.StatusBadRequest, "bad_request"
	if e.Fault != agent.FaultDefinite {
		status, code = http.StatusServiceUnavailable, "overloaded"
		if e.RetryAfter > 0 {
			status, code = http.StatusTooManyRequests, "rate_limit_exceeded"
			s.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
		}
	}
	if !s.begun {
		refuse(s.w, status, e.Message, code)
		return
	}
	raw, err := json.Marshal(wireError{wireErrorBody{Message: e.Message, Type: code, Code: strconv.Itoa(status)}})
	if err == nil {
		s.event(string(raw))
	}
}

// fragments cuts arguments into small pieces, as vendors stream them.
func fragments(text string) []string {
	const size = 7
	var pieces []string
	for len(text) > size {
		cut := size
		for cut < len(text) && !utf8.RuneStart(text[cut]) {
			cut++
		}
		pieces = append(pieces, text[:cut])
		text = text[cut:]
	}
	if text != "" {
		pieces = append(pieces, text)
	}
	return pieces
}
