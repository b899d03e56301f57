package activities

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/model"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	require.Equal(t, 8, tokens(model.Message{Role: model.User}))
	require.Equal(t, 9, tokens(model.Message{Text: "a"}))
	require.Equal(t, 9, tokens(model.Message{Text: "abcd"}))
	require.Equal(t, 10, tokens(model.Message{Text: "abcde"}))
	require.Equal(t, 8+1, tokens(model.Message{Text: "é"}), "bytes, not characters")
	require.Equal(t, 8+3, tokens(model.Message{ToolCalls: []model.ToolCall{{ID: "id", Name: "name", Arguments: "{}"}}, ToolCallID: "x", ToolName: "yz"}))
}

// talk is a conversation: what the ledger's messages table would hold.
func talk() *rapid.Generator[[]agent.Message] {
	text := rapid.OneOf(rapid.StringN(0, 40, 60), rapid.Map(rapid.IntRange(0, 3000), func(n int) string { return strings.Repeat("é", n) }))
	return rapid.Custom(func(t *rapid.T) []agent.Message {
		var messages []agent.Message
		say := func(m agent.Message) {
			m.Sequence = int64(len(messages) + 1)
			m.Content = text.Draw(t, "text")
			messages = append(messages, m)
		}
		// Two runs side by side, whose messages mix.
		turns := map[string]int{}
		var waiting []agent.Message // answers that are still to come
		for range rapid.IntRange(0, 25).Draw(t, "messages") {
			run := rapid.SampledFrom([]string{"r", "s"}).Draw(t, "run")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				say(agent.Message{RunID: run, Role: agent.UserMessage})
			case 1:
				say(agent.Message{RunID: run, Role: agent.AssistantMessage, CommandID: "main#9"})
			case 2:
				turns[run]++
				id := agent.TurnCommandID("main", turns[run])
				var calls []model.ToolCall
				for k := range rapid.IntRange(1, 3).Draw(t, "calls") {
					call := model.ToolCall{ID: fmt.Sprint(run, turns[run], ".", k), Name: "tool", Arguments: text.Draw(t, "arguments")}
					calls = append(calls, call)
					waiting = append(waiting, agent.Message{RunID: run, Role: agent.ToolMessage, CommandID: agent.TurnToolCommandID("main", turns[run], k), ToolCallID: call.ID})
				}
				raw, err := json.Marshal(calls)
				require.NoError(t, err)
				say(agent.Message{RunID: run, Role: agent.AssistantMessage, CommandID: id, ToolCalls: raw})
			case 3:
				if len(waiting) > 0 {
					i := rapid.IntRange(0, len(waiting)-1).Draw(t, "answer")
					m := waiting[i]
					waiting = slices.Delete(waiting, i, i+1)
					say(m)
				}
			}
		}
		return messages
	})
}

// units groups messages that are in the order of the conversation. The units are the newest first.
func units(messages []agent.Message) (all []unit) {
	var g grouper
	for _, m := range slices.Backward(messages) {
		all = append(all, g.next(m)...)
	}
	return append(all, g.rest()...)
}

// TestWhatWasSaidStandsWhereItWasHeard: a message that came while a model was asked is told after what that said, as the run's own
// prompts told it, however the two were numbered.
func TestWhatWasSaidStandsWhereItWasHeard(t *testing.T) {
	t.Parallel()
	user := func(n int64, steers bool) agent.Message {
		return agent.Message{RunID: "r", Role: agent.UserMessage, Content: fmt.Sprint(n), Sequence: n, Steers: steers}
	}
	assistant := func(n int64, turn int, heard int64) agent.Message {
		return agent.Message{RunID: "r", Role: agent.AssistantMessage, Content: fmt.Sprint(n), Sequence: n, CommandID: agent.TurnCommandID("main", turn), Heard: heard}
	}
	calls := assistant(4, 1, 0)
	calls.ToolCalls = []byte(`[{"id": "x", "name": "look", "arguments": "{}"}]`)
	answer := agent.Message{RunID: "r", Role: agent.ToolMessage, Content: "7", CommandID: "main#1.0", Sequence: 7}
	other := user(10, false)
	other.RunID = "s"
	var said []string
	for _, u := range slices.Backward(units([]agent.Message{user(2, false), user(3, true), calls, user(5, true), answer, user(8, true), assistant(9, 2, 5),
		other, user(11, true), assistant(12, 3, 8)})) {
		for _, p := range u {
			said = append(said, p.Text)
		}
	}
	require.Equal(t, []string{"2", "4", "7", "3", "5", "9", "8", "10", "12", "11"}, said)
}

// fill puts units into a window, the newest in any case.
func fill(all []unit, budget int) *window {
	w := newWindow(budget)
	for i, u := range all {
		if i == 0 {
			w.keep(u)
		} else if !w.add(u) {
			break
		}
	}
	return w
}

