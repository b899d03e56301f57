package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"runledger/activities"
	"runledger/agent"
	"runledger/tool"
	"runledger/tool/builtin"
)

// counter is an HTTP server that counts requests by idempotency key.
type counter struct {
	*httptest.Server
	mu   sync.Mutex
	keys map[string]int
}

func serve(t testing.TB, answer http.HandlerFunc) *counter {
	t.Helper()
	c := &counter{keys: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.keys[r.Header.Get("Idempotency-Key")]++
		c.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "session=swordfish")
		_, _ = w.Write([]byte(`{"receipt": 7}`))
	}))
	t.Cleanup(c.Close)
	return c
}

// of counts the requests under the effect of a command.
func (c *counter) of(run agent.Run, commandID string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[agent.IdempotencyKey(run.RunID, commandID)]
}

// fnTool is a tool that is a function of its call.
func fnTool(t testing.TB, class agent.EffectClass, fn func(ctx context.Context, call tool.Call) (any, error)) tool.Tool {
	t.Helper()
	type none struct {
		N int `json:"n,omitempty"`
	}
	made, err := tool.New(tool.Spec{Name: toolOf(class), Description: "does what the test says", Effect: class},
		func(ctx context.Context, _ none, call tool.Call) (any, error) { return fn(ctx, call) })
	require.NoError(t, err)
	return made
}

// withTool is a lab whose tool of a class is a function, and whose HTTP effects may call this machine.
func withTool(t testing.TB, class agent.EffectClass, fn func(ctx context.Context, call tool.Call) (any, error)) *lab {
	t.Helper()
	l := setup(t)
	request, err := builtin.HTTPRequest(builtin.HTTPConfig{AllowHosts: []string{"127.0.0.1:*"}})
	require.NoError(t, err)
	l.tools, err = tool.NewSet(fnTool(t, class, fn), request)
	require.NoError(t, err)
	return l
}

func post(url string) tool.HTTPRequest {
	return tool.HTTPRequest{Method: "POST", URL: url, JSON: json.RawMessage(`{"amount": 3}`)}
}

// all is what a tool got from its effects.
type all struct {
	At, Later time.Time
	ID        string
	X         float64
	Receipt   string
}

func takeAll(ctx context.Context, fx tool.Effects, url string) (a all, err error) {
	if a.At, err = fx.Now(ctx); err != nil {
		return a, err
	}
	if a.ID, err = fx.UUID(ctx); err != nil {
		return a, err
	}
	if a.X, err = fx.Random(ctx); err != nil {
		return a, err
	}
	response, err := fx.HTTP(ctx, "charge", post(url+"/"+a.ID))
	if err != nil {
		return a, err
	}
	a.Receipt = string(response.Body())
	a.Later, err = fx.Now(ctx)
	return a, err
}

// R2-14 to R2-18: a tool that is executed again gets what it got before, and its request does not go out again.
func TestToolThatIsExecutedAgainGetsTheSameEffects(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	var seen []all
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		got, err := takeAll(ctx, call.Effects, server.URL)
		if err != nil {
			return nil, err
		}
		if seen = append(seen, got); call.Attempt == 1 {
			crash()
		}
		return got, nil
	})
	run := l.oneNode(t, agent.Idempotent)
	l.crashThenCommit(t, run)
	require.Len(t, seen, 2)
	require.Equal(t, seen[0], seen[1])
	require.Equal(t, 1, server.of(run, "a/charge"))
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.TimerFired, agent.UUIDRecorded, agent.RandomRecorded,
		agent.CommandEmitted, agent.HTTPRecorded, agent.CommandCommitted, agent.TimerFired,
		agent.AttemptDiscarded, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, l.types(t, run))

	got := seen[0]
	require.Equal(t, uuid.Version(4), uuid.MustParse(got.ID).Version())
	require.Equal(t, uuid.RFC4122, uuid.MustParse(got.ID).Variant())
	require.True(t, got.X >= 0 && got.X < 1)
	require.False(t, got.Later.Before(got.At))
	require.JSONEq(t, `{"receipt": 7}`, got.Receipt)
	row := l.row(t, run, "a/charge")
	require.Equal(t, agent.HTTPCommand, row.Kind)
	require.Equal(t, agent.External, row.Effect)
	require.Equal(t, "a", row.NodeID)
	var response tool.HTTPResponse
	require.NoError(t, json.Unmarshal(row.Result, &response))
	require.Equal(t, got.Receipt, string(response.Body()))
	require.Equal(t, l.row(t, run, "a/now-2").ResultHash, hashOf(t, l, run, "a/now-2"))

	rc, err := l.ReplayContext(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"a/now-1", "a/uuid-1", "a/random-1", "a/charge", "a/now-2", "a"}, rc.CompletedCommandIDs)
	require.Empty(t, rc.State.Open)
}

