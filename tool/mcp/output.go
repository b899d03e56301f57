package mcp

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"runledger/agent"
)

const maxErrorText = 2 << 10

// result is the answer to tools/call, with the values as the server wrote them.
type result struct {
	Content           []json.RawMessage `json:"content"`
	StructuredContent json.RawMessage   `json:"structuredContent"`
	IsError           bool              `json:"isError"`
	ResultType        string            `json:"resultType"`
}

// plainOutput is what becomes of a result that is not structured.
type plainOutput struct {
	// Text is the text blocks, joined by line ends.
	Text string `json:"text"`
	// Content are the other blocks (images, audio, resources) as MCP writes them, without _meta and annotations.
	Content []map[string]json.RawMessage `json:"content,omitempty"`
	// Truncated: the output was over the limit. Text is its beginning, and blocks that do not fit have lost their data.
	Truncated bool `json:"truncated,omitempty"`
}

// output turns a result into the tool's output: structuredContent exactly as it came where there is one, since the
// content then only says it again, else a plainOutput. A result over the limit is cut and marked, not refused: the effect
// has taken place and must be on record.
//
// A result that the server marks as an error is a definite failure with its text; so is one that asks for input.
func output(name string, raw json.RawMessage, limit int) (json.RawMessage, error) {
	var r result
	raw = bytes.ToValidUTF8(raw, []byte("\ufffd")) // what is kept as it stands must be text all the same
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, agent.Unknown(agent.CodeToolFailed, "%s: the result cannot be read: %w", name, err)
	}
	if r.ResultType == "input_required" {
		return nil, agent.Failed(agent.CodeToolFailed, "%s: asks for input, which a run cannot give", name)
	}
	plain := simplify(r.Content, limit)
	if r.IsError {
		text := strings.TrimSpace(plain.Text)
		if text == "" {
			text = "the tool reports an error without a text"
		}
		return nil, agent.Failed(agent.CodeToolFailed, "%s: %s", name, clip(text, maxErrorText))
	}
	if structured := bytes.TrimSpace(r.StructuredContent); len(structured) > 0 && !bytes.Equal(structured, []byte("null")) {
		return within(structured, limit)
	}
	data, err := json.Marshal(plain)
	if err != nil {
		return nil, agent.Unknown(agent.CodeToolFailed, "%s: the result cannot be written: %w", name, err)
	}
	return data, nil
}

// within is a JSON value as it stands, or, over the limit, its beginning as text.
func within(value json.RawMessage, limit int) (json.RawMessage, error) {
	if len(value) <= limit {
		return value, nil
	}
	return json.Marshal(plainOutput{Text: cut(string(value), limit), Truncated: true})
}

// simplify keeps up to room bytes of the blocks, the text first.
func simplify(blocks []json.RawMessage, room int) (out plainOutput) {
	var texts []string
	var others []map[string]json.RawMessage
	for _, raw := range blocks {
		var block map[string]json.RawMessage
		if json.Unmarshal(raw, &block) != nil || block == nil {
			continue // not a block; the protocol has none of another form
		}
		var text string
		if string(block["type"]) == `"text"` && json.Unmarshal(block["text"], &text) == nil {
			texts = append(texts, text)
			continue
		}
		for _, name := range []string{"_meta", "annotations", "icons"} {
			delete(block, name)
		}
		others = append(others, block)
	}
	out.Text = strings.Join(texts, "\n")
	if len(out.Text) > room {
		out.Text, out.Truncated = cut(out.Text, room), true
	}
	room -= len(out.Text)
	for _, block := range others {
		if size(block) > room {
			out.Truncated = true
			delete(block, "data")
			delete(block, "resource")
			if size(block) > room {
				continue
			}
		}
		room -= size(block)
		out.Content = append(out.Content, block)
	}
	return out
}

func size(block map[string]json.RawMessage) int {
	sum := 0
	for name, value := range block {
		sum += len(name) + len(value)
	}
	return sum
}

// cut takes at most n bytes from the beginning of a text, without splitting a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// clip is cut for messages: it shows that something is missing.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return cut(text, n) + "..."
}
