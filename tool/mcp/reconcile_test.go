package mcp

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// said makes the tool find of the fake server answer what the arguments of the lost call say.
func said(edit func(*Reconcile)) Reconcile {
	r := Reconcile{Tool: "find", Arguments: map[string]any{"key": "{key}", "say": "{arguments/say}"}}
	if edit != nil {
		edit(&r)
	}
	return r
}

func connectReconciling(t testing.TB, how Reconcile) *Server {
	t.Helper()
	return connectFake(t, func(c *Config) { c.Reconcile = map[string]Reconcile{"destroy": how} })
}

// lost looks up a call of destroy whose answer was lost.
func lost(ctx context.Context, t testing.TB, s *Server, args string) (tool.Finding, error) {
	t.Helper()
	r, ok := find(t, s, "destroy").(tool.Reconciler)
	require.True(t, ok)
	return r.Reconcile(ctx, tool.Call{Key: `run-1/pay#2.0~1 "é"`, Arguments: json.RawMessage(args)})
}

func TestOnlyDeclaredToolsReconcile(t *testing.T) {
	t.Parallel()
	s := connectReconciling(t, said(nil))
	for _, candidate := range s.Tools() {
		_, ok := candidate.(tool.Reconciler)
		require.Equal(t, candidate.Spec().Name == "fake/destroy", ok, candidate.Spec().Name)
	}
	require.Equal(t, agent.External, tool.ClassOf(find(t, s, "destroy"), nil))
	out, err := call(t.Context(), t, s, "destroy", `{"text": "x"}`)
	require.NoError(t, err, "it is called as before")
	require.Equal(t, `{"text":"x"}`, out)
}

func TestReconcileAsks(t *testing.T) {
	t.Parallel()
	s := connectReconciling(t, Reconcile{Tool: "find", Arguments: map[string]any{
		"key": "of {key}, {key}", "say": nil, "more": map[string]any{"all": "{arguments}", "list": []any{"{arguments/a~1b/0}", 7, "{other}"}},
	}})
	found, err := lost(t.Context(), t, s, `{"a/b": [{"n": 9007199254740993}], "key": "{key}"}`)
	require.NoError(t, err)
	require.True(t, found.Found)
	require.Contains(t, string(found.Output), "9007199254740993", "the digits are those of the call")
	require.JSONEq(t, `{"meta": null, "args": {"key": "of run-1/pay#2.0~1 \"é\", run-1/pay#2.0~1 \"é\"", "say": null, "more": {
		"all": {"a/b": [{"n": 9007199254740993}], "key": "{key}"}, "list": [{"n": 9007199254740993}, 7, "{other}"]}}}`, string(found.Output),
		"and no key in _meta: a server that knows it would take the question for the call")
}

func TestReconcileFinds(t *testing.T) {
	t.Parallel()
	const charge = `{"say": {"structuredContent": {"charge": {"id": 1, "none": null}}}}`
	for _, tc := range []struct {
		name          string
		found, output string
		args          string
		want          string // the output; not found when empty
		inconclusive  bool   // whatever the configuration says
	}{
		{"the whole answer", "", "", charge, `{"charge":{"id":1,"none":null}}`, false},
		{"by a pointer", "/charge/id", "", charge, `{"charge":{"id":1,"none":null}}`, false},
		{"a part of it", "/charge", "/charge/id", charge, `1`, false},
		{"a null that stands for the answer", "/charge", "/charge/none", charge, `null`, false},
		{"JSON in a text", "/id", "/id", `{"say": {"content": [{"type": "text", "text": " {\"id\": 12345678901234567890}"}], "structuredContent": null}}`, `12345678901234567890`, false},
		{"a text", "", "", `{"say": {"content": [{"type": "text", "text": "done"}], "structuredContent": null}}`, `{"text":"done"}`, false},
		{"over the limit", "/charge", "/charge", `{"say": {"structuredContent": {"charge": "` + strings.Repeat("x", 200) + `"}}}`,
			`{"text":"\"` + strings.Repeat("x", 99) + `","truncated":true}`, false},
		{"nothing there", "/refund", "/refund", charge, "", false},
		{"null", "/charge/none", "", charge, "", false},
		{"JSON in a text without it", "/id", "", `{"say": {"content": [{"type": "text", "text": "{}"}], "structuredContent": null}}`, "", false},
		{"an error", "/charge", "", `{"say": {"isError": true, "content": [{"type": "text", "text": "no such charge"}]}}`, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, conclusive := range []bool{false, true} {
				if conclusive && tc.found == "" {
					continue // refused
				}
				s := connectFake(t, func(c *Config) {
					c.MaxOutputBytes = 100
					c.Reconcile = map[string]Reconcile{"destroy": said(func(r *Reconcile) { r.Found, r.Output, r.Conclusive = tc.found, tc.output, conclusive })}
				})
				found, err := lost(t.Context(), t, s, tc.args)
				require.NoError(t, err)
				if tc.want == "" {
					require.Equal(t, tool.Finding{Conclusive: conclusive && !tc.inconclusive}, found)
					continue
				}
				require.True(t, found.Found)
				if tc.output == "" && tc.found != "" {
					require.JSONEq(t, tc.want, string(found.Output))
				} else {
					require.Equal(t, tc.want, string(found.Output))
				}
			}
		})
	}
}

