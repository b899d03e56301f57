package anthropic

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// params writes a request in the vendor's words.
func (c *Client) params(req model.Request, n wire.Names) (anthropic.MessageNewParams, error) {
	p := anthropic.MessageNewParams{Model: anthropic.Model(req.Model), MaxTokens: int64(c.maxTokens)}
	if req.MaxTokens > 0 {
		p.MaxTokens = int64(req.MaxTokens)
	}
	t := transcript{names: n, ids: callIDs(req)}
	for i, m := range req.Messages {
		if !t.add(m) {
			return p, agent.Failed(agent.CodeModelFailed, "message %d of the request: unknown role %q", i, m.Role)
		}
	}
	p.System, p.Messages = t.system, t.messages
	if len(req.Schema) > 0 {
		schema, err := inputSchema(req.Schema)
		if err != nil {
			return p, agent.Failed(agent.CodeModelFailed, "the schema asked of the model: %w", err)
		}
		name := wire.SafeName(schemaName(req))
		answer := anthropic.ToolParam{Name: name, InputSchema: schema, Description: param.NewOpt("Gives the answer. Its arguments are the whole answer.")}
		p.Tools = []anthropic.ToolUnionParam{{OfTool: &answer}}
		p.ToolChoice.OfAuto = &anthropic.ToolChoiceAutoParam{DisableParallelToolUse: param.NewOpt(true)}
		p.System = append(p.System, anthropic.TextBlockParam{Text: "Answer by calling the tool " + name +
			" exactly once. Its arguments are your whole answer; write nothing besides."})
		return p, nil
	}
	for _, t := range req.Tools {
		schema, err := inputSchema(t.InputSchema)
		if err != nil {
			return p, agent.Failed(agent.CodeModelFailed, "input schema of tool %q: %w", t.Name, err)
		}
		tool := anthropic.ToolParam{Name: n.ToWire(t.Name), InputSchema: schema}
		if t.Description != "" {
			tool.Description = param.NewOpt(t.Description)
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: &tool})
	}
	return p, nil
}

func schemaName(req model.Request) string {
	if req.SchemaName == "" {
		return "answer"
	}
	return req.SchemaName
}

// inputSchema is a schema as the API takes it: an object, even if it has no properties. What it does not know is kept.
func inputSchema(schema json.RawMessage) (anthropic.ToolInputSchemaParam, error) {
	var p anthropic.ToolInputSchemaParam
	if wire.IsNull(schema) {
		p.Properties = struct{}{}
		return p, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(schema, &fields); err != nil {
		return p, errors.New("it is not a JSON object")
	}
	if kind, ok := fields["type"]; ok && string(kind) != `"object"` {
		return p, errors.New("the vendor takes schemas of type object only")
	}
	p.Properties = struct{}{}
	p.ExtraFields = make(map[string]any, len(fields))
	for name, value := range fields {
		switch name {
		case "type":
		case "properties":
			p.Properties = value
		default:
			p.ExtraFields[name] = value
		}
	}
	return p, nil
}

// callIDs are the calls' ids as the API takes them; another vendor may have given them.
func callIDs(req model.Request) wire.Names {
	var all []string
	for _, m := range req.Messages {
		for _, call := range m.ToolCalls {
			all = append(all, call.ID)
		}
	}
	return wire.MapNames(all)
}

// transcript is a conversation in turns. The API wants user and assistant by turns, all results of a turn's calls in the one
// message that follows it, and the system's words apart.
type transcript struct {
	names    wire.Names
	ids      wire.Names
	system   []anthropic.TextBlockParam
	messages []anthropic.MessageParam
}

// add takes a message; it reports false for a role that is not known.
func (t *transcript) add(m model.Message) bool {
	switch m.Role {
	case model.System:
		if strings.TrimSpace(m.Text) != "" {
			t.system = append(t.system, anthropic.TextBlockParam{Text: m.Text})
		}
	case model.User:
		t.say(anthropic.MessageParamRoleUser, anthropic.NewTextBlock(wire.TextOr(m.Text)))
	case model.ToolRole:
		result := anthropic.ToolResultBlockParam{ToolUseID: t.ids.ToWire(m.ToolCallID)}
		if strings.TrimSpace(m.Text) != "" {
			result.Content = []anthropic.ToolResultBlockParamContentUnion{{OfText: &anthropic.TextBlockParam{Text: m.Text}}}
		}
		t.say(anthropic.MessageParamRoleUser, anthropic.ContentBlockParamUnion{OfToolResult: &result})
	case model.Assistant:
		var blocks []anthropic.ContentBlockParamUnion
		if strings.TrimSpace(m.Text) != "" || len(m.ToolCalls) == 0 {
			blocks = append(blocks, anthropic.NewTextBlock(wire.TextOr(strings.TrimRight(m.Text, " \t\r\n"))))
		}
		for _, call := range m.ToolCalls {
			blocks = append(blocks, anthropic.NewToolUseBlock(t.ids.ToWire(call.ID), wire.PastObject(call.Arguments), t.names.ToWire(call.Name)))
		}
		if len(t.messages) == 0 {
			t.say(anthropic.MessageParamRoleUser, anthropic.NewTextBlock(wire.CutOff))
		}
		t.say(anthropic.MessageParamRoleAssistant, blocks...)
	default:
		return false
	}
	return true
}

// say adds blocks to the turn of a role, which begins where another's was.
func (t *transcript) say(role anthropic.MessageParamRole, blocks ...anthropic.ContentBlockParamUnion) {
	if n := len(t.messages); n > 0 && t.messages[n-1].Role == role {
		t.messages[n-1].Content = append(t.messages[n-1].Content, blocks...)
		return
	}
	t.messages = append(t.messages, anthropic.MessageParam{Role: role, Content: blocks})
}
