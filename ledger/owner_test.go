package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

const stranger = "team-b"

// acceptedBy accepts a run of an owner, in a new conversation where none is named.
func (b *bench) acceptedBy(t testing.TB, who, conversationID string) agent.Run {
	t.Helper()
	a := acceptance(nil)
	a.Owner = who
	if conversationID != "" {
		a.NewConversation, a.Run.ConversationID = false, conversationID
	}
	run, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	return run
}

// A page that goes on after what is another owner's would tell that it is there, and when it was made.
func TestPagesDoNotGoOnAfterAnotherOwners(t *testing.T) {
	t.Parallel()
	b := setup(t)
	own := b.acceptedBy(t, stranger, "")
	victim := b.acceptedBy(t, owner, "")
	runs := func(before string) []agent.Run {
		page, more, err := b.Runs(t.Context(), agent.RunFilter{Owner: stranger, Before: before, Limit: 10})
		require.NoError(t, err)
		require.False(t, more)
		return page
	}
	conversations := func(before string) []agent.Conversation {
		page, more, err := b.Conversations(t.Context(), stranger, before, 10)
		require.NoError(t, err)
		require.False(t, more)
		return page
	}
	require.Len(t, runs(""), 1)
	require.Equal(t, runs(newID()), runs(victim.RunID))
	require.Empty(t, runs(victim.RunID), "the stranger's own run is older")
	require.Len(t, conversations(""), 1)
	require.Equal(t, conversations(newID()), conversations(victim.ConversationID))
	require.Empty(t, conversations(victim.ConversationID))

	newer := b.acceptedBy(t, stranger, "")
	page := runs(newer.RunID)
	require.Len(t, page, 1)
	require.Equal(t, own.RunID, page[0].RunID)
}

// What another owner calls its messages is nobody else's business: the id is free, and not told of.
func TestMessageIDsAreTheConversationsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	victim := b.acceptedBy(t, owner, "")
	a := acceptance(nil)
	a.Owner, a.Run.MessageID = stranger, victim.MessageID
	run, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	for conversationID, runID := range map[string]string{run.ConversationID: run.RunID, victim.ConversationID: victim.RunID} {
		messages, _, err := b.Messages(t.Context(), conversationID, 0, 10)
		require.NoError(t, err)
		require.Len(t, messages, 1)
		require.Equal(t, runID, messages[0].RunID)
		require.Equal(t, victim.MessageID, messages[0].MessageID)
	}
}

func TestAnyOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.acceptedBy(t, owner, ""), b.acceptedBy(t, stranger, "")
	for _, run := range []agent.Run{one, two} {
		got, err := b.Run(t.Context(), agent.AnyOwner, run.RunID)
		require.NoError(t, err)
		require.Equal(t, run.RunID, got.RunID)
		_, err = b.Conversation(t.Context(), agent.AnyOwner, run.ConversationID)
		require.NoError(t, err)
	}
	ids := func(before string, limit int) (got []string, more bool) {
		page, more, err := b.Runs(t.Context(), agent.RunFilter{Owner: agent.AnyOwner, Before: before, Limit: limit})
		require.NoError(t, err)
		for _, r := range page {
			got = append(got, r.RunID)
		}
		return got, more
	}
	first, more := ids("", 1)
	require.Equal(t, []string{two.RunID}, first)
	require.True(t, more)
	rest, more := ids(two.RunID, 1)
	require.Equal(t, []string{one.RunID}, rest)
	require.False(t, more)
	all, _, err := b.Conversations(t.Context(), agent.AnyOwner, "", 10)
	require.NoError(t, err)
	require.Len(t, all, 2)
	older, _, err := b.Conversations(t.Context(), agent.AnyOwner, two.ConversationID, 10)
	require.NoError(t, err)
	require.Len(t, older, 1)

	third := b.acceptedBy(t, agent.AnyOwner, one.ConversationID)
	got, err := b.Run(t.Context(), owner, third.RunID)
	require.NoError(t, err)
	require.Equal(t, third.RunID, got.RunID, "it is the conversation's owner's")
	_, err = b.Run(t.Context(), stranger, third.RunID)
	require.Error(t, err)
	cancelled, err := b.RequestCancel(t.Context(), agent.AnyOwner, two.RunID, "ada", "enough")
	require.NoError(t, err)
	require.Equal(t, agent.Cancelled, cancelled.Status)

	homeless := acceptance(nil)
	homeless.Owner = agent.AnyOwner
	_, _, err = b.Accept(t.Context(), homeless)
	require.ErrorContains(t, err, "an owner of its own")
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM conversations WHERE owner = '*'`))
}

// Many owners, one of whom lists: the database goes by the index, as often as the statement has been prepared before.
func TestListsByOwnerUseTheIndex(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO conversations (id, owner) SELECT gen_random_uuid(), 'owner-' || i % 1000 FROM generate_series(1, 20000) AS i`)
	b.exec(t, `ANALYZE conversations`)
	conn, err := b.db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `PREPARE listed (text) AS SELECT id FROM conversations WHERE (owner = $1 OR $1 = '*')
		ORDER BY created_at DESC, id DESC LIMIT 51`)
	require.NoError(t, err)
	for range 10 { // Postgres decides after five whether a general plan will do
		var plan string
		rows, err := conn.Query(t.Context(), `EXPLAIN EXECUTE listed ('owner-7')`)
		require.NoError(t, err)
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			plan += line + "\n"
		}
		require.NoError(t, rows.Err())
		require.Contains(t, plan, "conversations_by_owner", plan)
	}
}
