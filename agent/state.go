package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// State is where a run stands: ids, cursors and sets over its plan, never content. It is what the fold of a run's events
// gives, what a checkpoint keeps, and what a resumed or continued execution starts from.
type State struct {
	Status Status `json:"status,omitempty"`
	Epoch  int    `json:"epoch,omitempty"`
	// Sequence is the number of the last event in this state.
	Sequence int64 `json:"sequence_number,omitempty"`
	// PlanSequence is the number of the event that holds the plan, 0 while there is none.
	PlanSequence int64 `json:"plan_sequence,omitempty"`
	PlanNodes    int   `json:"plan_nodes,omitempty"`
	// Sets over the plan's node indexes. A node is in Started and in at most one of the others.
	Started  Bits `json:"started,omitempty"`
	Finished Bits `json:"finished,omitempty"`
	Failed   Bits `json:"failed,omitempty"`
	Skipped  Bits `json:"skipped,omitempty"`
	// Unmet are the skipped nodes that no failure cut off: their conditions did not hold.
	Unmet Bits `json:"unmet,omitempty"`
	// Cursor is the node that finished last.
	Cursor string `json:"cursor_node,omitempty"`
	// Open are the commands that were emitted and have no outcome yet, InDoubt those that nobody knows about. Sorted.
	Open    []string `json:"open,omitempty"`
	InDoubt []string `json:"in_doubt,omitempty"`
	// Turns is the last turn with a committed model call, by loop node.
	Turns map[string]int `json:"turns,omitempty"`
	// Committed and FailedCommands count commands.
	Committed      int `json:"committed,omitempty"`
	FailedCommands int `json:"failed_commands,omitempty"`
	// ToolCalls counts the tool calls that have an outcome, Tokens what the model calls have used: what limits go by.
	ToolCalls int `json:"tool_calls,omitempty"`
	Tokens    int `json:"tokens,omitempty"`
}

// Done reports whether node i has ended: finished, failed or skipped.
func (s *State) Done(i int) bool { return s.Finished.Has(i) || s.Failed.Has(i) || s.Skipped.Has(i) }

// Step is the number of nodes that have ended.
func (s *State) Step() int { return s.Finished.Count() + s.Failed.Count() + s.Skipped.Count() }

// Apply is the state after event e. Events must come in the order of their numbers; one that s holds already changes
// nothing, so that a prefix may be applied twice.
//
// The error names the event whose data cannot be read.
func Apply(s State, e Event) (State, error) {
	if e.Sequence <= s.Sequence {
		return s, nil
	}
	s.Sequence = e.Sequence
	switch e.Type {
	case RunStarted:
		s.Status, s.Epoch = Running, max(e.Epoch, 1)
	case PlanGenerated:
		var d PlanGeneratedData
		if err := decode(e, &d); err != nil {
			return s, err
		}
		if d.TaskGraph == nil {
			return s, fmt.Errorf("event %d %s: no task_graph", e.Sequence, e.Type)
		}
		s.PlanSequence, s.PlanNodes = e.Sequence, len(d.TaskGraph.Nodes)
	case NodeStarted, NodeFinished, NodeFailed, NodeSkipped:
		var d struct {
			Index int  `json:"node_index"`
			Unmet bool `json:"unmet"`
		}
		if err := decode(e, &d); err != nil {
			return s, err
		}
		if d.Index < 0 || d.Index >= MaxPlanNodes+1 {
			return s, fmt.Errorf("event %d %s: node_index %d", e.Sequence, e.Type, d.Index)
		}
		s.applyNode(e, d.Index)
		if d.Unmet {
			s.Unmet = s.Unmet.With(d.Index)
		}
	case CommandEmitted:
		s.Open = withItem(s.Open, e.CommandID)
		s.InDoubt = withoutItem(s.InDoubt, e.CommandID)
	case CommandCommitted:
		s.close(e.CommandID)
		s.Committed++
		var d CommandCommittedData
		if err := decode(e, &d); err != nil {
			return s, err
		}
		s.count(d.Kind, d.Usage)
		if d.Turn > s.Turns[e.NodeID] {
			turns := maps.Clone(s.Turns)
			if turns == nil {
				turns = map[string]int{}
			}
			turns[e.NodeID] = d.Turn
			s.Turns = turns
		}
	case TimerFired, UUIDRecorded, RandomRecorded:
		if e.CommandID != "" { // a recorded value is a command that one event begins and commits
			s.Committed++
		}
	case CommandFailedType:
		s.close(e.CommandID)
		s.FailedCommands++
		var d CommandFailedData
		if err := decode(e, &d); err != nil {
			return s, err
		}
		s.count(d.Kind, nil)
	case ApprovalRequested:
		s.Open = withItem(s.Open, e.CommandID)
	case CommandAbortType:
		s.close(e.CommandID)
	case CommandDoubtType:
		s.Open = withoutItem(s.Open, e.CommandID)
		s.InDoubt = withItem(s.InDoubt, e.CommandID)
	case CommandReopened:
		s.reopen(e.CommandID)
	case CommandResolved:
		// committed and failed are followed by an event that says so
		var d CommandResolvedData
		if err := decode(e, &d); err != nil {
			return s, err
		}
		if d.Outcome == OutcomeRetry {
			s.reopen(e.CommandID)
		}
	case RunPaused:
		s.Status = Paused
	case RunUnpaused:
		s.Status = Running
	case RunReopened:
		var d RunReopenedData
		if err := decode(e, &d); err != nil {
			return s, err
		}
		s.Epoch = max(e.Epoch, s.Epoch)
		if s.Status != Paused { // a run that was lost while it was paused
			s.Status = Running
		}
		for _, i := range d.Nodes {
			s.Failed = s.Failed.Without(i)
		}
	case RunCompleted:
		s.Status = Completed
	case RunFailed:
		s.Status = FailedStatus
	case RunCancelled:
		s.Status = Cancelled
	case PlanStarted, PlanRevised, PolicyDecided, AttemptDiscarded, Progress, CheckpointSaved,
		ApprovalResolved, InputReceived, LimitReachedType, LimitsChanged, RunForked, HTTPRecorded, MessageAdded:
		// These are part of the story, not of the position.
	}
	return s, nil
}

