package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Reference is what a {"$from": "..."} points to: the run's input or metadata, or the output or error of an earlier node.
type Reference struct {
	// Root is "input", "metadata" or "nodes".
	Root string
	// NodeID and Part ("output" or "error") are set when Root is "nodes".
	NodeID string
	Part   string
	// Path leads on into the value, one unescaped token each.
	Path []string
}

// ParseReference reads a JSON Pointer (RFC 6901) of the form /input, /metadata/..., /nodes/ID/output/... or /nodes/ID/error/...
func ParseReference(pointer string) (Reference, error) {
	if !strings.HasPrefix(pointer, "/") {
		return Reference{}, fmt.Errorf("reference %q: want a JSON pointer that starts with /nodes/, /input or /metadata", pointer)
	}
	tokens, err := ParsePointer(pointer)
	if err != nil {
		return Reference{}, fmt.Errorf("reference %q: %w", pointer, err)
	}
	switch tokens[0] {
	case "input":
		if len(tokens) > 1 {
			return Reference{}, fmt.Errorf("reference %q: the input is a text, nothing is below it", pointer)
		}
		return Reference{Root: "input"}, nil
	case "metadata":
		return Reference{Root: "metadata", Path: tokens[1:]}, nil
	case "nodes":
		if len(tokens) < 3 || (tokens[2] != "output" && tokens[2] != "error") {
			return Reference{}, fmt.Errorf("reference %q: want /nodes/ID/output or /nodes/ID/error", pointer)
		}
		return Reference{Root: "nodes", NodeID: tokens[1], Part: tokens[2], Path: tokens[3:]}, nil
	}
	return Reference{}, fmt.Errorf("reference %q: want /nodes/ID/output, /nodes/ID/error, /input or /metadata", pointer)
}

// ParsePointer reads a JSON Pointer (RFC 6901) into its unescaped tokens, to be walked by [Follow]. "" is the whole document.
func ParsePointer(pointer string) ([]string, error) {
	if pointer == "" {
		return nil, nil
	}
	if pointer[0] != '/' {
		return nil, fmt.Errorf("%q is not a JSON pointer: want it to start with a /", pointer)
	}
	tokens := strings.Split(pointer[1:], "/")
	for i, token := range tokens {
		t, err := unescapeToken(token)
		if err != nil {
			return nil, err
		}
		tokens[i] = t
	}
	return tokens, nil
}

func (r Reference) String() string {
	var b strings.Builder
	b.WriteString("/" + r.Root)
	if r.Root == "nodes" {
		b.WriteString("/" + EscapeToken(r.NodeID) + "/" + r.Part)
	}
	for _, t := range r.Path {
		b.WriteString("/" + EscapeToken(t))
	}
	return b.String()
}

// EscapeToken writes a token of a JSON Pointer.
func EscapeToken(t string) string {
	return strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1")
}

func unescapeToken(t string) (string, error) {
	for i := range len(t) {
		if t[i] == '~' && (i+1 == len(t) || (t[i+1] != '0' && t[i+1] != '1')) {
			return "", fmt.Errorf("%q: a ~ must be followed by 0 or 1", t)
		}
	}
	return strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~"), nil
}

