package worker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/temporalproto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var (
	uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	// chains are over ids and times, which differ from one recording to the next.
	chains = regexp.MustCompile(`"chain":"[0-9a-f]{64}"`)
)

// scrub takes everything out of a history that is of the machine and the moment it was recorded on, so that a history that
// is recorded again differs only where the workflow does.
func scrub(history *historypb.History) {
	s := scrubber{ids: map[string]string{}}
	began := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	for _, e := range history.Events {
		e.EventTime, e.TaskId = timestamppb.New(began.Add(time.Duration(e.EventId)*time.Millisecond)), e.EventId
		s.message(e.ProtoReflect())
	}
}

type scrubber struct {
	ids map[string]string
}

// id gives every id a number, in the order of their appearance.
func (s scrubber) id(old string) string {
	if _, known := s.ids[old]; !known {
		s.ids[old] = fmt.Sprintf("00000000-0000-4000-8000-%012d", len(s.ids)+1)
	}
	return s.ids[old]
}

func (s scrubber) message(m protoreflect.Message) {
	if q, ok := m.Interface().(*taskqueuepb.TaskQueue); ok && q.Kind == enumspb.TASK_QUEUE_KIND_STICKY {
		q.Name = "sticky"
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch field.Name() {
		case "identity":
			m.Set(field, protoreflect.ValueOfString("worker"))
			return true
		case "stack_trace", "history_size_bytes", "worker_version", "binary_checksum":
			m.Clear(field)
			return true
		}
		switch {
		case field.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, item protoreflect.Value) bool {
				if field.MapValue().Kind() == protoreflect.MessageKind {
					s.message(item.Message())
				}
				return true
			})
		case field.IsList():
			for i := range v.List().Len() {
				if field.Kind() == protoreflect.MessageKind {
					s.message(v.List().Get(i).Message())
				}
			}
		case field.Kind() == protoreflect.MessageKind:
			s.message(v.Message())
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(uuids.ReplaceAllStringFunc(v.String(), s.id)))
		case field.Kind() == protoreflect.BytesKind:
			text := chains.ReplaceAll(v.Bytes(), []byte(`"chain":""`))
			m.Set(field, protoreflect.ValueOfBytes(uuids.ReplaceAllFunc(text, func(id []byte) []byte { return []byte(s.id(string(id))) })))
		}
		return true
	})
}

// encode writes a history as the SDK and the Temporal CLI read it.
func encode(t testing.TB, history *historypb.History) []byte {
	t.Helper()
	doc, err := temporalproto.CustomJSONMarshalOptions{}.Marshal(history)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, json.Indent(&out, doc, "", " "))
	return append(out.Bytes(), '\n')
}

func TestScrubLeavesNothingOfTheMachine(t *testing.T) {
	t.Parallel()
	history := func(id, host string) *historypb.History {
		h := &historypb.History{}
		const doc = `{"events": [{"eventId": "1", "eventTime": "2026-11-21T05:00:00.123Z", "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED", "taskId": "77",
			"workflowExecutionStartedEventAttributes": {"workflowType": {"name": "AgentExecution"}, "identity": "IDENTITY", "originalExecutionRunId": "ID",
			"input": {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": ""}]}}},
			{"eventId": "2", "workflowTaskScheduledEventAttributes": {"taskQueue": {"name": "HOST:ID", "kind": "TASK_QUEUE_KIND_STICKY", "normalName": "ID"}}}]}`
		text := regexp.MustCompile("ID(?:ENTITY)?|HOST").ReplaceAllStringFunc(doc, func(word string) string {
			return map[string]string{"ID": id, "IDENTITY": "12@" + host, "HOST": host}[word]
		})
		require.NoError(t, temporalproto.CustomJSONUnmarshalOptions{}.Unmarshal([]byte(text), h))
		h.Events[0].GetWorkflowExecutionStartedEventAttributes().Input.Payloads[0].Data = []byte(`{"run_id": "` + id + `","chain":"` + strings.Repeat(id[7:8], 64) + `"}`)
		return h
	}
	a, b := history("0190a000-0000-7000-8000-00000000000a", "alpha"), history("0190b000-0000-7000-8000-00000000000b", "beta")
	scrub(a)
	scrub(b)
	require.True(t, proto.Equal(a, b), "%s\n%s", encode(t, a), encode(t, b))
	require.NotContains(t, string(encode(t, a)), "alpha")
	require.Contains(t, string(a.Events[0].GetWorkflowExecutionStartedEventAttributes().Input.Payloads[0].Data), "00000000-0000-4000-8000-000000000001")
}
