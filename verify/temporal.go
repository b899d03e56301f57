package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"runledger/agent"
)

// Temporal is the part of Temporal's client that reads.
type Temporal interface {
	GetWorkflowHistory(ctx context.Context, workflowID, runID string, longPoll bool, filter enumspb.HistoryEventFilterType) client.HistoryEventIterator
	ListWorkflow(ctx context.Context, request *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error)
}

// hear reads the histories of all executions of a run that Temporal still has.
func hear(ctx context.Context, temporal Temporal, runID string) agent.Testimony {
	h := &hearing{temporal: temporal, workflowID: runID, heard: map[string]bool{}}
	err := h.hearAll(ctx)
	var missing *serviceerror.NotFound
	switch {
	case errors.As(err, &missing), err == nil && len(h.Epochs) == 0:
		return agent.Testimony{Absent: agent.WitnessGone, Detail: "Temporal has no history of this run: it has not been started yet, or is kept no longer"}
	case err != nil:
		return agent.Testimony{Absent: agent.WitnessUnreachable, Detail: err.Error()}
	}
	slices.Sort(h.Epochs)
	return h.Testimony
}

type hearing struct {
	agent.Testimony
	temporal   Temporal
	workflowID string
	heard      map[string]bool // executions, by Temporal's run id
}

// hearAll reads the newest execution, which Temporal finds by itself, those that it continued or follows, and those that the
// visibility store lists, which may know of a fresh one a moment late.
func (h *hearing) hearAll(ctx context.Context) error {
	if err := h.execution(ctx, ""); err != nil {
		return err
	}
	var page []byte
	for {
		// Run ids are UUIDs, so there is nothing in one to quote.
		listed, err := h.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query: fmt.Sprintf("WorkflowId = '%s'", h.workflowID), NextPageToken: page})
		if err != nil {
			return fmt.Errorf("list executions: %w", err)
		}
		for _, e := range listed.Executions {
			err := h.execution(ctx, e.GetExecution().GetRunId())
			var gone *serviceerror.NotFound
			if err != nil && !errors.As(err, &gone) {
				return err
			}
		}
		if page = listed.NextPageToken; len(page) == 0 {
			return nil
		}
	}
}

// execution reads one history, and that of the execution which it continued. "" is the newest.
func (h *hearing) execution(ctx context.Context, id string) error {
	if h.heard[id] {
		return nil
	}
	h.heard[id] = true
	var (
		epoch    int
		workflow string
		earlier  []string // the execution that it continued, and the one of an earlier epoch that it follows
		began    agent.State
		handed   *agent.HandOver
	)
	scheduled := map[int64]scheduledActivity{}
	events := h.temporal.GetWorkflowHistory(ctx, h.workflowID, id, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return fmt.Errorf("read history: %w", err)
		}
		switch e.EventType {
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
			started := e.GetWorkflowExecutionStartedEventAttributes()
			if id == "" && h.heard[started.GetOriginalExecutionRunId()] {
				return nil
			}
			h.heard[started.GetOriginalExecutionRunId()] = true
			workflow, earlier = started.GetWorkflowType().GetName(), []string{started.GetContinuedExecutionRunId(), resumedFrom(started)}
			var in agent.RunInput
			if !read(started.GetInput(), &in) {
				h.Unread++
			}
			epoch, began = in.Epoch, in.State
			h.Epochs = append(h.Epochs, epoch)
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
			scheduled[e.EventId] = readScheduled(e)
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
			completed := e.GetActivityTaskCompletedEventAttributes()
			activity := scheduled[completed.GetScheduledEventId()]
			h.state(agent.Statement{Activity: activity.name, CommandID: activity.commandID, EventID: e.EventId, Epoch: epoch}, completed.GetResult())
			var told agent.RecordReply
			if activity.believed != nil && read(completed.GetResult(), &told) && told.State != nil {
				handed = &agent.HandOver{EventID: e.EventId, Epoch: epoch, Began: began, Believed: *activity.believed, Told: *told.State}
			}
		case enumspb.EVENT_TYPE_MARKER_RECORDED:
			h.local(e, epoch)
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
			var next agent.RunInput
			if handed == nil || !read(e.GetWorkflowExecutionContinuedAsNewEventAttributes().GetInput(), &next) {
				h.Unread++
				break
			}
			handed.Next = next.State
			h.HandOvers = append(h.HandOvers, *handed)
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
			h.state(agent.Statement{Activity: workflow, EventID: e.EventId, Epoch: epoch}, e.GetWorkflowExecutionCompletedEventAttributes().GetResult())
		default:
		}
	}
	for i, id := range earlier {
		if id == "" {
			continue
		}
		err := h.execution(ctx, id)
		var gone *serviceerror.NotFound
		switch {
		case errors.As(err, &gone) && i == 0:
			h.Before++
		case err != nil && !errors.As(err, &gone):
			return err
		}
	}
	return nil
}

