package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/model"
)

// library is a ledger of one conversation and of the results of one run, that counts what is read.
type library struct {
	Ledger
	messages []agent.Message // oldest first
	results  map[string]agent.CommandResult
	reads    int
}

func (l *library) Transcript(_ context.Context, _ string, before int64, limit, _ int) (page []agent.Message, err error) {
	l.reads++
	for _, m := range slices.Backward(l.messages) {
		if m.Sequence < before && len(page) < limit {
			page = append(page, m)
		}
	}
	return page, nil
}

func (l *library) Steered(context.Context, string) ([]agent.Message, map[string]int64, error) {
	return nil, nil, nil
}

func (l *library) CountMessages(_ context.Context, _ string, before int64) (n int, err error) {
	for _, m := range l.messages {
		if m.Sequence < before {
			n++
		}
	}
	return n, nil
}

func (l *library) History(_ context.Context, _ string, before int64) (messages []agent.Message, err error) {
	for _, m := range l.messages {
		if m.Sequence < before && m.ToolCalls == nil && m.Role != agent.ToolMessage {
			messages = append(messages, m)
		}
	}
	return messages, nil
}

func (l *library) Results(_ context.Context, _ string, ids []string) (map[string]agent.CommandResult, error) {
	l.reads++
	found := map[string]agent.CommandResult{}
	for _, id := range ids {
		if r, ok := l.results[id]; ok {
			found[id] = r
		}
	}
	return found, nil
}

func (l *library) ResultHeads(ctx context.Context, runID string, ids []string, maxBytes int) (map[string]agent.CommandResult, error) {
	found, err := l.Results(ctx, runID, ids)
	for id, r := range found {
		r.Bytes = len(r.Result)
		r.Result = r.Result[:min(len(r.Result), maxBytes)]
		found[id] = r
	}
	return found, err
}

// turn puts a turn of the run on record: what the model said, and a result of so many bytes.
func (l *library) turn(t require.TestingT, no, bytes int) {
	reply, err := json.Marshal(model.Reply{Text: fmt.Sprint("turn ", no), ToolCalls: []model.ToolCall{{ID: fmt.Sprint("call ", no), Name: "put", Arguments: "{}"}}})
	require.NoError(t, err)
	l.results[agent.TurnCommandID("main", no)] = committed(agent.ModelCommand, string(reply))
	l.results[agent.TurnToolCommandID("main", no, 0)] = committed(agent.ToolCommand, `"`+strings.Repeat("x", bytes)+`"`)
}

// unit is a turn of the run as a prompt tells it.
func (l *library) unit(no int) unit {
	id := fmt.Sprint("call ", no)
	return unit{{Message: model.Message{Role: model.Assistant, Text: fmt.Sprint("turn ", no), ToolCalls: []model.ToolCall{{ID: id, Name: "put", Arguments: "{}"}}}},
		{Message: model.Message{Role: model.ToolRole, Text: string(l.results[agent.TurnToolCommandID("main", no, 0)].Result), ToolCallID: id, ToolName: "put"}}}
}

func promptOf(t require.TestingT, l *library, budget *agent.History, turn int) []model.Message {
	run := &agent.Run{RunID: "run", ConversationID: "c", StartSequence: 1 << 30, Input: "go on",
		Definition: agent.Definition{Instructions: "be kind", History: budget}}
	request, _, err := (&Activities{ledger: l}).turnRequest(context.Background(), run, agent.ModelCall{Turn: turn, Call: agent.Call{NodeID: "main"}})
	require.NoError(t, err)
	return request.Messages
}

