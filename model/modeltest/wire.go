package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"runledger/model"
)

// The chat completions of OpenAI as they go over the wire, as far as the endpoint speaks them.

type wireRequest struct {
	Model         string        `json:"model"`
	Messages      []wireMessage `json:"messages"`
	Tools         []wireTool    `json:"tools"`
	Stream        bool          `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           int `json:"max_tokens"`
	MaxCompletionTokens int `json:"max_completion_tokens"`
	ResponseFormat      *struct {
		Type       string `json:"type"`
		JSONSchema *struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

type wireMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content,omitempty"`
	ToolCalls  []wireCall      `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
}

type wireCall struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type wireTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

type wireDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Refusal   string     `json:"refusal,omitempty"`
	ToolCalls []wireCall `json:"tool_calls,omitempty"`
}

type wireChoice struct {
	Index   int        `json:"index"`
	Delta   *wireDelta `json:"delta,omitempty"`
	Message *wireDelta `json:"message,omitempty"`
	Finish  *string    `json:"finish_reason"`
}

type wireUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	PromptMore struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionMore struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

type wireChunk struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []wireChoice `json:"choices"`
	Usage   *wireUsage   `json:"usage,omitempty"`
}

type wireError struct {
	Error wireErrorBody `json:"error"`
}

type wireErrorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code,omitempty"`
}

var wireName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// request checks what a vendor would check and says the rest in Runledger's words.
func (w *wireRequest) request() (model.Request, error) {
	r := model.Request{Model: w.Model, MaxTokens: max(w.MaxTokens, w.MaxCompletionTokens)}
	if w.Model == "" {
		return r, errors.New("you must provide a model parameter")
	}
	if len(w.Messages) == 0 {
		return r, errors.New("[] is too short - 'messages'")
	}
	if w.MaxTokens > 0 && w.MaxCompletionTokens > 0 {
		return r, errors.New("setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported")
	}
	if w.StreamOptions != nil && !w.Stream {
		return r, errors.New("the 'stream_options' parameter is only allowed when 'stream' is enabled")
	}
	if err := w.messages(&r); err != nil {
		return r, err
	}
	names := make(map[string]bool, len(w.Tools))
	for i, t := range w.Tools {
		if t.Type != "function" || !wireName.MatchString(t.Function.Name) {
			return r, fmt.Errorf("invalid 'tools[%d].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'", i)
		}
		if names[t.Function.Name] {
			return r, fmt.Errorf("tools[%d]: the name %q is there twice", i, t.Function.Name)
		}
		names[t.Function.Name] = true
		var parameters struct {
			Type       string          `json:"type"`
			Properties json.RawMessage `json:"properties"`
		}
		if len(t.Function.Parameters) > 0 {
			if json.Unmarshal(t.Function.Parameters, &parameters) != nil || parameters.Type != "object" || len(parameters.Properties) == 0 {
				return r, fmt.Errorf("invalid schema for function '%s': object schema missing properties", t.Function.Name)
			}
		}
		r.Tools = append(r.Tools, model.Tool{Name: t.Function.Name, Description: t.Function.Description, InputSchema: t.Function.Parameters})
	}
	if f := w.ResponseFormat; f != nil && f.Type == "json_schema" {
		if f.JSONSchema == nil || !wireName.MatchString(f.JSONSchema.Name) || len(f.JSONSchema.Schema) == 0 {
			return r, errors.New("missing or invalid parameter: 'response_format.json_schema'")
		}
		r.SchemaName, r.Schema = f.JSONSchema.Name, f.JSONSchema.Schema
	}
	return r, nil
}

// messages checks that every tool call is answered by the messages right behind it, as vendors do.
func (w *wireRequest) messages(r *model.Request) error {
	waiting := map[string]string{} // the name of each call that waits for its answer
	for i, m := range w.Messages {
		text, err := m.text()
		if err != nil {
			return fmt.Errorf("invalid 'messages[%d].content': %w", i, err)
		}
		if len(waiting) > 0 && m.Role != "tool" {
			return fmt.Errorf("an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id' (messages[%d])", i)
		}
		out := model.Message{Text: text}
		switch m.Role {
		case "system", "developer":
			out.Role = model.System
		case "user":
			out.Role = model.User
		case "assistant":
			out.Role = model.Assistant
			if len(m.Content) == 0 && len(m.ToolCalls) == 0 {
				return fmt.Errorf("messages[%d]: expected 'content' or 'tool_calls'", i)
			}
			for _, call := range m.ToolCalls {
				if call.ID == "" || waiting[call.ID] != "" || !wireName.MatchString(call.Function.Name) {
					return fmt.Errorf("messages[%d]: invalid tool call", i)
				}
				waiting[call.ID] = call.Function.Name
				out.ToolCalls = append(out.ToolCalls, model.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
			}
		case "tool":
			name, ok := waiting[m.ToolCallID]
			if !ok {
				return fmt.Errorf("messages with role 'tool' must be a response to a preceding message with 'tool_calls' (messages[%d])", i)
			}
			delete(waiting, m.ToolCallID)
			out.Role, out.ToolCallID, out.ToolName = model.ToolRole, m.ToolCallID, name
		default:
			return fmt.Errorf("invalid value: '%s' for 'messages[%d].role'", m.Role, i)
		}
		r.Messages = append(r.Messages, out)
	}
	if len(waiting) > 0 {
		return errors.New("an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'")
	}
	return nil
}

// text reads content, which is a string or a list of parts.
func (m *wireMessage) text() (string, error) {
	if len(m.Content) == 0 || string(m.Content) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", errors.New("want a string or a list of parts")
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("parts of type %q are not supported", p.Type)
		}
		b.WriteString(p.Text)
	}
	return b.String(), nil
}
