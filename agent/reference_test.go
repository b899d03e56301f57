package agent_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

func TestParseReference(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string]agent.Reference{
		"/input":                      {Root: "input"},
		"/metadata":                   {Root: "metadata", Path: []string{}},
		"/metadata/a/0":               {Root: "metadata", Path: []string{"a", "0"}},
		"/metadata/":                  {Root: "metadata", Path: []string{""}},
		"/nodes/a/output":             {Root: "nodes", NodeID: "a", Part: "output", Path: []string{}},
		"/nodes/a/error/message":      {Root: "nodes", NodeID: "a", Part: "error", Path: []string{"message"}},
		"/nodes/a/output/x~1y/~0/~01": {Root: "nodes", NodeID: "a", Part: "output", Path: []string{"x/y", "~", "~1"}},
	} {
		got, err := agent.ParseReference(pointer)
		require.NoError(t, err, pointer)
		require.Equal(t, want, got, pointer)
		require.Equal(t, pointer, got.String())
	}
}

func TestParseReferenceRefuses(t *testing.T) {
	t.Parallel()
	for pointer, message := range map[string]string{
		"":                    "want a JSON pointer",
		"input":               "want a JSON pointer",
		"/":                   "want /nodes/ID/output",
		"/inputs":             "want /nodes/ID/output",
		"/input/a":            "nothing is below it",
		"/nodes":              "want /nodes/ID/output",
		"/nodes/a":            "want /nodes/ID/output",
		"/nodes/a/outputs":    "want /nodes/ID/output",
		"/nodes/a/output/~":   "must be followed by 0 or 1",
		"/nodes/a/output/~2x": "must be followed by 0 or 1",
	} {
		_, err := agent.ParseReference(pointer)
		require.ErrorContains(t, err, message, pointer)
	}
}

func TestReferenceRoundTrip(t *testing.T) {
	t.Parallel()
	token := rapid.StringOf(rapid.RuneFrom([]rune("a~/0 ä\"\\$")))
	rapid.Check(t, func(t *rapid.T) {
		ref := agent.Reference{Root: "nodes", NodeID: token.Draw(t, "node"), Part: rapid.SampledFrom([]string{"output", "error"}).Draw(t, "part"),
			Path: append([]string{}, rapid.SliceOfN(token, 0, 4).Draw(t, "path")...)}
		got, err := agent.ParseReference(ref.String())
		require.NoError(t, err)
		require.Equal(t, ref, got)
	})
}

