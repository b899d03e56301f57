package tool

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

func compile(t testing.TB, schema string) *Validator {
	t.Helper()
	v, err := CompileSchema(Spec{Name: "t", InputSchema: json.RawMessage(schema)})
	require.NoError(t, err)
	return v
}

func TestValidatorNamesThePlace(t *testing.T) {
	t.Parallel()
	const order = `{"type": "object", "additionalProperties": false, "required": ["items"], "properties": {
		"items": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"$ref": "#/$defs/item"}},
		"note": {"type": ["string", "null"], "maxLength": 5, "pattern": "^[a-z]*$"},
		"kind": {"enum": ["small", "large", 3]},
		"a/b": {"type": "boolean"},
		"pay": {"anyOf": [
			{"type": "object", "properties": {"card": {"type": "object", "properties": {"no": {"type": "string"}}, "required": ["no"]}}, "required": ["card"]},
			{"type": "null"}]},
		"either": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 10}]},
		"not": {"not": {"type": "string"}},
		"tree": {"$ref": "#/$defs/tree"},
		"names": {"type": "object", "propertyNames": {"pattern": "^x"}, "minProperties": 1, "maxProperties": 2},
		"has": {"type": "array", "contains": {"const": 1}, "maxContains": 2, "maxItems": 4},
		"pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": false},
		"x": {"type": "object", "patternProperties": {"^n": {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0, "exclusiveMaximum": 9}}, "additionalProperties": {"type": "string"}},
		"dep": {"type": "object", "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
		"cond": {"type": "object", "if": {"properties": {"k": {"const": "v"}}, "required": ["k"]}, "then": {"required": ["w"]}, "else": {"required": ["z"]}}
	}, "$defs": {
		"item": {"type": "object", "properties": {"sku": {"type": "string", "minLength": 2}, "count": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["sku"]},
		"tree": {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "additionalProperties": false}
	}}`
	v := compile(t, order)
	for _, tc := range []struct{ name, args, pointer, message string }{
		{"fits", `{"items": [{"sku": "ab", "count": 2}], "note": null, "a/b": true}`, "", ""},
		{"nothing", ``, "/items", "is required"},
		{"missing", `{}`, "/items", "is required"},
		{"not an object", `[]`, "", "want an object, have a list"},
		{"not JSON", `{"items": [}`, "", "not valid JSON"},
		{"two values", `{} {}`, "", "not valid JSON"},
		{"twice", `{"items": [{"sku": "ab", "sku": "cd"}]}`, "/items/0/sku", "is there twice"},
		{"number too large", `{"items": [{"sku": "ab", "count": 1e999}]}`, "/items/0/count", "cannot unmarshal"},
		{"wrong kind", `{"items": {}}`, "/items", "want array, have an object"},
		{"too few", `{"items": []}`, "/items", "fewer than 1"},
		{"the same twice", `{"items": [{"sku": "ab"}, {"sku": "ab"}]}`, "/items/1", "same as item 0"},
		{"deep", `{"items": [{"sku": "ab"}, {"sku": "a", "count": 1}]}`, "/items/1/sku", "has 1 characters, fewer than 2"},
		{"too small", `{"items": [{"sku": "ab", "count": 0}]}`, "/items/0/count", "0 is less than 1"},
		{"too large", `{"items": [{"sku": "ab", "count": 10}]}`, "/items/0/count", "10 is more than 9"},
		{"no integer", `{"items": [{"sku": "ab", "count": 1.5}]}`, "/items/0/count", "want integer, have 1.5"},
		{"an integer with a point", `{"items": [{"sku": "ab", "count": 2.0}]}`, "", ""},
		{"unknown", `{"items": [{"sku": "ab"}], "itmes": 1}`, "/itmes", "is unknown; the fields are a/b, cond, "},
		{"one of two kinds", `{"items": [{"sku": "ab"}], "note": 1}`, "/note", "want string or null, have 1"},
		{"too long", `{"items": [{"sku": "ab"}], "note": "abcdef"}`, "/note", "more than 5"},
		{"pattern", `{"items": [{"sku": "ab"}], "note": "AB"}`, "/note", "does not match the pattern"},
		{"enum", `{"items": [{"sku": "ab"}], "kind": "tiny"}`, "/kind", `want "small" or "large" or 3, have "tiny"`},
		{"escaped pointer", `{"items": [{"sku": "ab"}], "a/b": 1}`, "/a~1b", "want boolean"},
		{"nearest alternative", `{"items": [{"sku": "ab"}], "pay": {"card": {}}}`, "/pay/card/no", "is required"},
		{"both alternatives", `{"items": [{"sku": "ab"}], "either": 12}`, "/either", "fits 2 of the forms"},
		{"no alternative", `{"items": [{"sku": "ab"}], "either": 1.5}`, "/either", "want integer"},
		{"negation", `{"items": [{"sku": "ab"}], "not": "a"}`, "/not", "not allowed"},
		{"recursion", `{"items": [{"sku": "ab"}], "tree": {"below": [{}, {"below": [{"x": 1}]}]}}`, "/tree/below/1/below/0/x", "is unknown"},
		{"name", `{"items": [{"sku": "ab"}], "names": {"y": 1}}`, "/names/y", "has a name that is not allowed"},
		{"number of fields", `{"items": [{"sku": "ab"}], "names": {"x1": 1, "x2": 1, "x3": 1}}`, "/names", "has 3 fields, more than 2"},
		{"contains nothing", `{"items": [{"sku": "ab"}], "has": [2]}`, "/has", "has 0 items of the form that 1"},
		{"contains too many", `{"items": [{"sku": "ab"}], "has": [1, 1, 1]}`, "/has", "at most 2"},
		{"too many", `{"items": [{"sku": "ab"}], "has": [1, 2, 3, 4, 5]}`, "/has", "more than 4"},
		{"past the prefix", `{"items": [{"sku": "ab"}], "pair": ["a", 1]}`, "/pair/1", "not allowed here"},
		{"pattern property", `{"items": [{"sku": "ab"}], "x": {"n": 0.7}}`, "/x/n", "0.7 is not a multiple of 0.5"},
		{"lower bound", `{"items": [{"sku": "ab"}], "x": {"n": 0}}`, "/x/n", "0 is not more than 0"},
		{"upper bound", `{"items": [{"sku": "ab"}], "x": {"n": 9}}`, "/x/n", "9 is not less than 9"},
		{"additional", `{"items": [{"sku": "ab"}], "x": {"m": 1}}`, "/x/m", "want string"},
		{"dependent", `{"items": [{"sku": "ab"}], "dep": {"a": 1}}`, "/dep/b", "is required"},
		{"dependent schema", `{"items": [{"sku": "ab"}], "dep": {"c": 1}}`, "/dep/d", "is required"},
		{"then", `{"items": [{"sku": "ab"}], "cond": {"k": "v"}}`, "/cond/w", "is required"},
		{"else", `{"items": [{"sku": "ab"}], "cond": {"k": "u"}}`, "/cond/z", "is required"},
		{"a reference is an object like any other", `{"items": {"$from": "/nodes/x/output"}}`, "/items", "want array"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := v.Validate(json.RawMessage(tc.args))
			if tc.message == "" {
				require.NoError(t, err)
				return
			}
			var fault *ArgumentError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, tc.pointer, fault.Pointer, err.Error())
			require.Contains(t, fault.Message, tc.message)
			failure, ok := agent.AsError(err)
			require.True(t, ok)
			require.Equal(t, agent.CodeInvalidArguments, failure.Code)
			require.Equal(t, agent.FaultDefinite, failure.Fault)
		})
	}
}

