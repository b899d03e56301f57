package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/internal/pgtest"
)

func TestJSONBSafe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ doc, want string }{
		"plain":                        {`{"b": 1.50, "a": [true, null, "ä"]}`, `{"b": 1.50, "a": [true, null, "ä"]}`},
		"NUL":                          {`["a\u0000b"]`, `["a` + "\uFFFD" + `b"]`},
		"NUL in a key":                 {`{"a\u0000": {"\u0000": 1}}`, `{"a` + "\uFFFD" + `": {"` + "\uFFFD" + `": 1}}`},
		"keys that become the same":    {`{"\u0000": 1, "\ufffd": 2}`, `{"` + "\uFFFD" + `": 2}`},
		"a lone surrogate":             {`["\ud800", "\udc00\ud800"]`, `["` + "\uFFFD" + `", "` + "\uFFFD\uFFFD" + `"]`},
		"a pair of surrogates":         {`["\ud83d\ude00"]`, `["😀"]`},
		"an escaped backslash":         {`["\\u0000"]`, `["\\u0000"]`},
		"not UTF-8":                    {"[\"a\xff\xed\xa0\x80\"]", `["a` + strings.Repeat("\uFFFD", 4) + `"]`},
		"beyond numeric":               {`[1e200000, -1E+200000, 1e-200000]`, `["1e200000", "-1E+200000", "1e-200000"]`},
		"an exponent beyond any":       {`[1e99999999999999999999]`, `["1e99999999999999999999"]`},
		"numbers that fit keep digits": {`[1e400, 123456789012345678901234567890.10, -0.0, 1E-7]`, `[1e400, 123456789012345678901234567890.10, -0.0, 1E-7]`},
		"many digits":                  {`[` + strings.Repeat("9", 2000) + `]`, `["` + strings.Repeat("9", 2000) + `"]`},
		"digits in a text":             {`["` + strings.Repeat("9", 2000) + `", "1e999999"]`, `["` + strings.Repeat("9", 2000) + `", "1e999999"]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := jsonbSafe(json.RawMessage(tc.doc))
			require.NoError(t, err)
			var want, have bytes.Buffer
			require.NoError(t, json.Compact(&want, []byte(tc.want)))
			require.NoError(t, json.Compact(&have, got))
			require.Equal(t, want.String(), have.String())
		})
	}
	for _, plain := range []string{`{ "b" : 1 }`, `{ "hash" : "12e45", "\"9e9" : true }`} {
		got, err := jsonbSafe(json.RawMessage(plain))
		require.NoError(t, err)
		require.Equal(t, plain, string(got), "what is safe is not touched")
	}
}

// FuzzJSONBSafe: whatever document goes in, Postgres takes it, as jsonb made safe and as json by its text; and a document
// without anything unsafe comes back with the same meaning.
func FuzzJSONBSafe(f *testing.F) {
	for _, seed := range []string{
		`null`, `{}`, `"\u0000"`, `{"a\u0000": ["\ud800", "\udfff\ud800x", "\ud83d\ude00"]}`, `[1e200000, -1E-200000, 1e400, 0.1e-400, -0, -0.0, 0e9999999]`,
		`[` + strings.Repeat("1", 5000) + `, 0.` + strings.Repeat("1", 20000) + `, ` + strings.Repeat("9", 301) + `.` + strings.Repeat("9", 301) + `]`,
		strings.Repeat("[", 3000) + strings.Repeat("]", 3000), strings.Repeat(`{"a":`, 9000) + `1e300000` + strings.Repeat("}", 9000), "\"\xff\"", "\"\xed\xa0\x80\"",
		`{"a": 1, "a": 2, "<>&\u2028": "\\u0000"}`, ` [ 1 , "x" ] `, `"\uFFFE\uFFFF"`, `1e+5`, `123E-2`, `["e5", "5e"]`, `1.` + strings.Repeat("0", 299) + `e1000`,
	} {
		f.Add([]byte(seed))
	}
	conn, err := pgx.Connect(f.Context(), pgtest.Database(f))
	require.NoError(f, err)
	f.Cleanup(func() { _ = conn.Close(context.Background()) })
	f.Fuzz(func(t *testing.T, doc []byte) {
		if !json.Valid(doc) {
			return
		}
		safe, err := jsonbSafe(doc)
		require.NoError(t, err)
		var taken, kept []byte
		err = conn.QueryRow(t.Context(), `SELECT $1::text::jsonb, $2::text::json`, string(safe), nullJSON(doc)).Scan(&taken, &kept)
		require.NoError(t, err)
		require.Equal(t, tamed(decoded(t, doc, true)), decoded(t, taken, false))
		if utf8.Valid(doc) {
			require.Equal(t, string(doc), string(kept), "json keeps every byte")
		}
	})
}

// decoded reads a document with its numbers by their value; bounded leaves those as texts that jsonb does not get.
func decoded(t testing.TB, doc []byte, bounded bool) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v))
	return byValue(v, bounded)
}

func byValue(v any, bounded bool) any {
	switch v := v.(type) {
	case json.Number:
		if bounded && safeNumber(v) != any(v) {
			return string(v)
		}
		r, ok := new(big.Rat).SetString(string(v))
		if !ok {
			return string(v)
		}
		return r
	case []any:
		for i := range v {
			v[i] = byValue(v[i], bounded)
		}
	case map[string]any:
		for key := range v {
			v[key] = byValue(v[key], bounded)
		}
	}
	return v
}

// tamed replaces what text cannot hold.
func tamed(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "\x00", "\uFFFD")
	case []any:
		for i := range v {
			v[i] = tamed(v[i])
		}
	case map[string]any:
		return safeKeys(v)
	}
	return v
}

func safeKeys(v map[string]any) map[string]any {
	out := map[string]any{}
	for key, item := range v {
		if safe := strings.ReplaceAll(key, "\x00", "\uFFFD"); safe != key {
			if _, both := v[safe]; !both {
				out[safe] = tamed(item)
			}
			continue
		}
		out[key] = tamed(item)
	}
	return out
}
