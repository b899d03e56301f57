package ledger

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
)

// schema lists the tables and views of a database with their columns.
func schema(t testing.TB, url string) map[string][]string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT table_name::text, column_name || ' ' || data_type FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name <> 'goose_db_version' ORDER BY table_name, ordinal_position`)
	require.NoError(t, err)
	tables := map[string][]string{}
	var table, column string
	_, err = pgx.ForEachRow(rows, []any{&table, &column}, func() error {
		tables[table] = append(tables[table], column)
		return nil
	})
	require.NoError(t, err)
	return tables
}

// R3-30.
func TestMigrationsUpDownUp(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t) // migrated up
	first := schema(t, url)
	require.NotEmpty(t, first)
	provider, closeDB, err := migrationProvider(url)
	require.NoError(t, err)
	defer closeDB()
	down, err := provider.DownTo(t.Context(), 0)
	require.NoError(t, err)
	require.NotEmpty(t, down)
	require.Empty(t, schema(t, url))
	applied, err := Migrate(t.Context(), url)
	require.NoError(t, err)
	require.Len(t, down, applied)
	require.Equal(t, first, schema(t, url))
	applied, err = Migrate(t.Context(), url)
	require.NoError(t, err)
	require.Zero(t, applied)
}

// A log from before the chain gets the chain that it would have.
func TestMigrationGivesOldEventsTheirChain(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	provider, closeDB, err := migrationProvider(url)
	require.NoError(t, err)
	defer closeDB()
	_, err = provider.DownTo(t.Context(), 3)
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	for _, statement := range []string{
		`INSERT INTO conversations (id, owner, last_sequence) SELECT gen_random_uuid(), 'me', n FROM generate_series(0, 3) n`,
		`INSERT INTO agent_execution_events (conversation_id, message_id, run_id, root_run_id, epoch, sequence_number, event_type, event_data)
			SELECT c.id, c.id, c.id, c.id, 1, n, 'progress', jsonb_build_object('n', n) FROM conversations c, generate_series(1, c.last_sequence) n ORDER BY n DESC`,
	} {
		_, err = conn.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	_, err = Migrate(t.Context(), url)
	require.NoError(t, err)
	var wrong int
	require.NoError(t, conn.QueryRow(t.Context(), `WITH RECURSIVE chained AS (
			SELECT id, 0::bigint AS n, decode(repeat('00', 32), 'hex') AS chain FROM conversations
			UNION ALL
			SELECT c.id, e.sequence_number, sha256(c.chain || event_digest(e)) FROM chained c
				JOIN agent_execution_events e ON e.conversation_id = c.id AND e.sequence_number = c.n + 1)
		SELECT count(*) FROM conversations v JOIN chained c ON c.id = v.id AND c.n = v.last_sequence WHERE c.chain <> v.chain`).Scan(&wrong))
	require.Zero(t, wrong)
}

// Taking the queue away takes what waits in it: runs without events are nothing that the schema before knows.
func TestMigrationDownDropsWhatWaits(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	l, err := Open(t.Context(), url, Options{})
	require.NoError(t, err)
	defer l.Close()
	conversation := uuid.NewString()
	for i, s := range []agent.Strategy{agent.SideBySide, agent.Enqueue} {
		id := uuid.NewString()
		_, _, err = l.Accept(t.Context(), agent.Acceptance{Owner: "me", NewConversation: i == 0, Strategy: s, Key: id, RequestHash: "h",
			Run: agent.Run{RunID: id, RootRunID: id, ConversationID: conversation, MessageID: uuid.NewString(), Epoch: 1, Input: "x"}})
		require.NoError(t, err)
	}
	provider, closeDB, err := migrationProvider(url)
	require.NoError(t, err)
	defer closeDB()
	_, err = provider.DownTo(t.Context(), 5)
	require.NoError(t, err)
	for _, table := range []string{"agent_executions", "messages", "idempotency_keys"} {
		var n int
		require.NoError(t, l.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
		require.Equal(t, 1, n, table)
	}
}

// Processes that start at once wait for one another.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	provider, closeDB, err := migrationProvider(url)
	require.NoError(t, err)
	defer closeDB()
	down, err := provider.DownTo(t.Context(), 0)
	require.NoError(t, err)
	var group sync.WaitGroup
	counts := make([]int, 4)
	for i := range counts {
		group.Go(func() {
			var err error
			if counts[i], err = Migrate(t.Context(), url); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	require.Equal(t, len(down), sum)
}

// R3-5, R3-13, R3-24: the tables and columns that the documents name, of the types they name.
func TestSchemaHasWhatTheDocumentsName(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	tables := schema(t, url)
	for table, columns := range map[string][]string{
		"agent_execution_events": {"id uuid", "conversation_id uuid", "message_id uuid", "event_type character varying", "event_data jsonb",
			"sequence_number bigint", "created_at timestamp with time zone"},
		"execution_checkpoints": {"id uuid", "conversation_id uuid", "message_id uuid", "checkpoint_type character varying", "execution_state jsonb",
			"step_number integer", "created_at timestamp with time zone"},
		"conversations":          {"id uuid"},
		"messages":               {"tool_calls json", "tool_results json"},
		"agent_executions":       {"run_id uuid"},
		"work_plans":             {"plan jsonb"},
		"tool_execution_records": {"tool_name text", "status text", "tool_input bytea", "tool_output bytea"},
	} {
		require.Subset(t, tables[table], columns, table)
	}
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var indexed bool
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_indexes WHERE tablename = 'agent_execution_events'
		AND indexdef LIKE '%UNIQUE%(conversation_id, sequence_number)')`).Scan(&indexed))
	require.True(t, indexed, "unique, so that two events never have one number")
}

func TestMigrateNamesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	_, err := Migrate(t.Context(), "not a url")
	require.ErrorContains(t, err, "migrate ledger")
	_, err = Migrate(t.Context(), "postgres://127.0.0.1:1/none")
	require.ErrorContains(t, err, "migrate ledger")
	_, err = Open(t.Context(), "postgres://127.0.0.1:1/none", Options{})
	require.ErrorContains(t, err, "open ledger")
	_, err = Open(t.Context(), "not a url", Options{})
	require.ErrorContains(t, err, "open ledger")
}
