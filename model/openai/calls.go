package openai

import (
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"

	"runledger/model"
	"runledger/model/wire"
)

// callList puts tool calls together from their fragments.
type callList struct {
	calls []*partialCall
	// last is the call that fragments of an index belong to.
	last map[int64]*partialCall
}

type partialCall struct {
	id, name  string
	arguments strings.Builder
}

// add takes one fragment. The index says which call it continues; but some servers send every call under index 0, so an id
// of its own together with a name starts a new one.
func (l *callList) add(piece openai.ChatCompletionChunkChoiceDeltaToolCall) {
	call := l.last[piece.Index]
	if call == nil || piece.ID != "" && call.id != "" && piece.ID != call.id && piece.Function.Name != "" {
		call = &partialCall{}
		l.calls = append(l.calls, call)
		if l.last == nil {
			l.last = make(map[int64]*partialCall)
		}
		l.last[piece.Index] = call
	}
	if call.id == "" {
		call.id = piece.ID
	}
	// The name comes once, in pieces, or whole with every fragment.
	if piece.Function.Name != call.name {
		call.name += piece.Function.Name
	}
	call.arguments.WriteString(piece.Function.Arguments)
}

// toolCalls are the calls in the order in which they began. Each has an id of its own, given here where the vendor gave none.
func (l *callList) toolCalls(n wire.Names, response string) []model.ToolCall {
	var calls []model.ToolCall
	used := make(map[string]bool)
	for i, c := range l.calls {
		id := c.id
		for try := i; id == "" || used[id]; try++ {
			id = fmt.Sprintf("call_%s_%d", response, try)
		}
		used[id] = true
		arguments := c.arguments.String()
		if strings.TrimSpace(arguments) == "" {
			arguments = "{}" // how some models say that a tool takes none
		}
		calls = append(calls, model.ToolCall{ID: id, Name: n.FromWire(c.name), Arguments: arguments})
	}
	return calls
}