// count takes a command with an outcome into what limits go by.
func (s *State) count(kind CommandKind, usage json.RawMessage) {
	if kind == ToolCommand {
		s.ToolCalls++
	}
	s.Tokens += TokensOf(usage)
}

// TokensOf is how many tokens a model's command has used, input and output, as its vendor tells; 0 where it does not.
func TokensOf(usage json.RawMessage) int {
	var u struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
	if len(usage) == 0 || json.Unmarshal(usage, &u) != nil {
		return 0
	}
	return max(0, u.Input) + max(0, u.Output)
}

func (s *State) applyNode(e Event, i int) {
	switch e.Type {
	case NodeStarted:
		s.Started = s.Started.With(i)
		s.Failed = s.Failed.Without(i)
	case NodeFinished:
		s.Started, s.Finished, s.Failed = s.Started.With(i), s.Finished.With(i), s.Failed.Without(i)
		s.Cursor = e.NodeID
	case NodeFailed:
		s.Started, s.Failed = s.Started.With(i), s.Failed.With(i)
	case NodeSkipped:
		s.Skipped = s.Skipped.With(i)
	default:
	}
}

func (s *State) reopen(commandID string) {
	s.Open = withItem(s.Open, commandID)
	s.InDoubt = withoutItem(s.InDoubt, commandID)
}

func (s *State) close(commandID string) {
	s.Open = withoutItem(s.Open, commandID)
	s.InDoubt = withoutItem(s.InDoubt, commandID)
}

// Fold is the state after events, from nothing.
func Fold(events []Event) (State, error) {
	var s State
	for _, e := range events {
		var err error
		if s, err = Apply(s, e); err != nil {
			return s, err
		}
	}
	return s, nil
}

func decode(e Event, into any) error {
	if err := json.Unmarshal(e.Data, into); err != nil {
		return fmt.Errorf("event %d %s: data: %w", e.Sequence, e.Type, err)
	}
	return nil
}

func withItem(sorted []string, item string) []string {
	at, found := slices.BinarySearch(sorted, item)
	if found {
		return sorted
	}
	return slices.Insert(slices.Clone(sorted), at, item)
}

func withoutItem(sorted []string, item string) []string {
	at, found := slices.BinarySearch(sorted, item)
	if !found {
		return sorted
	}
	if len(sorted) == 1 {
		return nil
	}
	return slices.Delete(slices.Clone(sorted), at, at+1)
}
