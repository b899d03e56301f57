package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/metrics"
)

func TestServeMetrics(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	stop, err := serveMetrics(t.Context(), "127.0.0.1:0", metrics.New(log).Handler(), log)
	require.NoError(t, err)
	url := regexp.MustCompile(`http://[^\s"]+`).FindString(logged.String())
	res, err := http.Get(url) //nolint:noctx // of this process
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Contains(t, string(text), "runledger_build_info{")
	stop()
	_, err = http.Get(url) //nolint:noctx // of this process
	require.Error(t, err)

	_, err = serveMetrics(t.Context(), "nowhere", nil, log)
	require.ErrorContains(t, err, "listen for metrics on nowhere")
	stop, err = serveMetrics(t.Context(), "", nil, log)
	require.NoError(t, err)
	stop()
}