// asReference tells whether a JSON value is an object whose only key is $from, however escaped, and reads it.
func asReference(value json.RawMessage) (ref Reference, is bool, err error) {
	if firstByte(value) != '{' || !bytes.Contains(value, []byte(`$from`)) && !bytes.Contains(value, []byte(`\u`)) {
		return Reference{}, false, nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(value, &object); err != nil {
		return Reference{}, false, err
	}
	from, ok := object["$from"]
	if !ok || len(object) != 1 {
		return Reference{}, false, nil
	}
	var pointer string
	if err := json.Unmarshal(from, &pointer); err != nil {
		return Reference{}, true, fmt.Errorf("$from: want a string, have %s", from)
	}
	ref, err = ParseReference(pointer)
	return ref, true, err
}

func firstByte(value json.RawMessage) byte {
	value = bytes.TrimLeft(value, " \t\r\n")
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

// deeperThan reports whether a JSON value nests lists and objects beyond limit. Values are walked level by level, each
// level reading all that is below it, so Compile bounds what it lets in.
func deeperThan(value json.RawMessage, limit int) bool {
	depth, inText := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// EachReference calls visit for every reference inside value, with the pointer of its place in value, in a fixed order.
// A malformed reference is visited with its error.
func EachReference(value json.RawMessage, visit func(at string, ref Reference, err error)) {
	eachReference(value, "", visit)
}

func eachReference(value json.RawMessage, at string, visit func(string, Reference, error)) {
	ref, is, err := asReference(value)
	if is || err != nil {
		visit(at, ref, err)
		return
	}
	switch firstByte(value) {
	case '{':
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) != nil {
			return
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			eachReference(object[key], at+"/"+EscapeToken(key), visit)
		}
	case '[':
		var array []json.RawMessage
		if json.Unmarshal(value, &array) != nil {
			return
		}
		for i, item := range array {
			eachReference(item, at+"/"+strconv.Itoa(i), visit)
		}
	}
}

// Resolve returns value, compact and with its keys in order, with every reference replaced by what lookup gives for its
// root (the whole input, metadata, output or error), followed along the reference's path; by null where lookup gives nothing at all.
func Resolve(value json.RawMessage, lookup func(Reference) (json.RawMessage, error)) (json.RawMessage, error) {
	ref, is, err := asReference(value)
	if err != nil {
		return nil, Failed(CodeReference, "%w", err)
	}
	if is {
		root, err := lookup(ref)
		if err != nil {
			return nil, err
		}
		if root == nil {
			return json.RawMessage("null"), nil
		}
		found, err := Follow(root, ref.Path)
		if err != nil {
			return nil, Failed(CodeReference, "reference %s: %w", ref, err)
		}
		return found, nil
	}
	switch firstByte(value) {
	case '{':
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil {
			return nil, fmt.Errorf("resolve references: %w", err)
		}
		// In order, so that of several broken references it is always the same one that is told.
		for _, key := range slices.Sorted(maps.Keys(object)) {
			resolved, err := Resolve(object[key], lookup)
			if err != nil {
				return nil, err
			}
			object[key] = resolved
		}
		return json.Marshal(object)
	case '[':
		var array []json.RawMessage
		if err := json.Unmarshal(value, &array); err != nil {
			return nil, fmt.Errorf("resolve references: %w", err)
		}
		for i, item := range array {
			resolved, err := Resolve(item, lookup)
			if err != nil {
				return nil, err
			}
			array[i] = resolved
		}
		return json.Marshal(array)
	}
	return value, nil
}

// Follow walks a JSON value along the tokens of a pointer and returns the bytes it ends at, as they stand. An error says
// where there is nothing.
func Follow(value json.RawMessage, path []string) (json.RawMessage, error) {
	for i, token := range path {
		at := "/" + strings.Join(path[:i+1], "/")
		switch firstByte(value) {
		case '{':
			var object map[string]json.RawMessage
			if err := json.Unmarshal(value, &object); err != nil {
				return nil, err
			}
			next, ok := object[token]
			if !ok {
				return nil, fmt.Errorf("nothing at %s", at)
			}
			value = next
		case '[':
			var array []json.RawMessage
			if err := json.Unmarshal(value, &array); err != nil {
				return nil, err
			}
			n, err := strconv.Atoi(token)
			if err != nil || n < 0 || strconv.Itoa(n) != token {
				return nil, fmt.Errorf("%s: %q is not an index", at, token)
			}
			if n >= len(array) {
				return nil, fmt.Errorf("nothing at %s: the list has %d items", at, len(array))
			}
			value = array[n]
		default:
			return nil, fmt.Errorf("nothing at %s: it is below a plain value", at)
		}
	}
	return value, nil
}
