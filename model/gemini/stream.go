package gemini

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"google.golang.org/genai"

	"runledger/agent"
	"runledger/model"
	"runledger/model/wire"
)

// maxChunk bounds a chunk of the stream, in bytes; the arguments of a call come whole in one.
const maxChunk = 64 << 20

// chunk is a piece of the answer, with arguments and signatures as the vendor wrote them.
type chunk struct {
	Candidates []struct {
		Index   int `json:"index"`
		Content struct {
			Parts []part `json:"parts"`
		} `json:"content"`
		FinishReason  genai.FinishReason `json:"finishReason"`
		FinishMessage string             `json:"finishMessage"`
	} `json:"candidates"`
	PromptFeedback *genai.GenerateContentResponsePromptFeedback `json:"promptFeedback"`
	Usage          *genai.GenerateContentResponseUsageMetadata  `json:"usageMetadata"`
	Model          string                                       `json:"modelVersion"`
	ID             string                                       `json:"responseId"`
}

type part struct {
	Text      string `json:"text"`
	Thought   bool   `json:"thought"`
	Signature string `json:"thoughtSignature"`
	Call      *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
}

// answer is a reply while it arrives.
type answer struct {
	names    wire.Names
	emit     func(model.Delta)
	reply    model.Reply
	text     strings.Builder
	thinking strings.Builder
	finish   genai.FinishReason
	message  string // what the vendor says about the finish
	blocked  bool   // the prompt was; there is no answer
	said     bool   // a chunk has come
}

// read follows the stream to its end. It has no end mark; the last chunk has a finish reason.
func (c *Client) read(ctx context.Context, response *http.Response, a *answer) (model.Reply, error) {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxChunk)
	var broken error
	// Once ctx has ended, what lies in buffers is not read any more, unless the answer is whole.
	for (ctx.Err() == nil || a.ended()) && lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if told, failed := streamError(data); failed {
			return model.Reply{}, c.endpoint.InStream(told, response.Header)
		}
		var piece chunk
		if err := json.Unmarshal(data, &piece); err != nil {
			broken = errors.New("a chunk is not JSON")
			break
		}
		a.add(piece)
	}
	if a.ended() {
		// Whole, even if the connection or ctx ended before the body did.
		return a.whole(c.endpoint)
	}
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	if broken == nil {
		broken = lines.Err()
	}
	switch {
	case broken != nil:
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's answer broke off: %s", c.endpoint.Redact(broken.Error()))
	case !a.said && media == "text/html":
		return model.Reply{}, agent.Failed(agent.CodeModelFailed, "%s answered a web page instead of a stream: is the base URL right?", c.endpoint.Host())
	}
	return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's stream ended without a finish reason")
}

// streamError finds the error that a chunk tells of.
func streamError(data []byte) (wire.Error, bool) {
	var fields struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &fields) != nil || wire.IsNull(fields.Error) {
		return wire.Error{}, false
	}
	return wire.ParseError(data)
}

func (a *answer) add(c chunk) {
	a.said = true
	if c.ID != "" {
		a.reply.ID = c.ID
	}
	if c.Model != "" {
		a.reply.Model = c.Model
	}
	if c.Usage != nil {
		a.reply.Usage = usage(c.Usage)
	}
	if c.PromptFeedback != nil && c.PromptFeedback.BlockReason != "" {
		a.blocked = true
		a.say(c.PromptFeedback.BlockReasonMessage)
	}
	for _, candidate := range c.Candidates {
		if candidate.Index != 0 {
			continue
		}
		for _, p := range candidate.Content.Parts {
			a.part(p)
		}
		if candidate.FinishReason != "" && candidate.FinishReason != genai.FinishReasonUnspecified {
			a.finish, a.message = candidate.FinishReason, candidate.FinishMessage
		}
	}
}

func (a *answer) part(p part) {
	switch {
	case p.Call != nil:
		arguments := string(p.Call.Args)
		if wire.IsNull(p.Call.Args) {
			arguments = "{}" // a tool that takes none
		}
		a.reply.ToolCalls = append(a.reply.ToolCalls, model.ToolCall{ID: p.Call.ID, Name: a.names.FromWire(p.Call.Name), Arguments: arguments, Signature: p.Signature})
		a.emit(model.Delta{Channel: model.ToolArgs, Text: arguments})
	case p.Thought && p.Text != "":
		a.thinking.WriteString(p.Text)
		a.emit(model.Delta{Channel: model.Thinking, Text: p.Text})
	case !p.Thought:
		a.say(p.Text)
	}
}

func (a *answer) say(text string) {
	if text != "" {
		a.text.WriteString(text)
		a.emit(model.Delta{Channel: model.Text, Text: text})
	}
}

func (a *answer) ended() bool { return a.finish != "" || a.blocked }

// whole is the reply once it has ended; an error where the vendor's server gave it up.
func (a *answer) whole(e *wire.Endpoint) (model.Reply, error) {
	a.reply.Text, a.reply.Thinking = a.text.String(), a.thinking.String()
	a.nameCalls()
	switch {
	case a.blocked:
		a.reply.Finish = model.FinishFiltered
		return a.reply, nil
	case a.finish == genai.FinishReasonMaxTokens:
		a.reply.Finish = model.FinishLength
		return a.reply, nil
	case a.finish == genai.FinishReasonStop && len(a.reply.ToolCalls) > 0:
		a.reply.Finish = model.FinishTools
		return a.reply, nil
	case a.finish == genai.FinishReasonStop:
		a.reply.Finish = model.FinishStop
		return a.reply, nil
	}
	switch a.finish {
	case genai.FinishReasonMalformedFunctionCall, genai.FinishReasonUnexpectedToolCall, genai.FinishReasonTooManyToolCalls,
		genai.FinishReasonOther, genai.FinishReasonContinuation:
		// The model lost its way, or the server did; the next try is as good as the first.
		return model.Reply{}, agent.Transient(agent.CodeModelStream, "the model's answer broke off: %s",
			e.Redact(strings.TrimSpace(string(a.finish)+" "+a.message)))
	}
	// Safety, recitation, blocklists, and what Google will call it next.
	a.reply.Finish, a.reply.ToolCalls = model.FinishFiltered, nil
	return a.reply, nil
}

// nameCalls gives each call an id of its own where the vendor gave none, as most of its models do.
func (a *answer) nameCalls() {
	used := make(map[string]bool)
	for i := range a.reply.ToolCalls {
		call := &a.reply.ToolCalls[i]
		for try := i; call.ID == "" || used[call.ID]; try++ {
			call.ID = fmt.Sprintf("call_%s_%d", a.reply.ID, try)
		}
		used[call.ID] = true
	}
}

// usage counts thoughts as output, as other vendors do; Google counts them apart.
func usage(u *genai.GenerateContentResponseUsageMetadata) model.Usage {
	return model.Usage{
		InputTokens:     int(u.PromptTokenCount + u.ToolUsePromptTokenCount),
		OutputTokens:    int(u.CandidatesTokenCount + u.ThoughtsTokenCount),
		CachedTokens:    int(u.CachedContentTokenCount),
		ReasoningTokens: int(u.ThoughtsTokenCount),
	}
}
