package verify_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"runledger/agent"
	"runledger/verify"
)

// archive is a Temporal that has the histories of one run's executions, oldest first.
type archive struct {
	executions []*historypb.History
	ids        []string
	// unlisted executions are those that the visibility store does not know of.
	unlisted map[string]bool
	listing  error
}

func (a *archive) GetWorkflowHistory(_ context.Context, _, runID string, _ bool, _ enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	for i, id := range a.ids {
		if id == runID || runID == "" && i == len(a.ids)-1 {
			return &pages{events: a.executions[i].Events}
		}
	}
	return &pages{err: serviceerror.NewNotFound("no such execution")}
}

// ListWorkflow gives one execution a page.
func (a *archive) ListWorkflow(_ context.Context, in *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	if a.listing != nil {
		return nil, a.listing
	}
	out := &workflowservice.ListWorkflowExecutionsResponse{}
	at := len(in.NextPageToken)
	if at < len(a.ids) {
		out.NextPageToken = make([]byte, at+1)
		if !a.unlisted[a.ids[at]] {
			out.Executions = []*workflowpb.WorkflowExecutionInfo{{Execution: &commonpb.WorkflowExecution{WorkflowId: "r", RunId: a.ids[at]}}}
		}
	}
	return out, nil
}

type pages struct {
	events []*historypb.HistoryEvent
	err    error
}

func (p *pages) HasNext() bool { return p.err != nil || len(p.events) > 0 }

func (p *pages) Next() (*historypb.HistoryEvent, error) {
	if p.err != nil {
		return nil, p.err
	}
	e := p.events[0]
	p.events = p.events[1:]
	return e, nil
}

func payload(t testing.TB, value any) *commonpb.Payloads {
	t.Helper()
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(value)
	require.NoError(t, err)
	return payloads
}

// execution is a history in which CallTool ends with a reply of head's number, and the run with it.
func execution(t testing.TB, id, continued string, epoch int, head int64, chain string) *historypb.History {
	t.Helper()
	witness := agent.Witness{Head: head, Chain: chain}
	return &historypb.History{Events: []*historypb.HistoryEvent{
		{EventId: 1, EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{OriginalExecutionRunId: id, ContinuedExecutionRunId: continued,
				WorkflowType: &commonpb.WorkflowType{Name: agent.WorkflowName}, Input: payload(t, agent.RunInput{RunID: "r", Epoch: epoch})}}},
		{EventId: 5, EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, Attributes: &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{
			ActivityTaskScheduledEventAttributes: &historypb.ActivityTaskScheduledEventAttributes{ActivityType: &commonpb.ActivityType{Name: "Record"},
				Input: payload(t, agent.RecordCall{})}}},
		{EventId: 7, EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, Attributes: &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{
			ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{ScheduledEventId: 5,
				Result: payload(t, agent.RecordReply{Sequence: head, Witness: witness})}}},
	}}
}

// ledger has one run with two events, and a chain of its own making.
type ledger struct{ missing bool }

func (l ledger) RunRecord(context.Context, string) (*agent.RunRecord, error) {
	if l.missing {
		return nil, &agent.NotFoundError{What: "run", ID: "r"}
	}
	return &agent.RunRecord{Run: agent.Run{RunID: "r", Epoch: 2, Status: agent.Running, StartSequence: 1}, Last: 2, Chain: "c2",
		Log: []agent.Link{{Sequence: 1, Chain: "c1"}, {Sequence: 2, Chain: "c2"}},
		Events: []agent.Event{{Sequence: 1, Type: agent.RunStarted, Epoch: 1, Data: []byte("{}")},
			{Sequence: 2, Type: agent.RunReopened, Epoch: 2, Data: []byte(`{"epoch": 2, "status_before": "stuck"}`)}}}, nil
}

func verified(t testing.TB, temporal verify.Temporal) agent.Verification {
	t.Helper()
	v, err := (&verify.Verifier{Ledger: ledger{}, Temporal: temporal}).Verify(t.Context(), "r")
	require.NoError(t, err)
	return v
}