func TestValidatePlanTakesReferencesForAnything(t *testing.T) {
	t.Parallel()
	const ref = `{"$from": "/nodes/x/output"}`
	v := compile(t, `{"type": "object", "additionalProperties": false, "required": ["n"], "properties": {
		"n": {"type": "integer", "minimum": 3},
		"list": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "uniqueItems": true, "minItems": 2},
		"pair": {"const": {"a": 1, "b": 2}},
		"not": {"not": {"properties": {"k": {"const": 1}}, "required": ["k"]}},
		"one": {"oneOf": [{"required": ["a"], "properties": {"a": {"type": "string"}}}, {"required": ["a"], "properties": {"a": {"type": "number"}}}]},
		"has": {"type": "array", "contains": {"const": 1}, "maxContains": 1},
		"cond": {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["w"]}, "else": {"required": ["z"]}},
		"free": {}
	}}`)
	for _, tc := range []struct{ name, args, pointer string }{
		{"the whole", ref, "-"},
		{"in place of a number", `{"n": ` + ref + `}`, "-"},
		{"required stays", `{"list": ` + ref + `}`, "/n"},
		{"unknown stays", `{"n": 3, "m": ` + ref + `}`, "/m"},
		{"beside a plain fault", `{"n": 1, "list": ` + ref + `}`, "/n"},
		{"an item", `{"n": 3, "list": [` + ref + `, "a"]}`, "-"},
		{"two of the same", `{"n": 3, "list": [` + ref + `, ` + ref + `]}`, "-"},
		{"an item beside a wrong one", `{"n": 3, "list": [` + ref + `, "c"]}`, "/list/1"},
		{"an item beside two equal ones", `{"n": 3, "list": [` + ref + `, "a", "a"]}`, "/list/2"},
		{"too few items all the same", `{"n": 3, "list": [` + ref + `]}`, "/list"},
		{"inside a constant", `{"n": 3, "pair": {"a": ` + ref + `, "b": 2}}`, "-"},
		{"inside a constant that cannot be", `{"n": 3, "pair": {"a": ` + ref + `, "b": 3}}`, "/pair"},
		{"below not", `{"n": 3, "not": {"k": ` + ref + `}}`, "-"},
		{"below not, and forbidden whatever it is", `{"n": 3, "not": {"k": 1, "l": ` + ref + `}}`, "/not"},
		{"one of two", `{"n": 3, "one": {"a": ` + ref + `}}`, "-"},
		{"one of two that cannot be", `{"n": 3, "one": {"b": ` + ref + `}}`, "/one/a"},
		{"contained", `{"n": 3, "has": [` + ref + `]}`, "-"},
		{"contained too often", `{"n": 3, "has": [1, 1, ` + ref + `]}`, "/has"},
		{"condition", `{"n": 3, "cond": {"k": ` + ref + `, "w": 1}}`, "-"},
		{"condition that fails both ways", `{"n": 3, "cond": {"k": ` + ref + `}}`, "/cond/w"},
		{"not a reference: another key", `{"n": {"$from": "/x", "y": 1}}`, "/n"},
		{"not a reference: no string", `{"n": {"$from": 1}}`, "/n"},
		{"deep in a free field", `{"n": 3, "free": [{"a": [` + ref + `]}]}`, "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := v.ValidatePlan(json.RawMessage(tc.args))
			if tc.pointer == "-" {
				require.NoError(t, err)
				return
			}
			var fault *ArgumentError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, tc.pointer, fault.Pointer, err.Error())
		})
	}
}

