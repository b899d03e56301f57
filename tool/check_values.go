package tool

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
)

// plain checks the keywords that look at a value as a whole.
func (c *checker) plain(s *jsonschema.Schema, value any, at string) (o outcome) {
	if want := s.Types; s.Type != "" || want != nil {
		if want == nil {
			want = []string{s.Type}
		}
		if have := typeOf(value); !slices.Contains(want, have) && (have != "integer" || !slices.Contains(want, "number")) {
			return broken(at, "want %s, have %s", strings.Join(want, " or "), describe(value))
		}
	}
	if s.Enum != nil {
		o.and(c.among(s.Enum, value, at))
	}
	if s.Const != nil {
		o.and(c.among([]any{*s.Const}, value, at))
	}
	switch v := value.(type) {
	case float64:
		o.and(number(s, v, at))
	case string:
		o.and(c.text(s, v, at))
	}
	return o
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
	}
	return "number"
}

func (c *checker) among(allowed []any, value any, at string) outcome {
	best := breaks
	for _, a := range allowed {
		best = min(best, c.equal(a, value))
	}
	if best != breaks {
		return outcome{verdict: best}
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = describe(a)
	}
	return broken(at, "want %s, have %s", strings.Join(names, " or "), describe(value))
}

// equal compares a value of the schema with one of the arguments.
func (c *checker) equal(a, b any) verdict {
	if c.planned && isReference(b) {
		return open
	}
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return breaks
		}
		all := fits
		for i := range a {
			all = max(all, c.equal(a[i], b[i]))
		}
		return all
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return breaks
		}
		all := fits
		for key, item := range a {
			other, ok := b[key]
			if !ok {
				return breaks
			}
			all = max(all, c.equal(item, other))
		}
		return all
	}
	switch b.(type) {
	case []any, map[string]any: // == would panic on them
		return breaks
	}
	if a != b {
		return breaks
	}
	return fits
}

func number(s *jsonschema.Schema, n float64, at string) (o outcome) {
	show := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	if s.MultipleOf != nil {
		if _, rest := math.Modf(n / *s.MultipleOf); rest != 0 {
			o.fault(at, "%s is not a multiple of %s", show(n), show(*s.MultipleOf))
		}
	}
	if s.Minimum != nil && n < *s.Minimum {
		o.fault(at, "%s is less than %s", show(n), show(*s.Minimum))
	}
	if s.Maximum != nil && n > *s.Maximum {
		o.fault(at, "%s is more than %s", show(n), show(*s.Maximum))
	}
	if s.ExclusiveMinimum != nil && n <= *s.ExclusiveMinimum {
		o.fault(at, "%s is not more than %s", show(n), show(*s.ExclusiveMinimum))
	}
	if s.ExclusiveMaximum != nil && n >= *s.ExclusiveMaximum {
		o.fault(at, "%s is not less than %s", show(n), show(*s.ExclusiveMaximum))
	}
	return o
}

func (c *checker) text(s *jsonschema.Schema, text, at string) (o outcome) {
	if n := utf8.RuneCountInString(text); s.MinLength != nil && n < *s.MinLength {
		o.fault(at, "has %d characters, fewer than %d", n, *s.MinLength)
	} else if s.MaxLength != nil && n > *s.MaxLength {
		o.fault(at, "has %d characters, more than %d", n, *s.MaxLength)
	}
	if s.Pattern != "" && !c.v.patterns[s.Pattern].MatchString(text) {
		o.fault(at, "%s does not match the pattern %s", describe(text), s.Pattern)
	}
	return o
}

func (c *checker) array(s *jsonschema.Schema, items []any, at string) (o outcome) {
	leading, rest := s.PrefixItems, s.Items
	if c.v.draft7 {
		leading = s.ItemsArray
		if leading != nil {
			rest = s.AdditionalItems
		}
	}
	for i, item := range items {
		sub := rest
		if i < len(leading) {
			sub = leading[i]
		}
		if sub != nil {
			o.and(c.value(sub, item, at+"/"+strconv.Itoa(i)))
		}
	}
	if s.MinItems != nil && len(items) < *s.MinItems {
		o.fault(at, "has %d items, fewer than %d", len(items), *s.MinItems)
	}
	if s.MaxItems != nil && len(items) > *s.MaxItems {
		o.fault(at, "has %d items, more than %d", len(items), *s.MaxItems)
	}
	if s.Contains != nil {
		o.and(c.contains(s, items, at))
	}
	if s.UniqueItems {
		o.and(c.unique(items, at))
	}
	return o
}

