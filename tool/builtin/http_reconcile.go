package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"runledger/agent"
	"runledger/tool"
)

// HTTPReconcile is a rule of http_request: which calls it is for, and the GET request that finds out, by the idempotency
// key that such a call has sent as Idempotency-Key, whether it took place.
type HTTPReconcile struct {
	// Host (written as in AllowHosts), Method and PathPrefix select the calls. PathPrefix is made of whole segments:
	// "/v1/charges" is for /v1/charges and /v1/charges/7, not for /v1/charges-old; empty, it is for every path. A path that
	// servers may read in more than one way (with dot segments, doubled or encoded slashes) is not matched at all.
	Host       string `yaml:"host"`
	Method     string `yaml:"method"`
	PathPrefix string `yaml:"path_prefix"`
	// URL is what is asked: absolute, or a path at the host of the call. {key} is the idempotency key and {path} the path
	// of the call, each escaped for its place in the path or in the query. Its host must be allowed like any other.
	URL string `yaml:"url"`
	// Headers are sent with it, and may hold {key}. HeadersEnv maps a header, as Authorization, to the environment variable
	// with its value, and needs an absolute URL. Headers and body of the call itself are not sent.
	Headers    map[string]string `yaml:"headers"`
	HeadersEnv map[string]string `yaml:"headers_env"`
	// FoundStatus are the statuses of an answer that says that the call took place, every 2xx when nil; NotFoundStatus of
	// one that says that there is no trace of it, 404 when nil. Any other answer says nothing; so does a redirect, which is
	// not followed.
	FoundStatus    []int `yaml:"found_status"`
	NotFoundStatus []int `yaml:"not_found_status"`
	// Found, for servers that answer a search, is a JSON Pointer into a found answer's JSON body: with nothing there, or
	// null, the call was not found after all.
	Found string `yaml:"found"`
	// Output is a JSON Pointer to what the call would have answered: it takes the place of the body in the output, which is
	// otherwise that of this very answer.
	Output string `yaml:"output"`
	// Conclusive is the word of whoever writes the rule that a call which is not found did not take place and no longer can.
	// It is then made again. Do not say so of a server that may still be working on it, or that answers from a late copy.
	Conclusive bool `yaml:"conclusive"`
}

// What may stand in the URL of a rule.
const (
	keyPlace  = "{key}"
	pathPlace = "{path}"
)

// reconcilingHTTP is http_request with rules.
type reconcilingHTTP struct {
	*httpRequest
	rules  []httpRule
	client *http.Client
}

// httpRule is a rule that has been checked.
type httpRule struct {
	HTTPReconcile
	host          hostEntry
	found, output []string
}

