package policy_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/policy"
)

var (
	live  = &agent.Policy{Replay: agent.LiveRun}
	audit = &agent.Policy{Replay: agent.AuditReplay}
)

func TestNoRulesInjectWhatIsRecordedAndExecuteTheRest(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]*agent.Policy{"nil": nil, "empty": {}, "live": live} {
		for _, class := range classes() {
			t.Run(name+"/"+string(class), func(t *testing.T) {
				t.Parallel()
				require.Equal(t, policy.Inject, decide(rules, policy.Command{Effect: class, Recorded: true}))
				require.Equal(t, policy.Execute, decide(rules, policy.Command{Effect: class}), "a run executes at its frontier")
			})
		}
	}
}

func TestAuditReplay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command policy.Command
		want    agent.Decision
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
			require.Equal(t, c.want, decide(audit, c.command))
		})
	}
}

func TestReplayThatIsUnknownForbids(t *testing.T) {
	t.Parallel()
	odd := &agent.Policy{Replay: "rehearsal"} // of a newer version's record
	require.Equal(t, policy.Forbid, decide(odd, policy.Command{Effect: agent.External}))
	require.Equal(t, policy.Inject, decide(odd, policy.Command{Effect: agent.External, Recorded: true}))
}

func decide(p *agent.Policy, c policy.Command) agent.Decision {
	return policy.Decide(p, c).Decision
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
func freedom(t require.TestingT, d agent.Decision) int {
	order := map[agent.Decision]int{policy.Forbid: 0, policy.Inject: 0, policy.Ask: 1, policy.Execute: 2}
	require.Contains(t, order, d)
	return order[d]
}

func TestAnyDecision(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := anyCommand(t)
		rules := rapid.SampledFrom([]*agent.Policy{nil, {}, live, audit}).Draw(t, "rules")
		got := decide(rules, c)
		require.Equal(t, got, decide(rules, c), "the same question has the same answer")
		require.LessOrEqual(t, freedom(t, decide(audit, c)), freedom(t, got), "an audit never allows more")
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

func TestRules(t *testing.T) {
	t.Parallel()
	rules := &agent.Policy{Rules: []agent.PolicyRule{
		{Tools: []string{"mail"}, Decision: policy.Execute},
		{Tools: []string{"bank/*"}, Effects: []agent.EffectClass{agent.External}, Decision: policy.Ask, Reason: "money"},
		{Effects: []agent.EffectClass{agent.External}, Decision: policy.Forbid, Reason: "read only"},
		{Kinds: []agent.CommandKind{agent.PlanCommand}, Decision: "later version"},
	}}
	for name, c := range map[string]struct {
		command policy.Command
		want    agent.Decision
		reason  string
	}{
		"the first rule that matches decides": {policy.Command{Kind: agent.ToolCommand, Tool: "mail", Effect: agent.External}, policy.Execute, ""},
		"a pattern and a class":               {policy.Command{Kind: agent.ToolCommand, Tool: "bank/pay", Effect: agent.External}, policy.Ask, "money"},
		"the class does not fit":              {policy.Command{Kind: agent.ToolCommand, Tool: "bank/look", Effect: agent.Idempotent}, policy.Execute, ""},
		"a class alone":                       {policy.Command{Kind: agent.ToolCommand, Tool: "post", Effect: agent.External}, policy.Forbid, "read only"},
		"a class that is unknown is external": {policy.Command{Kind: agent.ToolCommand, Tool: "post", Effect: "odd"}, policy.Forbid, "read only"},
		"a decision that is unknown forbids":  {policy.Command{Kind: agent.PlanCommand, Effect: agent.Idempotent}, policy.Forbid, ""},
		"no rule":                             {policy.Command{Kind: agent.ModelCommand, Effect: agent.Idempotent}, policy.Execute, ""},
		"what is on record is injected":       {policy.Command{Kind: agent.ToolCommand, Tool: "post", Effect: agent.External, Recorded: true}, policy.Inject, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := policy.Decide(rules, c.command)
			require.Equal(t, c.want, answer.Decision)
			require.Equal(t, c.reason, answer.Reason)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	require.NoError(t, policy.Check(nil))
	require.NoError(t, policy.Check(&agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"pay"}, Decision: policy.Ask, When: "args.n > 1", Expires: 1},
		{Kinds: []agent.CommandKind{agent.ToolCommand}, Decision: policy.Ask}, {Effects: classes(), Decision: policy.Forbid}}}))
	for want, rule := range map[string]agent.PolicyRule{
		`rule 1: decision "inject": want execute, forbid or ask`:                                                {Decision: policy.Inject},
		`rule 1: "odd" is not an effect class`:                                                                  {Effects: []agent.EffectClass{"odd"}, Decision: policy.Forbid},
		`rule 1: "odd" is not a kind of command: want plan, llm, tool, http, retrieval or workflow`:             {Kinds: []agent.CommandKind{"odd"}, Decision: policy.Forbid},
		`rule 1: decision ask: only the calls of tools can be approved: the rule needs tools, or kinds: [tool]`: {Decision: policy.Ask, Effects: []agent.EffectClass{agent.External}},
		`rule 1: when goes by the arguments of a tool: the rule needs tools, or kinds: [tool]`:                  {Decision: policy.Forbid, When: "true"},
		`rule 1: expires: only a rule that asks can have it`:                                                    {Tools: []string{"*"}, Decision: policy.Forbid, Expires: 1},
		`rule 1: expires: must not be negative`:                                                                 {Tools: []string{"*"}, Decision: policy.Ask, Expires: -1},
	} {
		require.EqualError(t, policy.Check(&agent.Policy{Rules: []agent.PolicyRule{rule}}), want)
	}
	require.ErrorContains(t, policy.Check(&agent.Policy{Rules: []agent.PolicyRule{{Decision: policy.Forbid, Reason: strings.Repeat("no ", 30_000)}}}),
		"at most 65536 are possible")
}

