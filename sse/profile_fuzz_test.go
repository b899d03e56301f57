package sse

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// FuzzProfiles holds for whatever an event carries: the profiles for everybody leave its number and its ids as they are, show of
// its data only what is listed for its type, as it stands there, and tell the same under their own names.
func FuzzProfiles(f *testing.F) {
	types := agent.EventTypes()
	for _, e := range sampleEvents(f) {
		f.Add(slices.Index(types, e.Type), e.RunID, e.CommandID, []byte(e.Data))
	}
	f.Add(slices.Index(types, agent.PlanGenerated), "r", "", []byte(`{"task_graph":{"nodes":[{"id":"a","prompt":"x","nodes":[]},{}]},"nodes":1}`))
	f.Add(slices.Index(types, agent.CommandCommitted), "r", "a#1/b", []byte(`{"kind":"tool","output":{"preview":"x","href":"y"}}`))
	f.Fuzz(func(t *testing.T, at int, runID, commandID string, data []byte) {
		e := agent.Event{Sequence: 12, Type: types[(at%len(types)+len(types))%len(types)], ConversationID: "c", RunID: runID, CommandID: commandID, Data: data}
		before := bytes.Clone(data)
		run, react := showRun(e), showReact(e)
		require.Equal(t, before, []byte(e.Data), "others show the same event")
		require.Equal(t, appendEvent(nil, runProfile(), e), appendEvent(nil, runProfile(), e), "the same bytes at every reading")
		for _, shown := range []agent.Event{run, react} {
			require.Equal(t, []any{e.Sequence, e.ConversationID, e.RunID, e.CommandID}, []any{shown.Sequence, shown.ConversationID, shown.RunID, shown.CommandID})
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil || !isObject(data) || hasTwins(t, data, object) {
			return // the ledger holds no such data
		}
		inRun, inReact := requireObject(t, run.Data), requireObject(t, react.Data)
		if react.Type == stepEnd {
			require.Contains(t, []string{`"finished"`, `"failed"`}, string(inReact["outcome"]))
			delete(inReact, "outcome")
		}
		require.Equal(t, inRun, inReact)
		if e.Type == agent.PlanGenerated {
			require.Subset(t, []string{"source", "plan_hash", "planner_model", "planner_prompt_hash", "nodes"}, slices.Collect(maps.Keys(inRun)))
			var nodes []map[string]json.RawMessage
			if inRun["nodes"] != nil {
				require.NoError(t, json.Unmarshal(inRun["nodes"], &nodes))
			}
			for _, n := range nodes {
				require.Subset(t, []string{"id", "kind", "tool", "depends_on", "expected_output"}, slices.Collect(maps.Keys(n)))
			}
			return
		}
		_, public := runView(e.Type, agent.CommandKind(text(object["kind"])))
		for name, value := range inRun {
			require.Contains(t, public, name)
			if name == "input" || name == "output" {
				value = withoutLink(t, value, object[name])
			}
			require.JSONEq(t, string(object[name]), string(value), name)
		}
	})
}

func requireObject(t *testing.T, data []byte) map[string]json.RawMessage {
	t.Helper()
	if data == nil {
		return map[string]json.RawMessage{}
	}
	var object map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &object), "%s", data)
	return object
}

// hasTwins reports whether an object has a name twice, or in more than one spelling.
func hasTwins(t *testing.T, data []byte, object map[string]json.RawMessage) bool {
	t.Helper()
	of, ok := members(nil, data)
	require.True(t, ok)
	for _, m := range of {
		if bytes.IndexByte(m.name, '\\') >= 0 {
			return true
		}
	}
	return len(of) != len(object)
}

// withoutLink is a shown value without the href that was added to it.
func withoutLink(t *testing.T, shown, held json.RawMessage) json.RawMessage {
	t.Helper()
	var with, without map[string]json.RawMessage
	if json.Unmarshal(shown, &with) != nil || json.Unmarshal(held, &without) != nil || with == nil {
		return shown
	}
	if without["href"] != nil || hasTwins(t, held, without) {
		return held // which of the two somebody sees is not said
	}
	delete(with, "href")
	raw, err := json.Marshal(with)
	require.NoError(t, err)
	return raw
}
