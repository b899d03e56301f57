package scripted

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// fit writes the smallest JSON value that fits a schema, with words of the request where a text is wanted.
func fit(raw json.RawMessage, text string) string {
	said := strings.Join(strings.Fields(taskText(text)), " ")
	f := fitter{text: clip(said, 60), defs: readSchema(raw).Defs}
	return string(encode(f.value(raw, 0)))
}

// maxDepth ends schemas that refer to themselves.
const maxDepth = 12

type fitter struct {
	text string
	defs map[string]json.RawMessage
}

func (f fitter) value(raw json.RawMessage, depth int) any {
	s := readSchema(raw)
	if name, ok := strings.CutPrefix(s.Ref, "#/$defs/"); ok && depth < maxDepth {
		return f.value(f.defs[name], depth+1)
	}
	for _, one := range slices.Concat(s.AnyOf, s.OneOf) {
		if depth < maxDepth {
			return f.value(one, depth+1)
		}
	}
	switch {
	case len(s.Const) > 0:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.Default) > 0:
		return s.Default
	case s.is("object") || len(s.Properties) > 0:
		return f.object(s, depth)
	case s.is("array"):
		list := []any{}
		for range min(s.MinItems, 100) {
			list = append(list, f.value(s.Items, depth+1))
		}
		return list
	case s.is("string"):
		return f.string(s)
	case s.is("integer"), s.is("number"):
		if s.Minimum != nil {
			return *s.Minimum
		}
		return 0
	case s.is("boolean"):
		return true
	case s.is("null"), depth >= maxDepth:
		return nil
	}
	return f.text
}

func (f fitter) object(s schema, depth int) any {
	object := make(map[string]any)
	names := s.Required
	if len(names) == 0 && depth < 2 {
		names = slices.Sorted(maps.Keys(s.Properties)) // nothing is required, but nothing would say nothing
	}
	for _, name := range names {
		if depth < maxDepth {
			object[name] = f.value(s.Properties[name], depth+1)
		}
	}
	return object
}

func (f fitter) string(s schema) string {
	switch s.Format {
	case "date-time":
		return "2000-01-01T00:00:00Z"
	case "date":
		return "2000-01-01"
	case "time":
		return "00:00:00Z"
	case "uri":
		return "https://example.org/"
	case "email":
		return "nobody@example.org"
	case "uuid":
		return "00000000-0000-4000-8000-000000000000"
	}
	return f.text + strings.Repeat(".", max(0, min(s.MinLength, 10_000)-len([]rune(f.text))))
}
