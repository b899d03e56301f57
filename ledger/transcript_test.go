package ledger_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestTranscript(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := b.accepted(t, twoStep(t))
	calls := json.RawMessage(`[{"id":"x","name":"put","arguments":"{}"}]`)
	for i, text := range []string{"short", strings.Repeat("é", 5000)} {
		turn, answer := command{run: one, id: fmt.Sprintf("b#%d", i+1), kind: agent.ModelCommand, inner: true}, command{run: one, id: fmt.Sprintf("b#%d.0", i+1), inner: true}
		asks := turn.commit(b.begins(t, turn), `{"text":"let me look"}`)
		asks.Message = &agent.Message{Role: agent.AssistantMessage, Content: "let me look", ToolCalls: calls, CommandID: turn.id}
		_, err := b.Commit(t.Context(), asks)
		require.NoError(t, err)
		gives := answer.commit(b.begins(t, answer), `"x"`)
		gives.Message = &agent.Message{Role: agent.ToolMessage, Content: text, ToolCallID: "x", ToolName: "put", CommandID: answer.id}
		_, err = b.Commit(t.Context(), gives)
		require.NoError(t, err)
	}
	two := b.acceptedIn(t, one.ConversationID, nil)
	b.acceptedIn(t, b.accepted(t, nil).ConversationID, nil) // other conversations are not looked at

	var all []agent.Message
	for before := two.StartSequence; ; {
		page, err := b.Transcript(t.Context(), one.ConversationID, before, 2, 100)
		require.NoError(t, err)
		n, err := b.CountMessages(t.Context(), one.ConversationID, before)
		require.NoError(t, err)
		require.Equal(t, 5-len(all), n)
		all = append(all, page...)
		if len(page) < 2 {
			break
		}
		before = page[1].Sequence
	}
	require.Len(t, all, 5, "what came with the second run is none of its history")
	var told []string
	for _, m := range all {
		told = append(told, fmt.Sprintf("%s %s %d %s", m.Role, m.CommandID, m.Bytes, m.ToolCallID))
	}
	require.Equal(t, []string{"tool b#2.0 10000 x", "assistant b#2 11 ", "tool b#1.0 5 x", "assistant b#1 11 ", "user  18 "}, told)
	require.Equal(t, strings.Repeat("é", 100), all[0].Content, "only its beginning is read")
	require.JSONEq(t, string(calls), string(all[1].ToolCalls))
	require.Equal(t, one.RunID, all[1].RunID)
	require.Equal(t, "short", all[2].Content)
}

func TestResultHeads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	results := map[string]string{"a": `"0123456789"`, "b": `"` + strings.Repeat("large", 20_000) + `"`} // beside the row, and in payloads
	for id, result := range results {
		b.runs(t, command{run: run, id: id, inner: true}, result)
	}
	failed := command{run: run, id: "f", inner: true}
	_, err := b.Conclude(t.Context(), failed.conclude(b.begins(t, failed), agent.CommandFailed, &agent.Error{Code: agent.CodeToolFailed, Message: "no"}))
	require.NoError(t, err)
	b.begins(t, command{run: run, id: "open", inner: true})
	heads, err := b.ResultHeads(t.Context(), run.RunID, []string{"a", "b", "f", "open", "none"}, 8)
	require.NoError(t, err)
	require.Len(t, heads, 3)
	for id, result := range results {
		require.Equal(t, result[:8], string(heads[id].Result))
		require.Equal(t, len(result), heads[id].Bytes)
		require.Equal(t, agent.Committed, heads[id].State)
	}
	require.Equal(t, "TOOL_FAILED: no", heads["f"].Error.Error())
	whole, err := b.ResultHeads(t.Context(), run.RunID, []string{"b"}, 1<<31-1)
	require.NoError(t, err)
	require.Equal(t, results["b"], string(whole["b"].Result))
}
