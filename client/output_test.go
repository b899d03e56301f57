package client

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func piece(attempt int, channel string, chunk, through int, text string) delta {
	d := delta{RunID: "r", NodeID: "n", CommandID: "c", Attempt: attempt}
	d.Data.Channel, d.Data.Chunk, d.Data.Through, d.Data.Text = channel, chunk, through, text
	return d
}

func of(typ agent.EventType, attempt int, data string) agent.Event {
	return agent.Event{Type: typ, RunID: "r", NodeID: "n", CommandID: "c", Attempt: attempt, Data: json.RawMessage(data)}
}

func said1(attempt int, channel, text, added string, replaces bool, state OutputState) *Output {
	return &Output{RunID: "r", NodeID: "n", CommandID: "c", Attempt: attempt, Channel: channel, Text: text, Added: added, Replaces: replaces, State: state}
}

// What a model says, in the order in which a client may hear of it.
func TestOutputs(t *testing.T) {
	t.Parallel()
	o := newOutputs()
	// Pieces add up, on each channel; one that came before does not count again.
	require.Equal(t, said1(1, "thinking", "hm", "hm", false, Arriving), o.add(piece(1, "thinking", 1, 0, "hm")))
	require.Equal(t, said1(1, "text", "He", "He", false, Arriving), o.add(piece(1, "text", 2, 0, "He")))
	require.Equal(t, said1(1, "text", "Hello", "llo", false, Arriving), o.add(piece(1, "text", 3, 0, "llo")))
	require.Nil(t, o.add(piece(1, "text", 2, 0, "He")))
	// The whole so far replaces: it goes on from what there was, or it does not; an older one is no news.
	require.Equal(t, said1(1, "text", "Hello you", " you", false, Arriving), o.add(piece(1, "text", 5, 5, "Hello you")))
	require.Equal(t, said1(1, "text", "Hallo", "", true, Arriving), o.add(piece(1, "text", 6, 6, "Hallo")))
	require.Nil(t, o.add(piece(1, "text", 4, 4, "Hell")))
	// A higher attempt discards the lower ones, on all channels.
	require.Equal(t, said1(2, "text", "B", "", true, Arriving), o.add(piece(2, "text", 1, 0, "B")))
	require.Nil(t, o.add(piece(1, "text", 7, 0, "!")))
	require.Equal(t, said1(2, "thinking", "x", "x", false, Arriving), o.add(piece(2, "thinking", 2, 0, "x")))
	// So does its event, and what comes late of it is no news.
	out, cut := o.note(of(agent.AttemptDiscarded, 2, `{}`))
	require.False(t, cut)
	require.Equal(t, said1(2, "", "", "", true, Discarded), out)
	require.Nil(t, o.add(piece(2, "text", 3, 3, "BC")))
	require.Equal(t, said1(3, "text", "The", "The", false, Arriving), o.add(piece(3, "text", 1, 0, "The")))
	// The committed text is the truth, and nothing comes after it.
	out, cut = o.note(of("chat_completed", 3, `{"kind":"llm","output":{"bytes":9,"json":"The end"}}`))
	require.False(t, cut)
	require.Equal(t, said1(3, "text", "The end", " end", false, Committed), out)
	require.Nil(t, o.add(piece(3, "text", 2, 2, "The e")))
	require.Nil(t, o.add(piece(4, "text", 1, 0, "late")))
}

func TestOutputsThatEnd(t *testing.T) {
	t.Parallel()
	for _, typ := range []agent.EventType{agent.CommandFailedType, agent.CommandAbortType, agent.CommandDoubtType, agent.CommandResolved} {
		o := newOutputs()
		o.add(piece(1, "text", 1, 0, "He"))
		out, _ := o.note(of(typ, 0, `{}`))
		require.Equal(t, said1(1, "", "", "", true, Discarded), out, typ)
		require.Nil(t, o.add(piece(1, "text", 2, 0, "llo")), typ)
		require.NotNil(t, o.add(piece(2, "text", 1, 0, "Again")), "%s: the next attempt counts", typ)
	}
	// Nothing was shown: nothing is taken away.
	out, _ := newOutputs().note(of(agent.CommandFailedType, 1, `{}`))
	require.Nil(t, out)
	out, _ = newOutputs().note(of(agent.AttemptDiscarded, 1, `{}`))
	require.Nil(t, out)
}

func TestCommittedOutputs(t *testing.T) {
	t.Parallel()
	// A replay gives texts too, in every profile.
	for typ, data := range map[agent.EventType]string{
		"chat_completed":       `{"kind":"llm","output":{"json":"Hi"}}`,
		"thought":              `{"output":{"json":"Hi"}}`,
		agent.CommandCommitted: `{"kind":"llm","output":{"json":"Hi"}}`,
	} {
		out, cut := newOutputs().note(of(typ, 1, data))
		require.False(t, cut)
		require.Equal(t, said1(1, "text", "Hi", "", true, Committed), out, typ)
	}
	// What is no text of a model is none.
	for _, e := range []agent.Event{of(agent.CommandCommitted, 1, `{"kind":"plan","output":{"json":"Hi"}}`), of("tool_completed", 1, `{"output":{"json":"Hi"}}`),
		of("chat_completed", 1, `{"kind":"llm","output":{"preview":"Hi"}}`), of("chat_completed", 1, `[]`)} {
		out, cut := newOutputs().note(e)
		require.Nil(t, out)
		require.False(t, cut)
	}
	// Another text than the one that was shown replaces it. A long one is to be read.
	o := newOutputs()
	o.add(piece(1, "text", 1, 0, "He"))
	out, _ := o.note(of("chat_completed", 1, `{"kind":"llm","output":{"json":"Good bye"}}`))
	require.Equal(t, said1(1, "text", "Good bye", "", true, Committed), out)
	o = newOutputs()
	o.add(piece(1, "text", 1, 0, "He"))
	out, cut := o.note(of("chat_completed", 1, `{"kind":"llm","output":{"preview":"\"Hello\\n…"}}`))
	require.True(t, cut)
	require.Equal(t, said1(1, "text", "Hello\n…", "", true, Committed), out)
}

// A preview is the beginning of JSON.
func TestBeginningOfAText(t *testing.T) {
	t.Parallel()
	for preview, text := range map[string]string{
		`"It is \"391\"\n…`: "It is \"391\"\n…", `"391\…`: "391…", `"391\u…`: "391…", `"391\u003…`: "391…", `"391\u003c…`: "391<…", `"391\\…`: `391\…`,
		`{"sum": 391, "of…`: `{"sum": 391, "of…`, `"…`: "…", ``: ``, `…`: `…`,
	} {
		require.Equal(t, text, beginning(preview), "%q", preview)
	}
}
