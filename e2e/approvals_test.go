package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
)

// poster is a model that asks for a POST of every path in the user's message, in one turn, and answers with what it was told.
type poster struct{ fx *effects }

func (m poster) Generate(_ context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	req = model.WithoutMarks(req)
	var reply model.Reply
	var told []string
	for _, message := range req.Messages {
		switch message.Role {
		case model.User:
			for i, path := range strings.Fields(message.Text) {
				arguments, err := json.Marshal(object{"method": "POST", "url": m.fx.URL + path})
				if err != nil {
					return reply, err
				}
				reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: fmt.Sprint("call", i), Name: "http_request", Arguments: string(arguments)})
			}
		case model.ToolRole:
			told = append(told, message.Text)
		default:
		}
	}
	if len(told) == 0 {
		reply.Finish = model.FinishTools
		return reply, nil
	}
	reply = model.Reply{Finish: model.FinishStop, Text: strings.Join(told, " and ")}
	if emit != nil {
		emit(model.Delta{Channel: model.Text, Text: reply.Text})
	}
	return reply, nil
}

// approvalConfig asks before every POST: the tool does, and hasty's own rule, which waits for seconds only.
func approvalConfig(vendor *modeltest.Server) string {
	return fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: react, tools: [http_request]}
  hasty:
    mode: react
    tools: [http_request]
    policy: [{tools: [http_request], effects: [external], when: 'args.url contains "/do/"', decision: ask, reason: "it costs", expires: 2s}]
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"], approve: 'args.method != "GET"'}
`, vendor.URL)
}

type approval struct {
	agent.Approval
	ApprovalURL string `json:"approval_url"`
}

// asked waits until a run waits for an approval, and returns it.
func (c *client) asked(t testing.TB, runID string) approval {
	t.Helper()
	c.ComesTo(t, runID, agent.ApprovalRequested)
	var run struct {
		Approvals []approval `json:"approvals"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID, nil, &run))
	require.Len(t, run.Approvals, 1)
	return run.Approvals[0]
}

func (c *client) answer(t testing.TB, a approval, body object) {
	t.Helper()
	var problem object
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, a.ApprovalURL, body, &problem), "%v", problem)
}

// output is a run's answer, once it has ended.
func (c *client) output(t testing.TB, runID string) string {
	t.Helper()
	end := c.ComesTo(t, runID, stacktest.Ends...)
	require.Equal(t, agent.RunCompleted, end.Type, "%s", end.Data)
	var d agent.RunCompletedData
	require.NoError(t, json.Unmarshal(end.Data, &d))
	return d.FinalOutput
}

// TestApprovals: an external call that somebody approves takes place once, with the arguments that were approved; one that is denied
// or not answered in time does not, and the model is told.
func TestApprovals(t *testing.T) {
	t.Parallel()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, poster{fx})
	s := startServers(t, approvalConfig(vendor))
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)

	approved, edited, denied := c.Post(t, object{"input": "/do/a"}), c.Post(t, object{"input": "/do/a"}), c.Post(t, object{"input": "/do/a"})
	expired := c.Post(t, object{"input": "/do/a", "agent": "hasty"})
	key := func(run agent.Run) string { return run.RunID + "/main#1.0" }

	question := c.asked(t, approved.RunID)
	require.Equal(t, "the tool asks for an approval", question.Reason)
	require.JSONEq(t, `{"method": "POST", "url": "`+fx.URL+`/do/a"}`, string(question.Arguments))
	require.Equal(t, agent.External, question.Effect)
	var list struct{ Approvals []approval }
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/approvals?run_id="+approved.RunID, nil, &list))
	require.Equal(t, []approval{question}, list.Approvals)
	require.Zero(t, fx.count(key(approved)))
	c.answer(t, question, object{"decision": "approve", "by": "ada"})
	require.Contains(t, c.output(t, approved.RunID), `"did":"a"`)
	require.Equal(t, []string{"POST /do/a"}, fx.did(key(approved)))

	question = c.asked(t, edited.RunID)
	var problem struct{ Pointer string }
	require.Equal(t, http.StatusUnprocessableEntity, c.Call(t, http.MethodPost, question.ApprovalURL,
		object{"decision": "approve", "arguments": object{"method": "BREW", "url": fx.URL}}, &problem))
	require.Equal(t, "/arguments/method", problem.Pointer)
	c.answer(t, question, object{"decision": "approve", "arguments": object{"method": "POST", "url": fx.URL + "/do/b"}})
	output := c.output(t, edited.RunID)
	require.Contains(t, output, `"did":"b"`)
	require.Contains(t, output, "Somebody has changed the arguments of this call", "the model does not take it for what it has asked for")
	require.Equal(t, []string{"POST /do/b"}, fx.did(key(edited)))

	c.answer(t, c.asked(t, denied.RunID), object{"decision": "deny", "by": "ada", "note": "not on a Sunday"})
	require.Contains(t, c.output(t, denied.RunID), "denied by ada: not on a Sunday")
	require.Contains(t, c.output(t, expired.RunID), "nobody answered in time")
	require.Zero(t, fx.count(key(denied))+fx.count(key(expired)))
	prompts := ""
	for _, call := range vendor.Calls() {
		for _, message := range call.Request.Messages {
			prompts += message.Text
		}
	}
	require.Contains(t, prompts, "APPROVAL_DENIED: denied by ada: not on a Sunday", "the vendor was sent it")
	require.Contains(t, prompts, "APPROVAL_EXPIRED")

	for run, outcome := range map[string]agent.ApprovalState{approved.RunID: agent.ApprovalApproved, edited.RunID: agent.ApprovalApproved,
		denied.RunID: agent.ApprovalDenied, expired.RunID: agent.ApprovalExpired} {
		frames := c.Finished(t, run)
		require.Equal(t, 1, stacktest.Count(frames, agent.ApprovalRequested))
		require.Equal(t, 1, stacktest.Count(frames, agent.ApprovalResolved))
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/approvals?state="+string(outcome)+"&run_id="+run, nil, &list))
		require.Len(t, list.Approvals, 1)
		s.RequireSound(t, c.Client, run, 1)
	}
}

