package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/activities"
	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	}))
}

// side is one of the two ledgers that are driven through the same steps, with a run of its own.
type side struct {
	name string
	gate interface {
		activities.Ledger
		Commands(ctx context.Context, runID string) ([]agent.Command, error)
		Fenced(ctx context.Context, runID string) ([]string, error)
		Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error)
	}
	run agent.Run
	// What a test does past the ledger's methods.
	expire  func(commandID string)
	cancel  func()
	replace func() // by another execution
	resolve func(commandID string, r agent.Resolution) error
	// approval is the newest question about a command, "" for none; late lets its time be over.
	approval    func(commandID string) string
	late        func(commandID string)
	approve     func(commandID, approvalID string, a agent.ApprovalAnswer) error
	checkpoints func() []agent.Checkpoint
	signal      func(in agent.Input) error
	say         func(text string) (bool, error)
	// due lets the deadline of a wait be over.
	due func(commandID string)
}

const owner = "local"

// definition of the agent of both runs. Its plan: a and b, then an answer.
func definition() agent.Definition {
	return agent.Definition{Agent: "test", Mode: agent.ModeReact, Model: agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"},
		Tools:  []agent.ToolRef{{Name: "put", Description: "puts", InputSchema: json.RawMessage(`{"type":"object"}`), Effect: agent.Idempotent}},
		Limits: agent.DefaultLimits()}
}

func twoNodes(t require.TestingT) *agent.Plan {
	p, err := agent.Compile(&agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "put"}, {ID: "b", Kind: agent.ToolNode, Tool: "put"}}},
		agent.PlanChecks{Arguments: func(string, json.RawMessage) ([]agent.PlanFault, bool) { return nil, true }})
	require.NoError(t, err)
	return p
}

func newRun() agent.Run {
	id := newID()
	return agent.Run{RunID: id, RootRunID: id, MessageID: newID(), RequestID: "request", Epoch: 1, Input: "go", Definition: definition()}
}

func inMemory(t require.TestingT) *side {
	m := newMemory(nil)
	s := &side{name: "memory", gate: m, run: newRun()}
	_, err := m.accept(s.run, twoNodes(t), "caller", time.Now, nil)
	require.NoError(t, err)
	s.run.ConversationID = m.conversationID
	s.cancel = func() { m.cancel(s.run.RunID) }
	s.replace = func() { m.runs[s.run.RunID].Epoch++ }
	s.resolve = func(id string, word agent.Resolution) error { return m.resolveByHand(s.run.RunID, id, word) }
	s.checkpoints = func() []agent.Checkpoint { return m.runs[s.run.RunID].checkpoints }
	s.signal = func(in agent.Input) error { return m.signal(s.run.RunID, in) }
	s.say = func(text string) (bool, error) { return m.steer(s.run.RunID, "", text) }
	s.due = func(id string) {
		if c := m.runs[s.run.RunID].rows[id]; c != nil && !c.Deadline.IsZero() {
			c.Deadline = time.Now().Add(-time.Millisecond)
		}
	}
	s.approval = func(id string) string {
		if c := m.runs[s.run.RunID].rows[id]; c != nil && c.Approval != nil {
			return c.Approval.ApprovalID
		}
		return ""
	}
	s.late = func(id string) { m.runs[s.run.RunID].rows[id].Approval.ExpiresAt = time.Now().Add(-time.Millisecond) }
	s.approve = func(id, approvalID string, a agent.ApprovalAnswer) error {
		return m.decideApproval(s.run.RunID, id, approvalID, a)
	}
	s.expire = func(id string) {
		if c := m.runs[s.run.RunID].rows[id]; c != nil {
			c.LeaseUntil = time.Now().Add(-time.Millisecond)
		}
	}
	return s
}

func inPostgres(t require.TestingT, store *ledger.Ledger, db *pgxpool.Pool) *side {
	ctx := context.Background()
	s := &side{name: "postgres", gate: store}
	a := agent.Acceptance{Owner: owner, NewConversation: true, Run: newRun(), Plan: twoNodes(t), PlanSource: "caller"}
	a.Run.ConversationID = newID()
	var err error
	s.run, _, err = store.Accept(ctx, a)
	require.NoError(t, err)
	exec := func(sql string, args ...any) {
		_, err := db.Exec(ctx, sql, append([]any{s.run.RunID}, args...)...)
		require.NoError(t, err)
	}
	exec(`UPDATE agent_executions SET status = 'running', started_at = now() WHERE run_id = $1`)
	s.expire = func(id string) {
		exec(`UPDATE commands SET lease_until = now() - interval '1 ms' WHERE run_id = $1 AND command_id = $2`, id)
	}
	s.cancel = func() {
		exec(`UPDATE agent_executions SET status = 'cancelling' WHERE run_id = $1 AND status NOT IN ('completed', 'failed', 'cancelled')`)
	}
	s.replace = func() { exec(`UPDATE agent_executions SET epoch = epoch + 1 WHERE run_id = $1`) }
	s.resolve = func(id string, word agent.Resolution) error {
		_, err := store.Resolve(ctx, owner, s.run.RunID, id, word)
		return err
	}
	s.signal = func(in agent.Input) error {
		_, _, err := store.Signal(ctx, owner, s.run.RunID, in)
		return err
	}
	s.say = func(text string) (bool, error) {
		said := newRun()
		said.Input, said.ConversationID = text, s.run.ConversationID
		run, created, err := store.Accept(ctx, agent.Acceptance{Owner: owner, Run: said, Strategy: agent.Steer})
		require.False(t, created, "a message of the test is for its run")
		return run.Steered > 0, err
	}
	s.due = func(id string) {
		exec(`UPDATE commands SET deadline = now() - interval '1 ms' WHERE run_id = $1 AND command_id = $2 AND deadline IS NOT NULL`, id)
	}
	s.approval = func(id string) (approval string) {
		err := db.QueryRow(ctx, `SELECT coalesce(max(approval_id::text), '') FROM commands WHERE run_id = $1 AND command_id = $2`, s.run.RunID, id).Scan(&approval)
		require.NoError(t, err)
		return approval
	}
	s.late = func(id string) {
		exec(`UPDATE approvals SET expires_at = now() - interval '1 ms' WHERE approval_id = (SELECT approval_id FROM commands WHERE run_id = $1 AND command_id = $2)`, id)
	}
	s.approve = func(_, approvalID string, a agent.ApprovalAnswer) error {
		_, err := store.DecideApproval(ctx, owner, approvalID, a)
		return err
	}
	s.checkpoints = func() []agent.Checkpoint {
		checkpoints, err := store.Checkpoints(ctx, s.run.RunID)
		require.NoError(t, err)
		return checkpoints
	}
	return s
}

