package openai

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/openai/openai-go/v3/shared"

	"runledger/model/wire"
)

// toolParameters is a tool's schema as vendors accept it: an object with properties, even if there are none.
func toolParameters(schema json.RawMessage) (shared.FunctionParameters, error) {
	parameters := shared.FunctionParameters{}
	if !wire.IsNull(schema) {
		// Only the top level is taken apart; below it the schema's own bytes are sent.
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(schema, &fields); err != nil {
			return nil, errors.New("it is not a JSON object")
		}
		for name, value := range fields {
			parameters[name] = value
		}
	}
	if _, ok := parameters["type"]; !ok {
		parameters["type"] = "object"
	}
	if _, ok := parameters["properties"]; !ok {
		parameters["properties"] = struct{}{}
	}
	return parameters, nil
}

// The limits of strict mode.
const (
	strictDepth      = 10
	strictProperties = 5000
	strictEnums      = 1000
)

// strictSchema reports whether a schema satisfies the rules of strict structured output: every object closed, every property
// required, and none but the supported keywords. A schema that does not is sent all the same, without the vendor's guarantee.
func strictSchema(schema json.RawMessage) bool {
	var root map[string]any
	if json.Unmarshal(schema, &root) != nil {
		return false
	}
	if _, ok := root["anyOf"]; ok || root["type"] != "object" {
		return false
	}
	s := strictness{}
	return s.schema(root, 1) && s.properties <= strictProperties && s.enums <= strictEnums
}

type strictness struct{ properties, enums int }

func (s *strictness) schema(value any, depth int) bool {
	node, ok := value.(map[string]any)
	if !ok || depth > strictDepth {
		return false
	}
	for keyword, v := range node {
		if !s.keyword(keyword, v, depth) {
			return false
		}
	}
	if hasType(node, "object") && !s.closed(node) {
		return false
	}
	if _, ok := node["items"]; hasType(node, "array") && !ok {
		return false
	}
	// A schema that says nothing allows anything, which strict mode does not.
	return slices.ContainsFunc([]string{"type", "$ref", "anyOf", "enum", "const"}, func(keyword string) bool {
		_, ok := node[keyword]
		return ok
	})
}

func (s *strictness) keyword(keyword string, value any, depth int) bool {
	switch keyword {
	case "type", "required", "additionalProperties", "const", "$ref", "title", "description", "pattern", "multipleOf",
		"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "$schema":
		return true
	case "enum":
		list, ok := value.([]any)
		s.enums += len(list)
		return ok
	case "format":
		format, _ := value.(string)
		return slices.Contains([]string{"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}, format)
	case "items":
		return s.schema(value, depth+1)
	case "anyOf":
		list, ok := value.([]any)
		for _, v := range list {
			ok = ok && s.schema(v, depth)
		}
		return ok
	case "properties", "$defs", "definitions":
		fields, ok := value.(map[string]any)
		next := depth
		if keyword == "properties" {
			s.properties += len(fields)
			next++
		}
		for _, v := range fields {
			ok = ok && s.schema(v, next)
		}
		return ok
	}
	return false
}

// closed reports whether an object allows nothing but its properties and requires all of them.
func (s *strictness) closed(node map[string]any) bool {
	if node["additionalProperties"] != false {
		return false
	}
	properties, ok := node["properties"].(map[string]any)
	if !ok {
		return false
	}
	required, _ := node["required"].([]any)
	for name := range properties {
		if !slices.Contains(required, any(name)) {
			return false
		}
	}
	return len(required) == len(properties)
}

func hasType(node map[string]any, name string) bool {
	switch t := node["type"].(type) {
	case string:
		return t == name
	case []any:
		return slices.Contains(t, any(name))
	}
	return false
}
