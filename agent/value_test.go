package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

func TestDurationJSON(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]time.Duration{`"90s"`: 90 * time.Second, `"1h30m"`: 90 * time.Minute, `"0s"`: 0, `"250ms"`: 250 * time.Millisecond, `null`: 0} {
		var d agent.Duration
		require.NoError(t, json.Unmarshal([]byte(doc), &d), doc)
		require.Equal(t, agent.Duration(want), d, doc)
	}
	for doc, message := range map[string]string{`90`: "string with a unit", `"90"`: "number with a unit", `""`: "number with a unit", `"-1s"`: "must not be negative", `{}`: "string with a unit"} {
		var d agent.Duration
		require.ErrorContains(t, json.Unmarshal([]byte(doc), &d), message, doc)
	}
	rapid.Check(t, func(t *rapid.T) {
		d := agent.Duration(rapid.Int64Min(0).Draw(t, "duration"))
		doc, err := json.Marshal(d)
		require.NoError(t, err)
		var again agent.Duration
		require.NoError(t, json.Unmarshal(doc, &again))
		require.Equal(t, d, again)
	})
}

func TestPreview(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"äöü", 3, "ä…"}, {"äöü", 4, "äö…"}, {"日本", 2, "…"}, {"a😀b", 4, "a…"}, {"a😀b", 5, "a😀…"},
	} {
		require.Equal(t, tc.want, agent.Preview(tc.text, tc.limit))
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		limit := rapid.IntRange(0, 40).Draw(t, "limit")
		cut := agent.Preview(text, limit)
		require.True(t, utf8.ValidString(cut))
		if len(text) <= limit {
			require.Equal(t, text, cut)
			return
		}
		kept, marked := strings.CutSuffix(cut, "…")
		require.True(t, marked)
		require.True(t, strings.HasPrefix(text, kept))
		require.LessOrEqual(t, len(kept), limit)
		require.Greater(t, len(kept), limit-utf8.UTFMax, "no more than a rune is lost")
	})
	require.Equal(t, "…", agent.Preview(strings.Repeat("\x80", 100), 50), "bytes that are no rune are not kept")
}

func TestShowValue(t *testing.T) {
	t.Parallel()
	small := json.RawMessage(`{"a":1.0}`)
	require.Equal(t, agent.Value{Bytes: 9, JSON: small}, agent.ShowValue(small))
	large := json.RawMessage(`"` + strings.Repeat("ä", 4000) + `"`)
	shown := agent.ShowValue(large)
	require.Equal(t, 8002, shown.Bytes)
	require.Nil(t, shown.JSON)
	require.True(t, utf8.ValidString(shown.Preview))
	require.Less(t, len(shown.Preview), 600)
	doc, err := json.Marshal(agent.ShowValue(nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"bytes": 0}`, string(doc))
}

func TestErrors(t *testing.T) {
	t.Parallel()
	cause := context.DeadlineExceeded
	err := fmt.Errorf("call tool: %w", agent.Unknown(agent.CodeTimeout, "no answer from %s: %w", "host", cause))
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeTimeout})
	require.NotErrorIs(t, err, &agent.Error{Code: agent.CodeToolFailed})
	failure, ok := agent.AsError(err)
	require.True(t, ok)
	require.Equal(t, agent.FaultUnknown, failure.Fault)
	require.Equal(t, "TIMEOUT: no answer from host: context deadline exceeded", failure.Error())
	_, ok = agent.AsError(errors.New("plain"))
	require.False(t, ok)

	require.Equal(t, agent.FaultDefinite, agent.Failed(agent.CodeToolFailed, "no").Fault)
	require.Equal(t, agent.FaultTransient, agent.Transient(agent.CodeModelUnavailable, "later").Fault)

	doc, err := json.Marshal(failure)
	require.NoError(t, err)
	require.JSONEq(t, `{"code": "TIMEOUT", "message": "no answer from host: context deadline exceeded"}`, string(doc))
	var read agent.Error
	require.NoError(t, json.Unmarshal(doc, &read))
	require.NoError(t, read.Unwrap())
}

func TestStatusAndEventTypes(t *testing.T) {
	t.Parallel()
	for status, terminal := range map[agent.Status]bool{agent.Queued: false, agent.Running: false, agent.Waiting: false, agent.Paused: false, agent.InDoubt: false,
		agent.LimitReached: false, agent.Stuck: false, agent.Cancelling: false, agent.Completed: true, agent.FailedStatus: true, agent.Cancelled: true, "other": false} {
		require.Equal(t, terminal, status.Terminal(), status)
	}
	seen := map[agent.EventType]bool{}
	for _, typ := range agent.EventTypes() {
		require.False(t, seen[typ], "%s is listed twice", typ)
		require.LessOrEqual(t, len(typ), 50, "the column holds 50 characters")
		seen[typ] = true
		require.Equal(t, strings.HasPrefix(string(typ), "run_c") || typ == agent.RunFailed, typ.Terminal(), typ)
	}
	require.Len(t, seen, 36)
	for class, valid := range map[agent.EffectClass]bool{agent.Deterministic: true, agent.Idempotent: true, agent.External: true, "": false, "EXTERNAL": false} {
		require.Equal(t, valid, class.Valid(), class)
	}
}

func TestBlueprintResolve(t *testing.T) {
	t.Parallel()
	catalog := []agent.ToolRef{{Name: "everything/echo"}, {Name: "clock"}, {Name: "everything/add"}, {Name: "calculator"}, {Name: "everythingelse/x"}}
	for name, tc := range map[string]struct {
		patterns []string
		want     []string
		err      string
	}{
		"none":                       {nil, []string{}, ""},
		"by name, in their order":    {[]string{"clock", "calculator"}, []string{"clock", "calculator"}, ""},
		"a server's, sorted":         {[]string{"everything/*"}, []string{"everything/add", "everything/echo"}, ""},
		"all":                        {[]string{"*"}, []string{"calculator", "clock", "everything/add", "everything/echo", "everythingelse/x"}, ""},
		"named twice":                {[]string{"clock", "*"}, []string{"clock", "calculator", "everything/add", "everything/echo", "everythingelse/x"}, ""},
		"a name that is not there":   {[]string{"clock", "nope"}, nil, `agent a: tools: "nope" matches no tool`},
		"a server that is not there": {[]string{"nope/*"}, nil, `"nope/*" matches no tool`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := agent.Blueprint{Name: "a", Tools: tc.patterns, Limits: agent.Limits{MaxSteps: 7}}.Resolve(catalog)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			names := []string{}
			for _, tool := range d.Tools {
				names = append(names, tool.Name)
			}
			require.Equal(t, tc.want, names)
			require.Equal(t, agent.Limits{MaxSteps: 7}.Or(agent.DefaultLimits()), d.Limits)
		})
	}
	_, err := agent.Blueprint{Name: "a", Tools: []string{"*"}}.Resolve(nil)
	require.NoError(t, err, "* of an empty catalogue is no tool")
}