// step is one thing that is done to a ledger, in words and in deed. Its answer is what a caller learns.
type step struct {
	says string
	do   func(s *side) (answer string)
}

// told is an answer in the words in which both sides must give it.
func told(row *agent.CommandRow, err error, more ...any) string {
	if err != nil {
		if e, ok := agent.AsError(err); ok {
			return "error " + e.Error()
		}
		return "error"
	}
	if row == nil {
		return fmt.Sprint(more...)
	}
	return fmt.Sprint(row.State, " no ", row.DispatchNo, " owner ", row.Owner, " ", string(row.Result), " ", row.Error, " ", fmt.Sprint(more...))
}

// subject is what a step is about.
type subject struct {
	id       string
	effect   agent.EffectClass
	schedule int
	attempt  int32
	epoch    int
	facts    int
	of       agent.CommandKind // "" goes by the id
}

func (c subject) call(s *side) agent.Call {
	call := agent.Call{Scope: agent.Scope{RunID: s.run.RunID, Epoch: c.epoch}, CommandID: c.id, NodeID: agent.CommandNodeID(c.id), Schedule: c.schedule,
		NodeIndex: max(0, slices.Index([]string{"a", "b", "answer"}, c.id)), Ends: c.kind() == agent.ToolCommand || c.of != "" || c.id == agent.AnswerNodeID, Timeout: agent.Duration(time.Minute)}
	if _, _, inner := agent.TurnTool(c.id); inner {
		call.Ends = false
	}
	for no := 1; no <= c.facts; no++ {
		call.Facts = append(call.Facts, agent.Fact{No: no, Type: agent.NodeSkipped, NodeID: "z", Data: json.RawMessage(`{"node_index": 2, "reason": "` + fmt.Sprint(no) + `"}`)})
	}
	return call
}

func (c subject) kind() agent.CommandKind {
	if c.of != "" {
		return c.of
	}
	if _, inner := agent.OwnerCommandID(c.id); inner {
		return agent.HTTPCommand
	}
	if _, _, inner := agent.TurnTool(c.id); inner || c.id == "a" || c.id == "b" {
		return agent.ToolCommand
	}
	return agent.ModelCommand
}

func (c subject) dispatch() agent.Dispatch {
	return agent.Dispatch{Epoch: c.epoch, Schedule: c.schedule, Attempt: c.attempt}
}

// within is the first dispatch of the command that an effect is inside of; nil for every other command.
func (c subject) within() *agent.Within {
	owner, inner := agent.OwnerCommandID(c.id)
	if !inner {
		return nil
	}
	return &agent.Within{CommandID: owner, DispatchNo: 1, Dispatch: agent.Dispatch{Epoch: c.epoch, Schedule: 1, Attempt: 1}}
}

// value asks for a recorded value.
func (c subject) value(kind agent.CommandKind, n int) step {
	return step{fmt.Sprintf("value %+v %s %d", c, kind, n), func(s *side) string {
		reply, err := s.gate.RecordEffect(context.Background(), agent.NewValue{Value: json.RawMessage(`"` + fmt.Sprint(c.attempt) + `"`), Within: c.within(),
			EffectCall: agent.EffectCall{Scope: c.call(s).Scope, NodeID: agent.CommandNodeID(c.id), CommandID: agent.EffectCommandID(agent.CommandNodeID(c.id), agent.ValueEffectID(kind, n)), Kind: kind}})
		return told(nil, err, string(reply.Value), reply.Sequence)
	}}
}

func (c subject) checkpoints() (begin, commit agent.CheckpointType) {
	if c.kind() == agent.HTTPCommand {
		return "", ""
	}
	if _, _, inner := agent.TurnTool(c.id); inner {
		return agent.ToolStart, agent.ToolComplete
	}
	return "", agent.LLMComplete
}

func (c subject) begin(more func(*agent.Begin)) step {
	return step{fmt.Sprintf("begin %+v", c), func(s *side) string {
		b := agent.Begin{Call: c.call(s), Dispatch: c.dispatch(), Kind: c.kind(), Effect: c.effect, InputHash: "h", Input: json.RawMessage(`{"n":1}`)}
		b.Checkpoint, _ = c.checkpoints()
		if c.kind() == agent.ToolCommand {
			b.Tool = "put"
		}
		if b.Ends {
			b.Node = &agent.NodeStartedData{Kind: agent.ToolNode, Index: b.NodeIndex}
		}
		b.Within = c.within()
		if more != nil {
			more(&b)
		}
		begun, err := s.gate.Begin(context.Background(), b)
		return told(begun.Row, err, begun.Verdict, begun.DispatchNo, begun.Remaining > 0, begun.Wait > 0)
	}}
}

