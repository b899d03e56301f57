package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
	"runledger/policy"
	"runledger/tool"
)

// asking is an API over a real ledger with a run whose calls of a tool wait for an approval.
type asking struct {
	*bench
	store *ledger.Ledger
	run   agent.Run
	calls int
}

const payment = `{"amount": 200, "card": {"number": "4711", "name": "a"}}`

func newAsking(t testing.TB) *asking {
	t.Helper()
	store, err := ledger.Open(t.Context(), pgtest.Database(t), ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	require.NoError(t, store.PublishTools(t.Context(), "default", []agent.ToolRef{{Name: "pay", Description: "Pays.", Effect: agent.External, InputSchema: json.RawMessage(
		`{"type": "object", "required": ["amount"], "additionalProperties": false, "properties": {"amount": {"type": "number", "maximum": 1000},
			"card": {"type": "object", "properties": {"number": {"type": "string", "writeOnly": true}, "name": {"type": "string"}}}}}`)}}))
	b := newBench(t, func(c *Config) { c.Ledger = store })
	w := b.do("POST", root+"/run", `{"input":"pay","mode":"react","wait":0}`)
	require.Equal(t, 202, w.Code, "%s", w.Body)
	return &asking{bench: b, store: store, run: document[agent.Run](t, w)}
}

// waits takes another call to the gate, under a rule that asks.
func (x *asking) waits(expires time.Duration) approvalObject {
	x.t.Helper()
	run, err := x.store.Run(x.t.Context(), agent.AnyOwner, x.run.RunID)
	require.NoError(x.t, err)
	ref, _ := run.Definition.Tool("pay")
	v, err := tool.CompileSchema(tool.SpecOf(ref))
	require.NoError(x.t, err)
	id := agent.TurnToolCommandID("main", 1, x.calls)
	x.calls++
	begun, err := x.store.Begin(x.t.Context(), agent.Begin{
		Call: agent.Call{Scope: agent.Scope{RunID: x.run.RunID, Epoch: 1}, CommandID: id, NodeID: "main", Schedule: x.calls, Timeout: agent.Duration(time.Minute),
			Refusal: &agent.Refusal{Decision: policy.Ask, Reason: "money", Expires: agent.Duration(expires)}},
		Dispatch: agent.Dispatch{Epoch: 1, Schedule: x.calls, Attempt: 1}, Kind: agent.ToolCommand, Tool: "pay", Effect: agent.External, InputHash: "h",
		Input: json.RawMessage(payment), Shown: v.Public(json.RawMessage(payment)), ArgumentsHash: agent.ArgumentsHash(json.RawMessage(payment))})
	require.NoError(x.t, err)
	w := x.do("GET", root+"/approvals/"+begun.Awaits.ApprovalID, "")
	require.Equal(x.t, 200, w.Code)
	return document[approvalObject](x.t, w)
}

func TestApprovalIsShownAndAnswered(t *testing.T) {
	t.Parallel()
	x := newAsking(t)
	first, second := x.waits(time.Hour), x.waits(time.Hour)
	require.Equal(t, agent.ApprovalOpen, first.State)
	require.Equal(t, "money", first.Reason)
	require.JSONEq(t, `{"amount": 200, "card": {"number": "[redacted]", "name": "a"}}`, string(first.Arguments))
	require.Equal(t, agent.ArgumentsHash(json.RawMessage(payment)), first.ArgumentsHash)
	require.Equal(t, root+"/approvals/"+first.ApprovalID, first.ApprovalURL)

	type list struct {
		Approvals []approvalObject
		HasMore   bool `json:"has_more"`
	}
	open := document[list](t, x.do("GET", root+"/approvals", ""))
	require.Equal(t, []approvalObject{second, first}, open.Approvals)
	page := document[list](t, x.do("GET", root+"/approvals?limit=1&run_id="+x.run.RunID, ""))
	require.Equal(t, list{[]approvalObject{second}, true}, page)
	require.Equal(t, []approvalObject{first}, document[list](t, x.do("GET", root+"/approvals?before="+second.ApprovalID, "")).Approvals)
	run := document[runObject](t, x.do("GET", runPath(x.run.RunID), ""))
	require.Equal(t, []approvalObject{first, second}, run.Approvals, "the oldest first")

	w := x.do("POST", first.ApprovalURL, `{"decision":"approve","by":"ann","note":"fine"}`)
	require.Equal(t, 200, w.Code, "%s", w.Body)
	approved := document[approvalObject](t, w)
	require.Equal(t, agent.ApprovalApproved, approved.State)
	require.Equal(t, "ann", approved.By)
	require.Equal(t, "fine", approved.Note)
	require.NotNil(t, approved.DecidedAt)
	require.Equal(t, w.Body.String(), x.do("POST", runPath(x.run.RunID)+"/approvals/"+first.ApprovalID, `{"decision":"approve"}`).Body.String(), "the same again, by its run's path")
	requireProblem(t, x.do("POST", first.ApprovalURL, `{"decision":"deny"}`), 409, "approval-decided", "")
	denied := document[approvalObject](t, x.do("POST", runPath(x.run.RunID)+"/approvals/"+second.ApprovalID, `{"decision":"deny","note":"too much"}`))
	require.Equal(t, agent.ApprovalDenied, denied.State)

	require.Empty(t, document[list](t, x.do("GET", root+"/approvals", "")).Approvals)
	for state, n := range map[string]int{"all": 2, "approved": 1, "denied": 1, "expired": 0, "withdrawn": 0, "open": 0} {
		require.Len(t, document[list](t, x.do("GET", root+"/approvals?state="+state, "")).Approvals, n, state)
	}
	require.Empty(t, document[runObject](t, x.do("GET", runPath(x.run.RunID), "")).Approvals)
	require.Equal(t, 200, x.do("GET", runPath(x.run.RunID)+"/trace", "").Code)
	require.Equal(t, 200, x.do("GET", runPath(x.run.RunID)+"/events?profile=run", "").Code)
}

func TestApprovalWithOtherArguments(t *testing.T) {
	t.Parallel()
	x := newAsking(t)
	asked := x.waits(time.Hour)
	post := func(body string) *problem {
		w := x.do("POST", asked.ApprovalURL, body)
		p := document[problem](t, w)
		require.Equal(t, w.Code, p.Status)
		return &p
	}
	for body, pointer := range map[string]string{
		`{"decision":"approve","arguments":{"amount":2000}}`:                        "/arguments/amount",
		`{"decision":"approve","arguments":{"amount":"5"}}`:                         "/arguments/amount",
		`{"decision":"approve","arguments":{"amount":{"$from":"/nodes/a/output"}}}`: "/arguments/amount",
		`{"decision":"approve","arguments":{}}`:                                     "/arguments/amount",
		`{"decision":"approve","arguments":{"amount":5,"to":"me"}}`:                 "/arguments/to",
		`{"decision":"approve","arguments":[5]}`:                                    "/arguments",
		`{"decision":"deny","arguments":{"amount":5}}`:                              "/arguments",
		`{"decision":"maybe"}`:                                                      "/decision",
		`{}`:                                                                        "/decision",
	} {
		p := post(body)
		require.Equal(t, 422, p.Status, body)
		require.Equal(t, "/problems/invalid-request", p.Type)
		require.Equal(t, pointer, *p.Pointer, body)
	}
	require.Equal(t, 400, post(`{"decision":"approve","args":{}}`).Status)
	require.Equal(t, agent.ApprovalOpen, document[approvalObject](t, x.do("GET", asked.ApprovalURL, "")).State)

	const edit = `{"decision":"approve","arguments":{"amount":5,"card":{"number":"[redacted]","name":"b"}},"by":"ann"}`
	w := x.do("POST", asked.ApprovalURL, edit)
	require.Equal(t, 200, w.Code, "%s", w.Body)
	approved := document[approvalObject](t, w)
	require.True(t, approved.Edited)
	require.JSONEq(t, `{"amount":5,"card":{"number":"[redacted]","name":"b"}}`, string(approved.Arguments))
	require.Equal(t, agent.ArgumentsHash(json.RawMessage(`{"amount":5,"card":{"number":"4711","name":"b"}}`)), approved.ArgumentsHash, "the secret stays")
	require.Equal(t, w.Body.String(), x.do("POST", asked.ApprovalURL, edit).Body.String())
	require.Equal(t, 409, post(`{"decision":"approve"}`).Status, "of other arguments")
	events := x.do("GET", runPath(x.run.RunID)+"/events?profile=ledger", "").Body.String()
	require.NotContains(t, events, "4711")
	require.Contains(t, events, approved.ArgumentsHash)
}

func TestApprovalThatCannotBeAnswered(t *testing.T) {
	t.Parallel()
	x := newAsking(t)
	late, open := x.waits(time.Nanosecond), x.waits(time.Hour)
	requireProblem(t, x.do("POST", late.ApprovalURL, `{"decision":"approve"}`), 409, "approval-expired", "")
	require.Equal(t, agent.ApprovalExpired, document[approvalObject](t, x.do("GET", late.ApprovalURL, "")).State)
	requireProblem(t, x.do("POST", late.ApprovalURL, `{"decision":"deny"}`), 409, "approval-expired", "")
	_, err := x.store.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: x.run.RunID, Epoch: 1}, Status: agent.FailedStatus,
		Error: &agent.Error{Code: agent.CodeInternal, Message: "so"}})
	require.NoError(t, err)
	requireProblem(t, x.do("POST", open.ApprovalURL, `{"decision":"approve"}`), 409, "run-ended", "")
	require.Equal(t, agent.ApprovalWithdrawn, document[approvalObject](t, x.do("GET", open.ApprovalURL, "")).State)

	for _, path := range []string{root + "/approvals/" + uuid.NewString(), root + "/approvals/nonsense", runPath(uuid.NewString()) + "/approvals/" + open.ApprovalID,
		runPath(x.run.RunID) + "/approvals/" + uuid.NewString()} {
		requireProblem(t, x.do("POST", path, `{"decision":"approve"}`), 404, "not-found", "")
	}
	second := document[agent.Run](t, x.do("POST", root+"/run", `{"input":"pay","mode":"react","wait":0}`))
	requireProblem(t, x.do("POST", runPath(second.RunID)+"/approvals/"+open.ApprovalID, `{"decision":"approve"}`), 404, "not-found", "")
	for _, query := range []string{"?state=odd", "?state=", "?limit=0", "?before=x", "?run_id=x"} {
		require.Equal(t, 400, x.do("GET", root+"/approvals"+query, "").Code, query)
	}
}
