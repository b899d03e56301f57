package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/scripted"
)

// total is how many calls were made.
func (e *effects) total() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, calls := range e.calls {
		n += calls
	}
	return n
}

// controlledRun is a run as the API shows it, with what concerns those who control it.
type controlledRun struct {
	agent.Run
	Limits        agent.Limits           `json:"limits"`
	Pause         *agent.Pause           `json:"pause"`
	AtWork        []agent.WorkingCommand `json:"at_work"`
	LimitsReached []struct {
		agent.LimitReachedData
	} `json:"limits_reached"`
}

func (c *client) control(t testing.TB, runID, what string, body object) (run controlledRun, status int) {
	t.Helper()
	status = c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+runID+"/"+what, body, &run)
	return run, status
}

func (c *client) show(t testing.TB, runID string) (run controlledRun) {
	t.Helper()
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID, nil, &run))
	return run
}

// becomes waits until a run has a status, which it keeps.
func (c *client) becomes(t testing.TB, runID string, status agent.Status) (run controlledRun) {
	t.Helper()
	c.Becomes(t, runID, status)
	return c.show(t, runID)
}

// typist is a model that asks for one call a turn, of the address that its turn has, and answers when there is none left. Each
// answer uses 50 tokens.
type typist struct {
	turns [][]string
}

func (m typist) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	turn := 0
	for _, said := range req.Messages {
		if said.Role == model.Assistant {
			turn++
		}
	}
	step := scripted.Text("all done")
	if turn < len(m.turns) {
		var calls []model.ToolCall
		for _, url := range m.turns[turn] {
			calls = append(calls, scripted.Call("http_request", object{"method": "GET", "url": url}))
		}
		step = scripted.Calls(calls...)
	}
	reply, err := scripted.Replies(step).Generate(ctx, req, emit)
	reply.Usage = model.Usage{InputTokens: 30, OutputTokens: 20}
	return reply, err
}

// controlServers are servers with an agent of which a slow tool is held at effects.
func controlServers(t testing.TB, turns func(fx *effects) [][]string) (*servers, *effects) {
	t.Helper()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, typist{turns(fx)})
	return startServers(t, fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: react, tools: [http_request], limits: {max_tool_calls: 2, max_tokens: 90}}
  strict: {mode: react, tools: [http_request], limits: {max_repeats: 2, on_limit: fail}}
  planned: {mode: plan, tools: [http_request], require_plan: true}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"]}