func (c *checker) contains(s *jsonschema.Schema, items []any, at string) outcome {
	fitting, undecided := 0, 0
	for i, item := range items {
		switch c.value(s.Contains, item, at+"/"+strconv.Itoa(i)).verdict {
		case fits:
			fitting++
		case open:
			undecided++
		case breaks:
		}
	}
	least := 1
	if s.MinContains != nil {
		least = *s.MinContains
	}
	switch {
	case fitting+undecided < least:
		return broken(at, "has %d items of the form that %d must have", fitting, least)
	case s.MaxContains != nil && fitting > *s.MaxContains:
		return broken(at, "has %d items of a form that at most %d may have", fitting, *s.MaxContains)
	case fitting < least || s.MaxContains != nil && fitting+undecided > *s.MaxContains:
		return outcome{verdict: open}
	}
	return outcome{verdict: fits}
}

func (c *checker) unique(items []any, at string) (o outcome) {
	seen := make(map[string]int, len(items))
	for i, item := range items {
		if c.planned && holdsReference(item) {
			o.and(outcome{verdict: open})
			continue
		}
		text, err := json.Marshal(item) // keys in order, numbers in one form: equal values give equal text
		if err != nil {
			return broken(at, "%v", err)
		}
		if first, twice := seen[string(text)]; twice {
			o.fault(at+"/"+strconv.Itoa(i), "is the same as item %d", first)
			continue
		}
		seen[string(text)] = i
	}
	return o
}

func (c *checker) object(s *jsonschema.Schema, object map[string]any, at string) (o outcome) {
	names := slices.Sorted(maps.Keys(object))
	for _, name := range names {
		o.and(c.property(s, name, object[name], at+"/"+agent.EscapeToken(name)))
	}
	for _, name := range s.Required {
		o.and(required(object, name, at))
	}
	if s.MinProperties != nil && len(names) < *s.MinProperties {
		o.fault(at, "has %d fields, fewer than %d", len(names), *s.MinProperties)
	}
	if s.MaxProperties != nil && len(names) > *s.MaxProperties {
		o.fault(at, "has %d fields, more than %d", len(names), *s.MaxProperties)
	}
	requires, schemas := s.DependentRequired, s.DependentSchemas
	if c.v.draft7 {
		requires, schemas = s.DependencyStrings, s.DependencySchemas
	}
	for _, name := range names {
		for _, other := range requires[name] {
			o.and(required(object, other, at))
		}
		if sub := schemas[name]; sub != nil {
			o.and(c.value(sub, object, at))
		}
	}
	return o
}

const isRequired = "is required"

func required(object map[string]any, name, at string) outcome {
	if _, ok := object[name]; !ok {
		return broken(at+"/"+agent.EscapeToken(name), isRequired)
	}
	return outcome{}
}

func unknownField(s *jsonschema.Schema) string {
	if len(s.Properties) == 0 {
		return "is unknown; there are no fields here"
	}
	return "is unknown; the fields are " + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
}

// property checks one field of an object, whose place is at.
func (c *checker) property(s *jsonschema.Schema, name string, value any, at string) (o outcome) {
	known := false
	if sub := s.Properties[name]; sub != nil {
		known = true
		o.and(c.value(sub, value, at))
	}
	for _, pattern := range slices.Sorted(maps.Keys(s.PatternProperties)) {
		if c.v.patterns[pattern].MatchString(name) {
			known = true
			o.and(c.value(s.PatternProperties[pattern], value, at))
		}
	}
	if sub := s.AdditionalProperties; sub != nil && !known {
		if isNever(sub) {
			o.fault(at, "%s", unknownField(s))
		} else {
			o.and(c.value(sub, value, at))
		}
	}
	if s.PropertyNames != nil {
		if named := c.value(s.PropertyNames, name, at); named.verdict == breaks {
			o.fault(at, "has a name that is not allowed: %s", named.faults[0].Message)
		}
	}
	return o
}
