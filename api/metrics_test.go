package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/auth"
)

func TestMetricsAreForOperators(t *testing.T) {
	t.Parallel()
	shows := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte("runledger_streams_open 0\n"))
	})
	b := newBench(t, func(c *Config) { c.Metrics, c.Tokens = shows, auth.NewKeyring(allTokens()) })
	w := b.do("GET", "/metrics", "", bearer("a", auth.Operator))
	require.Equal(t, 200, w.Code)
	require.Equal(t, "runledger_streams_open 0\n", w.Body.String())
	requireProblem(t, b.do("GET", "/metrics", "", bearer("a", auth.User)), 403, "operator-role-needed", "")
	requireProblem(t, b.do("GET", "/metrics", ""), 401, "token-needed", "")
	requireProblem(t, newBench(t).do("GET", "/metrics", ""), 404, "not-found", "")
}
