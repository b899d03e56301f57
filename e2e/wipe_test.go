package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model/modeltest"
)

// wipeConfig has a planner that is offline, and a loop whose model is at a server.
const wipeConfig = `
models:
  default: {provider: scripted}
  vendor: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: plan, tools: ["*"], limits: {max_parallel: 4}}
  looper: {mode: react, model: vendor, tools: [http_request]}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"]}
`

// wipeTemporal kills the server, deletes all that it kept, and starts a new one in its place when the test says so.
func (s *servers) wipeTemporal(t testing.TB) (startNew func()) {
	t.Helper()
	require.NoError(t, s.Temporal.Stop(context.WithoutCancel(t.Context())))
	kept, err := filepath.Glob(filepath.Join(s.TemporalDir, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, kept)
	for _, path := range kept {
		require.NoError(t, os.RemoveAll(path))
	}
	return func() { s.StartTemporal(t) }
}

// Recovery when Temporal is lost with its database while runs of all shapes are in flight, next to a worker that stays alive: every
// run finishes, and no command that is committed runs again.
func TestRecoverAfterTemporalWasLost(t *testing.T) {
	t.Parallel()
	early, late := startEffects(t), startEffects(t) // what is at work is answered before the recovery, or after it
	vendor := modeltest.NewServer(t, turns{early})
	s := startServers(t, fmt.Sprintf(wipeConfig, vendor.URL))
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	nodes := func(n ...any) object { return object{"input": "go", "plan": object{"nodes": n}} }
	loop := func(urls ...string) object {
		return object{"agent": "looper", "input": strings.Join(urls, " ")}
	}

	completed := c.Post(t, nodes(early.send("a", "/do/a")))
	c.Finished(t, completed.RunID)
	failed := c.Post(t, nodes(early.send("a", "/broken/a")))
	c.Finished(t, failed.RunID)
	doubtful := c.Post(t, nodes(early.send("a", "/do/a"), early.send("b", "/lost/b", "a"), early.send("c", "/do/c", "b")))
	require.Len(t, c.inDoubt(t, "/api/v1/agent/runs/"+doubtful.RunID), 1)

	inFlight := map[string]agent.Run{
		"a plan, early":     c.Post(t, nodes(early.send("a", "/do/a"), early.get("b", "/hold/b", "a"), early.send("c", "/do/c", "b"))),
		"a plan, late":      c.Post(t, nodes(late.send("a", "/do/a"), late.get("b", "/hold/b", "a"), late.send("c", "/do/c", "b"))),
		"side by side":      c.Post(t, nodes(late.send("a", "/do/a"), early.get("b", "/hold/b"), late.get("c", "/hold/c"), late.send("d", "/do/d", "a", "b", "c"))),
		"a loop, early":     c.Post(t, loop(early.URL+"/do/1", early.URL+"/hold/2", early.URL+"/do/3")),
		"a loop, late":      c.Post(t, loop(late.URL+"/do/1", late.URL+"/do/2", late.URL+"/hold/3", late.URL+"/do/4")),
		"an effect, early":  c.Post(t, nodes(early.send("a", "/hold/a"), early.send("b", "/do/b", "a"))),
		"an effect, late":   c.Post(t, nodes(late.send("a", "/hold/a"), late.send("b", "/do/b", "a"))),
		"a cancelled one":   c.Post(t, nodes(late.get("a", "/hold/a"))),
		"a plan of its own": c.Post(t, object{"input": question + " " + late.URL + "/hold/own"}),
	}
	heldEarly := []string{early.held(t), early.held(t), early.held(t), early.held(t)}
	for range 6 {
		late.held(t)
	}
	for _, id := range []string{inFlight["a plan, early"].RunID + "/b", inFlight["a loop, early"].RunID + "/main#2.0", inFlight["an effect, early"].RunID + "/a"} {
		require.Contains(t, heldEarly, id)
	}

	startNew := s.wipeTemporal(t)
	cancelled := inFlight["a cancelled one"]
	require.Equal(t, http.StatusAccepted, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+cancelled.RunID+"/cancel", object{"wait": 0}, nil))
	queued := c.Post(t, nodes(early.send("a", "/do/a")))
	early.letGo()
	c.committed(t, inFlight["a plan, early"].RunID, "b") // the worker needs no Temporal to commit
	c.committed(t, inFlight["side by side"].RunID, "b")
	c.committed(t, inFlight["a loop, early"].RunID, "main#2.0")
	c.committed(t, inFlight["an effect, early"].RunID, "a")
	c.ComesTo(t, cancelled.RunID, agent.CommandAbortType)
	inFlight["in doubt before"] = doubtful
	done, last := map[string]int{}, map[string]int64{}
	for _, run := range inFlight {
		last[run.RunID] = c.lastSequence(t, run.RunID)
		for _, call := range c.tools(t, run.RunID) {
			if key := run.RunID + "/" + call.CommandID; call.State == agent.Committed {
				done[key] = seen(key, early, late)
				require.Equal(t, 1, done[key], key)
			}
		}
	}
	require.Greater(t, len(done), 8)

	startNew()
	lines, code := s.Runledger(t, "recover", "--dry-run")
	require.Zero(t, code, lines)
	for _, run := range inFlight {
		require.Equal(t, last[run.RunID], c.lastSequence(t, run.RunID), "a dry run writes nothing")
	}
	lines, code = s.Runledger(t, "recover")
	require.Zero(t, code, lines)
	said := strings.Join(lines, "\n")
	for name, run := range inFlight {
		what := "resumed in epoch 2 from step "
		if name == "a cancelled one" {
			what = "ended as cancelled: "
		}
		require.Contains(t, said, run.RunID+"  "+what, name)
	}
	require.NotContains(t, said, completed.RunID)
	require.NotContains(t, said, failed.RunID, "it ended by itself")
	require.Regexp(t, `: 9 resumed, 1 cancelled, [01] left$`, lines[len(lines)-1], "the one whose start waited in the outbox is left")
	lines, code = s.Runledger(t, "recover")
	require.Zero(t, code, lines)
	require.Regexp(t, `: 0 resumed, 0 cancelled, \d+ left$`, lines[len(lines)-1], "once is enough")

	late.letGo()
	inFlight["queued"] = queued
	for name, run := range inFlight {
		want := agent.RunCompleted
		if name == "a cancelled one" {
			want = agent.RunCancelled
		}
		end := c.bringToItsEnd(t, run.RunID, early, late)
		require.Equal(t, want, end.Type, "%s: %s", name, end.Data)
		c.Finished(t, run.RunID)
		for _, call := range c.tools(t, run.RunID) {
			if call.Effect == agent.External {
				require.LessOrEqual(t, seen(run.RunID+"/"+call.CommandID, early, late), 1, "%s: %s", name, call.CommandID)
			}
		}
		if name != "a cancelled one" {
			s.RequireSound(t, c.Client, run.RunID, 1) // the first one's history is gone
		}
	}
	for key, n := range done {
		require.Equal(t, n, seen(key, early, late), "%s is committed, and was done again", key)
	}
}