// TestEveryExecutionIsHeard: those that are listed, those that are not yet, those that were continued, and those that were resumed.
func TestEveryExecutionIsHeard(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(a *archive){
		"listed":    func(*archive) {},
		"unlisted":  func(a *archive) { a.unlisted["second"] = true },
		"continued": func(a *archive) { a.unlisted["first"], a.unlisted["second"] = true, true },
		"resumed": func(a *archive) {
			a.unlisted["first"], a.unlisted["second"] = true, true
			a.executions[1].Events[0].GetWorkflowExecutionStartedEventAttributes().Memo = &commonpb.Memo{Fields: map[string]*commonpb.Payload{
				"resumed_from": payload(t, "first").Payloads[0]}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			continued := ""
			if name == "continued" {
				continued = "first"
			}
			a := &archive{ids: []string{"first", "second"}, unlisted: map[string]bool{}, executions: []*historypb.History{
				execution(t, "first", "", 1, 1, "c1"), execution(t, "second", continued, 2, 2, "c2")}}
			change(a)
			v := verified(t, a)
			require.True(t, v.OK, "%v", v.Differences)
			require.Equal(t, agent.Corroborated{Status: agent.WitnessAgrees, Epochs: 2, Executions: 2, Activities: 2}, v.Temporal)
		})
	}
}

// TestTheFirstExecutionThatContradictsIsNamed, though a later one does too.
func TestTheFirstExecutionThatContradictsIsNamed(t *testing.T) {
	t.Parallel()
	v := verified(t, &archive{ids: []string{"first", "second"}, executions: []*historypb.History{
		execution(t, "first", "", 1, 1, "other"), execution(t, "second", "", 2, 2, "other")}})
	require.False(t, v.OK)
	require.Len(t, v.Differences, 1)
	require.Equal(t, agent.Difference{Check: agent.CheckChain, Sequence: 1, Activity: "Record at event 7 of Temporal's history of epoch 1",
		Expected: "the chain other", Found: "c1"}, v.Differences[0])
	require.Equal(t, agent.WitnessDiffers, v.Temporal.Status)
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	t.Parallel()
	v := verified(t, nil)
	require.True(t, v.OK)
	require.Equal(t, agent.WitnessNotConfigured, v.Temporal.Status)

	v = verified(t, &archive{})
	require.True(t, v.OK)
	require.Equal(t, agent.WitnessGone, v.Temporal.Status)

	kept := &archive{ids: []string{"second"}, executions: []*historypb.History{execution(t, "second", "first", 2, 2, "c2")}}
	v = verified(t, kept)
	require.True(t, v.OK, "%v", v.Differences)
	require.Equal(t, "no history of epoch 1; no history of what went before a hand-over", v.Temporal.Detail)

	kept.listing = errors.New("the visibility store is down")
	v = verified(t, kept)
	require.True(t, v.OK)
	require.Equal(t, agent.WitnessUnreachable, v.Temporal.Status)
	require.Contains(t, v.Temporal.Detail, "the visibility store is down")

	kept.listing = nil
	kept.executions[0].Events[2].GetActivityTaskCompletedEventAttributes().Result.Payloads[0].Data = []byte("sealed")
	v = verified(t, kept)
	require.True(t, v.OK)
	require.Contains(t, v.Temporal.Detail, "the results of 1 activities cannot be read")

	var missing *agent.NotFoundError
	_, err := (&verify.Verifier{Ledger: ledger{missing: true}}).Verify(t.Context(), "r")
	require.ErrorAs(t, err, &missing)
}

// TestHistoriesFromBeforeTheChain are heard all the same: what they tell of results is compared, and it is said how many
// told no chain.
func TestHistoriesFromBeforeTheChain(t *testing.T) {
	t.Parallel()
	recorded, err := filepath.Glob("../workflows/testdata/histories/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, recorded)
	for _, path := range recorded {
		t.Run(filepath.Base(path), func(t *testing.T) {
			history, err := client.HistoryFromJSON(open(t, path), client.HistoryJSONOptions{})
			require.NoError(t, err)
			history.Events[0].GetWorkflowExecutionStartedEventAttributes().OriginalExecutionRunId = "first"
			v := verified(t, &archive{ids: []string{"first"}, executions: []*historypb.History{history}})
			require.False(t, v.OK, "it is the history of another run")
			require.Equal(t, agent.WitnessDiffers, v.Temporal.Status)
			require.NotContains(t, v.Temporal.Detail, "cannot be read")
			require.Contains(t, v.Temporal.Detail, "activities told no chain")
			for _, d := range v.Differences {
				require.Contains(t, []agent.Check{agent.CheckActivity, agent.CheckChain, agent.CheckHandOver}, d.Check)
				require.NotEmpty(t, d.Activity)
			}
		})
	}
}

func open(t testing.TB, path string) io.Reader {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return bytes.NewReader(raw)
}