// asks begins a command under a rule that wants an approval, with an argument.
func (c subject) asks(n int) step {
	s := c.begin(func(b *agent.Begin) {
		b.Refusal = &agent.Refusal{Decision: "ask", Reason: "money", Expires: agent.Duration(time.Hour)}
		b.Input = json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))
		b.InputHash, b.ArgumentsHash = fmt.Sprint("h", n), agent.ArgumentsHash(b.Input)
		b.FailureMessage = &agent.Message{Role: agent.ToolMessage, ToolCallID: "call", ToolName: "put", CommandID: c.id}
	})
	s.says = fmt.Sprintf("%s under a rule that asks, with %d", s.says, n)
	return s
}

// answered gives a word on the approval that a command waits for, if it does.
func (c subject) answered(a agent.ApprovalAnswer) step {
	return step{fmt.Sprintf("%s is answered %v %s", c.id, a.Approve, a.Arguments), func(s *side) string {
		id := s.approval(c.id)
		if id == "" {
			return "not asked"
		}
		err := s.approve(c.id, id, a)
		var conflict *agent.ConflictError
		if errors.As(err, &conflict) {
			return conflict.Reason
		}
		return told(nil, err)
	}}
}

func (c subject) late() step {
	return step{"the approval of " + c.id + " is over", func(s *side) string {
		if s.approval(c.id) != "" {
			s.late(c.id)
		}
		return ""
	}}
}

func (c subject) commit(no int, reconciled bool) step {
	return step{fmt.Sprintf("commit %+v no %d", c, no), func(s *side) string {
		result := json.RawMessage(`{"text":"` + c.id + `"}`)
		commit := agent.Commit{Call: c.call(s), Dispatch: c.dispatch(), DispatchNo: no, Result: result, Reconciled: reconciled,
			Event: agent.CommandCommittedData{Kind: c.kind(), Tool: "put", Output: agent.ShowValue(result), LatencyMS: 7}}
		_, commit.Checkpoint = c.checkpoints()
		if c.kind() == agent.HTTPCommand {
			commit.HTTP = &agent.HTTPRecordedData{Kind: agent.HTTPCommand, Request: agent.HTTPExchange{Method: "PUT"}, Response: agent.HTTPExchange{Status: 200}}
		}
		decided, err := s.gate.Commit(context.Background(), commit)
		return told(decided.Row, err, decided.Mine)
	}}
}

func (c subject) conclude(no int, state agent.CommandState) step {
	return step{fmt.Sprintf("conclude %+v no %d as %s", c, no, state), func(s *side) string {
		decided, err := s.gate.Conclude(context.Background(), agent.Conclude{Call: c.call(s), Dispatch: c.dispatch(), DispatchNo: no, State: state,
			Error: &agent.Error{Code: agent.CodeToolFailed, Message: "no luck"}, RetryAfter: time.Second, LatencyMS: 3})
		return told(decided.Row, err, decided.Mine)
	}}
}

func (c subject) settle(code agent.Code) step {
	return step{fmt.Sprintf("settle %+v %s", c, code), func(s *side) string {
		row, err := s.gate.Settle(context.Background(), agent.SettleCall{Call: c.call(s), Reason: &agent.Error{Code: code, Message: "given up"}})
		return told(&row, err)
	}}
}

func (c subject) renew(no int) step {
	return step{fmt.Sprintf("renew %+v no %d", c, no), func(s *side) string {
		status, owned, err := s.gate.Renew(context.Background(), s.run.RunID, c.id, c.epoch, no)
		return told(nil, err, status, owned)
	}}
}

func (c subject) expire() step {
	return step{"the lease of " + c.id + " is over", func(s *side) string { s.expire(c.id); return "" }}
}

// resolve says something of a command that is in doubt, and nothing of one that is not.
func (c subject) resolve(outcome agent.Outcome) step {
	return step{fmt.Sprintf("resolve %s as %s", c.id, outcome), func(s *side) string {
		commands, err := s.gate.Commands(context.Background(), s.run.RunID)
		i := slices.IndexFunc(commands, func(have agent.Command) bool { return have.CommandID == c.id })
		if err != nil || i < 0 || commands[i].State != agent.CommandInDoubt {
			return "not in doubt"
		}
		return told(nil, s.resolve(c.id, agent.Resolution{Outcome: outcome, Result: json.RawMessage(`{"text":"by hand"}`), By: "ada", Note: "seen"}))
	}}
}

func (c subject) record(status agent.Status) step {
	return step{fmt.Sprintf("record %d facts, %s", c.facts, status), func(s *side) string {
		reply, err := s.gate.Record(context.Background(), agent.RecordCall{Scope: c.call(s).Scope, Status: status, HandOver: &agent.State{}})
		state, unread := json.Marshal(reply.State)
		return told(nil, errors.Join(err, unread), reply.Sequence, string(state)) // the kit keeps no chain
	}}
}

func (c subject) finish(status agent.Status) step {
	return step{fmt.Sprintf("finish %s", status), func(s *side) string {
		reply, err := s.gate.Finish(context.Background(), agent.FinishCall{Scope: c.call(s).Scope, Status: status, Summary: "so it went",
			Error: &agent.Error{Code: agent.CodeNodeFailed, Message: "because", NodeID: "a"}})
		reply.Witness = agent.Witness{} // the kit keeps no chain
		return told(nil, err, reply)
	}}
}

