package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func cancelPath(run agent.Run) string { return "/api/v1/agent/runs/" + run.RunID + "/cancel" }

func TestCancelRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	path := cancelPath(history(b))
	requireProblem(t, b.do("POST", path, `{"why":"x"}`), 400, "invalid-body", "/why")
	requireProblem(t, b.do("POST", path, `{"reason":7}`), 422, "invalid-request", "/reason")
	requireProblem(t, b.do("POST", path, `{"reason":"`+strings.Repeat("x", 1001)+`"}`), 422, "invalid-request", "/reason")
	for _, wait := range []string{"-1", "60.5", "1e9"} {
		requireProblem(t, b.do("POST", path, `{"wait":`+wait+`}`), 422, "invalid-request", "/wait")
	}
	requireProblem(t, b.do("POST", path, `{"wait":"5s"}`), 422, "invalid-request", "/wait")
	requireProblem(t, b.do("POST", path, "", "Origin: https://evil.example"), 403, "foreign-origin", "")
	require.Empty(t, b.ledger.cancels)
}

// stopped are commands of every outcome.
func stopped() []agent.StoppedCommand {
	command := func(id string, outcome agent.StopOutcome) agent.StoppedCommand {
		return agent.StoppedCommand{CommandID: id, NodeID: id, Kind: agent.ToolCommand, Tool: "http_request", Effect: agent.External, Outcome: outcome}
	}
	return []agent.StoppedCommand{command("a", agent.StopAborted), command("b", agent.StopCommitted), command("c", agent.StopInDoubt),
		command("d", agent.StopFailed), command("e", agent.StopOpen), command("f", agent.NeverStarted),
		{CommandID: "g", NodeID: "g", Outcome: agent.NeverStarted}}
}

func TestCancelAnswersWhenTheRunHasEnded(t *testing.T) {
	t.Parallel()
	for _, status := range []agent.Status{agent.Cancelled, agent.Completed, agent.FailedStatus} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			run := history(b)
			b.ledger.stopped = stopped()
			start := time.Now()
			body := `{"reason":"enough"}`
			done := b.post(t.Context(), cancelPath(run), body)
			synctest.Wait()
			require.Empty(t, done)
			b.ledger.end(run.RunID, status)
			w := <-done
			require.Zero(t, time.Since(start), "by a wake-up")
			b.validate(request("POST", cancelPath(run), body), []byte(body), w)
			require.Equal(t, 200, w.Code)
			require.Empty(t, w.Header().Get("Location"))
			answer := document[cancelledRun](t, w)
			require.Equal(t, status, answer.Status)
			require.Equal(t, stopped(), answer.Commands)
			require.Equal(t, []string{"local local enough"}, b.ledger.cancels)
			require.Empty(t, b.ledger.subscribers)
		})
	}
}

func TestCancelAnswersAfterWait(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]time.Duration{
		"":                           5 * time.Second,
		`{}`:                         5 * time.Second,
		`{"wait":0}`:                 0,
		`{"wait":0.25}`:              250 * time.Millisecond,
		`{"wait":60,"reason":"why"}`: 60 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			run := history(b)
			start := time.Now()
			w := b.do("POST", cancelPath(run), body)
			require.Equal(t, want, time.Since(start))
			require.Equal(t, 202, w.Code)
			require.Equal(t, "/api/v1/agent/runs/"+run.RunID, w.Header().Get("Location"))
			answer := document[cancelledRun](t, w)
			require.Equal(t, agent.Cancelling, answer.Status)
			require.Equal(t, []agent.StoppedCommand{}, answer.Commands)
		})
	}
}

// A script that asks again, since its first answer was lost, learns the same. What has ended otherwise was not cancelled.
func TestCancelTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	require.Equal(t, 202, b.do("POST", cancelPath(run), `{"wait":0}`).Code)
	require.Equal(t, 202, b.do("POST", cancelPath(run), `{"wait":0}`).Code)
	b.ledger.end(run.RunID, agent.Cancelled)
	b.ledger.stopped = stopped()
	for range 2 {
		w := b.do("POST", cancelPath(run), `{"reason":"another"}`)
		require.Equal(t, 200, w.Code)
		require.Equal(t, stopped(), document[cancelledRun](t, w).Commands)
	}
	for _, status := range []agent.Status{agent.Completed, agent.FailedStatus} {
		ended := history(b)
		b.ledger.end(ended.RunID, status)
		p := requireProblem(t, b.do("POST", cancelPath(ended), ""), http.StatusConflict, "run-ended", "")
		require.Contains(t, p.Detail, string(status))
	}
}

// Who follows a run sees its end and then the end of the stream, however the stream was opened.
func TestStreamEndsWithTheCancellation(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{
		"/api/v1/agent/run/stream": `{"input":"what is 6*7?"}`,
		"/api/agent/run/stream":    `{"input":"what is 6*7?"}`,
		"/api/v1/agent/chat":       `{"message":"what is 6*7?"}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			start := time.Now()
			twin := b.post(t.Context(), path, body)
			synctest.Wait()
			events := "/api/v1/agent/runs/" + b.lastRun() + "/events"
			follow := func(headers ...string) <-chan *httptest.ResponseRecorder {
				done := make(chan *httptest.ResponseRecorder, 1)
				go func() {
					w := httptest.NewRecorder()
					b.api.ServeHTTP(w, request("GET", events, "", append(headers, "Accept: text/event-stream")...).WithContext(t.Context()))
					done <- w
				}()
				return done
			}
			get := follow()
			synctest.Wait()
			require.Empty(t, twin)
			require.Empty(t, get)
			b.ledger.end(b.lastRun(), agent.Cancelled)
			for _, done := range []<-chan *httptest.ResponseRecorder{twin, get} {
				w := <-done
				require.Equal(t, 200, w.Code)
				frames := b.frames(w)
				require.Equal(t, "run_cancelled", frames[len(frames)-1].event)
				require.Equal(t, "3", frames[len(frames)-1].id)
			}
			require.Zero(t, time.Since(start), "by a wake-up")
			require.Equal(t, http.StatusNoContent, (<-follow("Last-Event-ID: 3")).Code)
		})
	}
}
