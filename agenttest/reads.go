package agenttest

import (
	"context"
	"encoding/json"
	"slices"

	"runledger/activities"
	"runledger/agent"
	"runledger/replay"
)

var (
	_ activities.Ledger = (*memory)(nil)
	_ replay.Record     = (*memory)(nil)
)

// read looks at a run.
func (m *memory) read(runID string, look func(*run)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.runs[runID]
	if !ok {
		return &agent.NotFoundError{What: "run", ID: runID}
	}
	look(r)
	return nil
}

// WorkerRun reads a run and its plan.
func (m *memory) WorkerRun(_ context.Context, runID string) (found agent.Run, plan *agent.Plan, err error) {
	err = m.read(runID, func(r *run) { found, plan = r.Run, r.plan })
	return found, plan, err
}

// RunOwner is the one that a server without tokens knows.
func (m *memory) RunOwner(_ context.Context, runID string) (string, error) {
	return "local", m.read(runID, func(*run) {})
}

// Results reads how commands were decided. Commands without an outcome are left out.
func (m *memory) Results(_ context.Context, runID string, commandIDs []string) (map[string]agent.CommandResult, error) {
	results := map[string]agent.CommandResult{}
	err := m.read(runID, func(r *run) {
		for _, id := range commandIDs {
			c := r.rows[id]
			if c == nil {
				continue
			}
			switch c.State {
			case agent.Committed, agent.CommandFailed, agent.CommandAborted:
				results[id] = agent.CommandResult{Kind: c.Kind, State: c.State, Result: c.Result, Error: c.Error}
			case agent.Dispatched, agent.Released, agent.Fenced, agent.CommandInDoubt:
			}
		}
	})
	return results, err
}

// ResultHeads are Results of which no more than the first maxBytes bytes of each are read.
func (m *memory) ResultHeads(ctx context.Context, runID string, commandIDs []string, maxBytes int) (map[string]agent.CommandResult, error) {
	results, err := m.Results(ctx, runID, commandIDs)
	for id, r := range results {
		r.Bytes = len(r.Result)
		r.Result = r.Result[:min(len(r.Result), maxBytes)]
		results[id] = r
	}
	if err == nil {
		err = m.read(runID, func(run *run) {
			for id, r := range results {
				r.Edited = run.rows[id].edited
				results[id] = r
			}
		})
	}
	return results, err
}

// NodeResults reads how nodes ended. Nodes that were skipped, or have not ended, are left out.
func (m *memory) NodeResults(_ context.Context, runID string, nodeIDs []string) (map[string]agent.CommandResult, error) {
	results := map[string]agent.CommandResult{}
	err := m.read(runID, func(r *run) {
		for _, e := range r.events {
			if !slices.Contains(nodeIDs, e.NodeID) {
				continue
			}
			switch e.Type {
			case agent.NodeFinished:
				id, _ := r.resultCommand(e.NodeID)
				if c := r.rows[id]; c != nil {
					results[e.NodeID] = agent.CommandResult{Kind: c.Kind, State: c.State, Result: c.Result}
				}
			case agent.NodeFailed:
				var d agent.NodeFailedData
				if json.Unmarshal(e.Data, &d) == nil {
					results[e.NodeID] = agent.CommandResult{State: agent.CommandFailed, Error: d.Error}
				}
			default:
			}
		}
	})
	return results, err
}

// resultCommand is the command whose result is a node's.
func (r *run) resultCommand(nodeID string) (commandID string, finished bool) {
	for _, e := range slices.Backward(r.events) {
		var d agent.NodeFinishedData
		if e.Type == agent.NodeFinished && e.NodeID == nodeID && json.Unmarshal(e.Data, &d) == nil {
			return d.ResultCommand, true
		}
	}
	return "", false
}

// History lists the conversation before a number, without tool calls.
func (m *memory) History(_ context.Context, _ string, before int64) ([]agent.Message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var messages []agent.Message
	for _, msg := range m.messages {
		if msg.Sequence < before && msg.ToolCalls == nil && msg.Role != agent.ToolMessage {
			messages = append(messages, msg)
		}
	}
	return messages, nil
}

