package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
	"runledger/predicate"
	"runledger/tool"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	})
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// bench is an API over a ledger in memory. Every exchange over it is held against openapi.yaml.
type bench struct {
	t      testing.TB
	api    *API
	ledger *fakeLedger
	spec   *openapi3.T
	logged *bytes.Buffer
}

// readSpec reads openapi.yaml once; reading it takes longer than most tests.
var readSpec = sync.OnceValues(func() (*openapi3.T, error) {
	spec, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		return nil, err
	}
	return spec, spec.Validate(context.Background())
})

func loadSpec(t testing.TB) *openapi3.T {
	t.Helper()
	spec, err := readSpec()
	require.NoError(t, err)
	return spec
}

func testAgents() []agent.Blueprint {
	model := agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"}
	return []agent.Blueprint{
		{Name: "default", Mode: agent.ModePlan, Model: model, Instructions: "SECRET", Tools: []string{"*"}},
		{Name: "researcher", Mode: agent.ModeReact, Model: agent.ModelRef{Name: "big", Provider: "openai", Model: "gpt-5"}, Tools: []string{"calculator"},
			Limits: agent.Limits{MaxSteps: 5}},
		{Name: "broken", Mode: agent.ModeReact, Model: model, Tools: []string{"nowhere/*"}},
	}
}

// checkCalculator knows one tool, which wants a text called expression.
func checkCalculator(tools []agent.ToolRef) (agent.PlanChecks, error) {
	return agent.PlanChecks{When: predicate.Names, Arguments: func(name string, args json.RawMessage) ([]agent.PlanFault, bool) {
		for _, tool := range tools {
			if tool.Name == name {
				var parsed map[string]any
				if err := json.Unmarshal(args, &parsed); err != nil {
					return []agent.PlanFault{{Message: err.Error()}}, true
				}
				switch parsed["expression"].(type) {
				case string, map[string]any:
					return nil, true
				}
				return []agent.PlanFault{{Pointer: "/expression", Message: "want a text"}}, true
			}
		}
		return nil, false
	}}, nil
}

func newBench(t testing.TB, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, ledger: newFakeLedger(), spec: loadSpec(t), logged: new(bytes.Buffer)}
	cfg := Config{Ledger: b.ledger, Agents: testAgents(), CheckPlans: checkCalculator, EditArguments: tool.EditCall,
		Logger: slog.New(slog.NewTextHandler(b.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, c := range change {
		c(&cfg)
	}
	api, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(api.Drain)
	b.api = api
	return b
}

// request makes a request as curl would send it. headers are "Name: value".
func request(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8080"
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		switch {
		case name == "Host":
			r.Host = value
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	return r
}

// do sends a request and holds the exchange against the specification.
func (b *bench) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	b.t.Helper()
	return b.send(request(method, path, body, headers...))
}

func (b *bench) send(r *http.Request) *httptest.ResponseRecorder {
	b.t.Helper()
	body, err := io.ReadAll(r.Body)
	require.NoError(b.t, err)
	r.Body = io.NopCloser(bytes.NewReader(body))
	w := httptest.NewRecorder()
	b.api.ServeHTTP(w, r)
	require.NotEmpty(b.t, w.Header().Get("X-Request-Id"))
	b.validate(r, body, w)
	return w
}

// validate holds an exchange against openapi.yaml: the answer always, the request where it was not refused.
func (b *bench) validate(r *http.Request, body []byte, w *httptest.ResponseRecorder) {
	b.t.Helper()
	ctx := chi.NewRouteContext()
	path := r.URL.EscapedPath()
	if r.URL.RawPath == "" {
		path = r.URL.Path
	}
	if !b.api.router.Match(ctx, r.Method, path) {
		return // nothing is said of what does not exist
	}
	item := b.spec.Paths.Value(ctx.RoutePattern())
	require.NotNil(b.t, item, "%s is not in openapi.yaml", ctx.RoutePattern())
	params := map[string]string{}
	for i, name := range ctx.URLParams.Keys {
		params[name] = ctx.URLParams.Values[i]
	}
	again := r.Clone(b.t.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	in := &openapi3filter.RequestValidationInput{Request: again, PathParams: params, Route: &routers.Route{Spec: b.spec, Server: b.spec.Servers[0],
		Path: ctx.RoutePattern(), PathItem: item, Method: r.Method, Operation: item.GetOperation(r.Method)},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}} // who may is tested by attack
	if w.Code < 400 {
		require.NoError(b.t, openapi3filter.ValidateRequest(b.t.Context(), in))
	}
	stream := strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream")
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: w.Code, Header: w.Header(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, ExcludeResponseBody: stream || w.Code == http.StatusNoContent || w.Body.Len() == 0 ||
			strings.HasPrefix(w.Header().Get("Content-Type"), "application/yaml")}}
	out.SetBodyBytes(w.Body.Bytes())
	require.NoError(b.t, openapi3filter.ValidateResponse(b.t.Context(), out), "%s", w.Body)
	if stream {
		for _, f := range b.frames(w) {
			schema := "Event"
			if strings.HasSuffix(f.event, "_delta") {
				schema = "Delta"
			}
			require.NoError(b.t, b.spec.Components.Schemas[schema].Value.VisitJSON(f.object), "%v", f)
		}
	}
}

// frame is one event that a client got.
type frame struct {
	id, event, raw string
	object         map[string]any
}

func (b *bench) frames(w *httptest.ResponseRecorder) []frame {
	b.t.Helper()
	return parseFrames(b.t, w.Body.String())
}

// parseFrames reads what follows the opening of a stream, comments left out.
func parseFrames(t testing.TB, body string) []frame {
	t.Helper()
	var frames []frame
	for _, block := range strings.Split(body, "\n\n") {
		f := frame{raw: block}
		for _, line := range strings.Split(block, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			switch name {
			case "id":
				f.id = value
			case "event":
				f.event = value
			case "data":
				require.NoError(t, json.Unmarshal([]byte(value), &f.object))
			}
		}
		if f.object != nil {
			frames = append(frames, f)
		}
	}
	return frames
}

func names(frames []frame) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[i] = f.event
	}
	return out
}

func ids(frames []frame) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[i] = f.id
	}
	return out
}

// document reads a JSON answer.
func document[T any](t testing.TB, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v), "%s", w.Body)
	return v
}

// requireProblem checks that an answer is a problem of a type, at a place.
func requireProblem(t testing.TB, w *httptest.ResponseRecorder, status int, kind, pointer string) problem {
	t.Helper()
	require.Equal(t, status, w.Code, "%s", w.Body)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	p := document[problem](t, w)
	require.Equal(t, "/problems/"+kind, p.Type, p.Detail)
	require.Equal(t, status, p.Status)
	require.Equal(t, http.StatusText(status), p.Title)
	require.NotEmpty(t, p.Detail)
	require.Equal(t, w.Header().Get("X-Request-Id"), p.RequestID)
	if pointer == "" {
		require.True(t, p.Pointer == nil || *p.Pointer == "", "%v", p.Errors)
		return p
	}
	require.NotNil(t, p.Pointer, p.Detail)
	require.Equal(t, pointer, *p.Pointer, p.Detail)
	require.Equal(t, pointer, p.Errors[0].Pointer)
	return p
}

func planWith(nodes int) string {
	parts := make([]string, nodes)
	for i := range parts {
		parts[i] = fmt.Sprintf(`{"id":"n%d","kind":"llm","prompt":"x"}`, i)
	}
	return `{"plan":{"nodes":[` + strings.Join(parts, ",") + `]}}`
}