func TestReconcileLearnsNothing(t *testing.T) {
	t.Parallel()
	text := `{"say": {"content": [{"type": "text", "text": "no such charge"}], "structuredContent": null}}`
	for _, tc := range []struct {
		name  string
		edit  func(*Reconcile)
		args  string
		want  string
		never bool // nothing will ever be learned of this call
	}{
		{"not JSON", func(r *Reconcile) { r.Found = "/id" }, text, "the result of find is not JSON", false},
		{"no output where it was found", func(r *Reconcile) { r.Output = "/id" }, `{"say": {"structuredContent": {}}}`, "has nothing at /id", false},
		{"the server dies", func(r *Reconcile) { r.Tool, r.Arguments = "die", map[string]any{"text": "{key}"} }, `{}`, "the server gave no answer", false},
		{"the server breaks", func(r *Reconcile) { r.Tool = "break" }, `{"say": 1}`, "stack overflow", false},
		{"the server refuses", func(r *Reconcile) { r.Tool = "refuse" }, `{"say": 1}`, "what is that?", false},
		{"an argument that the call did not have", nil, `{}`, "nothing at /say", true},
		{"arguments that are none", nil, `"x"`, "/say", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := connectFake(t, func(c *Config) {
				c.Effects = map[string]agent.EffectClass{"die": agent.Idempotent, "break": agent.Idempotent, "refuse": agent.Deterministic}
				c.Reconcile = map[string]Reconcile{"destroy": said(tc.edit)}
			})
			found, err := lost(t.Context(), t, s, tc.args)
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)
			if tc.never {
				require.ErrorIs(t, err, tool.ErrNotReconcilable)
			} else {
				require.NotErrorIs(t, err, tool.ErrNotReconcilable)
			}
			require.Zero(t, found)
		})
	}
}

func TestReconcileReadsNoQuestion(t *testing.T) {
	t.Parallel()
	asked := &reconcilingTool{remoteTool: &remoteTool{server: &Server{}}, lookup: &remoteTool{name: "find"}, how: Reconcile{Found: "/id", Conclusive: true}}
	for raw, want := range map[string]string{
		`{"resultType": "input_required", "structuredContent": {}}`: "find asks for input",
		`[]`: "the result of find cannot be read",
	} {
		found, err := asked.read(json.RawMessage(raw))
		require.ErrorContains(t, err, want)
		require.Zero(t, found)
	}
}

func TestReconcileWithoutKey(t *testing.T) {
	t.Parallel()
	s := connectReconciling(t, Reconcile{Tool: "find", Arguments: map[string]any{"key": "{key}"}})
	_, err := find(t, s, "destroy").(tool.Reconciler).Reconcile(t.Context(), tool.Call{Arguments: json.RawMessage(`{}`)})
	require.ErrorIs(t, err, tool.ErrNotReconcilable)
}

func TestReconcileEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := connectFake(t, func(c *Config) {
		c.Effects = map[string]agent.EffectClass{"wait": agent.Idempotent}
		c.Reconcile = map[string]Reconcile{"destroy": {Tool: "wait", Arguments: map[string]any{"text": "{key}", "addr": "{arguments/addr}"}}}
	})
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-l.words
		cancel()
	}()
	_, err := lost(ctx, t, s, l.args())
	require.Equal(t, agent.CodeCancelled, failure(t, err).Code)
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)

	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = lost(over, t, s, l.args())
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault, "also where the question never left")
}

func TestReconcileIsRefusedAtConnect(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"no such tool": {func(c *Config) { c.Reconcile = map[string]Reconcile{"pay": said(nil)} }, `the server has no tool "pay"`},
		"no such lookup": {func(c *Config) {
			c.Reconcile = map[string]Reconcile{"destroy": said(func(r *Reconcile) { r.Tool = "search" })}
		}, `destroy: the server has no tool "search"`},
		"a lookup that says nothing of itself": {func(c *Config) {
			c.Reconcile = map[string]Reconcile{"destroy": {Tool: "plain", Arguments: map[string]any{"text": "{key}"}}}
		}, "plain may change something"},
		"a lookup that may be repeated": {func(c *Config) {
			c.Reconcile = map[string]Reconcile{"destroy": {Tool: "echo", Arguments: map[string]any{"text": "{key}"}}}
		}, "echo may change something"},
		"a lookup that says it reads and is said not to": {func(c *Config) {
			c.Effects = map[string]agent.EffectClass{"find": agent.External}
			c.Reconcile = map[string]Reconcile{"destroy": said(nil)}
		}, "find may change something"},
		"a lookup that cannot be used": {func(c *Config) {
			c.Effects = map[string]agent.EffectClass{"bad": agent.Idempotent}
			c.Reconcile = map[string]Reconcile{"destroy": said(func(r *Reconcile) { r.Tool = "bad" })}
		}, "bad cannot be used"},
		"arguments that do not fit": {func(c *Config) {
			c.Reconcile = map[string]Reconcile{"destroy": said(func(r *Reconcile) { r.Arguments = map[string]any{"id": "{key}"} })}
		}, "arguments for find: /id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := fakeConfig(t, "serve")
			tc.edit(&cfg)
			require.NoError(t, cfg.Check(), "it shows only with the server")
			_, err := Connect(t.Context(), cfg)
			require.ErrorContains(t, err, "mcp server fake: reconcile: ")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestBadReconcile(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*Reconcile)
		want string
	}{
		"no tool":                    {func(r *Reconcile) { r.Tool = "" }, "tool: missing"},
		"no arguments":               {func(r *Reconcile) { r.Arguments = nil }, "arguments: {key} stands nowhere"},
		"no key":                     {func(r *Reconcile) { r.Arguments = map[string]any{"key": "{arguments/key}"} }, "{key} stands nowhere"},
		"not JSON":                   {func(r *Reconcile) { r.Arguments["n"] = math.NaN() }, "arguments: json: unsupported value: NaN"},
		"arguments without end":      {func(r *Reconcile) { r.Arguments["a"] = "{arguments/a" }, "want {arguments} or {arguments/pointer}"},
		"arguments without a slash":  {func(r *Reconcile) { r.Arguments["a"] = []any{"{arguments.a}"} }, "want {arguments} or {arguments/pointer}"},
		"arguments inside of a text": {func(r *Reconcile) { r.Arguments["a"] = map[string]any{"b": "id {arguments/a}"} }, "stands for a whole value"},
		"found is no pointer":        {func(r *Reconcile) { r.Found = "id" }, `found: "id" is not a JSON pointer`},
		"output is no pointer":       {func(r *Reconcile) { r.Output = "/~" }, "output: "},
		"conclusive without proof":   {func(r *Reconcile) { r.Conclusive = true }, "conclusive: needs found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := fakeConfig(t, "serve")
			cfg.Reconcile = map[string]Reconcile{"destroy": said(tc.edit)}
			err := cfg.Check()
			require.ErrorContains(t, err, "reconcile: destroy: ")
			require.ErrorContains(t, err, tc.want)
		})
	}
}