// TestMoreRulesNeverAllowMore: a rule that forbids, put before the others, can only take away.
func TestMoreRulesNeverAllowMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := rapid.Custom(func(t *rapid.T) agent.PolicyRule {
			return agent.PolicyRule{
				Tools:    rapid.SliceOfN(rapid.SampledFrom([]string{"*", "a", "s/*"}), 0, 2).Draw(t, "tools"),
				Effects:  rapid.SliceOfN(rapid.SampledFrom(classes()), 0, 2).Draw(t, "effects"),
				Decision: rapid.SampledFrom([]agent.Decision{policy.Execute, policy.Forbid, policy.Ask}).Draw(t, "decision"),
			}
		})
		rules := rapid.SliceOfN(rule, 0, 4).Draw(t, "rules")
		deny := rule.Draw(t, "deny")
		deny.Decision = policy.Forbid
		c := anyCommand(t)
		before := decide(&agent.Policy{Rules: rules}, c)
		after := decide(&agent.Policy{Rules: append([]agent.PolicyRule{deny}, rules...)}, c)
		require.LessOrEqual(t, freedom(t, after), freedom(t, before))
	})
}

func TestRulesAreDataOfTheRecord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]agent.Policy{`{}`: {}, `{"replay":"audit"}`: *audit,
		`{"rules":[{"tools":["mail"],"effects":["external"],"decision":"forbid","reason":"no"}]}`: {Rules: []agent.PolicyRule{
			{Tools: []string{"mail"}, Effects: []agent.EffectClass{agent.External}, Decision: policy.Forbid, Reason: "no"}}}} {
		var rules agent.Policy
		require.NoError(t, json.Unmarshal([]byte(text), &rules))
		require.Equal(t, want, rules)
		back, err := json.Marshal(rules)
		require.NoError(t, err)
		require.JSONEq(t, text, string(back))
	}
}

// A rule by arguments is left to whoever knows them. What cannot be evaluated counts for the graver side: it asks, it forbids, it
// does not allow.
func TestRulesByArguments(t *testing.T) {
	t.Parallel()
	pay := policy.Command{Kind: agent.ToolCommand, Tool: "pay", Effect: agent.External}
	rule := func(d agent.Decision) *agent.Policy {
		return &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"pay"}, When: "p", Decision: d, Expires: 7},
			{Tools: []string{"pay"}, Decision: policy.Forbid, Reason: "the next rule"}}}
	}
	says := func(holds bool, err error) policy.Command {
		c := pay
		c.Holds = func(string) (bool, error) { return holds, err }
		return c
	}
	broken := errors.New("no such argument")
	next := policy.Answer{Decision: policy.Forbid, Reason: "the next rule"}
	for _, d := range []agent.Decision{policy.Execute, policy.Forbid, policy.Ask} {
		require.Equal(t, policy.Answer{Decision: policy.Undecided}, policy.Decide(rule(d), pay), "the workflow knows no arguments")
		require.Nil(t, policy.Decide(rule(d), pay).Refusal())
		require.Equal(t, d, policy.Decide(rule(d), says(true, nil)).Decision)
		require.Equal(t, next, policy.Decide(rule(d), says(false, nil)))
	}
	require.Equal(t, next, policy.Decide(rule(policy.Execute), says(false, broken)), "nothing is allowed by what cannot be evaluated")
	require.Equal(t, policy.Answer{Decision: policy.Forbid, Reason: broken.Error(), Expires: 7}, policy.Decide(rule(policy.Forbid), says(false, broken)))
	require.Equal(t, policy.Answer{Decision: policy.Ask, Reason: broken.Error(), Expires: 7}, policy.Decide(rule(policy.Ask), says(false, broken)))

	tool := func(c policy.Command, predicate string) policy.Command { c.Approve = predicate; return c }
	require.Equal(t, policy.Ask, policy.Decide(nil, tool(pay, policy.Always)).Decision)
	require.Equal(t, policy.Undecided, policy.Decide(nil, tool(pay, "p")).Decision)
	require.Equal(t, policy.Ask, policy.Decide(nil, tool(says(true, nil), "p")).Decision)
	require.Equal(t, policy.Execute, policy.Decide(nil, tool(says(false, nil), "p")).Decision)
	require.Equal(t, policy.Answer{Decision: policy.Ask, Reason: broken.Error()}, policy.Decide(nil, tool(says(false, broken), "p")))
	allowed := &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"pay"}, Decision: policy.Execute}}}
	require.Equal(t, policy.Execute, policy.Decide(allowed, tool(pay, policy.Always)).Decision, "a rule of the agent goes before the tool's own")

	// Nobody can be shown what an answer about a model's call would be about.
	everything := &agent.Policy{Rules: []agent.PolicyRule{{Decision: policy.Ask}}}
	require.Equal(t, policy.Forbid, policy.Decide(everything, policy.Command{Kind: agent.ModelCommand, Effect: agent.Idempotent}).Decision)
	require.Equal(t, policy.Forbid, policy.Decide(everything, policy.Command{Kind: agent.HTTPCommand, Effect: agent.External}).Decision)
	require.Equal(t, policy.Ask, policy.Decide(everything, pay).Decision)
}
