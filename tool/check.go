package tool

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
)

const (
	// maxFaults bounds how many places one check names.
	maxFaults = 20
	// maxSteps bounds the work of one check; it is far above what the largest honest arguments take.
	maxSteps = 1_000_000
)

// check holds arguments against the schema. With planned set, references fit wherever any value could. What it says goes on
// record, so it does not repeat a secret.
func (v *Validator) check(args json.RawMessage, planned bool) []*ArgumentError {
	faults := v.faults(args, planned)
	for _, fault := range faults {
		if v.secrets && fault.Message != isRequired && v.secretAt(fault.Pointer) {
			fault.Message = "does not fit; what is wrong is not shown, since it is a secret"
		}
	}
	return faults
}

func (v *Validator) faults(args json.RawMessage, planned bool) []*ArgumentError {
	object, fault := parseArguments(args)
	if fault != nil {
		return []*ArgumentError{fault}
	}
	c := &checker{v: v, planned: planned}
	found := c.value(v.root, object, "")
	if c.steps > maxSteps {
		return []*ArgumentError{{Message: "too large to be checked against the schema"}}
	}
	if found.verdict == breaks {
		return found.faults[:min(len(found.faults), maxFaults)]
	}
	if planned && holdsReference(object) {
		return nil
	}
	if err := v.resolved.Validate(object); err != nil {
		if v.secrets {
			return []*ArgumentError{{Message: "does not fit the schema"}}
		}
		return []*ArgumentError{{Message: clip(err.Error(), 300)}}
	}
	return nil
}

// verdict says how a value stands to a schema, in the order of gravity.
type verdict int

const (
	fits verdict = iota
	// open: whether it fits depends on what a reference will stand for.
	open
	breaks
)

// outcome is a verdict and, when something breaks, where.
type outcome struct {
	verdict verdict
	faults  []*ArgumentError
}

// and joins what two parts of a schema say of one value.
func (o *outcome) and(other outcome) {
	o.verdict = max(o.verdict, other.verdict)
	if len(o.faults) < maxFaults {
		o.faults = append(o.faults, other.faults...)
	}
}

func (o *outcome) fault(at, format string, args ...any) {
	o.and(broken(at, format, args...))
}

func broken(at, format string, args ...any) outcome {
	return outcome{verdict: breaks, faults: []*ArgumentError{{Pointer: at, Message: fmt.Sprintf(format, args...)}}}
}

// checker is one walk of a value along a schema. The logic has three values: a schema that fits now or may fit once the
// references are resolved must not be refused, also below a "not" or a "oneOf".
type checker struct {
	v       *Validator
	planned bool
	steps   int
}

func (c *checker) value(s *jsonschema.Schema, value any, at string) (o outcome) {
	if c.steps++; c.steps > maxSteps {
		return outcome{verdict: open}
	}
	if isNever(s) {
		return broken(at, "is not allowed here")
	}
	if c.planned && isReference(value) {
		return outcome{verdict: open}
	}
	if s.Ref != "" {
		o.and(c.value(c.v.refs[s.Ref], value, at))
		if c.v.draft7 {
			return o // draft 07 ignores what stands beside a $ref
		}
	}
	plain := c.plain(s, value, at)
	if o.and(plain); plain.verdict == breaks {
		return o // of the wrong kind: more complaints would only confuse
	}
	o.and(c.combined(s, value, at))
	switch v := value.(type) {
	case []any:
		o.and(c.array(s, v, at))
	case map[string]any:
		o.and(c.object(s, v, at))
	}
	return o
}

// isNever recognises the schema false, which the library reads as {"not": {}}.
func isNever(s *jsonschema.Schema) bool {
	return s.Not != nil && reflect.ValueOf(*s.Not).IsZero()
}

// combined checks the keywords that hold the same value against other schemas.
func (c *checker) combined(s *jsonschema.Schema, value any, at string) (o outcome) {
	for _, sub := range s.AllOf {
		o.and(c.value(sub, value, at))
	}
	if s.AnyOf != nil {
		o.and(c.alternatives(s.AnyOf, value, at, false))
	}
	if s.OneOf != nil {
		o.and(c.alternatives(s.OneOf, value, at, true))
	}
	if s.Not != nil {
		switch c.value(s.Not, value, at).verdict {
		case fits:
			o.fault(at, "is of a form that is not allowed")
		case open:
			o.and(outcome{verdict: open})
		case breaks:
		}
	}
	if s.If != nil {
		o.and(c.conditional(s, value, at))
	}
	if s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil {
		o.and(outcome{verdict: open}) // left to the library, where it is asked
	}
	return o
}

// alternatives is anyOf, and oneOf with exclusive set.
func (c *checker) alternatives(subs []*jsonschema.Schema, value any, at string, exclusive bool) outcome {
	fitting, undecided := 0, 0
	var nearest []*ArgumentError
	for _, sub := range subs {
		o := c.value(sub, value, at)
		switch o.verdict {
		case fits:
			fitting++
		case open:
			undecided++
		case breaks:
			// The alternative that was meant is most likely the one that fails deepest.
			if nearest == nil || len(o.faults[0].Pointer) > len(nearest[0].Pointer) {
				nearest = o.faults
			}
		}
	}
	switch {
	case exclusive && fitting > 1:
		return broken(at, "fits %d of the forms that exclude each other", fitting)
	case fitting == 0 && undecided == 0 && nearest == nil:
		return broken(at, "is not allowed here")
	case fitting == 0 && undecided == 0:
		return outcome{verdict: breaks, faults: nearest}
	case fitting == 0 || exclusive && undecided > 0:
		return outcome{verdict: open}
	}
	return outcome{verdict: fits}
}

func (c *checker) conditional(s *jsonschema.Schema, value any, at string) outcome {
	branch := func(sub *jsonschema.Schema) (o outcome) {
		if sub != nil {
			o = c.value(sub, value, at)
		}
		return o
	}
	switch c.value(s.If, value, at).verdict {
	case fits:
		return branch(s.Then)
	case breaks:
		return branch(s.Else)
	}
	yes, no := branch(s.Then), branch(s.Else)
	if yes.verdict == breaks && no.verdict == breaks {
		return yes
	}
	return outcome{verdict: open}
}

// holdsReference reports whether a reference stands anywhere in value.
func holdsReference(value any) bool {
	if isReference(value) {
		return true
	}
	switch v := value.(type) {
	case []any:
		return slices.ContainsFunc(v, holdsReference)
	case map[string]any:
		for _, item := range v {
			if holdsReference(item) {
				return true
			}
		}
	}
	return false
}
