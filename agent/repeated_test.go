package agent_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestRememberCall(t *testing.T) {
	t.Parallel()
	digest := func(tool, arguments string) string { return agent.CallDigest(tool, json.RawMessage(arguments)) }
	require.Equal(t, digest("put", `{"a": 1, "b": 2}`), digest("put", `{"b":2,"a":1}`))
	require.NotEqual(t, digest("put", `{"a":1}`), digest("get", `{"a":1}`))
	require.NotEqual(t, digest("put", `x`), digest("pu", `tx`), "what is no JSON counts as it stands")
	var calls []agent.RepeatedCall
	for i := range 70 {
		calls = agent.RememberCall(agent.RememberCall(calls, "again"), strconv.Itoa(i))
	}
	require.Len(t, calls, 64)
	require.Equal(t, agent.RepeatedCall{Digest: "again", Count: 70}, calls[62], "what comes again and again is not forgotten")
	require.Equal(t, agent.RepeatedCall{Digest: "69", Count: 1}, calls[63])
	require.Equal(t, "7", calls[0].Digest, "of the others the oldest are")
}
