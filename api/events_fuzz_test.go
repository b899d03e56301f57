package api

import (
	"encoding/json"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// FuzzEventsRequest holds for whatever a client says about where to begin: it is refused with a problem that names what was wrong,
// told that nothing follows, or given events without a gap: all that follow as a stream, as many as it asked for as a page.
func FuzzEventsRequest(f *testing.F) {
	for _, query := range []string{"", "from_sequence=7", "after=22", "from_sequence=23", "after=3", "from_sequence=0&limit=2", "limit=0", "profile=react&after=9", "profile=ledger",
		"after=1&after=2", "from_sequence=9223372036854775807", "after=-0", "until=idle", "%zz", "after=%00", "a;b"} {
		f.Add(query, "", true, true)
		f.Add(query, "12", true, false)
		f.Add(query, "x", false, true)
	}
	b := newBench(f)
	run := history(b)
	b.ledger.end(run.RunID, agent.Completed)
	const oldest, last = 5, 22
	b.ledger.conversations[run.ConversationID].oldest = oldest
	f.Fuzz(func(t *testing.T, query, lastID string, stream, ofRun bool) {
		r := request("GET", runEvents(run), "")
		if !ofRun {
			r = request("GET", "/api/v1/agent/conversations/"+run.ConversationID+"/events", "")
			query += "&until=idle" // or it would stay open
		}
		r.URL.RawQuery = query
		if !ofRun && r.URL.Query().Get("until") != "idle" {
			return
		}
		r.Header["Last-Event-Id"] = []string{lastID}
		if stream {
			r.Header.Set("Accept", "text/event-stream")
		}
		w := httptest.NewRecorder()
		b.api.ServeHTTP(w, r)
		switch w.Code {
		case 400, 410:
			var p problem
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
			require.NotEmpty(t, p.Parameter)
			require.Equal(t, w.Code == 410, p.OldestSequence == oldest)
			return
		case 204:
			require.True(t, stream)
			require.Zero(t, w.Body.Len())
			return
		}
		require.Equal(t, 200, w.Code, "%s", w.Body)
		var numbers []int64
		more := false
		if stream {
			require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
			for _, frame := range parseFrames(t, w.Body.String()) {
				n, err := strconv.ParseInt(frame.id, 10, 64)
				require.NoError(t, err)
				require.EqualValues(t, n, frame.object["sequence_number"])
				numbers = append(numbers, n)
			}
			require.NotEmpty(t, numbers, "204 says that there are none")
		} else {
			var page struct {
				Events  []agent.Event `json:"events"`
				HasMore bool          `json:"has_more"`
			}
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
			for _, e := range page.Events {
				numbers = append(numbers, e.Sequence)
			}
			more = page.HasMore
		}
		for i, n := range numbers {
			require.Equal(t, numbers[0]+int64(i), n)
			require.LessOrEqual(t, int64(oldest), n)
		}
		if len(numbers) > 0 {
			require.Equal(t, more, numbers[len(numbers)-1] < last)
			require.Equal(t, asked(r.URL.Query(), lastID, stream, oldest), numbers[0])
		}
	})
}

// asked is the first number that a request which was answered asked for.
func asked(query map[string][]string, lastID string, stream bool, oldest int64) int64 {
	first := func(texts []string, plus int64) int64 {
		n, err := strconv.ParseInt(strings.Join(texts, ","), 10, 64)
		if err != nil || n == 0 {
			return oldest
		}
		return n + plus
	}
	if stream && lastID != "" {
		return first([]string{lastID}, 1)
	}
	if from, given := query["from_sequence"]; given {
		return first(from, 0)
	}
	return first(query["after"], 1)
}
