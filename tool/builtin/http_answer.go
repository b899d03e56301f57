package builtin

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"runledger/agent"
)

const (
	maxHeaderValue = 1 << 10
	maxErrorBody   = 2 << 10
	maxRetryAfter  = time.Hour
)

// httpOut is the output of http_request: a response without what a model cannot read.
type httpOut = agent.HTTPResponse

// answer makes the output of a response whose body has been read up to one byte over the limit.
func answer(resp *http.Response, body []byte, limit int64) httpOut {
	out := httpOut{Status: resp.StatusCode, Headers: usefulHeaders(resp.Header)}
	if int64(len(body)) > limit {
		out.Truncated = true
		body = trimRune(body[:limit])
	}
	out.Bytes = len(body)
	if !utf8.Valid(body) {
		out.Data = body
		return out
	}
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	if !out.Truncated && isJSON(resp.Header.Get("Content-Type"), body) {
		out.JSON = body
		return out
	}
	text := string(body)
	out.Text = &text
	return out
}

// isJSON goes by the content type; servers that send plain text are believed too when the body is an object or a list.
func isJSON(contentType string, body []byte) bool {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return false
	}
	kind, _, _ := mime.ParseMediaType(contentType)
	declared := kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json")
	likely := (kind == "" || kind == "text/plain") && (body[0] == '{' || body[0] == '[')
	return (declared || likely) && json.Valid(body)
}

// trimRune cuts a character at the end that the limit has split.
func trimRune(body []byte) []byte {
	for back := 1; back < utf8.UTFMax && back <= len(body); back++ {
		if tail := body[len(body)-back:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return body[:len(body)-back]
			}
			break
		}
	}
	return body
}

// usefulHeaders keeps what a plan or a model can use. It is a list of what passes, not of what does not: cookies,
// challenges and whatever else a server puts there must not reach the record and the streams.
func usefulHeaders(header http.Header) map[string]string {
	useful := map[string]string{}
	for name, values := range header {
		lower := strings.ToLower(name)
		switch lower {
		case "accept-ranges", "allow", "cache-control", "content-disposition", "content-language", "content-type", "date", "etag",
			"expires", "last-modified", "link", "location", "retry-after", "x-request-id", "x-total-count":
		default:
			if !strings.HasPrefix(lower, "ratelimit-") && !strings.HasPrefix(lower, "x-ratelimit-") {
				continue
			}
		}
		if value := strings.Join(values, ", "); len(value) <= maxHeaderValue {
			useful[lower] = strings.ToValidUTF8(value, "\ufffd")
		}
	}
	return useful
}

// statusFailure reads an answer of 400 or more: after 408, 409, 425, 429 and 5xx the effect may have taken place.
func statusFailure(shown string, resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what comes is enough: it only helps the reader
	detail := ""
	if body = bytes.TrimSpace(trimRune(body)); len(body) > 0 && utf8.Valid(body) {
		detail = ": " + string(body)
	}
	failure := agent.Unknown
	if resp.StatusCode < 500 {
		switch resp.StatusCode {
		case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		default:
			failure = agent.Failed
		}
	}
	err := failure(agent.CodeToolFailed, "%s: status %d %s%s", shown, resp.StatusCode, http.StatusText(resp.StatusCode), detail)
	err.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return err
}

// retryAfter reads the header in both of its forms; 0 when it is missing, malformed or over.
func retryAfter(value string, now time.Time) time.Duration {
	var wait time.Duration
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		wait = date.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}