// say says something to the run, unless that would begin another one.
func say(text string) step {
	return step{"say " + text, func(s *side) string {
		ctx := context.Background()
		run, _, err := s.gate.WorkerRun(ctx, s.run.RunID)
		if err != nil || run.Status.Terminal() || run.Status == agent.Cancelling {
			return "too late"
		}
		events, err := s.gate.Events(ctx, agent.LogScope{ConversationID: s.run.ConversationID, RunID: s.run.RunID}, 0, 10_000)
		if err != nil || slices.ContainsFunc(events, func(e agent.Event) bool {
			return e.Type == agent.NodeFinished || e.Type == agent.NodeFailed || e.Type == agent.NodeSkipped
		}) {
			return "too late"
		}
		said, err := s.say(text)
		return told(nil, err, said)
	}}
}

// heard begins a turn of the loop, or commits it, with all that was said by then, or with nothing of it.
func (c subject) heard(s *side, everything bool) int64 {
	messages, heard, err := s.gate.Steered(context.Background(), s.run.RunID)
	if err != nil || len(messages) == 0 || !everything {
		return heard[c.id]
	}
	return messages[len(messages)-1].Sequence
}

func (c subject) beginTurn(everything bool) step {
	return step{fmt.Sprintf("begin turn %+v, %v", c, everything), func(s *side) string {
		heard := c.heard(s, everything)
		return c.begin(func(b *agent.Begin) { b.Heard = heard }).do(s)
	}}
}

func (c subject) commitTurn(no, turn int) step {
	return step{fmt.Sprintf("commit turn %+v no %d", c, no), func(s *side) string {
		result := json.RawMessage(`{"text":"` + c.id + `"}`)
		commit := agent.Commit{Call: c.call(s), Dispatch: c.dispatch(), DispatchNo: no, Result: result, Turn: turn, Heard: c.heard(s, false), Checkpoint: agent.LLMComplete,
			Event: agent.CommandCommittedData{Kind: c.kind(), Turn: turn, Output: agent.ShowValue(result), LatencyMS: 7}}
		commit.Ends = true
		decided, err := s.gate.Commit(context.Background(), commit)
		if decided.Row == nil {
			return told(nil, err)
		}
		return told(decided.Row, err, decided.Mine, decided.Row.GoesOn, decided.Row.Said)
	}}
}

// await asks whether a wait can go on.
func (c subject) await(signal string, longest time.Duration, refused bool) step {
	return step{fmt.Sprintf("await %+v %q %s", c, signal, longest), func(s *side) string {
		w := agent.Wait{WaitCall: agent.WaitCall{Call: c.call(s), Signal: signal, For: agent.Duration(longest)}, Dispatch: c.dispatch(),
			Node: &agent.NodeStartedData{Kind: agent.WaitNode}, Input: json.RawMessage(`{"signal":"` + signal + `"}`), InputHash: "w"}
		w.Ends = true
		if refused {
			w.Refusal = &agent.Refusal{Decision: "forbid", Reason: "no waiting"}
		}
		begun, err := s.gate.Await(context.Background(), w)
		if begun.Row == nil {
			return told(nil, err, begun.Verdict)
		}
		if begun.Row.State == agent.Committed && signal == "" { // the time differs
			return string(begun.Row.State)
		}
		awaits := ""
		if a := begun.Row.Awaits; a != nil {
			awaits = fmt.Sprint(a.For, a.Signal, a.Remaining > 0)
		}
		return told(begun.Row, err, begun.Verdict, awaits)
	}}
}

func (c subject) due() step {
	return step{"the time of " + c.id + " is over", func(s *side) string { s.due(c.id); return "" }}
}

func signalled(name, id, value string) step {
	return step{"signal " + name + " " + id + " " + value, func(s *side) string {
		err := s.signal(agent.Input{Name: name, InputID: id, Value: json.RawMessage(value), By: "ada"})
		var conflict *agent.ConflictError
		if errors.As(err, &conflict) {
			return conflict.Reason
		}
		return told(nil, err)
	}}
}

var (
	cancelled = step{"the run is cancelled", func(s *side) string { s.cancel(); return "" }}
	replaced  = step{"the execution is replaced", func(s *side) string { s.replace(); return "" }}
)

// play takes both sides through the steps and compares what they answer on the way and what they have on record at the end.
func play(t require.TestingT, sides []*side, steps []step) {
	for i, st := range steps {
		require.Equal(t, sides[0].answer(st), sides[1].answer(st), "step %d of %v", i, words(steps[:i+1]))
	}
	require.Equal(t, sides[0].shown(t), sides[1].shown(t), "%v", words(steps))
}

// answer is a step's answer, without the run's id.
func (s *side) answer(st step) string { return strings.ReplaceAll(st.do(s), s.run.RunID, "RUN") }

func words(steps []step) (said []string) {
	for _, st := range steps {
		said = append(said, st.says)
	}
	return said
}

