package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
)

// TestInDoubt kills the worker while an external effect is at work. Nobody can know whether it took place: the run waits, what
// does not depend on it goes on, and a person's answer, given over the API, lets it end.
func TestInDoubt(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	post := fx.get("pay", "/hold/pay")
	post["args"].(object)["method"] = "POST"
	run := c.Post(t, object{"input": "pay", "plan": object{"nodes": []any{
		post, fx.get("receipt", "/do/receipt", "pay"), fx.get("other", "/do/other"),
	}}})
	require.Equal(t, run.RunID+"/pay", fx.held(t))
	worker.Kill(t)
	s.StartWorker(t)
	path := "/api/v1/agent/runs/" + run.RunID
	shown := c.inDoubt(t, path)
	require.Len(t, shown, 1)
	require.Equal(t, "http_request", shown[0].Tool)
	var list struct {
		Runs []struct {
			RunID string `json:"run_id"`
		} `json:"runs"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs?status=in_doubt", nil, &list))
	require.Len(t, list.Runs, 1)
	require.NotZero(t, fx.count(run.RunID+"/other"), "what does not depend on it went on; a GET may be repeated if its worker was lost too")

	answer := object{"outcome": "committed", "result": object{"status": 200, "json": object{"did": "pay"}}, "by": "ada", "note": "the bank shows it"}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, shown[0].ResolveURL, answer, nil))
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, shown[0].ResolveURL, answer, nil), "the same word again")
	require.Equal(t, http.StatusConflict, c.Call(t, http.MethodPost, shown[0].ResolveURL, object{"outcome": "retry"}, nil))
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.Equal(t, 1, stacktest.Count(frames, agent.CommandResolved))
	require.Equal(t, 1, fx.count(run.RunID+"/receipt"))
	require.Zero(t, fx.count(run.RunID+"/pay"), "the server never answered it, and nobody asked again")
}

// doubt is a command that waits for an answer, as GET run shows it.
type doubt struct {
	CommandID  string `json:"command_id"`
	Tool       string `json:"tool"`
	Attempt    int    `json:"attempt"`
	ResolveURL string `json:"resolve_url"`
}

// inDoubt waits until nothing of a run can go on without an answer, and returns what it waits for.
func (c *client) inDoubt(t testing.TB, path string) []doubt {
	t.Helper()
	deadline := time.Now().Add(stacktest.Patience)
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		var run struct {
			Status  agent.Status `json:"status"`
			InDoubt []doubt      `json:"in_doubt"`
		}
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, path, nil, &run))
		if run.Status == agent.InDoubt {
			return run.InDoubt
		}
		require.True(t, time.Now().Before(deadline), "the run is %s", run.Status)
		<-pause.C
	}
}
