package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"runledger/agent"
	"runledger/model"
	"runledger/replay"
	"runledger/tool"
	"runledger/workflows"
)

// workshop is a tool that fails until somebody mends it for a run, and counts what it has done by key.
type workshop struct {
	mu     sync.Mutex
	mended map[string]bool
	done   map[string]int
}

func (w *workshop) mend(run agent.Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mended[run.RunID] = true
}

func (w *workshop) tool(t testing.TB) tool.Tool {
	t.Helper()
	made, err := tool.New(tool.Spec{Name: "fragile", Description: "works once it is mended", Effect: agent.Idempotent},
		func(_ context.Context, in number, call tool.Call) (number, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !w.mended[call.RunID] {
				return number{}, agent.Failed(agent.CodeToolFailed, "it is broken")
			}
			w.done[call.Key]++
			return number{N: in.N + 1}, nil
		})
	require.NoError(t, err)
	return made
}

func newWorkshop() *workshop { return &workshop{mended: map[string]bool{}, done: map[string]int{}} }

// fragile is a node that calls the workshop's tool.
func fragile(id, n string, after ...string) agent.Node {
	return agent.Node{ID: id, Kind: agent.ToolNode, Tool: "fragile", Args: json.RawMessage(`{"n": ` + n + `}`), DependsOn: after}
}

func (s *stack) resume(t testing.TB, run agent.Run) agent.Resumed {
	t.Helper()
	resumed, err := s.ledger.Resume(t.Context(), agent.Resume{Owner: "local", RunID: run.RunID, By: "ada", Reason: "mended"})
	require.NoError(t, err)
	return resumed
}

// ended waits until a run's execution of an epoch has ended, and returns its log.
func (s *stack) ended(t testing.TB, run agent.Run, epoch int) []agent.Event {
	t.Helper()
	return s.awaitLog(t, run, func(events []agent.Event) bool {
		last := events[len(events)-1]
		return last.Type.Terminal() && last.Epoch == epoch
	})
}

// chain is the histories of a run's executions, the oldest first, all of them closed. Each says in its memo which one it follows.
func (s *stack) chain(t testing.TB, run agent.Run) []*historypb.History {
	t.Helper()
	s.history(t, run) // the newest one is closed
	histories, err := replay.FetchHistories(t.Context(), s.temporal, run.RunID)
	require.NoError(t, err)
	for i, j := 0, len(histories)-1; i < j; i, j = i+1, j-1 {
		histories[i], histories[j] = histories[j], histories[i]
	}
	return histories
}

// requireResumed holds a resumed run to its record, which has ended: verify with both witnesses, an audit, a replay of every
// execution, and the state of the workflow.
func (s *stack) requireResumed(t testing.TB, run agent.Run, executions int) {
	t.Helper()
	chain := s.chain(t, run)
	require.Len(t, chain, executions)
	for _, history := range chain {
		requireReplays(t, history)
	}
	v := s.verify(t, run)
	require.Empty(t, v.Differences)
	require.Equal(t, agent.WitnessAgrees, v.Temporal.Status)
	require.Empty(t, v.Temporal.Detail)
	require.Equal(t, executions, v.Temporal.Executions)
	requireAudits(t, s, run)

	fold, err := s.ledger.State(t.Context(), run.RunID)
	require.NoError(t, err)
	query, err := s.temporal.QueryWorkflow(t.Context(), run.RunID, "", agent.StateQuery)
	require.NoError(t, err)
	var snapshot workflows.Snapshot
	require.NoError(t, query.Get(&snapshot))
	state := snapshot.State
	require.Equal(t, []any{fold.Started, fold.Finished, fold.Failed, fold.Skipped, fold.Cursor, fold.Status, fold.Epoch},
		[]any{state.Started, state.Finished, state.Failed, state.Skipped, state.Cursor, state.Status, state.Epoch}, "the state is the fold of the record")
}

// loop is a react model: it asks for two tools in its first turn, for one in its second, and says in its third what they gave.
func loop(first, second model.ToolCall) func(context.Context, model.Request) (model.Reply, error) {
	return func(_ context.Context, req model.Request) (model.Reply, error) {
		turn := 1
		said := ""
		for _, m := range req.Messages {
			switch m.Role {
			case model.Assistant:
				turn++
			case model.ToolRole:
				said += m.Text
			default:
			}
		}
		switch turn {
		case 1:
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{first, {ID: "b", Name: "double", Arguments: `{"n": 13}`}}}, nil
		case 2:
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{second}}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: said}, nil
	}
}

