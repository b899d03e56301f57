package bench

import (
	"context"
	"fmt"
	"slices"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Histories are the sizes of what Temporal keeps of a run.
type Histories struct {
	// Executions is the length of the chain of executions, one if there was no continue-as-new. Each are they, the oldest first.
	Executions int
	Each       []History
	// Events and Bytes are of all of them, as they are read: the sum of the events' own sizes. ServerBytes is what the server
	// counts for itself.
	Events      int
	Bytes       int
	ServerBytes int64
	// LargestPayload is that of one input, result or detail, in bytes; LargestIn names the event.
	LargestPayload int
	LargestIn      string
	// BytesByType are the bytes by type of event, EventsByType their number.
	BytesByType, EventsByType map[string]int
}

// History is the size of one execution's history.
type History struct {
	Events      int
	Bytes       int
	ServerBytes int64
}

// Histories reads every execution of a run's chain, once the last one is closed.
func (s *Stack) Histories(ctx context.Context, runID string) (Histories, error) {
	h := Histories{BytesByType: map[string]int{}, EventsByType: map[string]int{}}
	// The run's end is on record a moment before its execution closes; this waits for that.
	if err := s.Temporal.GetWorkflow(ctx, runID, "").Get(ctx, nil); err != nil {
		return h, fmt.Errorf("the execution of run %s: %w", runID, err)
	}
	latest, err := s.Temporal.DescribeWorkflowExecution(ctx, runID, "")
	if err != nil {
		return h, err
	}
	for id := latest.GetWorkflowExecutionInfo().GetExecution().GetRunId(); id != ""; {
		described, err := s.Temporal.DescribeWorkflowExecution(ctx, runID, id)
		if err != nil {
			return h, err
		}
		h.Executions++
		h.ServerBytes += described.GetWorkflowExecutionInfo().GetHistorySizeBytes()
		one := History{ServerBytes: described.GetWorkflowExecutionInfo().GetHistorySizeBytes()}
		execution := id
		id = ""
		for events := s.Temporal.GetWorkflowHistory(ctx, runID, execution, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
			e, err := events.Next()
			if err != nil {
				return h, err
			}
			size, name := proto.Size(e), e.GetEventType().String()
			h.Events, one.Events = h.Events+1, one.Events+1
			h.Bytes, one.Bytes = h.Bytes+size, one.Bytes+size
			h.BytesByType[name] += size
			h.EventsByType[name]++
			if largest := largestPayload(e.ProtoReflect()); largest > h.LargestPayload {
				h.LargestPayload, h.LargestIn = largest, name
			}
			if started := e.GetWorkflowExecutionStartedEventAttributes(); started != nil {
				id = started.GetContinuedExecutionRunId()
			}
		}
		h.Each = slices.Insert(h.Each, 0, one)
	}
	return h, nil
}

// largestPayload is the size of the largest payload anywhere in a message.
func largestPayload(m protoreflect.Message) (most int) {
	if p, ok := m.Interface().(*commonpb.Payload); ok {
		return proto.Size(p)
	}
	look := func(v protoreflect.Value) { most = max(most, largestPayload(v.Message())) }
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					look(v)
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				look(v.List().Get(i))
			}
		default:
			look(v)
		}
		return true
	})
	return most
}
