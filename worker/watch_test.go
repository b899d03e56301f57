package worker_test

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/dispatch"
	"runledger/model"
)

// watcher looks at every open run, however long it has been quiet.
func (s *stack) watcher(t testing.TB) *dispatch.Watcher {
	t.Helper()
	return &dispatch.Watcher{Runs: s.ledger, Temporal: s.temporal, Log: slog.New(slog.DiscardHandler)}
}

// delivered waits until nothing is on its way to a run any more.
func (s *stack) delivered(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, waiting, err := s.ledger.NextIntent(t.Context())
		return err == nil && !waiting
	}, time.Minute, 5*time.Millisecond)
}

func (s *stack) requireStands(t testing.TB, run agent.Run, status agent.Status, why string) {
	t.Helper()
	now, _, err := s.ledger.WorkerRun(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, status, now.Status)
	if why == "" {
		require.Nil(t, now.Error)
		return
	}
	require.ErrorContains(t, now.Error, why)
}

func say() *agent.Plan {
	return &agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say"}}}
}

func TestATerminatedExecutionEndsItsRun(t *testing.T) {
	t.Parallel()
	atWork := make(chan struct{}, 1)
	s := start(t, blocking{atWork})
	run := s.accept(t, agent.ModePlan, "x", say())
	<-atWork
	s.delivered(t)
	w := s.watcher(t)
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.Running, "")

	require.NoError(t, s.temporal.TerminateWorkflow(t.Context(), run.RunID, "", "by hand"))
	require.NoError(t, w.Round(t.Context()))
	events := s.events(t, run)
	last := events[len(events)-1]
	require.Equal(t, agent.RunFailed, last.Type)
	var data agent.RunFailedData
	require.NoError(t, json.Unmarshal(last.Data, &data))
	require.Equal(t, agent.CodeExecutionLost, data.Error.Code)
	require.Contains(t, data.Error.Message, "terminated: by hand")
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandAbortType}, types(events, "say"))
	require.NoError(t, w.Round(t.Context()))
	require.Len(t, s.events(t, run), len(events), "once")
}

// sabotage stands between Temporal and the workflow.
type sabotage struct {
	interceptor.InterceptorBase
	execute func(next func() (any, error)) (any, error)
}

func (s *sabotage) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &sabotaged{interceptor.WorkflowInboundInterceptorBase{Next: next}, s}
}

type sabotaged struct {
	interceptor.WorkflowInboundInterceptorBase
	by *sabotage
}

func (s *sabotaged) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	return s.by.execute(func() (any, error) { return s.Next.ExecuteWorkflow(ctx, in) })
}

// sabotage puts a worker in the place of the one at work whose workflow passes through execute, and which blocks on what
// panics there, as in production.
func (s *stack) sabotage(t testing.TB, execute func(next func() (any, error)) (any, error)) {
	t.Helper()
	server, err := shared.start()
	require.NoError(t, err)
	c, err := client.DialContext(t.Context(), client.Options{HostPort: server.Address(), Namespace: server.Namespace(),
		Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)), Interceptors: []interceptor.ClientInterceptor{&sabotage{execute: execute}}})
	require.NoError(t, err)
	s.stop()
	s.config.Temporal, s.config.PanicPolicy = c, sdkworker.BlockWorkflow
	s.run(t)
	t.Cleanup(func() {
		s.stop()
		c.Close()
	})
}

// breaks lets the first try of a workflow task panic, and holds every other one until the workflow is mended.
func (s *stack) breaks(t testing.TB) (mended chan struct{}) {
	t.Helper()
	mended = make(chan struct{})
	var tries atomic.Int32
	s.sabotage(t, func(next func() (any, error)) (any, error) {
		if tries.Add(1) == 1 {
			panic("this build is broken")
		}
		<-mended
		return next()
	})
	return mended
}