// R0-12, R1-9: a resume gives the same from the latest checkpoint and from the events alone.
func TestAResumeNeedsNoCheckpoint(t *testing.T) {
	t.Parallel()
	atWork := make(chan struct{}, 2)
	shop := newWorkshop()
	broken := map[string]bool{}
	var mu sync.Mutex
	s := start(t, byScenario{
		"loop": func(ctx context.Context, req model.Request) (model.Reply, error) {
			mu.Lock()
			fails := broken["model"]
			mu.Unlock()
			reply, err := loop(model.ToolCall{ID: "a", Name: "double", Arguments: `{"n": 1}`}, model.ToolCall{ID: "c", Name: "double", Arguments: `{"n": 2}`})(ctx, req)
			if fails && reply.Finish == model.FinishStop {
				return model.Reply{}, agent.Failed(agent.CodeModelFailed, "the model is broken")
			}
			return reply, err
		},
		"stopped": func(ctx context.Context, req model.Request) (model.Reply, error) {
			mu.Lock()
			waits := broken["stopped"]
			mu.Unlock()
			reply, err := loop(model.ToolCall{ID: "a", Name: "double", Arguments: `{"n": 1}`}, model.ToolCall{ID: "c", Name: "double", Arguments: `{"n": 2}`})(ctx, req)
			if waits && reply.Finish == model.FinishStop {
				atWork <- struct{}{}
				<-ctx.Done()
				return model.Reply{}, model.ContextError(ctx)
			}
			return reply, err
		},
	}, shop.tool(t))
	broken["model"], broken["stopped"] = true, true
	linear := []agent.Node{double("a", "1", nil), double("h", "13", func(n *agent.Node) { n.OnError = agent.OnErrorContinue }, "a"),
		fragile("b", `{"$from": "/nodes/a/output/n"}`, "h"), double("c", `{"$from": "/nodes/b/output/n"}`, nil)}
	for _, c := range []struct {
		name   string
		mode   agent.Mode
		nodes  []agent.Node
		during func(run agent.Run)
		output string
		step   int
	}{
		{name: "a failed plan", mode: agent.ModePlan, nodes: linear, output: "done", step: 2},
		{name: "loop", mode: agent.ModeReact, output: `{"n":2}The call failed. TOOL_FAILED: bad luck{"n":4}`},
		{name: "stopped", mode: agent.ModeReact, during: func(run agent.Run) {
			<-atWork
			s.cancel(t, run)
		}, output: `{"n":2}The call failed. TOOL_FAILED: bad luck{"n":4}`},
	} {
		var outcomes [2]struct {
			types  []agent.EventType
			output string
		}
		for i := range outcomes {
			var plan *agent.Plan
			if c.nodes != nil {
				plan = &agent.Plan{Nodes: c.nodes}
			}
			run := s.acceptBy(t, c.mode, "scenario "+c.name, plan, func(a *agent.Acceptance) { a.Run.Definition.Limits.MaxParallel = 1 })
			if c.during != nil {
				c.during(run)
			}
			s.events(t, run)
			if i == 1 {
				s.sql(t, `DELETE FROM execution_checkpoints WHERE run_id = '`+run.RunID+`'`)
			}
			shop.mend(run)
			mu.Lock()
			broken = map[string]bool{}
			mu.Unlock()
			require.Equal(t, c.step, s.resume(t, run).Step)
			events := s.ended(t, run, 2)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s: %s", c.name, events[len(events)-1].Data)
			outcomes[i].types = eventTypes(events)
			read, _, err := s.ledger.WorkerRun(t.Context(), run.RunID)
			require.NoError(t, err)
			outcomes[i].output = *read.FinalOutput
			if i == 0 {
				s.requireResumed(t, run, 2)
			}
			mu.Lock()
			broken = map[string]bool{"model": true, "stopped": true}
			mu.Unlock()
		}
		require.Equal(t, c.output, outcomes[0].output, c.name)
		require.Equal(t, outcomes[0], outcomes[1], c.name)
	}
}

// TestRandomPlansAreResumed: plans that have failed, were cancelled, or lost their execution, go on to their end by their rules.
func TestRandomPlansAreResumed(t *testing.T) {
	t.Parallel()
	shop := newWorkshop()
	s := start(t, byScenario{}, shop.tool(t))
	for seed := range uint64(18) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(2, seed)) //nolint:gosec // the same plans every time
			plan := randomPlan(r)
			for i := range plan.Nodes {
				if r.IntN(2) == 0 {
					plan.Nodes[i].Tool = "fragile"
				}
				if r.IntN(4) == 0 {
					plan.Nodes[i].Retry = &agent.Retry{MaxAttempts: 2}
				}
			}
			run := s.accept(t, agent.ModePlan, "random", plan)
			stop := r.IntN(8)
			switch seed % 3 {
			case 1:
				s.awaitLog(t, run, func(events []agent.Event) bool { return len(events) > stop+4 || events[len(events)-1].Type.Terminal() })
				_, _ = s.ledger.RequestCancel(t.Context(), "local", run.RunID, "ada", "enough") // it may have ended
			case 2:
				s.awaitLog(t, run, func(events []agent.Event) bool { return len(events) > stop+4 || events[len(events)-1].Type.Terminal() })
				_ = s.temporal.TerminateWorkflow(t.Context(), run.RunID, "", "by an operator")
				_, err := s.ledger.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1, By: "recover"})
				stands, _, readErr := s.ledger.WorkerRun(t.Context(), run.RunID)
				require.NoError(t, readErr)
				if err != nil && stands.Status.Terminal() { // it has ended before
					break
				}
				require.NoError(t, err)
				s.ended(t, run, 2)
			}
			events := s.events(t, run)
			epoch := events[len(events)-1].Epoch
			shop.mend(run)
			for events[len(events)-1].Type != agent.RunCompleted && epoch < 6 {
				epoch++
				s.resume(t, run)
				events = s.ended(t, run, epoch)
				if s.counting.failsAlways(plan, events) {
					break
				}
			}
			requireResumedRules(t, events)
			s.requireResumed(t, run, epoch)
		})
	}
}

