package worker

import (
	"slices"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/workflows"
)

// StrictInterceptor refuses what workflow code does without a record in the ledger: side effects, mutable ones too, local
// activities, and activities other than those of package agent; of the raw sources of chance and network, those that
// [WatchSources] can see. The refusal names run and node, is returned where the code asks, and fails the workflow with code
// UNRECORDED_EFFECT even if the code goes on: AgentExecution ends its run with it.
//
// [Run] uses it when the configuration says Strict. Replayers and test environments take it as a worker interceptor.
func StrictInterceptor() interceptor.WorkerInterceptor { return &strict{} }

type strict struct {
	interceptor.WorkerInterceptorBase
}

func (s *strict) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	i := &guarded{watch: &workflows.Watch{}}
	i.Next = next
	return i
}

// guarded is one execution of a workflow under the guard.
type guarded struct {
	interceptor.WorkflowInboundInterceptorBase
	watch *workflows.Watch
}

func (g *guarded) Init(next interceptor.WorkflowOutboundInterceptor) error {
	o := &refusing{watch: g.watch}
	o.Next = next
	return g.Next.Init(o)
}

func (g *guarded) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	ctx, cancel := workflow.WithCancel(ctx)
	g.watch.Cancel, g.watch.Entered = cancel, entered
	ctx = workflows.WithWatch(ctx, g.watch)
	defer enter(g.watch, workflows.NodeOf(ctx))()
	out, err := g.Next.ExecuteWorkflow(ctx, in)
	if refused := g.watch.Refused(); refused != nil {
		return nil, refusal(refused)
	}
	return out, err
}

func refusal(e *agent.Error) error {
	return temporal.NewNonRetryableApplicationError(e.Error(), string(e.Code), nil)
}

// refusing stands between workflow code and what it asks of Temporal.
type refusing struct {
	interceptor.WorkflowOutboundInterceptorBase
	watch *workflows.Watch
}

func (r *refusing) refuse(ctx workflow.Context, what string) error {
	return refusal(r.watch.Refuse(workflows.NodeOf(ctx), what))
}

// Go tells the coroutines of workflow code from everything else in the process.
func (r *refusing) Go(ctx workflow.Context, name string, f func(workflow.Context)) workflow.Context {
	return r.Next.Go(ctx, name, func(ctx workflow.Context) {
		defer enter(r.watch, workflows.NodeOf(ctx))()
		f(ctx)
	})
}

func (r *refusing) ExecuteActivity(ctx workflow.Context, activityType string, args ...any) workflow.Future {
	if !slices.Contains(agent.ActivityNames(), activityType) {
		return failed(ctx, r.refuse(ctx, "activity "+activityType))
	}
	return r.Next.ExecuteActivity(ctx, activityType, args...)
}

func (r *refusing) ExecuteLocalActivity(ctx workflow.Context, activityType string, args ...any) workflow.Future {
	if slices.Contains(agent.LocalActivityNames(), activityType) {
		return r.Next.ExecuteLocalActivity(ctx, activityType, args...)
	}
	return failed(ctx, r.refuse(ctx, "local activity "+activityType))
}

func (r *refusing) SideEffect(ctx workflow.Context, _ func(workflow.Context) any) converter.EncodedValue {
	return refusedValue{r.refuse(ctx, "a side effect")}
}

func (r *refusing) SideEffectWithOptions(ctx workflow.Context, _ workflow.SideEffectOptions, _ func(workflow.Context) any) converter.EncodedValue {
	return refusedValue{r.refuse(ctx, "a side effect")}
}

func (r *refusing) MutableSideEffect(ctx workflow.Context, id string, _ func(workflow.Context) any, _ func(a, b any) bool) converter.EncodedValue {
	return refusedValue{r.refuse(ctx, "mutable side effect "+id)}
}

func (r *refusing) MutableSideEffectWithOptions(ctx workflow.Context, id string, _ workflow.MutableSideEffectOptions,
	_ func(workflow.Context) any, _ func(a, b any) bool,
) converter.EncodedValue {
	return refusedValue{r.refuse(ctx, "mutable side effect "+id)}
}

// failed is a future that has ended in an error.
func failed(ctx workflow.Context, err error) workflow.Future {
	future, settable := workflow.NewFuture(ctx)
	settable.SetError(err)
	return future
}

// refusedValue is what a refused side effect gave.
type refusedValue struct{ err error }

func (refusedValue) HasValue() bool  { return false }
func (v refusedValue) Get(any) error { return v.err }
