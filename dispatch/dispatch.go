package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/ledger"
)

// Outbox is the ledger as the dispatcher sees it: who leads, what is due, what became of it, and what a start needs.
type Outbox interface {
	Lead(ctx context.Context) (lost <-chan struct{}, release func(), ok bool, err error)
	SubscribeIntents() (news <-chan struct{}, cancel func())
	NextIntent(ctx context.Context) (due time.Duration, any bool, err error)
	ClaimIntents(ctx context.Context, limit int) ([]ledger.Intent, error)
	IntentDelivered(ctx context.Context, i ledger.Intent) error
	IntentFailed(ctx context.Context, i ledger.Intent, retryIn time.Duration, cause error) error
	StartInput(ctx context.Context, runID string) (agent.RunInput, error)
	// EndUnstarted ends a run that is being cancelled and whose start, which the intent is, has come to nothing. It reports false
	// when the run is not being cancelled.
	EndUnstarted(ctx context.Context, i ledger.Intent) (ended bool, err error)
	// ReleaseQueued gives their turn to runs that have waited for others of their conversation, and tells how many it has started:
	// there may be more when it was any. What was done stands, whatever the error is of.
	ReleaseQueued(ctx context.Context) (released int, err error)
}

// Temporal is the part of Temporal's client that delivers.
type Temporal interface {
	ExecuteWorkflow(ctx context.Context, options client.StartWorkflowOptions, workflow any, args ...any) (client.WorkflowRun, error)
	SignalWorkflow(ctx context.Context, workflowID, runID, signalName string, arg any) error
	DescribeWorkflowExecution(ctx context.Context, workflowID, runID string) (*workflowservice.DescribeWorkflowExecutionResponse, error)
	TerminateWorkflow(ctx context.Context, workflowID, runID, reason string, details ...any) error
}

const (
	// pollEvery is how often the outbox is looked at when no news comes.
	pollEvery = time.Second
	batch     = 64
	parallel  = 16
	// deliverTimeout bounds one call of Temporal.
	deliverTimeout = 10 * time.Second
	longestPause   = 5 * time.Second
)

// Dispatcher delivers intents.
type Dispatcher struct {
	Outbox    Outbox
	Temporal  Temporal
	TaskQueue string
	Log       *slog.Logger
	// Watcher, if set, makes its rounds while this dispatcher leads.
	Watcher *Watcher
	// Retention, if set, makes its rounds while this dispatcher leads.
	Retention *Retention
}

// Run delivers until ctx ends. While another process leads on this database, it waits for its place.
func (d *Dispatcher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		lost, release, ok, err := d.Outbox.Lead(ctx)
		if err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "dispatcher cannot reach the ledger", "error", err)
		}
		if ok {
			d.lead(ctx, lost)
			release()
		}
		wait(ctx, nil, pollEvery)
	}
}

func (d *Dispatcher) lead(ctx context.Context, lost <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	var beside sync.WaitGroup
	defer func() {
		cancel()
		beside.Wait()
	}()
	if d.Watcher != nil {
		beside.Go(func() { d.Watcher.Run(ctx) })
	}
	if d.Retention != nil {
		beside.Go(func() { d.Retention.Run(ctx) })
	}
	// Beside the deliveries: a conversation that is locked does not hold them up.
	beside.Go(func() { d.keepQueues(ctx) })
	news, unsubscribe := d.Outbox.SubscribeIntents()
	defer unsubscribe()
	for ctx.Err() == nil {
		claimed, err := d.Outbox.ClaimIntents(ctx, batch)
		if err != nil {
			if ctx.Err() == nil {
				d.Log.WarnContext(ctx, "dispatcher cannot read the outbox", "error", err)
			}
			wait(ctx, nil, pollEvery)
			continue
		}
		d.deliverAll(ctx, claimed)
		if len(claimed) > 0 {
			continue // a delivered intent may have made room for the next one of its run
		}
		pause := pollEvery
		if due, any, err := d.Outbox.NextIntent(ctx); err == nil && any {
			pause = min(pause, max(due, 10*time.Millisecond))
		}
		wait(ctx, news, pause)
	}
}