// hashOf is the hash of a recorded value in its event.
func hashOf(t testing.TB, l *lab, run agent.Run, commandID string) string {
	t.Helper()
	for _, e := range l.events(t, run) {
		if e.CommandID == commandID {
			var d agent.ValueRecordedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			return d.Hash
		}
	}
	return ""
}

// A request whose worker was lost is in doubt where it must not be repeated, and with it the tool, whatever its own class is
// and whatever it returns. One that may be repeated goes out again under the same key.
func TestLostRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		method   string
		class    agent.EffectClass // as the caller names it
		swallows bool
		doubt    bool
		requests int
	}{
		{name: "POST", method: "POST", doubt: true, requests: 1},
		{name: "POST, and the tool goes on", method: "POST", swallows: true, doubt: true, requests: 1},
		{name: "GET", method: "GET", requests: 2},
		{name: "POST that may be repeated", method: "POST", class: agent.Idempotent, requests: 2},
		{name: "GET that may not", method: "GET", class: agent.External, doubt: true, requests: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, nil)
			l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
				_, err := call.Effects.HTTP(ctx, "charge", tool.HTTPRequest{Method: c.method, URL: server.URL, Effect: c.class})
				if c.swallows {
					err = nil
				}
				return map[string]int{}, err
			})
			run := l.oneNode(t, agent.Idempotent)
			in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
			_, err := l.callTool(t, breaks(beforeCommit, crashes), in) // the first commit is that of the request
			require.ErrorIs(t, err, errCrashed)
			require.Equal(t, 1, server.of(run, "a/charge"))
			l.expire(t, run)
			reply, err := l.callTool(t, try{attempt: 2}, in)
			require.NoError(t, err)
			require.Equal(t, c.requests, server.of(run, "a/charge"))
			if !c.doubt {
				require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
				require.Equal(t, 2, l.row(t, run, "a/charge").Dispatches)
				return
			}
			require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
			require.Equal(t, agent.CodeInDoubt, reply.Error.Code)
			require.Equal(t, "a/charge", reply.Error.CommandID)
			require.Equal(t, agent.CommandInDoubt, l.row(t, run, "a/charge").State)
			require.Equal(t, agent.CommandInDoubt, l.row(t, run, "a").State)
			types := l.types(t, run)
			require.Equal(t, 2, countTypes(types, agent.CommandDoubtType))

			// A person resolves the request, which lets the tool go on, with what the person says took place.
			_, err = l.Resolve(t.Context(), "local", run.RunID, "a/charge", agent.Resolution{Outcome: agent.OutcomeCommitted, By: "me",
				Result: json.RawMessage(`{"status": 200, "headers": {}, "text": "as said", "bytes": 7}`)})
			require.NoError(t, err)
			require.Equal(t, agent.Released, l.row(t, run, "a").State)
			in.Schedule = 2
			reply, err = l.callTool(t, try{}, in)
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
			require.Equal(t, 1, server.of(run, "a/charge"))
		})
	}
}

// What is known after a request that failed decides about the tool that returns the error as it is.
func TestFailedRequest(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, c := range []struct {
		name   string
		method string
		status int // 0: nobody listens
		state  agent.CommandState
		tool   agent.CommandState
	}{
		{"POST, 404", "POST", 404, agent.CommandFailed, agent.CommandFailed},
		{"GET, 404", "GET", 404, agent.CommandFailed, agent.CommandFailed},
		{"POST, 503", "POST", 503, agent.CommandInDoubt, agent.CommandInDoubt},
		{"GET, 503", "GET", 503, agent.Released, agent.Released},
		{"POST, nobody listens", "POST", 0, agent.Released, agent.Released},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3")
				w.WriteHeader(c.status)
			})
			url := server.URL
			if c.status == 0 {
				url = gone.URL
			}
			for _, class := range []agent.EffectClass{agent.Idempotent, agent.External} {
				l := withTool(t, class, func(ctx context.Context, call tool.Call) (any, error) {
					_, err := call.Effects.HTTP(ctx, "charge", tool.HTTPRequest{Method: c.method, URL: url})
					return nil, err
				})
				run := l.oneNode(t, class)
				in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)}
				reply, err := l.callTool(t, try{}, in)
				require.Equal(t, c.state, l.row(t, run, "a/charge").State, class)
				require.Equal(t, c.tool, l.row(t, run, "a").State, class)
				if c.tool == agent.Released {
					retry := requireCode(t, err, agent.CodeToolFailed, true)
					if c.status != 0 {
						require.Equal(t, 3*time.Second, retry.NextRetryDelay())
					}
					continue
				}
				require.NoError(t, err)
				require.NotNil(t, reply.Error)
			}
		})
	}
}

