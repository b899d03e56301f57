package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
)

const goodPlan = `{"nodes":[
	{"id":"sum","kind":"tool","tool":"calculator","args":{"expression":"6*7"}},
	{"id":"say","kind":"llm","prompt":"Explain","inputs":{"r":{"$from":"/nodes/sum/output"}},"timeout":"90s","retry":{"max_attempts":2},"on_error":"fail"}
]}`

// runPaths are the two names under which runs are started.
func runPaths() []string { return []string{"/api/v1/agent/run", "/api/agent/run"} }

func TestBadRunIsRefusedAndNothingIsStored(t *testing.T) {
	t.Parallel()
	const (
		body    = http.StatusBadRequest
		values  = http.StatusUnprocessableEntity
		invalid = "invalid-body"
		request = "invalid-request"
		plan    = "invalid-plan"
	)
	deep := strings.Repeat(`[`, 70) + strings.Repeat(`]`, 70)
	for name, tc := range map[string]struct {
		body    string
		status  int
		kind    string
		pointer string
	}{
		"empty body":                  {``, values, request, "/input"},
		"empty object":                {`{}`, values, request, "/input"},
		"blank input":                 {`{"input":" \n"}`, values, request, "/input"},
		"null input":                  {`{"input":null}`, values, request, "/input"},
		"no JSON":                     {`{"input":`, body, "malformed-json", ""},
		"two documents":               {`{"input":"x"} {}`, body, "malformed-json", ""},
		"not UTF-8":                   {"{\"input\":\"\xff\"}", body, "malformed-json", ""},
		"nested without end":          {`{"input":"x","metadata":{"a":` + deep + `}}`, body, "malformed-json", ""},
		"not an object":               {`["x"]`, values, request, ""},
		"a text":                      {`"x"`, values, request, ""},
		"unknown field":               {`{"input":"x","inptu":"y"}`, body, invalid, "/inptu"},
		"field of other case":         {`{"Input":"x"}`, body, invalid, "/Input"},
		"field with odd name":         {`{"input":"x","a/b~c":1}`, body, invalid, "/a~1b~0c"},
		"key twice":                   {`{"input":"x","input":"y"}`, body, invalid, "/input"},
		"key twice deep down":         {`{"input":"x","metadata":{"a":[{"b":1,"b":2}]}}`, body, invalid, "/metadata/a/0/b"},
		"input is a number":           {`{"input":7}`, values, request, "/input"},
		"input is true":               {`{"input":true}`, values, request, "/input"},
		"agent is an object":          {`{"input":"x","agent":{}}`, values, request, "/agent"},
		"wait is a text":              {`{"input":"x","wait":"60"}`, values, request, "/wait"},
		"limits is an array":          {`{"input":"x","limits":[]}`, values, request, "/limits"},
		"unknown limit":               {`{"input":"x","limits":{"max_cost":1}}`, body, invalid, "/limits/max_cost"},
		"limit is a fraction":         {`{"input":"x","limits":{"max_steps":1.5}}`, values, request, "/limits/max_steps"},
		"limit is larger than an int": {`{"input":"x","limits":{"max_steps":1e30}}`, values, request, "/limits/max_steps"},
		"timeout without a unit":      {`{"input":"x","limits":{"timeout":90}}`, values, request, "/limits/timeout"},
		"timeout that is none":        {`{"input":"x","limits":{"timeout":"soon"}}`, values, request, "/limits/timeout"},
		"negative timeout":            {`{"input":"x","limits":{"timeout":"-1s"}}`, values, request, "/limits/timeout"},
		"attachments is an object":    {`{"input":"x","attachments":{}}`, values, request, "/attachments"},
		"attachment is a text":        {`{"input":"x","attachments":[{"name":"a","media_type":"b"},"c"]}`, values, request, "/attachments/1"},
		"plan is an array":            {`{"plan":[]}`, values, request, "/plan"},
		"nodes is an object":          {`{"plan":{"nodes":{}}}`, values, request, "/plan/nodes"},
		"node with unknown field":     {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","unless":"y"}]}}`, body, invalid, "/plan/nodes/0/unless"},
		"node with a bad condition":   {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","when":"y"}]}}`, values, "invalid-plan", "/plan/nodes/0/when"},
		"node id is a number":         {`{"plan":{"nodes":[{"id":1}]}}`, values, request, "/plan/nodes/0/id"},
		"dependency is a number":      {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","depends_on":[1]}]}}`, values, request, "/plan/nodes/0/depends_on/0"},
		"retry is a number":           {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","retry":3}]}}`, values, request, "/plan/nodes/0/retry"},
		"inputs is a text":            {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","inputs":"y"}]}}`, values, request, "/plan/nodes/0/inputs"},

		"NUL in the input":            {`{"input":"a\u0000b"}`, values, request, "/input"},
		"NUL in a key":                {`{"input":"x","metadata":{"a\u0000":1}}`, values, request, "/metadata"},
		"NUL deep down":               {`{"input":"x","metadata":{"a":["b",{"c":"\u0000"}]}}`, values, request, "/metadata/a/1/c"},
		"NUL in an argument":          {`{"plan":{"nodes":[{"id":"a","kind":"tool","tool":"calculator","args":{"expression":"\u0000"}}]}}`, values, request, "/plan/nodes/0/args/expression"},
		"unknown mode":                {`{"input":"x","mode":"dream"}`, values, request, "/mode"},
		"unknown agent":               {`{"input":"x","agent":"nobody"}`, values, "unknown-agent", "/agent"},
		"conversation is no UUID":     {`{"input":"x","conversation_id":"7"}`, values, request, "/conversation_id"},
		"conversation in braces":      {`{"input":"x","conversation_id":"{01890a5d-ac96-774b-bcce-b302099a8057}"}`, values, request, "/conversation_id"},
		"message is no UUID":          {`{"input":"x","message_id":"7"}`, values, request, "/message_id"},
		"session too long":            {`{"input":"x","session_id":"` + strings.Repeat("s", 201) + `"}`, values, request, "/session_id"},
		"metadata is an array":        {`{"input":"x","metadata":[]}`, values, request, "/metadata"},
		"metadata is a text":          {`{"input":"x","metadata":"y"}`, values, request, "/metadata"},
		"negative wait":               {`{"input":"x","wait":-1}`, values, request, "/wait"},
		"wait too long":               {`{"input":"x","wait":600.5}`, values, request, "/wait"},
		"too many attachments":        {`{"input":"x","attachments":[` + strings.TrimSuffix(strings.Repeat(`{"name":"a","media_type":"b"},`, 21), ",") + `]}`, values, request, "/attachments"},
		"attachment without name":     {`{"input":"x","attachments":[{"media_type":"b"}]}`, values, request, "/attachments/0/name"},
		"attachment without type":     {`{"input":"x","attachments":[{"name":"b"}]}`, values, request, "/attachments/0/media_type"},
		"attachment with both":        {`{"input":"x","attachments":[{"name":"a","media_type":"b","text":"x","data":"eA=="}]}`, values, request, "/attachments/0"},
		"attachment that is not b64":  {`{"input":"x","attachments":[{"name":"a","media_type":"b","data":"%"}]}`, values, request, "/attachments/0/data"},
		"limit above the agent's":     {`{"input":"x","limits":{"max_steps":51}}`, values, request, "/limits/max_steps"},
		"limit above a set one":       {`{"input":"x","agent":"researcher","limits":{"max_steps":6}}`, values, request, "/limits/max_steps"},
		"negative limit":              {`{"input":"x","limits":{"max_parallel":-1}}`, values, request, "/limits/max_parallel"},
		"timeout above the agent's":   {`{"input":"x","limits":{"timeout":"61m"}}`, values, request, "/limits/timeout"},
		"plan in mode react":          {`{"mode":"react","plan":` + goodPlan + `}`, values, request, "/plan"},
		"plan without nodes":          {`{"plan":{"nodes":[]}}`, values, plan, "/plan/nodes"},
		"plan of nothing":             {`{"plan":{}}`, values, plan, "/plan/nodes"},
		"201 nodes":                   {planWith(201), values, plan, "/plan/nodes"},
		"unknown kind":                {`{"plan":{"nodes":[{"id":"a","kind":"dream"}]}}`, values, plan, "/plan/nodes/0/kind"},
		"react as a node":             {`{"plan":{"nodes":[{"id":"a","kind":"react"}]}}`, values, plan, "/plan/nodes/0/kind"},
		"bad node id":                 {`{"plan":{"nodes":[{"id":"a b","kind":"llm","prompt":"x"}]}}`, values, plan, "/plan/nodes/0/id"},
		"reserved node id":            {`{"plan":{"nodes":[{"id":"main","kind":"llm","prompt":"x"}]}}`, values, plan, "/plan/nodes/0/id"},
		"node id twice":               {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x"},{"id":"a","kind":"llm","prompt":"x"}]}}`, values, plan, "/plan/nodes/1/id"},
		"unknown tool":                {`{"plan":{"nodes":[{"id":"a","kind":"tool","tool":"teleport"}]}}`, values, plan, "/plan/nodes/0/tool"},
		"arguments that do not fit":   {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x"},{"id":"b","kind":"tool","tool":"calculator","args":{"expression":7}}]}}`, values, plan, "/plan/nodes/1/args/expression"},
		"arguments that are an array": {`{"plan":{"nodes":[{"id":"b","kind":"tool","tool":"calculator","args":[]}]}}`, values, plan, "/plan/nodes/0/args"},
		"unknown dependency":          {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","depends_on":["b"]}]}}`, values, plan, "/plan/nodes/0/depends_on/0"},
		"cycle":                       {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","depends_on":["b"]},{"id":"b","kind":"llm","prompt":"x","depends_on":["a"]}]}}`, values, plan, "/plan/nodes/0/depends_on"},
		"reference to nothing":        {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","inputs":{"r":{"$from":"/nodes/b/output"}}}]}}`, values, plan, "/plan/nodes/0/inputs/r/$from"},
		"reference to a successor": {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","inputs":{"r":{"$from":"/nodes/b/output"}}},` +
			`{"id":"b","kind":"llm","prompt":"x","depends_on":["a"]}]}}`, values, plan, "/plan/nodes/0/inputs/r/$from"},
		"reference that is no pointer": {`{"plan":{"nodes":[{"id":"b","kind":"tool","tool":"calculator","args":{"expression":{"$from":"sum"}}}]}}`, values, plan, "/plan/nodes/0/args/expression/$from"},
		"too many tries":               {`{"plan":{"nodes":[{"id":"a","kind":"llm","prompt":"x","retry":{"max_attempts":11}}]}}`, values, plan, "/plan/nodes/0/retry/max_attempts"},
		"node without a prompt":        {`{"plan":{"nodes":[{"id":"a","kind":"llm"}]}}`, values, plan, "/plan/nodes/0/prompt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			for _, path := range []string{"/api/v1/agent/run", "/api/agent/run", "/api/v1/agent/run/stream", "/api/agent/run/stream"} {
				w := b.do("POST", path, tc.body)
				requireProblem(t, w, tc.status, tc.kind, tc.pointer)
			}
			require.Empty(t, b.ledger.accepted)
		})
	}
}

func TestAllFaultsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"mode":"x","wait":-1,"conversation_id":"7"}`), 422, "invalid-request", "/input")
	require.Equal(t, []string{"/input", "/mode", "/conversation_id", "/wait"}, pointers(p))
	p = requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":1,"zz":1,"plan":{"nodes":[{"x":1},{"y":2}]}}`), 400, "invalid-body", "/input")
	require.Equal(t, []string{"/input", "/plan/nodes/0/x", "/plan/nodes/1/y", "/zz"}, pointers(p))
	require.Contains(t, p.Detail, "and 3 more")
}

func pointers(p problem) []string {
	var out []string
	for _, f := range p.Errors {
		out = append(out, f.Pointer)
	}
	return out
}

func TestBadHeadersAreRefusedAndNothingIsStored(t *testing.T) {
	t.Parallel()
	const body = `{"input":"x"}`
	for name, tc := range map[string]struct {
		body, header string
		status       int
		kind         string
	}{
		"form, as curl -d sends it": {body, "Content-Type: application/x-www-form-urlencoded", 415, "unsupported-media-type"},
		"text":                      {body, "Content-Type: text/plain", 415, "unsupported-media-type"},
		"no type":                   {body, "Content-Type", 415, "unsupported-media-type"},
		"other charset":             {body, "Content-Type: application/json; charset=latin1", 415, "unsupported-media-type"},
		"compressed":                {body, "Content-Encoding: gzip", 415, "unsupported-media-type"},
		"too large":                 {`{"input":"` + strings.Repeat("x", 1<<20) + `"}`, "", 413, "body-too-large"},
		"key with odd characters":   {body, "Idempotency-Key: ü", 400, "invalid-parameter"},
		"key too long":              {body, "Idempotency-Key: " + strings.Repeat("k", 256), 400, "invalid-parameter"},
		"page of another site":      {body, "Origin: https://evil.example", 403, "foreign-origin"},
		"sandboxed page":            {body, "Origin: null", 403, "foreign-origin"},
		"cross-site fetch":          {body, "Sec-Fetch-Site: cross-site", 403, "foreign-origin"},
		"rebound name":              {body, "Host: evil.example", 403, "foreign-host"},
		"rebound name with a port":  {body, "Host: 127.0.0.1.evil.example:8080", 403, "foreign-host"},
		"address of this network":   {body, "Host: 192.168.1.4:8080", 403, "foreign-host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			for _, path := range []string{"/api/v1/agent/run", "/api/agent/run/stream"} {
				requireProblem(t, b.do("POST", path, tc.body, tc.header), tc.status, tc.kind, "")
			}
			chat := strings.Replace(tc.body, "input", "message", 1)
			requireProblem(t, b.do("POST", "/api/v1/agent/chat", chat, tc.header), tc.status, tc.kind, "")
			require.Empty(t, b.ledger.accepted)
		})
	}
}

func TestGoodHeaders(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Content-Type: application/json; charset=UTF-8", "Host: localhost:8080", "Host: [::1]:8080", "Host: LOCALHOST", "Host: 127.1.2.3",
		"Origin: http://127.0.0.1:8080", "Sec-Fetch-Site: same-origin", "Content-Encoding: identity"} {
		b := newBench(t)
		require.Equal(t, 202, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, header).Code, header)
	}
	b := newBench(t, func(c *Config) { c.AnyHost = true })
	require.Equal(t, 202, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, "Host: api.example.org").Code)
}