func cost(messages []model.Message) (n int) {
	for _, m := range messages {
		n += tokens(m)
	}
	return n
}

// requirePaired says that every call of a model is followed by the answers to it, and every answer by its call's turn.
func requirePaired(t *rapid.T, messages []model.Message) {
	for i := 0; i < len(messages); i++ {
		require.NotEqual(t, model.ToolRole, messages[i].Role, "an answer without its call")
		for _, c := range messages[i].ToolCalls {
			i++
			require.Less(t, i, len(messages), "a call without its answer")
			require.Equal(t, model.ToolRole, messages[i].Role)
			require.Equal(t, c.ID, messages[i].ToolCallID)
		}
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		messages := talk().Draw(t, "talk")
		budget := rapid.IntRange(1, 6000).Draw(t, "budget")
		all := units(messages)
		w := fill(all, budget)
		told := w.prompt()
		requirePaired(t, told)

		if len(w.kept) > 1 {
			require.LessOrEqual(t, cost(told), budget)
		}
		require.Len(t, told, w.messages)
		require.Equal(t, w.full, len(w.kept) < len(all), "what is left out is said")
		for i, u := range w.kept { // the newest, in their order, with all that is not a tool's
			require.Len(t, u, len(all[i]))
			for k, p := range u {
				whole := all[i][k].Message
				if p.Text != whole.Text {
					require.Equal(t, model.ToolRole, p.Role, "only tool results are cut")
					require.Contains(t, p.Text, fmt.Sprintf(" of %d bytes]", len(whole.Text)), "and never silently")
					require.Less(t, len(p.Text), len(whole.Text))
					require.True(t, utf8.ValidString(p.Text))
					p.Text = whole.Text
				}
				require.Equal(t, whole, p.Message)
			}
		}

		older := talk().Draw(t, "older")
		for i := range older {
			older[i].RunID += " of before"
		}
		longer := fill(units(append(older, messages...)), budget).prompt()
		require.GreaterOrEqual(t, len(longer), len(told))
		if len(all) > 0 {
			require.Equal(t, told, longer[len(longer)-len(told):], "older messages change nothing about the newer ones")
		}

		again := newWindow(budget)
		for i, u := range w.kept {
			if i == 0 {
				again.keep(u)
			} else {
				require.True(t, again.add(u))
			}
		}
		require.Equal(t, told, again.prompt(), "what fits is left as it is")
	})
}

// A page of the reader ends anywhere. What is read of a text is its beginning.
func TestWindowOfBeginnings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		messages := talk().Draw(t, "talk")
		budget := rapid.IntRange(1, 3000).Draw(t, "budget")
		whole := fill(units(messages), budget).prompt()
		most := newWindow(budget).readBytes()
		for i, m := range messages {
			messages[i].Bytes = len(m.Content)
			if m.Role == agent.ToolMessage { // as left(content, n) reads: characters
				runes := []rune(m.Content)
				messages[i].Content = string(runes[:min(len(runes), most)])
			}
		}
		require.Equal(t, whole, fill(units(messages), budget).prompt())
	})
}

func TestNewestTurnIsCutToFit(t *testing.T) {
	t.Parallel()
	answer := func(n int) piece {
		return piece{Message: model.Message{Role: model.ToolRole, Text: strings.Repeat("x", n)}}
	}
	u := unit{{Message: model.Message{Role: model.Assistant, Text: "look"}}, answer(40_000), answer(300), answer(90_000)}
	w := newWindow(10_000, model.Message{Text: strings.Repeat("u", 4*992)}) // the request costs 1,000
	w.keep(u)
	require.LessOrEqual(t, w.kept[0].tokens(), 9000)
	require.Greater(t, w.kept[0].tokens(), 8990, "no more is cut than must be")
	require.Equal(t, u[2], w.kept[0][2], "what is short stays")
	require.Len(t, w.kept[0][1].Text, len(w.kept[0][3].Text), "the long ones share the room")
	require.Contains(t, w.kept[0][3].Text, " of 90000 bytes]")

	w = newWindow(100, model.Message{Text: strings.Repeat("u", 4000)})
	w.keep(u)
	require.InDelta(t, minResultBytes, len(w.kept[0][3].Text), 5, "something is shown even where nothing fits")
	require.False(t, w.add(unit{{Message: model.Message{Role: model.User}}}))
}

func TestWindowWithoutABudget(t *testing.T) {
	t.Parallel()
	w := newWindow(0)
	long := unit{{Message: model.Message{Role: model.ToolRole, Text: strings.Repeat("x", 1<<20)}}}
	w.keep(long)
	require.True(t, w.add(long))
	require.Equal(t, []unit{long, long}, w.kept)
}
