package workflows_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/workflows"
)

// replay holds a recorded history to the workflow as it is now.
func replay(t testing.TB, path string) error {
	t.Helper()
	replayer := worker.NewWorkflowReplayer()
	replayer.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
	return replayer.ReplayWorkflowHistoryFromJSONFile(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), path)
}

// histories are the files of a folder, by their names.
func histories(t testing.TB, folder string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	files := map[string]string{}
	for _, path := range paths {
		files[strings.TrimSuffix(filepath.Base(path), ".json")] = path
	}
	return files
}

// TestRecordedHistoriesReplay holds every history that was ever released to the workflow. The recordings are made by package
// worker's tests with -update; failure_same_task is put together from one, since which events share a workflow task is luck.
func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	recorded := histories(t, "histories")
	for _, scenario := range []string{"plan", "parallel", "react", "failure", "failure_same_task", "retry", "cancel", "in_doubt"} {
		require.Contains(t, recorded, scenario)
	}
	for name, path := range recorded {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, replay(t, path))
		})
	}
}

// TestBrokenHistoriesDoNotReplay: copies of the plan and react scenarios in which a hand has changed what happened. The error
// says that the workflow is not deterministic, and names the place where it leaves the record.
func TestBrokenHistoriesDoNotReplay(t *testing.T) {
	t.Parallel()
	broken := histories(t, "histories-bad")
	names := map[string]string{
		"wrong_order":      "history event is ActivityTaskScheduled: (ActivityId:18, ActivityType:(Name:CallModel)",
		"missing_activity": "history event is ActivityTaskScheduled: (ActivityId:18, ActivityType:(Name:CallModel)",
		"changed_reply":    "scheduleEventID: 13",
		"missing_finish":   "extra replay command for ScheduleActivityTask: (ActivityId:30, ActivityType:(Name:Finish)",
		"missing_timer":    "replay command is StartTimer: (TimerId:6",
		"changed_type":     "history event is ActivityTaskScheduled: (ActivityId:24, ActivityType:(Name:CallTool)",
		"changed_command":  "a matching Timer command was expected in history event position 18",
	}
	require.Len(t, broken, len(names))
	for name, place := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := replay(t, broken[name])
			require.ErrorContains(t, err, "[TMPRL1100]") // Temporal's name of the rule that a workflow is deterministic
			require.ErrorContains(t, err, place)
		})
	}
}
