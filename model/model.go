package model

import (
	"context"
	"encoding/json"
)

// Role says who a message is from.
type Role string

const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool"
)

// Message is one entry of the transcript that a model continues.
type Message struct {
	Role Role   `json:"role"`
	Text string `json:"text,omitempty"`
	// ToolCalls are the calls an assistant message asked for.
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	// ToolCallID and ToolName tie a tool message to the call it answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
	ToolName   string `json:"tool_name,omitempty"`
	// Untrusted is how many bytes at the end of Text are what tools gave, in a message of another role than theirs; see
	// [MarkUntrusted]. A client has no use for it.
	Untrusted int `json:"-"`
}

// ToolCall is a model's wish to call a tool.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments is what the model wrote, meant to be a JSON object; it may be malformed.
	Arguments string `json:"arguments"`
	// Signature is what a vendor sends along with a call and wants to see again when the call is shown to it as a past one; it
	// means nothing to anybody else.
	Signature string `json:"signature,omitempty"`
}

// Tool is a tool as the model is told of it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// Request is one call of a model.
type Request struct {
	// Model is the vendor's name of the model.
	Model    string    `json:"model"`
	Messages []Message `json:"messages"`
	Tools    []Tool    `json:"tools,omitempty"`
	// Schema asks for a JSON answer that fits this JSON Schema, and SchemaName names it. The tools of such a request are what
	// the answer may speak of, as a plan does: the model does not call them.
	Schema     json.RawMessage `json:"schema,omitempty"`
	SchemaName string          `json:"schema_name,omitempty"`
	MaxTokens  int             `json:"max_tokens,omitempty"`
	// Key is the idempotency key of the command, for vendors that take one. It is not part of what the model sees.
	Key string `json:"-"`
}

// Channel says what kind of output a delta belongs to.
type Channel string

const (
	Text     Channel = "text"
	Thinking Channel = "thinking"
	ToolArgs Channel = "tool_args"
)

// Delta is a piece of output while it arrives.
type Delta struct {
	Channel Channel
	Text    string
}

// FinishReason says why a model stopped, in one vocabulary for all vendors.
type FinishReason string

const (
	FinishStop   FinishReason = "stop"
	FinishTools  FinishReason = "tool_calls"
	FinishLength FinishReason = "length"
	// FinishFiltered means that the vendor cut the answer or that the model refused; Text is what it said all the same. A reply
	// to a request with a schema holds no JSON then.
	FinishFiltered FinishReason = "content_filter"
)

// Usage counts tokens as the vendor reports them.
type Usage struct {
	InputTokens     int `json:"input_tokens"`
	OutputTokens    int `json:"output_tokens"`
	CachedTokens    int `json:"cached_tokens,omitempty"`
	ReasoningTokens int `json:"reasoning_tokens,omitempty"`
}

// Reply is a model's complete answer. Its JSON form is the recorded result of an LLM command.
type Reply struct {
	Text      string       `json:"text"`
	Thinking  string       `json:"thinking,omitempty"`
	ToolCalls []ToolCall   `json:"tool_calls,omitempty"`
	Finish    FinishReason `json:"finish_reason"`
	Usage     Usage        `json:"usage"`
	// Model is the model that answered, as the vendor names it.
	Model string `json:"model"`
	// ID is the vendor's id of the response.
	ID string `json:"response_id,omitempty"`
}

// Client talks to one vendor.
type Client interface {
	// Generate asks the model and returns its whole answer. While the answer arrives, emit is called with each piece, in
	// order, from the calling goroutine's call stack or one other, never concurrently and never after Generate has returned;
	// emit may be nil. Concatenated, the text deltas are the reply's text and the thinking deltas its thinking. The ids of a
	// reply's tool calls differ from each other; a name may be one that the model made up. A reply that calls tools ends with
	// tool_calls, or with length when the last call may be cut short.
	//
	// Generate does not retry. Its errors are *agent.Error: transient where a later try can help (408, 409, 429, 5xx, no
	// connection, a stream that ended without its end mark), with RetryAfter when the vendor named one; definite otherwise.
	// When ctx ends, the error wraps ctx.Err(); see [ContextError]. A Client is safe for concurrent use.
	Generate(ctx context.Context, req Request, emit func(Delta)) (Reply, error)
}
