package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
)

// endless is a model that speaks until nobody listens.
type endless struct{ speaks, gone chan string }

func (m endless) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		emit(model.Delta{Channel: model.Text, Text: "and on "})
		if n == 0 {
			m.speaks <- req.Key
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.gone <- req.Key
			return model.Reply{}, ctx.Err()
		}
	}
}

// stopping is the answer to a request to stop.
type stopping struct {
	Status   agent.Status           `json:"status"`
	Commands []agent.StoppedCommand `json:"commands"`
}

func (s stopping) outcomes() map[string]agent.StopOutcome {
	outcomes := map[string]agent.StopOutcome{}
	for _, c := range s.Commands {
		outcomes[c.CommandID] = c.Outcome
	}
	return outcomes
}

func (c *client) cancel(t testing.TB, runID string, body object) (answer stopping, status int) {
	t.Helper()
	status = c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+runID+"/cancel", body, &answer)
	return answer, status
}

// busyRun is a run of a model that speaks on and on, a slow GET, a slow POST, and a GET that waits for its second try.
func (e *effects) busyRun() object {
	post, busy := e.get("post", "/hold/post"), e.get("busy", "/busy")
	post["args"].(object)["method"] = "POST"
	return object{"input": "work", "plan": object{"nodes": []any{e.get("get", "/hold/get"), post, busy,
		object{"id": "say", "kind": "llm", "prompt": "Say it"}, e.get("later", "/do/later", "get"),
		object{"id": "answer2", "kind": "llm", "prompt": "Say more", "depends_on": []string{"later", "say"}}}}}
}

// tail reads a stream to its end in the background. It sends every numbered frame, and closes the channel at the end.
func tail(t testing.TB, res *http.Response) <-chan stacktest.Frame {
	t.Helper()
	require.Equal(t, http.StatusOK, res.StatusCode)
	frames := make(chan stacktest.Frame, 1000)
	go func() {
		defer close(frames)
		defer func() { _ = res.Body.Close() }()
		in := bufio.NewReader(res.Body)
		for {
			f, err := stacktest.ReadFrame(in)
			if err != nil {
				return
			}
			if f.ID != "" {
				frames <- f
			}
		}
	}()
	return frames
}

// until reads frames up to the first of a type.
func until(t testing.TB, frames <-chan stacktest.Frame, typ agent.EventType) stacktest.Frame {
	t.Helper()
	for {
		f := stacktest.Receive(t, frames, "no "+string(typ)+" comes")
		require.NotEmpty(t, f.ID, "the stream ends without %s", typ)
		if f.Event.Type == typ {
			return f
		}
	}
}

