package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
)

func controlPath(run agent.Run, what string) string {
	return "/api/v1/agent/runs/" + run.RunID + "/" + what
}

func TestPauseAndUnpause(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.atWork = []agent.WorkingCommand{{CommandID: "main#1.0", NodeID: "main", Kind: agent.ToolCommand, Tool: "calculator",
		Effect: agent.Deterministic, Attempt: 2, Deadline: time.Unix(1e9, 0).UTC()}}
	w := b.do("POST", controlPath(run, "pause"), `{"reason":"look"}`)
	require.Equal(t, 202, w.Code, "%s", w.Body)
	require.Equal(t, runPath(run.RunID), w.Header().Get("Location"))
	paused := document[pausedRun](t, w)
	require.Equal(t, agent.Paused, paused.Status)
	require.Equal(t, []string{"local", "look"}, []string{paused.Pause.By, paused.Pause.Reason})
	require.Equal(t, b.ledger.atWork, paused.AtWork)

	b.ledger.atWork = nil
	w = b.do("POST", controlPath(run, "pause"), "")
	require.Equal(t, 200, w.Code, "nothing is at work any more")
	require.Contains(t, w.Body.String(), `"at_work":[]`)
	require.Equal(t, "look", document[pausedRun](t, w).Pause.Reason)
	require.Contains(t, b.do("GET", runPath(run.RunID), "").Body.String(), `"pause":{"by":"local","reason":"look","since":"`)

	w = b.do("POST", controlPath(run, "unpause"), `{"reason":"seen"}`)
	require.Equal(t, 202, w.Code)
	require.NotContains(t, w.Body.String(), `"pause":`)
	requireProblem(t, b.do("POST", controlPath(run, "unpause"), ""), 409, "run-not-paused", "")
	require.Equal(t, []string{"pause local local look", "pause local local ", "unpause local local seen", "unpause local local "}, b.ledger.controls)
	b.ledger.end(run.RunID, agent.Completed)
	requireProblem(t, b.do("POST", controlPath(run, "pause"), ""), 409, "run-ended", "")
}

func TestControlRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	for _, what := range []string{"pause", "unpause", "limits", "resume"} {
		requireProblem(t, b.do("POST", controlPath(run, what), `{"why":"x"}`), 400, "invalid-body", "/why")
		requireProblem(t, b.do("POST", controlPath(run, what), `{"reason":"`+strings.Repeat("x", 1001)+`"}`), 422, "invalid-request", "/reason")
	}
	for body, pointer := range map[string]string{`{"max_steps":-1}`: "/max_steps", `{"max_tokens":-1}`: "/max_tokens", `{"on_limit":"stop"}`: "/on_limit",
		`{"timeout":"-1s"}`: "/timeout", `{"timeout":5}`: "/timeout", `{"max_repeats":1.5}`: "/max_repeats", `{}`: "", `{"reason":"x"}`: ""} {
		requireProblem(t, b.do("POST", controlPath(run, "limits"), body), 422, "invalid-request", pointer)
	}
	requireProblem(t, b.do("POST", controlPath(run, "resume"), `{"limits":{"max_tool_calls":-1}}`), 422, "invalid-request", "/limits/max_tool_calls")
	require.Empty(t, b.ledger.controls)
}

func TestLimitsOfARun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.write(run.RunID, agent.Event{Type: agent.LimitReachedType}, agent.LimitReachedData{Limit: agent.LimitTokens, Used: 150, Most: 100, Parked: true})
	b.ledger.write(run.RunID, agent.Event{Type: agent.LimitReachedType}, agent.LimitReachedData{Limit: agent.LimitToolCalls, Used: 3, Most: 3, Parked: true, Tool: "calculator"})
	met := func() (names []agent.LimitName) {
		for _, m := range document[runObject](t, b.do("GET", runPath(run.RunID), "")).LimitsReached {
			names = append(names, m.Limit)
		}
		return names
	}
	require.Equal(t, []agent.LimitName{agent.LimitTokens, agent.LimitToolCalls}, met())
	w := b.do("POST", controlPath(run, "limits"), `{"max_tokens":200,"timeout":"90m","reason":"more"}`)
	require.Equal(t, 202, w.Code, "%s", w.Body)
	given := document[runObject](t, w)
	require.Equal(t, agent.Limits{MaxTokens: 200, Timeout: agent.Duration(90 * time.Minute)}.Or(run.Definition.Limits), given.Limits)
	require.Equal(t, []string{"limits local local more"}, b.ledger.controls)
	b.ledger.write(run.RunID, agent.Event{Type: agent.LimitsChanged}, agent.LimitsChangedData{Limits: agent.Limits{MaxTokens: 200, MaxToolCalls: 3}})
	require.Equal(t, []agent.LimitName{agent.LimitToolCalls}, met(), "the other one was raised beyond what is used")
	b.ledger.write(run.RunID, agent.Event{Type: agent.LimitsChanged}, agent.LimitsChangedData{Limits: agent.Limits{MaxTokens: 200, MaxToolCalls: 4}})
	require.Empty(t, met())

	b.ledger.end(run.RunID, agent.FailedStatus)
	requireProblem(t, b.do("POST", controlPath(run, "limits"), `{"max_tokens":200}`), 409, "run-ended", "")
	w = b.do("POST", controlPath(run, "resume"), `{"limits":{"max_tool_calls":9}}`)
	require.Equal(t, 202, w.Code, "%s", w.Body)
	require.Equal(t, 9, document[runObject](t, b.do("GET", runPath(run.RunID), "")).Limits.MaxToolCalls)
}

