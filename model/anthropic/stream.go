package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// answer is a reply while it arrives.
type answer struct {
	names wire.Names
	emit  func(model.Delta)
	reply model.Reply
	// asked is the tool whose arguments are the answer, for a request with a schema.
	asked    string
	text     strings.Builder
	thinking strings.Builder
	// aside is what was said beside an answer to a schema; it counts only where no such answer came.
	aside strings.Builder
	calls []*call
	stop  anthropic.StopReason
	usage usage
	said  bool // message_start has come
}

// call is a tool call of one content block.
type call struct {
	index     int64
	id, name  string
	arguments strings.Builder
}

// read follows the stream to its end mark.
func (c *Client) read(ctx context.Context, response *http.Response, a *answer) (model.Reply, error) {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	var broken error
	decoder := ssestream.NewDecoder(response)
	// Once ctx has ended, what lies in buffers is not read any more, unless the answer is whole.
	for (ctx.Err() == nil || a.stop != "") && decoder.Next() {
		event := decoder.Event()
		if event.Type == "message_stop" {
			break
		}
		if event.Type == "error" {
			told, ok := wire.ParseError(event.Data)
			if !ok {
				told.Message = string(event.Data)
			}
			return model.Reply{}, c.endpoint.InStream(told, response.Header)
		}
		var e anthropic.MessageStreamEventUnion
		if err := json.Unmarshal(event.Data, &e); err != nil {
			broken = errors.New("an event is not JSON")
			break
		}
		a.add(e)
	}
	if a.stop != "" {
		// Whole, even if the connection or ctx ended before the end mark.
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
	case !a.said && media == "text/html":
		return model.Reply{}, agent.Failed(agent.CodeModelFailed, "%s answered a web page instead of a stream: is the base URL right?", c.endpoint.Host())
	}
	return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's stream ended without its end mark")
}

func (a *answer) add(e anthropic.MessageStreamEventUnion) {
	switch e.Type {
	case "message_start":
		a.said = true
		a.reply.ID = e.Message.ID
		if e.Message.Model != "" {
			a.reply.Model = string(e.Message.Model)
		}
		a.usage.begin(e.Message.Usage)
	case "content_block_start":
		a.begin(e.Index, e.ContentBlock)
	case "content_block_delta":
		switch e.Delta.Type {
		case "text_delta":
			a.say(e.Delta.Text)
		case "thinking_delta":
			a.think(e.Delta.Thinking)
		case "input_json_delta":
			a.argue(e.Index, e.Delta.PartialJSON)
		}
	case "message_delta":
		if e.Delta.StopReason != "" {
			a.stop = e.Delta.StopReason
		}
		a.usage.update(e.Usage)
	}
}

func (a *answer) begin(index int64, block anthropic.ContentBlockStartEventContentBlockUnion) {
	switch block.Type {
	case "text":
		a.say(block.Text)
	case "thinking":
		a.think(block.Thinking)
	case "tool_use":
		a.calls = append(a.calls, &call{index: index, id: block.ID, name: block.Name})
		// Some servers give the arguments whole with the start; the vendor itself gives an empty object there.
		if raw := block.JSON.Input.Raw(); raw != "" && raw != "null" && strings.Trim(raw, "{} \n\t") != "" {
			a.argue(index, raw)
		}
	}
}

func (a *answer) say(text string) {
	switch {
	case text == "":
	case a.asked != "":
		a.aside.WriteString(text)
	default:
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

// argue takes a piece of the arguments of the call in a block. The arguments of the first call for a schema are the text.
func (a *answer) argue(index int64, piece string) {
	for i, c := range a.calls {
		if c.index != index || piece == "" {
			continue
		}
		c.arguments.WriteString(piece)
		channel := model.ToolArgs
		if a.asked != "" {
			if i > 0 {
				return
			}
			channel = model.Text
			a.text.WriteString(piece)
		}
		a.emit(model.Delta{Channel: channel, Text: piece})
		return
	}
}

// whole is the reply once it has ended.
func (a *answer) whole() model.Reply {
	if a.asked != "" && len(a.calls) == 0 && a.aside.Len() > 0 {
		text := a.aside.String()
		a.text.WriteString(text)
		a.emit(model.Delta{Channel: model.Text, Text: text})
	}
	a.reply.Text, a.reply.Thinking = a.text.String(), a.thinking.String()
	if a.asked == "" {
		for i, c := range a.calls {
			if c.id == "" { // a gateway's omission
				c.id = fmt.Sprintf("toolu_%s_%d", a.reply.ID, i)
			}
			arguments := c.arguments.String()
			if strings.TrimSpace(arguments) == "" {
				arguments = "{}" // a tool that takes none
			}
			a.reply.ToolCalls = append(a.reply.ToolCalls, model.ToolCall{ID: c.id, Name: a.names.FromWire(c.name), Arguments: arguments})
		}
	}
	a.reply.Finish = a.finish()
	a.reply.Usage = a.usage.total()
	return a.reply
}

func (a *answer) finish() model.FinishReason {
	switch a.stop {
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		return model.FinishLength
	case anthropic.StopReasonRefusal:
		return model.FinishFiltered
	}
	if len(a.reply.ToolCalls) > 0 {
		return model.FinishTools
	}
	return model.FinishStop
}

// usage is what the vendor has counted so far. Its input tokens leave out those that the cache has to do with; in Runledger's
// shape they are part of the input, as other vendors count.
type usage struct {
	input, written, cached, output, reasoning int64
}

func (u *usage) begin(v anthropic.Usage) {
	*u = usage{v.InputTokens, v.CacheCreationInputTokens, v.CacheReadInputTokens, v.OutputTokens, v.OutputTokensDetails.ThinkingTokens}
}

// update takes the sums at the end; what they leave out stays as it was at the start.
func (u *usage) update(v anthropic.MessageDeltaUsage) {
	for _, f := range []struct {
		told bool
		from int64
		to   *int64
	}{
		{v.JSON.InputTokens.Valid(), v.InputTokens, &u.input},
		{v.JSON.CacheCreationInputTokens.Valid(), v.CacheCreationInputTokens, &u.written},
		{v.JSON.CacheReadInputTokens.Valid(), v.CacheReadInputTokens, &u.cached},
		{v.JSON.OutputTokens.Valid(), v.OutputTokens, &u.output},
		{v.OutputTokensDetails.JSON.ThinkingTokens.Valid(), v.OutputTokensDetails.ThinkingTokens, &u.reasoning},
	} {
		if f.told {
			*f.to = f.from
		}
	}
}

func (u *usage) total() model.Usage {
	return model.Usage{
		InputTokens: int(u.input + u.written + u.cached), OutputTokens: int(u.output),
		CachedTokens: int(u.cached), ReasoningTokens: int(u.reasoning),
	}
}