func TestAcceptance(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conversation := b.ledger.seed(t, "local", "").ConversationID
	message := "01890A5D-AC96-774B-BCCE-B302099A8057"
	w := b.do("POST", "/api/v1/agent/run", `{"input":"what is 6*7?","agent":"researcher","conversation_id":"`+strings.ToUpper(conversation)+`","session_id":"s",
		"message_id":"`+message+`","attachments":[{"name":"a.txt","media_type":"text/plain","text":"hello"}],"metadata":{ "b": 1e3, "a": "<x>" },
		"limits":{"max_steps":3,"timeout":"90s"},"wait":0}`, "X-Request-Id: my-request.1")
	require.Equal(t, 202, w.Code, "%s", w.Body)
	require.Len(t, b.ledger.accepted, 1)
	a := b.ledger.accepted[0]
	r := a.Run
	require.Equal(t, "/api/v1/agent/runs/"+r.RunID, w.Header().Get("Location"))
	require.EqualValues(t, 7, uuid.MustParse(r.RunID).Version())
	require.Equal(t, r.RunID, r.RootRunID)
	require.Equal(t, conversation, r.ConversationID, "as the ledger writes it")
	require.Equal(t, strings.ToLower(message), r.MessageID)
	require.Equal(t, "my-request.1", r.RequestID)
	require.Equal(t, "my-request.1", w.Header().Get("X-Request-Id"))
	require.Equal(t, agent.Queued, r.Status)
	require.Equal(t, 1, r.Epoch)
	require.Equal(t, `{ "b": 1e3, "a": "<x>" }`, string(r.Metadata), "kept as it was written")
	require.Equal(t, []agent.Attachment{{Name: "a.txt", MediaType: "text/plain", Text: "hello"}}, r.Attachments)
	require.Equal(t, agent.Limits{MaxSteps: 3, Timeout: agent.Duration(90 * time.Second)}.Or(agent.DefaultLimits()), r.Definition.Limits)
	require.Equal(t, agent.ModeReact, r.Definition.Mode)
	require.Equal(t, "calculator", r.Definition.Tools[0].Name)
	require.Equal(t, agent.ReactPlan(), a.Plan)
	require.Equal(t, "react", a.PlanSource)
	require.Equal(t, "local", a.Owner)
	require.False(t, a.NewConversation)
	require.False(t, a.Offline, "a vendor's model answers")
	require.Equal(t, agent.SideBySide, a.Strategy, "runs of a conversation may be side by side")

	object := document[runObject](t, w)
	require.Equal(t, "my-request.1", object.RequestID)
	require.Equal(t, []attachmentObject{{"a.txt", "text/plain"}}, object.Attachments)
}