// Users give a run what its agent has by the configuration; more is for operators.
func TestWhoMayGiveMore(t *testing.T) {
	t.Parallel()
	b := newBench(t, withTokens, func(c *Config) {
		c.Agents[0].Limits = agent.Limits{MaxTokens: 100}
	})
	run := b.ledger.seed(t, "a", "")
	user, operator := bearer("a", auth.User), bearer("a", auth.Operator)
	require.Equal(t, 202, b.do("POST", controlPath(run, "limits"), `{"max_tokens":100,"max_steps":50,"max_tool_calls":7}`, user).Code)
	for _, body := range []string{`{"max_tokens":101}`, `{"max_steps":51}`, `{"timeout":"61m"}`, `{"max_repeats":11}`, `{"max_parallel":9}`} {
		p := requireProblem(t, b.do("POST", controlPath(run, "limits"), body, user), 403, "operator-role-needed", "")
		require.Contains(t, p.Detail, "agent default has ")
		require.Equal(t, http.StatusAccepted, b.do("POST", controlPath(run, "limits"), body, operator).Code)
	}
	b.ledger.end(run.RunID, agent.FailedStatus)
	requireProblem(t, b.do("POST", controlPath(run, "resume"), `{"limits":{"max_tokens":101}}`, user), 403, "operator-role-needed", "")
	require.Equal(t, 202, b.do("POST", controlPath(run, "resume"), `{"limits":{"max_tokens":101}}`, operator).Code)
}

func TestRequestTightensItsAgentsLimits(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.Agents[0].Limits = agent.Limits{MaxTokens: 100, MaxRepeats: 4} })
	for body, pointer := range map[string]string{`{"max_tokens":101}`: "/limits/max_tokens", `{"max_repeats":5}`: "/limits/max_repeats",
		`{"on_limit":"never"}`: "/limits/on_limit", `{"max_tool_calls":-1}`: "/limits/max_tool_calls"} {
		requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0,"limits":`+body+`}`), 422, "invalid-request", pointer)
	}
	w := b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0,"limits":{"max_tokens":50,"max_tool_calls":1000,"on_limit":"fail"}}`)
	require.Equal(t, 202, w.Code, "%s", w.Body)
	require.Equal(t, agent.Limits{MaxTokens: 50, MaxToolCalls: 1000, OnLimit: agent.OnLimitFail, MaxRepeats: 4}.Or(agent.DefaultLimits()), b.ledger.accepted[0].Run.Definition.Limits)
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"limits":{"max_steps":2},`+planWith(3)[1:]), 422, "invalid-plan", "/plan/nodes")
}

func TestAgentThatHasToBeGivenItsPlan(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.Agents[0].RequirePlan = true })
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x"}`), 422, "plan-required", "/plan")
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","mode":"react"}`), 422, "plan-required", "/plan")
	requireProblem(t, b.do("POST", "/api/v1/agent/chat", `{"message":"x"}`), 422, "plan-required", "/agent")
	require.Empty(t, b.ledger.accepted)
	require.Equal(t, 202, b.do("POST", "/api/v1/agent/run", `{"wait":0,`+planWith(1)[1:]).Code)
	require.True(t, b.ledger.accepted[0].Run.Definition.RequirePlan)
	require.Contains(t, b.do("GET", "/api/v1/agent/agents", "").Body.String(), `"require_plan":true`)
}
