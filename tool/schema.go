package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
)

const (
	draft7    = "http://json-schema.org/draft-07/schema#"
	draft2020 = "https://json-schema.org/draft/2020-12/schema"
)

// maxInPlace bounds how many schemas one value can be held against, $refs followed. Schemas come from MCP servers too: a
// few lines of allOf and $ref can ask for more work than there is time.
const maxInPlace = 10_000

// Validator checks arguments against the input schema of a tool. It may be used concurrently.
//
// Two things judge. A walk over the schema finds the places that do not fit and knows what a reference is; then, where no
// reference stands in the way, the jsonschema library has the last word.
type Validator struct {
	name     string
	root     *jsonschema.Schema
	resolved *jsonschema.Resolved
	// refs are the targets of the schema's $refs by their text, patterns its regular expressions.
	refs     map[string]*jsonschema.Schema
	patterns map[string]*regexp.Regexp
	draft7   bool
	// secrets: some value is marked as a secret.
	secrets bool
}

// CompileSchema prepares the check of a tool's arguments. It needs only the spec, so a process without the tool itself,
// as the API is, can check plans.
//
// Drafts 2020-12 and 07 are understood; a schema of another draft is read as 2020-12. A "pattern" that Go's regexp package
// cannot compile (as with look-ahead) is left unchecked: the tool's own server still has its word. An error means a schema
// that is malformed, is not for an object, refers outside itself or to itself without end, or uses $dynamicRef.
func CompileSchema(spec Spec) (*Validator, error) {
	v, err := compileSchema(spec.InputSchema)
	if err != nil {
		return nil, fmt.Errorf("tool %s: input schema: %w", spec.Name, err)
	}
	v.name = spec.Name
	return v, nil
}

func compileSchema(schema json.RawMessage) (*Validator, error) {
	raw, err := plainSchema(schema)
	if err != nil {
		return nil, err
	}
	v := &Validator{refs: map[string]*jsonschema.Schema{}, patterns: map[string]*regexp.Regexp{}}
	if raw["$schema"] == draft7 || raw["$schema"] == strings.TrimSuffix(draft7, "#") {
		v.draft7, raw["$schema"] = true, draft7
	} else {
		raw["$schema"] = draft2020
	}
	references, err := v.prepare(raw)
	if err != nil {
		return nil, err
	}
	if v.root, err = asSchema(raw); err != nil {
		return nil, err
	}
	if v.root.Type != "object" && v.root.Type != "" || v.root.Types != nil && !slices.Contains(v.root.Types, "object") {
		return nil, errors.New(`want "type": "object", since arguments are always an object`)
	}
	if v.resolved, err = v.root.Resolve(nil); err != nil {
		return nil, err
	}
	for _, ref := range references {
		target, err := lookup(raw, ref)
		if err != nil {
			return nil, err
		}
		if v.refs[ref], err = asSchema(target); err != nil {
			return nil, fmt.Errorf("$ref %q: %w", ref, err)
		}
	}
	if err := v.bound(); err != nil {
		return nil, err
	}
	for _, top := range append([]*jsonschema.Schema{v.root}, mapValues(v.refs)...) {
		v.secrets = v.secrets || slices.ContainsFunc(everySchema(top), isSecret)
	}
	return v, nil
}

func plainSchema(schema json.RawMessage) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber() // limits keep their digits on the way to the library
	var raw map[string]any
	if err := dec.Decode(&raw); err != nil {
		return nil, fmt.Errorf("want a JSON object: %w", err)
	}
	if raw == nil {
		return nil, errors.New("want a JSON object, have null")
	}
	return raw, nil
}