func TestAcceptanceOfPlans(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body, source string
		mode         agent.Mode
		nodes        int
	}{
		"the planner makes it":   {`{"input":"x","wait":0}`, "", agent.ModePlan, 0},
		"the caller brings it":   {`{"plan":` + goodPlan + `,"wait":0}`, "caller", agent.ModePlan, 2},
		"to an agent that talks": {`{"agent":"researcher","plan":` + goodPlan + `,"wait":0}`, "caller", agent.ModePlan, 2},
		"one node, react":        {`{"input":"x","mode":"react","wait":0}`, "react", agent.ModeReact, 1},
		"as many as may be":      {strings.TrimSuffix(planWith(200), "}") + `,"wait":0}`, "caller", agent.ModePlan, 201},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			w := b.do("POST", "/api/v1/agent/run", tc.body)
			require.Equal(t, 202, w.Code, "%s", w.Body)
			a := b.ledger.accepted[0]
			require.Equal(t, tc.source, a.PlanSource)
			require.Equal(t, tc.mode, a.Run.Definition.Mode)
			require.True(t, a.NewConversation)
			require.Equal(t, a.Run.Definition.Model.Provider == "scripted", a.Offline)
			if tc.nodes == 0 {
				require.Nil(t, a.Plan)
				return
			}
			require.Len(t, a.Plan.Nodes, tc.nodes)
		})
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for sent, kept := range map[string]bool{"a-b_c.d:1/2+3=4@x": true, "": false, "with space": false, "ü": false, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a\"b": false} {
		got := b.do("GET", "/healthz", "", "X-Request-Id: "+sent).Header().Get("X-Request-Id")
		if kept {
			require.Equal(t, sent, got)
			continue
		}
		require.EqualValues(t, 7, uuid.MustParse(got).Version(), "%q", sent)
	}
}

func TestUnknownConversationAndForeignOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	foreign := b.ledger.seed(t, "somebody", "").ConversationID
	for _, id := range []string{foreign, uuid.NewString()} {
		requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","conversation_id":"`+id+`"}`), 404, "not-found", "/conversation_id")
		requireProblem(t, b.do("POST", "/api/v1/agent/chat", `{"message":"x","conversation_id":"`+id+`"}`), 404, "not-found", "/conversation_id")
	}
	require.Empty(t, b.ledger.accepted)
}

func TestTakenMessageID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	w := b.do("POST", "/api/v1/agent/run", `{"input":"x","conversation_id":"`+run.ConversationID+`","message_id":"`+run.MessageID+`"}`)
	requireProblem(t, w, 409, "message-id-taken", "/message_id")
}

func TestNoWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ledger.tools = nil
	w := b.do("POST", "/api/v1/agent/run", `{"input":"x"}`)
	p := requireProblem(t, w, 503, "no-worker", "")
	require.Equal(t, "2", w.Header().Get("Retry-After"))
	require.Contains(t, p.Detail, "start a worker")
	requireProblem(t, b.do("GET", "/readyz", ""), 503, "no-worker", "")
	require.Equal(t, 200, b.do("GET", "/healthz", "").Code)

	b = newBench(t)
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","agent":"broken"}`), 503, "agent-unavailable", "")
	require.Empty(t, b.ledger.accepted)
}

