package builtin

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// payments is a rule for the calls that the tests below lose.
var payments = HTTPReconcile{Host: "127.0.0.1:*", Method: "POST", PathPrefix: "/v1/charges", URL: "/v1/charges/by-key/{key}"}

func withRule(rule HTTPReconcile) HTTPConfig {
	return HTTPConfig{AllowHosts: local.AllowHosts, MaxResponseBytes: 200, Reconcile: []HTTPReconcile{rule}}
}

// lost looks up a POST to url whose answer was lost.
func lost(ctx context.Context, t testing.TB, cfg HTTPConfig, url string) (tool.Finding, error) {
	t.Helper()
	r, ok := newHTTP(t, cfg).(tool.Reconciler)
	require.True(t, ok)
	args, err := json.Marshal(map[string]any{"method": "POST", "url": url, "json": map[string]any{"amount": 5},
		"headers": map[string]string{"Authorization": "Bearer of the call"}})
	require.NoError(t, err)
	return r.Reconcile(ctx, tool.Call{Key: "run-1/pay#2.0~1 &%ü", Arguments: args})
}

// answers serves one status and JSON body.
func answers(t testing.TB, status int, body string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}).URL + "/v1/charges"
}

func TestHTTPWithoutRulesIsNoReconciler(t *testing.T) {
	t.Parallel()
	_, ok := newHTTP(t, local).(tool.Reconciler)
	require.False(t, ok)
	with := newHTTP(t, withRule(payments))
	require.Equal(t, agent.External, tool.ClassOf(with, json.RawMessage(`{"method": "POST"}`)))
	require.Equal(t, agent.Idempotent, tool.ClassOf(with, json.RawMessage(`{"method": "GET"}`)), "its other powers are those of http_request")
}

func TestHTTPReconcileAsks(t *testing.T) {
	t.Setenv("RUNLEDGER_TEST_AUTH", "Bearer secret")
	var got *http.Request
	var sent []byte
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		sent, _ = io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `{}`)
	})
	const path, query = "run-1%2Fpay%232.0~1%20&%25%C3%BC", "run-1%2Fpay%232.0~1+%26%25%C3%BC"
	for _, tc := range []struct{ name, url, want string }{
		{"in a path", "/by-key/{key}", "/by-key/" + path},
		{"in a query", "/charges?limit=1&key={key}&at={path}", "/charges?limit=1&key=" + query + "&at=%2Fv1%2Fcharges%2F7%2520x"},
		{"below the call's own path", "{path}/{key}?key={key}", "/v1/charges/7%20x/" + path + "?key=" + query},
		{"absolute", s.URL + "/{key}", "/" + path},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule := payments
			rule.URL = tc.url
			rule.Headers = map[string]string{"X-Key": "of {key}", "Accept": "application/json"}
			if strings.HasPrefix(tc.url, "http") {
				rule.HeadersEnv = map[string]string{"Authorization": "RUNLEDGER_TEST_AUTH"}
			}
			found, err := lost(t.Context(), t, withRule(rule), s.URL+"/v1/charges/7%20x?expand=all#part")
			require.NoError(t, err)
			require.True(t, found.Found)
			require.Equal(t, "GET", got.Method)
			require.Equal(t, tc.want, got.RequestURI)
			require.Empty(t, sent)
			require.Equal(t, "of run-1/pay#2.0~1 &%ü", got.Header.Get("X-Key"))
			require.Equal(t, "application/json", got.Header.Get("Accept"))
			require.Empty(t, got.Header.Get("Idempotency-Key"), "a server that knows the key would take the question for the call")
			if rule.HeadersEnv == nil {
				require.Empty(t, got.Header.Get("Authorization"), "the headers of the call are not sent")
			} else {
				require.Equal(t, "Bearer secret", got.Header.Get("Authorization"))
			}
		})
	}
}

