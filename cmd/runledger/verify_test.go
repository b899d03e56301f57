package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestVerifyReport(t *testing.T) {
	v := agent.Verification{RunID: "r", OK: true, Checked: agent.Checked{Events: 21, Commands: 3, Results: 3, Checkpoints: 3},
		Temporal: agent.Corroborated{Status: agent.WitnessAgrees, Epochs: 1, Executions: 4, HandOvers: 3, Activities: 5}}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, `run r: no difference
  ledger: 21 events, 3 commands, 3 results, 3 checkpoints
  Temporal: agrees (1 epoch, 4 executions, 5 activities)
`},
		{func() { v.Temporal = agent.Corroborated{Status: agent.WitnessGone, Detail: "no history"} }, `run r: no difference
  ledger: 21 events, 3 commands, 3 results, 3 checkpoints
  Temporal: a witness is missing, no history is kept; no history
`},
		{func() {
			v.OK, v.Temporal = false, agent.Corroborated{Status: agent.WitnessDiffers, Epochs: 2, Executions: 1, Activities: 1}
			v.Differences = []agent.Difference{{Check: agent.CheckResult, Sequence: 7, CommandID: "a", Expected: "x", Found: "y"},
				{Check: agent.CheckChain, From: 4, Sequence: 9, Activity: "CallTool", Expected: "x", Found: "y"},
				{Check: agent.CheckRow, NodeID: "n", Expected: "x", Found: "y"}}
		}, `run r: differences: 3
  event 7, a: result: expected x, found y
  events 4 to 9, CallTool: chain: expected x, found y
  rows, n: row: expected x, found y
  ledger: 21 events, 3 commands, 3 results, 3 checkpoints
  Temporal: DIFFERS (2 epochs, 1 execution, 1 activity)
`},
	} {
		c.change()
		var out bytes.Buffer
		report(&out, v)
		require.Equal(t, c.want, out.String())
	}
}

func TestVerifyExitStatus(t *testing.T) {
	answer, status := "", http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/agent/runs/r/verify" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	cmd := verifyCmd{apiFlags: apiFlags{URL: server.URL}, RunID: "r"}
	answer = `{"run_id": "r", "ok": true, "temporal": {"status": "gone"}}`
	require.NoError(t, cmd.Run(t.Context()))
	answer = `{"run_id": "r", "ok": false, "differences": [{"check": "fold"}], "temporal": {"status": "agrees"}}`
	require.Equal(t, exitError(3), cmd.Run(t.Context()))
	answer, status = `{"status": 404, "title": "Not Found", "detail": "there is no run r"}`, http.StatusNotFound
	require.ErrorContains(t, cmd.Run(t.Context()), "there is no run r")
}

// What was not compared is not passed off as agreement.
func TestReportSaysWhatIsNoLongerKept(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	report(&out, agent.Verification{RunID: "r", OK: true, Removed: &agent.Removed{EventsAt: &at, PayloadsAt: &at},
		Temporal: agent.Corroborated{Status: agent.WitnessNotCompared, Detail: "the run's events are no longer kept"}})
	require.Contains(t, out.String(), "its events were removed at 2026-11-21T12:00:00Z: only the conversation's numbers and chain were checked\n")
	require.Contains(t, out.String(), "Temporal: not compared; the run's events are no longer kept\n")
	out.Reset()
	report(&out, agent.Verification{RunID: "r", OK: true, Removed: &agent.Removed{PayloadsAt: &at}, Temporal: agent.Corroborated{Status: agent.WitnessAgrees}})
	require.Contains(t, out.String(), "its payloads were removed at 2026-11-21T12:00:00Z: results were not checked\n")
}
