package predicate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/predicate"
)

func TestNames(t *testing.T) {
	t.Parallel()
	for condition, want := range map[string][]string{
		`true`:                         nil,
		`input contains "urgent"`:      nil,
		`nodes.a.output.status == 200`: {"a"},
		`nodes["b-1"].output > 3`:      {"b-1"},
		`nodes.a.error == nil && nodes["b-1"].output.ok && nodes.a.output != nil`: {"a", "b-1"},
		`any(nodes.a.output.items, # > nodes.b.output)`:                           {"a", "b"},
	} {
		named, err := predicate.Names(condition)
		require.NoError(t, err, condition)
		require.Equal(t, want, named, condition)
	}
	for condition, want := range map[string]string{
		`nodes[input].output`:    "name the node",
		`len(nodes) > 1`:         "name the node",
		`nodes.a.output == `:     "predicate",
		`args.x == 1`:            "unknown name args",
		`nodes.a.outcome == 1`:   "has no field outcome",
		`"text"`:                 "expected bool",
		`input matches metadata`: "",
	} {
		_, err := predicate.Names(condition)
		require.ErrorContains(t, err, want, condition)
	}
}

func TestMet(t *testing.T) {
	t.Parallel()
	outcomes := predicate.Outcomes{Input: "an urgent matter", Metadata: map[string]any{"tier": "gold"}, Nodes: map[string]predicate.Outcome{
		"a": {Output: map[string]any{"status": 200.0, "items": []any{1.0, 5.0}}}, "skipped": {}, "b": {Error: map[string]any{"code": "TOOL_FAILED"}}}}
	for condition, want := range map[string]bool{
		`nodes.a.output.status == 200`:                       true,
		`nodes.a.output.status >= 400`:                       false,
		`input contains "urgent" && metadata.tier == "gold"`: true,
		`any(nodes.a.output.items, # > 4)`:                   true,
		`nodes.skipped.output == nil`:                        true,
		`nodes.b.error?.code == "TOOL_FAILED"`:               true,
		`nodes.a.error?.code == "TOOL_FAILED"`:               false,
	} {
		met, err := predicate.Met(condition, outcomes)
		require.NoError(t, err, condition)
		require.Equal(t, want, met, condition)
	}
	for _, condition := range []string{`nodes.a.output.missing > 3`, `nodes.skipped.output.status == 200`, `nodes.a.output`} {
		_, err := predicate.Met(condition, outcomes)
		require.ErrorContains(t, err, "predicate", condition)
	}
}
