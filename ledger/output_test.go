package ledger_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func (b *bench) says(t testing.TB, c command, attempt int, first int, texts ...string) {
	t.Helper()
	var chunks []agent.OutputChunk
	for i, text := range texts {
		chunks = append(chunks, agent.OutputChunk{Chunk: first + i, Channel: "text", Text: text})
	}
	require.NoError(t, b.AppendOutput(t.Context(), c.run.RunID, c.id, attempt, chunks))
}

func (b *bench) output(t testing.TB, conversationID string, have ...agent.OutputCursor) []string {
	t.Helper()
	news, err := b.News(t.Context(), []agent.LogCursor{{ConversationID: conversationID, Output: true, Have: have}}, 1)
	require.NoError(t, err)
	said := []string{}
	for _, o := range news[0].Output {
		said = append(said, fmt.Sprintf("%s.%d.%d %s", o.CommandID, o.Attempt, o.Chunk, o.Text))
	}
	return said
}

// Model output while it arrives: each reader gets what it does not have, of commands that are open, of the newest dispatch.
func TestOutputByCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	other := b.acceptedIn(t, run.ConversationID, nil)
	a, c := command{run: run, id: "a", inner: true}, command{run: run, id: "c", inner: true}
	foreign := command{run: other, id: "a", inner: true}
	elsewhere := b.accepted(t, twoStep(t))
	d := command{run: elsewhere, id: "a", inner: true}
	all := run.ConversationID
	b.says(t, a, 1, 1, "before it began")
	require.Empty(t, b.output(t, all))
	for _, at := range []command{a, c, foreign, d} {
		b.begins(t, at)
	}
	last := b.last(t, run)
	b.says(t, a, 1, 1, "one", "two\x00\xff")
	b.says(t, a, 1, 2, "two again, after a lost reply", "three")
	b.says(t, c, 1, 1, "c")
	b.says(t, a, 2, 1, "of a dispatch that is not")
	b.says(t, foreign, 1, 1, "foreign")
	b.says(t, d, 1, 1, "elsewhere")
	require.Equal(t, last, b.last(t, run), "output is no history")

	require.ElementsMatch(t, []string{"a.1.1 one", "a.1.2 two\uFFFD\uFFFD", "a.1.3 three", "c.1.1 c", "a.1.1 foreign"}, b.output(t, all))
	cursor, heard := agent.OutputCursor{RunID: run.RunID, CommandID: "a", Attempt: 1, Chunk: 2}, agent.OutputCursor{RunID: other.RunID, CommandID: "a", Attempt: 1, Chunk: 1}
	require.Equal(t, []string{"a.1.3 three", "c.1.1 c"}, b.output(t, all, cursor, heard))

	// What is new in several conversations, each with a cursor of its own.
	of := func(run agent.Run) agent.LogCursor {
		return agent.LogCursor{ConversationID: run.ConversationID, After: b.last(t, run) - 2, Output: true}
	}
	quiet, behind, deaf := of(run), of(elsewhere), of(run)
	quiet.After, quiet.Have = b.last(t, run), []agent.OutputCursor{cursor, {RunID: run.RunID, CommandID: "c", Attempt: 1, Chunk: 1}, heard}
	deaf.Output = false
	news, err := b.News(t.Context(), []agent.LogCursor{quiet, behind, deaf, {ConversationID: uuid.NewString(), Output: true}}, 1)
	require.NoError(t, err)
	require.Len(t, news, 4)
	require.Equal(t, agent.LogNews{Output: []agent.OutputChunk{{ConversationID: run.ConversationID, RunID: run.RunID, RootRunID: run.RunID, NodeID: "a", CommandID: "a",
		Attempt: 1, Chunk: 3, Channel: "text", Text: "three"}}}, news[0])
	for i, c := range []agent.LogCursor{1: behind, 2: deaf} {
		if c.ConversationID == "" {
			continue
		}
		events, err := b.Events(t.Context(), agent.LogScope{ConversationID: c.ConversationID}, c.After, 1)
		require.NoError(t, err)
		require.Equal(t, events, news[i].Events)
	}
	require.Equal(t, "elsewhere", news[1].Output[0].Text)
	require.Empty(t, news[2].Output)
	require.Equal(t, agent.LogNews{Gone: true}, news[3], "there is no such conversation")

	// A new dispatch begins from nothing, whatever a reader has of the old one.
	b.expire(t, a)
	b.begins(t, command{run: run, id: "a", inner: true, attempt: 2})
	require.Equal(t, []string{"c.1.1 c"}, b.output(t, all, heard))
	b.says(t, a, 1, 4, "zombie")
	b.says(t, a, 2, 1, "anew")
	require.Equal(t, []string{"a.2.1 anew", "c.1.1 c"}, b.output(t, all, agent.OutputCursor{RunID: run.RunID, CommandID: "a", Attempt: 1, Chunk: 3}, heard))
}

func TestOutputIsGoneWhenItsCommandIsDecided(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for name, decide := range map[string]func(c command){
		"commit": func(c command) { b.commits(t, c, 1, `1`) },
		"release": func(c command) {
			_, err := b.Conclude(t.Context(), c.conclude(1, agent.Released, agent.Transient(agent.CodeModelStream, "x")))
			require.NoError(t, err)
		},
		"fail": func(c command) {
			_, err := b.Conclude(t.Context(), c.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeModelFailed, "x")))
			require.NoError(t, err)
		},
		"settle": func(c command) {
			_, err := b.Settle(t.Context(), agent.SettleCall{Call: c.call()})
			require.NoError(t, err)
		},
	} {
		c := command{run: run, id: name, kind: agent.ModelCommand, inner: true}
		b.begins(t, c)
		b.says(t, c, 1, 1, "x")
		require.Len(t, b.output(t, run.ConversationID), 1, name)
		decide(c)
		require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM model_output`), name)
		b.says(t, c, 1, 2, "late")
		require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM model_output`), name)
	}
}

func TestOutputWakesReaders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	c := command{run: run, id: "a"}
	b.begins(t, c)
	awaitListening(t, b, 1)
	other := open(t, b.url, 0)
	news, cancel := b.Subscribe(run.ConversationID)
	defer cancel()
	drain(news)
	require.NoError(t, other.AppendOutput(t.Context(), run.RunID, "a", 1, []agent.OutputChunk{{Chunk: 1, Channel: "text", Text: "x"}}))
	awaitClosed(t, news)
}