// post sends a request from another goroutine, for a test that moves the run meanwhile.
func (b *bench) post(ctx context.Context, path, body string, headers ...string) <-chan *httptest.ResponseRecorder {
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		b.api.ServeHTTP(w, request("POST", path, body, headers...).WithContext(ctx))
		done <- w
	}()
	return done
}

func (b *bench) lastRun() string { return b.ledger.order[len(b.ledger.order)-1] }

func TestRunAnswersWhenTheRunHasEnded(t *testing.T) {
	t.Parallel()
	for _, status := range []agent.Status{agent.Completed, agent.FailedStatus, agent.Cancelled} {
		for _, path := range runPaths() {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				start := time.Now()
				done := b.post(t.Context(), path, `{"input":"what is 6*7?"}`)
				synctest.Wait()
				b.ledger.write(b.lastRun(), agent.Event{Type: agent.PlanStarted}, agent.PlanStartedData{Source: "planner"})
				synctest.Wait()
				require.Empty(t, done)
				b.ledger.end(b.lastRun(), status)
				w := <-done
				require.Zero(t, time.Since(start), "by a wake-up")
				b.validate(request("POST", path, `{"input":"what is 6*7?"}`), []byte(`{"input":"what is 6*7?"}`), w)
				require.Equal(t, 200, w.Code, "also when it failed")
				require.Empty(t, w.Header().Get("Location"))
				object := document[runObject](t, w)
				require.Equal(t, status, object.Status)
				require.Equal(t, status == agent.Completed, object.FinalOutput != nil)
				require.Equal(t, status == agent.FailedStatus, object.Error != nil)
				require.Empty(t, b.ledger.subscribers)
			})
		}
	}
}

