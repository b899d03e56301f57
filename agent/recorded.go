package agent

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"
)

// EffectCall asks for a recorded value: the value on record under the command, or a new one that goes on record.
type EffectCall struct {
	Scope
	NodeID    string `json:"node_id"`
	CommandID string `json:"command_id"`
	// Kind is NowCommand, UUIDCommand or RandomCommand.
	Kind CommandKind `json:"kind"`
}

// EffectReply is the value on record.
type EffectReply struct {
	Value json.RawMessage `json:"value"`
	// Sequence is the number of the event that recorded it.
	Sequence int64 `json:"sequence_number"`
	Witness
}

// HTTPCall asks for one HTTP request of workflow code.
type HTTPCall struct {
	Call
	Request HTTPRequest `json:"request"`
}

// HTTPReply is the reply of CallHTTP.
type HTTPReply struct {
	Reply
	// Response is set when the command is committed.
	Response *HTTPResponse `json:"response,omitempty"`
}

// NewValue asks the ledger for a recorded value.
type NewValue struct {
	EffectCall
	// Value goes on record when the command has none. A Now brings none: the database's clock is that of a run, so that
	// workers whose clocks differ do not make its time run backwards.
	Value json.RawMessage
	// Within is the dispatch of the tool that asks; nil when no tool does.
	Within *Within
}

// Within is the dispatch of a tool's command, which fences what the tool asks for: once the command has been taken over or
// decided, a worker that was given up can put nothing more on record.
type Within struct {
	CommandID  string
	DispatchNo int
	Dispatch   Dispatch
}

// HTTPRequest is a request that is recorded, with its response, as a command of its own.
type HTTPRequest struct {
	Method string `json:"method"`
	URL    string `json:"url"`
	// Headers are sent as they are; the record keeps the values of those that hold no secret, see [HTTPRequest.Public].
	Headers map[string]string `json:"headers,omitempty"`
	// JSON or Body is what is sent, at most one of them. Body is text.
	JSON json.RawMessage `json:"json,omitempty"`
	Body *string         `json:"body,omitempty"`
	// Timeout bounds the whole exchange; 30 s when zero.
	Timeout Duration `json:"timeout,omitempty"`
	// Effect is what a repetition would mean: Idempotent or External. Empty goes by the method, as the worker's http_request
	// tool is configured: GET, HEAD and OPTIONS are idempotent, every other method is external.
	Effect EffectClass `json:"effect_class,omitempty"`
}

// HTTPResponse is the answer to an HTTPRequest with a status below 400; any other is an error.
type HTTPResponse struct {
	Status int `json:"status"`
	// Headers are the useful ones, with names in lower case: cookies and challenges are left out.
	Headers map[string]string `json:"headers"`
	// JSON is the body where it is JSON, Text another body that is text, Data any other.
	JSON json.RawMessage `json:"json,omitempty"`
	Text *string         `json:"text,omitempty"`
	Data []byte          `json:"data,omitempty"`
	// Bytes is how many bytes of the body were read.
	Bytes int `json:"bytes"`
	// Truncated: the body was longer, and what stands here is its beginning.
	Truncated bool `json:"truncated,omitempty"`
}

// Body gives the body in whatever form it is recorded. Of a JSON body it is an equal document, not always the same bytes.
func (r HTTPResponse) Body() []byte {
	switch {
	case r.JSON != nil:
		return r.JSON
	case r.Text != nil:
		return []byte(*r.Text)
	}
	return r.Data
}

// redacted stands in place of what the record does not keep.
const redacted = "[redacted]"

// Public is the request as the record keeps it. It is a list of what passes, not of what does not: of headers that are not
// known to be harmless only the name is kept, since a key can have any name.
func (r HTTPRequest) Public() HTTPRequest {
	if len(r.Headers) == 0 {
		return r
	}
	headers := make(map[string]string, len(r.Headers))
	for name, value := range r.Headers {
		switch strings.ToLower(name) {
		case "accept", "accept-charset", "accept-language", "cache-control", "content-language", "content-type", "if-match",
			"if-modified-since", "if-none-match", "if-unmodified-since", "prefer", "range", "user-agent", "x-request-id":
			headers[name] = value
		default:
			headers[name] = redacted
		}
	}
	r.Headers = headers
	return r
}

// Exchange is the request as http_recorded shows it.
func (r HTTPRequest) Exchange() HTTPExchange {
	x := HTTPExchange{Method: r.Method, Headers: r.Public().Headers}
	if u, err := url.Parse(r.URL); err == nil {
		u.User, u.RawQuery, u.Fragment, u.RawFragment = nil, "", "", ""
		x.URL = u.String()
	}
	switch {
	case r.JSON != nil:
		x.Body = showBody(r.JSON)
	case r.Body != nil:
		x.Body = showText(*r.Body)
	}
	return x
}

// Exchange is the response as http_recorded shows it.
func (r HTTPResponse) Exchange() HTTPExchange {
	x := HTTPExchange{Status: r.Status, Headers: r.Headers, Truncated: r.Truncated}
	switch {
	case r.JSON != nil:
		x.Body = showBody(r.JSON)
	case r.Text != nil && *r.Text != "":
		x.Body = showText(*r.Text)
	case r.Bytes > 0:
		x.Body = &Value{Bytes: r.Bytes}
	}
	return x
}

func showBody(doc json.RawMessage) *Value {
	v := ShowValue(doc)
	return &v
}

func showText(text string) *Value {
	return &Value{Bytes: len(text), Preview: Preview(strings.ToValidUTF8(text, "\uFFFD"), maxPreviewBytes)}
}

// CheckEffectID says what is wrong with the name that code gives to an effect; nil when nothing is.
func CheckEffectID(id string) error {
	if len(id) > 64 || strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "" || id == "" {
		return Failed(CodeInvalidArguments, "%q is not the id of an effect: want 1 to 64 of A-Z a-z 0-9 _ -", Preview(id, 64))
	}
	return nil
}

// TimeValue is the value of a recorded Now.
func TimeValue(at time.Time) json.RawMessage {
	return json.RawMessage(`"` + at.UTC().Format(time.RFC3339Nano) + `"`)
}