// resumedFrom is the execution that a resumed run had before, as the dispatcher has noted it; "" for none.
func resumedFrom(started *historypb.WorkflowExecutionStartedEventAttributes) (id string) {
	if payload := started.GetMemo().GetFields()["resumed_from"]; payload != nil {
		_ = converter.GetDefaultDataConverter().FromPayload(payload, &id) // else the visibility store may know of it
	}
	return id
}

type scheduledActivity struct {
	name      string
	commandID string
	// believed is set where it hands over to a new execution.
	believed *agent.State
}

func readScheduled(e *historypb.HistoryEvent) scheduledActivity {
	attributes := e.GetActivityTaskScheduledEventAttributes()
	var in struct {
		CommandID string       `json:"command_id"`
		HandOver  *agent.State `json:"hand_over"`
	}
	read(attributes.GetInput(), &in) // the activities that have no command leave it empty
	return scheduledActivity{name: attributes.GetActivityType().GetName(), commandID: in.CommandID, believed: in.HandOver}
}

// state notes what an activity of any type told: all replies have these fields, as far as they apply.
func (h *hearing) state(s agent.Statement, result *commonpb.Payloads) {
	if s.Activity == string(agent.Evaluate) { // it reads what others have told
		return
	}
	var told struct {
		Outcome  agent.Outcome `json:"outcome"`
		Status   agent.Status  `json:"status"`
		Sequence int64         `json:"sequence_number"`
		Hash     string        `json:"hash"`
		Bytes    int64         `json:"bytes"`
		// Value is the whole of a recorded value, in the place of a hash.
		Value json.RawMessage `json:"value"`
		agent.Witness
	}
	if !read(result, &told) {
		h.Unread++
		return
	}
	if told.Value != nil {
		sum := sha256.Sum256(told.Value)
		told.Outcome, told.Hash, told.Bytes = agent.OutcomeCommitted, hex.EncodeToString(sum[:]), int64(len(told.Value))
	}
	s.Outcome, s.Status, s.Sequence, s.Hash, s.Bytes, s.Witness = told.Outcome, told.Status, told.Sequence, told.Hash, told.Bytes, told.Witness
	h.Statements = append(h.Statements, s)
}

// local notes what a local activity told, a segment of each of its commands. Other markers have no part in the record.
func (h *hearing) local(e *historypb.HistoryEvent, epoch int) {
	marker := e.GetMarkerRecordedEventAttributes()
	if marker.GetMarkerName() != "LocalActivity" || marker.GetFailure() != nil {
		return
	}
	var what struct{ ActivityType string }
	result := marker.GetDetails()["result"]
	if read(marker.GetDetails()["data"], &what) && what.ActivityType != string(agent.Segment) {
		h.state(agent.Statement{Activity: what.ActivityType, EventID: e.EventId, Epoch: epoch}, result)
		return
	}
	var told agent.SegmentReply
	if !read(result, &told) {
		h.Unread++
		return
	}
	for _, c := range told.Commands {
		if c.Outcome == "" {
			continue
		}
		h.Statements = append(h.Statements, agent.Statement{Activity: string(agent.Segment), CommandID: c.CommandID, EventID: e.EventId, Epoch: epoch,
			Outcome: c.Outcome, Sequence: c.Sequence, Hash: c.Hash, Bytes: int64(c.Bytes), Witness: c.Witness})
	}
}

func read(payloads *commonpb.Payloads, into any) bool {
	return len(payloads.GetPayloads()) > 0 && converter.GetDefaultDataConverter().FromPayloads(payloads, into) == nil
}
