package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/dispatch"
	"runledger/ledger"
)

// outbox is an outbox in memory, with the ledger's rules: the first undelivered intent of each run, and an attempt counted
// when it is claimed.
type outbox struct {
	mu        sync.Mutex
	intents   []*row
	news      chan struct{}
	delivered chan ledger.Intent
	lead      chan struct{}
	lost      chan struct{}
	// cancelling: the run is being cancelled.
	cancelling bool
	// queued runs wait for their turn; a call of ReleaseQueued releases one, or fails of one of releaseErrors.
	queued        []string
	releaseErrors []error
	// epoch is that of the runs, 1 unless set.
	epoch int
}

type row struct {
	ledger.Intent
	done   bool
	failed int
}

func newOutbox(intents ...ledger.Intent) *outbox {
	o := &outbox{news: make(chan struct{}, 1), delivered: make(chan ledger.Intent, 100), lead: make(chan struct{}, 100), lost: make(chan struct{})}
	for i, intent := range intents {
		intent.ID, intent.Epoch = int64(i+1), max(1, intent.Epoch)
		o.intents = append(o.intents, &row{Intent: intent})
	}
	return o
}

// Lead gives the place with a connection that a test can lose once.
func (o *outbox) Lead(context.Context) (<-chan struct{}, func(), bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost := o.lost
	o.lost = nil
	o.lead <- struct{}{}
	return lost, func() {}, true, nil
}

func (o *outbox) SubscribeIntents() (<-chan struct{}, func()) { return o.news, func() {} }

func (o *outbox) NextIntent(context.Context) (time.Duration, bool, error) {
	return time.Hour, true, nil
}

func (o *outbox) ClaimIntents(_ context.Context, limit int) (claimed []ledger.Intent, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waiting := map[string]bool{}
	for _, r := range o.intents {
		if !r.done && !waiting[r.RunID] && len(claimed) < limit {
			waiting[r.RunID] = true
			r.Attempts++
			claimed = append(claimed, r.Intent)
		}
	}
	return claimed, nil
}

func (o *outbox) IntentDelivered(_ context.Context, i ledger.Intent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.intents[i.ID-1].done = true
	o.delivered <- i
	return nil
}

func (o *outbox) IntentFailed(_ context.Context, i ledger.Intent, retryIn time.Duration, cause error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.intents[i.ID-1].failed++
	if retryIn <= 0 || cause == nil {
		return errors.New("a failure needs a pause and a cause")
	}
	return nil
}

func (o *outbox) StartInput(_ context.Context, runID string) (agent.RunInput, error) {
	return agent.RunInput{RunID: runID, Epoch: max(1, o.epoch), Agent: "default", Mode: agent.ModePlan}, nil
}

func (o *outbox) EndUnstarted(_ context.Context, i ledger.Intent) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.cancelling {
		return false, nil
	}
	for _, r := range o.intents {
		r.done = r.done || r.RunID == i.RunID
	}
	o.delivered <- i
	return true, nil
}

func (o *outbox) ReleaseQueued(context.Context) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.releaseErrors) > 0 {
		err := o.releaseErrors[0]
		o.releaseErrors = o.releaseErrors[1:]
		return 0, err
	}
	if len(o.queued) == 0 {
		return 0, nil
	}
	o.intents = append(o.intents, &row{Intent: ledger.Intent{ID: int64(len(o.intents) + 1), RunID: o.queued[0], Kind: ledger.StartIntent, Epoch: 1}})
	o.queued = o.queued[1:]
	return 1, nil
}

// temporal notes what it is told, and answers with the errors it was given, one each.
type temporal struct {
	mu     sync.Mutex
	told   []string
	errors []error
	// missing is what Temporal says of every execution, nil when they are there.
	missing error
	// executions, if set, are those that Temporal has.
	executions *executions
	// started is what the last start was asked for with.
	started client.StartWorkflowOptions
}

func (t *temporal) DescribeWorkflowExecution(ctx context.Context, id, executionID string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	if t.executions != nil {
		return t.executions.DescribeWorkflowExecution(ctx, id, executionID)
	}
	return &workflowservice.DescribeWorkflowExecutionResponse{}, t.missing
}

func (t *temporal) TerminateWorkflow(_ context.Context, id, executionID, _ string, _ ...any) error {
	return t.answer("terminate " + id + " " + executionID)
}

func (t *temporal) answer(what string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = append(t.told, what)
	if len(t.errors) == 0 {
		return nil
	}
	err := t.errors[0]
	t.errors = t.errors[1:]
	return err
}

