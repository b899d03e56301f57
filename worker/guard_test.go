package worker_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/worker"
	"runledger/workflows"
)

// strictly runs workflow code under the guard, in the name of node a of run-1.
func strictly(t testing.TB, code func(ctx workflow.Context) error) error {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{worker.StrictInterceptor()}})
	env.RegisterActivityWithOptions(func(_ context.Context, in agent.EffectCall) (agent.EffectReply, error) {
		return agent.EffectReply{Value: agent.TimeValue(time.Unix(1, 0))}, nil
	}, activity.RegisterOptions{Name: string(agent.RecordEffect)})
	env.RegisterActivityWithOptions(func(context.Context) error { return nil }, activity.RegisterOptions{Name: "Foreign"})
	env.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		return code(workflows.WithNode(ctx, workflows.Node{RunID: "run-1", Epoch: 1, NodeID: "a"}))
	}, workflow.RegisterOptions{Name: "code"})
	env.ExecuteWorkflow("code")
	require.True(t, env.IsWorkflowCompleted())
	return env.GetWorkflowError()
}

// R2-14, R2-19: what leaves no record is refused, and the refusal names run and node.
func TestStrictGuardRefuses(t *testing.T) {
	t.Parallel()
	var effects atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { effects.Add(1) }))
	t.Cleanup(server.Close)
	happened := func(workflow.Context) any { effects.Add(1); return 1 }
	same := func(a, b any) bool { return a == b }
	local := func(context.Context) error { effects.Add(1); return nil }
	var got int
	for name, c := range map[string]struct {
		code func(ctx workflow.Context) error
		what string
		// unheard: the source has no way to return the refusal.
		unheard bool
	}{
		"side effect": {code: func(ctx workflow.Context) error { return workflow.SideEffect(ctx, happened).Get(&got) }, what: "a side effect"},
		"side effect with options": {code: func(ctx workflow.Context) error {
			return workflow.SideEffectWithOptions(ctx, workflow.SideEffectOptions{Summary: "s"}, happened).Get(&got)
		}, what: "a side effect"},
		"mutable side effect": {code: func(ctx workflow.Context) error {
			return workflow.MutableSideEffect(ctx, "id", happened, same).Get(&got)
		}, what: "mutable side effect id"},
		"mutable side effect with options": {code: func(ctx workflow.Context) error {
			return workflow.MutableSideEffectWithOptions(ctx, "id", workflow.MutableSideEffectOptions{Summary: "s"}, happened, same).Get(&got)
		}, what: "mutable side effect id"},
		"local activity": {code: func(ctx workflow.Context) error {
			ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Second})
			return workflow.ExecuteLocalActivity(ctx, local).Get(ctx, nil)
		}, what: "local activity"},
		"foreign activity": {code: func(ctx workflow.Context) error {
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Second})
			return workflow.ExecuteActivity(ctx, "Foreign").Get(ctx, nil)
		}, what: "activity Foreign"},
		"HTTP": {code: func(workflow.Context) error {
			resp, err := http.Get(server.URL)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}, what: "an HTTP request"},
		"UUID": {code: func(workflow.Context) error { _ = uuid.NewString(); return nil }, what: "a UUID", unheard: true},
		"UUID in a coroutine": {code: func(ctx workflow.Context) error {
			done := workflow.NewChannel(ctx)
			workflow.Go(ctx, func(ctx workflow.Context) {
				_, _ = uuid.NewV7()
				done.Send(ctx, true)
			})
			done.Receive(ctx, nil)
			return nil
		}, what: "a UUID", unheard: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := func(err error) {
				t.Helper()
				var app *temporal.ApplicationError
				require.ErrorAs(t, err, &app)
				require.Equal(t, string(agent.CodeUnrecorded), app.Type())
				require.ErrorContains(t, err, "run run-1, node a: "+c.what)
			}
			var heard error
			check(strictly(t, func(ctx workflow.Context) error {
				heard = c.code(ctx)
				return heard
			}))
			if c.unheard {
				require.NoError(t, heard)
			} else {
				check(heard)
			}
			// Code that does not listen fails all the same.
			var stopped bool
			check(strictly(t, func(ctx workflow.Context) error {
				_ = c.code(ctx)
				stopped = ctx.Err() != nil
				return nil
			}))
			require.True(t, stopped, "its context is cancelled")
		})
	}
	t.Cleanup(func() { require.Zero(t, effects.Load(), "nothing that was refused happened") })
}

func TestStrictGuardNamesTheNodeThatIsAtWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code func(ctx workflow.Context)
		want string
	}{
		"the node of the coroutine": {func(ctx workflow.Context) {
			done := workflow.NewChannel(ctx)
			workflow.Go(workflows.WithNode(ctx, workflows.Node{RunID: "run-2", NodeID: "b"}), func(ctx workflow.Context) {
				_ = uuid.NewString()
				done.Send(ctx, true)
			})
			done.Receive(ctx, nil)
		}, "run run-2, node b:"},
		"the node that was entered last": {func(ctx workflow.Context) {
			workflows.WithNode(ctx, workflows.Node{RunID: "run-2", NodeID: "c"})
			_ = uuid.NewString()
		}, "run run-2, node c:"},
		"no node": {func(ctx workflow.Context) {
			workflows.WithNode(ctx, workflows.Node{RunID: "run-2"})
			_ = uuid.NewString()
		}, "run run-2, node (none):"},
		"the first refusal": {func(ctx workflow.Context) {
			_ = workflow.SideEffect(workflows.WithNode(ctx, workflows.Node{RunID: "run-2", NodeID: "first"}), func(workflow.Context) any { return 1 })
			_ = workflow.SideEffect(ctx, func(workflow.Context) any { return 1 })
		}, "run run-2, node first:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, strictly(t, func(ctx workflow.Context) error { c.code(ctx); return nil }), c.want)
		})
	}
}

// A clean workflow passes, and everybody else may do what workflow code may not.
func TestStrictGuardLetsCleanCodePass(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	elsewhere := make(chan error, 1)
	require.NoError(t, strictly(t, func(ctx workflow.Context) error {
		fx := workflows.NewEffects(workflows.NodeOf(ctx))
		done := workflow.NewChannel(ctx)
		workflow.Go(ctx, func(ctx workflow.Context) {
			_, err := fx.Now(ctx)
			require.NoError(t, err)
			done.Send(ctx, true)
		})
		done.Receive(ctx, nil)
		if workflow.GetVersion(ctx, "change", workflow.DefaultVersion, 1) != 1 {
			return context.Canceled
		}
		go func() { // no coroutine of the workflow
			_ = uuid.NewString()
			resp, err := http.Get(server.URL)
			if err == nil {
				err = resp.Body.Close()
			}
			elsewhere <- err
		}()
		if err := <-elsewhere; err != nil {
			return err
		}
		return workflow.Sleep(ctx, time.Hour)
	}))
	_ = uuid.NewString()
	resp, err := http.Get(server.URL)
	require.NoError(t, err, "the goroutine of a workflow that has ended is an ordinary one")
	require.NoError(t, resp.Body.Close())
}

// AgentExecution itself is clean, in every shape that was recorded.
func TestRecordedHistoriesReplayUnderTheGuard(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(historyDir, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			replayer, err := sdkworker.NewWorkflowReplayerWithOptions(sdkworker.WorkflowReplayerOptions{
				Interceptors: []interceptor.WorkerInterceptor{worker.StrictInterceptor()}})
			require.NoError(t, err)
			replayer.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
			require.NoError(t, replayer.ReplayWorkflowHistoryFromJSONFile(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), path))
		})
	}
}