// R4-24: a cancellation reaches whatever a run is doing, and its answer says what became of it. The times are printed, and bounded
// only by the test's patience.
func TestCancelARunAtWork(t *testing.T) {
	t.Parallel()
	speaker := endless{make(chan string, 10), make(chan string, 10)}
	vendor := modeltest.NewServer(t, speaker)
	fx := startEffects(t)
	s := startServers(t, fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: plan, tools: ["*"]}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"]}
`, vendor.URL))
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	for range 5 {
		c.cancelAtWork(t, fx, speaker)
	}
}

func (c *client) cancelAtWork(t testing.TB, fx *effects, speaker endless) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), stacktest.Patience)
	defer end()
	twin := tail(t, c.Send(ctx, t, http.MethodPost, "/api/v1/agent/run/stream", nil, fx.busyRun()))
	runID := until(t, twin, agent.RunStarted).Event.RunID
	events := "/api/v1/agent/runs/" + runID + "/events"
	stream := http.Header{"Accept": {"text/event-stream"}}
	get := tail(t, c.Send(ctx, t, http.MethodGet, events+"?profile=ledger", stream, nil))
	for range 2 {
		fx.held(t)
	}
	stacktest.Receive(t, speaker.speaks, "the model does not speak")
	require.Equal(t, "busy", until(t, get, agent.AttemptDiscarded).Event.CommandID)

	type stopped struct {
		command string
		after   time.Duration
	}
	asked, stops := time.Now(), make(chan stopped, 3)
	go func() {
		for range cap(stops) {
			var key string
			select {
			case key = <-fx.gone:
			case key = <-speaker.gone:
			case <-ctx.Done():
				return
			}
			stops <- stopped{strings.TrimPrefix(key, runID+"/"), time.Since(asked)}
		}
	}()
	answer, status := c.cancel(t, runID, object{"reason": "enough", "wait": 60})
	answered := time.Since(asked)
	require.Equal(t, http.StatusOK, status)
	closed := map[string]time.Duration{}
	for range cap(stops) {
		stop := stacktest.Receive(t, stops, "an effect goes on")
		closed[stop.command] = stop.after
	}
	require.Len(t, closed, 3)
	require.Equal(t, agent.Cancelled, answer.Status)
	want := map[string]agent.StopOutcome{"get": agent.StopAborted, "post": agent.StopInDoubt, "say": agent.StopAborted, "busy": agent.NeverStarted}
	require.Equal(t, want, answer.outcomes())

	last := until(t, get, agent.RunCancelled)
	_, more := <-get
	over := time.Since(last.Event.CreatedAt)
	require.False(t, more, "the stream ends with it")
	until(t, twin, agent.RunCancelled)
	_, more = <-twin
	require.False(t, more, "and so does that of whoever started the run")
	t.Logf("after the request: GET closed %d ms, POST %d ms, model %d ms, answered %d ms; stream over %d ms after run_cancelled was written",
		closed["get"].Milliseconds(), closed["post"].Milliseconds(), closed["say"].Milliseconds(), answered.Milliseconds(), over.Milliseconds())

	stream.Set("Last-Event-Id", last.ID)
	res := c.Send(ctx, t, http.MethodGet, events, stream, nil)
	_, err := io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusNoContent, res.StatusCode)

	again, status := c.cancel(t, runID, object{"reason": "another"})
	require.Equal(t, http.StatusOK, status, "asked again, it answers the same")
	require.Equal(t, answer, again)
	frames := c.Finished(t, runID)
	require.Equal(t, 1, stacktest.Count(frames, agent.RunCancelled))
	require.JSONEq(t, `{"by": "local", "reason": "enough"}`, string(frames[len(frames)-1].Event.Data))
	for _, f := range frames {
		if f.Event.Type == agent.CommandAbortType {
			var d agent.CommandAbortedData
			require.NoError(t, json.Unmarshal(f.Event.Data, &d))
			require.Equal(t, f.Event.CommandID == "busy", d.NeverStarted)
		}
	}
	require.False(t, slices.ContainsFunc(frames, func(f stacktest.Frame) bool { return f.Event.NodeID == "later" }), "nothing begins after it")
	require.Zero(t, fx.count(runID+"/get")+fx.count(runID+"/post"))
	var verification agent.Verification
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/verify", nil, &verification))
	require.True(t, verification.OK, "%+v", verification.Differences)
}

// With Temporal away the effects stop all the same, since the ledger tells its workers. The run's end waits for Temporal.
func TestCancelWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	post := fx.get("post", "/hold/post")
	post["args"].(object)["method"] = "POST"
	run := c.Post(t, object{"input": "work", "plan": object{"nodes": []any{fx.get("get", "/hold/get"), post}}})
	for range 2 {
		fx.held(t)
	}
	require.NoError(t, s.Temporal.Stop(context.Background()))
	asked := time.Now()
	_, status := c.cancel(t, run.RunID, object{"reason": "enough", "wait": 0})
	require.Equal(t, http.StatusAccepted, status)
	for range 2 {
		fx.abandoned(t)
		t.Logf("closed %d ms after the request", time.Since(asked).Milliseconds())
	}
	want := map[string]agent.StopOutcome{"get": agent.StopAborted, "post": agent.StopInDoubt}
	require.Eventually(t, func() bool {
		answer, status := c.cancel(t, run.RunID, object{"wait": 0})
		return status == http.StatusAccepted && answer.Status == agent.Cancelling && answer.outcomes()["get"] == want["get"] &&
			answer.outcomes()["post"] == want["post"]
	}, stacktest.Patience, 20*time.Millisecond)
	s.StartTemporal(t)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, 1, stacktest.Count(frames, agent.RunCancelled))
	require.JSONEq(t, `{"by": "local", "reason": "enough"}`, string(frames[len(frames)-1].Event.Data))
	answer, status := c.cancel(t, run.RunID, object{})
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, want, answer.outcomes())
}

// TestCancelRaces asks runs to stop at any moment, twice at once. Each ends once, and every answer tells of that end.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	ends := map[agent.EventType]int{}
	for n := range 16 {
		run := c.Post(t, object{"input": fmt.Sprintf("What is %d * 3, and what time is it?", n)})
		frames := tail(t, c.Send(t.Context(), t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/events?profile=ledger",
			http.Header{"Accept": {"text/event-stream"}}, nil))
		for range n * 2 { // a run has 24 events
			stacktest.Receive(t, frames, "the run does not go on")
		}
		answers := make(chan *http.Response, 2)
		for _, reason := range []string{"one", "two"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL+"/api/v1/agent/runs/"+run.RunID+"/cancel",
				strings.NewReader(`{"wait": 60, "reason": "`+reason+`"}`))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			go func() {
				res, _ := http.DefaultClient.Do(req)
				answers <- res
			}()
		}
		statuses := []agent.Status{}
		for range 2 {
			res := stacktest.Receive(t, answers, "the cancellation is not answered")
			require.NotNil(t, res)
			answer := stopping{Status: agent.Completed} // when it came too late
			if res.StatusCode != http.StatusConflict {
				require.Equal(t, http.StatusOK, res.StatusCode)
				require.NoError(t, json.NewDecoder(res.Body).Decode(&answer))
			}
			require.NoError(t, res.Body.Close())
			for _, command := range answer.Commands {
				require.NotEqual(t, agent.StopOpen, command.Outcome)
			}
			statuses = append(statuses, answer.Status)
		}
		require.Equal(t, statuses[0], statuses[1])
		record := c.Finished(t, run.RunID)
		end := record[len(record)-1].Event
		require.Equal(t, "run_"+string(statuses[0]), string(end.Type))
		require.Equal(t, 1, stacktest.Count(record, agent.RunCancelled)+stacktest.Count(record, agent.RunCompleted))
		ends[end.Type]++
	}
	require.Len(t, ends, 2, "%v", ends)

	// With no worker, a run that was never started ends at once.
	worker.Stop(t)
	run := c.Post(t, object{"input": question})
	answer, status := c.cancel(t, run.RunID, object{"wait": 0})
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, stopping{Status: agent.Cancelled, Commands: []agent.StoppedCommand{}}, answer)
	s.StartWorker(t)
	require.Len(t, c.Finished(t, run.RunID), 3)
}
