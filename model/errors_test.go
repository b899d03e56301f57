package model_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
)

func TestStatusError(t *testing.T) {
	t.Parallel()
	transient := map[int]bool{408: true, 409: true, 425: true, 429: true}
	for status := 300; status < 600; status++ {
		err := model.StatusError(status, http.Header{"Retry-After": {"3"}}, "because")
		if transient[status] || status >= 500 {
			require.Equal(t, agent.CodeModelUnavailable, err.Code, status)
			require.Equal(t, agent.FaultTransient, err.Fault, status)
			require.Equal(t, 3*time.Second, err.RetryAfter, status)
		} else {
			require.Equal(t, agent.CodeModelFailed, err.Code, status)
			require.Equal(t, agent.FaultDefinite, err.Fault, status)
		}
		require.Contains(t, err.Message, "because")
	}
	require.EqualError(t, model.StatusError(404, nil, "Not Found"), "MODEL_FAILED: the model's vendor answered 404 Not Found")
	require.EqualError(t, model.StatusError(529, nil, ""), "MODEL_UNAVAILABLE: the model's vendor answered 529")
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const now, later = "Sat, 21 Nov 2026 03:00:00 GMT", "Sat, 21 Nov 2026 03:01:30 GMT"
	tests := map[string]struct {
		header map[string]string
		want   time.Duration
	}{
		"none":                {nil, 0},
		"seconds":             {map[string]string{"Retry-After": "20"}, 20 * time.Second},
		"fraction":            {map[string]string{"Retry-After": " 0.5 "}, 500 * time.Millisecond},
		"milliseconds first":  {map[string]string{"Retry-After": "20", "Retry-After-Ms": "1500"}, 1500 * time.Millisecond},
		"milliseconds broken": {map[string]string{"Retry-After": "20", "Retry-After-Ms": "soon"}, 20 * time.Second},
		"date":                {map[string]string{"Retry-After": later, "Date": now}, 90 * time.Second},
		"date gone by":        {map[string]string{"Retry-After": now, "Date": later}, 0},
		"date long gone":      {map[string]string{"Retry-After": "Sat, 21 Nov 2015 03:00:00 GMT"}, 0},
		"negative":            {map[string]string{"Retry-After": "-3"}, 0},
		"rubbish":             {map[string]string{"Retry-After": "a while"}, 0},
		"NaN":                 {map[string]string{"Retry-After": "NaN"}, 0},
		"for ever":            {map[string]string{"Retry-After": "Inf"}, math.MaxInt64},
		"too long to count":   {map[string]string{"Retry-After": "1e300"}, math.MaxInt64},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			for k, v := range tt.header {
				header.Set(k, v)
			}
			require.Equal(t, tt.want, model.RetryAfter(header))
		})
	}
}

func TestRetryAfterADateByTheLocalClock(t *testing.T) {
	t.Parallel()
	header := http.Header{"Retry-After": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}}
	require.InDelta(t, time.Hour, model.RetryAfter(header), float64(time.Minute))
}

func TestContextError(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the user"))
	err := model.ContextError(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, agent.CodeCancelled, err.Code)
	require.Equal(t, agent.FaultUnknown, err.Fault)

	expired, cancelExpired := context.WithTimeout(t.Context(), 0)
	defer cancelExpired()
	err = model.ContextError(expired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, agent.CodeTimeout, err.Code)
}
