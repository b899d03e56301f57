package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestSignal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	path := "/api/v1/agent/runs/" + run.RunID + "/signal"
	w := b.do("POST", path, `{"name": "go", "id": "1", "value": {"secret": [1.0]}}`)
	require.Equal(t, 202, w.Code, w.Body)
	require.Equal(t, "/api/v1/agent/runs/"+run.RunID, w.Header().Get("Location"))
	require.Equal(t, received{RunID: run.RunID, Name: "go", InputID: "1", Sequence: 7, Created: true}, document[received](t, w))
	require.False(t, document[received](t, b.do("POST", path, `{"name": "go", "id": "1", "value": {"secret": [1.0]}}`)).Created)
	other := b.do("POST", path, `{"name": "go", "id": "1", "value": 2}`)
	require.Equal(t, 409, other.Code)
	require.Equal(t, "/problems/input-id-reused", document[problem](t, other).Type)

	byKey := document[received](t, b.do("POST", path, `{"name": "go", "value": null}`, "Idempotency-Key: k-1"))
	require.Equal(t, "k-1", byKey.InputID)
	own := document[received](t, b.do("POST", path, `{"name": "go", "id": "mine"}`, "Idempotency-Key: k-1"))
	require.Equal(t, "mine", own.InputID, "the body says it first")
	fresh, another := document[received](t, b.do("POST", path, `{"name": "go"}`)), document[received](t, b.do("POST", path, `{"name": "go"}`))
	require.NoError(t, uuid.Validate(fresh.InputID))
	require.NotEqual(t, fresh.InputID, another.InputID)
	inputs := b.ledger.inputs[run.RunID]
	require.Len(t, inputs, 5)
	require.Equal(t, `{"secret": [1.0]}`, string(inputs[0].Value))
	require.Equal(t, "null", string(inputs[1].Value))
	require.Equal(t, "local", inputs[0].By)

	for body, pointer := range map[string]string{
		`{}`:              "/name",
		`{"name": "a b"}`: "/name",
		`{"name": "` + strings.Repeat("n", 65) + `"}`:              "/name",
		`{"name": "go", "id": "ü"}`:                                "/id",
		`{"name": "go", "id": "` + strings.Repeat("i", 256) + `"}`: "/id",
		`{"name": 1}`: "/name",
	} {
		w := b.do("POST", path, body)
		require.Equal(t, 422, w.Code, body)
		require.Equal(t, pointer, *document[problem](t, w).Pointer, body)
	}
	large := b.do("POST", path, `{"name": "go", "value": "`+strings.Repeat("x", agent.MaxInputBytes)+`"}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, large.Code)
	require.Equal(t, "/value", *document[problem](t, large).Pointer)
	require.Equal(t, 400, b.do("POST", path, `{"name": "go", "more": 1}`).Code)
	require.Equal(t, 400, b.do("POST", path, `{"name": "go"}`, "Idempotency-Key: "+strings.Repeat("k", 256)).Code)

	stranger := b.ledger.seed(t, "somebody", "")
	for _, id := range []string{stranger.RunID, uuid.NewString(), "nothing"} {
		require.Equal(t, 404, b.do("POST", "/api/v1/agent/runs/"+id+"/signal", `{"name": "go"}`).Code)
	}
	b.ledger.end(run.RunID, agent.Completed)
	require.Equal(t, 409, b.do("POST", path, `{"name": "go"}`).Code)
	require.Len(t, b.ledger.inputs[run.RunID], 5)
}

// TestRunWaitsFor: whoever looks at a run sees what it waits for.
func TestRunWaitsFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.do("POST", "/api/v1/agent/run", `{"input": "x", "wait": 0, "plan": {"nodes": [{"id": "a", "kind": "wait", "signal": "go", "timeout": "1h"}, {"id": "b", "kind": "wait", "duration": "10s"}]}}`)
	require.Equal(t, 202, w.Code, w.Body)
	run := document[runObject](t, w)
	require.Empty(t, run.WaitsFor)
	until := b.ledger.now.Add(time.Hour)
	b.ledger.waits[run.RunID] = []agent.OpenWait{{CommandID: "a", NodeID: "a", Signal: "go", Since: b.ledger.now, Until: &until}, {CommandID: "b", NodeID: "b", Since: b.ledger.now}}
	require.Equal(t, b.ledger.waits[run.RunID], document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")).WaitsFor)
	b.ledger.end(run.RunID, agent.Cancelled)
	require.Empty(t, document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")).WaitsFor)
}

// TestStreamOfAMessageToARunAtWork begins at the message, unless the client says otherwise, and so does its GET twin.
func TestStreamOfAMessageToARunAtWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		run := b.ledger.seed(t, "local", "")
		b.ledger.write(run.RunID, agent.Event{Type: agent.MessageAdded, NodeID: "main"}, agent.MessageAddedData{Role: agent.UserMessage, Content: "in red", Steers: true})
		b.ledger.steered = run.StartSequence + 2
		body := `{"message": "in red", "conversation_id": "` + run.ConversationID + `", "strategy": "steer"}`
		fromMessage := b.post(t.Context(), "/api/v1/agent/chat?profile=run", body)
		whole := b.post(t.Context(), "/api/v1/agent/chat?from_sequence=1", body)
		connected := b.post(t.Context(), "/api/v1/agent/chat", body, "Last-Event-ID: 2")
		synctest.Wait()
		b.ledger.end(run.RunID, agent.Completed)
		for _, c := range []struct {
			answer <-chan *httptest.ResponseRecorder
			ids    []string
			twin   string
		}{
			{fromMessage, []string{"3", "4"}, "?from_sequence=3&profile=run"},
			{whole, []string{"1", "2", "3", "4"}, "?from_sequence=1"},
			{connected, []string{"3", "4"}, ""},
		} {
			w := <-c.answer
			require.Equal(t, "/api/v1/agent/runs/"+run.RunID+"/events"+c.twin, w.Header().Get("Content-Location"))
			require.Equal(t, c.ids, ids(b.frames(w)))
		}
		require.Contains(t, b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/events?from_sequence=3", "").Body.String(), `"steers":true`)
	})
}
