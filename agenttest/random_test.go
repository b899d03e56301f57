package agenttest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model/scripted"
	"runledger/tool"
)

// TestRandomRunsAndCrashes: whatever the plan, and wherever workers are lost, a committed command is not executed again, an
// external one is executed once at most, the run comes to an end, and its record alone gives it again.
func TestRandomRunsAndCrashes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan := &agent.Plan{}
		effect := rapid.SampledFrom([]agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External}).Draw(rt, "effect")
		for i := range rapid.IntRange(1, 6).Draw(rt, "nodes") {
			n := node(fmt.Sprintf("n%d", i), fmt.Sprintf(`{"n": %d}`, rapid.SampledFrom([]int{1, 2, 3, 13}).Draw(rt, "argument")), nil)
			n.OnError = rapid.SampledFrom([]agent.OnError{agent.OnErrorFail, agent.OnErrorContinue, agent.OnErrorSkip}).Draw(rt, "on_error")
			for k := range i {
				if rapid.IntRange(0, 2).Draw(rt, "depends") == 0 {
					n.DependsOn = append(n.DependsOn, fmt.Sprintf("n%d", k))
				}
			}
			plan.Nodes = append(plan.Nodes, n)
		}
		h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(effect)}, Plan: plan, Model: scripted.Replies(scripted.Text("done").Forever()),
			Limits: agent.Limits{MaxParallel: rapid.IntRange(1, 4).Draw(rt, "max_parallel")}})
		h.AllowMissedCrashes()
		for range rapid.IntRange(0, 4).Draw(rt, "crashes") {
			command := rapid.SampledFrom(append([]agent.Node{{ID: agent.AnswerNodeID}}, plan.Nodes...)).Draw(rt, "command").ID
			h.Crash(command, rapid.SampledFrom([]agent.Boundary{agent.BeforeBegin, agent.AfterBegin, agent.AfterEffect, agent.AfterCommit}).Draw(rt, "at"))
		}
		res := h.Run("go")
		res.RequireReplays()
		executed, decided := map[string]int{}, map[string]bool{}
		for _, c := range res.ToolCalls {
			executed[c.CommandID]++
		}
		for _, e := range res.Events {
			switch e.Type {
			case agent.CommandEmitted, agent.AttemptDiscarded:
				require.False(rt, decided[e.CommandID], "%s is dispatched after it was decided", e.CommandID)
			case agent.CommandCommitted, agent.CommandFailedType:
				require.False(rt, decided[e.CommandID], "%s is decided once", e.CommandID)
				decided[e.CommandID] = true
			default:
			}
		}
		for _, c := range res.Commands {
			require.LessOrEqual(rt, executed[c.CommandID], c.Dispatches)
			if effect == agent.External {
				require.LessOrEqual(rt, executed[c.CommandID], 1)
			}
		}
	})
}
