package worker_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// The histories of forks: of a loop in its second turn, with a call that the source has made after that; and of a plan of which
// one node has ended, with one that was charged already.
func TestForkedHistories(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	s := start(t, chargeLoop(asked, nil), external.tool(t))
	for _, c := range []struct {
		name     string
		mode     agent.Mode
		plan     *agent.Plan
		at       string // the command after whose commit it is forked
		executed map[string]int
	}{
		{name: "forked react", mode: agent.ModeReact, at: "main#1.0", executed: map[string]int{"main#2": 1, "main#3": 1}},
		{name: "forked plan", mode: agent.ModePlan, plan: &agent.Plan{Nodes: []agent.Node{double("a", "1", nil),
			double("b", `{"$from": "/nodes/a/output/n"}`, func(n *agent.Node) { n.Tool = "charge" })}}, at: "a", executed: map[string]int{agent.AnswerNodeID: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := s.accept(t, c.mode, "charge 2 3", c.plan)
			f := forkOf(run, at(t, s.events(t, run), agent.CommandCommitted, c.at))
			fork := s.fork(t, f)
			events := s.events(t, fork)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
			require.Contains(t, eventTypes(events), agent.RunForked)
			require.Equal(t, c.executed, s.executed(fork, asked, external))
			history := s.history(t, fork)
			requireClosed(t, history, agent.RunCompleted)
			requireReplays(t, history)
			requireAudits(t, s, fork)
			s.requireVerifies(t, fork)
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, strings.ReplaceAll(c.name, " ", "_")+".json"), history)
			}
		})
	}
}
