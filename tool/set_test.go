package tool

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

type greetIn struct {
	Name  string          `json:"name" jsonschema:"whom to greet"`
	Times int             `json:"times,omitempty"`
	Extra json.RawMessage `json:"extra,omitempty"`
	Tags  []string        `json:"tags,omitempty"`
}

type greetOut struct {
	Text string  `json:"text"`
	Odd  float64 `json:"odd,omitempty"`
}

func greet(_ context.Context, in greetIn, _ Call) (greetOut, error) {
	switch in.Name {
	case "nobody":
		return greetOut{}, agent.Failed(agent.CodeToolFailed, "nobody is there")
	case "nan":
		return greetOut{Odd: math.NaN()}, nil
	}
	return greetOut{Text: "hello " + in.Name + string(in.Extra)}, nil
}

func newGreet(t testing.TB, name string) Tool {
	t.Helper()
	tool, err := New(Spec{Name: name, Description: "Greets."}, greet)
	require.NoError(t, err)
	return tool
}

func TestTypedTool(t *testing.T) {
	t.Parallel()
	tool := newGreet(t, "greet")
	spec := tool.Spec()
	require.Equal(t, agent.External, spec.Effect, "a tool that does not say is external")
	require.JSONEq(t, `{"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
		"name": {"type": "string", "description": "whom to greet"}, "times": {"type": "integer"}, "extra": true,
		"tags": {"type": ["null", "array"], "items": {"type": "string"}}}}`, string(spec.InputSchema))

	for _, tc := range []struct{ name, args, output, pointer string }{
		{"plain", `{"name": "Ada"}`, `{"text": "hello Ada"}`, ""},
		{"raw", `{"name": "Ada", "extra": {"n": 12345678901234567890}}`, `{"text": "hello Ada{\"n\": 12345678901234567890}"}`, ""},
		{"missing", `{}`, "", "/name"},
		{"nothing", ``, "", "/name"},
		{"unknown", `{"name": "Ada", "nmae": 1}`, "", "/nmae"},
		{"other case", `{"Name": "Ada"}`, "", "/Name"},
		{"too large for the type", `{"name": "Ada", "times": 1e30}`, "", "/times"},
		{"twice", `{"name": "Ada", "name": "Bob"}`, "", "/name"},
		{"trailing", `{"name": "Ada"} 1`, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out, err := tool.Call(t.Context(), Call{Arguments: json.RawMessage(tc.args)})
			if tc.output != "" {
				require.NoError(t, err)
				require.JSONEq(t, tc.output, string(out))
				return
			}
			var fault *ArgumentError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, tc.pointer, fault.Pointer)
		})
	}

	_, err := tool.Call(t.Context(), Call{Arguments: json.RawMessage(`{"name": "nobody"}`)})
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeToolFailed})
	_, err = tool.Call(t.Context(), Call{Arguments: json.RawMessage(`{"name": "nan"}`)})
	failure, ok := agent.AsError(err)
	require.True(t, ok)
	require.Equal(t, agent.FaultUnknown, failure.Fault, "the effect took place, only its answer is lost")
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Spec{Name: "x", Description: "d"}
	with := func(edit func(*Spec)) Spec {
		s := good
		edit(&s)
		return s
	}
	for _, tc := range []struct {
		name, message string
		spec          Spec
	}{
		{"no name", "not a tool name", with(func(s *Spec) { s.Name = "" })},
		{"long name", "not a tool name", with(func(s *Spec) { s.Name = strings.Repeat("x", 65) })},
		{"a space", "not a tool name", with(func(s *Spec) { s.Name = "a b" })},
		{"a line end", "not a tool name", with(func(s *Spec) { s.Name = "ab\n" })},
		{"two slashes", "not a tool name", with(func(s *Spec) { s.Name = "a/b/c" })},
		{"empty server", "not a tool name", with(func(s *Spec) { s.Name = "/b" })},
		{"no description", "description is missing", with(func(s *Spec) { s.Description = "" })},
		{"effect", "not an effect class", with(func(s *Spec) { s.Effect = "harmless" })},
		{"limit", "limit: max_concurrent: -1", with(func(s *Spec) { s.Limit.MaxConcurrent = -1 })},
		{"timeout", "negative", with(func(s *Spec) { s.Timeout = -time.Second })},
		{"schema", "input schema", with(func(s *Spec) { s.InputSchema = json.RawMessage(`{"type": "string"}`) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(tc.spec, greet)
			require.ErrorContains(t, err, tc.message)
		})
	}
	_, err := New[greetIn, greetOut](good, nil)
	require.ErrorContains(t, err, "function is missing")
	_, err = New(good, func(context.Context, []string, Call) (string, error) { return "", nil })
	require.ErrorContains(t, err, "want a struct")
	_, err = New(good, func(context.Context, struct{ C chan int }, Call) (string, error) { return "", nil })
	require.ErrorContains(t, err, "input schema")
	require.Panics(t, func() { MustNew(Spec{}, greet) })
}

func TestSchemaCanBeEdited(t *testing.T) {
	t.Parallel()
	schema, err := Schema[greetIn](func(s *jsonschema.Schema) { s.Properties["name"].Enum = []any{"Ada"} })
	require.NoError(t, err)
	tool, err := New(Spec{Name: "x", Description: "d", InputSchema: schema}, greet)
	require.NoError(t, err)
	_, err = tool.Call(t.Context(), Call{Arguments: json.RawMessage(`{"name": "Bob"}`)})
	require.EqualError(t, err, `/name: want "Ada", have "Bob"`)
}

