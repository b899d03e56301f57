package worker_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// R2-12, R0-12, R0-13: an execution that starts from the record after an earlier one was lost, with its history, in the middle
// of the plan, makes no call that the earlier one has made: no plan, no model call, no tool call.
func TestANewExecutionMakesNoEarlierCall(t *testing.T) {
	t.Parallel()
	var plans, answers atomic.Int32
	working, release := make(chan struct{}, 2), make(chan struct{})
	slow, err := tool.New(tool.Spec{Name: "slow", Description: "takes its time", Effect: agent.Idempotent},
		func(ctx context.Context, in number, _ tool.Call) (number, error) {
			working <- struct{}{}
			select {
			case <-release:
				return in, nil
			case <-ctx.Done():
				return number{}, agent.Unknown(agent.CodeToolFailed, "%w", context.Cause(ctx))
			}
		})
	require.NoError(t, err)
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		if req.SchemaName == "plan" {
			plans.Add(1)
			return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}},
				{"id": "say", "kind": "llm", "prompt": "say", "inputs": {"a": {"$from": "/nodes/a/output"}}},
				{"id": "c", "kind": "tool", "tool": "slow", "args": {"n": 3}, "depends_on": ["say"]},
				{"id": "d", "kind": "tool", "tool": "double", "args": {"n": {"$from": "/nodes/c/output/n"}}}]}`}, nil
		}
		answers.Add(1)
		return model.Reply{Finish: model.FinishStop, Text: "said"}, nil
	}), slow)
	run := s.accept(t, agent.ModePlan, "do it", nil)
	<-working
	require.NoError(t, s.temporal.TerminateWorkflow(t.Context(), run.RunID, "", "lost with its history"))

	db, err := pgx.Connect(t.Context(), s.url)
	require.NoError(t, err)
	defer func() { _ = db.Close(context.Background()) }()
	_, err = db.Exec(t.Context(), `UPDATE commands SET lease_until = now() WHERE state = 'dispatched'`) // instead of waiting for it to be over
	require.NoError(t, err)
	resumed, err := s.ledger.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1, By: "recover", Reason: "Temporal was lost"})
	require.NoError(t, err)
	require.Equal(t, 2, resumed.Step)
	require.Equal(t, 2, resumed.Run.Epoch)
	<-working // it goes on where the other one was
	close(release)

	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	require.EqualValues(t, 1, plans.Load())
	require.EqualValues(t, 2, answers.Load(), "the node say once, and the answer")
	require.Equal(t, map[string]int{run.RunID + "/a": 1, run.RunID + "/d": 1}, s.counting.calls)
	for _, node := range []string{"a", "say"} {
		require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved},
			types(events, node), "finished nodes are silent")
	}
}