// TestApprovalOutlivesEverything kills every process while somebody is waited for, Postgres and Temporal too. All of it starts
// again, the answer comes, and the call takes place, once.
func TestApprovalOutlivesEverything(t *testing.T) {
	t.Parallel()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, poster{fx})
	pg := pgtest.Server(t, map[string]string{"synchronous_commit": "on"})
	s := &servers{stacktest.StartServersOn(t, pg.URL(), approvalConfig(vendor))}
	worker := s.StartWorker(t)
	api, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "/do/a"})
	question := c.asked(t, run.RunID)
	worker.Kill(t)
	api.Kill(t)
	require.NoError(t, syscall.Kill(s.Temporal.PID(), syscall.SIGKILL))
	<-s.Temporal.Done()
	require.NoError(t, s.Temporal.Stop(t.Context())) // nothing is left to stop; its data folder is free again
	pg.Kill(t)

	pg.Start(t)
	s.StartTemporal(t)
	s.StartWorker(t)
	_, c = s.startAPI(t, 0)
	require.Equal(t, question, c.asked(t, run.RunID))
	c.answer(t, question, object{"decision": "approve", "by": "ada"})
	require.Contains(t, c.output(t, run.RunID), `"did":"a"`)
	require.Equal(t, []string{"POST /do/a"}, fx.did(run.RunID+"/main#1.0"))
	require.Len(t, vendor.Calls(), 2, "no turn was repeated")
	c.Finished(t, run.RunID)
	s.RequireSound(t, c.Client, run.RunID, 1)
}

// TestApprovalIsAnsweredWhileTemporalIsAway: the answer is the ledger's to take, and the run hears of it when Temporal is back.
func TestApprovalIsAnsweredWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, poster{fx})
	s := startServers(t, approvalConfig(vendor))
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	approved, denied := c.Post(t, object{"input": "/do/a"}), c.Post(t, object{"input": "/do/b"})
	first, second := c.asked(t, approved.RunID), c.asked(t, denied.RunID)
	require.NoError(t, s.Temporal.Stop(t.Context()))
	c.answer(t, first, object{"decision": "approve", "by": "ada"})
	c.answer(t, second, object{"decision": "deny", "by": "ada", "note": "no"})
	require.Equal(t, http.StatusConflict, c.Call(t, http.MethodPost, first.ApprovalURL, object{"decision": "deny"}, nil))
	worker.Kill(t) // whoever was to deliver the news is gone too
	s.StartTemporal(t)
	s.StartWorker(t)
	require.Contains(t, c.output(t, approved.RunID), `"did":"a"`)
	require.Contains(t, c.output(t, denied.RunID), "denied by ada: no")
	require.Equal(t, []string{"POST /do/a"}, fx.did(approved.RunID+"/main#1.0"))
	require.Zero(t, fx.count(denied.RunID+"/main#1.0"))
	s.RequireSound(t, c.Client, approved.RunID, 1)
}

// TestWorkerIsKilledDuringAnApprovedCall: what was approved and may have taken place is in doubt, and nobody is asked again.
func TestWorkerIsKilledDuringAnApprovedCall(t *testing.T) {
	t.Parallel()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, poster{fx})
	s := startServers(t, approvalConfig(vendor))
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "/do/a"})
	c.answer(t, c.asked(t, run.RunID), object{"decision": "approve", "arguments": object{"method": "POST", "url": fx.URL + "/hold/b"}})
	require.Equal(t, run.RunID+"/main#1.0", fx.held(t))
	worker.Kill(t)
	fx.abandoned(t)
	s.StartWorker(t)
	doubts := c.inDoubt(t, "/api/v1/agent/runs/"+run.RunID)
	require.Len(t, doubts, 1)
	fx.letGo()
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, doubts[0].ResolveURL, object{"outcome": "retry", "by": "ada"}, nil))
	require.Contains(t, c.output(t, run.RunID), `"did":"b"`)
	require.Equal(t, []string{"POST /hold/b"}, fx.did(run.RunID+"/main#1.0"), "with the arguments that were approved")
	require.Equal(t, 1, stacktest.Count(c.Finished(t, run.RunID), agent.ApprovalRequested))
	s.RequireSound(t, c.Client, run.RunID, 1)
}
