package api

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestRunStream(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/agent/run/stream", "/api/agent/run/stream"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			const body = `{"input":"what is 6*7?"}`
			done := b.post(t.Context(), path+"?profile=ledger", body)
			synctest.Wait()
			id := b.lastRun()
			b.ledger.write(id, agent.Event{Type: agent.PlanStarted}, agent.PlanStartedData{Source: "planner"})
			b.ledger.end(id, agent.FailedStatus)
			w := <-done
			b.validate(request("POST", path, body), []byte(body), w)
			require.Equal(t, 200, w.Code)
			require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
			require.Equal(t, "no-cache, no-transform", w.Header().Get("Cache-Control"))
			require.Equal(t, "no", w.Header().Get("X-Accel-Buffering"))
			require.Equal(t, "/api/v1/agent/runs/"+id+"/events?profile=ledger", w.Header().Get("Content-Location"))
			frames := b.frames(w)
			require.Equal(t, []string{"run_started", "message_added", "plan_started", "run_failed"}, names(frames))
			require.Equal(t, []string{"1", "2", "3", "4"}, ids(frames))
		})
	}
}

func TestStreamOfASecondRunBeginsWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.ledger.seed(t, "local", "")
		done := b.post(t.Context(), "/api/v1/agent/run/stream", `{"input":"x","conversation_id":"`+first.ConversationID+`"}`, "Last-Event-ID: 1")
		synctest.Wait()
		b.ledger.end(first.RunID, agent.Completed)
		b.ledger.end(b.lastRun(), agent.Completed)
		require.Equal(t, []string{"3", "4", "6"}, ids(b.frames(<-done)), "side by side, and a position says nothing of a new run")
	})
}

func TestChat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		const body = `{"message":"hello","agent":"default"}`
		done := b.post(t.Context(), "/api/v1/agent/chat", body, "Idempotency-Key: k")
		synctest.Wait()
		a := b.ledger.accepted[0]
		require.Equal(t, agent.ModeReact, a.Run.Definition.Mode)
		require.Equal(t, agent.ReactPlan(), a.Plan)
		require.Equal(t, "hello", a.Run.Input)
		require.Equal(t, agent.Enqueue, a.Strategy, "unless said otherwise")
		require.True(t, a.NewConversation)

		second := `{"message":"again","conversation_id":"` + a.Run.ConversationID + `"}`
		require.Equal(t, a.Run.RunID, requireProblem(t, b.do("POST", "/api/v1/agent/chat", strings.Replace(second, "}", `,"strategy":"reject"}`, 1)), 409, "run-open", "").RunID)
		p := requireProblem(t, b.do("POST", "/api/v1/agent/chat", strings.Replace(second, "}", `,"strategy":"steer"}`, 1)), 422, "steer-unsupported", "/strategy")
		require.Equal(t, a.Run.RunID, p.RunID)
		again := b.post(t.Context(), "/api/v1/agent/chat", body, "Idempotency-Key: k") // the same message is the same run, at work or not
		synctest.Wait()
		b.ledger.end(a.Run.RunID, agent.Completed)
		for _, w := range []*httptest.ResponseRecorder{<-done, <-again} {
			b.validate(request("POST", "/api/v1/agent/chat", body), []byte(body), w)
			require.Equal(t, "/api/v1/agent/runs/"+a.Run.RunID+"/events", w.Header().Get("Content-Location"))
			require.Equal(t, []string{"run_started", "message_added", "run_completed"}, names(b.frames(w)))
		}
		done = b.post(t.Context(), "/api/v1/agent/chat", second)
		synctest.Wait()
		b.ledger.end(b.lastRun(), agent.Completed)
		require.Equal(t, []string{"4", "5", "6"}, ids(b.frames(<-done)))
	})
}

// A message that comes while another is being answered waits: its stream too, which then shows it from its first event.
func TestChatQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.post(t.Context(), "/api/v1/agent/chat", `{"message":"one"}`)
		synctest.Wait()
		at := b.ledger.accepted[0].Run
		second := b.post(t.Context(), "/api/v1/agent/chat", `{"message":"two","conversation_id":"`+at.ConversationID+`"}`)
		synctest.Wait()
		waits := b.lastRun()
		w := b.do("GET", "/api/v1/agent/runs/"+waits, "")
		require.Equal(t, []agent.RunAhead{{RunID: at.RunID, Status: agent.Queued}}, document[runObject](t, w).QueuedBehind)
		require.Equal(t, int64(2), document[runObject](t, w).LastSequence, "of what it has seen, not of an event that it has")
		require.Equal(t, 200, b.do("GET", "/api/v1/agent/runs/"+waits+"/trace", "").Code)
		require.Equal(t, 200, b.do("GET", "/api/v1/agent/runs/"+waits+"/replay-context", "").Code)
		idle := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			idle <- b.do("GET", "/api/v1/agent/conversations/"+at.ConversationID+"/events?until=idle", "", "Accept: text/event-stream")
		}()
		synctest.Wait()

		b.ledger.end(at.RunID, agent.Completed)
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, ids(b.frames(<-first)))
		require.Empty(t, second)
		require.Empty(t, idle, "one is queued")
		b.ledger.release(waits)
		synctest.Wait()
		b.ledger.end(waits, agent.Completed)
		require.Equal(t, []string{"4", "5", "6"}, ids(b.frames(<-second)))
		require.Equal(t, []string{"1", "2", "3", "4", "5", "6"}, ids(b.frames(<-idle)))
		require.Empty(t, document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+waits, "")).QueuedBehind)
	})
}