func TestPlanFaultsNamesThemAll(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {}}, "required": ["c"], "additionalProperties": false}`)
	faults := v.PlanFaults(json.RawMessage(`{"a": 1, "b": "x", "d": {"$from": "/input"}}`))
	var at []string
	for _, f := range faults {
		at = append(at, f.Pointer)
	}
	require.Equal(t, []string{"/a", "/b", "/d", "/c"}, at)
	require.Empty(t, v.PlanFaults(json.RawMessage(`{"c": 1}`)))

	many := compile(t, `{"type": "object", "additionalProperties": false}`)
	args := map[string]int{}
	for i := range 100 {
		args[strings.Repeat("x", i+1)] = i
	}
	data, err := json.Marshal(args)
	require.NoError(t, err)
	require.Len(t, many.PlanFaults(data), maxFaults)
}

func TestCompileSchemaRefuses(t *testing.T) {
	t.Parallel()
	deep := `{"type": "object", "$defs": {"a0": {}`
	for i := 1; i < 30; i++ {
		deep += `, "a` + strings.Repeat("0", i+1) + `": {"allOf": [{"$ref": "#/$defs/a` + strings.Repeat("0", i) + `"}, {"$ref": "#/$defs/a` + strings.Repeat("0", i) + `"}]}`
	}
	deep += `}, "properties": {"x": {"$ref": "#/$defs/a` + strings.Repeat("0", 30) + `"}}}`
	for _, tc := range []struct{ name, schema, message string }{
		{"empty", ``, "want a JSON object"},
		{"null", `null`, "have null"},
		{"a boolean", `true`, "want a JSON object"},
		{"not for an object", `{"type": "string"}`, `want "type": "object"`},
		{"not for an object either", `{"type": ["string", "null"]}`, `want "type": "object"`},
		{"unknown kind of type", `{"type": 3}`, "type"},
		{"outside", `{"type": "object", "properties": {"a": {"$ref": "https://example.org/x.json"}}}`, "only references inside"},
		{"by anchor", `{"type": "object", "properties": {"a": {"$ref": "#here"}}}`, "only references inside"},
		{"nowhere", `{"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}`, "$defs/a"},
		{"dynamic", `{"type": "object", "properties": {"a": {"$dynamicRef": "#a"}}}`, "$dynamicRef is not supported"},
		{"itself", `{"$ref": "#"}`, "without end"},
		{"itself by a detour", `{"type": "object", "$defs": {"a": {"anyOf": [{"not": {"$ref": "#/$defs/b"}}]}, "b": {"if": {"$ref": "#/$defs/a"}}}}`, "without end"},
		{"a bomb", deep, "more than 10000 schemas"},
		{"id below", `{"type": "object", "properties": {"a": {"$id": "https://example.org/a", "$ref": "#/$defs/x"}}, "$defs": {"x": {}}}`, "$id below the root"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := CompileSchema(Spec{Name: "bad", InputSchema: json.RawMessage(tc.schema)})
			require.ErrorContains(t, err, tc.message)
			require.ErrorContains(t, err, "tool bad: input schema")
		})
	}
}

