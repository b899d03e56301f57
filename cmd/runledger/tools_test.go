package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/tool/mcp"
)

// shop is an MCP server with one tool, once it is open.
func shop(open *atomic.Bool) http.Handler {
	results := map[string]string{
		"initialize": `{"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"}}`,
		"tools/list": `{"tools": [{"name": "buy", "inputSchema": {"type": "object"}}]}`,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			ID     json.RawMessage
			Method string
		}
		switch err := json.NewDecoder(r.Body).Decode(&asked); {
		case !open.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Method != http.MethodPost || err != nil:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case asked.ID == nil:
			w.WriteHeader(http.StatusAccepted)
		default:
			w.Header().Set("Content-Type", "application/json")
			answer := `"error": {"code": -32601, "message": "there is no such method"}`
			if result, ok := results[asked.Method]; ok {
				answer = `"result": ` + result
			}
			_, _ = w.Write([]byte(`{"jsonrpc": "2.0", "id": ` + string(asked.ID) + `, ` + answer + `}`))
		}
	})
}

// A server that cannot be reached at the start takes neither the worker down nor another server, and its tools come when it does.
func TestToolsOfServersThatAreAway(t *testing.T) {
	t.Parallel()
	var open, late atomic.Bool
	open.Store(true)
	servers := map[string]mcp.Config{"broken": {Command: []string{"/nowhere/server"}}}
	for name, isOpen := range map[string]*atomic.Bool{"shop": &open, "late": &late} {
		server := httptest.NewServer(shop(isOpen))
		t.Cleanup(server.Close)
		servers[name] = mcp.Config{Name: name, URL: server.URL}
	}
	broken := servers["broken"]
	broken.Name = "broken"
	servers["broken"] = broken
	cfg := &config{MCPServers: servers}
	box, err := cfg.openTools(t.Context(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(box.close)
	set, err := box.set()
	require.NoError(t, err)
	require.Contains(t, set.Names(), "shop/buy")
	require.Contains(t, set.Names(), "calculator")
	require.NotContains(t, set.Names(), "late/buy")
	require.True(t, set.IsAway("late/buy"))
	require.True(t, set.IsAway("broken/anything"))
	require.False(t, set.IsAway("shop/sell"), "it is there, and has no such tool")
	require.False(t, set.IsAway("shop/buy"))

	late.Store(true)
	set = <-box.changes
	require.Contains(t, set.Names(), "late/buy")
	require.Contains(t, set.Names(), "shop/buy")
	require.False(t, set.IsAway("late/sell"))
	require.True(t, set.IsAway("broken/anything"))
}
