package worker_test

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
	"runledger/workflows"
)

// update writes the histories of the scenarios to workflows/testdata/histories. A history that was released is never written
// again: runs of that shape are out there. A change of the workflow's commands gets a version and a scenario of its own.
var update = flag.Bool("update", false, "record the histories of this package's scenarios anew")

const historyDir = "../workflows/testdata/histories"

// byScenario is a model that finds its scenario in what it is asked.
type byScenario map[string]func(context.Context, model.Request) (model.Reply, error)

func (m byScenario) Generate(ctx context.Context, req model.Request, _ func(model.Delta)) (model.Reply, error) {
	for _, message := range req.Messages {
		for name, answer := range m {
			if message.Role == model.User && strings.Contains(message.Text, "scenario "+name) {
				return answer(ctx, model.WithoutMarks(req))
			}
		}
	}
	return model.Reply{Text: "done", Finish: model.FinishStop}, nil
}

// moody is a tool that is busy at the first try, fails at the second and works when its node is tried again.
func moody(t testing.TB) tool.Tool {
	t.Helper()
	m, err := tool.New(tool.Spec{Name: "moody", Description: "works at last", Effect: agent.Idempotent},
		func(_ context.Context, in number, call tool.Call) (number, error) {
			switch {
			case strings.Contains(call.CommandID, "~"):
				return in, nil
			case call.Attempt == 1:
				return number{}, agent.Transient(agent.CodeToolFailed, "busy")
			}
			return number{}, agent.Failed(agent.CodeToolFailed, "not today")
		})
	require.NoError(t, err)
	return m
}

// mail is an external tool whose answer is lost: it may have sent or not.
func mail(t testing.TB) tool.Tool {
	t.Helper()
	m, err := tool.New(tool.Spec{Name: "mail", Description: "sends", Effect: agent.External},
		func(context.Context, number, tool.Call) (number, error) {
			return number{}, agent.Unknown(agent.CodeToolFailed, "the connection broke after the request was sent")
		})
	require.NoError(t, err)
	return m
}

func double(id string, n string, more func(*agent.Node), after ...string) agent.Node {
	node := agent.Node{ID: id, Kind: agent.ToolNode, Tool: "double", Args: json.RawMessage(`{"n": ` + n + `}`), DependsOn: after}
	if more != nil {
		more(&node)
	}
	return node
}

