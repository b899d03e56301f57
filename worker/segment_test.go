package worker_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"runledger/agent"
)

// fast puts a run in the fast lane.
func fast(a *agent.Acceptance) { a.Run.Definition.Lane = agent.FastLane }

func doubling(id string, n int, after ...string) agent.Node {
	return agent.Node{ID: id, Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(fmt.Sprintf(`{"n": %d}`, n)), DependsOn: after}
}

// segmentsOf counts what a history holds of segments and of tool calls with an activity of their own.
func segmentsOf(h *historypb.History) (segments, calls int) {
	for _, e := range h.Events {
		switch e.EventType {
		case enumspb.EVENT_TYPE_MARKER_RECORDED:
			if e.GetMarkerRecordedEventAttributes().GetMarkerName() == "LocalActivity" {
				segments++
			}
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
			if e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName() == string(agent.CallTool) {
				calls++
			}
		default:
		}
	}
	return segments, calls
}

// lines are the events of each command and of each node, in their order; those that run side by side share none.
func lines(events []agent.Event) map[string]string {
	of := map[string]string{}
	for _, e := range events {
		of[e.NodeID+" "+e.CommandID] += fmt.Sprintf("%s %d\n", e.Type, e.Attempt)
	}
	return of
}

// A run leaves the same record in both lanes, calls each tool as often, and in the fast lane Temporal has no activity for a tool's call.
func TestHistoriesOfTheFastLane(t *testing.T) {
	t.Parallel()
	bad := doubling("b", 13)
	bad.OnError = agent.OnErrorContinue
	retried := doubling("b", 13)
	retried.OnError, retried.Retry = agent.OnErrorSkip, &agent.Retry{MaxAttempts: 2}
	for name, c := range map[string]struct {
		plan            *agent.Plan
		segments, calls int
	}{
		"chain":  {&agent.Plan{Nodes: []agent.Node{doubling("a", 1), doubling("b", 2, "a"), doubling("c", 3, "b"), doubling("d", 4, "c"), doubling("e", 5, "d")}}, 1, 0},
		"beside": {&agent.Plan{Nodes: []agent.Node{doubling("a", 1), doubling("b", 2), doubling("c", 3), doubling("d", 4, "a", "b", "c")}}, 1, 0},
		"fails":  {&agent.Plan{Nodes: []agent.Node{doubling("a", 1), bad, doubling("c", 3, "b")}}, 2, 0},
		"again":  {&agent.Plan{Nodes: []agent.Node{doubling("a", 1), retried, doubling("c", 3, "b"), doubling("d", 3, "a")}}, 2, 1},
		"turns":  {nil, 2, 0},
		"output": {&agent.Plan{Output: "sum", Nodes: []agent.Node{doubling("a", 1), doubling("sum", 2, "a"), doubling("b", 3)}}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, byScenario{"fast": turnsOf("double", []int{1, 2, 3}, []int{4, 13})})
			mode, input := agent.ModePlan, "go"
			if c.plan == nil {
				mode, input = agent.ModeReact, "scenario fast"
			}
			slow := s.accept(t, mode, input, c.plan)
			inLane := s.acceptBy(t, mode, input, c.plan, fast)
			want, got := s.events(t, slow), s.events(t, inLane)
			require.Equal(t, lines(want), lines(got))
			calls := map[string]int{}
			s.counting.mu.Lock()
			for key, n := range s.counting.calls {
				run, command, _ := strings.Cut(key, "/")
				calls[command] += map[bool]int{true: n, false: -n}[run == slow.RunID]
			}
			s.counting.mu.Unlock()
			for command, n := range calls {
				require.Zero(t, n, command)
			}
			history := s.history(t, inLane)
			requireClosed(t, history, got[len(got)-1].Type)
			requireReplays(t, history)
			requireAudits(t, s, inLane)
			s.requireVerifies(t, inLane)
			segments, own := segmentsOf(history)
			require.Equal(t, c.calls, own)
			require.LessOrEqual(t, segments, c.segments+1, "and the end of the run")
			require.Greater(t, segments, 1)
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, "fast_"+name+".json"), history)
			}
		})
	}
}