// record answers references as a run's record would.
func record(ref agent.Reference) (json.RawMessage, error) {
	switch {
	case ref.Root == "input":
		return json.RawMessage(`"what the user said"`), nil
	case ref.Root == "metadata":
		return json.RawMessage(`{"tags": ["x", "y"], "a/b": {"~": true}}`), nil
	case ref.NodeID == "fetch" && ref.Part == "output":
		return json.RawMessage(`{"big": 12345678901234567890123, "exp": 1e400, "zero": 1.00, "neg": -0.0, "text": "<&>  ", "list": [[1, 2], {"": 7}], "null": null}`), nil
	}
	return nil, errors.New("no such record")
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ value, want string }{
		"a plain value":                     {`[1, {"b": 2, "a": "x"}]`, `[1,{"a":"x","b":2}]`},
		"the input":                         {`{"q": {"$from": "/input"}}`, `{"q":"what the user said"}`},
		"metadata":                          {`{"q": {"$from": "/metadata/tags/1"}}`, `{"q":"y"}`},
		"escaped tokens":                    {`{"q": {"$from": "/metadata/a~1b/~0"}}`, `{"q":true}`},
		"a whole output":                    {`{"q": {"$from": "/nodes/fetch/output/list"}}`, `{"q":[[1,2],{"":7}]}`},
		"an empty key":                      {`{"$from": "/nodes/fetch/output/list/1/"}`, `7`},
		"null is a value":                   {`[{"$from": "/nodes/fetch/output/null"}]`, `[null]`},
		"a number keeps its digits":         {`[{"$from": "/nodes/fetch/output/big"}]`, `[12345678901234567890123]`},
		"a number keeps its exponent":       {`[{"$from": "/nodes/fetch/output/exp"}]`, `[1e400]`},
		"a number keeps its zeros":          {`{"v": {"$from": "/nodes/fetch/output/zero"}}`, `{"v":1.00}`},
		"a number keeps its sign":           {`{"v": {"$from": "/nodes/fetch/output/neg"}}`, `{"v":-0.0}`},
		"numbers of the plan keep theirs":   {`{"v": 1.10, "w": 9007199254740993}`, `{"v":1.10,"w":9007199254740993}`},
		"the whole value is the reference":  {`{"$from": "/nodes/fetch/output/text"}`, `"<&>  "`},
		"$from with company is plain":       {`{"$from": "/input", "x": 1}`, `{"$from":"/input","x":1}`},
		"$from in a text is plain":          {`["$from", "{\"$from\": \"/input\"}"]`, `["$from","{\"$from\": \"/input\"}"]`},
		"an escaped $from is a reference":   {`[{"\u0024fr\u006fm": "/input"}]`, `["what the user said"]`},
		"a reference next to a plain value": {`[{"$from": "/input"}, 1]`, `["what the user said",1]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := agent.Resolve(json.RawMessage(tc.value), record)
			require.NoError(t, err)
			require.Equal(t, tc.want, string(got))
		})
	}
}

func TestResolveFails(t *testing.T) {
	t.Parallel()
	for pointer, message := range map[string]string{
		"/nodes/fetch/output/none":      "reference /nodes/fetch/output/none: nothing at /none",
		"/nodes/fetch/output/list/2":    "the list has 2 items",
		"/nodes/fetch/output/list/-":    "not an index",
		"/nodes/fetch/output/list/01":   "not an index",
		"/nodes/fetch/output/list/-1":   "not an index",
		"/nodes/fetch/output/list/+1":   "not an index",
		"/nodes/fetch/output/text/0":    "below a plain value",
		"/nodes/fetch/output/big/0":     "below a plain value",
		"/nodes/fetch/output/null/x":    "below a plain value",
		"/nodes/fetch/output/a~1b/none": "nothing at /a/b",
	} {
		value, err := json.Marshal(map[string]any{"k": map[string]string{"$from": pointer}})
		require.NoError(t, err)
		_, err = agent.Resolve(value, record)
		require.ErrorContains(t, err, message, pointer)
		failure, ok := agent.AsError(err)
		require.True(t, ok, pointer)
		require.Equal(t, agent.CodeReference, failure.Code)
		require.Equal(t, agent.FaultDefinite, failure.Fault, "trying again cannot help")
	}
}

func TestResolveTellsTheFirstOfSeveralFaults(t *testing.T) {
	t.Parallel()
	for range 20 {
		_, err := agent.Resolve(json.RawMessage(`{"c": {"$from": "/metadata/c"}, "a": {"$from": "/metadata/a"}, "b": {"$from": "/metadata/b"}}`), record)
		require.ErrorContains(t, err, "nothing at /a")
	}
}

func TestEachReference(t *testing.T) {
	t.Parallel()
	var seen []string
	agent.EachReference(json.RawMessage(`{"b": [{"$from": "/input"}, {"$from": "bad"}], "a/x": {"$from": "/nodes/n/output"}, "c": {"$from": "/input", "d": 1}}`),
		func(at string, ref agent.Reference, err error) {
			if err != nil {
				seen = append(seen, at+" bad")
				return
			}
			seen = append(seen, at+" "+ref.String())
		})
	require.Equal(t, []string{"/a~1x /nodes/n/output", "/b/0 /input", "/b/1 bad"}, seen)
}
