package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// R3-14, R3-15: a loop takes a checkpoint after every answer of its model that goes on, before and after every tool call, and when
// it ends. Each is the whole state, and small whatever was said.
func TestCheckpointsStaySmall(t *testing.T) {
	t.Parallel()
	const turns, large, small = 12, 60 << 10, 512
	talk, err := tool.New(tool.Spec{Name: "talk", Description: "says a lot", Effect: agent.Idempotent},
		func(_ context.Context, in number, _ tool.Call) (string, error) {
			return strings.Repeat("x", large), nil
		})
	require.NoError(t, err)
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		turn := 1
		for _, m := range req.Messages {
			if m.Role == model.Assistant { // early turns are cut from what the model is asked
				_, _ = fmt.Sscanf(m.ToolCalls[0].ID, "%d", &turn)
				turn++
			}
		}
		reply := model.Reply{Finish: model.FinishStop, Text: strings.Repeat("y", large)}
		if turn < turns {
			reply.Finish = model.FinishTools
			for k := range 2 {
				reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: fmt.Sprintf("%d-%d", turn, k), Name: "talk", Arguments: fmt.Sprintf(`{"n": %d}`, turn)})
			}
		}
		return reply, nil
	}), talk)
	run := s.accept(t, agent.ModeReact, strings.Repeat("z", large), nil)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	checkpoints, err := s.ledger.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	taken := map[agent.CheckpointType]int{}
	for _, c := range checkpoints {
		taken[c.Type]++
		state, err := json.Marshal(c.State)
		require.NoError(t, err)
		require.Less(t, len(state), small, "%s", state)
		fold, err := agent.Fold(events[:c.Sequence-1])
		require.NoError(t, err)
		require.Equal(t, fold, c.State)
	}
	require.Equal(t, map[agent.CheckpointType]int{agent.LLMComplete: turns - 1, agent.ToolStart: 2 * (turns - 1), agent.ToolComplete: 2 * (turns - 1),
		agent.NodeBoundary: 1}, taken)
	in, err := s.ledger.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	crosses, err := json.Marshal(in)
	require.NoError(t, err)
	require.Less(t, len(crosses), 4*small, "nothing that was said crosses Temporal")
}