`, vendor.URL)), fx
}

// TestPauseSurvivesTheWorker pauses a run in the middle of a slow tool call. The call ends and is committed, nothing begins, also after
// the worker was killed and another one is there; then it goes on.
func TestPauseSurvivesTheWorker(t *testing.T) {
	t.Parallel()
	s, fx := controlServers(t, func(fx *effects) [][]string { return [][]string{{fx.URL + "/hold/a"}, {fx.URL + "/do/b"}} })
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "work", "limits": object{"max_tool_calls": 2}})
	fx.held(t)

	paused, status := c.control(t, run.RunID, "pause", object{"reason": "look at it"})
	require.Equal(t, http.StatusAccepted, status, "a command is still at work")
	require.Equal(t, agent.Paused, paused.Status)
	require.Equal(t, []string{"local", "look at it"}, []string{paused.Pause.By, paused.Pause.Reason})
	require.Len(t, paused.AtWork, 1)
	require.Equal(t, []any{"main#1.0", "http_request", 1}, []any{paused.AtWork[0].CommandID, paused.AtWork[0].Tool, paused.AtWork[0].Attempt})
	fx.letGo()
	c.ComesTo(t, run.RunID, agent.CommandCommitted)
	require.Eventually(t, func() bool {
		paused, status = c.control(t, run.RunID, "pause", object{})
		return status == http.StatusOK
	}, stacktest.Patience, stacktest.Frequency)
	require.Empty(t, paused.AtWork)
	require.Equal(t, "look at it", paused.Pause.Reason, "pausing it again changes nothing")

	worker.Kill(t)
	s.StartWorker(t)
	var page struct {
		Events []agent.Event `json:"events"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/events?profile=ledger", nil, &page))
	at := -1
	for i, e := range page.Events {
		if e.Type == agent.RunPaused {
			at = i
		}
		require.False(t, at >= 0 && e.Type == agent.CommandEmitted, "%s begins while the run is paused", e.CommandID)
	}
	require.GreaterOrEqual(t, at, 0)
	var found struct {
		Runs []controlledRun `json:"runs"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs?status=paused", nil, &found))
	require.Len(t, found.Runs, 1)

	going, status := c.control(t, run.RunID, "unpause", object{"reason": "go on"})
	require.Equal(t, http.StatusAccepted, status)
	require.Nil(t, going.Pause)
	// The run meets its token limit after two turns.
	standing := c.becomes(t, run.RunID, agent.LimitReached)
	require.Equal(t, agent.LimitTokens, standing.LimitsReached[0].Limit)
	_, status = c.control(t, run.RunID, "limits", object{"max_tokens": 1000})
	require.Equal(t, http.StatusAccepted, status)
	frames := c.Finished(t, run.RunID)
	require.Contains(t, frames[len(frames)-1].Data, "all done")
	c.Verifies(t, run.RunID)
	require.Equal(t, http.StatusConflict, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/unpause", object{}, nil))
}

// TestLimitsParkAndAreRaised has a run meet two limits at once, gives it too little, and then enough.
func TestLimitsParkAndAreRaised(t *testing.T) {
	t.Parallel()
	s, _ := controlServers(t, func(fx *effects) [][]string {
		return [][]string{{fx.URL + "/do/a", fx.URL + "/do/b", fx.URL + "/do/c"}, {fx.URL + "/do/d"}}
	})
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "work"})
	standing := c.becomes(t, run.RunID, agent.LimitReached)
	require.Len(t, standing.LimitsReached, 1)
	require.Equal(t, agent.LimitReachedData{Limit: agent.LimitToolCalls, Used: 2, Most: 2, Parked: true, Tool: "http_request"}, standing.LimitsReached[0].LimitReachedData)
	given, status := c.control(t, run.RunID, "limits", object{"max_tool_calls": 3, "reason": "one more"})
	require.Equal(t, http.StatusAccepted, status)
	require.Equal(t, 3, given.Limits.MaxToolCalls)
	require.Eventually(t, func() bool {
		standing = c.show(t, run.RunID)
		return standing.Status == agent.LimitReached && len(standing.LimitsReached) == 1 && standing.LimitsReached[0].Most == 3
	}, stacktest.Patience, stacktest.Frequency, "too little")
	_, status = c.control(t, run.RunID, "limits", object{"max_tool_calls": 9})
	require.Equal(t, http.StatusAccepted, status)
	require.Eventually(t, func() bool {
		standing = c.show(t, run.RunID)
		return standing.Status == agent.LimitReached && len(standing.LimitsReached) == 1 && standing.LimitsReached[0].Limit == agent.LimitTokens
	}, stacktest.Patience, stacktest.Frequency, "the next limit")
	_, status = c.control(t, run.RunID, "limits", object{"max_tokens": 9000})
	require.Equal(t, http.StatusAccepted, status)
	frames := c.Finished(t, run.RunID)
	require.Contains(t, frames[len(frames)-1].Data, "all done")
	c.Verifies(t, run.RunID)
}

// TestRunFailsAtALimitAndIsResumedWithMore lets a loop repeat itself until its guard fails the run.
func TestRunFailsAtALimitAndIsResumedWithMore(t *testing.T) {
	t.Parallel()
	s, fx := controlServers(t, func(fx *effects) [][]string {
		again := []string{fx.URL + "/do/same"}
		return [][]string{again, again, again}
	})
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "work", "agent": "strict"})
	frames := c.Finished(t, run.RunID)
	require.Equal(t, "run_failed", frames[len(frames)-1].Name)
	failed := c.show(t, run.RunID)
	require.Equal(t, agent.CodeLimit, failed.Error.Code)
	require.Contains(t, failed.Error.Message, "tool http_request was called 2 times with the same arguments")
	require.Equal(t, 2, fx.total(), "the third call was not made")
	c.Verifies(t, run.RunID)

	var resumed object
	require.Equal(t, http.StatusAccepted, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/resume", object{"limits": object{"max_repeats": 5}}, &resumed))
	done := c.becomes(t, run.RunID, agent.Completed)
	require.Equal(t, 5, done.Limits.MaxRepeats)
	require.Equal(t, 3, fx.total(), "what is on record was not called again")
	c.Verifies(t, run.RunID)
}

// TestAgentThatHasToBeGivenItsPlan refuses a run without one at once, and takes one with it.
func TestAgentThatHasToBeGivenItsPlan(t *testing.T) {
	t.Parallel()
	s, fx := controlServers(t, func(*effects) [][]string { return nil })
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	var refused object
	require.Equal(t, http.StatusUnprocessableEntity, c.Call(t, http.MethodPost, "/api/v1/agent/run", object{"input": "x", "agent": "planned"}, &refused))
	require.Equal(t, []any{"/problems/plan-required", "/plan"}, []any{refused["type"], refused["pointer"]})
	plan := object{"nodes": []any{object{"id": "a", "kind": "tool", "tool": "http_request", "args": object{"method": "GET", "url": fx.URL + "/do/a"}}}}
	run := c.Post(t, object{"agent": "planned", "plan": plan, "input": "x"})
	frames := c.Finished(t, run.RunID)
	require.Equal(t, "run_completed", frames[len(frames)-1].Name)
	require.False(t, strings.Contains(frames[len(frames)-1].Data, "error"))
}
