package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// answer is a reply while it arrives.
type answer struct {
	names    wire.Names
	emit     func(model.Delta)
	reply    model.Reply
	text     strings.Builder
	thinking strings.Builder
	calls    callList
	finish   string // the vendor's finish reason
	refused  bool
	said     bool // a chunk with a choice has come
	done     bool // [DONE] has come
}

// read follows the stream to its end mark.
func (c *Client) read(ctx context.Context, response *http.Response, a *answer) (model.Reply, error) {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if strings.Contains(media, "json") {
		return c.readWhole(ctx, response, a)
	}
	var broken error
	decoder := ssestream.NewDecoder(response)
	// Once ctx has ended, what lies in buffers is not read any more, unless the answer is whole.
	for (ctx.Err() == nil || a.finish != "") && decoder.Next() {
		event := decoder.Event()
		if bytes.HasPrefix(event.Data, []byte("[DONE]")) {
			a.done = true
			break
		}
		if e, failed := streamError(event); failed {
			return model.Reply{}, c.endpoint.InStream(e, response.Header)
		}
		var chunk openai.ChatCompletionChunk
		if err := json.Unmarshal(event.Data, &chunk); err != nil {
			broken = errors.New("a chunk is not JSON")
			break
		}
		a.add(chunk)
	}
	if a.finish == "error" { // OpenRouter's way to say that the vendor behind it broke off
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's answer broke off: the vendor reports an error")
	}
	if a.finish != "" || a.done && a.said {
		// Whole, even if the connection or ctx ended while the count of tokens was still to come.
		return a.whole(), nil
	}
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	if broken == nil {
		broken = decoder.Err()
	}
	switch {
	case broken != nil:
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's answer broke off: %s", c.endpoint.Redact(broken.Error()))
	case a.done:
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's stream ended without an answer")
	case !a.said && media == "text/html":
		return model.Reply{}, agent.Failed(agent.CodeModelFailed, "%s answered a web page instead of a stream: is the base URL right?", c.endpoint.Host())
	}
	return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's stream ended without its end mark")
}

// readWhole reads the answer of a server that does not stream, which comes as one JSON object.
func (c *Client) readWhole(ctx context.Context, response *http.Response, a *answer) (model.Reply, error) {
	body, err := io.ReadAll(response.Body)
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	if err != nil {
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's answer broke off: %s", c.endpoint.Redact(err.Error()))
	}
	var whole struct {
		Choices []struct {
			Message json.RawMessage `json:"message"`
		} `json:"choices"`
	}
	var chunk openai.ChatCompletionChunk
	err = errors.Join(json.Unmarshal(body, &whole), json.Unmarshal(body, &chunk))
	if e, failed := wire.ParseError(body); failed && len(whole.Choices) == 0 {
		return model.Reply{}, c.endpoint.InStream(e, response.Header)
	}
	if err != nil || len(whole.Choices) == 0 || len(chunk.Choices) == 0 {
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's vendor answered JSON that holds no completion")
	}
	// A message has the fields of a delta, but its calls come without an index.
	delta, calls := chunk.Choices[0].Delta, openai.ChatCompletionChunkChoiceDelta{}
	if err := json.Unmarshal(whole.Choices[0].Message, &delta); err != nil {
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's vendor answered JSON that holds no completion")
	}
	calls.ToolCalls, delta.ToolCalls = delta.ToolCalls, nil
	for i := range calls.ToolCalls {
		calls.ToolCalls[i].Index = int64(i)
	}
	chunk.Choices[0].Delta = delta
	a.done = true
	a.add(chunk)
	a.addCalls(calls)
	return a.whole(), nil
}

