package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/converter"

	"runledger/agent"
	"runledger/model"
	"runledger/replay"
	"runledger/tool"
	"runledger/workflows"
)

// turns is a loop's model: it asks for two tools in each of so many turns, then it answers. Its prompts need not hold them all.
func turns(n int) func(context.Context, model.Request) (model.Reply, error) {
	return func(_ context.Context, req model.Request) (model.Reply, error) {
		turn := 1
		for _, m := range req.Messages {
			if m.Role == model.Assistant && len(m.ToolCalls) > 0 {
				_, _ = fmt.Sscanf(m.ToolCalls[0].ID, "%d-", &turn)
				turn++
			}
		}
		if turn > n {
			return model.Reply{Finish: model.FinishStop, Text: "done"}, nil
		}
		reply := model.Reply{Finish: model.FinishTools, Usage: model.Usage{InputTokens: turn, OutputTokens: 1}}
		for k := range 2 {
			reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: fmt.Sprintf("%d-%d", turn, k), Name: "double", Arguments: fmt.Sprintf(`{"n": %d}`, 100*turn+k)})
		}
		return reply, nil
	}
}

// lanes is a plan of so many chains of nodes that do not depend on each other; the nodes of the last lane fail, and go on all the same.
func lanes(width, length int) (nodes []agent.Node) {
	for k := range width {
		for i := range length {
			n := agent.Node{ID: fmt.Sprintf("n%d_%d", k, i), Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(fmt.Sprintf(`{"n": %d}`, 1000*k+i+100))}
			if i > 0 {
				n.DependsOn = []string{fmt.Sprintf("n%d_%d", k, i-1)}
			}
			if k == width-1 && i%3 == 1 {
				n.Args, n.OnError = json.RawMessage(`{"n": 13}`), agent.OnErrorContinue
			}
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// requireHandedOver holds a run that has ended, and that was handed over, to its record: verify with both witnesses, every execution
// replayed from its own input, an audit, and the state of the last execution.
func (s *stack) requireHandedOver(t testing.TB, run agent.Run) {
	t.Helper()
	chain := s.chain(t, run)
	require.Greater(t, len(chain), 1)
	for i, history := range chain {
		requireReplays(t, history)
		outcome, err := replay.History(history)
		require.NoError(t, err)
		require.Nil(t, outcome.Divergence, "execution %d: %s", i, outcome.Divergence)
		started := history.Events[0].GetWorkflowExecutionStartedEventAttributes()
		var in agent.RunInput
		require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(started.GetInput(), &in))
		var epoch int
		require.NoError(t, converter.GetDefaultDataConverter().FromPayload(started.GetMemo().GetFields()["epoch"], &epoch), "the memo is carried along")
		require.Equal(t, in.Epoch, epoch)
	}
	v := s.verify(t, run)
	require.Empty(t, v.Differences)
	require.Equal(t, agent.WitnessAgrees, v.Temporal.Status)
	require.Empty(t, v.Temporal.Detail)
	require.Equal(t, len(chain), v.Temporal.Executions)
	require.Equal(t, len(chain)-v.Temporal.Epochs, v.Temporal.HandOvers)
	requireAudits(t, s, run)

	fold, err := s.ledger.State(t.Context(), run.RunID)
	require.NoError(t, err)
	query, err := s.temporal.QueryWorkflow(t.Context(), run.RunID, "", agent.StateQuery)
	require.NoError(t, err)
	var snapshot workflows.Snapshot
	require.NoError(t, query.Get(&snapshot))
	state := snapshot.State
	require.Equal(t, []any{fold.Started, fold.Finished, fold.Failed, fold.Skipped, fold.Turns, fold.ToolCalls, fold.Tokens, fold.Status},
		[]any{state.Started, state.Finished, state.Failed, state.Skipped, state.Turns, state.ToolCalls, state.Tokens, state.Status})
}

// requireOnce says that no tool was executed twice for a run.
func (s *stack) requireOnce(t testing.TB, run agent.Run, calls int) {
	t.Helper()
	s.counting.mu.Lock()
	defer s.counting.mu.Unlock()
	made := 0
	for key, n := range s.counting.calls {
		if strings.HasPrefix(key, run.RunID+"/") {
			require.Equal(t, 1, n, key)
			made++
		}
	}
	require.Equal(t, calls, made)
}

func TestRunsOfAllShapesAreHandedOver(t *testing.T) {
	t.Parallel()
	s := startOn(t, &brief, byScenario{
		"loop": turns(30),
		"planned": func(_ context.Context, req model.Request) (model.Reply, error) {
			if req.SchemaName != "plan" {
				return model.Reply{Finish: model.FinishStop, Text: "done"}, nil
			}
			plan, err := json.Marshal(agent.Plan{Nodes: lanes(2, 20)})
			return model.Reply{Finish: model.FinishStop, Text: string(plan)}, err
		},
	})
	s.limits = agent.Limits{MaxSteps: 100, MaxRepeats: -1}
	for name, c := range map[string]struct {
		mode  agent.Mode
		nodes []agent.Node
		calls int
	}{
		"loop":    {agent.ModeReact, nil, 60},
		"plan":    {agent.ModePlan, lanes(3, 20), 60},
		"planned": {agent.ModePlan, nil, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var plan *agent.Plan
			if c.nodes != nil {
				plan = &agent.Plan{Nodes: c.nodes}
			}
			run := s.accept(t, c.mode, "scenario "+name, plan)
			events := s.events(t, run)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
			s.requireOnce(t, run, c.calls)
			s.requireHandedOver(t, run)
			// A hand that changes what a command of the first execution has used shows at the hand-overs after it.
			s.sql(t, `UPDATE agent_execution_events SET event_data = jsonb_set(event_data, '{usage}', '{"input_tokens": 7000}')
				WHERE run_id = '`+run.RunID+`' AND sequence_number = (SELECT min(sequence_number) FROM agent_execution_events WHERE run_id = '`+run.RunID+`' AND event_type = 'command_committed')`)
			found := map[agent.Check]int{}
			for _, d := range s.verify(t, run).Differences {
				found[d.Check]++
			}
			require.Positive(t, found[agent.CheckHandOver])
		})
	}
}

// TestSignalsAreNotLostInHandOvers: inputs come all the time, while the run is handed over again and again. A signal that comes after
// the last look of an execution makes its end impossible; Temporal says UnhandledCommand, and it looks again.
func TestSignalsAreNotLostInHandOvers(t *testing.T) {
	t.Parallel()
	const inputs = 40
	s := startOn(t, &brief, byScenario{})
	nodes := lanes(2, 30)
	for i := range inputs {
		n := agent.Node{ID: fmt.Sprintf("w%d", i), Kind: agent.WaitNode, Signal: "go"}
		if i > 0 {
			n.DependsOn = []string{fmt.Sprintf("w%d", i-1)}
		}
		nodes = append(nodes, n)
	}
	run := s.accept(t, agent.ModePlan, "wait", &agent.Plan{Nodes: nodes})
	for i := range inputs { // each as soon as the one before is taken: the run then has to hear of it
		s.awaitLog(t, run, func(events []agent.Event) bool {
			return len(types(events, fmt.Sprintf("w%d", i))) > 0 || events[len(events)-1].Type.Terminal()
		})
		for k := range 3 { // the others are for nobody
			name := map[bool]string{true: "go", false: "noise"}[k == 0]
			_, _, err := s.ledger.Signal(t.Context(), "local", run.RunID, agent.Input{Name: name, InputID: fmt.Sprintf("%d-%d", i, k), Value: json.RawMessage("1"), By: "ada"})
			var ended *agent.ConflictError // the last of them may come too late
			require.True(t, err == nil || i == inputs-1 && k > 0 && errors.As(err, &ended), "%v", err)
		}
	}
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	s.requireOnce(t, run, 60)
	refused := 0
	for _, history := range s.chain(t, run) {
		requireReplays(t, history)
		for _, e := range history.Events {
			if e.GetWorkflowTaskFailedEventAttributes().GetCause() == enumspb.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND {
				refused++
			}
		}
	}
	t.Logf("%d hand-overs were tried again since a signal had come", refused)
	v := s.verify(t, run)
	require.Empty(t, v.Differences)
	require.Greater(t, v.Temporal.HandOvers, 1)
}

// TestWhatWaitsIsHandedOver: a doubt, an approval, an input that is waited for and a pause, over many hand-overs of a run at rest,
// with workers that come and go.
func TestWhatWaitsIsHandedOver(t *testing.T) {
	t.Parallel()
	guarded, err := tool.New(tool.Spec{Name: "guarded", Description: "needs an approval", Effect: agent.External, Approve: "true"},
		func(_ context.Context, in number, _ tool.Call) (number, error) { return in, nil })
	require.NoError(t, err)
	s := startOn(t, &brief, byScenario{}, guarded, mail(t))
	run := s.accept(t, agent.ModePlan, "wait", &agent.Plan{Nodes: append(lanes(2, 8),
		double("doubt", "1", func(n *agent.Node) { n.Tool = "mail" }), double("after", `{"$from": "/nodes/doubt/output/n"}`, nil),
		double("approval", "7", func(n *agent.Node) { n.Tool = "guarded" }),
		agent.Node{ID: "input", Kind: agent.WaitNode, Signal: "go"})})
	ctx := t.Context()
	executions := func() int { return len(s.executions(t, run)) }
	shake := func() { // until it has been handed over twice more
		for before, i := executions(), 0; executions() < before+2; i++ {
			require.Less(t, i, 400, "it is not handed over")
			_, err := s.ledger.Pause(ctx, "local", run.RunID, "ada", "")
			require.NoError(t, err)
			s.delivered(t)
			_, err = s.ledger.Unpause(ctx, "local", run.RunID, "ada", "")
			require.NoError(t, err)
			s.delivered(t)
			if i%20 == 10 {
				s.stop()
				s.run(t)
			}
		}
	}
	s.awaitLog(t, run, func(events []agent.Event) bool {
		found := map[agent.EventType]int{}
		for _, e := range events {
			found[e.Type]++
		}
		return found[agent.NodeFinished]+found[agent.NodeFailed] == 16 && found[agent.CommandDoubtType] == 1 && found[agent.ApprovalRequested] == 1
	})
	shake()
	_, _, err = s.ledger.Signal(ctx, "local", run.RunID, agent.Input{Name: "go", InputID: "1", Value: json.RawMessage("1"), By: "ada"})
	require.NoError(t, err)
	s.awaitLog(t, run, func(events []agent.Event) bool { return len(types(events, "input")) == 5 })
	shake()
	s.resolve(t, run, "doubt", agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"n": 21}`), By: "ada"})
	s.awaitLog(t, run, func(events []agent.Event) bool { return len(types(events, "after")) == 5 })
	shake()
	approvals, _, err := s.ledger.Approvals(ctx, agent.ApprovalFilter{Owner: "local", RunID: run.RunID, Limit: 10})
	require.NoError(t, err)
	require.Len(t, approvals, 1, "the question is asked once")
	_, err = s.ledger.DecideApproval(ctx, "local", approvals[0].ApprovalID, agent.ApprovalAnswer{Approve: true, By: "ada"})
	require.NoError(t, err)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	for _, history := range s.chain(t, run) {
		requireReplays(t, history)
	}
	v := s.verify(t, run)
	require.Empty(t, v.Differences)
	require.GreaterOrEqual(t, v.Temporal.HandOvers, 6)
}

// executions are Temporal's ids of a run's executions, the newest first.
func (s *stack) executions(t testing.TB, run agent.Run) (ids []string) {
	t.Helper()
	described, err := s.temporal.DescribeWorkflowExecution(t.Context(), run.RunID, "")
	require.NoError(t, err)
	for id := described.GetWorkflowExecutionInfo().GetExecution().GetRunId(); id != ""; {
		ids = append(ids, id)
		events := s.temporal.GetWorkflowHistory(t.Context(), run.RunID, id, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		require.True(t, events.HasNext())
		first, err := events.Next()
		require.NoError(t, err)
		id = first.GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId()
	}
	return ids
}

// TestAHandedOverRunIsStopped and goes on: cancelled, terminated and resumed, and looked at by the watcher, all of them on the
// newest execution of its chain.
func TestAHandedOverRunIsStoppedAndResumed(t *testing.T) {
	t.Parallel()
	working := make(chan struct{}, 100)
	slow, err := tool.New(tool.Spec{Name: "slow", Description: "takes its time", Effect: agent.Idempotent},
		func(ctx context.Context, _ number, call tool.Call) (number, error) {
			if call.Attempt > 1 {
				return number{N: 1}, nil
			}
			working <- struct{}{}
			<-ctx.Done()
			return number{}, agent.Unknown(agent.CodeToolFailed, "%w", context.Cause(ctx))
		})
	require.NoError(t, err)
	s := startOn(t, &brief, byScenario{}, slow)
	plan := func() *agent.Plan {
		return &agent.Plan{Nodes: append(lanes(1, 30), double("wait", "1", func(n *agent.Node) { n.Tool = "slow" }, "n0_29"), double("last", "1", nil, "wait"))}
	}
	run := s.accept(t, agent.ModePlan, "cancel", plan())
	<-working
	require.Greater(t, len(s.executions(t, run)), 1)
	s.cancel(t, run)
	events := s.events(t, run)
	require.Equal(t, agent.RunCancelled, events[len(events)-1].Type)
	s.chain(t, run)
	v := s.verify(t, run)
	require.Empty(t, v.Differences)

	run = s.accept(t, agent.ModePlan, "terminate", plan())
	<-working
	before := len(s.executions(t, run))
	require.NoError(t, s.temporal.TerminateWorkflow(t.Context(), run.RunID, "", "somebody's hand"))
	s.watcherSees(t, run)
	s.sql(t, `UPDATE commands SET lease_until = now(), state = 'released' WHERE command_id = 'wait' AND run_id = '`+run.RunID+`'`)
	s.resume(t, run)
	events = s.ended(t, run, 2)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
	s.requireOnce(t, run, 31)
	chain := s.chain(t, run)
	require.Greater(t, len(chain), before, "the whole chain is found, over the resume")
	v = s.verify(t, run)
	require.Empty(t, v.Differences)
	require.Equal(t, 2, v.Temporal.Epochs)
	require.Equal(t, len(chain), v.Temporal.Executions)
}

// watcherSees has the watcher end a run that was terminated.
func (s *stack) watcherSees(t testing.TB, run agent.Run) {
	t.Helper()
	w := s.watcher(t)
	w.Quiet = time.Nanosecond
	s.delivered(t)
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.FailedStatus, "terminated")
}