// failsAlways reports whether a run has failed of what nobody mends: bad luck, or a final node that was skipped because of it.
func (c *counting) failsAlways(plan *agent.Plan, events []agent.Event) bool {
	last := events[len(events)-1]
	if last.Type != agent.RunFailed {
		return false
	}
	var d agent.RunFailedData
	if json.Unmarshal(last.Data, &d) != nil || d.Error == nil {
		return true
	}
	node, ok := plan.Node(d.Error.NodeID)
	return !ok || node.Tool == "double" || d.Error.CommandID == ""
}

// requireResumedRules: over all epochs a command is committed once, nothing is said of a node that has finished, and every epoch
// has one end, but for those whose execution was lost.
func requireResumedRules(t testing.TB, events []agent.Event) {
	t.Helper()
	committed, emitted, finished := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, e := range events {
		require.EqualValues(t, i+1, e.Sequence)
		require.False(t, e.NodeID != "" && finished[e.NodeID] && e.Type != agent.CheckpointSaved, "%s of %s, which has finished", e.Type, e.NodeID)
		switch e.Type {
		case agent.CommandEmitted:
			require.False(t, emitted[e.CommandID], "%s is emitted once", e.CommandID)
			emitted[e.CommandID] = true
		case agent.CommandCommitted:
			require.False(t, committed[e.CommandID], "%s is committed once", e.CommandID)
			committed[e.CommandID] = true
		case agent.NodeFinished:
			finished[e.NodeID] = true
		case agent.RunReopened:
			require.Equal(t, events[i-1].Epoch+1, e.Epoch)
		default:
		}
		if e.Type.Terminal() && i < len(events)-1 {
			require.Equal(t, agent.RunReopened, events[i+1].Type)
		}
	}
}

func checksOf(v agent.Verification) (checks []agent.Check) {
	for _, d := range v.Differences {
		checks = append(checks, d.Check)
	}
	return checks
}

// The executions of a run stand one after the other under its id; each says which one it follows.
func TestTheChainOfExecutions(t *testing.T) {
	t.Parallel()
	shop := newWorkshop()
	s := start(t, byScenario{}, shop.tool(t))
	run := s.accept(t, agent.ModePlan, "chain", &agent.Plan{Nodes: []agent.Node{double("a", "1", nil), fragile("b", "1", "a")}})
	s.events(t, run)
	s.resume(t, run)
	s.ended(t, run, 2)
	shop.mend(run)
	s.resume(t, run)
	events := s.ended(t, run, 3)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	chain := s.chain(t, run)
	require.Len(t, chain, 3)
	var ids []string
	for i, history := range chain {
		started := history.Events[0].GetWorkflowExecutionStartedEventAttributes()
		require.Equal(t, fmt.Sprint(i+1), string(started.GetMemo().GetFields()["epoch"].GetData()))
		if i > 0 {
			require.Equal(t, `"`+ids[i-1]+`"`, string(started.GetMemo().GetFields()["resumed_from"].GetData()))
			require.Contains(t, string(history.Events[0].GetUserMetadata().GetSummary().GetData()), fmt.Sprintf("epoch %d", i+1))
		}
		ids = append(ids, started.GetOriginalExecutionRunId())
		last := history.Events[len(history.Events)-1].EventType
		require.Equal(t, map[bool]enumspb.EventType{true: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED, false: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED}[i == 2], last)
	}
	s.requireResumed(t, run, 3)
	require.Equal(t, 1, s.counting.calls[run.RunID+"/a"])
	require.Equal(t, 1, shop.done[run.RunID+"/b"])

	// A hand that covers its tracks in the chain is found by what run_reopened says of the record, and by Temporal.
	s.sql(t, `UPDATE agent_execution_events SET event_data = jsonb_set(event_data, '{from_step}', '2') WHERE event_type = 'run_reopened' AND epoch = 3`)
	v := s.verify(t, run)
	require.False(t, v.OK)
	require.Contains(t, checksOf(v), agent.CheckFold)
	require.Contains(t, checksOf(v), agent.CheckChain)
}
