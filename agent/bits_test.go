package agent_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

func TestBits(t *testing.T) {
	t.Parallel()
	var b agent.Bits
	require.False(t, b.Has(0))
	require.False(t, b.Has(-1))
	require.Zero(t, b.Count())
	b = b.With(0).With(9).With(200)
	require.True(t, b.Has(0))
	require.False(t, b.Has(1))
	require.True(t, b.Has(9))
	require.True(t, b.Has(200))
	require.False(t, b.Has(5000))
	require.Equal(t, 3, b.Count())
	text, err := agent.Bits("").With(0).With(9).MarshalText()
	require.NoError(t, err)
	require.Equal(t, "0102", string(text))

	require.ErrorContains(t, new(agent.Bits).UnmarshalText([]byte("0x")), "node set")
	require.NoError(t, b.UnmarshalText([]byte("0100")))
	require.Equal(t, agent.Bits("").With(0), b, "equal sets are equal values")
}

func TestBitsAgreeWithASet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		set := map[int]bool{}
		var b agent.Bits
		for _, i := range rapid.SliceOf(rapid.IntRange(0, agent.MaxPlanNodes)).Draw(t, "indexes") {
			before := string(b)
			was := b
			if rapid.Bool().Draw(t, "in") {
				set[i], b = true, b.With(i)
			} else {
				delete(set, i)
				b = b.Without(i)
			}
			require.Equal(t, before, string(was), "a value is never changed in place")
		}
		require.Equal(t, len(set), b.Count())
		var rebuilt agent.Bits
		for _, i := range indexes(agent.MaxPlanNodes + 20) {
			require.Equal(t, set[i], b.Has(i))
			if set[i] {
				rebuilt = rebuilt.With(i)
			}
		}
		require.Equal(t, rebuilt, b, "equal sets are equal values")

		doc, err := json.Marshal(b)
		require.NoError(t, err)
		var again agent.Bits
		require.NoError(t, json.Unmarshal(doc, &again))
		require.Equal(t, b, again)
	})
}

func FuzzBits(f *testing.F) {
	for _, seed := range []string{"", "00", "0100", "FF", "0", "zz", "80000000000000000000000000000000000000000000000001"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var b agent.Bits
		if b.UnmarshalText([]byte(text)) != nil {
			return
		}
		written, err := b.MarshalText()
		require.NoError(t, err)
		var again agent.Bits
		require.NoError(t, again.UnmarshalText(written))
		require.Equal(t, b, again)
		count := 0
		for i := range 8 * len(text) {
			if b.Has(i) {
				count++
				require.Equal(t, b, b.Without(i).With(i))
			}
		}
		require.Equal(t, count, b.Count())
		require.False(t, slices.Contains(written, byte(0)))
	})
}