func TestRunAnswersAfterWait(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]time.Duration{
		`{"input":"x"}`:             60 * time.Second,
		`{"input":"x","wait":0}`:    0,
		`{"input":"x","wait":0.25}`: 250 * time.Millisecond,
		`{"input":"x","wait":600}`:  600 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			start := time.Now()
			w := b.do("POST", "/api/v1/agent/run", body)
			require.Equal(t, want, time.Since(start))
			require.Equal(t, 202, w.Code)
			require.Equal(t, "/api/v1/agent/runs/"+b.lastRun(), w.Header().Get("Location"))
			require.Equal(t, agent.Queued, document[runObject](t, w).Status)
		})
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	t.Run("by the poll, when the wake-up is lost", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			done := b.post(t.Context(), "/api/v1/agent/run", `{"input":"x"}`)
			synctest.Wait()
			clear(b.ledger.subscribers)
			b.ledger.end(b.lastRun(), agent.Completed)
			start := time.Now()
			require.Equal(t, 200, (<-done).Code)
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
	})
	t.Run("when the server drains", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			done := b.post(t.Context(), "/api/v1/agent/run", `{"input":"x"}`)
			synctest.Wait()
			b.api.Drain()
			require.Equal(t, 202, (<-done).Code)
		})
	})
	t.Run("when the client goes away, and the run goes on", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := b.post(ctx, "/api/v1/agent/run", `{"input":"x"}`)
			synctest.Wait()
			cancel()
			require.Zero(t, (<-done).Body.Len())
			require.Empty(t, b.ledger.subscribers)
			require.Equal(t, agent.Queued, b.ledger.runs[b.lastRun()].Status)
			require.Empty(t, b.ledger.cancels)
		})
	})
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const key = "Idempotency-Key: k1"
	first := b.do("POST", "/api/v1/agent/run", `{"input":"x","metadata":{"a":1,"b":2},"wait":0}`, key)
	require.Equal(t, 202, first.Code)
	again := b.do("POST", "/api/agent/run", `{"metadata":{"b":2,"a":1}, "input":"x","wait":0.001}`, key)
	require.Equal(t, 202, again.Code)
	id := document[runObject](t, first).RunID
	require.Equal(t, id, document[runObject](t, again).RunID, "order and spaces, and how long to wait, are not what was asked for")
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"y","wait":0}`, key), 422, "idempotency-key-reused", "")
	requireProblem(t, b.do("POST", "/api/v1/agent/run/stream", `{"input":"x"}`, key), 422, "idempotency-key-reused", "")
	require.Len(t, b.ledger.accepted, 1)

	b.ledger.end(id, agent.Completed)
	require.Equal(t, 200, b.do("POST", "/api/v1/agent/run", `{"input":"x","metadata":{"a":1,"b":2},"wait":0}`, key).Code)
	stream := b.do("POST", "/api/v1/agent/run/stream", `{"input":"x","metadata":{"a":1,"b":2}}`, key)
	require.Equal(t, []string{"1", "2", "3"}, ids(b.frames(stream)))
	require.Equal(t, "/api/v1/agent/runs/"+id+"/events", stream.Header().Get("Content-Location"))
	stream = b.do("POST", "/api/v1/agent/run/stream", `{"input":"x","metadata":{"a":1,"b":2}}`, key, "Last-Event-ID: 2")
	require.Equal(t, []string{"3"}, ids(b.frames(stream)))
	require.Equal(t, 204, b.do("POST", "/api/v1/agent/run/stream", `{"input":"x","metadata":{"a":1,"b":2}}`, key, "Last-Event-ID: 3").Code)

	other := newBench(t, withTokens)
	one := document[runObject](t, other.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`, key, bearer("a", auth.User)))
	two := document[runObject](t, other.do("POST", "/api/v1/agent/run", `{"input":"y","wait":0}`, key, bearer("b", auth.User)))
	require.NotEqual(t, one.RunID, two.RunID, "keys are the owner's own")
}