// TestHistories runs every scenario on real servers, and holds its history to the workflow once more.
func TestHistories(t *testing.T) {
	t.Parallel()
	atWork := make(chan struct{})
	s := start(t, byScenario{
		"plan": func(_ context.Context, req model.Request) (model.Reply, error) {
			if req.SchemaName == "plan" {
				return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}},
					{"id": "b", "kind": "tool", "tool": "double", "args": {"n": {"$from": "/nodes/a/output/n"}}}]}`}, nil
			}
			return model.Reply{Text: "it is 8", Finish: model.FinishStop}, nil
		},
		"react": func(_ context.Context, req model.Request) (model.Reply, error) {
			if req.Messages[len(req.Messages)-1].Role == model.User {
				return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{
					{ID: "x", Name: "double", Arguments: `{"n": 21}`}, {ID: "y", Name: "double", Arguments: `{"n": 13}`}}}, nil
			}
			return model.Reply{Text: "42, and bad luck", Finish: model.FinishStop}, nil
		},
		"retrieval": func(_ context.Context, req model.Request) (model.Reply, error) {
			if !strings.Contains(req.Messages[len(req.Messages)-1].Text, "handbook/7") {
				return model.Reply{}, agent.Failed(agent.CodeModelFailed, "the prompt has no citation")
			}
			return model.Reply{Text: "See handbook/7.", Finish: model.FinishStop}, nil
		},
		"cancel": func(ctx context.Context, _ model.Request) (model.Reply, error) {
			close(atWork)
			<-ctx.Done()
			return model.Reply{}, model.ContextError(ctx)
		},
	}, moody(t), mail(t))
	_, err := s.ledger.AddDocuments(t.Context(), "local", []agent.Document{
		{ID: "handbook/7", Text: "In any scenario, marmots whistle.", Language: "english", Metadata: json.RawMessage(`{"year": 2}`)},
		{ID: "handbook/8", Text: "In no scenario do marmots sing.", Language: "english", Metadata: json.RawMessage(`{"year": 3}`)}})
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		mode   agent.Mode
		nodes  []agent.Node
		policy *agent.Policy
		during func(t *testing.T, run agent.Run)
		ends   agent.EventType
		events []agent.EventType // some that make the scenario
	}{
		{name: "plan", mode: agent.ModePlan, ends: agent.RunCompleted, events: []agent.EventType{agent.PlanGenerated}},
		{name: "parallel", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", nil), double("b", "2", nil), double("c", "3", nil),
			double("d", `{"$from": "/nodes/a/output/n"}`, nil, "b")}, ends: agent.RunCompleted},
		{name: "react", mode: agent.ModeReact, ends: agent.RunCompleted, events: []agent.EventType{agent.CommandFailedType}},
		{name: "when", mode: agent.ModePlan, nodes: []agent.Node{double("a", "2", nil),
			double("b", "3", func(n *agent.Node) { n.When = "nodes.a.output.n > 3" }), double("c", "1", func(n *agent.Node) { n.When = "nodes.a.output.n <= 3" }),
			double("d", "1", nil, "b", "c"), double("e", "1", nil, "c"), double("f", "1", func(n *agent.Node) {
				n.When, n.OnError = "nodes.c.output.n == 2", agent.OnErrorContinue
			})}, ends: agent.RunCompleted, events: []agent.EventType{agent.NodeSkipped, agent.NodeFailed}},
		{name: "retrieval", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", nil),
			{ID: "find", Kind: agent.RetrievalNode, Query: json.RawMessage(`{"$from": "/input"}`), Filter: json.RawMessage(`{"year": {"$from": "/nodes/a/output/n"}}`)},
			{ID: "none", Kind: agent.RetrievalNode, Query: json.RawMessage(`{"$from": "/nodes/a/output"}`), OnError: agent.OnErrorContinue},
			{ID: "say", Kind: agent.LLMNode, Prompt: "Cite.", Inputs: map[string]json.RawMessage{"found": json.RawMessage(`{"$from": "/nodes/find/output/documents"}`)}, DependsOn: []string{"none"}}},
			ends: agent.RunCompleted, events: []agent.EventType{agent.CommandFailedType, agent.NodeFailed}},
		{name: "failure", mode: agent.ModePlan, nodes: []agent.Node{
			double("a", "13", func(n *agent.Node) { n.OnError = agent.OnErrorSkip }), double("b", "1", nil, "a"),
			double("c", "13", func(n *agent.Node) { n.OnError = agent.OnErrorContinue }), double("d", "1", nil, "c"), double("e", "13", nil, "d")},
			ends: agent.RunFailed, events: []agent.EventType{agent.NodeSkipped, agent.NodeFailed}},
		{name: "retry", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", func(n *agent.Node) { n.Tool, n.Retry = "moody", &agent.Retry{MaxAttempts: 2} })},
			ends: agent.RunCompleted, events: []agent.EventType{agent.AttemptDiscarded, agent.CommandFailedType}},
		{name: "cancel", mode: agent.ModePlan, nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}},
			during: func(t *testing.T, run agent.Run) {
				<-atWork
				s.cancel(t, run)
			}, ends: agent.RunCancelled, events: []agent.EventType{agent.CommandAbortType}},
		{name: "in_doubt", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", func(n *agent.Node) { n.Tool = "mail" }),
			double("b", `{"$from": "/nodes/a/output/n"}`, nil), double("c", "2", nil)},
			during: func(t *testing.T, run agent.Run) {
				s.await(t, run, func(typ agent.EventType) bool { return typ != agent.RunStarted && typ != agent.PlanGenerated }) // it has been started
				s.awaitActivity(t, run, string(agent.Record))
				stands, _, err := s.ledger.WorkerRun(t.Context(), run.RunID)
				require.NoError(t, err)
				require.Equal(t, agent.InDoubt, stands.Status)
				s.cancel(t, run)
			}, ends: agent.RunCancelled, events: []agent.EventType{agent.CommandDoubtType}},
		{name: "resolved", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", func(n *agent.Node) { n.Tool = "mail" }),
			double("b", `{"$from": "/nodes/a/output/n"}`, nil), double("c", "2", func(n *agent.Node) { n.Tool = "mail" }), double("d", "3", nil, "c")},
			during: func(t *testing.T, run agent.Run) {
				s.await(t, run, func(typ agent.EventType) bool { return typ == agent.CommandDoubtType }) // it has been started
				s.awaitActivity(t, run, string(agent.Record))                                            // nothing can go on: two are in doubt
				s.resolve(t, run, "a", agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"n": 21}`), By: "ada"})
				s.await(t, run, func(typ agent.EventType) bool { return typ == agent.CheckpointSaved })
				s.resolve(t, run, "c", agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"n": 2}`), By: "ada"})
			}, ends: agent.RunCompleted, events: []agent.EventType{agent.CommandDoubtType, agent.CommandResolved, agent.CommandCommitted}},
		{name: "refused", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", func(n *agent.Node) { n.Tool, n.OnError = "mail", agent.OnErrorContinue }),
			double("b", "2", nil, "a")}, policy: &agent.Policy{Rules: []agent.PolicyRule{{Effects: []agent.EffectClass{agent.External}, Decision: "forbid", Reason: "read only"}}},
			ends: agent.RunCompleted, events: []agent.EventType{agent.PolicyDecided, agent.CommandFailedType, agent.NodeFailed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var plan *agent.Plan
			if c.nodes != nil {
				plan = &agent.Plan{Nodes: c.nodes}
			}
			run := s.acceptWith(t, c.mode, "scenario "+c.name, plan, c.policy)
			if c.during != nil {
				c.during(t, run)
			}
			events := s.events(t, run)
			last := events[len(events)-1]
			require.Equal(t, c.ends, last.Type, "%s", last.Data)
			require.Subset(t, eventTypes(events), c.events)
			history := s.history(t, run)
			requireClosed(t, history, c.ends)
			requireReplays(t, history)
			requireAudits(t, s, run)
			s.requireVerifies(t, run)
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, c.name+".json"), history)
			}
		})
	}
}

func (s *stack) resolve(t testing.TB, run agent.Run, commandID string, r agent.Resolution) {
	t.Helper()
	_, err := s.ledger.Resolve(t.Context(), "local", run.RunID, commandID, r)
	require.NoError(t, err)
}

func (s *stack) cancel(t testing.TB, run agent.Run) {
	t.Helper()
	_, err := s.ledger.RequestCancel(t.Context(), "local", run.RunID, "me", "enough")
	require.NoError(t, err)
}

// awaitActivity follows a run's history until an activity of that type has ended.
func (s *stack) awaitActivity(t testing.TB, run agent.Run, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	scheduled := int64(0)
	for events := s.temporal.GetWorkflowHistory(ctx, run.RunID, "", true, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		require.NoError(t, err)
		if e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName() == name {
			scheduled = e.EventId
		}
		if scheduled > 0 && e.GetActivityTaskCompletedEventAttributes().GetScheduledEventId() == scheduled {
			return
		}
	}
	t.Fatalf("the run ended without %s", name)
}

// history waits until a run's execution has closed and returns its history. The run's end is on record a moment before.
func (s *stack) history(t testing.TB, run agent.Run) *historypb.History {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	history := &historypb.History{}
	for events := s.temporal.GetWorkflowHistory(ctx, run.RunID, "", true, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		require.NoError(t, err)
		history.Events = append(history.Events, e)
	}
	return history
}

// requireClosed says that an execution ended as its run did.
func requireClosed(t testing.TB, history *historypb.History, end agent.EventType) {
	t.Helper()
	want := map[agent.EventType]enumspb.EventType{
		agent.RunCompleted: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
		agent.RunFailed:    enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
		agent.RunCancelled: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
	}[end]
	require.Equal(t, want, history.Events[len(history.Events)-1].EventType)
}

func requireReplays(t testing.TB, history *historypb.History) {
	t.Helper()
	replayer := sdkworker.NewWorkflowReplayer()
	replayer.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
	require.NoError(t, replayer.ReplayWorkflowHistory(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), history))
}

func write(t testing.TB, path string, history *historypb.History) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, encode(t, history), 0o644))
}
