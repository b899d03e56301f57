package scripted

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"runledger/agent"
	"runledger/model"
)

// Options configure the deterministic model.
type Options struct {
	// Delay is the time between two words of an answer, so that a person sees it stream. Zero, as in tests, is no delay.
	Delay time.Duration
}

// Client is the deterministic model.
type Client struct{ delay time.Duration }

var _ model.Client = (*Client)(nil)

// New makes the deterministic model.
func New(o Options) *Client { return &Client{delay: o.Delay} }

// Generate implements [model.Client].
func (c *Client) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	req = model.WithoutMarks(req)
	reply, scope, delay := c.reply(req)
	reply.Finish = model.FinishStop
	if len(reply.ToolCalls) > 0 {
		reply.Finish = model.FinishTools
	}
	out := delivery{reply: reply, delay: delay}
	if h, ok := findHook(lastUser(req), scope); ok {
		h.apply(&out)
	}
	out.limit(req.MaxTokens)
	out.reply.Model, out.reply.ID = req.Model, requestID(req)
	if out.reply.Model == "" {
		out.reply.Model = "scripted"
	}
	out.reply.Usage = countUsage(req, out.reply)
	return out.deliver(ctx, emit)
}

// reply decides what the request asks for: a plan, JSON of another form, tool calls, or a text.
func (c *Client) reply(req model.Request) (model.Reply, scope, time.Duration) {
	switch {
	case len(req.Schema) > 0 && req.SchemaName == "plan":
		return model.Reply{Text: plan(req)}, inPlan, 0
	case len(req.Schema) > 0:
		return model.Reply{Text: fit(req.Schema, lastUser(req))}, inAnswer, 0
	case len(req.Tools) > 0:
		if reply, more := turn(req); more {
			return reply, inTurn, c.delay
		}
	}
	return model.Reply{Text: answer(req), Thinking: thoughts(lastUser(req))}, inAnswer, c.delay
}

// requestID is the same for the same request.
func requestID(req model.Request) string {
	raw, err := json.Marshal(req)
	if err != nil { // a schema that is not JSON; the id is a courtesy
		raw = []byte(lastUser(req))
	}
	sum := sha256.Sum256(raw)
	return "scripted-" + hex.EncodeToString(sum[:8])
}

func countUsage(req model.Request, reply model.Reply) model.Usage {
	words := func(text string) int { return len(strings.Fields(text)) }
	var u model.Usage
	for _, m := range req.Messages {
		u.InputTokens += words(m.Text)
		for _, call := range m.ToolCalls {
			u.InputTokens += 1 + words(call.Arguments)
		}
	}
	for _, t := range req.Tools {
		u.InputTokens += 1 + words(t.Description)
	}
	u.ReasoningTokens = words(reply.Thinking)
	u.OutputTokens = words(reply.Text) + u.ReasoningTokens
	for _, call := range reply.ToolCalls {
		u.OutputTokens += 1 + words(call.Arguments)
	}
	return u
}

// lastUser is the text of the newest user message.
func lastUser(req model.Request) string {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		if req.Messages[i].Role == model.User {
			return req.Messages[i].Text
		}
	}
	return ""
}

// delivery is how a reply reaches the caller: in pieces, with accidents.
type delivery struct {
	reply model.Reply
	delay time.Duration
	// err ends the delivery after the first `after` pieces; a negative number means after all of them.
	err   error
	after int
	// silent means that nothing comes after the first `after` pieces, until the context ends.
	silent bool
}

// limit cuts the text after a number of words.
func (d *delivery) limit(words int) {
	if words <= 0 || len(d.reply.ToolCalls) > 0 {
		return
	}
	pieces := wordPieces(d.reply.Text)
	if len(pieces) > words {
		d.reply.Text = strings.Join(pieces[:words], "")
		d.reply.Finish = model.FinishLength
	}
}

func (d *delivery) deliver(ctx context.Context, emit func(model.Delta)) (model.Reply, error) {
	pieces := d.pieces()
	for i := 0; ; i++ {
		if ctx.Err() != nil {
			return model.Reply{}, model.ContextError(ctx)
		}
		if d.silent && i == min(d.after, len(pieces)) {
			<-ctx.Done()
			return model.Reply{}, model.ContextError(ctx)
		}
		if d.err != nil && (i == len(pieces) || i == d.after) {
			return model.Reply{}, d.err
		}
		if i == len(pieces) {
			return d.reply, nil
		}
		if i > 0 && d.delay > 0 {
			if err := pause(ctx, d.delay); err != nil {
				return model.Reply{}, err
			}
		}
		if emit != nil {
			emit(pieces[i])
		}
	}
}

func (d *delivery) pieces() []model.Delta {
	var deltas []model.Delta
	add := func(channel model.Channel, pieces []string) {
		for _, p := range pieces {
			deltas = append(deltas, model.Delta{Channel: channel, Text: p})
		}
	}
	add(model.Thinking, wordPieces(d.reply.Thinking))
	add(model.Text, wordPieces(d.reply.Text))
	for _, call := range d.reply.ToolCalls {
		add(model.ToolArgs, wordPieces(call.Arguments))
	}
	return deltas
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return model.ContextError(ctx)
	}
}

// wordPieces cuts a text into words, each with the white space before it, and very long words into pieces. Joined, they are
// the text.
func wordPieces(text string) []string {
	const long = 48
	var pieces []string
	start, seen := 0, false
	for i, r := range text {
		space := unicode.IsSpace(r)
		if i > start && (space && seen || i-start >= long) {
			pieces = append(pieces, text[start:i])
			start, seen = i, false
		}
		seen = seen || !space
	}
	if start < len(text) {
		pieces = append(pieces, text[start:])
	}
	return pieces
}

// clip shortens a text to a number of bytes, at a rune.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + " ..."
}

func failed(format string, args ...any) error {
	return agent.Failed(agent.CodeModelFailed, format, args...)
}