func (t *temporal) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, name any, args ...any) (client.WorkflowRun, error) {
	if name != agent.WorkflowName || args[0].(agent.RunInput).RunID != o.ID || !o.WorkflowExecutionErrorWhenAlreadyStarted {
		return nil, errors.New("started otherwise than agreed")
	}
	t.mu.Lock()
	t.started = o
	t.mu.Unlock()
	return nil, t.answer("start " + o.ID)
}

func (t *temporal) SignalWorkflow(_ context.Context, id, _, name string, arg any) error {
	raw, err := json.Marshal(arg)
	if err != nil {
		return err
	}
	return t.answer(name + " " + id + " " + string(raw))
}

// run dispatches until n intents are delivered.
func run(t *testing.T, o *outbox, temporal *temporal, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d := dispatch.Dispatcher{Outbox: o, Temporal: temporal, TaskQueue: "q", Log: slog.New(slog.DiscardHandler)}
		d.Run(ctx)
	}()
	for range n {
		<-o.delivered
	}
	cancel()
	<-ended
}

func TestIntentsOfARunGoInOrder(t *testing.T) {
	t.Parallel()
	o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 1},
		ledger.Intent{RunID: "r", Kind: ledger.CancelIntent, Payload: json.RawMessage(`{"by": "me", "reason": "enough"}`)})
	tp := &temporal{}
	run(t, o, tp, 2)
	require.Equal(t, []string{"start r", `cancel r {"id":2,"epoch":1,"by":"me","reason":"enough"}`}, tp.told)
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 1})
	tp := &temporal{errors: []error{serviceerror.NewUnavailable("away"), serviceerror.NewUnavailable("away")}}
	run(t, o, tp, 1)
	require.Equal(t, []string{"start r", "start r", "start r"}, tp.told)
	require.Equal(t, 2, o.intents[0].failed)
}

// A run that cannot be started and that somebody has cancelled ends; one that Temporal may have is left alone.
func TestACancelledStartThatIsRefused(t *testing.T) {
	t.Parallel()
	refused := serviceerror.NewInvalidArgument("refused for good")
	for name, missing := range map[string]error{"no such execution": serviceerror.NewNotFound("no"), "no such namespace": serviceerror.NewNamespaceNotFound("ns")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 1}, ledger.Intent{RunID: "r", Kind: ledger.CancelIntent, Payload: json.RawMessage(`{}`)})
			o.cancelling = true
			tp := &temporal{errors: []error{refused, refused, refused}, missing: missing}
			run(t, o, tp, 1)
			require.Equal(t, []string{"start r", "start r"}, tp.told)
		})
	}
	for name, how := range map[string]struct {
		cancelling bool
		missing    error
	}{"Temporal is away": {true, serviceerror.NewUnavailable("away")}, "it is there": {true, nil}, "nobody cancelled it": {false, serviceerror.NewNotFound("no")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 1})
			o.cancelling = how.cancelling
			tp := &temporal{errors: []error{refused, refused, refused}, missing: how.missing}
			run(t, o, tp, 1)
			require.Equal(t, []string{"start r", "start r", "start r", "start r"}, tp.told)
		})
	}
}

// TestDeliveredTwice: a start whose delivery was not marked is delivered again and finds the run started; a signal may find
// that the execution has ended.
func TestDeliveredTwice(t *testing.T) {
	t.Parallel()
	o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 1}, ledger.Intent{RunID: "r", Kind: ledger.CancelIntent, Payload: json.RawMessage(`{}`)})
	tp := &temporal{errors: []error{serviceerror.NewWorkflowExecutionAlreadyStarted("there", "", ""), serviceerror.NewNotFound("gone")}}
	run(t, o, tp, 2)
	require.Zero(t, o.intents[0].failed+o.intents[1].failed)
}

func TestALostPlaceIsTakenAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	lost := o.lost
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d := dispatch.Dispatcher{Outbox: o, Temporal: &temporal{}, TaskQueue: "q", Log: slog.New(slog.DiscardHandler)}
		d.Run(ctx)
	}()
	<-o.lead
	close(lost)
	<-o.lead
	cancel()
	<-ended
}

// TestQueuedRunsAreReleased: whoever leads releases what waits, again and again while there is more, and goes on after an error.
func TestQueuedRunsAreReleased(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	o.queued, o.releaseErrors = []string{"a", "b", "c"}, []error{errors.New("the database is away")}
	tp := &temporal{}
	run(t, o, tp, 3)
	require.ElementsMatch(t, []string{"start a", "start b", "start c"}, tp.told)
}