// A failure that a tool goes on with is on record too, and is what the tool gets when it is executed again.
func TestFailedRequestIsGivenAgain(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	var seen []string
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		_, err := call.Effects.HTTP(ctx, "brew", tool.HTTPRequest{Method: "POST", URL: server.URL})
		require.ErrorIs(t, err, &agent.Error{Code: agent.CodeToolFailed})
		if seen = append(seen, err.Error()); call.Attempt == 1 {
			crash()
		}
		return "no coffee", nil
	})
	run := l.oneNode(t, agent.Idempotent)
	l.crashThenCommit(t, run)
	require.Len(t, seen, 2)
	require.Equal(t, seen[0], seen[1])
	require.Equal(t, 1, server.of(run, "a/brew"))
}

func TestRequestsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	for name, c := range map[string]struct {
		id   string
		req  tool.HTTPRequest
		code agent.Code
		says string
	}{
		"no id":            {"", post(server.URL), agent.CodeInvalidArguments, "id of an effect"},
		"an id of a path":  {"a/b", post(server.URL), agent.CodeInvalidArguments, "id of an effect"},
		"a method":         {"x", tool.HTTPRequest{Method: "get", URL: server.URL}, agent.CodeInvalidArguments, "/method"},
		"a host":           {"x", post("http://localhost:1/"), agent.CodeRefused, "not on the list"},
		"a class":          {"x", tool.HTTPRequest{Method: "GET", URL: server.URL, Effect: agent.Deterministic}, agent.CodeInvalidArguments, "effect class"},
		"two bodies":       {"x", tool.HTTPRequest{Method: "POST", URL: server.URL, Body: new("a"), JSON: json.RawMessage(`1`)}, agent.CodeInvalidArguments, "/body"},
		"no JSON":          {"x", tool.HTTPRequest{Method: "POST", URL: server.URL, JSON: json.RawMessage(`{`)}, agent.CodeInvalidArguments, "not JSON"},
		"no text":          {"x", tool.HTTPRequest{Method: "POST", URL: server.URL, Body: new("\xff")}, agent.CodeInvalidArguments, "UTF-8"},
		"a value's number": {"now-1", post(server.URL), agent.CodeMismatch, "another request"},
		"another request":  {"first", post(server.URL + "/other"), agent.CodeMismatch, "another request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := withTool(t, agent.External, func(ctx context.Context, call tool.Call) (any, error) {
				if _, err := call.Effects.Now(ctx); err != nil {
					return nil, err
				}
				if _, err := call.Effects.HTTP(ctx, "first", post(server.URL+"/first")); err != nil {
					return nil, err
				}
				_, err := call.Effects.HTTP(ctx, c.id, c.req)
				return nil, err
			})
			run := l.oneNode(t, agent.External)
			reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "mail"})
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeFailed, reply.Outcome)
			require.Equal(t, c.code, reply.Error.Code, reply.Error.Message)
			require.Contains(t, reply.Error.Message, c.says)
			require.Equal(t, 1, server.of(run, "a/first"))
		})
	}
}

func TestHTTPEffectsNeedTheToolTheyGoBy(t *testing.T) {
	t.Parallel()
	l := setup(t)
	var err error
	l.tools, err = tool.NewSet(fnTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		_, err := call.Effects.HTTP(ctx, "x", post("http://127.0.0.1:1/"))
		return nil, err
	}))
	require.NoError(t, err)
	run := l.oneNode(t, agent.Idempotent)
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.NoError(t, err)
	require.Equal(t, agent.CodeToolUnknown, reply.Error.Code)
	require.Contains(t, reply.Error.Message, "http_request")
}