// Transcript lists all messages before a number, newest first. It reads them whole.
func (m *memory) Transcript(_ context.Context, _ string, before int64, limit, _ int) ([]agent.Message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var messages []agent.Message
	for _, msg := range slices.Backward(m.messages) {
		if msg.Sequence < before && len(messages) < limit {
			msg.Bytes = len(msg.Content)
			if c := m.runs[msg.RunID].rows[msg.CommandID]; c != nil && msg.Role == agent.AssistantMessage {
				msg.Heard = c.heard
			}
			messages = append(messages, msg)
		}
	}
	return messages, nil
}

// CountMessages counts the messages before a number.
func (m *memory) CountMessages(_ context.Context, _ string, before int64) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, msg := range m.messages {
		if msg.Sequence < before {
			n++
		}
	}
	return n, nil
}

// CommandInput is what a command on record was called with.
func (m *memory) CommandInput(_ context.Context, runID, commandID string) (input json.RawMessage, err error) {
	err = &agent.NotFoundError{What: "command", ID: commandID}
	if missing := m.read(runID, func(r *run) {
		if c := r.rows[commandID]; c != nil {
			input, err = c.input, nil
		}
	}); missing != nil {
		err = missing
	}
	return input, err
}

// AppendOutput does not keep model output while it arrives: nobody watches.
func (m *memory) AppendOutput(context.Context, string, string, int, []agent.OutputChunk) error {
	return nil
}

// Events reads a run's events after a number.
func (m *memory) Events(_ context.Context, scope agent.LogScope, after int64, limit int) (events []agent.Event, err error) {
	err = m.read(scope.RunID, func(r *run) {
		for _, e := range r.events {
			if e.Sequence > after && len(events) < limit {
				events = append(events, e)
			}
		}
	})
	return events, err
}

// ReplayContext folds a run's events.
func (m *memory) ReplayContext(_ context.Context, runID string) (rc *agent.ReplayContext, err error) {
	missing := m.read(runID, func(r *run) {
		var records []agent.Recorded
		for _, e := range r.events {
			record := agent.Recorded{Event: e}
			if c := r.rows[e.CommandID]; e.Type == agent.CommandCommitted && c != nil {
				record.Result = c.Result
			}
			records = append(records, record)
		}
		rc, err = agent.BuildFromEvents(records)
	})
	if missing != nil {
		err = missing
	}
	return rc, err
}

// Commands lists a run's commands in the order in which they began, with their results.
func (m *memory) Commands(_ context.Context, runID string) (commands []agent.Command, err error) {
	err = m.read(runID, func(r *run) { commands = r.commands() })
	return commands, err
}

func (r *run) commands() []agent.Command {
	commands := make([]agent.Command, 0, len(r.emitted))
	for _, id := range r.emitted {
		c := r.rows[id]
		commands = append(commands, agent.Command{CommandID: id, NodeID: c.NodeID, Kind: c.Kind, Tool: c.Tool, Model: c.model, Effect: c.Effect, State: c.State,
			Dispatches: c.DispatchNo, InputHash: c.InputHash, Input: c.input, Result: c.Result, ResultHash: c.ResultHash, ResultBytes: int64(len(c.Result)),
			Error: c.Error, Usage: c.usage, LatencyMS: c.latencyMS, Sequence: c.Sequence, EmittedAt: c.emittedAt, DecidedAt: c.decidedAt, Resolution: c.Resolution})
	}
	return commands
}

// Fenced lists the commands that were scheduled and given up before they began.
func (m *memory) Fenced(_ context.Context, runID string) (ids []string, err error) {
	err = m.read(runID, func(r *run) {
		for id, c := range r.rows {
			if c.State == agent.Fenced {
				ids = append(ids, id)
			}
		}
	})
	slices.Sort(ids)
	return ids, err
}

// record is a run's log and commands.
func (m *memory) record(runID string) (events []agent.Event, commands []agent.Command) {
	_ = m.read(runID, func(r *run) { events, commands = slices.Clone(r.events), r.commands() })
	return events, commands
}
