package activities_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
	"runledger/tool/builtin"
)

// shop is a server that charges once per key and tells of its charges.
type shop struct {
	mu      sync.Mutex
	charges []string // the keys, in order
	down    bool
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	key, asked := strings.CutPrefix(r.URL.Path, "/charges/")
	switch {
	case s.down:
		w.WriteHeader(http.StatusServiceUnavailable)
	case !asked:
		s.charges = append(s.charges, r.Header.Get("Idempotency-Key"))
		_, _ = w.Write([]byte(`{"id": 1}`))
	case len(s.charges) == 0 || s.charges[0] != key:
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = w.Write([]byte(`{"charge": {"id": 1}}`))
	}
}

// The worker is lost in the middle of a call of http_request; another one takes the command over.
func TestLostHTTPCallIsLookedUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at         point
		conclusive bool
		down       bool
		outcome    agent.Outcome
		charges    int
		last       agent.EventType
	}{
		"it took place":                     {at: beforeCommit, outcome: agent.OutcomeCommitted, charges: 1, last: agent.CheckpointSaved},
		"it did not, as far as is seen":     {at: afterBegin, outcome: agent.OutcomeInDoubt, charges: 0, last: agent.CommandDoubtType},
		"it did not, and the rule is sure":  {at: afterBegin, conclusive: true, outcome: agent.OutcomeCommitted, charges: 1, last: agent.CheckpointSaved},
		"it took place, and nobody answers": {at: beforeCommit, conclusive: true, down: true, outcome: agent.OutcomeInDoubt, charges: 1, last: agent.CommandDoubtType},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := setup(t)
			shop := &shop{}
			server := httptest.NewServer(shop)
			t.Cleanup(server.Close)
			httpRequest, err := builtin.HTTPRequest(builtin.HTTPConfig{AllowHosts: []string{"127.0.0.1:*"}, Reconcile: []builtin.HTTPReconcile{
				{Host: "127.0.0.1:*", Method: "POST", URL: "{path}/{key}", Output: "/charge", Conclusive: c.conclusive},
			}})
			require.NoError(t, err)
			l.tools, err = tool.NewSet(httpRequest)
			require.NoError(t, err)
			run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "http_request", "args": {"method": "POST", "url": "`+server.URL+`/charges"}}]}`)
			in := agent.ToolCall{Call: call(run, 1), Tool: "http_request"}

			_, err = l.callTool(t, breaks(c.at, crashes), in)
			require.ErrorIs(t, err, errCrashed)
			l.expire(t, run)
			l.exec(t, `UPDATE commands SET deadline = now() - interval '1 ms' WHERE run_id = $1`, run.RunID)
			shop.down = c.down
			reply, err := l.callTool(t, try{attempt: 2}, in)
			require.NoError(t, err)

			require.Equal(t, c.outcome, reply.Outcome)
			require.Len(t, shop.charges, c.charges)
			types := l.types(t, run)
			require.Equal(t, c.last, types[len(types)-1])
			if c.outcome == agent.OutcomeCommitted {
				var out struct {
					Status int             `json:"status"`
					JSON   json.RawMessage `json:"json"`
				}
				require.NoError(t, json.Unmarshal(l.row(t, run, "a").Result, &out))
				require.Equal(t, 200, out.Status)
				require.JSONEq(t, `{"id": 1}`, string(out.JSON), "found or made again, the result has one shape")
			}
		})
	}
}
