package mcp

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestOutput(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, result, want, failure string }{
		{"text", `{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}`, `{"text":"a\nb"}`, ""},
		{"nothing", `{}`, `{"text":""}`, ""},
		{"null", `{"content": null, "structuredContent": null}`, `{"text":""}`, ""},
		{"structured wins", `{"content": [{"type": "text", "text": "{}"}], "structuredContent": {"a" : 1.50}}`, `{"a" : 1.50}`, ""},
		{"a structured list", `{"content": [], "structuredContent": [1,2]}`, `[1,2]`, ""},
		{"structured and too large", `{"structuredContent": "` + strings.Repeat("x", 60) + `"}`, `{"text":"\"` + strings.Repeat("x", 49) + `","truncated":true}`, ""},
		{"structured and no text", "{\"structuredContent\": \"\xff\"}", "\"\ufffd\"", ""},
		{
			"resource", `{"content": [{"type": "resource_link", "uri": "file:///a", "_meta": {"x": 1}, "annotations": {}, "icons": []}]}`,
			`{"text":"","content":[{"type":"resource_link","uri":"file:///a"}]}`, "",
		},
		{
			"a block that is too large", `{"content": [{"type": "image", "data": "` + strings.Repeat("A", 60) + `", "mimeType": "a/b"}]}`,
			`{"text":"","content":[{"mimeType":"a/b","type":"image"}],"truncated":true}`, "",
		},
		{"a block that is too large even so", `{"content": [{"type": "image", "mimeType": "` + strings.Repeat("A", 60) + `"}]}`, `{"text":"","truncated":true}`, ""},
		{
			"text before blocks", `{"content": [{"type": "image", "data": "AAAA"}, {"type": "text", "text": "` + strings.Repeat("x", 48) + `"}]}`,
			`{"text":"` + strings.Repeat("x", 48) + `","truncated":true}`, "",
		},
		{"no blocks", `{"content": [1, null, "x", {"type": "text", "text": 5}]}`, `{"text":"","content":[{"text":5,"type":"text"}]}`, ""},
		{"error", `{"isError": true, "content": [{"type": "text", "text": " no such thing "}]}`, "", "x/y: no such thing"},
		{"error without a word", `{"isError": true, "content": [], "structuredContent": {"a": 1}}`, "", "x/y: the tool reports an error without a text"},
		{"question", `{"resultType": "input_required", "inputRequests": {}}`, "", "x/y: asks for input, which a run cannot give"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out, err := output("x/y", json.RawMessage(tc.result), 50)
			if tc.failure != "" {
				e, ok := agent.AsError(err)
				require.True(t, ok)
				require.Equal(t, agent.FaultDefinite, e.Fault)
				require.Equal(t, tc.failure, e.Message)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, string(out))
		})
	}
	_, err := output("x/y", json.RawMessage(`[]`), 50)
	e, ok := agent.AsError(err)
	require.True(t, ok)
	require.Equal(t, agent.FaultUnknown, e.Fault)
	_, err = output("x/y", json.RawMessage(`{"isError": true, "content": [{"type": "text", "text": "`+strings.Repeat("é", maxErrorText)+`"}]}`), 1<<20)
	require.Less(t, len(err.Error()), maxErrorText+50)
}

func TestPublicName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"get-sum": "get-sum", "repo.search": "repo_search", "a/b c": "a_b_c", "größe": "gr__e", "": "", strings.Repeat("x", 128): strings.Repeat("x", 64),
	} {
		require.Equal(t, want, publicName(name))
	}
}

func FuzzOutput(f *testing.F) {
	f.Add(`{"content": [{"type": "text", "text": "é"}, {"type": "image", "data": "QQ=="}]}`, 3)
	f.Add(`{"structuredContent": {"a": [1, 2]}}`, 5)
	f.Add(`{"isError": true, "content": [{"type": "text", "text": "x"}]}`, 0)
	f.Fuzz(func(t *testing.T, raw string, limit int) {
		limit = min(max(limit, 0), 1<<16)
		out, err := output("x/y", json.RawMessage(raw), limit)
		if err != nil {
			if _, ok := agent.AsError(err); !ok {
				t.Fatalf("%v is not classified", err)
			}
			return
		}
		if !json.Valid(out) || !utf8.Valid(out) {
			t.Fatalf("%q gives %q", raw, out)
		}
		var plain plainOutput
		if json.Unmarshal(out, &plain) == nil && plain.Truncated && len(plain.Text) > limit && len(out) > limit {
			t.Fatalf("%q gives %d bytes of text, want %d", raw, len(plain.Text), limit)
		}
	})
}
