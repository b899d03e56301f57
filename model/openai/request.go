package openai

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// params writes a request in the vendor's words.
func (c *Client) params(req model.Request, n wire.Names) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{
		Model:         req.Model,
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
	}
	for i, m := range req.Messages {
		message, err := messageParam(m, n)
		if err != nil {
			return p, agent.Failed(agent.CodeModelFailed, "message %d of the request: %w", i, err)
		}
		p.Messages = append(p.Messages, message)
	}
	if req.MaxTokens > 0 {
		if c.knowsCompletionTokens(req.Model) {
			p.MaxCompletionTokens = param.NewOpt(int64(req.MaxTokens))
		} else {
			p.MaxTokens = param.NewOpt(int64(req.MaxTokens))
		}
	}
	if len(req.Schema) > 0 {
		if !json.Valid(req.Schema) {
			return p, agent.Failed(agent.CodeModelFailed, "the schema asked of the model is not JSON")
		}
		p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
			Name:   schemaName(req.SchemaName),
			Schema: req.Schema,
			Strict: param.NewOpt(strictSchema(req.Schema)),
		}}
		// No tools: the answer is to be JSON, and several vendors refuse both in one request.
		return p, nil
	}
	for _, t := range req.Tools {
		parameters, err := toolParameters(t.InputSchema)
		if err != nil {
			return p, agent.Failed(agent.CodeModelFailed, "input schema of tool %q: %w", t.Name, err)
		}
		f := shared.FunctionDefinitionParam{Name: n.ToWire(t.Name), Parameters: parameters}
		if t.Description != "" {
			f.Description = param.NewOpt(t.Description)
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(f))
	}
	return p, nil
}

func messageParam(m model.Message, n wire.Names) (openai.ChatCompletionMessageParamUnion, error) {
	switch m.Role {
	case model.System:
		return openai.SystemMessage(m.Text), nil
	case model.User:
		return openai.UserMessage(m.Text), nil
	case model.ToolRole:
		return openai.ToolMessage(m.Text, m.ToolCallID), nil
	case model.Assistant:
		var a openai.ChatCompletionAssistantMessageParam
		// Content may be left out beside tool calls only.
		if m.Text != "" || len(m.ToolCalls) == 0 {
			a.Content.OfString = param.NewOpt(m.Text)
		}
		for _, call := range m.ToolCalls {
			a.ToolCalls = append(a.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID: call.ID,
					Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
						Name:      n.ToWire(call.Name),
						Arguments: wire.PastArguments(call.Arguments),
					},
				},
			})
		}
		return openai.ChatCompletionMessageParamUnion{OfAssistant: &a}, nil
	}
	return openai.ChatCompletionMessageParamUnion{}, fmt.Errorf("unknown role %q", m.Role)
}

// knowsCompletionTokens reports whether the limit of the answer has to be called max_completion_tokens. OpenAI's reasoning
// models refuse max_tokens; strict compatible servers refuse, and others ignore, the newer name.
func (c *Client) knowsCompletionTokens(name string) bool {
	base := c.endpoint.URL()
	host := strings.ToLower(base.Hostname())
	for _, own := range []string{"openai.com", "openai.azure.com", "cognitiveservices.azure.com"} {
		if host == own || strings.HasSuffix(host, "."+own) {
			return true
		}
	}
	name = name[strings.LastIndex(name, "/")+1:] // gateways say "openai/gpt-5"
	for _, family := range []string{"gpt-5", "o1", "o3", "o4"} {
		if name == family || strings.HasPrefix(name, family+"-") || strings.HasPrefix(name, family+".") {
			return true
		}
	}
	return false
}

func schemaName(name string) string {
	if name == "" {
		return "answer"
	}
	return wire.SafeName(name)
}