// A prompt does not depend on how it is read: some messages and some turns at a time give what all of them at once would.
func TestPromptsOfPages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &library{results: map[string]agent.CommandResult{}}
		for i := range rapid.IntRange(0, 12).Draw(t, "talks") {
			for _, m := range talk().Draw(t, "talk") {
				m.RunID, m.Sequence = fmt.Sprint(m.RunID, i), int64(len(l.messages)+1)
				l.messages = append(l.messages, m)
			}
		}
		turns := rapid.IntRange(0, 40).Draw(t, "turns")
		for turn := 1; turn <= turns; turn++ {
			l.turn(t, turn, rapid.IntRange(0, 4000).Draw(t, "bytes"))
		}
		budget := rapid.IntRange(100, 20_000).Draw(t, "budget")
		got := promptOf(t, l, &agent.History{MaxTokens: budget}, turns+1)
		requirePaired(t, got)

		asked := model.Message{Role: model.User, Text: "go on"}
		w, cut := newWindow(budget, asked), leftOut{turns: turns}
		for turn := turns; turn >= 1; turn-- {
			u := l.unit(turn)
			if turn == turns {
				w.keep(u)
			} else if !w.add(u) {
				break
			}
			cut.turns--
		}
		own := w.prompt()
		w.kept, w.messages = nil, 0
		if w.full {
			cut.messages = len(l.messages)
		}
		for _, u := range units(l.messages) {
			if !w.add(u) {
				cut.messages = len(l.messages) - w.messages
				break
			}
		}
		require.Equal(t, append(prompt("be kind", cut, w.prompt(), asked), own...), got)
		if len(own) > 2 || len(w.kept) > 0 {
			require.LessOrEqual(t, cost(own)+cost(w.prompt())+tokens(asked), budget)
		}
		require.Equal(t, got, promptOf(t, l, &agent.History{MaxTokens: budget}, turns+1), "the same at every reading")
	})
}

// What is read follows the budget, not the length of the conversation or of the run.
func TestPromptsReadWhatTheyNeed(t *testing.T) {
	t.Parallel()
	l := &library{results: map[string]agent.CommandResult{}}
	for i := range 20_000 {
		l.messages = append(l.messages, agent.Message{Role: agent.UserMessage, Content: strings.Repeat("x", 400), Sequence: int64(i + 1)})
	}
	for turn := range 1000 {
		l.turn(t, turn+1, 400)
	}
	promptOf(t, l, &agent.History{MaxTokens: 10_000}, 1)
	require.Equal(t, 1, l.reads, "92 messages of 108 tokens")
	l.reads = 0
	promptOf(t, l, &agent.History{MaxTokens: 10_000}, 1001)
	require.Equal(t, 2*5, l.reads, "79 turns of 126 tokens, 16 at a time, and nothing of the conversation")
}

// A run from before there was a budget sends what it always sent: all words of users and final answers, and all of its turns.
func TestPromptsWithoutABudget(t *testing.T) {
	t.Parallel()
	l := &library{results: map[string]agent.CommandResult{}, messages: []agent.Message{
		{RunID: "r", Role: agent.UserMessage, Content: "hello", Sequence: 2},
		{RunID: "r", Role: agent.AssistantMessage, Content: "let me look", ToolCalls: json.RawMessage(`[{"id":"x","name":"put","arguments":"{}"}]`), CommandID: "main#1", Sequence: 4},
		{RunID: "r", Role: agent.ToolMessage, Content: "4", ToolCallID: "x", CommandID: "main#1.0", Sequence: 6},
		{RunID: "r", Role: agent.AssistantMessage, Content: "it is 4", Sequence: 9},
	}}
	want := []model.Message{{Role: model.System, Text: "be kind"}, {Role: model.User, Text: "hello"}, {Role: model.Assistant, Text: "it is 4"}, {Role: model.User, Text: "go on"}}
	for turn := 1; turn <= 40; turn++ {
		l.turn(t, turn, 30_000)
		want = append(want, l.unit(turn)[0].Message, l.unit(turn)[1].Message)
	}
	require.Equal(t, want, promptOf(t, l, nil, 41))

	var old agent.Definition
	require.NoError(t, json.Unmarshal([]byte(`{"agent": "a", "mode": "react", "model": {"name": "m"}, "tools": [], "limits": {}}`), &old))
	require.Nil(t, old.History, "a definition of then")
}
