package worker_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// lastMoment is called when an execution has written what the next one begins with, and has not ended yet.
type lastMoment struct {
	converter.DataConverter
	next func(agent.RunInput)
}

func (l lastMoment) ToPayloads(values ...any) (*commonpb.Payloads, error) {
	if len(values) == 1 {
		if in, ok := values[0].(agent.RunInput); ok && in.Carried != nil {
			l.next(in)
		}
	}
	return l.DataConverter.ToPayloads(values...)
}

// TestASignalInTheLastMomentOfAHandOver: a run is handed over while it is paused, and the end of the pause comes after that was
// written. Temporal refuses to end the execution then, and has it look again: the signal stands beside the reply that the execution
// ends with, and has to be read before.
func TestASignalInTheLastMomentOfAHandOver(t *testing.T) {
	t.Parallel()
	s := startOn(t, &brief, byScenario{})
	s.stop()
	var run agent.Run
	var unpaused atomic.Bool
	options := client.Options{HostPort: brief.server.Address(), Namespace: brief.server.Namespace(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))}
	options.DataConverter = workflow.DataConverterWithoutDeadlockDetection(lastMoment{converter.GetDefaultDataConverter(), func(in agent.RunInput) {
		if in.PausedBy == 0 || !unpaused.CompareAndSwap(false, true) {
			return
		}
		if _, err := s.ledger.Unpause(t.Context(), "local", run.RunID, "ada", ""); err != nil {
			t.Errorf("unpause: %v", err)
		}
		s.delivered(t)
	}})
	c, err := client.Dial(options)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	s.config.Temporal = c
	s.run(t)

	run = s.accept(t, agent.ModePlan, "wait", &agent.Plan{Nodes: append(lanes(2, 8), agent.Node{ID: "input", Kind: agent.WaitNode, Signal: "go"})})
	s.awaitLog(t, run, func(events []agent.Event) bool {
		return len(types(events, "n0_7")) > 0 && len(types(events, "n1_7")) > 0
	})
	_, err = s.ledger.Pause(t.Context(), "local", run.RunID, "ada", "")
	require.NoError(t, err)
	for i := 0; !unpaused.Load(); i++ { // inputs that nobody waits for let the history grow, one at a time: the end of the pause comes alone
		require.Less(t, i, 100, "it is not handed over while it is paused")
		_, _, err := s.ledger.Signal(t.Context(), "local", run.RunID, agent.Input{Name: "noise", InputID: fmt.Sprint(i), Value: json.RawMessage("1"), By: "ada"})
		require.NoError(t, err)
		s.delivered(t)
		require.Eventually(t, func() bool {
			now, err := s.temporal.DescribeWorkflowExecution(t.Context(), run.RunID, "")
			return err == nil && now.PendingWorkflowTask == nil && len(now.PendingActivities) == 0
		}, time.Minute, 5*time.Millisecond)
	}
	_, _, err = s.ledger.Signal(t.Context(), "local", run.RunID, agent.Input{Name: "go", InputID: "1", Value: json.RawMessage("1"), By: "ada"})
	require.NoError(t, err)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	for _, history := range s.chain(t, run) {
		requireReplays(t, history)
	}
	require.Empty(t, s.verify(t, run).Differences)
}
