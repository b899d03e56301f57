package predicate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/predicate"
)

func call(arguments string) predicate.Call {
	run := &agent.Run{Input: "Pay order 17 back.", Metadata: json.RawMessage(`{"tenant": "acme"}`), Definition: agent.Definition{Agent: "clerk"}}
	return predicate.Of(run, "refund", agent.External, json.RawMessage(arguments))
}

func TestPredicates(t *testing.T) {
	t.Parallel()
	const args = `{"amount": 120.5, "currency": "EUR", "to": ["a@example.org", "b@example.com"], "items": [{"price": 3, "n": 2}], "deep": {"er": true}}`
	for text, want := range map[string]bool{
		`true`:              true,
		`args.amount > 100`: true,
		`args.amount > 100 && args.currency != "EUR"`:          false,
		`args["amount"] <= 120.5 and not (tool == "payout")`:   true,
		`effect == "external" && agent == "clerk"`:             true,
		`metadata.tenant == "acme" and input contains "order"`: true,
		`args.nothing == nil`:                                  true,
		`args.deep?.er == true && args.shallow?.er == nil`:     true,
		`"amount" in args`:                                     true,
		`args.amount in 1..10`:                                 false,
		`any(args.to, not (# endsWith "@example.org"))`:        true,
		`all(args.items, .price * .n < 7)`:                     true,
		`sum(args.items, .price) == 3 && len(args.to) == 2`:    true,
		`count(args.to, # startsWith "a") == 1`:                true,
		`filter(args.items, .price > 5) == []`:                 true,
		`args.currency matches "(?i)^e.r$"`:                    true,
		`any(args.items, any(args.to, # contains "example"))`:  true,
		`(args.amount ?? 0) > 200`:                             false,
		`let limit = 100; args.amount > limit ? true : false`:  true,
		`upper(args.currency) == "EUR" && max(1, 2) == 2`:      true,
		`find(args.to, # contains "b@") != nil`:                true,
	} {
		require.NoError(t, predicate.Check(text), text)
		holds, err := predicate.Holds(text, call(args))
		require.NoError(t, err, text)
		require.Equal(t, want, holds, text)
	}
}

// What cannot be evaluated is an error, never an answer: whoever asks takes it for the graver one.
func TestPredicatesThatCannotBeEvaluated(t *testing.T) {
	t.Parallel()
	for text, arguments := range map[string]string{
		`args.amount > 100`:            `{}`,
		`args.amount > 101`:            `{"amount": "120"}`,
		`args.amount > 102`:            `[1]`,
		`args.amount > 103`:            `nonsense`,
		`args.to.name == "x"`:          `{}`,
		`any(args.to, # == 1)`:         `{"to": 5}`,
		`all(args.to, # > 1)`:          `{"to": [2, null]}`,
		`args.flag`:                    `{"flag": "yes"}`,
		`args.xs[7] == 1`:              `{"xs": []}`,
		`sum(args.items, .price) > 10`: `{"items": [{"price": "a"}]}`,
	} {
		require.NoError(t, predicate.Check(text), text)
		holds, err := predicate.Holds(text, call(arguments))
		require.Error(t, err, "%s of %s", text, arguments)
		require.False(t, holds)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                                       "unexpected token EOF",
		`args.amount >`:                          "unexpected token EOF",
		`arg.amount > 1`:                         "unknown name arg",
		`"yes"`:                                  "expected bool",
		`now() > date("2024-01-01")`:             "unknown name now",
		`replace(args.a, "", args.b) == "x"`:     "unknown name replace",
		`args.a matches args.b`:                  "has to be written out",
		`any(args.xs, args.text matches #)`:      "has to be written out",
		`Call.Tool == "x"`:                       "",
		strings.Repeat("true && ", 400) + `true`: "exceeds maximum allowed nodes",
	} {
		err := predicate.Check(text)
		require.Error(t, err, text)
		require.ErrorContains(t, err, want)
		require.Contains(t, err.Error(), "predicate ", "names what was written")
	}
	err := predicate.CheckPolicy(&agent.Policy{Rules: []agent.PolicyRule{{}, {When: "true"}, {When: "args.x >"}}})
	require.ErrorContains(t, err, `rule 3: when: predicate "args.x >"`)
	require.NoError(t, predicate.CheckPolicy(nil))
	require.NoError(t, predicate.CheckPolicy(&agent.Policy{Rules: []agent.PolicyRule{{When: "args.x > 1"}}}))
}

// A model writes the arguments. Whatever they are, a predicate ends, soon.
func TestHostileArgumentsCostABoundedTime(t *testing.T) {
	t.Parallel()
	ones := `[` + strings.Repeat("1,", 300_000) + `1]`
	long := `"` + strings.Repeat("a", 900_000) + `"`
	words := `[` + strings.Repeat(`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",`, 20_000) + `"b"]`
	for text, arguments := range map[string]string{
		`all(args.xs, all(args.xs, all(args.xs, # > 0)))`:            `{"xs": ` + ones + `}`,
		`any(args.xs, any(args.xs, # == 2))`:                         `{"xs": ` + ones + `}`,
		`any(1..900000, any(1..900000, # == 0))`:                     `{}`,
		`any(args.xs, args.text contains "ab")`:                      `{"xs": ` + ones + `, "text": ` + long + `}`,
		`any(args.xs, args.text matches "(a*)*b")`:                   `{"xs": ` + ones + `, "text": ` + long + `}`,
		`any(args.words, any(args.words, # + args.words[0] == "x"))`: `{"words": ` + words + `}`,
		`any(args.xs, sum(args.xs) < 0)`:                             `{"xs": ` + ones + `}`,
		`len(filter(args.xs, keys(args) == args.xs)) > 0`:            `{"xs": ` + ones + `}`,
		`any(args.xs, len(1..900000) == 1)`:                          `{"xs": ` + ones + `}`,
	} {
		require.NoError(t, predicate.Check(text), text)
		_, err := predicate.Holds(text, call(arguments))
		require.Error(t, err, text)
	}
	// What is large and honest is looked at as a whole.
	holds, err := predicate.Holds(`any(args.rows, .amount > 100)`, call(`{"rows": [`+strings.Repeat(`{"amount": 1},`, 30_000)+`{"amount": 101}]}`))
	require.NoError(t, err)
	require.True(t, holds)
}
