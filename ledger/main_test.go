package ledger_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	})
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	owner = "team-a"
	// soon bounds every wait of a test. It is long: what is waited for comes within milliseconds, or never.
	soon = 30 * time.Second
)

// bench is a ledger on a database of its own, and a way past it.
type bench struct {
	*ledger.Ledger
	url string
	db  *pgxpool.Pool
}

func setup(t testing.TB) *bench {
	t.Helper()
	url := pgtest.Database(t)
	return &bench{Ledger: open(t, url, 0), url: url, db: rawPool(t, url)}
}

// open opens one more ledger on a database, as another process would.
func open(t testing.TB, url string, conns int32) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(context.Background(), url, ledger.Options{MaxConns: conns})
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func rawPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(context.Background(), url)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

func (b *bench) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := b.db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func value[T any](t testing.TB, b *bench, sql string, args ...any) T {
	t.Helper()
	rows, err := b.db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return v
}

// hold keeps a conversation's counter locked until release is called, so that transactions pile up in front of it.
func (b *bench) hold(t testing.TB, conversationID string) (release func()) {
	t.Helper()
	tx, err := b.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM conversations WHERE id = $1 FOR UPDATE`, conversationID)
	require.NoError(t, err)
	return func() {
		t.Helper()
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// awaitBlocked waits until n sessions of the database wait for a lock.
func (b *bench) awaitBlocked(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var blocked int
		err := b.db.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`).Scan(&blocked)
		return err == nil && blocked == n
	}, soon, 2*time.Millisecond)
}

func newID() string { return uuid.NewString() }

// definition is an agent with one tool of each class.
func definition() agent.Definition {
	schema := json.RawMessage(`{"type":"object"}`)
	return agent.Definition{Agent: "default", Mode: agent.ModePlan, Model: agent.ModelRef{Name: "default", Provider: "scripted", Model: "m"},
		Tools: []agent.ToolRef{
			{Name: "add", Description: "adds", InputSchema: schema, Effect: agent.Deterministic},
			{Name: "put", Description: "puts", InputSchema: schema, Effect: agent.Idempotent},
			{Name: "mail", Description: "mails", InputSchema: schema, Effect: agent.External},
		}, Limits: agent.Limits{MaxSteps: 50, MaxParallel: 8, Timeout: agent.DefaultRunTimeout}}
}

// twoStep is a plan of a tool node a and an llm node b after it.
func twoStep(t testing.TB) *agent.Plan {
	t.Helper()
	return compiled(t, `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {"n": 1.0}},
		{"id": "b", "kind": "llm", "prompt": "say", "inputs": {"v": {"$from": "/nodes/a/output"}}}]}`)
}

func compiled(t testing.TB, doc string) *agent.Plan {
	t.Helper()
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, []byte(doc)))
	p := new(agent.Plan)
	require.NoError(t, json.Unmarshal(compact.Bytes(), p))
	p, err := agent.Compile(p, agent.PlanChecks{Arguments: func(string, json.RawMessage) ([]agent.PlanFault, bool) { return nil, true }})
	require.NoError(t, err)
	return p
}

// acceptance is a request for a run in a conversation of its own; with a plan, brought by the caller.
func acceptance(plan *agent.Plan) agent.Acceptance {
	id := newID()
	a := agent.Acceptance{Owner: owner, NewConversation: true, Run: agent.Run{RunID: id, RootRunID: id, ConversationID: newID(), MessageID: newID(),
		RequestID: "request", SessionID: "session", Epoch: 1, Input: "what the user said", Definition: definition()}}
	if plan != nil {
		a.Plan, a.PlanSource = plan, "caller"
	}
	return a
}

// accepted is a run that was accepted and handed to Temporal.
func (b *bench) accepted(t testing.TB, plan *agent.Plan) agent.Run {
	t.Helper()
	return b.acceptedIn(t, "", plan)
}

// acceptedIn is accepted in a conversation that is there; in a new one when it is "".
func (b *bench) acceptedIn(t testing.TB, conversationID string, plan *agent.Plan) agent.Run {
	t.Helper()
	a := acceptance(plan)
	if conversationID != "" {
		a.NewConversation, a.Run.ConversationID = false, conversationID
	}
	run, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	b.exec(t, `UPDATE intents SET delivered_at = now(), attempts = 1 WHERE run_id = $1`, run.RunID)
	b.exec(t, `UPDATE agent_executions SET status = 'running', started_at = now() WHERE run_id = $1`, run.RunID)
	return run
}

// command says how a test means to take a command through the gate. The zero value of a field is the plain case.
type command struct {
	run      agent.Run
	id       string
	index    int
	kind     agent.CommandKind // tool
	effect   agent.EffectClass // idempotent
	schedule int               // 1
	attempt  int32             // 1
	epoch    int               // 1
	facts    []agent.Fact
	inner    bool // the command does not end its node
	hash     string
}

func (c command) call() agent.Call {
	return agent.Call{Scope: agent.Scope{RunID: c.run.RunID, Epoch: max(c.epoch, 1), Facts: c.facts}, CommandID: c.id, NodeID: agent.CommandNodeID(c.id),
		NodeIndex: c.index, Schedule: max(c.schedule, 1), Ends: !c.inner, Timeout: agent.Duration(time.Minute)}
}

