package replay_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"

	"runledger/agent"
	"runledger/replay"
)

const testdata = "../workflows/testdata"

// recorded are the histories of a folder, by name.
func recorded(t testing.TB, folder string) map[string]*historypb.History {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(testdata, folder, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all := map[string]*historypb.History{}
	for _, path := range paths {
		h, err := replay.ReadHistory(path)
		require.NoError(t, err)
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = h
	}
	return all
}

func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	for name, h := range recorded(t, "histories") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := replay.History(h)
			require.NoError(t, err)
			require.Nil(t, out.Divergence)
			require.Len(t, h.Events, out.Events)
			require.NotEmpty(t, out.RunID)
		})
	}
}

// TestFirstDivergence: every history that was changed by hand names the event at which it shows, as far as the SDK tells it.
func TestFirstDivergence(t *testing.T) {
	t.Parallel()
	want := map[string]replay.Divergence{
		"wrong_order":      {EventID: 18, Recorded: "ActivityTaskScheduled CallModel (llm - node answer)", Wanted: "ScheduleActivityTask CallTool"},
		"missing_activity": {EventID: 18, Recorded: "ActivityTaskScheduled CallModel (llm - node answer)", Wanted: "ScheduleActivityTask CallTool"},
		"changed_type":     {EventID: 24, Recorded: "ActivityTaskScheduled CallTool (llm - node answer)", Wanted: "ScheduleActivityTask CallModel"},
		"missing_timer":    {EventID: 11, Recorded: "ActivityTaskScheduled CallTool (tool double - node a)", Wanted: "StartTimer"},
		"missing_finish":   {EventID: 30, Recorded: "WorkflowExecutionCompleted", Wanted: "ScheduleActivityTask Finish"},
		"changed_reply":    {EventID: 13, Recorded: "ActivityTaskScheduled CallTool (tool double - node main, turn 1)"},
		"changed_command":  {EventID: 18, Recorded: "TimerStarted"},
	}
	broken := recorded(t, "histories-bad")
	require.Len(t, broken, len(want))
	for name, want := range want {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := replay.History(broken[name])
			require.NoError(t, err)
			got := out.Divergence
			require.NotNil(t, got)
			require.Contains(t, got.Message, "[TMPRL1100]")
			want.Message = got.Message
			require.Equal(t, want, *got)
			require.True(t, strings.HasPrefix(got.String(), fmt.Sprintf("event %d: the ", want.EventID)), got.String())
		})
	}
}

// TestAnotherEnd: the SDK's replayer does not look at how the code ends where the history failed or was cancelled.
func TestAnotherEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, want string }{
		"failure": {`"status":"failed"`, `"status":"completed"`, "the history has the run fails: TOOL_FAILED: TOOL_FAILED: bad luck; the code wanted the run ends: completed, event 23"},
		"cancel":  {`"status":"cancelled"`, `"status":"completed"`, "the history has the run is cancelled; the code wanted the run ends: completed, event 8"},
		"plan":    {`"status":"completed","sequence_number":24`, `"status":"completed","sequence_number":25`, "the history has the run ends: completed, event 24; the code wanted the run ends: completed, event 25"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := proto.CloneOf(recorded(t, "histories")[name])
			changed := 0
			for _, e := range h.Events {
				for _, p := range e.GetActivityTaskCompletedEventAttributes().GetResult().GetPayloads() {
					if text := strings.Replace(string(p.Data), c.from, c.to, 1); text != string(p.Data) {
						p.Data, changed = []byte(text), changed+1
					}
				}
			}
			require.Equal(t, 1, changed)
			out, err := replay.History(h)
			require.NoError(t, err)
			require.NotNil(t, out.Divergence)
			require.Equal(t, int64(len(h.Events)), out.Divergence.EventID)
			require.Contains(t, out.Divergence.String(), c.want)
		})
	}
}

// TestPrefixesReplay: a run that is at work has a history too, and the code follows it as far as it goes.
func TestPrefixesReplay(t *testing.T) {
	t.Parallel()
	whole := recorded(t, "histories")["plan"]
	replayed := 0
	for n := 1; n < len(whole.Events); n++ {
		switch whole.Events[n].GetEventType() {
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, enumspb.EVENT_TYPE_TIMER_STARTED, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
			continue // the server writes what a workflow task wants together with its end
		}
		replayed++
		out, err := replay.History(&historypb.History{Events: whole.Events[:n]})
		require.NoError(t, err)
		require.Nil(t, out.Divergence, "%d events", n)
	}
	require.Greater(t, replayed, 10)
}

func TestNotAHistoryOfARun(t *testing.T) {
	t.Parallel()
	_, err := replay.ReadHistory(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorContains(t, err, "none.json")
	_, err = replay.ReadHistory("history_test.go")
	require.ErrorContains(t, err, "read history history_test.go")
	_, err = replay.History(&historypb.History{})
	require.ErrorContains(t, err, "no events")
	whole := recorded(t, "histories")["plan"]
	_, err = replay.History(&historypb.History{Events: whole.Events[1:]})
	require.ErrorContains(t, err, "it is not whole")
	other := proto.CloneOf(whole)
	started := other.Events[0].GetWorkflowExecutionStartedEventAttributes()
	started.WorkflowType.Name = "Other"
	_, err = replay.History(other)
	require.ErrorContains(t, err, "want "+agent.WorkflowName)
	started.WorkflowType.Name = agent.WorkflowName
	started.Input, err = converter.GetDefaultDataConverter().ToPayloads("not an input")
	require.NoError(t, err)
	_, err = replay.History(other)
	require.ErrorContains(t, err, "the history's input")
}

// TestAnotherHandOver: what one execution hands to the next is part of what it did.
func TestAnotherHandOver(t *testing.T) {
	t.Parallel()
	h := recorded(t, "histories")["handover_loop-1"]
	last := h.Events[len(h.Events)-1]
	input := last.GetWorkflowExecutionContinuedAsNewEventAttributes().GetInput().GetPayloads()[0]
	changed := strings.Replace(string(input.Data), `"schedule_no":`, `"schedule_no":1`, 1)
	require.NotEqual(t, string(input.Data), changed)
	input.Data = []byte(changed)
	out, err := replay.History(h)
	require.NoError(t, err)
	require.NotNil(t, out.Divergence)
	require.Equal(t, last.EventId, out.Divergence.EventID)
	require.Contains(t, out.Divergence.Recorded, `"schedule_no":1`)
	require.Contains(t, out.Divergence.Wanted, "the run goes on in a new execution with ")
}

// TestHistoriesFromBeforeHandOversReplay though the server had suggested to continue as new: such an execution went on.
func TestHistoriesFromBeforeHandOversReplay(t *testing.T) {
	t.Parallel()
	for name, h := range recorded(t, "histories") {
		if strings.HasPrefix(name, "handover_") {
			continue
		}
		for _, e := range h.Events {
			if a := e.GetWorkflowTaskStartedEventAttributes(); a != nil {
				a.SuggestContinueAsNew = true
			}
		}
		out, err := replay.History(h)
		require.NoError(t, err)
		require.Nil(t, out.Divergence, "%s: %s", name, out.Divergence)
	}
}