// committed follows a run until a command of it is committed.
func (c *client) committed(t testing.TB, runID, commandID string) {
	t.Helper()
	c.FollowTo(t, runID, []agent.EventType{agent.CommandCommitted}, func(e agent.Event) bool { return e.CommandID == commandID })
}

// bringToItsEnd waits for the end of a run, and answers for what is in doubt on the way, by what the servers have seen.
func (c *client) bringToItsEnd(t testing.TB, runID string, fx ...*effects) agent.Event {
	t.Helper()
	return c.FollowTo(t, runID, append(slices.Clone(stacktest.Ends), agent.CommandDoubtType), func(e agent.Event) bool {
		if e.Type != agent.CommandDoubtType {
			return e.Type.Terminal()
		}
		path := "/api/v1/agent/runs/" + runID + "/commands/" + url.PathEscape(e.CommandID)
		var command agent.Command
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, path, nil, &command))
		if command.State == agent.CommandInDoubt {
			answer := object{"outcome": "retry", "by": "operator"}
			if seen(runID+"/"+e.CommandID, fx...) > 0 {
				answer = object{"outcome": "committed", "result": object{"status": 200}, "by": "operator"}
			}
			require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, path+"/resolve", answer, nil))
		}
		return false
	})
}

// seen counts what servers have done under a key.
func seen(key string, fx ...*effects) (n int) {
	for _, server := range fx {
		n += server.count(key)
	}
	return n
}

// tools lists the tool calls of a run.
func (c *client) tools(t testing.TB, runID string) (calls []agent.Command) {
	t.Helper()
	var list struct{ Commands []agent.Command }
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/commands", nil, &list))
	return slices.DeleteFunc(list.Commands, func(call agent.Command) bool { return call.Tool != "http_request" })
}

func (c *client) lastSequence(t testing.TB, runID string) int64 {
	t.Helper()
	var run struct {
		Last int64 `json:"last_sequence"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID, nil, &run))
	return run.Last
}