func asSchema(raw any) (*jsonschema.Schema, error) {
	data, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare takes out of a schema what cannot be checked, compiles its patterns and returns its $refs.
func (v *Validator) prepare(root map[string]any) (references []string, err error) {
	nested := false
	delete(root, "$id")
	walkSchemas(root, func(s map[string]any) {
		dropMisspelt(s)
		nested = nested || s["$id"] != nil
		for _, name := range []string{"$id", "$anchor", "$dynamicAnchor", "$vocabulary"} {
			delete(s, name) // only what refers to them needs them, and only references by pointer are followed
		}
		for _, name := range []string{"$dynamicRef", "$recursiveRef"} {
			if s[name] != nil {
				err = errors.Join(err, fmt.Errorf("%s is not supported", name))
			}
		}
		if ref, ok := s["$ref"].(string); ok {
			if ref != "#" && !strings.HasPrefix(ref, "#/") {
				err = errors.Join(err, fmt.Errorf("$ref %q: only references inside the schema, as in #/$defs/name, are followed", ref))
			}
			references = append(references, ref)
		}
		v.preparePatterns(s)
	})
	if nested && len(references) > 0 {
		err = errors.Join(err, errors.New("an $id below the root changes what $ref means; that is not supported"))
	}
	return references, err
}

// dropMisspelt takes out what is a keyword but for its case. To JSON Schema "$REF" means nothing; encoding/json would give
// it to the library as a "$ref" that nobody has looked at.
func dropMisspelt(s map[string]any) {
	for name := range s {
		for _, keyword := range keywords() {
			if name != keyword && strings.EqualFold(name, keyword) {
				delete(s, name)
			}
		}
	}
}

// keywords are the names that the library reads.
var keywords = sync.OnceValue(func() []string {
	names := []string{"type", "items", "dependencies"} // read by hand: they have two forms each
	for _, field := range reflect.VisibleFields(reflect.TypeFor[jsonschema.Schema]()) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" && name != "" {
			names = append(names, name)
		}
	}
	return names
})

func (v *Validator) preparePatterns(s map[string]any) {
	if p, ok := s["pattern"].(string); ok && !v.compile(p) {
		delete(s, "pattern")
	}
	byPattern, ok := s["patternProperties"].(map[string]any)
	if !ok {
		return
	}
	for p := range byPattern {
		if !v.compile(p) {
			delete(byPattern, p)
			// Without the pattern nobody knows which properties are additional.
			delete(s, "additionalProperties")
			delete(s, "unevaluatedProperties")
		}
	}
}

func (v *Validator) compile(pattern string) bool {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return false
	}
	v.patterns[pattern] = re
	return true
}

// walkSchemas calls visit for a schema and all schemas in it, but not for the values of const, enum, default or examples,
// nor for properties that merely have the name of a keyword.
func walkSchemas(node any, visit func(map[string]any)) {
	s, ok := node.(map[string]any)
	if !ok {
		return
	}
	visit(s)
	for _, keyword := range []string{
		"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items",
		"not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
	} {
		walkSchemas(s[keyword], visit)
	}
	for _, keyword := range []string{"allOf", "anyOf", "items", "oneOf", "prefixItems"} {
		if list, ok := s[keyword].([]any); ok {
			for _, item := range list {
				walkSchemas(item, visit)
			}
		}
	}
	for _, keyword := range []string{"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"} {
		if byName, ok := s[keyword].(map[string]any); ok {
			for _, item := range byName {
				walkSchemas(item, visit)
			}
		}
	}
}