// keepQueues releases the runs whose turn has come, until ctx ends. The end of a run that others wait for is news.
func (d *Dispatcher) keepQueues(ctx context.Context) {
	news, unsubscribe := d.Outbox.SubscribeIntents()
	defer unsubscribe()
	for ctx.Err() == nil {
		released, err := d.Outbox.ReleaseQueued(ctx)
		if err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "dispatcher cannot release queued runs", "error", err)
		}
		if released == 0 || err != nil {
			wait(ctx, news, pollEvery)
		}
	}
}

func wait(ctx context.Context, news <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-news:
	case <-timer.C:
	}
}

// deliverAll returns when every intent has been tried, so that none is claimed twice at a time.
func (d *Dispatcher) deliverAll(ctx context.Context, intents []ledger.Intent) {
	slots := make(chan struct{}, parallel)
	var group sync.WaitGroup
	for _, i := range intents {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			d.deliver(ctx, i)
		})
	}
	group.Wait()
}

func (d *Dispatcher) deliver(ctx context.Context, i ledger.Intent) {
	attempt, cancel := context.WithTimeout(ctx, deliverTimeout)
	err := d.send(attempt, i)
	cancel()
	if ctx.Err() != nil {
		return // not marked: whoever leads next tries again
	}
	if err == nil {
		if err = d.Outbox.IntentDelivered(ctx, i); err != nil {
			d.Log.WarnContext(ctx, "intent delivered but not marked; it will be delivered again", "intent", i.ID, "error", err)
		}
		return
	}
	if i.Kind == ledger.StartIntent && i.Attempts > 1 && d.unstarted(ctx, i) {
		return
	}
	pause := min(longestPause, 100*time.Millisecond<<min(i.Attempts, 6))
	d.Log.WarnContext(ctx, "intent not delivered", "intent", i.ID, "run_id", i.RunID, "kind", i.Kind, "retry_in", pause, "error", err)
	if err := d.Outbox.IntentFailed(ctx, i, pause, err); err != nil {
		d.Log.WarnContext(ctx, "intent not put off", "intent", i.ID, "error", err)
	}
}

// unstarted ends a run that cannot be started and that somebody has cancelled: nothing else can take the cancellation, which
// waits behind the start. It reports false when the start is to be tried again.
func (d *Dispatcher) unstarted(ctx context.Context, i ledger.Intent) bool {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	_, err := d.Temporal.DescribeWorkflowExecution(ctx, i.RunID, "")
	var missing *serviceerror.NotFound
	var nowhere *serviceerror.NamespaceNotFound
	if !errors.As(err, &missing) && !errors.As(err, &nowhere) {
		return false
	}
	ended, err := d.Outbox.EndUnstarted(ctx, i)
	if err != nil {
		d.Log.WarnContext(ctx, "a run that was cancelled before it started is not ended", "run_id", i.RunID, "error", err)
	}
	return ended
}

func (d *Dispatcher) send(ctx context.Context, i ledger.Intent) error {
	switch i.Kind {
	case ledger.StartIntent:
		return d.start(ctx, i)
	case ledger.CancelIntent:
		return d.signal(ctx, i, agent.CancelSignal)
	case ledger.ResolvedIntent:
		return d.signal(ctx, i, agent.ResolvedSignal)
	case ledger.PauseIntent:
		return d.signal(ctx, i, agent.PauseSignal)
	case ledger.UnpauseIntent:
		return d.signal(ctx, i, agent.UnpauseSignal)
	case ledger.ApprovalIntent:
		return d.signal(ctx, i, agent.ApprovalSignal)
	case ledger.InputIntent:
		return d.signal(ctx, i, agent.InputSignal)
	case ledger.MessageIntent:
		return d.signal(ctx, i, agent.MessageSignal)
	case ledger.LimitsIntent:
		return d.signal(ctx, i, agent.LimitsSignal)
	}
	return fmt.Errorf("intent %d: unknown kind %q", i.ID, i.Kind)
}

