package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A smaller run than the benchmark's, by the same measure: what Temporal keeps of a command does not depend on what was said
// before, on what the tools give or on what the model is told.
func TestHistoryStaysSmall(t *testing.T) {
	t.Parallel()
	o := options{calls: 20, tokens: 40_000, budget: 20_000, timeout: 5 * time.Minute}
	r, err := measure(t.Context(), o)
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.conversation, o.tokens)
	require.Equal(t, 2*o.calls+1, r.commands)
	require.Less(t, r.Bytes/r.commands, 400_000/201)
	require.Less(t, r.ServerBytes/int64(r.commands), int64(400_000/201))
	require.Less(t, r.LargestPayload, 2000)
	require.LessOrEqual(t, r.largestPrompt, o.budget)
	require.Greater(t, r.firstCall.tokens, o.budget*8/10, "the budget is used")
	require.Greater(t, r.lastly.tokens, o.budget*8/10)
}