func TestCompileSchemaIsPatientWithForeignSchemas(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, schema, fits, breaks string }{
		{"look-ahead is left to the server", `{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)"}}}`, `{"a": "x"}`, `{"a": 1}`},
		{
			"so is a property name by look-ahead", `{"type": "object", "patternProperties": {"^(?!x)": {"type": "string"}}, "additionalProperties": false}`,
			`{"a": 1}`, `[]`,
		},
		{"another draft", `{"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "required": ["a"]}`, `{"a": 1}`, `{}`},
		{
			"draft 07 tuples", `{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"items": [{"type": "string"}], "additionalItems": false}}}`,
			`{"a": ["x"]}`, `{"a": ["x", 1]}`,
		},
		{
			"draft 07 without the hash", `{"$schema": "http://json-schema.org/draft-07/schema", "type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}}`,
			`{"a": 1, "b": 2}`, `{"c": 1}`,
		},
		{"draft 07 ignores the neighbours of $ref", `{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {"s": {"type": "string"}},
			"properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}}}`, `{"a": "xyz"}`, `{"a": 1}`},
		{"an id that no reference needs", `{"$id": "tool.json", "type": "object", "properties": {"a": {"$id": "a.json", "type": "string"}}}`, `{"a": "x"}`, `{"a": 1}`},
		{"a property named like a keyword", `{"type": "object", "properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}}`, `{"$ref": "(", "pattern": "("}`, `{"$ref": 1}`},
		{"an escaped reference", `{"type": "object", "$defs": {"a b/c~d": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a%20b~1c~0d"}}}`, `{"a": "x"}`, `{"a": 1}`},
		{"a reference into a list", `{"type": "object", "anyOf": [{"required": ["a"]}, {}], "properties": {"a": {"$ref": "#/anyOf/0"}}}`, `{"a": {"a": {"a": 1}}}`, `{"a": {}}`},
		{"unevaluated", `{"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}`, `{"a": 1}`, `{"b": 1}`},
		{"keywords in another case mean nothing", `{"type": "object", "$REF": "#", "propertieſ": {"a": {"$Ref": "#/x", "PATTERN": "("}}, "required": ["a"]}`, `{"a": 1}`, `{}`},
		{"a root that may be something else", `{"type": ["object", "null"]}`, `{}`, `null`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := compile(t, tc.schema)
			require.NoError(t, v.Validate(json.RawMessage(tc.fits)))
			require.Error(t, v.Validate(json.RawMessage(tc.breaks)))
		})
	}
}