func TestHTTPReconcileFinds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		edit   func(*HTTPReconcile)
		status int
		body   string
		want   string // the output without headers; not found when empty
	}{
		{"the answer itself", nil, 200, `{"id": 9007199254740993}`, `{"status":200,"headers":{},"json":{"id":9007199254740993},"bytes":24}`},
		{"an answer that is not JSON", nil, 200, `{"id`, `{"status":200,"headers":{},"text":"{\"id","bytes":4}`},
		{"every 2xx", nil, 204, ``, `{"status":204,"headers":{},"text":"","bytes":0}`},
		{"what stands in the answer", func(r *HTTPReconcile) { r.Output = "/data/0/a~1b" }, 200, `{"data": [{"a/b": {"id": 1}}]}`,
			`{"status":200,"headers":{},"json":{"id":1},"bytes":9}`},
		{"by what stands in the answer", func(r *HTTPReconcile) { r.Found = "/data/0" }, 200, `{"data": [5]}`,
			`{"status":200,"headers":{},"json":{"data":[5]},"bytes":13}`},
		{"another status", func(r *HTTPReconcile) { r.FoundStatus = []int{410} }, 410, `{}`, `{"status":410,"headers":{},"json":{},"bytes":2}`},
		{"404", nil, 404, `{}`, ""},
		{"another status that says no", func(r *HTTPReconcile) { r.NotFoundStatus = []int{204, 410} }, 204, "", ""},
		{"an empty search", func(r *HTTPReconcile) { r.Found, r.Output = "/data/0", "/data/0" }, 200, `{"data": []}`, ""},
		{"null", func(r *HTTPReconcile) { r.Found = "/charge" }, 200, `{"charge": null}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rule := payments
			if tc.edit != nil {
				tc.edit(&rule)
			}
			url := answers(t, tc.status, tc.body)
			for _, rule.Conclusive = range []bool{false, true} {
				found, err := lost(t.Context(), t, withRule(rule), url)
				require.NoError(t, err)
				if tc.want == "" {
					require.Equal(t, tool.Finding{Conclusive: rule.Conclusive}, found)
					continue
				}
				require.True(t, found.Found)
				var out map[string]json.RawMessage
				require.NoError(t, json.Unmarshal(found.Output, &out))
				out["headers"] = json.RawMessage(`{}`)
				plain, err := json.Marshal(out)
				require.NoError(t, err)
				require.JSONEq(t, tc.want, string(plain))
				if strings.Contains(tc.want, "9007199254740993") {
					require.Contains(t, string(found.Output), "9007199254740993", "the digits are those of the server")
				}
			}
		})
	}
}

func TestHTTPReconcileLearnsNothing(t *testing.T) {
	t.Parallel()
	refusing := serve(t, func(http.ResponseWriter, *http.Request) {})
	refusing.Close()
	redirecting := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/login" {
			_, _ = io.WriteString(w, `{}`)
			return
		}
		http.Redirect(w, r, "/login", http.StatusFound)
	})
	cutting := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
	})
	busy := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	output := func(r *HTTPReconcile) { r.Output = "/charge" }
	for _, tc := range []struct {
		name string
		edit func(*HTTPReconcile)
		url  string
		want string
	}{
		{"500", nil, answers(t, 500, `{}`), "status 500"},
		{"busy", nil, busy.URL + "/v1/charges", "status 503"},
		{"401", nil, answers(t, 401, `{}`), "status 401"},
		{"404 that was not said to be one", func(r *HTTPReconcile) { r.NotFoundStatus = []int{} }, answers(t, 404, `{}`), "status 404"},
		{"200 that was not said to be one", func(r *HTTPReconcile) { r.FoundStatus = []int{201} }, answers(t, 200, `{}`), "status 200"},
		{"a redirect", nil, redirecting.URL + "/v1/charges", "status 302"},
		{"nobody there", nil, refusing.URL + "/v1/charges", "connection refused"},
		{"cut off", nil, cutting.URL + "/v1/charges", "read the response: unexpected EOF"},
		{"wrong JSON", output, answers(t, 200, `{"charge": `), "the answer is not JSON"},
		{"JSON over the limit", output, answers(t, 200, `{"charge": "`+strings.Repeat("x", 200)+`"}`), "longer than max_response_bytes"},
		{"another JSON", output, answers(t, 200, `{"payment": {}}`), "output: nothing at /charge"},
		{"a secret that is not there", func(r *HTTPReconcile) {
			r.HeadersEnv, r.URL = map[string]string{"Authorization": "RUNLEDGER_TEST_NO_SUCH"}, "http://127.0.0.1:1/{key}"
		},
			"http://127.0.0.1:1/v1/charges", "RUNLEDGER_TEST_NO_SUCH is not set"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rule := payments
			rule.Conclusive = true
			if tc.edit != nil {
				tc.edit(&rule)
			}
			found, err := lost(t.Context(), t, withRule(rule), tc.url)
			require.ErrorContains(t, err, tc.want)
			require.NotErrorIs(t, err, tool.ErrNotReconcilable, "another time it may work")
			require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)
			require.Zero(t, found)
			if tc.name == "busy" {
				require.EqualValues(t, 7e9, failure(t, err).RetryAfter)
			}
		})
	}
}

func TestHTTPReconcileEndsWithItsContext(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := lost(ctx, t, withRule(payments), s.URL+"/v1/charges")
	require.Equal(t, agent.CodeCancelled, failure(t, err).Code)
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)

	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = lost(over, t, withRule(payments), s.URL+"/v1/charges")
	require.Equal(t, agent.CodeTimeout, failure(t, err).Code)
}

func TestHTTPReconcileRulesAreForSomeCalls(t *testing.T) {
	t.Parallel()
	const here = "http://127.0.0.1:9"
	for name, tc := range map[string]struct {
		method, url string
		want        bool
	}{
		"the path":                   {"POST", here + "/v1/charges", true},
		"with a slash":               {"POST", here + "/v1/charges/", true},
		"below it":                   {"POST", here + "/v1/charges/7?a=b", true},
		"with an escape":             {"POST", here + "/v1/charges/a%20b", true},
		"one that begins like it":    {"POST", here + "/v1/charges-old", false},
		"above it":                   {"POST", here + "/v1", false},
		"another method":             {"PUT", here + "/v1/charges", false},
		"another host":               {"POST", "http://127.0.0.2:9/v1/charges", false},
		"another port":               {"POST", "http://127.0.0.1:10/v1/charges", false},
		"out by dots":                {"POST", here + "/v1/charges/../refunds", false},
		"out by encoded dots":        {"POST", here + "/v1/charges/%2e%2E/refunds", false},
		"out by an encoded slash":    {"POST", here + "/v1/charges/..%2Frefunds", false},
		"an encoded slash":           {"POST", here + "/v1/charges%2F7", false},
		"a doubled slash":            {"POST", here + "/v1//charges", false},
		"a backslash":                {"POST", here + `/v1/charges/x\..\..\refunds`, false},
		"not a URL":                  {"POST", "http://127.0.0.1:9:9/v1/charges", false},
		"no host that anybody knows": {"POST", "http://0x7f.1:9/v1/charges", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := payments
			rule.Host = "127.0.0.1:9"
			cfg := withRule(rule)
			r := newHTTP(t, cfg).(tool.Reconciler)
			args, err := json.Marshal(map[string]string{"method": tc.method, "url": tc.url})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a rule that is for the call gets as far as asking
			_, err = r.Reconcile(ctx, tool.Call{Key: "k/c", Arguments: args})
			if tc.want {
				require.NotErrorIs(t, err, tool.ErrNotReconcilable)
				require.Equal(t, agent.CodeCancelled, failure(t, err).Code)
				return
			}
			require.ErrorIs(t, err, tool.ErrNotReconcilable)
			require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)
		})
	}
	t.Run("no key", func(t *testing.T) {
		t.Parallel()
		_, err := newHTTP(t, withRule(payments)).(tool.Reconciler).Reconcile(t.Context(), tool.Call{Arguments: json.RawMessage(`{"method": "POST", "url": "http://127.0.0.1:9/v1/charges"}`)})
		require.ErrorIs(t, err, tool.ErrNotReconcilable)
	})
	t.Run("arguments that are none", func(t *testing.T) {
		t.Parallel()
		_, err := newHTTP(t, withRule(payments)).(tool.Reconciler).Reconcile(t.Context(), tool.Call{Key: "k", Arguments: json.RawMessage(`"x"`)})
		require.ErrorIs(t, err, tool.ErrNotReconcilable)
	})
}

func TestHTTPReconcileFirstRuleCounts(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	refunds := HTTPReconcile{Host: "127.0.0.1:*", Method: "POST", PathPrefix: "/v1/refunds/", URL: "/refund/{key}"}
	rest := HTTPReconcile{Host: "127.0.0.1:*", Method: "POST", URL: "/rest/{key}"}
	cfg := HTTPConfig{AllowHosts: local.AllowHosts, Reconcile: []HTTPReconcile{payments, refunds, rest}}
	for path, want := range map[string]string{"/v1/charges/7": "/v1/charges/by-key/", "/v1/refunds": "/refund/", "": "/rest/", "/": "/rest/"} {
		found, err := lost(t.Context(), t, cfg, s.URL+path)
		require.NoError(t, err)
		require.Contains(t, string(found.Output), `"text":"`+want)
	}
}

func TestHTTPReconcileIsRefusedElsewhere(t *testing.T) {
	t.Parallel()
	// The rule's own host is on no list; without one, what it resolves to must be public.
	cfg := HTTPConfig{Reconcile: []HTTPReconcile{{Host: "api.example.org", Method: "POST", URL: "http://localhost:1/{key}"}}}
	_, err := lost(t.Context(), t, cfg, "https://api.example.org/v1/charges")
	require.Equal(t, agent.CodeRefused, failure(t, err).Code)
	require.Equal(t, agent.FaultUnknown, failure(t, err).Fault)

	// The list was another one when the call was made.
	rule := payments
	rule.Host = "127.0.0.2:*"
	_, err = lost(t.Context(), t, withRule(rule), "http://127.0.0.2:1/v1/charges")
	require.Equal(t, agent.CodeRefused, failure(t, err).Code)
	require.ErrorContains(t, err, "is not on the list")
}

func TestBadHTTPReconcile(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*HTTPReconcile)
		want string
	}{
		"no host":                   {func(r *HTTPReconcile) { r.Host = "" }, `reconcile[1].host: "": "" is not a host name`},
		"a URL for a host":          {func(r *HTTPReconcile) { r.Host = "https://x" }, "reconcile[1].host"},
		"no method":                 {func(r *HTTPReconcile) { r.Method = "" }, `reconcile[1].method: "" is not one`},
		"a method in lower case":    {func(r *HTTPReconcile) { r.Method = "post" }, `reconcile[1].method: "post" is not one`},
		"a prefix without a slash":  {func(r *HTTPReconcile) { r.PathPrefix = "v1" }, "reconcile[1].path_prefix"},
		"an escaped prefix":         {func(r *HTTPReconcile) { r.PathPrefix = "/a%20b" }, "reconcile[1].path_prefix"},
		"no URL":                    {func(r *HTTPReconcile) { r.URL = "" }, "reconcile[1].url"},
		"no key":                    {func(r *HTTPReconcile) { r.URL = "/charges" }, "neither it nor headers hold {key}"},
		"another place":             {func(r *HTTPReconcile) { r.URL = "/{key}/{id}" }, "{key} and {path}"},
		"a fragment":                {func(r *HTTPReconcile) { r.URL = "/#{key}" }, "{key} and {path}"},
		"a host that is relative":   {func(r *HTTPReconcile) { r.URL = "//127.0.0.1/{key}" }, "a URL with its scheme"},
		"another scheme":            {func(r *HTTPReconcile) { r.URL = "ftp://127.0.0.1/{key}" }, "reconcile[1].url"},
		"a host made of the key":    {func(r *HTTPReconcile) { r.URL = "http://{key}.127.0.0.1/" }, "with a host and a path"},
		"a host not allowed":        {func(r *HTTPReconcile) { r.URL = "http://example.org/{key}" }, "example.org: is not on the list"},
		"a password":                {func(r *HTTPReconcile) { r.URL = "http://u:p@127.0.0.1/{key}" }, "must not hold a user"},
		"not a header":              {func(r *HTTPReconcile) { r.Headers = map[string]string{"X Y": "1"} }, `headers: "X Y" is not a header name`},
		"two lines":                 {func(r *HTTPReconcile) { r.Headers = map[string]string{"X": "1\r\nY: 2"} }, "holds a control character"},
		"a header of the transport": {func(r *HTTPReconcile) { r.Headers = map[string]string{"host": "x"} }, "set by the transport"},
		"a secret for anybody":      {func(r *HTTPReconcile) { r.HeadersEnv = map[string]string{"Authorization": "X"} }, "headers_env: needs an absolute url"},
		"a secret header":           {func(r *HTTPReconcile) { r.URL, r.HeadersEnv = "http://127.0.0.1/{key}", map[string]string{"Host": "X"} }, "headers_env: \"Host\""},
		"not a status":              {func(r *HTTPReconcile) { r.FoundStatus = []int{20} }, "20: want 200 to 299"},
		"a redirect for an answer":  {func(r *HTTPReconcile) { r.NotFoundStatus = []int{302} }, "302: want 200 to 299"},
		"found and not found":       {func(r *HTTPReconcile) { r.FoundStatus, r.NotFoundStatus = []int{200, 404}, []int{404} }, "404 is in not_found_status too"},
		"found is no pointer":       {func(r *HTTPReconcile) { r.Found = "id" }, `reconcile[1].found: "id" is not a JSON pointer`},
		"output is no pointer":      {func(r *HTTPReconcile) { r.Output = "/a~2" }, "reconcile[1].output"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := payments
			tc.edit(&rule)
			_, err := HTTPRequest(HTTPConfig{AllowHosts: local.AllowHosts, Reconcile: []HTTPReconcile{payments, rule}})
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, "http_request: reconcile[1].")
		})
	}
}
