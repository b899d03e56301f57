package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"runledger/agent"
)

// maxDepth bounds how deep arguments may nest, far above what a tool needs and far below what a goroutine's stack holds.
const maxDepth = 200

// ArgumentError says which argument of a call does not fit, and why. In its chain stands the *agent.Error that the record
// keeps: a definite failure of code INVALID_ARGUMENTS.
type ArgumentError struct {
	// Pointer is the JSON Pointer (RFC 6901) of the place, from the root of the arguments; "" is the whole.
	Pointer string
	Message string
}

func (e *ArgumentError) Error() string {
	if e.Pointer == "" {
		return e.Message
	}
	return e.Pointer + ": " + e.Message
}

// Unwrap gives the failure as the commit gate understands it.
func (e *ArgumentError) Unwrap() error {
	return agent.Failed(agent.CodeInvalidArguments, "%s", e.Error())
}

// parseArguments reads the arguments of a call into plain JSON values (nil, bool, float64, string, []any, map[string]any).
// No arguments at all count as an empty object.
//
// It is stricter than encoding/json in one point: a key that an object names twice is an error. A validator and a tool
// that disagreed on which of the two counts would be a hole.
func parseArguments(data []byte) (map[string]any, *ArgumentError) {
	if len(bytes.TrimSpace(data)) == 0 {
		return map[string]any{}, nil
	}
	// Valid looks at the whole text first, so that the tokens below can only be wrong in what is checked here.
	if !json.Valid(data) {
		return nil, &ArgumentError{Message: "not valid JSON"}
	}
	value, err := readValue(json.NewDecoder(bytes.NewReader(data)), "", 0)
	if err != nil {
		return nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, &ArgumentError{Message: fmt.Sprintf("want an object, have %s", describe(value))}
	}
	return object, nil
}

func readValue(dec *json.Decoder, at string, depth int) (any, *ArgumentError) {
	if depth > maxDepth {
		return nil, &ArgumentError{Pointer: at, Message: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	token, err := dec.Token()
	if err != nil {
		return nil, &ArgumentError{Pointer: at, Message: err.Error()}
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readObject(dec, at, depth)
		}
		return readArray(dec, at, depth)
	case float64:
		if t == 0 {
			return float64(0), nil // -0 equals 0, also where values are compared as text
		}
	}
	return token, nil
}

func readObject(dec *json.Decoder, at string, depth int) (any, *ArgumentError) {
	object := map[string]any{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, &ArgumentError{Pointer: at, Message: err.Error()}
		}
		key, _ := token.(string)
		below := at + "/" + agent.EscapeToken(key)
		if _, twice := object[key]; twice {
			return nil, &ArgumentError{Pointer: below, Message: "is there twice"}
		}
		value, fault := readValue(dec, below, depth+1)
		if fault != nil {
			return nil, fault
		}
		object[key] = value
	}
	_, err := dec.Token()
	if err != nil {
		return nil, &ArgumentError{Pointer: at, Message: err.Error()}
	}
	return object, nil
}

func readArray(dec *json.Decoder, at string, depth int) (any, *ArgumentError) {
	array := []any{}
	for dec.More() {
		value, fault := readValue(dec, at+"/"+strconv.Itoa(len(array)), depth+1)
		if fault != nil {
			return nil, fault
		}
		array = append(array, value)
	}
	_, err := dec.Token()
	if err != nil {
		return nil, &ArgumentError{Pointer: at, Message: err.Error()}
	}
	return array, nil
}

// isReference reports whether a value is {"$from": "..."}, which stands for the output of an earlier node.
func isReference(value any) bool {
	object, ok := value.(map[string]any)
	if !ok || len(object) != 1 {
		return false
	}
	_, ok = object["$from"].(string)
	return ok
}

// describe names a value in a message to a model, without repeating a long one.
func describe(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "a value"
	}
	const most = 60
	if len(text) > most {
		return "a text of " + strconv.Itoa(len(text)) + " bytes"
	}
	return string(text)
}

// clip shortens a text to at most n bytes, without cutting a character.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "..."
}