func TestLedgerFailures(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ledger.failure = &json.SyntaxError{}
	requireProblem(t, b.do("GET", "/api/v1/agent/runs/"+uuid.NewString(), ""), 500, "internal", "")
	require.Contains(t, b.logged.String(), "a request failed")
	b.ledger.pingFailure = context.DeadlineExceeded
	w := b.do("GET", "/api/v1/agent/runs/"+uuid.NewString(), "")
	requireProblem(t, w, 503, "ledger-unavailable", "")
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	requireProblem(t, b.do("GET", "/readyz", ""), 503, "ledger-unavailable", "")
}

func TestPanicIsAProblemAndIsLogged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ledger.panics = true
	p := requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x"}`), 500, "internal", "")
	require.NotContains(t, p.Detail, "fell over")
	require.Contains(t, b.logged.String(), "the ledger fell over")
	require.Contains(t, b.logged.String(), p.RequestID)
}

func TestPanicBeforeAStreamFreesItsSlotAndSaysWhere(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.MaxStreams = 1 })
	b.ledger.panics = true
	for path, body := range map[string]string{"/run/stream": `{"input":"x"}`, "/chat": `{"message":"x"}`} {
		for range 2 {
			requireProblem(t, b.do("POST", "/api/v1/agent"+path, body), 500, "internal", "")
		}
	}
	require.Contains(t, b.logged.String(), "fakeLedger).Accept")
}

func TestPanicInTheMiddleOfAnAnswerCutsItOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.api.identify(b.api.observe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half an ans"))
		panic("the second half is missing")
	})))
	w := httptest.NewRecorder()
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { h.ServeHTTP(w, request("GET", "/", "")) })
	require.Equal(t, "half an ans", w.Body.String())
	require.Contains(t, b.logged.String(), "the second half is missing")
}
