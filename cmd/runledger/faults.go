//go:build faults

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"runledger/agent"
)

// boundary holds a command at a boundary of the commit gate until the server that RUNLEDGER_FAULTS names answers. Only
// binaries that are built to be broken have it.
func boundary() func(context.Context, agent.Boundary, agent.Call) {
	server := os.Getenv("RUNLEDGER_FAULTS")
	if server == "" {
		return nil
	}
	return func(ctx context.Context, at agent.Boundary, call agent.Call) {
		ask := fmt.Sprintf("%s/%s?run=%s&command=%s", server, at, url.QueryEscape(call.RunID), url.QueryEscape(call.CommandID))
		req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, ask, nil)
		if err != nil {
			panic(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}
}
