package activities

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"unicode/utf8"

	"runledger/agent"
	"runledger/model"
)

// A prompt tells of a conversation as much as its budget of tokens allows; what is oldest is left out first. Nothing is
// summarised: a summary would be a model call more, whose words would stand for the record. This file decides what is told. All
// of it is pure, so that every attempt of a command sends the same prompt.

// Tokens are estimated, the same in every process and for every model: a real count needs the model's own tokenizer.
const (
	bytesPerToken = 4
	messageTokens = 8 // what a message costs besides its text
	// minResultBytes is the least that is shown of a tool result which is cut to fit.
	minResultBytes = 256
)

// tokens estimates what a message costs: a token for every four bytes of its text, names, ids and arguments, rounded up, and
// eight for the message.
func tokens(m model.Message) int { return messageTokens + textTokens(messageBytes(m)) }

func messageBytes(m model.Message) int {
	n := len(m.Text) + len(m.ToolCallID) + len(m.ToolName)
	for _, c := range m.ToolCalls {
		n += len(c.ID) + len(c.Name) + len(c.Arguments)
	}
	return n
}

func textTokens(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// piece is a message on its way into a prompt. Whole is the size of its text in bytes, where that is more than was read.
type piece struct {
	model.Message
	whole int
}

// unit is what is told as a whole or not at all: a message by itself, or what a model said when it asked for tools together with
// the answers to all of its calls. Vendors refuse a call without its answer, and an answer without its call.
type unit []piece

func (u unit) tokens() (n int) {
	for _, p := range u {
		n += tokens(p.Message)
	}
	return n
}

// window takes the units of a prompt from the newest to the oldest, until its budget is spent.
type window struct {
	budget int
	left   int
	// kept are the units, newest first; messages counts their messages.
	kept     []unit
	messages int
	// full: something did not fit, and nothing older is taken.
	full bool
}

// newWindow is a window of a budget of tokens, of which the messages that stand in the prompt in any case are paid. A budget of
// 0 is without end.
func newWindow(budget int, pinned ...model.Message) *window {
	w := &window{budget: budget, left: budget}
	for _, m := range pinned {
		w.left -= tokens(m)
	}
	return w
}

// resultBytes is how much a single tool result may show: half of the budget, so that there is room for what led to it.
func (w *window) resultBytes() int { return max(w.budget/2*bytesPerToken, minResultBytes) }

// readBytes is how much of a text is worth reading: more than fits.
func (w *window) readBytes() int {
	if w.budget == 0 {
		return math.MaxInt32
	}
	return min(max(w.budget*bytesPerToken, w.resultBytes())+1, math.MaxInt32)
}

// add takes the next older unit if it fits. Once one does not, it and all older ones stay out.
func (w *window) add(u unit) bool {
	if w.full {
		return false
	}
	u = w.shorten(u)
	if w.budget > 0 && u.tokens() > w.left {
		w.full = true
		return false
	}
	w.take(u)
	return true
}

// keep takes the next older unit in any case. Where it does not fit its tool results are cut so that it does, as far as that
// goes.
func (w *window) keep(u unit) {
	u = w.shorten(u)
	if w.budget > 0 && u.tokens() > w.left {
		u = u.fit(w.left)
	}
	w.take(u)
}

func (w *window) take(u unit) {
	w.kept, w.messages, w.left = append(w.kept, u), w.messages+len(u), w.left-u.tokens()
}

// prompt are the messages of what was kept, oldest first.
func (w *window) prompt() (messages []model.Message) {
	for _, u := range slices.Backward(w.kept) {
		for _, p := range u {
			messages = append(messages, p.Message)
		}
	}
	return messages
}

func (w *window) shorten(u unit) unit {
	if w.budget == 0 {
		return u
	}
	return u.cut(w.resultBytes())
}

// cut gives the unit with no more than limit bytes of each tool result.
func (u unit) cut(limit int) unit {
	if !slices.ContainsFunc(u, func(p piece) bool { return p.long(limit) }) {
		return u
	}
	u = slices.Clone(u)
	for i, p := range u {
		if p.long(limit) {
			u[i].Text, u[i].whole = cutText(p.Text, max(p.whole, len(p.Text)), limit), max(p.whole, len(p.Text))
		}
	}
	return u
}

// long tells whether a piece is a tool result of more than limit bytes, read whole or not. One that was cut before is not.
func (p piece) long(limit int) bool { return p.Role == model.ToolRole && len(p.Text) > limit }

// fit cuts the tool results of a unit so that it costs no more than budget tokens, the longest first: they are given the same
// room, and those that need less leave the rest to the others.
func (u unit) fit(budget int) unit {
	longest := 0
	for _, p := range u {
		if p.Role == model.ToolRole {
			longest = max(longest, len(p.Text))
		}
	}
	cost := func(limit int) (n int) {
		for _, p := range u {
			size := messageBytes(p.Message)
			if p.long(limit) {
				size += limit - len(p.Text)
			}
			n += messageTokens + textTokens(size)
		}
		return n
	}
	over := sort.Search(max(longest-minResultBytes, 0), func(i int) bool { return cost(minResultBytes+i+1) > budget })
	return u.cut(minResultBytes + over)
}

// cutText gives the beginning of a text of whole bytes, with a note of its size, in limit bytes.
func cutText(text string, whole, limit int) string {
	note := func(shown int) string { return fmt.Sprintf("\n[cut: the first %d of %d bytes]", shown, whole) }
	shown := max(0, min(len(text), limit-len(note(whole))))
	for shown > 0 && shown < len(text) && !utf8.RuneStart(text[shown]) {
		shown--
	}
	return text[:shown] + note(shown)
}

// grouper makes units of the messages of a conversation, which it is given from the newest to the oldest.
type grouper struct {
	// answers to tool calls that have not come yet: by run and model command, then by the call's position.
	answers map[string]map[int]agent.Message
	// held is what a model said, by which message: what was said to its run before, and that it did not know of, is told after it.
	held unit
	by   agent.Message
}

// next takes the next older message and gives the units that are whole with it, the newest first.
func (g *grouper) next(m agent.Message) (units []unit) {
	if m.Role == agent.ToolMessage {
		g.unit(m)
		return nil
	}
	if unheard := m.Steers && m.RunID == g.by.RunID && m.Sequence > g.by.Heard; !unheard {
		units = g.rest()
	}
	u, ok := g.unit(m)
	switch {
	case !ok:
	case m.Role == agent.AssistantMessage:
		g.held, g.by = u, m
	default:
		units = append(units, u)
	}
	return units
}

// rest gives the unit that is left when there is no older message.
func (g *grouper) rest() (units []unit) {
	if g.held != nil {
		units = append(units, g.held)
	}
	g.held, g.by = nil, agent.Message{}
	return units
}

// unit gives the unit that a message begins. Ok is false for the answer to a tool call, which waits for its call, and for a model's
// turn that has not had all of its answers, as in a run that was stopped: neither it nor the answers that it had are told.
func (g *grouper) unit(m agent.Message) (u unit, ok bool) {
	if m.Role == agent.ToolMessage {
		if turn, index, of := agent.TurnTool(m.CommandID); of {
			g.wait(m.RunID+"/"+turn, index, m)
		}
		return nil, false
	}
	said := piece{Message: model.Message{Role: model.Role(m.Role), Text: m.Content}, whole: m.Bytes}
	if m.ToolCalls == nil {
		return unit{said}, true
	}
	if err := json.Unmarshal(m.ToolCalls, &said.ToolCalls); err != nil {
		return nil, false
	}
	key := m.RunID + "/" + m.CommandID
	answers := g.answers[key]
	delete(g.answers, key)
	u = unit{said}
	for i, c := range said.ToolCalls {
		answer, ok := answers[i]
		if !ok {
			return nil, false
		}
		u = append(u, piece{Message: model.Message{Role: model.ToolRole, Text: answer.Content, ToolCallID: c.ID, ToolName: c.Name}, whole: answer.Bytes})
	}
	return u, true
}

func (g *grouper) wait(key string, index int, m agent.Message) {
	if g.answers == nil {
		g.answers = map[string]map[int]agent.Message{}
	}
	if g.answers[key] == nil {
		g.answers[key] = map[int]agent.Message{}
	}
	if _, newer := g.answers[key][index]; !newer {
		g.answers[key][index] = m
	}
}
