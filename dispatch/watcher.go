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
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/ledger"
)

// QuietRuns is the ledger as the watcher sees it. What it is told of a run is written only while the run is as it was looked
// at; the reports say whether it was.
type QuietRuns interface {
	QuietRuns(ctx context.Context, quiet time.Duration, after string, limit int) ([]ledger.QuietRun, error)
	EndLost(ctx context.Context, q ledger.QuietRun, status agent.Status, reason *agent.Error) (ended bool, err error)
	MarkStuck(ctx context.Context, q ledger.QuietRun, reason *agent.Error) (marked bool, err error)
	Unstick(ctx context.Context, q ledger.QuietRun) (freed bool, err error)
}

// Executions is the part of Temporal's client that tells what became of an execution.
type Executions interface {
	DescribeWorkflowExecution(ctx context.Context, workflowID, runID string) (*workflowservice.DescribeWorkflowExecutionResponse, error)
	GetWorkflowHistory(ctx context.Context, workflowID, runID string, isLongPoll bool, filter enumspb.HistoryEventFilterType) client.HistoryEventIterator
}

const (
	// WatchQuiet is how long an open run writes nothing before Temporal is asked about it, WatchEvery the pause between two
	// rounds of asking.
	WatchQuiet = time.Minute
	WatchEvery = 30 * time.Second

	watchBatch    = 256
	watchParallel = 8
	// manyTimeouts is how often in a row a workflow task times out before that is a fault of the run: each time a worker took
	// the task and did not finish it, which two crashes of workers explain.
	manyTimeouts = 4
	// maxReason bounds what is kept of a failure's text.
	maxReason = 2000
)

// Watcher asks Temporal about open runs that have gone quiet. One whose execution is over without a word in the ledger is
// ended; one whose execution is missing or cannot go on is ended when it is being cancelled, else marked as stuck, until it is
// seen to go on.
//
// It is for the one dispatcher at work on a database.
type Watcher struct {
	Runs     QuietRuns
	Temporal Executions
	// Quiet is WatchQuiet and Every WatchEvery outside of tests.
	Quiet, Every time.Duration
	Log          *slog.Logger

	mu sync.Mutex
	// failing holds the length of the history of each run whose workflow task was failing at the last round, by run id.
	failing map[string]int64
}

// Run makes rounds until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.Round(ctx); err != nil && ctx.Err() == nil {
			w.Log.WarnContext(ctx, "the watcher has broken off its round", "error", err)
		}
		wait(ctx, nil, w.Every)
	}
}

// Round asks about every quiet run once. The error says why it was broken off: the ledger or Temporal could not be reached,
// which decides nothing about any run.
func (w *Watcher) Round(ctx context.Context) error {
	failing := map[string]int64{}
	for after := ""; ; {
		runs, err := w.Runs.QuietRuns(ctx, w.Quiet, after, watchBatch)
		if err != nil {
			return err
		}
		if err := w.lookAll(ctx, runs, failing); err != nil {
			return err
		}
		if len(runs) < watchBatch {
			break
		}
		after = runs[len(runs)-1].RunID
	}
	w.failing = failing
	return nil
}

