package agent_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// R0-2, R1-7: all state derives from the events.
func TestFoldGivesThePositionFromEventsAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawRecord(t)
		s, err := agent.Fold(d.events())
		require.NoError(t, err)
		require.Equal(t, d.last, s.Sequence)
		require.Equal(t, d.status, s.Status)
		require.Equal(t, d.epoch, s.Epoch)
		require.Equal(t, d.cursor, s.Cursor)
		require.Equal(t, d.commandsIn("open"), s.Open)
		require.Equal(t, d.commandsIn("doubt"), s.InDoubt)
		require.Equal(t, len(d.commandsIn("committed")), s.Committed)
		require.Equal(t, d.failures, s.FailedCommands)
		if d.plan == nil {
			require.Zero(t, s.PlanSequence)
			return
		}
		require.Equal(t, len(d.plan.Nodes), s.PlanNodes)
		require.NotZero(t, s.PlanSequence)
		ended := 0
		for i, n := range d.plan.Nodes {
			state := d.node[n.ID]
			require.Equal(t, state == "finished", s.Finished.Has(i), n.ID)
			require.Equal(t, state == "failed", s.Failed.Has(i), n.ID)
			require.Equal(t, state == "skipped", s.Skipped.Has(i), n.ID)
			require.Equal(t, state != "" && state != "skipped", s.Started.Has(i), n.ID)
			require.Equal(t, state == "finished" || state == "failed" || state == "skipped", s.Done(i), n.ID)
			if s.Done(i) {
				ended++
			}
			require.Equal(t, d.turns[n.ID], s.Turns[n.ID])
		}
		require.Equal(t, ended, s.Step())
	})
}

// R1-7, D6: at every prefix, fold(prefix) then Apply(rest) = fold(all), and what is held already changes nothing.
func TestFoldOfAPrefixThenTheRestIsTheFoldOfAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := drawRecord(t).events()
		all, err := agent.Fold(events)
		require.NoError(t, err)
		for cut := range len(events) + 1 {
			prefix, err := agent.Fold(events[:cut])
			require.NoError(t, err)

			doc, err := json.Marshal(prefix)
			require.NoError(t, err)
			var s agent.State
			require.NoError(t, json.Unmarshal(doc, &s))
			require.Equal(t, prefix, s, "a state comes back from a checkpoint as it was")

			again := s
			for _, e := range events[:cut] {
				again, err = agent.Apply(again, e)
				require.NoError(t, err)
			}
			require.Equal(t, prefix, again, "a prefix applied twice")

			for _, e := range events[cut:] {
				s, err = agent.Apply(s, e)
				require.NoError(t, err)
			}
			require.Equal(t, all, s)
			unchanged, err := json.Marshal(prefix)
			require.NoError(t, err)
			require.JSONEq(t, string(doc), string(unchanged), "a state is a value: going on from it leaves it as it was")
		}
	})
}

func TestApplyRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		event   agent.Event
		message string
	}{
		"data that is no JSON":     {agent.Event{Type: agent.NodeFinished, Data: json.RawMessage(`{`)}, "event 7 node_finished: data"},
		"no data":                  {agent.Event{Type: agent.CommandCommitted}, "event 7 command_committed: data"},
		"data of another type":     {agent.Event{Type: agent.NodeStarted, Data: json.RawMessage(`{"node_index": "1"}`)}, "event 7 node_started: data"},
		"a node below the plan":    {agent.Event{Type: agent.NodeFailed, Data: json.RawMessage(`{"node_index": -1}`)}, "node_index -1"},
		"a node beyond any plan":   {agent.Event{Type: agent.NodeSkipped, Data: json.RawMessage(`{"node_index": 201}`)}, "node_index 201"},
		"a plan without its graph": {agent.Event{Type: agent.PlanGenerated, Data: json.RawMessage(`{}`)}, "no task_graph"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.event.Sequence = 7
			_, err := agent.Apply(agent.State{}, tc.event)
			require.ErrorContains(t, err, tc.message)
			_, err = agent.Fold([]agent.Event{tc.event})
			require.ErrorContains(t, err, tc.message)
		})
	}
}

// Every event type is either part of the position or knowingly not; none makes Apply fail by its name.
func TestApplyKnowsEveryEventType(t *testing.T) {
	t.Parallel()
	for i, typ := range agent.EventTypes() {
		s, err := agent.Apply(agent.State{}, agent.Event{Sequence: int64(i + 1), Type: typ, Epoch: 1, Data: json.RawMessage(`{"task_graph": {"nodes": []}}`)})
		require.NoError(t, err, typ)
		require.Equal(t, int64(i+1), s.Sequence)
		if typ.Terminal() {
			require.True(t, s.Status.Terminal(), typ)
		} else {
			require.False(t, s.Status.Terminal(), typ)
		}
	}
}

func TestApplyPlanOfALaterEventReplacesTheFormer(t *testing.T) {
	t.Parallel()
	var s agent.State
	for i, nodes := range []string{`[{"id": "a", "kind": "llm"}]`, `[{"id": "a", "kind": "llm"}, {"id": "b", "kind": "llm"}]`} {
		var err error
		s, err = agent.Apply(s, agent.Event{Sequence: int64(i + 1), Type: agent.PlanGenerated, Data: json.RawMessage(`{"task_graph": {"nodes": ` + nodes + `}}`)})
		require.NoError(t, err)
	}
	require.Equal(t, 2, s.PlanNodes)
	require.Equal(t, int64(2), s.PlanSequence)
}