// Two goroutines of a tool that ask for one effect get one request.
func TestEffectThatIsAskedForTwiceAtOnce(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		var group sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			group.Go(func() {
				_, err := call.Effects.HTTP(ctx, "one", post(server.URL))
				_, other := call.Effects.UUID(ctx)
				errs[i] = errors.Join(err, other)
			})
		}
		group.Wait()
		return nil, errors.Join(errs...)
	})
	run := l.oneNode(t, agent.Idempotent)
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome, "%v", reply.Error)
	require.Equal(t, 1, server.of(run, "a/one"))
	require.Equal(t, 8, countTypes(l.types(t, run), agent.UUIDRecorded))
}

// A tool that returns while its request is at work leaves nobody to read the answer.
func TestToolThatReturnsBeforeItsRequest(t *testing.T) {
	t.Parallel()
	arrived, over := make(chan struct{}), make(chan struct{})
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-over
	})
	var late tool.Effects
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		late = call.Effects
		go func() { _, _ = call.Effects.HTTP(ctx, "x", post(server.URL)) }()
		<-arrived
		return "done", nil
	})
	t.Cleanup(func() { close(over) })
	run := l.oneNode(t, agent.Idempotent)
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
	require.Equal(t, "a/x", reply.Error.CommandID)
	_, err = late.UUID(t.Context())
	require.ErrorContains(t, err, "has returned")
}

// An effect ends with the tool that asks for it, by the tool's deadline, and with the context that it is given.
func TestRequestEndsWithItsTool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method  string
		timeout time.Duration // the command's
		gives   error         // with which the tool gives the request up when it has arrived; nil when it waits
		state   agent.CommandState
	}{
		"deadline, GET":              {"GET", 3 * time.Second, nil, agent.Released},
		"deadline, POST":             {"POST", 3 * time.Second, nil, agent.CommandInDoubt},
		"the tool's limit, GET":      {"GET", time.Minute, context.DeadlineExceeded, agent.Released},
		"the tool's limit, POST":     {"POST", time.Minute, context.DeadlineExceeded, agent.CommandInDoubt},
		"the tool gives it up, GET":  {"GET", time.Minute, context.Canceled, agent.Released},
		"the tool gives it up, POST": {"POST", time.Minute, context.Canceled, agent.CommandInDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, over := make(chan struct{}), make(chan struct{})
			server := serve(t, func(http.ResponseWriter, *http.Request) {
				close(arrived)
				<-over
			})
			t.Cleanup(func() { close(over) })
			l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
				ctx, cancel := context.WithCancelCause(ctx)
				defer cancel(nil)
				if c.gives != nil {
					go func() {
						<-arrived
						cancel(c.gives)
					}()
				}
				_, err := call.Effects.HTTP(ctx, "x", tool.HTTPRequest{Method: c.method, URL: server.URL})
				return nil, err
			})
			run := l.oneNode(t, agent.Idempotent)
			in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
			in.Timeout = agent.Duration(c.timeout)
			_, _ = l.callTool(t, try{}, in)
			require.Equal(t, c.state, l.row(t, run, "a/x").State)
			require.Equal(t, c.state, l.row(t, run, "a").State)
		})
	}
}

// Cancelling the run ends a request of its tool: what may be repeated does not count, of anything else nobody knows.
func TestCancellingARunEndsTheRequestsOfItsTool(t *testing.T) {
	t.Parallel()
	for method, state := range map[string]agent.CommandState{"GET": agent.CommandAborted, "POST": agent.CommandInDoubt} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			arrived, over := make(chan struct{}), make(chan struct{})
			server := serve(t, func(http.ResponseWriter, *http.Request) {
				close(arrived)
				<-over
			})
			t.Cleanup(func() { close(over) })
			l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
				_, err := call.Effects.HTTP(ctx, "x", tool.HTTPRequest{Method: method, URL: server.URL})
				return nil, err
			})
			run := l.oneNode(t, agent.Idempotent)
			cancelled := try{context: func(ctx context.Context) context.Context {
				ctx, cancel := context.WithCancelCause(ctx)
				go func() {
					<-arrived
					cancel(temporal.NewCanceledError())
				}()
				return ctx
			}}
			_, err := l.callTool(t, cancelled, agent.ToolCall{Call: call(run, 1), Tool: "put"})
			require.NoError(t, err)
			require.Equal(t, state, l.row(t, run, "a/x").State)
			require.Equal(t, state, l.row(t, run, "a").State)
		})
	}
}