func (d *Dispatcher) start(ctx context.Context, i ledger.Intent) error {
	in, err := d.Outbox.StartInput(ctx, i.RunID)
	if err != nil {
		return err
	}
	if in.Epoch != i.Epoch {
		return nil // it was resumed since; that start is an intent of its own
	}
	options := client.StartWorkflowOptions{
		ID:                    i.RunID,
		TaskQueue:             d.TaskQueue,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		// Without this the SDK reports a run that is already started as a success, whoever started it.
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		// The worker of this process gets the first workflow task with the reply, where the server does that.
		EnableEagerStart: true,
		Memo:             map[string]any{"epoch": i.Epoch, "conversation_id": in.ConversationID},
		StaticSummary:    fmt.Sprintf("%s (%s) - conversation %s", in.Agent, in.Mode, in.ConversationID),
	}
	if i.Epoch > 1 {
		before, err := d.earlier(ctx, i)
		if err != nil || before.delivered {
			return err
		}
		options.WorkflowIDReusePolicy = before.reuse
		options.StaticSummary += fmt.Sprintf(" - epoch %d", i.Epoch)
		if before.executionID != "" {
			options.Memo["resumed_from"] = before.executionID
		}
	}
	_, err = d.Temporal.ExecuteWorkflow(ctx, options, agent.WorkflowName, in)
	var started *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &started) && i.Epoch == 1 {
		return nil // by an earlier delivery of this intent
	}
	return err
}

// earlier is what Temporal has of a run that is started again.
type earlier struct {
	// delivered: the newest execution is that of this start.
	delivered   bool
	executionID string
	reuse       enumspb.WorkflowIdReusePolicy
}

// patience is how often the start of a resumed run is tried before an execution of an earlier epoch that is still open is ended.
// One whose run has ended is about to close; one that is stuck will not, and whatever it does, it can write nothing any more.
const patience = 5

// earlier looks at the newest execution of a run that is to be started again, and makes way.
func (d *Dispatcher) earlier(ctx context.Context, i ledger.Intent) (earlier, error) {
	found, err := d.Temporal.DescribeWorkflowExecution(ctx, i.RunID, "")
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return earlier{reuse: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE}, nil // Temporal has lost it, or keeps it no longer
	}
	if err != nil {
		return earlier{}, err
	}
	info := found.GetWorkflowExecutionInfo()
	before := earlier{executionID: info.GetExecution().GetRunId(), reuse: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY}
	epoch, known := epochOf(info)
	if known && epoch >= i.Epoch {
		before.delivered = true
		return before, nil
	}
	switch info.GetStatus() {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED: // without an end in the ledger
		before.reuse = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
		if i.Attempts < patience {
			return before, fmt.Errorf("execution %s of an earlier epoch has not closed yet", before.executionID)
		}
		why := fmt.Sprintf("the run was resumed: epoch %d takes over", i.Epoch)
		if err := d.Temporal.TerminateWorkflow(ctx, i.RunID, before.executionID, why); err != nil && !errors.As(err, &missing) {
			return before, fmt.Errorf("end execution %s of an earlier epoch: %w", before.executionID, err)
		}
	}
	return before, nil
}

func (d *Dispatcher) signal(ctx context.Context, i ledger.Intent, name string) error {
	payload := agent.Intent{}
	if err := json.Unmarshal(i.Payload, &payload); err != nil {
		return fmt.Errorf("intent %d: %w", i.ID, err)
	}
	payload.ID, payload.Epoch = i.ID, i.Epoch
	err := d.Temporal.SignalWorkflow(ctx, i.RunID, "", name, payload)
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		d.Log.InfoContext(ctx, "signal for an execution that has ended", "intent", i.ID, "run_id", i.RunID)
		return nil
	}
	return err
}
