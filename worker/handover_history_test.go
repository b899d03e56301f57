package worker_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"runledger/agent"
)

// TestHistoriesOfHandedOverRuns records the executions of a chain, each in a file of its own: a loop that is handed over between two
// turns, and a plan with a node in doubt, which is resolved in a later execution.
func TestHistoriesOfHandedOverRuns(t *testing.T) {
	t.Parallel()
	s := startOn(t, &brief, byScenario{"handover_loop": turns(6)}, mail(t))
	s.limits = agent.Limits{MaxSteps: 100}
	for _, c := range []struct {
		name   string
		mode   agent.Mode
		nodes  []agent.Node
		during func(t *testing.T, run agent.Run)
		events []agent.EventType
	}{
		{name: "handover_loop", mode: agent.ModeReact},
		{name: "handover_doubt", mode: agent.ModePlan, nodes: append(lanes(2, 6), double("doubt", "1", func(n *agent.Node) { n.Tool = "mail" }),
			double("after", `{"$from": "/nodes/doubt/output/n"}`, nil)), during: func(t *testing.T, run agent.Run) {
			s.awaitLog(t, run, func(events []agent.Event) bool {
				ended := 0
				for _, e := range events {
					if e.Type == agent.NodeFinished || e.Type == agent.NodeFailed {
						ended++
					}
				}
				return ended == 12
			})
			require.Greater(t, len(s.executions(t, run)), 1)
			s.awaitActivity(t, run, string(agent.Record)) // the last execution has come to rest
			s.resolve(t, run, "doubt", agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"n": 21}`), By: "ada"})
		}, events: []agent.EventType{agent.CommandDoubtType, agent.CommandResolved}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var plan *agent.Plan
			if c.nodes != nil {
				plan = &agent.Plan{Nodes: c.nodes}
			}
			run := s.accept(t, c.mode, "scenario "+c.name, plan)
			if c.during != nil {
				c.during(t, run)
			}
			events := s.events(t, run)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
			require.Subset(t, eventTypes(events), c.events)
			s.requireHandedOver(t, run)
			chain := s.chain(t, run)
			for i, history := range chain {
				last := history.Events[len(history.Events)-1].EventType
				if i == len(chain)-1 {
					requireClosed(t, history, agent.RunCompleted)
				} else {
					require.Equal(t, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW, last)
				}
				if *update {
					scrub(history)
					requireReplays(t, history)
					write(t, filepath.Join(historyDir, fmt.Sprintf("%s-%d.json", c.name, i+1)), history)
				}
			}
		})
	}
}