// Nothing secret of a request or a response is on record.
func TestRecordedRequestHoldsNoSecret(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		req := post(server.URL + "/pay?key=swordfish")
		req.Headers = map[string]string{"Authorization": "Bearer swordfish", "X-Whatever": "swordfish", "Accept": "application/json"}
		_, err := call.Effects.HTTP(ctx, "pay", req)
		return "paid", err
	})
	run := l.oneNode(t, agent.Idempotent)
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	row := l.row(t, run, "a/pay")
	require.JSONEq(t, `{"method": "POST", "url": "`+server.URL+`/pay?key=swordfish", "json": {"amount": 3},
		"headers": {"Authorization": "[redacted]", "X-Whatever": "[redacted]", "Accept": "application/json"}}`, string(row.Input))
	require.NotContains(t, string(row.Result), "swordfish")
	found := false
	for _, e := range l.events(t, run) {
		require.NotContains(t, string(e.Data), "swordfish", e.Type)
		if e.Type == agent.HTTPRecorded {
			found = true
			var d agent.HTTPRecordedData
			require.NoError(t, json.Unmarshal(e.Data, &d))
			require.Equal(t, server.URL+"/pay", d.Request.URL)
			require.JSONEq(t, `{"amount": 3}`, string(d.Request.Body.JSON))
			require.Equal(t, 200, d.Response.Status)
			require.JSONEq(t, `{"receipt": 7}`, string(d.Response.Body.JSON))
			require.Equal(t, "application/json", d.Response.Headers["content-type"])
		}
	}
	require.True(t, found)
}

// The effects of workflow code are activities.
func TestEffectsOfWorkflowCode(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write([]byte(strings.Repeat("x", 1<<20)))
			return
		}
		_, _ = w.Write([]byte("plain"))
	})
	l := withTool(t, agent.Idempotent, func(context.Context, tool.Call) (any, error) { return nil, nil })
	run := l.oneNode(t, agent.Idempotent)
	record := func(a *activities.Activities) func(context.Context, agent.EffectCall) (agent.EffectReply, error) {
		return a.RecordEffect
	}
	for _, kind := range []agent.CommandKind{agent.NowCommand, agent.UUIDCommand, agent.RandomCommand} {
		in := agent.EffectCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, NodeID: "a", CommandID: "a/" + agent.ValueEffectID(kind, 1), Kind: kind}
		first, err := attempt(t, l, try{}, record, in)
		require.NoError(t, err)
		again, err := attempt(t, l, try{attempt: 2}, record, in)
		require.NoError(t, err)
		require.Equal(t, first, again)
		in.Epoch = 2
		_, err = attempt(t, l, try{}, record, in)
		requireCode(t, err, agent.CodeStaleEpoch, false)
	}
	_, err := attempt(t, l, try{}, record, agent.EffectCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, CommandID: "a/x", Kind: agent.ToolCommand})
	requireCode(t, err, agent.CodeInternal, false)

	request := func(a *activities.Activities) func(context.Context, agent.HTTPCall) (agent.HTTPReply, error) {
		return a.CallHTTP
	}
	in := agent.HTTPCall{Call: call(run, 1), Request: tool.HTTPRequest{Method: "POST", URL: server.URL}}
	in.CommandID, in.Opens, in.Ends = "a/ask", false, false
	first, err := attempt(t, l, try{}, request, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, first.Outcome)
	require.Equal(t, "plain", string(first.Response.Body()))
	again, err := attempt(t, l, try{attempt: 2}, request, in)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 1, server.of(run, "a/ask"))
	settled := l.settle(t, agent.SettleCall{Call: in.Call, Reason: &agent.Error{Code: agent.CodeInternal}})
	require.Equal(t, first.Reply, settled.Reply)

	in.CommandID, in.Request.URL = "a/large", server.URL+"/large"
	_, err = attempt(t, l, try{}, request, in)
	requireCode(t, err, agent.CodeLimit, false)
	require.Equal(t, agent.Committed, l.row(t, run, "a/large").State)
	in.CommandID, in.Request.Method = "a/wrong", "BREW"
	failed, err := attempt(t, l, try{}, request, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, failed.Outcome)
	require.Equal(t, agent.CodeInvalidArguments, failed.Error.Code)
}

