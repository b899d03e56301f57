package streams_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/internal/stacktest"
	"runledger/ledger"
)

// TestStreamsOfTheProgram asks the program as a proxy and a browser do: by HTTP/2 without TLS, and from a page of another origin. It
// needs neither a worker nor Temporal.
func TestStreamsOfTheProgram(t *testing.T) {
	t.Parallel()
	s := &stacktest.Servers{DatabaseURL: pgtest.Database(t), Dir: t.TempDir()}
	s.Env = []string{"DATABASE_URL=" + s.DatabaseURL}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "runledger.yaml"), []byte("api: {cors_origins: ['https://app.example.org'], max_streams: 2}\n"), 0o600))
	store, err := ledger.Open(t.Context(), s.DatabaseURL, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	require.NoError(t, store.PublishTools(t.Context(), "default", []agent.ToolRef{{Name: "calculator", InputSchema: json.RawMessage(`{"type":"object"}`), Effect: agent.Deterministic}}))
	p, c := s.StartAPI(t, 0)
	run := c.Post(t, object{"input": "x"})

	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	ask := func(method string, header http.Header) *http.Response {
		ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
		t.Cleanup(cancel)
		r, err := http.NewRequestWithContext(ctx, method, c.URL+"/api/v1/agent/runs/"+run.RunID+"/events", nil)
		require.NoError(t, err)
		r.Header = header
		r.Header.Set("Origin", "https://app.example.org")
		res, err := client.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		require.Equal(t, 2, res.ProtoMajor)
		require.Equal(t, "https://app.example.org", res.Header.Get("Access-Control-Allow-Origin"))
		return res
	}
	require.Equal(t, http.StatusNoContent, ask(http.MethodOptions, http.Header{"Access-Control-Request-Method": {"GET"}}).StatusCode)
	var streams []*bufio.Reader
	for range 2 {
		in := bufio.NewReader(ask(http.MethodGet, http.Header{"Accept": {"text/event-stream"}}).Body)
		for range 2 {
			_, err := stacktest.ReadFrame(in)
			require.NoError(t, err)
		}
		streams = append(streams, in)
	}
	res := ask(http.MethodGet, http.Header{"Accept": {"text/event-stream"}})
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.NotEmpty(t, res.Header.Get("Retry-After"))

	p.End(t, syscall.SIGTERM)
	for _, in := range streams {
		rest, err := io.ReadAll(in)
		require.NoError(t, err, "a stream ends with the program, and not in the middle")
		require.True(t, strings.HasPrefix(string(rest), "retry: "), "%q", rest)
	}
}
