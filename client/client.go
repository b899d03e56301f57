package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"runledger/agent"
)

// Client reads from one API. The zero value with a URL is ready; it may be used by many goroutines at once.
type Client struct {
	// URL is where the API is, as in http://127.0.0.1:8080, without the path of the API itself.
	URL string
	// Token is sent as a bearer token, unless it is empty.
	Token string
	// HTTP is http.DefaultClient unless set. Its Timeout must be 0, since a stream lasts as long as it is followed.
	HTTP *http.Client
	// Silence is how long nothing at all may come, heartbeats included, before a connection counts as broken; 30 s unless set.
	Silence time.Duration
}

const (
	apiPath        = "/api/v1/agent"
	defaultSilence = 30 * time.Second
	// longestAnswer bounds a page or a command in memory, in bytes.
	longestAnswer = 256 << 20
	// longestProblem bounds what is read of an error, in bytes.
	longestProblem = 1 << 20
)

// APIError is an answer of the API that says no: a problem document, or what stood between the client and the API.
type APIError struct {
	// Operation is what was asked for.
	Operation string
	Status    int
	// Type is stable, as in /problems/not-found; Detail is for people. Both are empty when the answer was no problem document.
	Type, Detail string
	// RetryAfter is how long the server wants to be left alone, 0 if it did not say.
	RetryAfter time.Duration
	// oldest is where a client may begin whose position is no longer kept.
	oldest int64
}

func (e *APIError) Error() string {
	text := fmt.Sprintf("%s: %d %s", e.Operation, e.Status, http.StatusText(e.Status))
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// passes reports whether asking again may be answered otherwise.
func (e *APIError) passes() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return e.Status >= http.StatusInternalServerError
}

// errUnreadable marks an answer that says neither yes nor no: half a document, a frame without sense, a number left out.
var errUnreadable = errors.New("the answer cannot be read")

// Status tells whether a conversation is at work, and how far its log goes. The error is an *APIError when the API said no.
func (c *Client) Status(ctx context.Context, conversationID string) (agent.ExecutionStatus, error) {
	var status agent.ExecutionStatus
	err := c.document(ctx, "/conversations/"+url.PathEscape(conversationID)+"/execution-status", nil, &status)
	return status, err
}

// messagesPerPage is how many messages are asked for at once.
const messagesPerPage = 1000

// Messages gives the messages of a conversation, the oldest first. The error is an *APIError when the API said no.
func (c *Client) Messages(ctx context.Context, conversationID string) ([]agent.Message, error) {
	var all []agent.Message
	query := url.Values{"limit": {strconv.Itoa(messagesPerPage)}}
	for {
		var page struct {
			Messages []agent.Message `json:"messages"`
			HasMore  bool            `json:"has_more"`
		}
		if err := c.document(ctx, "/conversations/"+url.PathEscape(conversationID)+"/messages", query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Messages...)
		if !page.HasMore || len(page.Messages) == 0 {
			return all, nil
		}
		query.Set("after", strconv.FormatInt(page.Messages[len(page.Messages)-1].Sequence, 10))
	}
}

// said reads the whole text that a model's command has committed.
func (c *Client) said(ctx context.Context, runID, commandID string) (string, error) {
	var command struct {
		Result struct {
			Text string `json:"text"`
		} `json:"result"`
	}
	err := c.document(ctx, "/runs/"+url.PathEscape(runID)+"/commands/"+url.PathEscape(commandID), nil, &command)
	return command.Result.Text, err
}

// document reads a JSON document within the time that a connection may be silent.
func (c *Client) document(ctx context.Context, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.silence())
	defer cancel()
	res, err := c.get(ctx, path, query, "application/json")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, longestAnswer))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("read %s: %w: %w", path, errUnreadable, err)
	}
	return nil
}

// check refuses a URL that no try will reach.
func (c *Client) check() error {
	u, err := url.Parse(c.URL)
	if err != nil {
		return fmt.Errorf("the URL of the API: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("the URL of the API: %q: want http://HOST or https://HOST", c.URL)
	}
	return nil
}

// get asks for something that the API has. The error is an *APIError for every answer but 200 and 204.
func (c *Client) get(ctx context.Context, path string, query url.Values, accept string) (*http.Response, error) {
	address := strings.TrimSuffix(c.URL, "/") + apiPath + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusNoContent {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	return nil, problemOf(res, "GET "+path)
}

func problemOf(res *http.Response, operation string) *APIError {
	e := &APIError{Operation: operation, Status: res.StatusCode, RetryAfter: retryAfter(res.Header.Get("Retry-After"))}
	var problem struct {
		Type           string `json:"type"`
		Detail         string `json:"detail"`
		OldestSequence int64  `json:"oldest_sequence"`
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, longestProblem))
	if err == nil && json.Unmarshal(raw, &problem) == nil { // else it is no problem document, and the status says it all
		e.Type, e.Detail, e.oldest = problem.Type, problem.Detail, problem.OldestSequence
	}
	return e
}

// longestRetryAfter bounds what a server can make a client wait.
const longestRetryAfter = time.Hour

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return min(time.Duration(min(seconds, math.MaxInt32))*time.Second, longestRetryAfter)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), longestRetryAfter)
	}
	return 0
}

func (c *Client) silence() time.Duration {
	if c.Silence > 0 {
		return c.Silence
	}
	return defaultSilence
}
