package api

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/internal/pgtest"
	"runledger/ledger"
)

// FuzzListRequest holds that no filter, cursor or id of a list or a document breaks the ledger: it is answered, refused with a problem
// of the caller, or not there.
func FuzzListRequest(f *testing.F) {
	store, err := ledger.Open(f.Context(), pgtest.Database(f), ledger.Options{MaxConns: 2})
	require.NoError(f, err)
	f.Cleanup(store.Close)
	require.NoError(f, store.PublishTools(f.Context(), "default", newFakeLedger().tools))
	b := newBench(f, func(c *Config) { c.Ledger = store })
	require.Equal(f, 202, b.do("POST", "/api/v1/agent/run", `{"input":"x","wait":0}`).Code)
	paths := []string{"/runs", "/conversations", "/approvals", "/tools", "/agents", "/runs/ID", "/runs/ID/events", "/runs/ID/commands", "/runs/ID/commands/ID",
		"/runs/ID/checkpoints", "/runs/ID/replay-context", "/runs/ID/trace", "/conversations/ID", "/conversations/ID/events", "/conversations/ID/messages",
		"/conversations/ID/execution-status", "/approvals/ID"}
	for i := range paths {
		for _, text := range []string{"", "x", "\x00", "\xff", "0192f0c8-0000-7000-8000-000000000000", "'", "{0192f0c8-0000-7000-8000-000000000000}"} {
			f.Add(uint(i), text, "before", text)
			f.Add(uint(i), "x", "agent", text)
			f.Add(uint(i), "x", "status", text)
		}
		f.Add(uint(i), "x", "limit", "-1")
	}
	f.Fuzz(func(t *testing.T, at uint, id, name, value string) {
		r := request("GET", "/", "")
		q := r.URL.Query()
		q.Set(name, value)
		r.URL.RawQuery = q.Encode()
		r.URL.Path = root + strings.ReplaceAll(paths[at%uint(len(paths))], "ID", id)
		r.URL.RawPath = root + strings.ReplaceAll(paths[at%uint(len(paths))], "ID", url.PathEscape(id))
		w := httptest.NewRecorder()
		b.api.ServeHTTP(w, r)
		require.Less(t, w.Code, 500, "%s: %s", r.URL, w.Body)
		require.True(t, json.Valid(w.Body.Bytes()) || w.Body.Len() == 0, "%s", w.Body)
	})
}
