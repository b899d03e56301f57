package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/worker"
)

func TestPlanRun(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		if req.SchemaName == "plan" {
			return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [
				{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}},
				{"id": "b", "kind": "tool", "tool": "double", "args": {"n": {"$from": "/nodes/a/output/n"}}}]}`}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: "it is 8: " + req.Messages[len(req.Messages)-1].Text}, nil
	}))
	run := s.accept(t, agent.ModePlan, "double 2 twice", nil)
	events := s.events(t, run)
	for i, e := range events {
		require.EqualValues(t, i+1, e.Sequence)
	}
	last := events[len(events)-1]
	require.Equal(t, agent.RunCompleted, last.Type, "%s", last.Data)
	var done agent.RunCompletedData
	require.NoError(t, json.Unmarshal(last.Data, &done))
	require.Contains(t, done.FinalOutput, `{"b":{"n":8}}`)
	require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded, agent.PlanStarted, agent.CommandEmitted, agent.CommandCommitted,
		agent.PlanGenerated, agent.CheckpointSaved}, eventTypes(events[:7]))
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, types(events, "a"))
	require.Equal(t, map[string]int{run.RunID + "/a": 1, run.RunID + "/b": 1}, s.counting.calls)

	checkpoints, err := s.ledger.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	for _, c := range checkpoints {
		folded, err := agent.Fold(events[:c.Sequence-1])
		require.NoError(t, err)
		require.Equal(t, folded, c.State)
	}
}

func eventTypes(events []agent.Event) (names []agent.EventType) {
	for _, e := range events {
		names = append(names, e.Type)
	}
	return names
}

func TestReactRun(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		last := req.Messages[len(req.Messages)-1]
		if last.Role == model.User {
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{
				{ID: "x", Name: "double", Arguments: `{"n": 21}`}, {ID: "y", Name: "double", Arguments: `{"n": 13}`}, {ID: "z", Name: "double", Arguments: `{"n": "no"`}}}, nil
		}
		text := ""
		for _, m := range req.Messages {
			if m.Role == model.ToolRole {
				text += m.ToolCallID + "=" + m.Text + ";"
			}
		}
		return model.Reply{Finish: model.FinishStop, Text: text}, nil
	}))
	run := s.accept(t, agent.ModeReact, "double", nil)
	events := s.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunCompleted, last.Type, "%s", last.Data)
	var done agent.RunCompletedData
	require.NoError(t, json.Unmarshal(last.Data, &done))
	require.Contains(t, done.FinalOutput, `x={"n":42};y=The call failed. TOOL_FAILED: bad luck;z=The call failed. INVALID_ARGUMENTS`)
	messages, _, err := s.ledger.Messages(t.Context(), run.ConversationID, 0, 100)
	require.NoError(t, err)
	require.Len(t, messages, 6) // user, assistant with calls, three answers, assistant
	require.Equal(t, 1, s.counting.calls[run.RunID+"/main#1.0"])
}

func TestFailuresAndTheirHandling(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		text := req.Messages[len(req.Messages)-1].Text
		return model.Reply{Finish: model.FinishStop, Text: text}, nil
	}))
	bad := json.RawMessage(`{"n": 13}`)
	for name, c := range map[string]struct {
		plan *agent.Plan
		end  agent.EventType
		want string
	}{
		"fail": {&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad}}}, agent.RunFailed, "bad luck"},
		"retry": {&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad, Retry: &agent.Retry{MaxAttempts: 2}}}},
			agent.RunFailed, `a~2`},
		"continue": {&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad, OnError: agent.OnErrorContinue}}},
			agent.RunCompleted, "TOOL_FAILED"},
		"skip": {&agent.Plan{Nodes: []agent.Node{
			{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: bad, OnError: agent.OnErrorSkip},
			{ID: "b", Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": 1}`), DependsOn: []string{"a"}},
		}}, agent.RunCompleted, `{\"b\":null}`},
		"reference": {&agent.Plan{Nodes: []agent.Node{
			{ID: "a", Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": 1}`)},
			{ID: "b", Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": {"$from": "/nodes/a/output/m"}}`)},
		}}, agent.RunFailed, "REFERENCE_FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			events := s.events(t, s.accept(t, agent.ModePlan, "x", c.plan))
			last := events[len(events)-1]
			require.Equal(t, c.end, last.Type, "%s", last.Data)
			require.Contains(t, string(last.Data), c.want)
		})
	}
}

func TestTransientFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := 0
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked < 3 {
			return model.Reply{}, agent.Transient(agent.CodeModelUnavailable, "503")
		}
		return model.Reply{Finish: model.FinishStop, Text: "at last"}, nil
	}))
	run := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}}})
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.AttemptDiscarded, agent.AttemptDiscarded, agent.CommandCommitted,
		agent.NodeFinished, agent.CheckpointSaved}, types(events, "say"))
}

func TestCancel(t *testing.T) {
	t.Parallel()
	started := make(chan struct{}, 1)
	s := start(t, blocking{started})
	run := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}}})
	<-started
	_, err := s.ledger.RequestCancel(t.Context(), "local", run.RunID, "me", "enough")
	require.NoError(t, err)
	events := s.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunCancelled, last.Type)
	require.JSONEq(t, `{"by": "me", "reason": "enough"}`, string(last.Data))
	require.Contains(t, eventTypes(events), agent.CommandAbortType)
	var conflict *agent.ConflictError
	_, err = s.ledger.RequestCancel(t.Context(), "local", run.RunID, "me", "again")
	require.True(t, errors.As(err, &conflict))
}

// blocking is a model that answers when its context ends.
type blocking struct{ started chan struct{} }

func (b blocking) Generate(ctx context.Context, _ model.Request, _ func(model.Delta)) (model.Reply, error) {
	b.started <- struct{}{}
	<-ctx.Done()
	return model.Reply{}, agent.Transient(agent.CodeModelUnavailable, "stopped: %w", context.Cause(ctx))
}

func TestAnotherWorkerTakesOver(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[string]int{}
	atWork := make(chan struct{})
	s := start(t, byScenario{"takeover": func(ctx context.Context, req model.Request) (model.Reply, error) {
		mu.Lock()
		asked[req.SchemaName]++
		times := asked[req.SchemaName]
		mu.Unlock()
		switch {
		case req.SchemaName == "plan":
			return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}}]}`}, nil
		case times == 1:
			close(atWork)
			<-ctx.Done()
			return model.Reply{}, model.ContextError(ctx)
		}
		return model.Reply{Text: "done", Finish: model.FinishStop}, nil
	}})
	run := s.accept(t, agent.ModePlan, "scenario takeover", nil)
	<-atWork
	s.stop()
	s.run(t)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	require.Equal(t, map[string]int{"plan": 1, "": 2}, asked, "the plan is not made again; the answer that was cut off is asked for again")
	require.Equal(t, map[string]int{run.RunID + "/a": 1}, s.counting.calls)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.AttemptDiscarded, agent.CommandCommitted, agent.NodeFinished,
		agent.CheckpointSaved}, types(events, agent.AnswerNodeID))
	requireReplays(t, s.history(t, run))
}

func TestConfigThatCannotWork(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, worker.Run(t.Context(), worker.Config{}), "a ledger and a Temporal client are needed")
	s := start(t, byScenario{})
	without := s.config
	without.Tools, without.Published = nil, nil
	require.ErrorContains(t, worker.Run(t.Context(), without), "no tools")
}

func TestStopWhileToolsArePublished(t *testing.T) {
	t.Parallel()
	s := start(t, byScenario{})
	s.stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	published := make(chan struct{})
	again := s.config
	again.Published = published
	require.NoError(t, worker.Run(ctx, again), "a stop is no failure")
	select {
	case <-published:
		t.Fatal("nothing was published")
	default:
	}
	closed := s.config
	closed.Published = published
	s.ledger.Close()
	require.ErrorContains(t, worker.Run(t.Context(), closed), "publish")
}

// R0-23: a run as long as a plan may be is recorded, verified and audited like any other.
func TestALongRun(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		return model.Reply{Text: "done", Finish: model.FinishStop}, nil
	}))
	plan := &agent.Plan{Nodes: []agent.Node{double("n0", "1", nil)}}
	for i := 1; i < agent.MaxPlanNodes-1; i++ { // and the answer
		plan.Nodes = append(plan.Nodes, double(fmt.Sprintf("n%d", i), fmt.Sprint(100+i), nil, fmt.Sprintf("n%d", i-1)))
	}
	s.limits = agent.Limits{MaxSteps: agent.MaxPlanNodes}
	run := s.accept(t, agent.ModePlan, "a long way", plan)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	require.Len(t, s.counting.calls, agent.MaxPlanNodes-1)
	for key, n := range s.counting.calls {
		require.Equal(t, 1, n, key)
	}
	history := s.history(t, run)
	requireReplays(t, history)
	requireAudits(t, s, run)
	s.requireVerifies(t, run)
}
