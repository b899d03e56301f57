package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"runledger/agent"
	"runledger/model"
)

const (
	// historyPage is how many messages of a conversation are read at a time, turnPage how many of a run's own turns.
	historyPage = 100
	turnPage    = 16
)

// budgetOf is how many tokens of conversation the prompts of a run hold, 0 for a run from before there was a budget.
func budgetOf(run *agent.Run) int {
	if run.Definition.History == nil {
		return 0
	}
	return run.Definition.History.MaxTokens
}

// turnRequest is what a turn of a react loop asks: what was said before the run, the user's words, and the earlier turns with
// what their tools gave, as far as the budget goes: the newest turn stays in any case, then come the turns before it, then what
// was said before the run. It is made from the record alone, so that every attempt sends the same.
//
// heard is the number of the newest message in it that was said while the run was at work.
func (a *Activities) turnRequest(ctx context.Context, run *agent.Run, in agent.ModelCall) (request model.Request, heard int64, err error) {
	request = model.Request{Model: run.Definition.Model.Model}
	for _, t := range run.Definition.Tools {
		request.Tools = append(request.Tools, model.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
	}
	asked := model.Message{Role: model.User, Text: userText(run)}
	w := newWindow(budgetOf(run), asked)
	said, err := a.steered(ctx, in)
	if err != nil {
		return request, 0, err
	}
	var cut leftOut
	if cut.turns, err = a.ownTurns(ctx, in, said, w); err != nil {
		return request, 0, err
	}
	turns := w.prompt()
	w.kept, w.messages = nil, 0 // what is left of the budget is for the time before the run
	history, messages, err := a.history(ctx, run, w)
	cut.messages = messages
	request.Messages = append(prompt(run.Definition.Instructions, cut, history, asked), turns...)
	return request, said.upTo(in.Turn), err
}

// prompt puts the parts together: instructions, a note of what is left out, the conversation before the run, and what is asked.
// The note comes in the user's role: the conversation may go on with a turn of the model, and vendors want it to begin with the
// user.
func prompt(instructions string, cut leftOut, history []model.Message, asked model.Message) []model.Message {
	var messages []model.Message
	if instructions != "" {
		messages = append(messages, model.Message{Role: model.System, Text: instructions})
	}
	if note := cut.note(); note != "" {
		messages = append(messages, model.Message{Role: model.User, Text: note})
	}
	return append(append(messages, history...), asked)
}

// leftOut counts what a prompt does not tell for want of room: messages from before the run, and turns of it.
type leftOut struct{ messages, turns int }

// note tells the model of it, "" when there is nothing to tell.
func (l leftOut) note() string {
	var parts []string
	if l.messages > 0 {
		parts = append(parts, fmt.Sprintf("the oldest %d messages of the conversation", l.messages))
	}
	if l.turns > 0 {
		parts = append(parts, fmt.Sprintf("the first %d turns of work on the last request, with their tool calls and results", l.turns))
	}
	if parts == nil {
		return ""
	}
	return "[Left out of what follows, to keep it short: " + strings.Join(parts, "; ") + ".]"
}

// ownTurns puts the turns before the one that is asked for into the window, the newest first, and tells how many are left out.
// What was said to the run between two turns goes with the turn that was the first to be shown it; what the turn that is asked
// for is the first to be shown stays in any case.
func (a *Activities) ownTurns(ctx context.Context, in agent.ModelCall, said steering, w *window) (cut int, err error) {
	for _, u := range slices.Backward(said.before(in.Turn)) {
		w.keep(u)
	}
	turns := turnReader{a: a, in: in, maxBytes: w.readBytes()}
	for turn := in.Turn - 1; turn >= 1; turn-- {
		u, err := turns.read(ctx, turn)
		if err != nil {
			return 0, err
		}
		if turn == in.Turn-1 {
			w.keep(u)
		} else if !w.add(u) {
			return turn, nil
		}
		for _, u := range slices.Backward(said.before(turn)) {
			if !w.add(u) {
				return turn - 1, nil
			}
		}
	}
	return 0, nil
}

// turnReader reads the turns of a loop from the record, from the newest to the oldest, some at a time.
type turnReader struct {
	a        *Activities
	in       agent.ModelCall
	maxBytes int
	first    int // the turn of page[0]
	page     []unit
}

// read gives a turn: what the model said, and what its tools gave.
func (r *turnReader) read(ctx context.Context, turn int) (unit, error) {
	if r.page == nil || turn < r.first {
		r.first = max(1, turn-turnPage+1)
		r.page = make([]unit, 0, turnPage)
		if err := r.readPage(ctx, turn); err != nil {
			return nil, err
		}
	}
	return r.page[turn-r.first], nil
}

// maxEditedBytes bounds what a model is told of the arguments that a call was made with in the place of its own.
const maxEditedBytes = 2000

func (r *turnReader) readPage(ctx context.Context, last int) error {
	var ids []string
	for turn := r.first; turn <= last; turn++ {
		ids = append(ids, agent.TurnCommandID(r.in.NodeID, turn))
	}
	answers, err := r.a.ledger.Results(ctx, r.in.RunID, ids)
	if err != nil {
		return err
	}
	replies := make([]model.Reply, len(ids))
	var toolIDs []string
	for i, id := range ids {
		if err := json.Unmarshal(answers[id].Result, &replies[i]); err != nil {
			return agent.Failed(agent.CodeInternal, "run %s: command %s has no answer on record", r.in.RunID, id)
		}
		for k := range replies[i].ToolCalls {
			toolIDs = append(toolIDs, agent.TurnToolCommandID(r.in.NodeID, r.first+i, k))
		}
	}
	results, err := r.a.ledger.ResultHeads(ctx, r.in.RunID, toolIDs, r.maxBytes)
	if err != nil {
		return err
	}
	for i, reply := range replies {
		u := unit{{Message: model.Message{Role: model.Assistant, Text: reply.Text, ToolCalls: reply.ToolCalls}}}
		for k, asked := range reply.ToolCalls {
			id := agent.TurnToolCommandID(r.in.NodeID, r.first+i, k)
			result, ok := results[id]
			if !ok {
				return agent.Failed(agent.CodeInternal, "run %s: command %s has no outcome on record", r.in.RunID, id)
			}
			text := string(result.Result)
			if result.State != agent.Committed {
				text = "The call failed. " + result.Error.Error()
			}
			if result.Edited != nil { // else it would take the result for that of what it has asked for
				note := "Somebody has changed the arguments of this call, which was made with " + agent.Preview(string(result.Edited), maxEditedBytes) + " instead. "
				text, result.Bytes = note+text, len(note)+max(result.Bytes, len(text))
			}
			u = append(u, piece{Message: model.Message{Role: model.ToolRole, Text: text, ToolCallID: asked.ID, ToolName: asked.Name}, whole: result.Bytes})
		}
		r.page = append(r.page, u)
	}
	return nil
}

// history is what the conversation held before the run, as far as the window takes it, and how many of its messages are left
// out.
func (a *Activities) history(ctx context.Context, run *agent.Run, w *window) (messages []model.Message, cut int, err error) {
	if w.budget == 0 {
		messages, err = a.wholeHistory(ctx, run)
		return messages, 0, err
	}
	if w.full { // by the run's own turns
		cut, err = a.ledger.CountMessages(ctx, run.ConversationID, run.StartSequence)
		return nil, cut, err
	}
	var g grouper
	for before := run.StartSequence; ; {
		page, err := a.ledger.Transcript(ctx, run.ConversationID, before, historyPage, w.readBytes())
		if err != nil {
			return nil, 0, err
		}
		var units []unit
		for _, m := range page {
			units = append(units, g.next(m)...)
		}
		if len(page) < historyPage {
			units = append(units, g.rest()...)
		}
		for _, u := range units {
			if !w.add(u) {
				all, err := a.ledger.CountMessages(ctx, run.ConversationID, run.StartSequence)
				return w.prompt(), all - w.messages, err
			}
		}
		if len(page) < historyPage {
			return w.prompt(), 0, nil
		}
		before = page[len(page)-1].Sequence
	}
}

// wholeHistory are the users' messages and the final answers before a run without a budget.
func (a *Activities) wholeHistory(ctx context.Context, run *agent.Run) ([]model.Message, error) {
	earlier, err := a.ledger.History(ctx, run.ConversationID, run.StartSequence)
	if err != nil {
		return nil, err
	}
	messages := make([]model.Message, len(earlier))
	for i, m := range earlier {
		messages[i] = model.Message{Role: model.Role(m.Role), Text: m.Content}
	}
	return messages, nil
}

// userText is what the user said, with the texts that were sent along.
func userText(run *agent.Run) string {
	var b strings.Builder
	b.WriteString(run.Input)
	for _, at := range run.Attachments {
		if at.Text != "" {
			fmt.Fprintf(&b, "\n\nAttachment %s (%s):\n%s", at.Name, at.MediaType, at.Text)
		}
	}
	return b.String()
}
