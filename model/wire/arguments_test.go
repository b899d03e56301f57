package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPastArguments(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{}`, PastArguments(" "))
	require.Equal(t, `{"a": 1}`, PastArguments(`{"a": 1}`))
	require.JSONEq(t, `{"malformed_arguments":"{\"a\""}`, PastArguments(`{"a"`))
	require.Equal(t, "[1]", PastArguments("[1]"))
	require.JSONEq(t, `{"malformed_arguments":"[1]"}`, string(PastObject("[1]")))
	require.JSONEq(t, `{"malformed_arguments":"null"}`, string(PastObject("null")))
	require.JSONEq(t, `{"a":1}`, string(PastObject(`{"a":1}`)))
}
