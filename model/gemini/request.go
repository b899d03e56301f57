package gemini

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"strings"

	"google.golang.org/genai"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// params writes a request in the vendor's words.
func params(req model.Request, n wire.Names) ([]*genai.Content, *genai.GenerateContentConfig, error) {
	config := &genai.GenerateContentConfig{MaxOutputTokens: int32(min(req.MaxTokens, math.MaxInt32))}
	t := transcript{names: n}
	for i, m := range req.Messages {
		if !t.add(m) {
			return nil, nil, agent.Failed(agent.CodeModelFailed, "message %d of the request: unknown role %q", i, m.Role)
		}
	}
	if len(t.system) > 0 {
		config.SystemInstruction = &genai.Content{Parts: t.system}
	}
	if len(req.Schema) > 0 {
		if !json.Valid(req.Schema) {
			return nil, nil, agent.Failed(agent.CodeModelFailed, "the schema asked of the model is not JSON")
		}
		// No tools: the answer is to be JSON, and the API refuses both in one request.
		config.ResponseMIMEType, config.ResponseJsonSchema = "application/json", req.Schema
		return t.contents, config, nil
	}
	var declared []*genai.FunctionDeclaration
	for _, tool := range req.Tools {
		f := &genai.FunctionDeclaration{Name: n.ToWire(tool.Name), Description: tool.Description}
		if !wire.IsNull(tool.InputSchema) {
			var fields map[string]json.RawMessage
			if json.Unmarshal(tool.InputSchema, &fields) != nil {
				return nil, nil, agent.Failed(agent.CodeModelFailed, "input schema of tool %q: %w", tool.Name, errors.New("it is not a JSON object"))
			}
			f.ParametersJsonSchema = tool.InputSchema
		}
		declared = append(declared, f)
	}
	if len(declared) > 0 {
		config.Tools = []*genai.Tool{{FunctionDeclarations: declared}}
	}
	return t.contents, config, nil
}

// transcript is a conversation in turns. The API wants the results of all calls of a turn in the one content that follows it,
// and the system's words apart.
type transcript struct {
	names    wire.Names
	system   []*genai.Part
	contents []*genai.Content
	results  bool // the last content holds results of calls
}

// add takes a message; it reports false for a role that is not known.
func (t *transcript) add(m model.Message) bool {
	switch m.Role {
	case model.System:
		if strings.TrimSpace(m.Text) != "" {
			t.system = append(t.system, &genai.Part{Text: m.Text})
		}
	case model.User:
		t.say(genai.RoleUser, false, &genai.Part{Text: wire.TextOr(m.Text)})
	case model.ToolRole:
		t.say(genai.RoleUser, true, &genai.Part{FunctionResponse: &genai.FunctionResponse{
			ID: m.ToolCallID, Name: t.names.ToWire(m.ToolName), Response: map[string]any{"output": m.Text},
		}})
	case model.Assistant:
		if len(t.contents) == 0 {
			t.say(genai.RoleUser, false, &genai.Part{Text: wire.CutOff})
		}
		if strings.TrimSpace(m.Text) != "" || len(m.ToolCalls) == 0 {
			t.say(genai.RoleModel, false, &genai.Part{Text: wire.TextOr(m.Text)})
		}
		for _, call := range m.ToolCalls {
			t.say(genai.RoleModel, false, callPart(call, t.names))
		}
	default:
		return false
	}
	return true
}

// say adds a part to the content of a role, which begins where another's was.
func (t *transcript) say(role string, result bool, part *genai.Part) {
	n := len(t.contents)
	if n == 0 || t.contents[n-1].Role != role || t.results != result {
		t.contents = append(t.contents, &genai.Content{Role: role})
		n++
	}
	t.contents[n-1].Parts, t.results = append(t.contents[n-1].Parts, part), result
}

func callPart(call model.ToolCall, n wire.Names) *genai.Part {
	part := &genai.Part{FunctionCall: &genai.FunctionCall{ID: call.ID, Name: n.ToWire(call.Name)}}
	// Numbers stay as they were written: an id of many digits must come back as it is.
	decoder := json.NewDecoder(bytes.NewReader(wire.PastObject(call.Arguments)))
	decoder.UseNumber()
	if decoder.Decode(&part.FunctionCall.Args) != nil {
		part.FunctionCall.Args = nil
	}
	// Some models refuse a past call without the signature that they gave it. What is not base64 is another vendor's.
	if signature, err := base64.StdEncoding.DecodeString(call.Signature); err == nil {
		part.ThoughtSignature = signature
	}
	return part
}