func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	// Every level asks its child twice: without a bound the work doubles with every level of the arguments.
	v := compile(t, `{"type": "object", "$defs": {"t": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/t"}}}, {"properties": {"a": {"$ref": "#/$defs/t"}}}]}},
		"properties": {"a": {"$ref": "#/$defs/t"}}}`)
	args := strings.Repeat(`{"a":`, 60) + `1` + strings.Repeat(`}`, 60)
	require.ErrorContains(t, v.Validate(json.RawMessage(args)), "too large to be checked")
	require.ErrorContains(t, v.ValidatePlan(json.RawMessage(args)), "too large to be checked")

	deep := strings.Repeat(`{"a":`, maxDepth+1) + `1` + strings.Repeat(`}`, maxDepth+1)
	require.ErrorContains(t, v.Validate(json.RawMessage(deep)), "nested deeper than")
	list := `{"a":` + strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000) + `}`
	require.ErrorContains(t, v.Validate(json.RawMessage(list)), "nested deeper than")
}

// genSchema makes schemas over few names and few values, so that random values often fit and often just fail to.
func genSchema(depth int) *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		s := map[string]any{}
		keywords := []string{"type", "enum", "const", "minimum", "maxLength", "required", "minProperties", "maxItems", "uniqueItems", "multipleOf", "pattern", "dependentRequired"}
		if depth > 0 {
			keywords = append(keywords, "properties", "additionalProperties", "items", "prefixItems", "contains", "allOf", "anyOf", "oneOf", "not", "if",
				"patternProperties", "propertyNames", "dependentSchemas", "$ref", "false")
		}
		sub := func(name string) any { return genSchema(depth-1).Draw(t, name) }
		subs := func(name string) any {
			return rapid.SliceOfN(genSchema(depth-1), 1, 3).Draw(t, name)
		}
		for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom(keywords), 0, 3, rapid.ID).Draw(t, "keywords") {
			switch k {
			case "type":
				s[k] = rapid.SampledFrom([]any{"object", "array", "string", "number", "integer", "null", "boolean", []any{"string", "object"}}).Draw(t, k)
			case "enum":
				s[k] = rapid.SliceOfN(genValue(1), 0, 3).Draw(t, k)
			case "const":
				s[k] = genValue(1).Draw(t, k)
			case "minimum", "maxLength", "minProperties", "maxItems", "multipleOf":
				s[k] = rapid.IntRange(1, 2).Draw(t, k)
			case "pattern":
				s[k] = "^a"
			case "required":
				s[k] = rapid.SliceOfN(genName, 0, 2).Draw(t, k)
			case "dependentRequired":
				s[k] = map[string]any{"a": []any{"b"}}
			case "uniqueItems":
				s[k] = true
			case "properties", "dependentSchemas":
				s[k] = rapid.MapOfN(genName, genSchema(depth-1), 1, 2).Draw(t, k)
			case "patternProperties":
				s[k] = map[string]any{"^a": sub(k)}
			case "prefixItems", "allOf", "anyOf", "oneOf":
				s[k] = subs(k)
			case "if":
				s["if"], s["then"], s["else"] = sub("if"), sub("then"), sub("else")
			case "$ref":
				s[k] = "#/$defs/leaf"
			case "false":
				s["additionalProperties"] = false
			case "contains":
				s[k] = sub(k)
				s["minContains"] = rapid.IntRange(0, 2).Draw(t, "minContains")
				s["maxContains"] = rapid.IntRange(0, 2).Draw(t, "maxContains")
			default:
				s[k] = sub(k)
			}
		}
		return s
	})
}

var genName = rapid.SampledFrom([]string{"a", "b", "ab"})

func genValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := []string{"string", "number", "null", "bool"}
		if depth > 0 {
			kinds = append(kinds, "object", "object", "array", "array")
		}
		switch rapid.SampledFrom(kinds).Draw(t, "kind") {
		case "string":
			return rapid.SampledFrom([]string{"a", "b", "abc", ""}).Draw(t, "string")
		case "number":
			return rapid.SampledFrom([]float64{0, 1, 1.5, 2, 3}).Draw(t, "number")
		case "bool":
			return rapid.Bool().Draw(t, "bool")
		case "object":
			return toAny(rapid.MapOfN(genName, genValue(depth-1), 0, 3).Draw(t, "object"))
		case "array":
			return rapid.SliceOfN(genValue(depth-1), 0, 3).Draw(t, "array")
		}
		return nil
	})
}

func toAny(m map[string]any) any { return m }