// shown is a run's record as far as it must be the same in both ledgers: not its ids and times.
func (s *side) shown(t require.TestingT) (lines []string) {
	ctx := context.Background()
	events, err := s.gate.Events(ctx, agent.LogScope{ConversationID: s.run.ConversationID, RunID: s.run.RunID}, 0, 10_000)
	require.NoError(t, err)
	for _, e := range events {
		var data map[string]any
		require.NoError(t, json.Unmarshal(e.Data, &data))
		for _, volatile := range []string{"deadline", "checkpoint_id", "idempotency_key", "approval_id", "expires_at"} {
			delete(data, volatile)
		}
		doc, err := json.Marshal(data)
		require.NoError(t, err)
		lines = append(lines, fmt.Sprintf("%d %s node %q command %q attempt %d epoch %d %s", e.Sequence, e.Type, e.NodeID, e.CommandID, e.Attempt, e.Epoch, doc))
	}
	commands, err := s.gate.Commands(ctx, s.run.RunID)
	require.NoError(t, err)
	var ids []string
	for _, c := range commands {
		ids = append(ids, c.CommandID)
		word, err := json.Marshal(c.Resolution)
		require.NoError(t, err)
		lines = append(lines, fmt.Sprintf("command %s %s %s %s %d %s %d %v %d %s", c.CommandID, c.Kind, c.Effect, c.State, c.Dispatches, c.ResultHash, c.ResultBytes, c.Error, c.Sequence, word))
	}
	fenced, err := s.gate.Fenced(ctx, s.run.RunID)
	require.NoError(t, err)
	lines = append(lines, fmt.Sprint("fenced ", fenced))
	results, err := s.gate.Results(ctx, s.run.RunID, ids)
	require.NoError(t, err)
	nodes, err := s.gate.NodeResults(ctx, s.run.RunID, []string{"a", "b", "answer"})
	require.NoError(t, err)
	for _, found := range []map[string]agent.CommandResult{results, nodes} {
		for _, id := range sortedKeys(found) {
			lines = append(lines, fmt.Sprintf("result %s %s %s %s %v", id, found[id].Kind, found[id].State, found[id].Result, found[id].Error))
		}
	}
	heads, err := s.gate.ResultHeads(ctx, s.run.RunID, ids, 3)
	require.NoError(t, err)
	for _, id := range sortedKeys(heads) {
		lines = append(lines, fmt.Sprintf("head %s %s %s %s %d %v %s", id, heads[id].Kind, heads[id].State, heads[id].Result, heads[id].Bytes, heads[id].Error, heads[id].Edited))
	}
	for before := int64(1 << 40); ; {
		page, err := s.gate.Transcript(ctx, s.run.ConversationID, before, 2, 3)
		require.NoError(t, err)
		older, err := s.gate.CountMessages(ctx, s.run.ConversationID, before)
		require.NoError(t, err)
		lines = append(lines, fmt.Sprintf("%d messages", older))
		for _, m := range page {
			before = m.Sequence
			lines = append(lines, fmt.Sprintf("message %d %s %.3s %d %s %s %s %s %t %d", m.Sequence, m.Role, m.Content, m.Bytes, m.ToolCalls, m.ToolCallID, m.ToolName, m.CommandID, m.Steers, m.Heard))
		}
		if len(page) < 2 {
			break
		}
	}
	for _, c := range s.checkpoints() {
		lines = append(lines, fmt.Sprintf("checkpoint %s %d %d %+v", c.Type, c.Step, c.Sequence, c.State))
	}
	run, _, err := s.gate.WorkerRun(ctx, s.run.RunID)
	require.NoError(t, err)
	output := "none"
	if run.FinalOutput != nil {
		output = *run.FinalOutput
	}
	lines = append(lines, fmt.Sprintf("run %s %s %v", run.Status, output, run.Error))
	// When a timer was over is each ledger's own.
	for _, found := range results {
		if found.Kind == agent.WaitCommand && strings.Contains(string(found.Result), "fired_at") {
			for i := range lines {
				lines[i] = strings.NewReplacer(string(found.Result), "a time", resultHash(found.Result), "its hash").Replace(lines[i])
			}
		}
	}
	return lines
}

