package policy_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/policy"
)

var (
	live  = &policy.Rules{Replay: policy.Live}
	audit = &policy.Rules{Replay: policy.Audit}
)

func TestNoRulesInjectWhatIsRecordedAndExecuteTheRest(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]*policy.Rules{"nil": nil, "empty": {}, "live": live} {
		for _, class := range classes() {
			t.Run(name+"/"+string(class), func(t *testing.T) {
				t.Parallel()
				require.Equal(t, policy.Inject, policy.Decide(rules, policy.Command{Effect: class, Recorded: true}))
				require.Equal(t, policy.Execute, policy.Decide(rules, policy.Command{Effect: class}), "a run executes at its frontier")
			})
		}
	}
}

func TestAuditReplay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command policy.Command
		want    policy.Decision
	}{
		"a recorded model call":         {policy.Command{Kind: agent.ModelCommand, Effect: agent.Idempotent, Recorded: true}, policy.Inject},
		"a recorded plan":               {policy.Command{Kind: agent.PlanCommand, Effect: agent.Idempotent, Recorded: true}, policy.Inject},
		"a recorded external tool":      {policy.Command{Kind: agent.ToolCommand, Tool: "mail", Effect: agent.External, Recorded: true}, policy.Inject},
		"a recorded pure tool":          {policy.Command{Kind: agent.ToolCommand, Tool: "add", Effect: agent.Deterministic, Recorded: true}, policy.Inject},
		"a model call without a record": {policy.Command{Kind: agent.ModelCommand, Effect: agent.Idempotent}, policy.Forbid},
		"a plan without a record":       {policy.Command{Kind: agent.PlanCommand, Effect: agent.Idempotent}, policy.Forbid},
		"an idempotent tool without":    {policy.Command{Kind: agent.ToolCommand, Tool: "put", Effect: agent.Idempotent}, policy.Forbid},
		"an external tool without":      {policy.Command{Kind: agent.ToolCommand, Tool: "mail", Effect: agent.External}, policy.Forbid},
		"a pure tool without":           {policy.Command{Kind: agent.ToolCommand, Tool: "add", Effect: agent.Deterministic}, policy.Execute},
		"no class without a record":     {policy.Command{Kind: agent.ToolCommand, Tool: "odd"}, policy.Forbid},
		"an unknown class without":      {policy.Command{Kind: agent.ToolCommand, Tool: "odd", Effect: "harmless"}, policy.Forbid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, policy.Decide(audit, c.command))
		})
	}
}

func TestReplayThatIsUnknownForbids(t *testing.T) {
	t.Parallel()
	odd := &policy.Rules{Replay: "rehearsal"} // of a newer version's record
	require.Equal(t, policy.Forbid, policy.Decide(odd, policy.Command{Effect: agent.External}))
	require.Equal(t, policy.Inject, policy.Decide(odd, policy.Command{Effect: agent.External, Recorded: true}))
}

func classes() []agent.EffectClass {
	return []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External}
}

func anyCommand(t *rapid.T) policy.Command {
	return policy.Command{
		NodeID:    rapid.String().Draw(t, "node"),
		CommandID: rapid.String().Draw(t, "command"),
		Kind:      rapid.SampledFrom([]agent.CommandKind{agent.PlanCommand, agent.ModelCommand, agent.ToolCommand, ""}).Draw(t, "kind"),
		Tool:      rapid.String().Draw(t, "tool"),
		Effect:    rapid.SampledFrom(append(classes(), "", "odd")).Draw(t, "class"),
		Recorded:  rapid.Bool().Draw(t, "recorded"),
	}
}

// freedom orders decisions by what they let happen.
func freedom(t require.TestingT, d policy.Decision) int {
	order := map[policy.Decision]int{policy.Forbid: 0, policy.Inject: 0, policy.Ask: 1, policy.Execute: 2}
	require.Contains(t, order, d)
	return order[d]
}

func TestAnyDecision(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := anyCommand(t)
		rules := rapid.SampledFrom([]*policy.Rules{nil, {}, live, audit}).Draw(t, "rules")
		got := policy.Decide(rules, c)
		require.Equal(t, got, policy.Decide(rules, c), "the same question has the same answer")
		require.LessOrEqual(t, freedom(t, policy.Decide(audit, c)), freedom(t, got), "an audit never allows more")
		if c.Recorded {
			require.Equal(t, policy.Inject, got, "what is on record is never executed again, nor forbidden")
		} else {
			require.NotEqual(t, policy.Inject, got, "there is nothing to inject")
		}
		if got == policy.Execute && rules == audit {
			require.Equal(t, agent.Deterministic, c.Effect)
		}
	})
}

func TestRulesAreDataOfTheRecord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]policy.Rules{`{}`: {}, `{"replay":"audit"}`: *audit} {
		var rules policy.Rules
		require.NoError(t, json.Unmarshal([]byte(text), &rules))
		require.Equal(t, want, rules)
		back, err := json.Marshal(rules)
		require.NoError(t, err)
		require.JSONEq(t, text, string(back))
	}
}
