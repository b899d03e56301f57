package dispatch_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"

	"runledger/ledger"
)

// A run is started again under its own id, next to whatever Temporal has of its earlier executions.
func TestStartOfALaterEpoch(t *testing.T) {
	t.Parallel()
	const (
		running    = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
		failedOnly = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY
	)
	again := serviceerror.NewWorkflowExecutionAlreadyStarted("there", "", "")
	for name, c := range map[string]struct {
		found  *execution // nil when Temporal has none
		errors []error    // of what it is told, one each
		told   []string
		reuse  enumspb.WorkflowIdReusePolicy
		failed int
	}{
		"Temporal has lost it": {nil, nil, []string{"start r"}, enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE, 0},
		"it has failed":        {&execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, epoch: "1"}, nil, []string{"start r"}, failedOnly, 0},
		"it was terminated":    {&execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, epoch: "1"}, nil, []string{"start r"}, failedOnly, 0},
		"it completed without an end in the ledger": {&execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, epoch: "1"}, nil, []string{"start r"},
			enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE, 0},
		"we have started it, and nobody noted it":           {&execution{status: running, epoch: "2"}, nil, nil, 0, 0},
		"we have started it, and it is over":                {&execution{status: enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, epoch: "2"}, nil, nil, 0, 0},
		"a later one was started":                           {&execution{status: running, epoch: "3"}, nil, nil, 0, 0},
		"the earlier one does not close":                    {&execution{status: running, epoch: "1"}, nil, []string{"terminate r x", "start r"}, failedOnly, 4},
		"the earlier one closes as it is ended":             {&execution{status: running, epoch: "1"}, []error{serviceerror.NewNotFound("closed")}, []string{"terminate r x", "start r"}, failedOnly, 4},
		"it cannot be ended at first":                       {&execution{status: running, epoch: "1"}, []error{serviceerror.NewUnavailable("away")}, []string{"terminate r x", "terminate r x", "start r"}, failedOnly, 5},
		"somebody else starts something under its id first": {nil, []error{again}, []string{"start r", "start r"}, enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 2})
			o.epoch = 2
			tp := &temporal{errors: c.errors, executions: &executions{found: map[string]*execution{}}}
			if c.found != nil {
				tp.executions.found["r"] = c.found
			}
			run(t, o, tp, 1)
			require.Equal(t, c.told, tp.told)
			require.Equal(t, c.failed, o.intents[0].failed)
			if len(c.told) == 0 {
				return
			}
			require.Equal(t, c.reuse, tp.started.WorkflowIDReusePolicy)
			require.Equal(t, 2, tp.started.Memo["epoch"])
			require.Contains(t, tp.started.StaticSummary, " - epoch 2", "the Temporal UI shows which execution it is")
			if c.found != nil {
				require.Equal(t, "x", tp.started.Memo["resumed_from"], "and which one it follows")
			} else {
				require.NotContains(t, tp.started.Memo, "resumed_from")
			}
		})
	}
}

// The start of an epoch that the run has left is not made any more.
func TestStartOfAnEpochThatWasLeft(t *testing.T) {
	t.Parallel()
	o := newOutbox(ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 1}, ledger.Intent{RunID: "r", Kind: ledger.StartIntent, Epoch: 2})
	o.epoch = 2
	tp := &temporal{executions: &executions{found: map[string]*execution{}}}
	run(t, o, tp, 2)
	require.Equal(t, []string{"start r"}, tp.told)
	require.Equal(t, 2, tp.started.Memo["epoch"])
}
