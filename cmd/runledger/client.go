package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"runledger/agent"
	"runledger/client"
)

// apiFlags say where the API is.
type apiFlags struct {
	URL string `name:"url" help:"Where the API is. If it wants a token: RUNLEDGER_TOKEN." default:"http://127.0.0.1:8080" env:"RUNLEDGER_URL"`
}

const apiPrefix = "/api/v1/agent"

// tokenVariable has the token for an API that wants one. It is no flag: every user of a machine can read those.
const tokenVariable = "RUNLEDGER_TOKEN"

// problem is an error that the API answered.
type problem struct {
	Status  int    `json:"status"`
	Title   string `json:"title"`
	Detail  string `json:"detail"`
	Pointer string `json:"pointer"`
	Errors  []struct {
		Pointer string `json:"pointer"`
		Message string `json:"message"`
	} `json:"errors"`
}

func (p *problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", p.Status, p.Title)
	if p.Detail != "" {
		fmt.Fprintf(&b, ": %s", p.Detail)
	}
	for _, e := range p.Errors {
		fmt.Fprintf(&b, "\n  %s: %s", e.Pointer, e.Message)
	}
	return b.String()
}

func (f apiFlags) do(ctx context.Context, method, path string, header http.Header, body any) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(f.URL, "/")+apiPrefix+path, reader)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token := os.Getenv(tokenVariable); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < http.StatusBadRequest {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	p := &problem{Status: res.StatusCode, Title: http.StatusText(res.StatusCode)}
	if raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20)); err == nil {
		_ = json.Unmarshal(raw, p) // not a problem document: the status says it
	}
	return nil, p
}

// startRun starts a run and returns at once.
func (f apiFlags) startRun(ctx context.Context, body map[string]any) (agent.Run, error) {
	body["wait"] = 0
	res, err := f.do(ctx, http.MethodPost, "/run", nil, body)
	if err != nil {
		return agent.Run{}, fmt.Errorf("start run: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	var run agent.Run
	if err := json.NewDecoder(res.Body).Decode(&run); err != nil {
		return agent.Run{}, fmt.Errorf("start run: %w", err)
	}
	return run, nil
}

// reader reads logs of the same API.
func (f apiFlags) reader() *client.Client {
	return &client.Client{URL: f.URL, Token: os.Getenv(tokenVariable)}
}
