package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// client talks to the API as a careful program would: an answer that does not come is asked for again.
type client struct{ url string }

const (
	callTimeout = 40 * time.Second
	callPause   = 250 * time.Millisecond
)

// answerError is an answer that asking again will not change.
type answerError struct {
	status int
	text   string
}

func (e *answerError) Error() string { return fmt.Sprintf("status %d: %.300s", e.status, e.text) }

// get reads a document.
func (c *client) get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, nil, nil, into)
}

// call sends a request until it is answered with something other than a fault of the server, and decodes the answer.
func (c *client) call(ctx context.Context, method, path string, header http.Header, body, into any) error {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	for {
		err := c.once(ctx, method, path, header, raw, into)
		var answer *answerError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &answer) && answer.status < 500 && answer.status != http.StatusTooManyRequests, ctx.Err() != nil:
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		pause(ctx, callPause)
	}
}

func (c *client) once(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return &answerError{res.StatusCode, string(raw)}
	}
	return json.Unmarshal(raw, into)
}