// lookAll asks about the runs of a page, and stops asking when Temporal is away.
func (w *Watcher) lookAll(ctx context.Context, runs []ledger.QuietRun, failing map[string]int64) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	slots := make(chan struct{}, watchParallel)
	var group sync.WaitGroup
	for _, q := range runs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			attempt, cancel := context.WithTimeout(ctx, deliverTimeout)
			defer cancel()
			err := w.look(attempt, q, failing)
			switch {
			case err == nil || ctx.Err() != nil:
			case away(err):
				stop(err)
			default:
				w.Log.WarnContext(ctx, "the watcher cannot tell what became of a run", "run_id", q.RunID, "error", err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// away reports whether an error is about Temporal rather than about one execution.
func away(err error) bool {
	var (
		unavailable *serviceerror.Unavailable
		late        *serviceerror.DeadlineExceeded
		busy        *serviceerror.ResourceExhausted
	)
	return errors.As(err, &unavailable) || errors.As(err, &late) || errors.As(err, &busy) || errors.Is(err, context.DeadlineExceeded)
}

// look asks about one run and does what follows.
func (w *Watcher) look(ctx context.Context, q ledger.QuietRun, failing map[string]int64) error {
	found, err := w.Temporal.DescribeWorkflowExecution(ctx, q.RunID, "")
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return w.missing(ctx, q, "Temporal has no execution of the run")
	}
	if err != nil {
		return err
	}
	info := found.GetWorkflowExecutionInfo()
	if epoch, known := epochOf(info); known && epoch != q.Epoch {
		if epoch > q.Epoch {
			return nil // resumed since the run was looked at
		}
		return w.missing(ctx, q, fmt.Sprintf("Temporal has no execution of the run's epoch %d; its last one is of epoch %d", q.Epoch, epoch))
	}
	switch info.GetStatus() {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
		return w.lookAtTask(ctx, q, found, failing)
	case enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		return w.end(ctx, q, agent.Cancelled, &agent.Error{Code: agent.CodeCancelled, Message: "cancelled in Temporal"})
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		how, err := w.howItEnded(ctx, info.GetExecution().GetRunId(), q)
		if err != nil {
			return err
		}
		return w.end(ctx, q, agent.FailedStatus, &agent.Error{Code: agent.CodeExecutionLost, Message: "the run's Temporal execution " + how})
	default:
		return nil // it is being continued as a new one, or was paused by an operator
	}
}

// epochOf is the epoch that the dispatcher wrote into an execution's memo. It is not known where the memo cannot be read, as
// behind a data converter that is not Temporal's own.
func epochOf(info *workflowpb.WorkflowExecutionInfo) (epoch int, known bool) {
	known = json.Unmarshal(info.GetMemo().GetFields()["epoch"].GetData(), &epoch) == nil
	return epoch, known
}

// missing is told of a run without an execution. Without a start that Temporal has taken there may be none yet.
func (w *Watcher) missing(ctx context.Context, q ledger.QuietRun, what string) error {
	if !q.Started {
		return nil
	}
	return w.stuck(ctx, q, what)
}

// lookAtTask tells an execution that goes on from one whose workflow task fails whenever it is tried. A task that has failed
// once may succeed the next time: it has to be failing for two rounds, with nothing new in the history.
func (w *Watcher) lookAtTask(ctx context.Context, q ledger.QuietRun, found *workflowservice.DescribeWorkflowExecutionResponse, failing map[string]int64) error {
	info, attempt := found.GetWorkflowExecutionInfo(), found.GetPendingWorkflowTask().GetAttempt()
	if attempt <= 1 {
		return w.free(ctx, q)
	}
	w.mu.Lock()
	failing[q.RunID] = info.GetHistoryLength()
	w.mu.Unlock()
	before, again := w.failing[q.RunID]
	if q.Status == agent.Stuck || !again || before != info.GetHistoryLength() {
		return nil
	}
	last, err := w.lastTask(ctx, info.GetExecution().GetRunId(), q)
	if err != nil {
		return err
	}
	if a := last.GetWorkflowTaskFailedEventAttributes(); a != nil {
		return w.stuck(ctx, q, fmt.Sprintf("the run's workflow task fails (%s, attempt %d): %s", a.GetCause(), attempt, a.GetFailure().GetMessage()))
	}
	if last.GetWorkflowTaskTimedOutEventAttributes() != nil && attempt > manyTimeouts {
		return w.stuck(ctx, q, fmt.Sprintf("the run's workflow task times out (attempt %d): no worker finishes it", attempt))
	}
	return nil
}

// lastTask finds the event that ended the last workflow task on record. Later attempts of a task that has failed are not in
// the history.
func (w *Watcher) lastTask(ctx context.Context, executionID string, q ledger.QuietRun) (last *historypb.HistoryEvent, err error) {
	events := w.Temporal.GetWorkflowHistory(ctx, q.RunID, executionID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return nil, err
		}
		switch e.GetEventType() {
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED, enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
			last = e
		}
	}
	return last, nil
}

// howItEnded says how an execution that is over came to its end.
func (w *Watcher) howItEnded(ctx context.Context, executionID string, q ledger.QuietRun) (how string, err error) {
	events := w.Temporal.GetWorkflowHistory(ctx, q.RunID, executionID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	var last *historypb.HistoryEvent
	for events.HasNext() {
		if last, err = events.Next(); err != nil {
			return "", err
		}
	}
	why := ""
	switch last.GetEventType() {
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
		how, why = "was terminated", last.GetWorkflowExecutionTerminatedEventAttributes().GetReason()
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
		how, why = "failed", last.GetWorkflowExecutionFailedEventAttributes().GetFailure().GetMessage()
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
		how = "timed out"
	default:
		how = "completed without an end in the ledger"
	}
	if why != "" {
		how += ": " + why
	}
	return how, nil
}

func (w *Watcher) end(ctx context.Context, q ledger.QuietRun, status agent.Status, reason *agent.Error) error {
	reason.Message = agent.Preview(reason.Message, maxReason)
	ended, err := w.Runs.EndLost(ctx, q, status, reason)
	if ended {
		w.Log.WarnContext(ctx, "the watcher has ended a run", "run_id", q.RunID, "epoch", q.Epoch, "reason", reason.Message)
	}
	return err
}

// stuck is told of a run whose execution cannot go on. It waits for somebody to resume or cancel it. One that somebody has
// cancelled ends, since there is nobody left who could be told so.
func (w *Watcher) stuck(ctx context.Context, q ledger.QuietRun, why string) error {
	switch q.Status {
	case agent.Stuck:
		return nil
	case agent.Cancelling:
		return w.end(ctx, q, agent.Cancelled, &agent.Error{Code: agent.CodeCancelled, Message: why})
	}
	why = agent.Preview(why, maxReason)
	marked, err := w.Runs.MarkStuck(ctx, q, &agent.Error{Code: agent.CodeStuck, Message: why})
	if marked {
		w.Log.WarnContext(ctx, "a run is stuck", "run_id", q.RunID, "epoch", q.Epoch, "reason", why)
	}
	return err
}

func (w *Watcher) free(ctx context.Context, q ledger.QuietRun) error {
	if q.Status != agent.Stuck {
		return nil
	}
	freed, err := w.Runs.Unstick(ctx, q)
	if freed {
		w.Log.InfoContext(ctx, "a run is no longer stuck", "run_id", q.RunID, "epoch", q.Epoch)
	}
	return err
}
