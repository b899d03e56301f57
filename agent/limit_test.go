package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestRateAsText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]agent.Rate{
		"10/s":      {Calls: 10, Per: time.Second},
		"600/m":     {Calls: 600, Per: time.Minute},
		"1000 / h":  {Calls: 1000, Per: time.Hour},
		"5/250ms":   {Calls: 5, Per: 250 * time.Millisecond},
		"10000/24h": {Calls: 10_000, Per: 24 * time.Hour},
	} {
		var r, again agent.Rate
		require.NoError(t, r.UnmarshalText([]byte(text)))
		require.Equal(t, want, r)
		require.NoError(t, agent.CallLimit{Rate: r}.Check())
		written, err := r.MarshalText()
		require.NoError(t, err)
		require.NoError(t, again.UnmarshalText(written))
		require.Equal(t, want, again)
	}
	for _, text := range []string{"", "10", "/s", "10/", "ten/s", "10/d", "0/s", "-1/s", "10/0s", "10/-1s", "10001/s", "1/25h", "1/10us", "1/s/s"} {
		var r agent.Rate
		require.Error(t, r.UnmarshalText([]byte(text)), text)
	}
	require.ErrorContains(t, agent.CallLimit{MaxConcurrent: -1}.Check(), "max_concurrent: -1")
	require.True(t, agent.CallLimit{Name: "put"}.None())
}