// Strategies are for runs of any kind; one that is named goes with the run as it is.
func TestRunsTakeAStrategy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, s := range []agent.Strategy{agent.Reject, agent.Enqueue, agent.Interrupt, agent.Steer} {
		body := `{"input":"x","wait":0,"strategy":"` + string(s) + `"}`
		require.Equal(t, 202, b.do("POST", "/api/v1/agent/run", body).Code)
		require.Equal(t, s, b.ledger.accepted[len(b.ledger.accepted)-1].Strategy)
	}
	require.Equal(t, 202, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0,"agent":"default","limits":{"max_steps":3}}`).Code)
	named := b.ledger.accepted[len(b.ledger.accepted)-1]
	require.Equal(t, "default", named.Agent) // the ledger refuses to steer a run of another agent, or within other limits
	require.True(t, named.OwnLimits)
	require.Empty(t, b.ledger.accepted[0].Agent)
	require.False(t, b.ledger.accepted[0].OwnLimits)
	requireProblem(t, b.do("POST", "/api/v1/agent/run", `{"input":"x","strategy":"race"}`), 422, "invalid-request", "/strategy")
	at := b.ledger.accepted[0].Run
	p := requireProblem(t, b.do("POST", "/api/v1/agent/run/stream", `{"input":"x","strategy":"reject","conversation_id":"`+at.ConversationID+`"}`), 409, "run-open", "")
	require.Equal(t, at.RunID, p.RunID)
}

func TestBadChat(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		status        int
		kind, pointer string
	}{
		``:                                      {422, "invalid-request", "/message"},
		`{"message":" "}`:                       {422, "invalid-request", "/message"},
		`{"message":"x","strategy":"race"}`:     {422, "invalid-request", "/strategy"},
		`{"message":"x","conversation_id":"7"}`: {422, "invalid-request", "/conversation_id"},
		`{"message":"x","agent":"nobody"}`:      {422, "unknown-agent", "/agent"},
		`{"message":7}`:                         {422, "invalid-request", "/message"},
		`{"input":"x"}`:                         {400, "invalid-body", "/input"},
		`{"message":"x","wait":1}`:              {400, "invalid-body", "/wait"},
		`{"message":"\u0000"}`:                  {422, "invalid-request", "/message"},
		`{"message":`:                           {400, "malformed-json", ""},
	} {
		b := newBench(t)
		requireProblem(t, b.do("POST", "/api/v1/agent/chat", body), want.status, want.kind, want.pointer)
		require.Empty(t, b.ledger.accepted)
	}
}

func TestStreamOfAFinishedRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.end(run.RunID, agent.Completed)
	path := "/api/v1/agent/runs/" + run.RunID + "/events"
	const stream = "Accept: text/event-stream"
	whole := b.frames(b.do("GET", path, "", stream))
	require.Len(t, whole, 22)
	require.Equal(t, []string{"run_started", "message_added", "plan_started", "command_emitted", "command_committed", "plan_created", "step_started",
		"tool_invoked", "attempt_discarded", "tool_completed", "step_completed", "checkpoint_saved", "step_started", "tool_invoked", "command_failed",
		"step_failed", "step_started", "command_emitted", "chat_completed", "step_completed", "step_started", "run_completed"}, names(whole))
	for _, from := range []struct{ query, header string }{{"", "Last-Event-ID: 3"}, {"?after=3", ""}, {"?from_sequence=4", ""}, {"?from_sequence=20", "Last-Event-ID: 3"}} {
		require.Equal(t, whole[3:], b.frames(b.do("GET", path+from.query, "", stream, from.header)), "byte for byte")
	}
	for _, from := range []struct{ query, header string }{{"", "Last-Event-ID: 22"}, {"?after=22", ""}, {"?from_sequence=23", ""}} {
		w := b.do("GET", path+from.query, "", stream, from.header)
		require.Equal(t, 204, w.Code, "an EventSource is told to stop")
		require.Zero(t, w.Body.Len())
	}
	require.Equal(t, "Accept", b.do("GET", path, "").Header().Get("Vary"))
}

func TestConversationStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.end(run.RunID, agent.Completed)
	path := "/api/v1/agent/conversations/" + run.ConversationID + "/events?until=idle"
	const stream = "Accept: text/event-stream"
	require.Len(t, b.frames(b.do("GET", path, "", stream)), 22)
	require.Equal(t, 204, b.do("GET", path, "", stream, "Last-Event-ID: 22").Code)
}

func TestWhoWantsAStream(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/event-stream": true, "text/event-stream, */*": true,
		"application/json, text/event-stream": true, "application/json, text/event-stream;q=0.5": false,
		"text/event-stream;q=0": false, "TEXT/EVENT-STREAM": true, "text/event-stream;q=x": false, ";;": false,
	} {
		require.Equal(t, want, wantsStream(http.Header{"Accept": {accept}}), accept)
	}
}

func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxStreams = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		done := b.post(ctx, "/api/v1/agent/run/stream", `{"input":"x"}`)
		synctest.Wait()
		accepted := len(b.ledger.accepted)
		events := "/api/v1/agent/runs/" + b.lastRun() + "/events"
		requireProblem(t, b.do("POST", "/api/v1/agent/run/stream", `{"input":"x"}`), 429, "too-many-streams", "")
		requireProblem(t, b.do("POST", "/api/v1/agent/chat", `{"message":"x"}`), 429, "too-many-streams", "")
		w := b.do("GET", events, "", "Accept: text/event-stream")
		requireProblem(t, w, 429, "too-many-streams", "")
		require.NotEmpty(t, w.Header().Get("Retry-After"))
		require.Len(t, b.ledger.accepted, accepted, "nothing is accepted that cannot be shown")
		require.Equal(t, 200, b.do("GET", events, "").Code, "pages are not streams")
		cancel()
		<-done
		b.ledger.end(b.lastRun(), agent.Completed)
		require.Equal(t, 200, b.do("GET", events, "", "Accept: text/event-stream").Code)
	})
}

func TestDeltasReachTheClient(t *testing.T) {
	t.Parallel()
	for profile, want := range map[string][]string{
		"run":   {"run_started", "message_added", "chat_delta", "chat_delta", "run_completed"},
		"react": {"run_started", "message_added", "thought_delta", "text_delta", "complete"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			path := "/api/v1/agent/run/stream?profile=" + profile
			done := b.post(t.Context(), path, `{"input":"x"}`)
			synctest.Wait()
			run := b.ledger.runs[b.lastRun()]
			chunk := agent.OutputChunk{ConversationID: run.ConversationID, RunID: run.RunID, RootRunID: run.RunID, NodeID: "say", CommandID: "say",
				Attempt: 1, Chunk: 1, Channel: "thinking", Text: "Hm"}
			b.ledger.mu.Lock()
			b.ledger.chunks = []agent.OutputChunk{chunk}
			chunk.Chunk, chunk.Channel, chunk.Text = 2, "text", "Hel"
			b.ledger.chunks = append(b.ledger.chunks, chunk)
			b.ledger.wake(run.ConversationID)
			b.ledger.mu.Unlock()
			synctest.Wait()
			b.ledger.end(run.RunID, agent.Completed)
			w := <-done
			b.validate(request("POST", path, `{"input":"x"}`), []byte(`{"input":"x"}`), w)
			frames := b.frames(w)
			require.Equal(t, want, names(frames))
			require.Empty(t, frames[2].id)
			require.Empty(t, frames[3].id)
		})
	}
}

func TestReactStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	b.ledger.end(run.RunID, agent.Completed)
	for _, path := range []string{"/api/v1/agent/runs/" + run.RunID + "/events?", "/api/v1/agent/conversations/" + run.ConversationID + "/events?until=idle&"} {
		frames := b.frames(b.do("GET", path+"profile=react", "", "Accept: text/event-stream"))
		require.Equal(t, []string{"run_started", "message_added", "plan_started", "command_emitted", "command_committed", "work_plan", "step_start",
			"act", "attempt_discarded", "observe", "step_end", "checkpoint_saved", "step_start", "act", "command_failed",
			"step_end", "step_start", "command_emitted", "thought", "step_end", "step_start", "complete"}, names(frames))
		require.Equal(t, ids(b.frames(b.do("GET", path, "", "Accept: text/event-stream"))), ids(frames))
	}
}

func readUntil(t *testing.T, r *bufio.Reader, line string) {
	t.Helper()
	for {
		got, err := r.ReadString('\n')
		require.NoError(t, err)
		if strings.TrimSuffix(got, "\n") == line {
			return
		}
	}
}
