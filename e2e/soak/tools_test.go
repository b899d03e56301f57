package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// post calls the tool server through a door, as a worker does, and gives the error of a call that was not answered.
func post(ctx context.Context, d *door, key, query string) error {
	proxy, err := url.Parse(d.url)
	if err != nil {
		return err
	}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:9/do?"+query, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// The tool server counts calls by key and by the door they came through.
func TestToolServerCounts(t *testing.T) {
	t.Parallel()
	tools := newToolServer()
	t.Cleanup(tools.close)
	one, err := tools.open()
	require.NoError(t, err)
	two, err := tools.open()
	require.NoError(t, err)
	require.NoError(t, post(t.Context(), one, "k", "ms=1&a=1&b=2"))
	require.NoError(t, post(t.Context(), two, "k", "ms=1&late=true"))
	calls, _ := tools.record()
	require.Len(t, calls["k"], 2)
	for i, c := range calls["k"] {
		require.Equal(t, i, c.Door)
		require.True(t, c.Took)
		require.False(t, c.Gone)
	}
	found, answer := tools.find("k")
	require.Equal(t, took, found)
	require.Contains(t, string(answer), "1 + 2")
}

// What became of a call that was cut off depends on when its effect takes place; that it cannot arrive any more is known when
// the doors of the dead are shut.
func TestToolServerFinds(t *testing.T) {
	t.Parallel()
	tools := newToolServer()
	t.Cleanup(tools.close)
	d, err := tools.open()
	require.NoError(t, err)
	ctx, cut := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, key := range []string{"late", "early"} {
		go func() {
			ended <- post(ctx, d, key, "ms=60000&late="+map[string]string{"late": "true", "early": "false"}[key])
		}()
	}
	require.Eventually(t, func() bool { return tools.serving(d) == 2 }, startPatience, stand/10)
	tools.dies(d)
	found, _ := tools.find("late")
	require.Equal(t, open, found, "it is at work")
	found, _ = tools.find("unknown")
	require.Equal(t, open, found, "it may still arrive")
	cut()
	require.Error(t, <-ended)
	require.Error(t, <-ended)
	tools.shut(d)
	<-d.drained
	for key, want := range map[string]finding{"late": never, "early": took, "unknown": never} {
		found, _ := tools.find(key)
		require.Equal(t, want, found, key)
	}
	require.Error(t, post(t.Context(), d, "unknown", "ms=1"))
	require.Zero(t, tools.serving())
}
