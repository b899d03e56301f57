package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"runledger/agent"
)

// Bounds of the numbers that go to jsonb as numbers: Postgres refuses those beyond numeric's range, and writes all others
// out in full, so that seven bytes could become many thousand. Every number that a float64 can hold is within.
const (
	maxNumberExponent = 400
	maxNumberDigits   = 1000
)

// jsonbSafe returns doc as jsonb takes it: NUL characters, lone surrogates and bytes that are not UTF-8 become U+FFFD,
// numbers beyond numeric's range become strings. Exact bytes are kept elsewhere; an event shows a value, it is not the value.
func jsonbSafe(doc json.RawMessage) (json.RawMessage, error) {
	if !bytes.Contains(doc, []byte(`\u`)) && !longNumber(doc) && utf8.Valid(doc) {
		return doc, nil
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("event data: %w", err)
	}
	return json.Marshal(safeValue(v))
}

// longNumber reports whether doc holds a number with an exponent or of many digits. Texts are passed over: nearly every digest looks
// like such a number somewhere.
func longNumber(doc []byte) bool {
	digits, text := 0, false
	for i := 0; i < len(doc); i++ {
		c := doc[i]
		switch {
		case text && c == '\\':
			i++
		case c == '"':
			text, digits = !text, 0
		case text:
		case c >= '0' && c <= '9':
			digits++
			if digits > 300 {
				return true
			}
		case (c == 'e' || c == 'E') && digits > 0:
			return true
		default:
			digits = 0
		}
	}
	return false
}

func safeValue(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "\x00", "\uFFFD")
	case json.Number:
		return safeNumber(v)
	case []any:
		for i := range v {
			v[i] = safeValue(v[i])
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		// In order, so that of keys that become the same it is always the same one that stays.
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[strings.ReplaceAll(key, "\x00", "\uFFFD")] = safeValue(v[key])
		}
		return out
	}
	return v
}

func safeNumber(n json.Number) any {
	text := n.String()
	mantissa, exponent, found := strings.Cut(strings.ToLower(text), "e")
	if len(mantissa) > maxNumberDigits {
		return text
	}
	if found {
		e, err := strconv.Atoi(exponent)
		if err != nil || math.Abs(float64(e)) > maxNumberExponent {
			return text
		}
	}
	return n
}

// textSafe returns s as a text column takes it.
func textSafe(s string) string { return agent.StorableText(s) }
