package ledger_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// chain is a conversation's chain, recomputed from its events by what the migration says of it, not by its functions.
func (b *bench) chain(t testing.TB, conversationID string) (chains map[int64]string, last string) {
	t.Helper()
	rows, err := b.db.Query(t.Context(), `SELECT conversation_id::text, sequence_number, message_id::text, run_id::text, root_run_id::text, epoch, attempt,
			coalesce(fact_no, 0), floor(extract(epoch FROM created_at) * 1000000)::bigint, event_type::text, node_id, command_id, event_data::text
		FROM agent_execution_events WHERE conversation_id = $1 ORDER BY sequence_number`, conversationID)
	require.NoError(t, err)
	chain, chains := make([]byte, 32), map[int64]string{}
	var conversation, message, run, root, typ, node, command, data string
	var number, micros int64
	var epoch, attempt, fact int
	_, err = pgx.ForEachRow(rows, []any{&conversation, &number, &message, &run, &root, &epoch, &attempt, &fact, &micros, &typ, &node, &command, &data}, func() error {
		digest := sha256.Sum256(fmt.Appendf(nil, "%s|%d|%s|%s|%s|%d|%d|%d|%d|%d|%s|%d|%s|%d|%s|%s", conversation, number, message, run, root, epoch, attempt, fact, micros,
			len(typ), typ, len(node), node, len(command), command, data))
		next := sha256.Sum256(append(chain, digest[:]...))
		chain = next[:]
		chains[number] = hex.EncodeToString(chain)
		return nil
	})
	require.NoError(t, err)
	return chains, hex.EncodeToString(chain)
}

func (b *bench) requireChain(t testing.TB, run agent.Run) map[int64]string {
	t.Helper()
	chains, last := b.chain(t, run.ConversationID)
	require.Equal(t, last, value[string](t, b, `SELECT encode(chain, 'hex') FROM conversations WHERE id = $1`, run.ConversationID))
	return chains
}

func (b *bench) requireVerifies(t testing.TB, run agent.Run) {
	t.Helper()
	record, err := b.RunRecord(t.Context(), run.RunID)
	require.NoError(t, err)
	v := agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured})
	require.Empty(t, v.Differences)
}

// Every answer of the gate says where the log stood, whether it wrote something or not.
func TestAnswersAreWitnesses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.requireChain(t, run)
	a := command{run: run, id: "a"}
	begun := b.begins(t, a)
	row := b.commits(t, a, begun, `{"n":"käse € \u0000"}`)
	chains := b.requireChain(t, run)
	require.Equal(t, agent.Witness{Head: b.last(t, run), Chain: chains[b.last(t, run)]}, row.Witness)

	again := b.begin(t, command{run: run, id: "a", schedule: 2})
	require.Equal(t, agent.Inject, again.Verdict)
	require.Equal(t, row.Witness, again.Row.Witness, "nothing was written")
	b.requireChain(t, run)

	fact := agent.Fact{No: 1, Type: agent.NodeSkipped, NodeID: "b", Data: json.RawMessage(`{"node_index": 1, "reason": "x", "n": 1e2}`)}
	recorded, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{fact}}})
	require.NoError(t, err)
	require.Equal(t, agent.Witness{Head: b.last(t, run), Chain: b.requireChain(t, run)[b.last(t, run)]}, recorded.Witness)

	settled, err := b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "b", index: 1, schedule: 3}.call()})
	require.NoError(t, err)
	require.Equal(t, recorded.Witness, settled.Witness)

	finished := b.finish(t, run, agent.FailedStatus)
	require.Equal(t, agent.Witness{Head: b.last(t, run), Chain: b.requireChain(t, run)[b.last(t, run)]}, finished.Witness)
	require.Equal(t, finished, b.finish(t, run, agent.FailedStatus))
	b.requireVerifies(t, run)

	cancelled, _, err := b.Accept(t.Context(), acceptance(nil))
	require.NoError(t, err)
	_, err = b.RequestCancel(t.Context(), owner, cancelled.RunID, "me", "enough")
	require.NoError(t, err)
	b.requireChain(t, cancelled)
	b.requireVerifies(t, cancelled)
}