func genCase(t *rapid.T) (*Validator, map[string]any) {
	schema := genSchema(3).Draw(t, "schema")
	delete(schema, "type")
	schema["$defs"] = map[string]any{"leaf": genSchema(1).Filter(func(s map[string]any) bool { return !mentionsRef(s) }).Draw(t, "leaf")}
	data, err := json.Marshal(schema)
	require.NoError(t, err)
	v, err := CompileSchema(Spec{Name: "t", InputSchema: data})
	require.NoError(t, err)
	args, _ := rapid.Map(rapid.MapOfN(genName, genValue(3), 0, 3), toAny).Draw(t, "args").(map[string]any)
	return v, args
}

func mentionsRef(s map[string]any) bool {
	data, err := json.Marshal(s)
	return err != nil || strings.Contains(string(data), "$ref")
}

// The walk that names the place and the library must agree on what fits, for every keyword that both know.
func TestWalkAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, args := genCase(t)
		data, err := json.Marshal(args)
		require.NoError(t, err)
		object, fault := parseArguments(data)
		require.Nil(t, fault)
		found := (&checker{v: v}).value(v.root, object, "")
		want := v.resolved.Validate(object)
		require.NotEqual(t, open, found.verdict)
		require.Equal(t, want != nil, found.verdict == breaks, "library: %v, walk: %v", want, errors.Join(asErrors(found.faults)...))
		require.Equal(t, found.verdict == breaks, len(found.faults) > 0)
	})
}

func asErrors(faults []*ArgumentError) []error {
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errs
}

// Putting references in place of values never makes arguments that fit unfit: a plan is not refused for what it does not
// know yet. And if no reference is there, both checks say the same.
func TestReferencesNeverMakeFittingArgumentsUnfit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, args := genCase(t)
		data, err := json.Marshal(args)
		require.NoError(t, err)
		strict := v.Validate(data)
		require.Equal(t, strict == nil, v.ValidatePlan(data) == nil)
		if strict != nil {
			return
		}
		planned, err := json.Marshal(punch(t, args))
		require.NoError(t, err)
		require.NoError(t, v.ValidatePlan(planned), "%s fits, %s does not", data, planned)
	})
}

// punch replaces values at random by references.
func punch(t *rapid.T, value any) any {
	if rapid.IntRange(0, 3).Draw(t, "punch") == 0 {
		return map[string]any{"$from": "/nodes/x/output"}
	}
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, name := range []string{"a", "b", "ab"} {
			if item, ok := v[name]; ok {
				out[name] = punch(t, item)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = punch(t, item)
		}
		return out
	}
	return value
}

func FuzzValidate(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"string","pattern":"^a"}}}`, `{"a":"b"}`)
	f.Add(`{"type":"object","$defs":{"x":{"$ref":"#"}},"properties":{"a":{"$ref":"#/$defs/x"}}}`, `{"a":{"a":{"$from":"/x"}}}`)
	f.Add(`{"tYpe":"object","$defs":{"x":{"$ref":"#"}},"propErties":{"a":{"$ref":"#/$defs/x"}}}`, `{"a":{"a":{}}}`)
	f.Add(`{"anyOf":[{"required":["a"]},{"not":{}}],"if":{},"then":{"minProperties":1}}`, `{}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-07/schema#","items":[true,false],"dependencies":{"a":["b"]}}`, `{"a":[1,2]}`)
	f.Fuzz(func(t *testing.T, schema, args string) {
		v, err := CompileSchema(Spec{Name: "t", InputSchema: json.RawMessage(schema)})
		if err != nil {
			return
		}
		strict := v.Validate(json.RawMessage(args))
		planned := v.ValidatePlan(json.RawMessage(args))
		if strict == nil && planned != nil {
			t.Fatalf("fits, but not as a plan: %v", planned)
		}
		if object, fault := parseArguments([]byte(args)); fault == nil && strict != nil && v.resolved.Validate(object) == nil &&
			!strings.Contains(strict.Error(), "too large") {
			t.Fatalf("the library has no objection, the walk has: %v", strict)
		}
		for _, err := range []error{strict, planned} {
			var fault *ArgumentError
			if err != nil && !errors.As(err, &fault) {
				t.Fatalf("%T is no ArgumentError", err)
			}
		}
	})
}
