package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"runledger/agent"
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

// frame is a Server-Sent Event as it came.
type frame struct {
	id    string
	event agent.Event
	raw   string
}

const reconnectEvery = time.Second

// follow gives a run's events to each, in order and each once, from the number after on, until the stream ends for good. It
// reconnects where the connection breaks.
func (f apiFlags) follow(ctx context.Context, runID, profile string, after int64, each func(frame) error) error {
	for {
		last, err := f.stream(ctx, runID, profile, after, each)
		after = max(after, last)
		var p *problem
		var local *callbackError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &local):
			return local.err
		case errors.As(err, &p) && p.Status < http.StatusInternalServerError:
			return err
		}
		select {
		case <-time.After(reconnectEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// callbackError keeps an error of the reader's own apart from those of the connection.
type callbackError struct{ err error }

func (e *callbackError) Error() string { return e.err.Error() }

// stream reads one connection. A nil error means that the run has ended and nothing follows.
func (f apiFlags) stream(ctx context.Context, runID, profile string, after int64, each func(frame) error) (last int64, err error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if after > 0 {
		header.Set("Last-Event-ID", strconv.FormatInt(after, 10))
	}
	res, err := f.do(ctx, http.MethodGet, "/runs/"+url.PathEscape(runID)+"/events?profile="+url.QueryEscape(profile), header, nil)
	if err != nil {
		return after, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent {
		return after, nil
	}
	in := bufio.NewReader(res.Body)
	ended := false
	for {
		fr, err := readFrame(in)
		if err != nil {
			if ended {
				return after, nil
			}
			return after, fmt.Errorf("the stream broke: %w", err)
		}
		if fr.id != "" {
			if after, err = strconv.ParseInt(fr.id, 10, 64); err != nil {
				return after, fmt.Errorf("the stream has id %q: %w", fr.id, err)
			}
		}
		if err := each(fr); err != nil {
			return after, &callbackError{err}
		}
		if fr.event.RunID == runID {
			ended = fr.event.Type.Terminal()
		}
	}
}

// readFrame reads up to the next frame with data. Comments and retry hints are passed over.
func readFrame(in *bufio.Reader) (frame, error) {
	var fr frame
	var data []string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return frame{}, err
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			if len(data) == 0 {
				fr = frame{}
				continue
			}
			fr.raw = strings.Join(data, "\n")
			if err := json.Unmarshal([]byte(fr.raw), &fr.event); err != nil {
				return frame{}, fmt.Errorf("data of a frame: %w", err)
			}
			return fr, nil
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			fr.id = value
		case "data":
			data = append(data, value)
		}
	}
}
