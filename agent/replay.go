package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// Recorded is an event together with the bytes that stand beside it: the result, for command_committed.
type Recorded struct {
	Event
	Result json.RawMessage
}

// ReplayContext is what the events of a run say, in full: the plan, what has been done and with what results. A worker
// that takes a run over needs nothing else.
type ReplayContext struct {
	State State `json:"state"`
	// TaskGraph is plan_generated.task_graph, nil when the record holds no plan.
	TaskGraph *Plan `json:"task_graph"`
	// CompletedNodeIDs are the nodes with a node_finished, CompletedCommandIDs the commands with a command_committed, each
	// in the order of the record.
	CompletedNodeIDs    []string `json:"completed_node_ids"`
	CompletedCommandIDs []string `json:"completed_command_ids"`
	// CommandResults are the committed results by command id.
	CommandResults map[string]json.RawMessage `json:"command_results"`
	// CursorNode is the node that finished last.
	CursorNode string `json:"cursor_node"`
	// PayloadResults are the outputs by node id as they stood at the last node_finished: the input of the next node.
	PayloadResults map[string]json.RawMessage `json:"payload_results"`
	// PayloadResultsByNode are, for every finished node, the outputs as they stood when it finished.
	PayloadResultsByNode map[string]map[string]json.RawMessage `json:"-"`
}

// BuildFromEvents scans the events of one run in order. Records from before command_committed was written still give
// completed nodes and their outputs, as far as node_finished holds them.
func BuildFromEvents(records []Recorded) (*ReplayContext, error) {
	rc := &ReplayContext{
		CompletedNodeIDs:     []string{},
		CompletedCommandIDs:  []string{},
		CommandResults:       map[string]json.RawMessage{},
		PayloadResults:       map[string]json.RawMessage{},
		PayloadResultsByNode: map[string]map[string]json.RawMessage{},
	}
	kinds := map[string]CommandKind{}
	for _, r := range records {
		var err error
		if rc.State, err = Apply(rc.State, r.Event); err != nil {
			return nil, err
		}
		switch r.Type {
		case PlanGenerated:
			var d PlanGeneratedData
			if err := decode(r.Event, &d); err != nil {
				return nil, err
			}
			rc.TaskGraph = d.TaskGraph
		case CommandCommitted:
			var d CommandCommittedData
			if err := decode(r.Event, &d); err != nil {
				return nil, err
			}
			if _, again := rc.CommandResults[r.CommandID]; again {
				return nil, fmt.Errorf("event %d: command %s is committed twice", r.Sequence, r.CommandID)
			}
			rc.complete(r.CommandID, r.Result)
			kinds[r.CommandID] = d.Kind
		case TimerFired, UUIDRecorded, RandomRecorded:
			if err := rc.addValue(r); err != nil {
				return nil, err
			}
		case NodeFinished:
			if err := rc.finishNode(r, kinds); err != nil {
				return nil, err
			}
		default:
		}
	}
	rc.CursorNode = rc.State.Cursor
	return rc, nil
}

func (rc *ReplayContext) complete(commandID string, result json.RawMessage) {
	rc.CompletedCommandIDs = append(rc.CompletedCommandIDs, commandID)
	rc.CommandResults[commandID] = result
}

// addValue takes in a recorded value. Its event holds all of it; the bytes beside the event are those that were first given.
func (rc *ReplayContext) addValue(r Recorded) error {
	if r.CommandID == "" {
		return nil
	}
	var d ValueRecordedData
	if err := decode(r.Event, &d); err != nil {
		return err
	}
	if _, again := rc.CommandResults[r.CommandID]; again {
		return fmt.Errorf("event %d: command %s is recorded twice", r.Sequence, r.CommandID)
	}
	if r.Result == nil {
		r.Result = d.Value
	}
	rc.complete(r.CommandID, r.Result)
	return nil
}

func (rc *ReplayContext) finishNode(r Recorded, kinds map[string]CommandKind) error {
	var d NodeFinishedData
	if err := decode(r.Event, &d); err != nil {
		return err
	}
	output := d.Output.JSON
	if result, ok := rc.CommandResults[d.ResultCommand]; ok {
		var err error
		if output, err = NodeOutput(kinds[d.ResultCommand], result); err != nil {
			return fmt.Errorf("event %d: node %s: %w", r.Sequence, r.NodeID, err)
		}
	}
	if _, again := rc.PayloadResultsByNode[r.NodeID]; !again {
		rc.CompletedNodeIDs = append(rc.CompletedNodeIDs, r.NodeID)
	}
	rc.PayloadResults[r.NodeID] = output
	rc.PayloadResultsByNode[r.NodeID] = maps.Clone(rc.PayloadResults)
	return nil
}

// StartIndex is the first node of the plan that has not finished, len(nodes) when all have.
func (rc *ReplayContext) StartIndex() int {
	if rc.TaskGraph == nil {
		return 0
	}
	for i := range rc.TaskGraph.Nodes {
		if !rc.State.Finished.Has(i) {
			return i
		}
	}
	return len(rc.TaskGraph.Nodes)
}

// NodeOutput is what a node gives to its dependents, from the result of its command: a model's text, a tool's output.
func NodeOutput(kind CommandKind, result json.RawMessage) (json.RawMessage, error) {
	switch kind {
	case ModelCommand:
		var reply struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(result, &reply); err != nil {
			return nil, fmt.Errorf("result of a model command: %w", err)
		}
		return json.Marshal(reply.Text)
	case ToolCommand, PlanCommand, NowCommand, UUIDCommand, RandomCommand, HTTPCommand, WaitCommand, WorkflowCommand, RetrievalCommand:
		return result, nil
	}
	return nil, fmt.Errorf("command kind %q has no output", kind)
}

// EndsNode reports whether a committed command that may end its node does: a model's turn that asks for tools does not.
func EndsNode(kind CommandKind, result json.RawMessage) bool {
	if kind != ModelCommand {
		return true
	}
	var reply struct {
		ToolCalls []json.RawMessage `json:"tool_calls"`
	}
	return json.Unmarshal(result, &reply) != nil || len(reply.ToolCalls) == 0
}

// AnswerText is the final output of a run whose last command gave this result: a model's text, or a tool's output as JSON, as
// the record keeps text.
func AnswerText(kind CommandKind, result json.RawMessage) (string, error) {
	output, err := NodeOutput(kind, result)
	if err != nil {
		return "", err
	}
	var text string
	if json.Unmarshal(output, &text) != nil {
		text = string(output)
	}
	return StorableText(text), nil
}

// StorableText is text as the record keeps it: NUL characters and bytes that are not UTF-8 become U+FFFD.
func StorableText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
