package api

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

func TestDeleteConversation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	path := root + "/conversations/" + run.ConversationID

	open := requireProblem(t, b.do("DELETE", path, ""), 409, "run-open", "")
	require.Equal(t, run.RunID, open.RunID)
	b.ledger.end(run.RunID, agent.Completed)

	w := b.do("DELETE", path, "")
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Empty(t, w.Body.String())
	for _, gone := range []string{path, path + "/events", path + "/messages", path + "/execution-status", runPath(run.RunID),
		runPath(run.RunID) + "/events", runPath(run.RunID) + "/commands"} {
		requireProblem(t, b.do("GET", gone, ""), 404, "not-found", "")
	}
	requireProblem(t, b.do("DELETE", path, ""), 404, "not-found", "")
	requireProblem(t, b.do("DELETE", root+"/conversations/x", ""), 404, "not-found", "")
}

// TestDeleteEndsStreams: who follows the conversation is not left waiting for what cannot come.
func TestDeleteEndsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		run := b.ledger.seed(t, "local", "")
		b.ledger.end(run.RunID, agent.Completed)
		path := root + "/conversations/" + run.ConversationID
		followed := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			w := httptest.NewRecorder()
			b.api.ServeHTTP(w, request("GET", path+"/events", "", "Accept: text/event-stream"))
			followed <- w
		}()
		synctest.Wait()
		require.Equal(t, http.StatusNoContent, b.do("DELETE", path, "").Code)
		require.Equal(t, []string{"1", "2", "3"}, ids(b.frames(<-followed))[:3])
	})
}

// TestARunWithoutItsRecordSaysSo: what was removed by age is not passed off as nothing.
func TestARunWithoutItsRecordSaysSo(t *testing.T) {
	t.Parallel()
	store, err := ledger.Open(t.Context(), pgtest.Database(t), ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	require.NoError(t, store.PublishTools(t.Context(), "default", newFakeLedger().tools))
	b := newBench(t, func(c *Config) { c.Ledger = store })
	start := func(more string) agent.Run {
		return document[agent.Run](t, b.do("POST", root+"/run", `{"input":"x","wait":0`+more+`}`))
	}
	run := start("")
	require.Equal(t, 200, b.do("POST", runPath(run.RunID)+"/cancel", "").Code)
	last := start(`,"conversation_id":"` + run.ConversationID + `"`)
	removed, err := store.Retain(t.Context(), agent.Retention{Events: time.Microsecond, Payloads: time.Microsecond}, false)
	require.NoError(t, err)
	require.EqualValues(t, 3, removed.Events)

	object := document[runObject](t, b.do("GET", runPath(run.RunID), ""))
	require.Equal(t, agent.Cancelled, object.Status)
	require.NotNil(t, object.Removed.EventsAt)
	require.NotNil(t, object.Removed.PayloadsAt)
	for _, gone := range []string{"/events", "/checkpoints", "/trace", "/replay-context"} {
		p := requireProblem(t, b.do("GET", runPath(run.RunID)+gone, ""), 410, "record-gone", "")
		require.Equal(t, run.RunID, p.RunID, gone)
		require.Zero(t, p.OldestSequence, "there is nothing of the run to go on from")
	}
	requireProblem(t, b.do("GET", runPath(run.RunID)+"/events", "", "Accept: text/event-stream"), 410, "record-gone", "")
	for _, path := range []string{runPath(run.RunID) + "/resume", runPath(run.RunID) + "/fork"} {
		requireProblem(t, b.do("POST", path, ""), 410, "record-gone", "")
	}
	verified := document[agent.Verification](t, b.do("GET", runPath(run.RunID)+"/verify", ""))
	require.True(t, verified.OK, "%v", verified.Differences)
	require.NotNil(t, verified.Removed)

	// The log of the conversation begins with the run that is kept.
	events := root + "/conversations/" + run.ConversationID + "/events"
	p := requireProblem(t, b.do("GET", events+"?from_sequence=2", ""), 410, "position-gone", "")
	require.EqualValues(t, 4, p.OldestSequence)
	for _, path := range []string{events, events + "?from_sequence=4", events + "?after=3", runPath(last.RunID) + "/events"} {
		page := document[struct{ Events []agent.Event }](t, b.do("GET", path, ""))
		require.EqualValues(t, 4, page.Events[0].Sequence, path)
	}
	require.Contains(t, b.do("GET", root+"/conversations/"+run.ConversationID+"/messages", "").Body.String(), `"content":"x"`)
}