// streamError finds the error that an event of a stream tells of. A null error is none.
func streamError(event ssestream.Event) (wire.Error, bool) {
	if event.Type != "error" && !bytes.Contains(event.Data, []byte(`"error"`)) {
		return wire.Error{}, false
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(event.Data, &fields); err != nil {
		return wire.Error{Message: string(event.Data)}, event.Type == "error"
	}
	if wire.IsNull(fields["error"]) && event.Type != "error" {
		return wire.Error{}, false
	}
	e, _ := wire.ParseError(event.Data)
	return e, true
}

func (a *answer) add(chunk openai.ChatCompletionChunk) {
	if chunk.ID != "" {
		a.reply.ID = chunk.ID
	}
	if chunk.Model != "" {
		a.reply.Model = chunk.Model
	}
	if chunk.JSON.Usage.Valid() {
		a.reply.Usage = usage(chunk.Usage)
	}
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue
		}
		a.said = true
		delta := choice.Delta
		extra := delta.JSON.ExtraFields
		thought := extraText(extra["reasoning_content"])
		if thought == "" { // some servers send both, the same text twice
			thought = extraText(extra["reasoning"])
		}
		a.think(thought)
		if raw := delta.JSON.Content.Raw(); strings.HasPrefix(raw, "[") {
			a.addParts(raw)
		} else {
			a.say(delta.Content)
		}
		if delta.Refusal != "" {
			a.refused = true
			a.say(delta.Refusal)
		}
		a.addCalls(delta)
		if choice.FinishReason != "" {
			a.finish = choice.FinishReason
		}
	}
}

func (a *answer) say(text string) {
	if text != "" {
		a.text.WriteString(text)
		a.emit(model.Delta{Channel: model.Text, Text: text})
	}
}

func (a *answer) think(text string) {
	if text != "" {
		a.thinking.WriteString(text)
		a.emit(model.Delta{Channel: model.Thinking, Text: text})
	}
}

// addParts reads content that is a list of typed parts, as Mistral's reasoning models write it.
func (a *answer) addParts(raw string) {
	var parts []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Thinking []struct {
			Text string `json:"text"`
		} `json:"thinking"`
	}
	if json.Unmarshal([]byte(raw), &parts) != nil {
		return
	}
	for _, part := range parts {
		for _, t := range part.Thinking {
			a.think(t.Text)
		}
		if part.Type == "text" {
			a.say(part.Text)
		}
	}
}

func (a *answer) addCalls(delta openai.ChatCompletionChunkChoiceDelta) {
	for _, piece := range delta.ToolCalls {
		a.calls.add(piece)
		if piece.Function.Arguments != "" {
			a.emit(model.Delta{Channel: model.ToolArgs, Text: piece.Function.Arguments})
		}
	}
}

// whole is the reply once the end mark has come.
func (a *answer) whole() model.Reply {
	a.reply.Text = a.text.String()
	a.reply.Thinking = a.thinking.String()
	a.reply.ToolCalls = a.calls.toolCalls(a.names, a.reply.ID)
	a.reply.Finish = a.finishReason()
	return a.reply
}

func (a *answer) finishReason() model.FinishReason {
	switch strings.ToLower(a.finish) {
	case "length", "max_tokens", "model_length":
		return model.FinishLength
	case "content_filter", "safety", "recitation", "blocklist", "prohibited_content":
		return model.FinishFiltered
	}
	if a.refused {
		return model.FinishFiltered
	}
	// Several servers say "stop" after tool calls, and some say tool_calls after none.
	if len(a.reply.ToolCalls) > 0 {
		return model.FinishTools
	}
	return model.FinishStop
}

func usage(u openai.CompletionUsage) model.Usage {
	cached := u.PromptTokensDetails.CachedTokens
	if cached == 0 {
		// DeepSeek's word for it; nothing is counted where it does not stand.
		_, _ = fmt.Sscan(u.JSON.ExtraFields["prompt_cache_hit_tokens"].Raw(), &cached)
	}
	return model.Usage{
		InputTokens:     int(u.PromptTokens),
		OutputTokens:    int(u.CompletionTokens),
		CachedTokens:    int(cached),
		ReasoningTokens: int(u.CompletionTokensDetails.ReasoningTokens),
	}
}

func extraText(field respjson.Field) string {
	var text string
	if json.Unmarshal([]byte(field.Raw()), &text) != nil {
		return ""
	}
	return text
}