func TestAnExecutionThatIsOverWithoutAWordEndsItsRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  error
		want agent.EventType
		data string
	}{
		"cancelled": {temporal.NewCanceledError(), agent.RunCancelled, `{"reason": "cancelled in Temporal"}`},
		"failed": {temporal.NewNonRetryableApplicationError("gave up", "X", nil), agent.RunFailed,
			`{"error": {"code": "EXECUTION_LOST", "message": "the run's Temporal execution failed: gave up"}}`},
		"completed": {nil, agent.RunFailed,
			`{"error": {"code": "EXECUTION_LOST", "message": "the run's Temporal execution completed without an end in the ledger"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, byScenario{})
			s.sabotage(t, func(func() (any, error)) (any, error) { return nil, c.end })
			run := s.accept(t, agent.ModePlan, "x", say())
			s.delivered(t)
			s.history(t, run) // until it is over
			require.NoError(t, s.watcher(t).Round(t.Context()))
			events := s.events(t, run)
			require.Equal(t, c.want, events[len(events)-1].Type)
			require.JSONEq(t, c.data, string(events[len(events)-1].Data))
		})
	}
}

// TestARunWhoseWorkflowFailsIsStuck until it is mended: the first try of its workflow task panics, the second is held until
// the watcher has looked twice, and then all is well.
func TestARunWhoseWorkflowFailsIsStuck(t *testing.T) {
	t.Parallel()
	atWork, goOn := make(chan struct{}), make(chan struct{})
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		close(atWork)
		<-goOn
		return model.Reply{Finish: model.FinishStop, Text: "done"}, nil
	}))
	mended := s.breaks(t)
	run := s.accept(t, agent.ModePlan, "x", say())
	s.delivered(t)
	s.awaitEvent(t, run, enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED)
	w := s.watcher(t)
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.Running, "")
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.Stuck, "this build is broken")

	close(mended)
	<-atWork // its worker has written
	s.requireStands(t, run, agent.Running, "")
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.Running, "")
	close(goOn)
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
}

// awaitEvent follows a run's history until an event of that type.
func (s *stack) awaitEvent(t testing.TB, run agent.Run, wanted enumspb.EventType) {
	t.Helper()
	for events := s.temporal.GetWorkflowHistory(t.Context(), run.RunID, "", true, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		require.NoError(t, err)
		if e.EventType == wanted {
			return
		}
	}
	t.Fatalf("the run ended without %s", wanted)
}

// TestARunThatTemporalHasLostIsStuck until somebody cancels it, which nothing in Temporal could do.
func TestARunThatTemporalHasLostIsStuck(t *testing.T) {
	t.Parallel()
	s := start(t, byScenario{})
	s.stop()
	run := s.accept(t, agent.ModePlan, "x", say())
	w := s.watcher(t)
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.Queued, "") // it has not been started yet
	intents, err := s.ledger.ClaimIntents(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, s.ledger.IntentDelivered(t.Context(), intents[0]))
	require.NoError(t, w.Round(t.Context()))
	s.requireStands(t, run, agent.Stuck, "Temporal has no execution of the run")

	s.cancel(t, run)
	events := s.events(t, run)
	require.Equal(t, agent.RunCancelled, events[len(events)-1].Type)
	require.JSONEq(t, `{"by": "me", "reason": "enough"}`, string(events[len(events)-1].Data))
}

// TestACancelledRunWhoseExecutionIsTerminatedIsCancelled: nobody brings it back.
func TestACancelledRunWhoseExecutionIsTerminatedIsCancelled(t *testing.T) {
	t.Parallel()
	atWork := make(chan struct{}, 1)
	s := start(t, blocking{atWork})
	run := s.accept(t, agent.ModePlan, "x", say())
	<-atWork
	s.delivered(t)
	s.stop()
	require.NoError(t, s.temporal.TerminateWorkflow(t.Context(), run.RunID, "", "by hand"))
	s.cancel(t, run)
	intents, err := s.ledger.ClaimIntents(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, s.ledger.IntentDelivered(t.Context(), intents[0])) // the signal finds nobody
	w := s.watcher(t)
	require.NoError(t, w.Round(t.Context()))
	events := s.events(t, run)
	require.Equal(t, agent.RunCancelled, events[len(events)-1].Type)
	require.JSONEq(t, `{"by": "me", "reason": "enough"}`, string(events[len(events)-1].Data))
	require.NoError(t, w.Round(t.Context()))
	recovery := dispatch.Recovery{Runs: s.ledger, Temporal: s.temporal, By: "me", Report: func(dispatch.Recovered) {}}
	require.NoError(t, recovery.Run(t.Context()))
	require.Len(t, s.events(t, run), len(events), "once, and for good")
}

// TestARunWhoseWorkflowFailsIsCancelled though its execution hears nothing: at once where it is known to be stuck, else when the
// watcher sees that it is. Its execution ends, too, as soon as it is mended.
func TestARunWhoseWorkflowFailsIsCancelled(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"stuck, then cancelled": true, "cancelled, then stuck": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, byScenario{})
			mended := s.breaks(t)
			run := s.accept(t, agent.ModePlan, "x", say())
			s.delivered(t)
			s.awaitEvent(t, run, enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED)
			w := s.watcher(t)
			rounds := func() {
				for range 2 {
					require.NoError(t, w.Round(t.Context()))
				}
			}
			if known {
				rounds()
				s.requireStands(t, run, agent.Stuck, "this build is broken")
			}
			s.cancel(t, run)
			s.delivered(t)
			if !known {
				s.requireStands(t, run, agent.Cancelling, "")
				rounds()
			}
			events := s.events(t, run)
			require.Equal(t, agent.RunCancelled, events[len(events)-1].Type)
			require.JSONEq(t, `{"by": "me", "reason": "enough"}`, string(events[len(events)-1].Data))
			close(mended)
			s.history(t, run) // until it is over
			require.Len(t, s.events(t, run), len(events), "once, and nothing has begun")
		})
	}
}
