package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/client"
)

// Whoever follows a run in a terminal sees what it waits for, and what was said to that.
func TestPrinterTellsWhatARunWaitsFor(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &printer{out: &out, runID: "r"}
	arguments := agent.ShowValue(json.RawMessage(`{"n":1}`))
	for i, e := range []struct {
		typ  agent.EventType
		data any
	}{
		{agent.ApprovalRequested, agent.ApprovalRequestedData{ApprovalID: "a", Tool: "pay", Arguments: arguments, ExpiresAt: time.Unix(0, 0)}},
		{agent.ApprovalResolved, agent.ApprovalResolvedData{ApprovalID: "a", Outcome: agent.ApprovalDenied, By: "ada"}},
		{agent.ApprovalResolved, agent.ApprovalResolvedData{ApprovalID: "a", Outcome: agent.ApprovalExpired}},
		{agent.LimitReachedType, agent.LimitReachedData{Limit: "max_tool_calls", Parked: true}},
		{agent.LimitReachedType, agent.LimitReachedData{Limit: "max_tool_calls"}}, // the run fails, and says why
		{agent.RunPaused, map[string]string{"by": "ada"}},
		{agent.RunUnpaused, map[string]string{"by": "ada"}},
	} {
		raw, err := json.Marshal(e.data)
		require.NoError(t, err)
		require.NoError(t, p.event(agent.Event{Sequence: int64(i + 1), Type: e.typ, RunID: "r", CommandID: "c", Data: raw}))
	}
	require.Equal(t, `   1  ? c would call pay {"n":1}: approval a is waited for
   2    c is denied by ada
   3    c is expired
   4  ? max_tool_calls is reached: the run waits for more
   6  ? paused by ada
   7    goes on
`, out.String())
}

// An answer stands on a line while it arrives; what replaces it stands on the next one, and what is on record is not said twice.
func TestPrinterPrintsAnAnswerAsItArrives(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &printer{out: &out, runID: "r"}
	says := func(state client.OutputState, attempt int, channel, text, added string, replaces bool) client.Update {
		return client.Update{Output: &client.Output{RunID: "r", CommandID: "say", Attempt: attempt, Channel: channel, Text: text, Added: added, Replaces: replaces, State: state}}
	}
	event := func(u client.Update, n int64, typ agent.EventType, data string) client.Update {
		u.Event = &client.Event{Event: agent.Event{Sequence: n, Type: typ, RunID: "r", CommandID: "say", Attempt: 1, Data: json.RawMessage(data)}}
		return u
	}
	for _, u := range []client.Update{
		says(client.Arriving, 1, "thinking", "hm", "hm", false),
		says(client.Arriving, 1, "text", "It", "It", false),
		says(client.Arriving, 1, "text", "It is", " is", false),
		event(says(client.Discarded, 1, "", "", "", true), 1, agent.AttemptDiscarded, `{"reason":"the worker was lost"}`),
		says(client.Arriving, 2, "text", "So", "", true),
		event(client.Update{}, 2, agent.NodeSkipped, `{"reason":"x"}`),
		says(client.Arriving, 2, "text", "So it", " it", false),
		event(says(client.Committed, 2, "text", "So it is", " is", false), 3, "chat_completed", `{}`),
		event(client.Update{}, 4, agent.RunCompleted, `{"final_output":"So it is"}`),
	} {
		require.NoError(t, p.update(u))
	}
	require.Equal(t, `      say: It is
   1    say attempt 1 does not count: the worker was lost
      say: So
   2  -  skipped: x
      say:  it is
   4  run completed
`, out.String())
}
