package tool

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
)

// Redacted is the JSON value that stands in place of a secret.
const Redacted = `"[redacted]"`

// HoldsSecrets reports whether the schema marks any value as a secret: by "writeOnly": true or "format": "password".
func (v *Validator) HoldsSecrets() bool { return v.secrets }

// Public is what may be shown of the arguments of a call: with "[redacted]" in place of every secret, and as they stand
// where there is none. Of arguments that do not fit the schema nobody knows where the secrets are; they are redacted as a
// whole.
func (v *Validator) Public(args json.RawMessage) json.RawMessage {
	if !v.secrets || len(bytes.TrimSpace(args)) == 0 {
		return args
	}
	if v.Validate(args) != nil {
		return json.RawMessage(Redacted)
	}
	public, err := v.redact(v.alongside([]*jsonschema.Schema{v.root}), args)
	if err != nil {
		return json.RawMessage(Redacted)
	}
	return public
}

func isSecret(s *jsonschema.Schema) bool { return s.WriteOnly || s.Format == "password" }

// redact copies a value that the schemas are for.
func (v *Validator) redact(schemas []*jsonschema.Schema, value json.RawMessage) (json.RawMessage, error) {
	if slices.ContainsFunc(schemas, isSecret) {
		return json.RawMessage(Redacted), nil
	}
	switch value = bytes.TrimSpace(value); {
	case len(schemas) == 0 || len(value) == 0:
	case value[0] == '{':
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			item, err := v.redact(v.ofField(schemas, name), object[name])
			if err != nil {
				return nil, err
			}
			object[name] = item
		}
		return json.Marshal(object)
	case value[0] == '[':
		var array []json.RawMessage
		if err := json.Unmarshal(value, &array); err != nil {
			return nil, err
		}
		for i, item := range array {
			item, err := v.redact(v.ofItem(schemas, i), item)
			if err != nil {
				return nil, err
			}
			array[i] = item
		}
		return json.Marshal(array)
	}
	return value, nil
}

// secretAt reports whether a place in the arguments holds a secret or a part of one.
func (v *Validator) secretAt(pointer string) bool {
	path, err := agent.ParsePointer(pointer)
	if err != nil {
		return true
	}
	schemas := v.alongside([]*jsonschema.Schema{v.root})
	for _, token := range path {
		if slices.ContainsFunc(schemas, isSecret) {
			return true
		}
		next := v.ofField(schemas, token)
		if i, err := strconv.Atoi(token); err == nil {
			next = append(next, v.ofItem(schemas, i)...)
		}
		schemas = next
	}
	return slices.ContainsFunc(schemas, isSecret)
}

// alongside adds to the schemas of a value those that they hold the same value against, whether or not it has to fit them:
// what is a secret in one of several forms is not shown in any.
func (v *Validator) alongside(schemas []*jsonschema.Schema) []*jsonschema.Schema {
	var all []*jsonschema.Schema
	seen := map[*jsonschema.Schema]bool{}
	for len(schemas) > 0 {
		s := schemas[0]
		schemas = schemas[1:]
		if s != nil && !seen[s] {
			seen[s] = true
			all = append(all, s)
			schemas = append(schemas, v.inPlace(s)...)
		}
	}
	return all
}

// ofField lists the schemas of a field of an object.
func (v *Validator) ofField(schemas []*jsonschema.Schema, name string) []*jsonschema.Schema {
	var found []*jsonschema.Schema
	for _, s := range schemas {
		known := len(found)
		if sub := s.Properties[name]; sub != nil {
			found = append(found, sub)
		}
		for pattern, sub := range s.PatternProperties {
			if v.patterns[pattern].MatchString(name) {
				found = append(found, sub)
			}
		}
		if len(found) == known {
			found = append(found, s.AdditionalProperties, s.UnevaluatedProperties)
		}
	}
	return v.alongside(found)
}

// ofItem lists the schemas of an item of a list.
func (v *Validator) ofItem(schemas []*jsonschema.Schema, i int) []*jsonschema.Schema {
	var found []*jsonschema.Schema
	for _, s := range schemas {
		found = append(found, s.Contains)
		switch leading := slices.Concat(s.PrefixItems, s.ItemsArray); {
		case i >= 0 && i < len(leading):
			found = append(found, leading[i])
		default:
			found = append(found, s.Items, s.AdditionalItems, s.UnevaluatedItems)
		}
	}
	return v.alongside(found)
}
