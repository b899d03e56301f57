package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"runledger/agent"
	"runledger/ledger"
)

// LostRuns is the ledger as a recovery sees it. What it is told of a run is written only while the run is as it was looked at.
type LostRuns interface {
	Recoverable(ctx context.Context, after string, limit int) ([]ledger.QuietRun, error)
	Resume(ctx context.Context, r agent.Resume) (agent.Resumed, error)
	EndLost(ctx context.Context, q ledger.QuietRun, status agent.Status, reason *agent.Error) (ended bool, err error)
}

// Describer is the part of Temporal's client that tells whether there is an execution.
type Describer interface {
	DescribeWorkflowExecution(ctx context.Context, workflowID, runID string) (*workflowservice.DescribeWorkflowExecutionResponse, error)
}

// Recovery brings back the runs that Temporal has lost, with its database or one by one: every run without an end whose
// execution is not there, and every run that ended as EXECUTION_LOST. Each gets another epoch, which a dispatcher starts; one
// that was being cancelled ends as cancelled. A run whose start is still on its way is left to its dispatcher.
//
// It may be done again, and next to dispatchers and workers that are at work: a run that has moved on since it was looked at is
// left alone.
type Recovery struct {
	Runs     LostRuns
	Temporal Describer
	// By is told in run_reopened.
	By string
	// DryRun writes nothing, and tells what would be done.
	DryRun bool
	// Report is told of every run, in the order of their ids.
	Report func(Recovered)
}

// Recovered is what a recovery did with a run.
type Recovered struct {
	RunID string
	// Epoch is that of the lost execution.
	Epoch int
	What  Recovering
	// Step counts the nodes of a resumed run that have ended and stay so; it is not known in a dry run.
	Step int
	// Why says it in words.
	Why string
	// Err is why nothing could be done, with What LeftAlone.
	Err error
}

// Recovering is what is done with a run.
type Recovering string

const (
	// Resumed: it has another epoch.
	Resumed Recovering = "resumed"
	// Ended: it is cancelled.
	Ended Recovering = "cancelled"
	// LeftAlone: it is at work, or nothing can be said of it.
	LeftAlone Recovering = "left"
)

// Run looks at every run that may be lost. The error says why it was broken off: the ledger or Temporal could not be reached, or
// the namespace is not there, which decides nothing about any run.
func (r *Recovery) Run(ctx context.Context) error {
	for after := ""; ; {
		runs, err := r.Runs.Recoverable(ctx, after, watchBatch)
		if err != nil {
			return err
		}
		found, err := r.lookAll(ctx, runs)
		if err != nil {
			return err
		}
		for i, q := range runs {
			r.Report(r.recover(ctx, q, found[i]))
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if len(runs) < watchBatch {
			return nil
		}
		after = runs[len(runs)-1].RunID
	}
}

// lookAll asks Temporal about the runs of a page, before anything is done with one of them: a Temporal that cannot be reached
// has lost nothing.
func (r *Recovery) lookAll(ctx context.Context, runs []ledger.QuietRun) ([]Recovered, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	found := make([]Recovered, len(runs))
	slots := make(chan struct{}, watchParallel)
	var group sync.WaitGroup
	for i, q := range runs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			attempt, cancel := context.WithTimeout(ctx, deliverTimeout)
			defer cancel()
			var err error
			found[i], err = r.look(attempt, q)
			var nowhere *serviceerror.NamespaceNotFound
			switch {
			case err == nil:
			case errors.As(err, &nowhere):
				stop(fmt.Errorf("Temporal has no namespace %q; create it and recover again", nowhere.Namespace)) //nolint:staticcheck // a name
			case away(err):
				stop(fmt.Errorf("ask Temporal about run %s: %w", q.RunID, err))
			default:
				found[i] = Recovered{RunID: q.RunID, Epoch: q.Epoch, What: LeftAlone, Why: "Temporal cannot tell what became of it", Err: err}
			}
		})
	}
	group.Wait()
	return found, context.Cause(ctx)
}

// look says what has to be done with a run.
func (r *Recovery) look(ctx context.Context, q ledger.QuietRun) (Recovered, error) {
	is := func(what Recovering, format string, args ...any) (Recovered, error) {
		return Recovered{RunID: q.RunID, Epoch: q.Epoch, What: what, Why: fmt.Sprintf(format, args...)}, nil
	}
	lost := Resumed
	switch {
	case q.Status.Terminal():
		return is(Resumed, "its execution was lost")
	case !q.Started:
		return is(LeftAlone, "its start is on its way")
	case q.Status == agent.Cancelling:
		lost = Ended
	}
	found, err := r.Temporal.DescribeWorkflowExecution(ctx, q.RunID, "")
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return is(lost, "Temporal has no execution of it")
	}
	if err != nil {
		return Recovered{}, err
	}
	info := found.GetWorkflowExecutionInfo()
	if epoch, known := epochOf(info); known && epoch != q.Epoch {
		if epoch > q.Epoch {
			return is(LeftAlone, "it was resumed meanwhile")
		}
		return is(lost, "Temporal has no execution of epoch %d, its last one is of epoch %d", q.Epoch, epoch)
	}
	switch info.GetStatus() {
	case enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		return is(Ended, "it was cancelled in Temporal")
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		return is(lost, "its execution is over without a word in the ledger")
	default:
		return is(LeftAlone, "it is at work")
	}
}

// recover does what was found to be done.
func (r *Recovery) recover(ctx context.Context, q ledger.QuietRun, found Recovered) Recovered {
	if r.DryRun {
		return found
	}
	var err error
	switch found.What {
	case Resumed:
		var resumed agent.Resumed
		resumed, err = r.Runs.Resume(ctx, agent.Resume{Owner: agent.AnyOwner, RunID: q.RunID, Lost: q.Epoch, By: r.By, Reason: found.Why})
		found.Step = resumed.Step
	case Ended:
		var ended bool
		ended, err = r.Runs.EndLost(ctx, q, agent.Cancelled, &agent.Error{Code: agent.CodeCancelled, Message: found.Why})
		if err == nil && !ended {
			found.What, found.Why = LeftAlone, "it has moved on meanwhile"
		}
	case LeftAlone:
	}
	var conflict *agent.ConflictError
	switch {
	case errors.As(err, &conflict):
		found.What, found.Why = LeftAlone, "it has moved on meanwhile: "+conflict.Detail
	case err != nil:
		found.What, found.Err = LeftAlone, err
	}
	return found
}
