package model

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"runledger/agent"
)

// ContextError is what Generate returns once ctx has ended: a timeout at the deadline, else a cancellation. It wraps
// ctx.Err(). Its fault is unknown, because the vendor may have worked and charged for an answer that nobody read.
func ContextError(ctx context.Context) *agent.Error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return agent.Unknown(agent.CodeTimeout, "the model did not answer in time: %w", err)
	}
	return agent.Unknown(agent.CodeCancelled, "the call of the model was cancelled: %w", err)
}

// StatusError classifies an HTTP answer of a vendor that is not a success. The message is the vendor's own and must not hold
// a secret: it goes on record.
func StatusError(status int, header http.Header, message string) *agent.Error {
	said := strconv.Itoa(status)
	if text := http.StatusText(status); text != "" {
		said += " " + text
	}
	if message != "" && !strings.EqualFold(message, http.StatusText(status)) {
		said += ": " + message
	}
	if !TransientStatus(status) {
		return agent.Failed(agent.CodeModelFailed, "the model's vendor answered %s", said)
	}
	err := agent.Transient(agent.CodeModelUnavailable, "the model's vendor answered %s", said)
	err.RetryAfter = RetryAfter(header)
	return err
}

// TransientStatus reports whether the same request can succeed later after this HTTP status.
func TransientStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// RetryAfter reads how long a vendor asks to wait: Retry-After-Ms, or Retry-After in seconds or as an HTTP date. It is 0 when
// the header names no time to come. A date is measured from the answer's own Date, so that clocks need not agree.
func RetryAfter(header http.Header) time.Duration {
	if ms, ok := positive(header.Get("Retry-After-Ms")); ok {
		return span(ms, time.Millisecond)
	}
	value := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, ok := positive(value); ok {
		return span(seconds, time.Second)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(at.Sub(now), 0)
}

func positive(text string) (float64, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return n, err == nil && n > 0
}

func span(n float64, unit time.Duration) time.Duration {
	if n >= float64(math.MaxInt64)/float64(unit) {
		return math.MaxInt64
	}
	return time.Duration(n * float64(unit))
}