// The answer that comes after all resolves the request, and lets the tool go on.
func TestLateAnswerResolvesTheToolToo(t *testing.T) {
	t.Parallel()
	arrived, over := make(chan struct{}), make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-over
		_, _ = w.Write([]byte("late"))
	})
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		response, err := call.Effects.HTTP(ctx, "charge", post(server.URL))
		return string(response.Body()), err
	})
	run := l.oneNode(t, agent.Idempotent)
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	first := make(chan agent.Reply, 1)
	go func() {
		reply, _ := l.callTool(t, try{}, in)
		first <- reply
	}()
	<-arrived
	l.expire(t, run)
	reply, err := l.callTool(t, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
	close(over)
	require.Equal(t, agent.OutcomeUnknown, (<-first).Outcome, "its tool has lost its command; what it learned is on record")
	require.Equal(t, agent.Committed, l.row(t, run, "a/charge").State)
	require.Equal(t, agent.Released, l.row(t, run, "a").State)
	in.Schedule = 2
	reply, err = l.callTool(t, try{}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, `"late"`, string(l.row(t, run, "a").Result))
	require.Equal(t, 1, server.of(run, "a/charge"))
}

// The rules by which http_request finds out what became of a call are for HTTP effects too.
func TestLostRequestIsLookedUp(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 8)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			asked <- r.URL.Query().Get("key")
		}
		_, _ = w.Write([]byte("paid"))
	})
	l := withTool(t, agent.Idempotent, nil)
	request, err := builtin.HTTPRequest(builtin.HTTPConfig{AllowHosts: []string{"127.0.0.1:*"},
		Reconcile: []builtin.HTTPReconcile{{Host: "127.0.0.1:*", Method: "POST", URL: "/lookup?key={key}"}}})
	require.NoError(t, err)
	l.tools, err = tool.NewSet(request, fnTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		response, err := call.Effects.HTTP(ctx, "charge", post(server.URL))
		return string(response.Body()), err
	}))
	require.NoError(t, err)
	run := l.oneNode(t, agent.Idempotent)
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	_, err = l.callTool(t, breaks(beforeCommit, crashes), in)
	require.ErrorIs(t, err, errCrashed)
	l.expire(t, run)
	reply, err := l.callTool(t, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, `"paid"`, string(l.row(t, run, "a").Result))
	require.Equal(t, 1, server.of(run, "a/charge"))
	require.Equal(t, run.RunID+"/a/charge", <-asked)
	types := l.types(t, run)
	require.Equal(t, 1, countTypes(types, agent.HTTPRecorded))
	require.Equal(t, 2, countTypes(types, agent.CommandCommitted))
}

// What the run's rules say of requests holds for those within a tool.
func TestPolicyOfRequestsWithinATool(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		if _, err := call.Effects.HTTP(ctx, "read", tool.HTTPRequest{Method: "GET", URL: server.URL}); err != nil {
			return nil, err
		}
		_, err := call.Effects.HTTP(ctx, "pay", post(server.URL))
		return nil, err
	})
	run := l.oneNode(t, agent.Idempotent)
	l.exec(t, `UPDATE agent_executions SET definition = jsonb_set(definition::jsonb, '{policy}',
		'{"rules": [{"kinds": ["http"], "effects": ["external"], "decision": "forbid", "reason": "no money today"}]}')::json WHERE run_id = $1`, run.RunID)
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, reply.Outcome)
	require.Equal(t, agent.CodeRefused, reply.Error.Code)
	require.Contains(t, reply.Error.Message, "no money today")
	require.Equal(t, 1, server.of(run, "a/read"))
	require.Zero(t, server.of(run, "a/pay"))
	require.Equal(t, 1, countTypes(l.types(t, run), agent.PolicyDecided))
}

// crashThenCommit takes a tool's command through an attempt whose worker is lost, and through one that commits.
func (l *lab) crashThenCommit(t testing.TB, run agent.Run) {
	t.Helper()
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	_, err := l.callTool(t, try{}, in)
	require.ErrorIs(t, err, errCrashed)
	l.expire(t, run)
	reply, err := l.callTool(t, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
}
