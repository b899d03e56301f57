package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// mentions lists the tables with a row that has a text anywhere in it.
func (b *bench) mentions(t testing.TB, text string) (tables []string) {
	t.Helper()
	rows, err := b.db.Query(t.Context(), `SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' ORDER BY 1`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Greater(t, len(all), 12)
	for _, table := range all {
		if value[bool](t, b, fmt.Sprintf(`SELECT EXISTS (SELECT FROM %s t WHERE t::text LIKE '%%' || $1 || '%%')`, pgx.Identifier{table}.Sanitize()), text) {
			tables = append(tables, table)
		}
	}
	return tables
}

func TestDeleteLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large := `"` + strings.Repeat("x", 40_000) + `"`
	a := acceptance(twoStep(t))
	a.Key, a.RequestHash = "key", "hash"
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	c := command{run: run, id: "a"}
	b.runs(t, c, large)
	say := command{run: run, id: "b", index: 1, kind: agent.ModelCommand}
	require.NoError(t, b.AppendOutput(t.Context(), run.RunID, "b", b.begins(t, say), []agent.OutputChunk{{Chunk: 1, Channel: "text", Text: "he"}}))
	b.exec(t, `INSERT INTO inputs (run_id, name, input_id, value, sequence_number, created_at) VALUES ($1, 'go', 'i', '1', 1, now())`, run.RunID)
	b.exec(t, `INSERT INTO approvals (approval_id, run_id, node_id, command_id, tool, effect_class, arguments, arguments_hash, requested_at, expires_at)
		VALUES (gen_random_uuid(), $1, 'a', 'a', 'put', 'external', '{}', '', now(), now())`, run.RunID)
	other := b.did(t, "", `1`)
	before := b.mentions(t, other.RunID)

	var conflict *agent.ConflictError
	require.ErrorAs(t, b.DeleteConversation(t.Context(), owner, run.ConversationID), &conflict)
	require.Equal(t, agent.ConflictRunOpen, conflict.Reason)
	require.Equal(t, run.RunID, conflict.RunID)
	b.exec(t, `UPDATE intents SET delivered_at = now()`)
	b.finish(t, run, agent.Cancelled)
	require.GreaterOrEqual(t, len(b.mentions(t, run.RunID)), 9)
	require.Equal(t, 1, value[int](t, b, `SELECT count(*) FROM payloads`))

	var missing *agent.NotFoundError
	require.ErrorAs(t, b.DeleteConversation(t.Context(), "team-b", run.ConversationID), &missing)
	news, cancel := b.Subscribe(run.ConversationID)
	defer cancel()
	require.NoError(t, b.DeleteConversation(t.Context(), owner, run.ConversationID))
	<-news
	for _, id := range []string{run.ConversationID, run.RunID, run.MessageID} {
		require.Empty(t, b.mentions(t, id))
	}
	require.Zero(t, value[int](t, b, `SELECT count(*) FROM payloads`))
	require.Equal(t, before, b.mentions(t, other.RunID))
	b.agrees(t, other)

	require.ErrorAs(t, b.DeleteConversation(t.Context(), owner, run.ConversationID), &missing)
	scope := agent.LogScope{ConversationID: run.ConversationID}
	_, err = b.Events(t.Context(), scope, 0, 10)
	require.ErrorAs(t, err, &missing)
	_, err = b.Events(t.Context(), agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 10)
	require.ErrorAs(t, err, &missing)
	_, err = b.Extent(t.Context(), scope)
	require.ErrorAs(t, err, &missing)
	_, created, err := b.Accept(t.Context(), agent.Acceptance{Owner: owner, Key: "key", RequestHash: "another", NewConversation: true, Run: acceptance(nil).Run})
	require.NoError(t, err, "the key went too")
	require.True(t, created)
}

// TestForksOutliveTheirSource: a fork has copies of its own, and is told its history as before.
func TestForksOutliveTheirSource(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large := `"` + strings.Repeat("x", 40_000) + `"`
	earlier := b.ended(t, "", agent.Cancelled, `1`)
	source := b.did(t, earlier.ConversationID, large)
	b.finish(t, source, agent.FailedStatus)
	forked := func(of agent.Run) agent.Run {
		t.Helper()
		r := acceptance(nil).Run
		r.Definition = of.Definition
		r.Input = of.Input
		run, created, err := b.Fork(t.Context(), agent.Fork{Owner: owner, Source: of.RunID, Run: r})
		require.NoError(t, err)
		require.True(t, created)
		return run
	}
	fork := forked(source)
	told := func(run agent.Run) []agent.Message {
		t.Helper()
		messages, err := b.Transcript(t.Context(), run.ConversationID, run.StartSequence, 100, 1000)
		require.NoError(t, err)
		require.NotEmpty(t, messages)
		return messages
	}
	before := told(fork)
	require.NoError(t, b.DeleteConversation(t.Context(), owner, source.ConversationID))
	require.Equal(t, before, told(fork))
	b.agrees(t, fork)
	require.JSONEq(t, large, string(b.row(t, command{run: fork, id: "a"}).Result))
	run, err := b.Run(t.Context(), owner, fork.RunID)
	require.NoError(t, err)
	require.Equal(t, source.RunID, run.ForkedFrom.RunID)
	b.runs(t, command{run: fork, id: "b", index: 1, kind: agent.ModelCommand}, `{"text":"x"}`)
	b.finish(t, fork, agent.FailedStatus)

	second := forked(fork)
	require.NoError(t, b.DeleteConversation(t.Context(), owner, fork.ConversationID))
	require.Len(t, told(second), len(before))
	b.agrees(t, second)
}

func TestDeleteWaitsForForksThatAsk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source, fork := b.ended(t, "", agent.FailedStatus, `1`), b.ended(t, "", agent.FailedStatus, `1`)
	b.exec(t, `INSERT INTO fork_priors (run_id, command_id, source_run_id) VALUES ($1, 'a', $2)`, fork.RunID, source.RunID)
	var conflict *agent.ConflictError
	require.ErrorAs(t, b.DeleteConversation(t.Context(), owner, source.ConversationID), &conflict)
	require.Equal(t, agent.ConflictForked, conflict.Reason)
	require.Equal(t, fork.RunID, conflict.RunID)
	require.NoError(t, b.DeleteConversation(t.Context(), owner, fork.ConversationID))
	require.NoError(t, b.DeleteConversation(t.Context(), owner, source.ConversationID))
}

// TestAPayloadThatIsAboutToBeReferredToStays: whoever commits the same bytes has touched them, and the deletion sees that.
func TestAPayloadThatIsAboutToBeReferredToStays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large := `"` + strings.Repeat("x", 40_000) + `"`
	run := b.ended(t, "", agent.Cancelled, large)
	touched := func() (at string) { return value[string](t, b, `SELECT created_at::text FROM payloads`) }
	first := touched()
	b.did(t, "", large)
	require.NotEqual(t, first, touched(), "a commit touches what is there")
	b.exec(t, `UPDATE commands SET result_hash = '' WHERE run_id <> $1`, run.RunID)

	tx, err := b.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE payloads SET created_at = clock_timestamp()`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- b.DeleteConversation(context.WithoutCancel(t.Context()), owner, run.ConversationID) }()
	b.awaitBlocked(t, 1)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	require.Equal(t, 1, value[int](t, b, `SELECT count(*) FROM payloads`))
}