// Writers of one conversation at once carry one chain on.
func TestChainWithManyWriters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.accepted(t, twoStep(t))
	runs := []agent.Run{first, b.acceptedIn(t, first.ConversationID, twoStep(t)), b.acceptedIn(t, first.ConversationID, twoStep(t))}
	var group sync.WaitGroup
	for _, run := range runs {
		for _, id := range []string{"a", "b"} {
			group.Go(func() {
				c := command{run: run, id: id, index: map[string]int{"a": 0, "b": 1}[id]}
				begun, err := b.Begin(t.Context(), c.begin())
				if err == nil {
					_, err = b.Commit(t.Context(), c.commit(begun.DispatchNo, `{"v":1}`))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	for _, run := range runs {
		b.finish(t, run, agent.Cancelled)
	}
	b.requireChain(t, first)
	for _, run := range runs {
		b.requireVerifies(t, run)
	}
}

// The digest is the same whatever a session has set, and differs for every column.
func TestEventDigest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	conn, err := b.db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	digest := func() (d string) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT encode(event_digest(e), 'hex') FROM agent_execution_events e WHERE run_id = $1 AND sequence_number = 1
			OR sequence_number = 77`, run.RunID).Scan(&d))
		return d
	}
	want := digest()
	for _, set := range []string{`SET timezone = 'Asia/Tokyo'`, `SET datestyle = 'German'`, `SET extra_float_digits = -10`, `SET bytea_output = 'escape'`, `SET intervalstyle = 'iso_8601'`} {
		_, err := conn.Exec(t.Context(), set)
		require.NoError(t, err)
		require.Equal(t, want, digest(), set)
	}
	columns, err := pgx.CollectRows(func() pgx.Rows {
		rows, err := b.db.Query(t.Context(), `SELECT column_name::text FROM information_schema.columns WHERE table_name = 'agent_execution_events'`)
		require.NoError(t, err)
		return rows
	}(), pgx.RowTo[string])
	require.NoError(t, err)
	changes := map[string]string{"conversation_id": "gen_random_uuid()", "message_id": "gen_random_uuid()", "run_id": "gen_random_uuid()", "root_run_id": "gen_random_uuid()",
		"event_type": "'progress'", "event_data": `event_data || '{"x": 1}'`, "sequence_number": "77", "created_at": "created_at + interval '1 microsecond'",
		"epoch": "2", "node_id": "'a'", "command_id": "'a'", "attempt": "1", "fact_no": "1"}
	for _, column := range columns {
		if column == "id" {
			continue
		}
		change, ok := changes[column]
		require.True(t, ok, "column %s is new: the digest has to cover it, in a migration that carries the chains on", column)
		var changed string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT encode(event_digest(jsonb_populate_record(e, jsonb_build_object('`+column+`', `+change+`))), 'hex')
			FROM agent_execution_events e WHERE run_id = $1 AND sequence_number = 1`, run.RunID).Scan(&changed))
		require.NotEqual(t, want, changed, column)
	}
}

// Free texts cannot be moved from one column to the next.
func TestEventDigestKeepsColumnsApart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	digest := func(node, command string) string {
		return value[string](t, b, `SELECT encode(event_digest(jsonb_populate_record(e, jsonb_build_object('node_id', $2::text, 'command_id', $3::text))), 'hex')
			FROM agent_execution_events e WHERE run_id = $1 AND sequence_number = 1`, run.RunID, node, command)
	}
	require.NotEqual(t, digest("a|1|b", ""), digest("a", "b"))
	require.NotEqual(t, digest("ab", ""), digest("a", "b"))
}

// A result that stands in the table of payloads is hashed there; a tool that works in the ledger's transaction tells where the
// log stood like any other.
func TestVerifyFindsWhatBecameOfALargeResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.account(t)
	run := b.accepted(t, twoStep(t))
	large, paid := command{run: run, id: "a"}, command{run: run, id: "b", index: 1}
	b.runs(t, large, `"`+strings.Repeat("x", 100_000)+`"`)
	no := b.begins(t, paid)
	decided, err := b.CommitTx(t.Context(), paid.commit(no, ""), paid.withdraw(no, nil))
	require.NoError(t, err)
	require.Equal(t, agent.Witness{Head: b.last(t, run), Chain: b.requireChain(t, run)[b.last(t, run)]}, decided.Row.Witness)
	b.requireVerifies(t, run)

	committed := b.row(t, large).Sequence
	for _, change := range []string{`UPDATE payloads SET bytes = set_byte(bytes, 50000, 121)`, `DELETE FROM payloads`} {
		b.exec(t, change)
		record, err := b.RunRecord(t.Context(), run.RunID)
		require.NoError(t, err)
		v := agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured})
		require.Len(t, v.Differences, 1, change)
		require.Equal(t, agent.CheckResult, v.Differences[0].Check)
		require.Equal(t, committed, v.Differences[0].Sequence)
		require.Equal(t, "a", v.Differences[0].CommandID)
	}
}