func (c command) dispatch() agent.Dispatch {
	return agent.Dispatch{Epoch: max(c.epoch, 1), Schedule: max(c.schedule, 1), Attempt: max(c.attempt, 1)}
}

func (c command) begin() agent.Begin {
	b := agent.Begin{Call: c.call(), Dispatch: c.dispatch(), Kind: c.kindOr(), Effect: c.effect, InputHash: "input", Input: json.RawMessage(`{"n":1.0}`)}
	if c.hash != "" {
		b.InputHash = c.hash
	}
	if b.Effect == "" {
		b.Effect = agent.Idempotent
	}
	nodeKind := agent.LLMNode
	if b.Kind == agent.ToolCommand {
		b.Tool, nodeKind = "put", agent.ToolNode
	} else {
		b.Model = &agent.ModelRef{Name: "default", Provider: "scripted", Model: "m"}
	}
	if !c.inner && (c.id == agent.CommandNodeID(c.id) || c.id == agent.TurnCommandID(agent.CommandNodeID(c.id), 1)) { // else an earlier one has
		b.Node = &agent.NodeStartedData{Kind: nodeKind, Tool: b.Tool, Index: c.index}
	}
	return b
}

func (c command) kindOr() agent.CommandKind {
	if c.kind == "" {
		return agent.ToolCommand
	}
	return c.kind
}

func (c command) commit(dispatchNo int, result string) agent.Commit {
	raw := json.RawMessage(result)
	return agent.Commit{Call: c.call(), Dispatch: c.dispatch(), DispatchNo: dispatchNo, Result: raw,
		Event: agent.CommandCommittedData{Kind: c.kindOr(), Tool: "put", Output: agent.ShowValue(raw), LatencyMS: 7}}
}

func (c command) conclude(dispatchNo int, state agent.CommandState, reason *agent.Error) agent.Conclude {
	return agent.Conclude{Call: c.call(), Dispatch: c.dispatch(), DispatchNo: dispatchNo, State: state, Error: reason}
}

func (b *bench) begin(t testing.TB, c command) agent.Begun {
	t.Helper()
	begun, err := b.Begin(t.Context(), c.begin())
	require.NoError(t, err)
	return begun
}

// begins is begin where the effect may be executed.
func (b *bench) begins(t testing.TB, c command) int {
	t.Helper()
	begun := b.begin(t, c)
	require.Contains(t, []agent.Verdict{agent.MayExecute, agent.MayExecuteAgain, agent.MayProceed}, begun.Verdict)
	require.Positive(t, begun.Remaining)
	return begun.DispatchNo
}

func (b *bench) commits(t testing.TB, c command, dispatchNo int, result string) agent.CommandRow {
	t.Helper()
	decided, err := b.Commit(t.Context(), c.commit(dispatchNo, result))
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.Equal(t, agent.Committed, decided.Row.State)
	return *decided.Row
}

// runs takes a command through the gate without a fault.
func (b *bench) runs(t testing.TB, c command, result string) {
	t.Helper()
	b.commits(t, c, b.begins(t, c), result)
}

func (b *bench) finish(t testing.TB, run agent.Run, status agent.Status) agent.FinishReply {
	t.Helper()
	reply, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: run.Epoch}, Status: status,
		Error: &agent.Error{Code: agent.CodeNodeFailed, Message: "because"}})
	require.NoError(t, err)
	require.Equal(t, status, reply.Status)
	return reply
}

// expire lets a command's lease be over.
func (b *bench) expire(t testing.TB, c command) {
	t.Helper()
	b.exec(t, `UPDATE commands SET lease_until = now() - interval '1 ms' WHERE run_id = $1 AND command_id = $2`, c.run.RunID, c.id)
}

func (b *bench) events(t testing.TB, run agent.Run) []agent.Event {
	t.Helper()
	events, err := b.Events(t.Context(), agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 10_000)
	require.NoError(t, err)
	return events
}

// types lists the types of a run's events from a number on.
func (b *bench) types(t testing.TB, run agent.Run, from int64) []agent.EventType {
	t.Helper()
	var types []agent.EventType
	for _, e := range b.events(t, run) {
		if e.Sequence >= from {
			types = append(types, e.Type)
		}
	}
	return types
}

func (b *bench) last(t testing.TB, run agent.Run) int64 {
	t.Helper()
	return value[int64](t, b, `SELECT last_sequence FROM conversations WHERE id = $1`, run.ConversationID)
}

func (b *bench) row(t testing.TB, c command) agent.Command {
	t.Helper()
	row, err := b.Command(t.Context(), c.run.RunID, c.id)
	require.NoError(t, err)
	return row
}

func requireCode(t testing.TB, err error, code agent.Code) {
	t.Helper()
	failure, ok := agent.AsError(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, failure.Code, "%v", err)
}

func data[T any](t testing.TB, e agent.Event) T {
	t.Helper()
	var d T
	require.NoError(t, json.Unmarshal(e.Data, &d))
	return d
}
