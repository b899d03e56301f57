package dispatch_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/dispatch"
	"runledger/ledger"
)

// quietRuns is the watcher's ledger in memory. It notes what it is told.
type quietRuns struct {
	mu    sync.Mutex
	runs  []ledger.QuietRun // by run id
	quiet time.Duration
	told  []string
	// entered, if set, is told of every question, which then waits for the end of its context and tells left.
	entered, left chan struct{}
}

func (l *quietRuns) QuietRuns(ctx context.Context, quiet time.Duration, after string, limit int) ([]ledger.QuietRun, error) {
	if l.entered != nil {
		l.entered <- struct{}{}
		<-ctx.Done()
		l.left <- struct{}{}
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiet = quiet
	var page []ledger.QuietRun
	for _, q := range l.runs {
		if q.RunID > after && len(page) < limit {
			page = append(page, q)
		}
	}
	return page, nil
}

func (l *quietRuns) tell(format string, args ...any) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf(format, args...))
	return true, nil
}

func (l *quietRuns) EndLost(_ context.Context, q ledger.QuietRun, status agent.Status, reason *agent.Error) (bool, error) {
	return l.tell("%s/%d %s %s", q.RunID, q.Epoch, status, reason)
}

func (l *quietRuns) MarkStuck(_ context.Context, q ledger.QuietRun, reason *agent.Error) (bool, error) {
	return l.tell("%s/%d stuck %s", q.RunID, q.Epoch, reason)
}

func (l *quietRuns) Unstick(_ context.Context, q ledger.QuietRun) (bool, error) {
	return l.tell("%s/%d freed", q.RunID, q.Epoch)
}

// executions is Temporal's answers by workflow id. Whatever has no answer is not found.
type executions struct {
	mu    sync.Mutex
	found map[string]*execution
	asked []string
}

// execution is one answer.
type execution struct {
	err       error
	status    enumspb.WorkflowExecutionStatus
	epoch     string // as it stands in the memo; "" for none
	attempt   int32
	length    int64
	history   []*historypb.HistoryEvent
	historyOf error
}

func (x *executions) DescribeWorkflowExecution(_ context.Context, id, _ string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked = append(x.asked, id)
	e := x.found[id]
	switch {
	case e == nil:
		return nil, serviceerror.NewNotFound("no such execution")
	case e.err != nil:
		return nil, e.err
	}
	info := &workflowpb.WorkflowExecutionInfo{Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: "x"}, Status: e.status, HistoryLength: e.length}
	if e.epoch != "" {
		info.Memo = &commonpb.Memo{Fields: map[string]*commonpb.Payload{"epoch": {Data: []byte(e.epoch)}}}
	}
	found := &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: info}
	if e.attempt > 0 {
		found.PendingWorkflowTask = &workflowpb.PendingWorkflowTaskInfo{Attempt: e.attempt}
	}
	return found, nil
}

func (x *executions) GetWorkflowHistory(_ context.Context, id, _ string, _ bool, filter enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.found[id]
	events := e.history
	if filter == enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT {
		events = events[len(events)-1:]
	}
	return &iterator{events, e.historyOf}
}

type iterator struct {
	events []*historypb.HistoryEvent
	err    error
}

func (i *iterator) HasNext() bool { return len(i.events) > 0 }

func (i *iterator) Next() (*historypb.HistoryEvent, error) {
	e := i.events[0]
	i.events = i.events[1:]
	return e, i.err
}

var (
	started   = &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED}
	taskDone  = &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED}
	taskLate  = &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, Attributes: &historypb.HistoryEvent_WorkflowTaskTimedOutEventAttributes{WorkflowTaskTimedOutEventAttributes: &historypb.WorkflowTaskTimedOutEventAttributes{}}}
	completed = &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED}
	timedOut  = &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT}
)

func taskFailed(message string) *historypb.HistoryEvent {
	return &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED, Attributes: &historypb.HistoryEvent_WorkflowTaskFailedEventAttributes{
		WorkflowTaskFailedEventAttributes: &historypb.WorkflowTaskFailedEventAttributes{Cause: enumspb.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
			Failure: &failurepb.Failure{Message: message}}}}
}

func terminated(reason string) *historypb.HistoryEvent {
	return &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED, Attributes: &historypb.HistoryEvent_WorkflowExecutionTerminatedEventAttributes{
		WorkflowExecutionTerminatedEventAttributes: &historypb.WorkflowExecutionTerminatedEventAttributes{Reason: reason}}}
}

func failed(message string) *historypb.HistoryEvent {
	return &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED, Attributes: &historypb.HistoryEvent_WorkflowExecutionFailedEventAttributes{
		WorkflowExecutionFailedEventAttributes: &historypb.WorkflowExecutionFailedEventAttributes{Failure: &failurepb.Failure{Message: message}}}}
}

func history(events ...*historypb.HistoryEvent) []*historypb.HistoryEvent { return events }

