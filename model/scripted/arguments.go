package scripted

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// schema is what the model understands of a JSON Schema.
type schema struct {
	Type       json.RawMessage            `json:"type"`
	Properties map[string]json.RawMessage `json:"properties"`
	Required   []string                   `json:"required"`
	Items      json.RawMessage            `json:"items"`
	Enum       []json.RawMessage          `json:"enum"`
	Const      json.RawMessage            `json:"const"`
	Default    json.RawMessage            `json:"default"`
	Format     string                     `json:"format"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
	OneOf      []json.RawMessage          `json:"oneOf"`
	Ref        string                     `json:"$ref"`
	Defs       map[string]json.RawMessage `json:"$defs"`
	MinItems   int                        `json:"minItems"`
	MinLength  int                        `json:"minLength"`
	Minimum    *json.Number               `json:"minimum"`
}

// readSchema reads a schema as far as it can; what it cannot read allows anything.
func readSchema(raw json.RawMessage) schema {
	var s schema
	if json.Unmarshal(raw, &s) != nil {
		return schema{}
	}
	return s
}

func (s schema) property(name string) schema { return readSchema(s.Properties[name]) }

func (s schema) is(name string) bool {
	var one string
	if json.Unmarshal(s.Type, &one) == nil {
		return one == name
	}
	var several []string
	return json.Unmarshal(s.Type, &several) == nil && slices.Contains(several, name)
}

// takesText reports whether any words will do.
func (s schema) takesText() bool {
	return len(s.Enum) == 0 && (s.is("string") || s.is("array") || len(s.Type) == 0)
}

var (
	aNumber       = regexp.MustCompile(numeral)
	inline        = regexp.MustCompile(`^\s*(?i:with)?\s*(?i:the)?\s*(?i:arguments)?\s*:?\s*\{`)
	listSeparator = regexp.MustCompile(`,|\band\b`)
	negative      = regexp.MustCompile(`(?i)\b(?:no|not|false|off|without|never)\b`)
)

// arguments fills a tool's arguments from the words behind its name, and says how much of them it took. A JSON object there
// is taken as it is; else "name=value", quotes, numbers and words go to the properties that want them.
func arguments(text string, s schema) (json.RawMessage, int) {
	before := len(text) - len(strings.TrimLeft(text, " \t:("))
	if m := inline.FindString(text); m != "" {
		before = len(m) - 1
	}
	if end := objectEnd(text[before:]); strings.HasPrefix(text[before:], "{") && end > 0 {
		return json.RawMessage(text[before : before+end]), before + end
	}
	said := clause(text)
	taken := len(said)
	f := filler{said: said}
	args := make(map[string]any)
	names := slices.Clone(s.Required)
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.property(name)
		if value, ok := f.named(name, property); ok {
			args[name] = value
		}
		if len(s.Required) == 0 && property.is("string") && len(names) == 0 {
			names = append(names, name) // nothing is required: the words may still be meant for something
		}
	}
	// Texts come last: they take all the words that nothing else has taken.
	for _, texts := range []bool{false, true} {
		for _, name := range names {
			property := s.property(name)
			if _, done := args[name]; done || texts != property.takesText() {
				continue
			}
			if value, ok := f.value(property, slices.Contains(s.Required, name)); ok {
				args[name] = value
			}
		}
	}
	return encode(args), taken
}

// filler hands out what a clause says, each piece once.
type filler struct{ said string }

// named takes "name=value" or "name: value".
func (f *filler) named(name string, s schema) (any, bool) {
	pattern, err := regexp.Compile(`(?i)(?:^|[\s,(])` + regexp.QuoteMeta(name) + `\s*[=:]\s*("[^"]*"|\[[^\]]*\]|[^\s,)]+)`)
	if err != nil {
		return nil, false
	}
	m := pattern.FindStringSubmatchIndex(f.said)
	if m == nil {
		return nil, false
	}
	value := strings.Trim(f.said[m[2]:m[3]], `"`)
	f.said = f.said[:m[0]] + f.said[m[1]:]
	if !s.is("string") && json.Valid([]byte(value)) {
		return json.RawMessage(value), true
	}
	return value, true
}

func (f *filler) value(s schema, required bool) (any, bool) {
	switch {
	case len(s.Enum) > 0:
		for _, e := range s.Enum {
			var text string
			if json.Unmarshal(e, &text) != nil || text == "" {
				continue
			}
			if places := find(f.said, `(?:(?:in|as|with|using) +)?`+regexp.QuoteMeta(text)); len(places) > 0 {
				f.said = f.said[:places[0][0]] + f.said[places[0][1]:]
				return e, true
			}
		}
		return s.Enum[0], required
	case s.is("string"):
		if text := f.text(); text != "" || required {
			return text, true
		}
		return nil, false
	case s.is("number"), s.is("integer"):
		if m := aNumber.FindStringIndex(f.said); m != nil {
			n := signedNumber(f.said[m[0]:m[1]])
			f.said = f.said[:m[0]] + f.said[m[1]:]
			if i := strings.IndexByte(n, '.'); i >= 0 && !s.is("number") {
				n = n[:i]
			}
			return json.Number(n), true
		}
		if s.Minimum != nil {
			return *s.Minimum, required
		}
		return 1, required
	case s.is("boolean"):
		return !negative.MatchString(f.said), required
	case s.is("array"):
		return f.list(readSchema(s.Items)), required
	case s.is("object"), s.is("null"):
		return json.RawMessage(`{}`), required && s.is("object")
	}
	if text := f.text(); text != "" || required {
		return text, true // any type will do
	}
	return nil, false
}

// text takes the next quoted text, an address, or all the words that are left.
func (f *filler) text() string {
	if m := quoted.FindStringSubmatchIndex(f.said); m != nil {
		text := ""
		for i := 2; i < len(m); i += 2 {
			if m[i] >= 0 {
				text = f.said[m[i]:m[i+1]]
			}
		}
		f.said = f.said[:m[0]] + f.said[m[1]:]
		return text
	}
	if m := address.FindStringIndex(f.said); m != nil {
		where := trimAddress(f.said[m[0]:m[1]])
		f.said = f.said[:m[0]] + f.said[m[0]+len(where):]
		return where
	}
	text := words(f.said)
	f.said = ""
	return text
}

func (f *filler) list(items schema) []any {
	list := []any{}
	if items.is("number") || items.is("integer") {
		for _, n := range aNumber.FindAllString(f.said, -1) {
			list = append(list, json.Number(signedNumber(n)))
		}
		return list
	}
	for _, part := range listSeparator.Split(words(f.said), -1) {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}
