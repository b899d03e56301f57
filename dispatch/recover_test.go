package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"

	"runledger/agent"
	"runledger/dispatch"
	"runledger/ledger"
)

// lostRuns is a recovery's ledger in memory. It notes what it is told.
type lostRuns struct {
	quietRuns
	refused map[string]error // resumes, by run
	moved   map[string]bool  // runs that have moved on
}

func (l *lostRuns) Recoverable(ctx context.Context, after string, limit int) ([]ledger.QuietRun, error) {
	return l.QuietRuns(ctx, 0, after, limit)
}

func (l *lostRuns) Resume(_ context.Context, r agent.Resume) (agent.Resumed, error) {
	if err := l.refused[r.RunID]; err != nil {
		return agent.Resumed{}, err
	}
	_, _ = l.tell("%s/%d resumed by %s: %s", r.RunID, r.Lost, r.By, r.Reason)
	return agent.Resumed{Step: 3}, nil
}

func (l *lostRuns) EndLost(ctx context.Context, q ledger.QuietRun, status agent.Status, reason *agent.Error) (bool, error) {
	if l.moved[q.RunID] {
		return false, nil
	}
	return l.quietRuns.EndLost(ctx, q, status, reason)
}

// recoverAll gives what a recovery did, by run, and its error.
func recoverAll(t *testing.T, l *lostRuns, x *executions, dryRun bool) (found map[string]dispatch.Recovered, order []string, err error) {
	t.Helper()
	found = map[string]dispatch.Recovered{}
	r := dispatch.Recovery{Runs: l, Temporal: x, By: "me", DryRun: dryRun, Report: func(one dispatch.Recovered) {
		found[one.RunID] = one
		order = append(order, one.RunID)
	}}
	err = r.Run(t.Context())
	return found, order, err
}

func TestRecovery(t *testing.T) {
	t.Parallel()
	conflict := &agent.ConflictError{Reason: agent.ConflictRunOpen, Detail: "somebody was quicker"}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		run     ledger.QuietRun
		found   *execution
		refused error
		moved   bool
		what    dispatch.Recovering
		told    string
		err     error
	}{
		"Temporal has nothing of it": {run: ledger.QuietRun{Status: agent.Running, Started: true}, what: dispatch.Resumed,
			told: "r/1 resumed by me: Temporal has no execution of it"},
		"in doubt, and lost": {run: ledger.QuietRun{Status: agent.InDoubt, Started: true}, what: dispatch.Resumed,
			told: "r/1 resumed by me: Temporal has no execution of it"},
		"it ended as lost": {run: ledger.QuietRun{Status: agent.FailedStatus}, found: &execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, epoch: "1"},
			what: dispatch.Resumed, told: "r/1 resumed by me: its execution was lost"},
		"an earlier epoch's execution": {run: ledger.QuietRun{Epoch: 2, Status: agent.Running, Started: true}, found: &execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, epoch: "1"},
			what: dispatch.Resumed, told: "r/2 resumed by me: Temporal has no execution of epoch 2, its last one is of epoch 1"},
		"terminated a moment ago": {run: ledger.QuietRun{Status: agent.Running, Started: true}, found: &execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, epoch: "1"},
			what: dispatch.Resumed, told: "r/1 resumed by me: its execution is over without a word in the ledger"},
		"cancelled in Temporal": {run: ledger.QuietRun{Status: agent.Running, Started: true}, found: &execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, epoch: "1"},
			what: dispatch.Ended, told: "r/1 cancelled CANCELLED: it was cancelled in Temporal"},
		"being cancelled, and lost": {run: ledger.QuietRun{Status: agent.Cancelling, Started: true}, what: dispatch.Ended,
			told: "r/1 cancelled CANCELLED: Temporal has no execution of it"},
		"being cancelled, and it has moved on": {run: ledger.QuietRun{Status: agent.Cancelling, Started: true}, moved: true, what: dispatch.LeftAlone},
		"its start is on its way":              {run: ledger.QuietRun{Status: agent.Queued}, what: dispatch.LeftAlone},
		"at work":                              {run: ledger.QuietRun{Status: agent.Running, Started: true}, found: &execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, epoch: "1"}, what: dispatch.LeftAlone},
		"resumed meanwhile":                    {run: ledger.QuietRun{Status: agent.Running, Started: true}, found: &execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, epoch: "2"}, what: dispatch.LeftAlone},
		"somebody was quicker":                 {run: ledger.QuietRun{Status: agent.Running, Started: true}, refused: conflict, what: dispatch.LeftAlone},
		"the ledger is broken":                 {run: ledger.QuietRun{Status: agent.Running, Started: true}, refused: broken, what: dispatch.LeftAlone, err: broken},
		"Temporal cannot say":                  {run: ledger.QuietRun{Status: agent.Running, Started: true}, found: &execution{err: broken}, what: dispatch.LeftAlone, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.run.RunID, c.run.Epoch = "r", max(1, c.run.Epoch)
			world := func() (*lostRuns, *executions) {
				l := &lostRuns{quietRuns: quietRuns{runs: []ledger.QuietRun{c.run}}, refused: map[string]error{"r": c.refused}, moved: map[string]bool{"r": c.moved}}
				x := &executions{found: map[string]*execution{}}
				if c.found != nil {
					x.found["r"] = c.found
				}
				return l, x
			}
			l, x := world()
			found, _, err := recoverAll(t, l, x, false)
			require.NoError(t, err)
			require.Equal(t, c.what, found["r"].What, found["r"].Why)
			require.NotEmpty(t, found["r"].Why)
			require.ErrorIs(t, found["r"].Err, c.err)
			if c.told == "" {
				require.Empty(t, l.told)
			} else {
				require.Equal(t, []string{c.told}, l.told)
			}
			if c.what == dispatch.Resumed {
				require.Equal(t, 3, found["r"].Step)
			}
			l, x = world()
			_, _, err = recoverAll(t, l, x, true)
			require.NoError(t, err)
			require.Empty(t, l.told, "a dry run does nothing")
		})
	}
}

// Runs are told of in order, page after page.
func TestRecoveryOfManyRuns(t *testing.T) {
	t.Parallel()
	l := &lostRuns{}
	var want []string
	for i := range 600 {
		want = append(want, fmt.Sprintf("%04d", i))
		l.runs = append(l.runs, ledger.QuietRun{RunID: want[i], Epoch: 1, Status: agent.Running, Started: true})
	}
	_, order, err := recoverAll(t, l, &executions{}, false)
	require.NoError(t, err)
	require.Equal(t, want, order)
	require.Len(t, l.told, 600)
}

// A Temporal that is away, or has no such namespace, decides nothing about any run.
func TestRecoveryWithoutTemporal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"away":         {serviceerror.NewUnavailable("away"), "away"},
		"no namespace": {serviceerror.NewNamespaceNotFound("agents"), `Temporal has no namespace "agents"; create it and recover again`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &lostRuns{quietRuns: quietRuns{runs: []ledger.QuietRun{{RunID: "a", Epoch: 1, Status: agent.Running, Started: true},
				{RunID: "b", Epoch: 1, Status: agent.Running, Started: true}, {RunID: "c", Epoch: 1, Status: agent.FailedStatus}}}}
			found, _, err := recoverAll(t, l, &executions{found: map[string]*execution{"b": {err: c.err}}}, false)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, found)
			require.Empty(t, l.told)
		})
	}
}