func sortedKeys(m map[string]agent.CommandResult) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// bothSides makes pairs of runs, one in each ledger.
func bothSides(t *testing.T) func(require.TestingT) []*side {
	t.Helper()
	url := pgtest.Database(t)
	store, err := ledger.Open(t.Context(), url, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	db, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return func(t require.TestingT) []*side { return []*side{inPostgres(t, store, db), inMemory(t)} }
}

// TestLedgersAgree drives both ledgers through the cases that the gate is made for.
func TestLedgersAgree(t *testing.T) {
	t.Parallel()
	sides := bothSides(t)
	a := subject{id: "a", effect: agent.Idempotent, schedule: 1, attempt: 1, epoch: 1}
	again, later := a, a
	again.attempt, later.schedule = 2, 2
	out, outAgain := a, again
	out.effect, outAgain.effect = agent.External, agent.External
	b, answer := subject{id: "b", effect: agent.Idempotent, schedule: 3, attempt: 1, epoch: 1}, subject{id: "answer", effect: agent.Idempotent, schedule: 4, attempt: 1, epoch: 1}
	find := subject{id: "a", effect: agent.Idempotent, schedule: 1, attempt: 1, epoch: 1, of: agent.RetrievalCommand}
	findAgain := find
	findAgain.attempt = 2
	turn, call := subject{id: "c#1", effect: agent.Idempotent, schedule: 5, attempt: 1, epoch: 1}, subject{id: "c#1.0", effect: agent.External, schedule: 6, attempt: 1, epoch: 1}
	facts, next := subject{facts: 2, epoch: 1}, a
	next.epoch, b.facts = 2, 3
	open, openAgain := subject{id: "a/open", effect: agent.External, schedule: 1, attempt: 1, epoch: 1}, subject{id: "a/open", effect: agent.External, schedule: 1, attempt: 2, epoch: 1}
	w1, w2 := subject{id: "a", effect: agent.Deterministic, schedule: 1, attempt: 1, epoch: 1}, subject{id: "b", effect: agent.Deterministic, schedule: 2, attempt: 1, epoch: 1}
	w1next := w1
	w1next.epoch = 2
	loop, loop2 := subject{id: "main#1", effect: agent.Idempotent, schedule: 1, attempt: 1, epoch: 1}, subject{id: "main#2", effect: agent.Idempotent, schedule: 2, attempt: 1, epoch: 1}
	reconciles := func(begin *agent.Begin) { begin.Reconciles = true }
	yes, no := agent.ApprovalAnswer{Approve: true, By: "ann"}, agent.ApprovalAnswer{By: "bob", Note: "no"}
	edit := agent.ApprovalAnswer{Approve: true, By: "ann", Arguments: json.RawMessage(` {"n": 2}`), Shown: json.RawMessage(`{"n": 2}`)}
	for name, steps := range map[string][]step{
		"to the end": {a.begin(nil), a.commit(1, false), b.begin(nil), b.commit(1, false), answer.begin(nil), answer.commit(1, false), facts.finish(agent.Completed),
			facts.finish(agent.Completed), a.begin(nil), facts.record(agent.Running)},
		"no answer":     {a.begin(nil), a.commit(1, false), facts.finish(agent.Completed), facts.finish(agent.FailedStatus)},
		"a reply lost":  {a.begin(nil), a.begin(nil), a.commit(1, false), a.commit(1, false), again.begin(nil), later.begin(nil)},
		"a worker lost": {a.begin(nil), again.begin(nil), a.renew(1), a.renew(2), a.expire(), again.begin(nil), a.commit(1, false), again.commit(2, false), a.renew(1)},
		"released":      {a.begin(nil), a.conclude(1, agent.Released), again.begin(nil), a.begin(nil), again.conclude(2, agent.CommandFailed), later.begin(nil)},
		"another input": {a.begin(nil), again.begin(func(begin *agent.Begin) { begin.InputHash = "other" })},
		"never began":   {a.settle(agent.CodeTimeout), a.begin(nil), later.begin(nil), a.settle(agent.CodeTimeout), later.commit(1, false)},
		"given up":      {a.begin(nil), a.settle(agent.CodeTimeout), a.commit(1, false), later.begin(nil)},
		"refused":       {a.begin(func(begin *agent.Begin) { begin.Refusal = &agent.Refusal{Decision: "forbid", Reason: "no"} }), later.begin(nil)},
		"cancelled":     {a.begin(nil), b.begin(nil), cancelled, again.begin(nil), answer.begin(nil), a.settle(agent.CodeCancelled), facts.finish(agent.Cancelled), cancelled},
		"cancelled between tries": {a.begin(nil), a.conclude(1, agent.Released), b.begin(nil), b.conclude(1, agent.Released), cancelled,
			a.settle(agent.CodeCancelled), facts.finish(agent.Cancelled)},
		"cut off":       {a.begin(nil), b.begin(nil), b.conclude(1, agent.Released), call.begin(nil), facts.finish(agent.FailedStatus)},
		"facts":         {facts.record(""), a.begin(nil), b.begin(nil), b.begin(nil), facts.record(agent.Waiting), facts.record(agent.InDoubt)},
		"in doubt":      {out.begin(nil), out.expire(), outAgain.begin(nil), facts.record(agent.InDoubt), outAgain.begin(nil), out.resolve(agent.OutcomeCommitted), later.begin(nil)},
		"doubt failed":  {out.begin(nil), out.settle(agent.CodeTimeout), facts.record(agent.InDoubt), out.resolve(agent.OutcomeFailed), later.begin(nil), out.commit(1, false)},
		"doubt retried": {out.begin(nil), out.conclude(1, agent.CommandInDoubt), out.resolve(agent.OutcomeRetry), later.begin(nil), out.commit(1, false), later.commit(2, false)},
		"retried after five": {out.begin(nil), out.conclude(1, agent.Released), out.begin(nil), out.conclude(2, agent.Released), out.begin(nil), out.conclude(3, agent.Released),
			out.begin(nil), out.conclude(4, agent.Released), out.begin(nil), out.settle(agent.CodeTimeout), out.resolve(agent.OutcomeRetry), out.begin(nil), out.conclude(6, agent.Released)},
		"a late result":  {out.begin(nil), out.settle(agent.CodeTimeout), facts.record(agent.InDoubt), out.commit(1, false), later.begin(nil)},
		"a late failure": {out.begin(nil), out.settle(agent.CodeTimeout), out.conclude(1, agent.CommandFailed), later.begin(nil)},
		"late, released": {out.begin(nil), out.settle(agent.CodeTimeout), out.conclude(1, agent.Released), later.begin(nil)},
		"after the end":  {out.begin(nil), facts.finish(agent.Cancelled), out.commit(1, false), out.resolve(agent.OutcomeRetry)},
		"said at last":   {out.begin(nil), facts.finish(agent.Cancelled), out.resolve(agent.OutcomeCommitted), out.conclude(1, agent.CommandFailed)},
		"reconciled":     {out.begin(nil), outAgain.begin(reconciles), out.expire(), outAgain.begin(reconciles), outAgain.commit(1, true), out.commit(1, false)},
		"not found": {out.begin(nil), out.expire(), outAgain.begin(reconciles), outAgain.begin(func(begin *agent.Begin) {
			begin.Unfound = "no answer"
		})},
		"values": {a.value(agent.UUIDCommand, 1), a.begin(nil), open.value(agent.UUIDCommand, 1), open.value(agent.RandomCommand, 1), openAgain.value(agent.RandomCommand, 1),
			open.value(agent.ModelCommand, 1), a.commit(1, false), open.value(agent.RandomCommand, 2), open.begin(nil)},
		"an effect":          {open.begin(nil), a.begin(nil), open.begin(nil), open.commit(1, false), open.begin(nil), a.commit(1, false)},
		"an effect in doubt": {a.begin(nil), open.begin(nil), a.settle(agent.CodeTimeout), open.resolve(agent.OutcomeCommitted), later.begin(nil)},
		"an effect is late":  {a.begin(nil), open.begin(nil), a.settle(agent.CodeTimeout), a.settle(agent.CodeTimeout), open.commit(1, false), later.begin(nil)},
		"an effect failed":   {a.begin(nil), open.begin(nil), open.conclude(1, agent.CommandInDoubt), a.conclude(1, agent.Released), a.settle(agent.CodeCancelled), open.resolve(agent.OutcomeFailed)},
		"secrets":            {a.begin(func(begin *agent.Begin) { begin.Shown = json.RawMessage(`{"n":"[redacted]"}`) }), a.commit(1, false)},
		"replaced":           {a.begin(nil), out.begin(nil), replaced, a.commit(1, false), again.begin(nil), a.expire(), next.begin(nil), next.commit(2, false), facts.finish(agent.FailedStatus)},
		"waits": {w1.await("go", 0, false), w2.await("go", 0, false), facts.record(agent.Waiting), signalled("go", "1", `1`), w2.await("go", 0, false),
			w1.await("go", 0, false), facts.record(agent.Waiting), signalled("go", "1", `1.0`), signalled("go", "1", `2`), signalled("go", "2", `2`), w2.await("go", 0, false), w1.await("go", 0, false)},
		"early inputs": {signalled("go", "1", `{"a": 1}`), signalled("no", "1", `true`), signalled("go", "2", `null`), w1.await("go", time.Hour, false), w2.await("go", 0, false),
			facts.finish(agent.FailedStatus), signalled("go", "3", `1`)},
		"waits that are over": {w1.await("go", time.Hour, false), w2.await("", time.Hour, false), w1.due(), w2.due(), w1.await("go", time.Hour, false), w2.await("", time.Hour, false),
			w1.await("go", time.Hour, false)},
		"an input in the last moment": {w1.await("go", time.Hour, false), w1.due(), signalled("go", "1", `1`), w1.await("go", time.Hour, false)},
		"waits and a cancellation":    {w1.await("go", 0, false), cancelled, w1.await("go", 0, false), w1.settle(agent.CodeCancelled), signalled("go", "1", `1`), facts.finish(agent.Cancelled)},
		"waits of an earlier epoch":   {w1.await("go", 0, false), replaced, w1.await("go", 0, false), w1next.await("go", 0, false), signalled("go", "1", `1`), w1next.await("go", 0, false)},
		"a wait refused":              {w1.await("go", 0, true), w1.await("go", 0, false)},
		"said meanwhile":              {loop.beginTurn(true), say("red"), loop.commitTurn(1, 1), loop2.beginTurn(true), say("blue"), say("no, green"), loop2.commitTurn(1, 2), loop.beginTurn(false)},
		"said before":                 {say("red"), loop.beginTurn(true), loop.commitTurn(1, 1), say("blue"), loop.beginTurn(false)},
		"a retrieval":                 {find.begin(nil), find.expire(), find.begin(nil), findAgain.begin(nil), findAgain.commit(2, false), find.begin(nil), b.begin(nil)},
		"a retrieval that fails":      {find.asks(1), find.conclude(1, agent.Released), findAgain.begin(nil), findAgain.conclude(2, agent.CommandFailed), find.begin(nil)},
		"a loop":                      {turn.begin(nil), turn.commit(1, false), call.begin(nil), call.commit(1, false)},
		"approved": {out.asks(1), facts.record(agent.Waiting), out.asks(1), out.answered(yes), out.answered(no), outAgain.asks(1), outAgain.commit(1, false), outAgain.asks(1),
			out.answered(yes)},
		"edited": {out.asks(1), out.answered(edit), outAgain.asks(1), outAgain.asks(2), outAgain.expire(), later.asks(1), later.asks(2), out.answered(edit), out.answered(yes),
			facts.finish(agent.FailedStatus)},
		"denied":                {call.asks(1), call.answered(no), call.answered(no), call.asks(1), call.asks(1), call.answered(yes)},
		"expired":               {call.asks(1), call.late(), call.asks(1), call.answered(yes)},
		"expired, and answered": {call.asks(1), call.late(), call.answered(yes), call.asks(1)},
		"other arguments":       {out.asks(1), out.asks(2), out.answered(yes), out.asks(2), later.settle(agent.CodeMismatch), later.asks(1)},
		"withdrawn":             {call.asks(1), b.asks(1), out.asks(1), cancelled, out.answered(yes), outAgain.asks(1), facts.finish(agent.Cancelled), out.answered(yes)},
		"asked and forbidden":   {out.asks(1), out.begin(func(begin *agent.Begin) { begin.Refusal = &agent.Refusal{Decision: "forbid", Reason: "no"} }), out.answered(yes)},
		"asked, and a policy that has changed its mind": {out.asks(1), out.begin(nil), out.answered(yes), out.begin(nil)},
		"asked between tries":                           {a.begin(nil), a.conclude(1, agent.Released), a.asks(1), a.settle(agent.CodeTimeout), a.answered(yes), a.asks(1), a.commit(2, false)},
		"asked when lost":                               {a.begin(nil), a.expire(), again.asks(1), again.answered(no), again.asks(1)},
		"not of tools":                                  {answer.asks(1), a.begin(nil), open.asks(1), turn.asks(1)},
		"given up by the gate": {a.begin(nil), a.conclude(1, agent.Released), a.begin(nil), a.conclude(2, agent.Released), a.begin(nil), a.conclude(3, agent.Released),
			a.begin(nil), a.conclude(4, agent.Released), a.begin(nil), a.conclude(5, agent.Released), later.begin(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, sides(t), steps)
		})
	}
}