func TestSet(t *testing.T) {
	t.Parallel()
	set, err := NewSet(newGreet(t, "zeta"), newGreet(t, "srv/b"), newGreet(t, "srv/a"), newGreet(t, "alpha"))
	require.NoError(t, err)
	require.Equal(t, []string{"alpha", "srv/a", "srv/b", "zeta"}, set.Names())
	require.Equal(t, 4, set.Len())
	require.Len(t, set.Tools(), 4)
	require.Equal(t, "alpha", set.Specs()[0].Name)
	require.Equal(t, set.Specs()[3], SpecOf(set.Refs()[3]))
	_, ok := set.Lookup("srv/a")
	require.True(t, ok)
	_, ok = set.Lookup("srv")
	require.False(t, ok)

	_, err = NewSet(newGreet(t, "a"), newGreet(t, "a"))
	require.EqualError(t, err, "two tools have the name a")
	_, err = NewSet(fake{Spec{Name: "a b", Description: "d", Effect: agent.External}})
	require.ErrorContains(t, err, "not a tool name")
	_, err = NewSet(fake{Spec{Name: "a", Description: "d", Effect: agent.External, InputSchema: json.RawMessage(`{`)}})
	require.ErrorContains(t, err, "tool a: input schema")

	require.NoError(t, set.Validate("alpha", json.RawMessage(`{"name": "x"}`)))
	require.Error(t, set.Validate("alpha", json.RawMessage(`{"name": {"$from": "/input"}}`)))
	require.NoError(t, set.ValidatePlan("alpha", json.RawMessage(`{"name": {"$from": "/input"}}`)))
	for _, validate := range []func(string, json.RawMessage) error{set.Validate, set.ValidatePlan} {
		require.ErrorIs(t, validate("beta", nil), &agent.Error{Code: agent.CodeToolUnknown})
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	set, err := NewSet(newGreet(t, "one"), newGreet(t, "srv/a"), newGreet(t, "srv/b"), newGreet(t, "server/c"))
	require.NoError(t, err)
	for _, tc := range []struct {
		name          string
		patterns      []string
		want, missing []string
	}{
		{"none", nil, []string{}, nil},
		{"a name", []string{"one"}, []string{"one"}, nil},
		{"a server", []string{"srv/*"}, []string{"srv/a", "srv/b"}, nil},
		{"all", []string{"*"}, []string{"one", "server/c", "srv/a", "srv/b"}, nil},
		{"twice the same", []string{"srv/a", "srv/*", "srv/a"}, []string{"srv/a", "srv/b"}, nil},
		{"unknown", []string{"one", "two", "away/*"}, nil, []string{"two", "away/*"}},
		{"no other wildcards", []string{"on*"}, nil, []string{"on*"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sub, err := set.Select(tc.patterns...)
			if tc.missing != nil {
				var unknown *PatternError
				require.ErrorAs(t, err, &unknown)
				require.Equal(t, tc.missing, unknown.Patterns)
				require.ErrorContains(t, err, `"`+tc.missing[0]+`"`)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, append([]string{}, sub.Names()...))
			for _, name := range tc.want {
				require.NoError(t, sub.Validate(name, json.RawMessage(`{"name": "x"}`)))
			}
		})
	}
	empty, err := NewSet()
	require.NoError(t, err)
	_, err = empty.Select("*")
	require.NoError(t, err)
}

func TestCheckPlansFeedsCompile(t *testing.T) {
	t.Parallel()
	set, err := NewSet(newGreet(t, "greet"))
	require.NoError(t, err)
	check, err := CheckPlans(set.Refs())
	require.NoError(t, err)
	plan := func(tool, args string) *agent.Plan {
		return &agent.Plan{Nodes: []agent.Node{
			{ID: "a", Kind: agent.ToolNode, Tool: "greet", Args: json.RawMessage(`{"name": "x"}`)},
			{ID: "b", Kind: agent.ToolNode, Tool: tool, Args: json.RawMessage(args)},
		}}
	}
	_, err = agent.Compile(plan("greet", `{"name": {"$from": "/nodes/a/output/text"}}`), check)
	require.NoError(t, err)
	_, err = agent.Compile(plan("greet", `{"name": 1, "x": 2}`), check)
	var faults *agent.PlanError
	require.ErrorAs(t, err, &faults)
	require.Equal(t, "/nodes/1/args/name", faults.Faults[0].Pointer)
	require.Equal(t, "/nodes/1/args/x", faults.Faults[1].Pointer)
	_, err = agent.Compile(plan("other", `{}`), check)
	require.ErrorContains(t, err, "/nodes/1/tool")

	_, err = CheckPlans([]agent.ToolRef{{Name: "broken", InputSchema: json.RawMessage(`1`)}})
	require.ErrorContains(t, err, "tool broken")
}

// fake is a tool of a spec alone; by is its EffectOf.
type fake struct{ spec Spec }

func (f fake) Spec() Spec { return f.spec }

func (fake) Call(context.Context, Call) (json.RawMessage, error) {
	return nil, errors.New("not called")
}

type fakeByArguments struct{ fake }

func (fakeByArguments) EffectOf(args json.RawMessage) agent.EffectClass {
	return agent.EffectClass(args)
}

func TestClassOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, agent.Deterministic, ClassOf(fake{Spec{Effect: agent.Deterministic}}, nil))
	require.Equal(t, agent.External, ClassOf(fake{}, nil))
	require.Equal(t, agent.Idempotent, ClassOf(fakeByArguments{}, json.RawMessage("idempotent")))
	require.Equal(t, agent.External, ClassOf(fakeByArguments{fake{Spec{Effect: agent.Idempotent}}}, json.RawMessage("nonsense")))
}
