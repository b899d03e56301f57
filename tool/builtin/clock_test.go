package builtin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

func TestClock(t *testing.T) {
	t.Parallel()
	clock := Clock(func() time.Time { return time.Date(2026, 11, 21, 13, 5, 9, 123, time.UTC) })
	require.Equal(t, agent.Idempotent, clock.Spec().Effect)
	for _, tc := range []struct{ args, output, failure string }{
		{`{}`, `{"time": "2026-11-21T13:05:09Z", "unix": 1795266309, "timezone": "UTC", "weekday": "Saturday"}`, ""},
		{``, `{"time": "2026-11-21T13:05:09Z", "unix": 1795266309, "timezone": "UTC", "weekday": "Saturday"}`, ""},
		{`{"timezone": "Europe/Berlin"}`, `{"time": "2026-11-21T14:05:09+01:00", "unix": 1795266309, "timezone": "Europe/Berlin", "weekday": "Saturday"}`, ""},
		{`{"timezone": "Pacific/Auckland"}`, `{"time": "2026-11-22T02:05:09+13:00", "unix": 1795266309, "timezone": "Pacific/Auckland", "weekday": "Sunday"}`, ""},
		{`{"timezone": "Berlin"}`, "", `there is no time zone "Berlin"`},
		{`{"timezone": "Local"}`, "", `there is no time zone "Local"`},
		{`{"timezone": "../../etc/passwd"}`, "", "there is no time zone"},
	} {
		out, err := clock.Call(t.Context(), tool.Call{Arguments: json.RawMessage(tc.args)})
		if tc.failure != "" {
			require.ErrorContains(t, err, tc.failure)
			require.ErrorIs(t, err, &agent.Error{Code: agent.CodeToolFailed})
			continue
		}
		require.NoError(t, err)
		require.JSONEq(t, tc.output, string(out))
	}
}

func TestClockTellsTheTimeOfTheMachine(t *testing.T) {
	t.Parallel()
	before := time.Now().Unix()
	out, err := Clock(nil).Call(t.Context(), tool.Call{})
	require.NoError(t, err)
	var got clockOut
	require.NoError(t, json.Unmarshal(out, &got))
	require.GreaterOrEqual(t, got.Unix, before)
	require.LessOrEqual(t, got.Unix, time.Now().Unix())
}