// TestLedgersAgreeOnAnything drives both ledgers through steps in any order.
func TestLedgersAgreeOnAnything(t *testing.T) {
	t.Parallel()
	sides := bothSides(t)
	rapid.Check(t, func(t *rapid.T) {
		replacements := 0
		steps := make([]step, rapid.IntRange(1, 24).Draw(t, "steps"))
		for i := range steps {
			id := rapid.SampledFrom([]string{"a", "b", "answer", "c#1", "c#1.0", "a/open"}).Draw(t, "command")
			c := subject{id: id, effect: agent.Idempotent, schedule: rapid.IntRange(1, 3).Draw(t, "schedule"), attempt: int32(rapid.IntRange(1, 2).Draw(t, "attempt")),
				epoch: 1 + replacements, facts: rapid.IntRange(0, 4).Draw(t, "facts")}
			if id == "b" || id == "c#1.0" || id == "a/open" {
				c.effect = agent.External
			}
			no := rapid.IntRange(1, 3).Draw(t, "no")
			switch rapid.SampledFrom([]string{"begin", "begin", "begin", "begin", "commit", "commit", "conclude", "settle", "renew", "expire", "expire", "resolve", "record",
				"cancel", "replace", "finish", "value", "await", "await", "await", "due", "signal", "signal", "say", "turn", "answer", "asks", "asks", "asks", "answered", "late"}).Draw(t, "what") {
			case "await":
				c.id, c.effect = rapid.SampledFrom([]string{"a", "b", "answer"}).Draw(t, "wait"), agent.Deterministic
				steps[i] = c.await(rapid.SampledFrom([]string{"go", "go", "stop", ""}).Draw(t, "signal"), rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "for"),
					rapid.IntRange(0, 9).Draw(t, "refused") == 0)
			case "due":
				steps[i] = c.due()
			case "signal":
				steps[i] = signalled(rapid.SampledFrom([]string{"go", "stop"}).Draw(t, "name"), fmt.Sprint(no), rapid.SampledFrom([]string{`1`, `"x"`}).Draw(t, "value"))
			case "say":
				steps[i] = say("x")
			case "turn":
				c.id, c.effect = rapid.SampledFrom([]string{"main#1", "main#2"}).Draw(t, "turn"), agent.Idempotent
				steps[i] = c.beginTurn(rapid.Bool().Draw(t, "everything"))
			case "answer":
				c.id, c.effect = rapid.SampledFrom([]string{"main#1", "main#2"}).Draw(t, "turn"), agent.Idempotent
				steps[i] = c.commitTurn(no, int(c.id[len("main#")]-'0'))
			case "begin":
				reconciles := rapid.Bool().Draw(t, "reconciles")
				steps[i] = c.begin(func(b *agent.Begin) { b.Reconciles = reconciles })
			case "asks":
				steps[i] = c.asks(rapid.IntRange(1, 2).Draw(t, "argument"))
			case "answered":
				answer := agent.ApprovalAnswer{Approve: rapid.Bool().Draw(t, "approve"), By: "ann", Note: "so"}
				if answer.Approve && rapid.Bool().Draw(t, "edit") {
					answer.Arguments = json.RawMessage(`{"n":2}`)
				}
				steps[i] = c.answered(answer)
			case "late":
				steps[i] = c.late()
			case "commit":
				steps[i] = c.commit(no, rapid.IntRange(0, 4).Draw(t, "reconciled") == 0)
			case "conclude":
				steps[i] = c.conclude(no, rapid.SampledFrom([]agent.CommandState{agent.Released, agent.CommandFailed, agent.CommandAborted, agent.CommandInDoubt, agent.Dispatched}).Draw(t, "state"))
			case "settle":
				steps[i] = c.settle(rapid.SampledFrom([]agent.Code{agent.CodeTimeout, agent.CodeCancelled, agent.CodeMismatch}).Draw(t, "code"))
			case "renew":
				steps[i] = c.renew(no)
			case "expire":
				steps[i] = c.expire()
			case "resolve":
				c.id = rapid.SampledFrom([]string{"b", "a/open"}).Draw(t, "doubt") // a call of a turn that is not on record is never in doubt
				steps[i] = c.resolve(rapid.SampledFrom([]agent.Outcome{agent.OutcomeCommitted, agent.OutcomeFailed, agent.OutcomeRetry}).Draw(t, "outcome"))
			case "record":
				steps[i] = c.record(rapid.SampledFrom([]agent.Status{"", agent.Running, agent.InDoubt, agent.Waiting}).Draw(t, "status"))
			case "cancel":
				steps[i] = cancelled
			case "value":
				steps[i] = c.value(rapid.SampledFrom([]agent.CommandKind{agent.UUIDCommand, agent.RandomCommand}).Draw(t, "kind"), rapid.IntRange(1, 2).Draw(t, "n"))
			case "replace":
				steps[i], replacements = replaced, replacements+1
			case "finish":
				steps[i] = c.finish(rapid.SampledFrom([]agent.Status{agent.Completed, agent.FailedStatus, agent.Cancelled}).Draw(t, "status"))
			}
		}
		play(t, sides(t), steps)
	})
}
