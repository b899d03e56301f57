package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
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
		require.NoError(t, p.frame(frame{event: agent.Event{Sequence: int64(i + 1), Type: e.typ, RunID: "r", CommandID: "c", Data: raw}}))
	}
	require.Equal(t, `   1  ? c would call pay {"n":1}: approval a is waited for
   2    c is denied by ada
   3    c is expired
   4  ? max_tool_calls is reached: the run waits for more
   6  ? paused by ada
   7    goes on
`, out.String())
}