// lookup finds what a $ref of the form #/a/b points to.
func lookup(root any, ref string) (any, error) {
	pointer, err := url.PathUnescape(strings.TrimPrefix(ref, "#"))
	if err != nil {
		return nil, fmt.Errorf("$ref %q: %w", ref, err)
	}
	at := root
	if pointer == "" {
		return at, nil
	}
	for _, token := range strings.Split(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch node := at.(type) {
		case map[string]any:
			at = node[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(node) {
				return nil, fmt.Errorf("$ref %q points nowhere", ref)
			}
			at = node[i]
		default:
			at = nil
		}
		if at == nil {
			return nil, fmt.Errorf("$ref %q points nowhere", ref)
		}
	}
	return at, nil
}

// bound refuses a schema that would hold one and the same value against too many schemas, or against schemas without end
// (as {"$ref": "#"} does): the library would follow it until the process dies.
func (v *Validator) bound() error {
	const onTheWay = -1
	cost := map[*jsonschema.Schema]int{}
	var count func(s *jsonschema.Schema) (int, error)
	count = func(s *jsonschema.Schema) (int, error) {
		switch n := cost[s]; {
		case n == onTheWay:
			return 0, errors.New("refers to itself without end")
		case n > 0:
			return n, nil
		}
		cost[s] = onTheWay
		sum := 1
		for _, sub := range v.inPlace(s) {
			n, err := count(sub)
			if err != nil {
				return 0, err
			}
			if sum += n; sum > maxInPlace {
				return 0, fmt.Errorf("holds one value against more than %d schemas", maxInPlace)
			}
		}
		cost[s] = sum
		return sum, nil
	}
	for _, top := range append([]*jsonschema.Schema{v.root}, mapValues(v.refs)...) {
		for _, s := range everySchema(top) {
			if _, err := count(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// inPlace lists the schemas that s holds the same value against.
func (v *Validator) inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	all := slices.Concat(s.AllOf, s.AnyOf, s.OneOf, mapValues(s.DependentSchemas), mapValues(s.DependencySchemas))
	for _, sub := range []*jsonschema.Schema{v.refs[s.Ref], s.Not, s.If, s.Then, s.Else} {
		if sub != nil {
			all = append(all, sub)
		}
	}
	return all
}

// everySchema lists s and the schemas in it, $refs not followed.
func everySchema(s *jsonschema.Schema) []*jsonschema.Schema {
	if s == nil {
		return nil
	}
	all := []*jsonschema.Schema{s}
	lists := slices.Concat(s.AllOf, s.AnyOf, s.OneOf, s.PrefixItems, s.ItemsArray)
	for _, m := range []map[string]*jsonschema.Schema{
		s.Properties, s.PatternProperties, s.Defs, s.Definitions, s.DependentSchemas, s.DependencySchemas,
	} {
		lists = append(lists, mapValues(m)...)
	}
	lists = append(lists, s.Items, s.AdditionalItems, s.Contains, s.UnevaluatedItems, s.AdditionalProperties, s.PropertyNames,
		s.UnevaluatedProperties, s.Not, s.If, s.Then, s.Else)
	for _, sub := range lists {
		all = append(all, everySchema(sub)...)
	}
	return all
}

func mapValues(m map[string]*jsonschema.Schema) []*jsonschema.Schema {
	values := make([]*jsonschema.Schema, 0, len(m))
	for _, s := range m {
		values = append(values, s)
	}
	return values
}

// Validate checks the arguments of a call that is about to be made. The error is an *ArgumentError that names the first
// place that does not fit. {"$from": ...} has no special meaning here.
func (v *Validator) Validate(args json.RawMessage) error {
	return first(v.check(args, false))
}

// ValidatePlan checks the arguments of a plan, where {"$from": "..."} may stand for any value: it is as good as its
// place allows. Everything else is checked as by [Validator.Validate], so an error means that no result of the nodes
// referred to could make the arguments fit.
func (v *Validator) ValidatePlan(args json.RawMessage) error {
	return first(v.check(args, true))
}

// PlanFaults lists every place that [Validator.ValidatePlan] objects to, or the first twenty.
func (v *Validator) PlanFaults(args json.RawMessage) []agent.PlanFault {
	found := v.check(args, true)
	faults := make([]agent.PlanFault, len(found))
	for i, f := range found {
		faults[i] = agent.PlanFault{Pointer: f.Pointer, Message: f.Message}
	}
	return faults
}

func first(faults []*ArgumentError) error {
	if len(faults) == 0 {
		return nil
	}
	return faults[0]
}
