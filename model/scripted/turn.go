package scripted

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"runledger/model"
)

// turn is one turn of a loop over tools: the calls that the text asks for and that have no answer yet, all of one stage at
// once. There are no more when every task has been answered.
func turn(req model.Request) (model.Reply, bool) {
	since := sinceUser(req.Messages)
	text := lastUser(req)
	var open []task
	for _, t := range tasks(text, req.Tools) {
		if len(open) > 0 && t.stage > open[0].stage {
			break
		}
		if !answered(t, since) {
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return model.Reply{}, false
	}
	var reply model.Reply
	var labels []string
	for i, t := range open {
		// The length of the transcript makes the id unique within it.
		id := "call_" + itoa(len(req.Messages)) + "_" + itoa(i)
		reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: id, Name: t.tool, Arguments: string(t.args)})
		labels = append(labels, t.label)
	}
	reply.Text = "Let me find out: " + strings.Join(labels, ", ") + "."
	return reply, true
}

// sinceUser is what came after the newest user message.
func sinceUser(messages []model.Message) []model.Message {
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].Role == model.User {
			return messages[i+1:]
		}
	}
	return nil
}

// answered reports whether the transcript holds an answer to the task.
func answered(t task, messages []model.Message) bool {
	for _, r := range results(messages) {
		if r.call.Name == t.tool && sameJSON([]byte(r.call.Arguments), t.args) {
			return true
		}
	}
	return false
}

// result is what a tool answered to a call.
type result struct {
	call model.ToolCall
	text string
}

func results(messages []model.Message) []result {
	var all []result
	for i, m := range messages {
		for _, call := range m.ToolCalls {
			// Behind the call, and before the next one with this id.
			k := slices.IndexFunc(messages[i+1:], func(m model.Message) bool {
				return m.Role == model.ToolRole && m.ToolCallID == call.ID
			})
			if k >= 0 {
				all = append(all, result{call: call, text: messages[i+1+k].Text})
			}
		}
	}
	return all
}

func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		// Arguments that cannot be read were garbled on purpose; the tool has refused them, and asking again gives the same.
		return bytes.HasPrefix(b, bytes.TrimSpace(a))
	}
	return bytes.Equal(encode(x), encode(y))
}
