package agenttest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"runledger/agent"
)

// RecordEffect gives the value of a recorded Now, UUID or Random: the one on record, else a new one that goes on record.
func (m *memory) RecordEffect(_ context.Context, v agent.NewValue) (reply agent.EffectReply, err error) {
	err = m.write(scope{runID: v.RunID, epoch: v.Epoch, commandID: v.CommandID, facts: v.Facts}, func(t *txn) error {
		if t.run.Status.Terminal() {
			return t.ended()
		}
		if err := t.fence(v.Within); err != nil {
			return err
		}
		if t.command == nil {
			if err := t.recordValue(v); err != nil {
				return err
			}
		} else if t.command.Kind != v.Kind || t.command.State != agent.Committed {
			return agent.Failed(agent.CodeMismatch, "the command is on record as %s, %s; this is %s", t.command.Kind, t.command.State, v.Kind)
		}
		reply = agent.EffectReply{Value: t.command.Result, Sequence: t.command.Sequence}
		return nil
	})
	return reply, err
}

// recordValue writes the event of a new value and its command, committed from the start.
func (t *txn) recordValue(v agent.NewValue) error {
	var typ agent.EventType
	switch v.Kind {
	case agent.NowCommand:
		typ, v.Value = agent.TimerFired, agent.TimeValue(t.now)
	case agent.UUIDCommand:
		typ = agent.UUIDRecorded
	case agent.RandomCommand:
		typ = agent.RandomRecorded
	default:
		return agent.Failed(agent.CodeInternal, "%q is not a kind of recorded value", v.Kind)
	}
	if !json.Valid(v.Value) {
		return agent.Failed(agent.CodeInternal, "the value of a recorded %s is not JSON", v.Kind)
	}
	hash := resultHash(v.Value)
	if err := t.event(typ, v.NodeID, v.CommandID, 1, agent.ValueRecordedData{Kind: v.Kind, Value: v.Value, Hash: hash}); err != nil {
		return err
	}
	owner := agent.Dispatch{Epoch: v.Epoch}
	if v.Within != nil {
		owner = v.Within.Dispatch
	}
	t.command = &row{CommandRow: agent.CommandRow{RunID: v.RunID, CommandID: v.CommandID, NodeID: v.NodeID, Kind: v.Kind, Effect: agent.Deterministic,
		State: agent.Committed, InputHash: string(v.Kind), DispatchNo: 1, Owner: owner, Sequence: t.last, Result: v.Value, ResultHash: hash},
		emittedAt: t.now, decidedAt: &t.now}
	t.run.rows[v.CommandID] = t.command
	t.run.emitted = append(t.run.emitted, v.CommandID)
	return nil
}

// fence refuses what a tool asks for when its dispatch no longer owns the tool's command.
func (t *txn) fence(within *agent.Within) error {
	if within == nil {
		return nil
	}
	c := t.run.rows[within.CommandID]
	if c != nil && c.DispatchNo == within.DispatchNo && c.Owner == within.Dispatch && (c.State == agent.Dispatched || c.State == agent.CommandInDoubt) {
		return nil
	}
	return agent.Failed(agent.CodeSuperseded, "command %s is no longer that of this dispatch", within.CommandID)
}

// doubtWithin settles a tool's command that has an effect within it of which nobody knows: both are in doubt.
func (t *txn) doubtWithin(call agent.SettleCall) (bool, error) {
	owner := t.command
	if owner == nil || owner.Reopened() || owner.Kind != agent.ToolCommand || owner.State != agent.Dispatched && owner.State != agent.Released ||
		owner.Owner.Epoch == call.Epoch && owner.Owner.Schedule > call.Schedule {
		return false, nil
	}
	for _, id := range slices.Sorted(maps.Keys(t.run.rows)) {
		c := t.run.rows[id]
		if !strings.HasPrefix(id, agent.EffectCommandID(owner.CommandID, "")) || c.Effect != agent.External ||
			c.State != agent.Dispatched && c.State != agent.CommandInDoubt {
			continue
		}
		reason := &agent.Error{Code: agent.CodeInDoubt, NodeID: owner.NodeID, CommandID: id, Message: "its tool was given up while it was at work"}
		if c.State == agent.Dispatched {
			t.command = c
			if err := t.decide(c.Owner, agent.CommandInDoubt, reason, 0); err != nil {
				return false, err
			}
		}
		t.command = owner
		return true, t.decide(owner.Owner, agent.CommandInDoubt, reason, 0)
	}
	return false, nil
}