func (h *httpRequest) reconciling(rules []HTTPReconcile) (tool.Tool, error) {
	r := &reconcilingHTTP{httpRequest: h, client: &http.Client{
		Transport: h.client.Transport,
		// Where a redirect leads is not what was asked: a login page answers 200 to everything.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for i, cfg := range rules {
		rule, err := h.rule(cfg)
		if err != nil {
			return nil, fmt.Errorf("http_request: reconcile[%d].%w", i, err)
		}
		r.rules = append(r.rules, rule)
	}
	return r, nil
}

// rule checks a rule. The error begins with the key that is wrong.
func (h *httpRequest) rule(cfg HTTPReconcile) (rule httpRule, err error) {
	rule.HTTPReconcile = cfg
	if rule.host, err = parseEntry(cfg.Host); err != nil {
		return rule, fmt.Errorf("host: %q: %w", cfg.Host, err)
	}
	if !slices.Contains(httpMethods, any(cfg.Method)) {
		return rule, fmt.Errorf("method: %q is not one of the methods %v", cfg.Method, httpMethods)
	}
	if cfg.PathPrefix != "" && (cfg.PathPrefix[0] != '/' || strings.ContainsAny(cfg.PathPrefix, "?#%")) {
		return rule, fmt.Errorf("path_prefix: %q: want a path that begins with a /, without escapes", cfg.PathPrefix)
	}
	if err := h.checkTemplate(cfg); err != nil {
		return rule, fmt.Errorf("url: %q: %w", cfg.URL, err)
	}
	if err := checkHeaders(cfg); err != nil {
		return rule, err
	}
	for i, status := range slices.Concat(cfg.FoundStatus, cfg.NotFoundStatus) {
		if status < 200 || status > 599 || status/100 == 3 {
			return rule, fmt.Errorf("found_status, not_found_status: %d: want 200 to 299 or 400 to 599", status)
		}
		if i < len(cfg.FoundStatus) && slices.Contains(cfg.NotFoundStatus, status) {
			return rule, fmt.Errorf("found_status: %d is in not_found_status too", status)
		}
	}
	if rule.found, err = agent.ParsePointer(cfg.Found); err != nil {
		return rule, fmt.Errorf("found: %w", err)
	}
	if rule.output, err = agent.ParsePointer(cfg.Output); err != nil {
		return rule, fmt.Errorf("output: %w", err)
	}
	return rule, nil
}

func (h *httpRequest) checkTemplate(cfg HTTPReconcile) error {
	holds := strings.Contains(cfg.URL, keyPlace)
	for _, value := range cfg.Headers {
		holds = holds || strings.Contains(value, keyPlace)
	}
	if !holds {
		return fmt.Errorf("neither it nor headers hold %s", keyPlace)
	}
	rest := strings.NewReplacer(keyPlace, "", pathPlace, "").Replace(cfg.URL)
	if strings.ContainsAny(rest, "{}#") {
		return fmt.Errorf("want no { } and # but in %s and %s", keyPlace, pathPlace)
	}
	if strings.HasPrefix(cfg.URL, "/") || strings.HasPrefix(cfg.URL, pathPlace) {
		if strings.HasPrefix(cfg.URL, "//") {
			return errors.New("want a path, or a URL with its scheme")
		}
		return nil
	}
	scheme, after, _ := strings.Cut(cfg.URL, "://")
	authority, _, _ := strings.Cut(after, "/")
	if scheme != "http" && scheme != "https" || strings.ContainsAny(authority, "{}?") {
		return errors.New("want a path that begins with a /, or http:// or https:// with a host and a path")
	}
	u, err := url.Parse(expand(cfg.URL, "key", "/path"))
	if err != nil {
		return errors.New("is not a URL")
	}
	return h.hosts.checkURL(u)
}

func checkHeaders(cfg HTTPReconcile) error {
	if len(cfg.HeadersEnv) > 0 && !strings.HasPrefix(cfg.URL, "http") {
		return errors.New("headers_env: needs an absolute url: the arguments of a call must not decide where a secret goes")
	}
	check := func(key, name, value string) error {
		if wrong := headerFault(name, value); wrong != "" {
			return fmt.Errorf("%s: %q %s", key, name, wrong)
		}
		if ownHeader(http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("%s: %q is set by the transport", key, name)
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Headers)) {
		if err := check("headers", name, cfg.Headers[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.HeadersEnv)) {
		if err := check("headers_env", name, ""); err != nil {
			return err
		}
	}
	return nil
}

// expand fills in the URL of a rule. pathOf is the path of the call, escaped as it was sent.
func expand(template, key, pathOf string) string {
	before, query, asked := strings.Cut(template, "?")
	filled := strings.NewReplacer(keyPlace, url.PathEscape(key), pathPlace, pathOf).Replace(before)
	if !asked {
		return filled
	}
	return filled + "?" + strings.NewReplacer(keyPlace, url.QueryEscape(key), pathPlace, url.QueryEscape(pathOf)).Replace(query)
}

// Reconcile implements tool.Reconciler. A call that no rule is for is an error with tool.ErrNotReconcilable in its chain.
// All its errors are of fault unknown: they leave open what became of the call.
func (r *reconcilingHTTP) Reconcile(ctx context.Context, call tool.Call) (tool.Finding, error) {
	var in struct {
		Method string `json:"method"`
		URL    string `json:"url"`
	}
	if err := json.Unmarshal(call.Arguments, &in); err != nil {
		return tool.Finding{}, unlearned("%w: its arguments cannot be read", tool.ErrNotReconcilable)
	}
	target, err := url.Parse(in.URL)
	if err != nil || call.Key == "" {
		return tool.Finding{}, unlearned("%w: it has no URL or no key", tool.ErrNotReconcilable)
	}
	i := slices.IndexFunc(r.rules, func(rule httpRule) bool { return rule.isFor(in.Method, target) })
	if i < 0 {
		return tool.Finding{}, unlearned("%w: there is no rule for %s %s", tool.ErrNotReconcilable, in.Method, target.Host)
	}
	ctx, cancel := context.WithTimeout(ctx, defaultHTTPTimeout)
	defer cancel()
	return r.ask(ctx, r.rules[i], target, call.Key)
}

// unlearned is a failure of Reconcile.
func unlearned(format string, args ...any) *agent.Error {
	return agent.Unknown(agent.CodeToolFailed, "reconcile: "+format, args...)
}

// isFor reports whether a rule is for a call.
func (rule httpRule) isFor(method string, target *url.URL) bool {
	h, port, own, err := endpoint(target)
	if err != nil || method != rule.Method || !rule.host.covers(h, port, own) || !plainPath(target) {
		return false
	}
	prefix := strings.TrimSuffix(rule.PathPrefix, "/")
	return strings.HasPrefix(target.Path+"/", prefix+"/")
}

// plainPath reports whether every server reads the path of a URL in the same way. Of any other nobody can say by its prefix
// what the call did.
func plainPath(u *url.URL) bool {
	if strings.Contains(u.Path, `\`) || strings.Contains(strings.ToLower(u.RawPath), "%2f") {
		return false
	}
	return u.Path == "" || path.Clean(u.Path) == strings.TrimSuffix(u.Path, "/") || u.Path == "/"
}

// verdict tells what a status says; neither is true of one that says nothing.
func (rule httpRule) verdict(status int) (found, notFound bool) {
	switch {
	case slices.Contains(rule.FoundStatus, status):
		return true, false
	case slices.Contains(rule.NotFoundStatus, status):
		return false, true
	}
	return rule.FoundStatus == nil && status/100 == 2, rule.NotFoundStatus == nil && status == http.StatusNotFound
}

// ask makes the request of a rule and reads the answer.
func (r *reconcilingHTTP) ask(ctx context.Context, rule httpRule, target *url.URL, key string) (tool.Finding, error) {
	req, err := r.request(ctx, rule, target, key)
	if err != nil {
		return tool.Finding{}, err
	}
	shown := "reconcile: GET " + req.URL.Scheme + "://" + req.URL.Host
	resp, err := r.client.Do(req)
	if err != nil {
		return tool.Finding{}, lookupFailure(ctx, shown, err)
	}
	defer resp.Body.Close()
	found, notFound := rule.verdict(resp.StatusCode)
	switch {
	case notFound:
		return tool.Finding{Conclusive: rule.Conclusive}, nil
	case !found:
		err := agent.Unknown(agent.CodeToolFailed, "%s: status %d %s", shown, resp.StatusCode, http.StatusText(resp.StatusCode))
		err.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
		return tool.Finding{}, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, r.maxBody+1))
	if err != nil {
		return tool.Finding{}, lookupFailure(ctx, shown+": read the response", err)
	}
	return rule.read(answer(resp, body, r.maxBody))
}

// lookupFailure says why there is no answer. Whatever a request of this kind has failed of, it tells nothing of the call.
func lookupFailure(ctx context.Context, shown string, err error) error {
	err = requestFailure(ctx, shown, err, true)
	if known, ok := agent.AsError(err); ok {
		known.Fault = agent.FaultUnknown
	}
	return err
}

// read makes a finding of an answer with a status that means found.
func (rule httpRule) read(out httpOut) (tool.Finding, error) {
	if out.JSON == nil && (rule.Found != "" || rule.Output != "") {
		return tool.Finding{}, unlearned("the answer is not JSON, or is longer than max_response_bytes")
	}
	if rule.Found != "" {
		at, err := agent.Follow(out.JSON, rule.found)
		if err != nil || bytes.Equal(at, []byte("null")) {
			return tool.Finding{Conclusive: rule.Conclusive}, nil
		}
	}
	if rule.Output != "" {
		at, err := agent.Follow(out.JSON, rule.output)
		if err != nil {
			return tool.Finding{}, unlearned("output: %w", err)
		}
		out.JSON, out.Bytes = at, len(at)
	}
	data, err := json.Marshal(out)
	if err != nil {
		return tool.Finding{}, unlearned("encode the output: %w", err)
	}
	return tool.Finding{Found: true, Output: data}, nil
}

func (r *reconcilingHTTP) request(ctx context.Context, rule httpRule, target *url.URL, key string) (*http.Request, error) {
	pathOf := target.EscapedPath()
	if pathOf == "" {
		pathOf = "/"
	}
	text := expand(rule.URL, key, pathOf)
	if strings.HasPrefix(text, "/") {
		text = target.Scheme + "://" + target.Host + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, unlearned("%w: the rule gives no URL for it", tool.ErrNotReconcilable)
	}
	if err := r.hosts.checkURL(u); err != nil {
		return nil, agent.Unknown(agent.CodeRefused, "reconcile: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, unlearned("%w: %s", tool.ErrNotReconcilable, err.Error())
	}
	req.Header.Set("User-Agent", "runledger")
	for name, value := range rule.Headers {
		req.Header.Set(name, strings.ReplaceAll(value, keyPlace, key))
	}
	for name, variable := range rule.HeadersEnv {
		value, ok := os.LookupEnv(variable)
		if !ok {
			return nil, unlearned("headers_env: %s: the environment variable %s is not set", name, variable)
		}
		req.Header.Set(name, value)
	}
	return req, nil
}