const (
	running    = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	isComplete = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	isFailed   = enumspb.WORKFLOW_EXECUTION_STATUS_FAILED
	isTimedOut = enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT
	isCanceled = enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED
	isKilled   = enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
	continued  = enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW
)

func watcher(l *quietRuns, x *executions) *dispatch.Watcher {
	return &dispatch.Watcher{Runs: l, Temporal: x, Quiet: time.Minute, Every: time.Hour, Log: slog.New(slog.DiscardHandler)}
}

func TestWhatBecameOfAnExecution(t *testing.T) {
	t.Parallel()
	broken := &execution{status: running, epoch: "2", attempt: 2, length: 9, history: history(started, taskDone, taskFailed("[TMPRL1100] no"))}
	for name, c := range map[string]struct {
		status     agent.Status // running
		notStarted bool
		found      *execution
		want       string // of two rounds
	}{
		"at work":                     {found: &execution{status: running, epoch: "2"}},
		"a task is due":               {found: &execution{status: running, epoch: "2", attempt: 1}},
		"terminated":                  {found: &execution{status: isKilled, epoch: "2", history: history(started, terminated("by hand"))}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution was terminated: by hand"},
		"failed":                      {found: &execution{status: isFailed, epoch: "2", history: history(started, failed("STALE"))}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution failed: STALE"},
		"timed out":                   {found: &execution{status: isTimedOut, epoch: "2", history: history(started, timedOut)}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution timed out"},
		"completed":                   {found: &execution{status: isComplete, epoch: "2", history: history(started, completed)}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution completed without an end in the ledger"},
		"cancelled":                   {found: &execution{status: isCanceled, epoch: "2"}, want: "r/2 cancelled CANCELLED: cancelled in Temporal"},
		"cancelled and told":          {status: agent.Cancelling, found: &execution{status: isCanceled, epoch: "2"}, want: "r/2 cancelled CANCELLED: cancelled in Temporal"},
		"told, terminated":            {status: agent.Cancelling, found: &execution{status: isKilled, epoch: "2", history: history(terminated(""))}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution was terminated"},
		"being continued":             {found: &execution{status: continued, epoch: "2"}},
		"no memo":                     {found: &execution{status: isKilled, history: history(terminated("x"))}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution was terminated: x"},
		"memo in cipher":              {found: &execution{status: isKilled, epoch: "\x01\x02", history: history(terminated("x"))}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution was terminated: x"},
		"of a later epoch":            {found: &execution{status: isKilled, epoch: "3", history: history(terminated("x"))}},
		"of an earlier one":           {found: &execution{status: isKilled, epoch: "1", history: history(terminated("x"))}, want: "r/2 stuck EXECUTION_STUCK: Temporal has no execution of the run's epoch 2; its last one is of epoch 1"},
		"not found":                   {want: "r/2 stuck EXECUTION_STUCK: Temporal has no execution of the run"},
		"not found, as before":        {status: agent.Stuck},
		"not found, never started":    {notStarted: true},
		"not found, and cancelled":    {status: agent.Cancelling, want: "r/2 cancelled CANCELLED: Temporal has no execution of the run"},
		"stuck and goes on":           {status: agent.Stuck, found: &execution{status: running, epoch: "2"}, want: "r/2 freed"},
		"stuck and terminated":        {status: agent.Stuck, found: &execution{status: isKilled, epoch: "2", history: history(terminated("x"))}, want: "r/2 failed EXECUTION_LOST: the run's Temporal execution was terminated: x"},
		"its task fails":              {found: broken, want: "r/2 stuck EXECUTION_STUCK: the run's workflow task fails (NonDeterministicError, attempt 2): [TMPRL1100] no"},
		"its task fails, as before":   {status: agent.Stuck, found: broken},
		"its task fails, cancelled":   {status: agent.Cancelling, found: broken, want: "r/2 cancelled CANCELLED: the run's workflow task fails (NonDeterministicError, attempt 2): [TMPRL1100] no"},
		"its task failed long ago":    {found: &execution{status: running, epoch: "2", attempt: 2, history: history(started, taskFailed("x"), taskDone)}},
		"a worker was lost":           {found: &execution{status: running, epoch: "2", attempt: 4, history: history(started, taskFailed("x"), taskDone, taskLate)}},
		"every worker is lost":        {found: &execution{status: running, epoch: "2", attempt: 5, history: history(started, taskLate)}, want: "r/2 stuck EXECUTION_STUCK: the run's workflow task times out (attempt 5): no worker finishes it"},
		"its long failure is cut off": {found: &execution{status: isFailed, epoch: "2", history: history(failed(strings.Repeat("x", 9000)))}, want: "…"},
		"an answer that is an error":  {found: &execution{err: serviceerror.NewInternal("broken")}},
		"a history that is an error":  {found: &execution{status: isKilled, epoch: "2", history: history(terminated("x")), historyOf: serviceerror.NewDataLoss("gone")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.status == "" {
				c.status = agent.Running
			}
			l := &quietRuns{runs: []ledger.QuietRun{{RunID: "r", Epoch: 2, Status: c.status, Sequence: 7, Started: !c.notStarted}}}
			x := &executions{found: map[string]*execution{}}
			if c.found != nil {
				x.found["r"] = c.found
			}
			w := watcher(l, x)
			require.NoError(t, w.Round(t.Context()))
			first := slices.Clone(l.told)
			if len(first) == 0 { // a failing task is believed at the second sight
				require.NoError(t, w.Round(t.Context()))
			}
			require.Equal(t, time.Minute, l.quiet)
			switch c.want {
			case "":
				require.Empty(t, l.told)
			case "…":
				require.Len(t, l.told, 1)
				require.Less(t, len(l.told[0]), 2100)
			default:
				require.Equal(t, []string{c.want}, l.told)
			}
			if strings.Contains(c.want, "task") {
				require.Empty(t, first, "at the first sight it is too early to tell")
			}
		})
	}
}

// A task that failed, and then another one, is not a task that fails whenever it is tried.
func TestAnExecutionThatMovesIsNotStuck(t *testing.T) {
	t.Parallel()
	l := &quietRuns{runs: []ledger.QuietRun{{RunID: "r", Epoch: 1, Status: agent.Running, Started: true}}}
	e := &execution{status: running, epoch: "1", attempt: 2, length: 5, history: history(taskFailed("x"))}
	x := &executions{found: map[string]*execution{"r": e}}
	w := watcher(l, x)
	round := func() []string {
		t.Helper()
		require.NoError(t, w.Round(t.Context()))
		return l.told
	}
	require.Empty(t, round())
	e.length = 9
	require.Empty(t, round(), "its history has grown")
	e.attempt = 0
	require.Empty(t, round(), "it goes on")
	e.attempt = 2
	require.Empty(t, round(), "it starts to fail once more")
	e.err = serviceerror.NewUnavailable("away")
	require.Error(t, w.Round(t.Context()))
	e.err = nil
	require.Len(t, round(), 1, "what was seen before Temporal was away still holds")
}

func manyRuns(n int) (runs []ledger.QuietRun, want []string) {
	for i := range n {
		id := fmt.Sprintf("r%04d", i)
		runs = append(runs, ledger.QuietRun{RunID: id, Epoch: 1, Status: agent.Running, Started: true})
		want = append(want, id)
	}
	return runs, want
}

func TestARoundAsksAboutEveryRunOnce(t *testing.T) {
	t.Parallel()
	runs, want := manyRuns(600)
	l, x := &quietRuns{runs: runs}, &executions{found: map[string]*execution{}}
	for i, id := range want {
		x.found[id] = &execution{status: running, epoch: "1"}
		if i%100 == 0 {
			x.found[id].err = serviceerror.NewInternal("this one is broken")
		}
	}
	require.NoError(t, watcher(l, x).Round(t.Context()))
	require.ElementsMatch(t, want, x.asked)
	require.Empty(t, l.told)
}

// Temporal that cannot be reached is asked no further in this round, and says nothing about any run.
func TestTemporalAwayDecidesNothing(t *testing.T) {
	t.Parallel()
	for _, away := range []error{serviceerror.NewUnavailable("away"), serviceerror.NewDeadlineExceeded("slow"), context.DeadlineExceeded,
		serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT, "busy"), fmt.Errorf("dial: %w", serviceerror.NewUnavailable("away"))} {
		runs, ids := manyRuns(600)
		l, x := &quietRuns{runs: runs}, &executions{found: map[string]*execution{}}
		for _, id := range ids {
			x.found[id] = &execution{err: away}
		}
		require.ErrorIs(t, watcher(l, x).Round(t.Context()), away)
		require.Less(t, len(x.asked), 20)
		require.Empty(t, l.told)
	}
}

// TestTheLeaderWatches: rounds are made while a dispatcher leads, and only then.
func TestTheLeaderWatches(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	lost := o.lost
	l := &quietRuns{entered: make(chan struct{}), left: make(chan struct{}, 2)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d := dispatch.Dispatcher{Outbox: o, Temporal: &temporal{}, TaskQueue: "q", Watcher: watcher(l, &executions{}), Log: slog.New(slog.DiscardHandler)}
		d.Run(ctx)
	}()
	<-o.lead
	<-l.entered
	close(lost)
	<-o.lead
	require.Len(t, l.left, 1, "the place is not given up before the watcher has stopped")
	<-l.entered
	cancel()
	<-ended
	require.Len(t, l.left, 2)
}

// TestRoundsFollowOneAnother: a round that is broken off is followed by the next one.
func TestRoundsFollowOneAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs, ids := manyRuns(1)
		l, x := &quietRuns{runs: runs}, &executions{found: map[string]*execution{ids[0]: {err: serviceerror.NewUnavailable("away")}}}
		w := watcher(l, x)
		w.Every = 30 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Second)
		defer cancel()
		w.Run(ctx)
		require.Len(t, x.asked, 4, "at 0, 30, 60 and 90 seconds")
	})
}
