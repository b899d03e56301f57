package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/model"
	"runledger/verify"
)

// verify asks both witnesses.
func (s *stack) verify(t testing.TB, run agent.Run) agent.Verification {
	t.Helper()
	v, err := (&verify.Verifier{Ledger: s.ledger, Temporal: s.temporal}).Verify(t.Context(), run.RunID)
	require.NoError(t, err)
	return v
}

// requireVerifies says that a run's record and Temporal's history of it agree, and that there was something to compare.
func (s *stack) requireVerifies(t testing.TB, run agent.Run) {
	t.Helper()
	v := s.verify(t, run)
	require.Empty(t, v.Differences)
	require.True(t, v.OK)
	require.Equal(t, agent.WitnessAgrees, v.Temporal.Status)
	require.Empty(t, v.Temporal.Detail)
	require.Equal(t, 1, v.Temporal.Executions)
	require.Positive(t, v.Checked.Activities)
	require.Positive(t, v.Checked.Events)
	require.Positive(t, v.Checked.Commands)
}

// sql runs statements on the database, past the ledger.
func (s *stack) sql(t testing.TB, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	for _, statement := range statements {
		tag, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
		require.Positive(t, tag.RowsAffected(), statement)
	}
}

const (
	// a hand that knows the ledger covers its tracks.
	rewriteChain = `UPDATE conversations c SET chain = (SELECT event_chain(decode(repeat('00', 32), 'hex'), event_digest(e) ORDER BY sequence_number)
		FROM agent_execution_events e WHERE e.conversation_id = c.id) WHERE id = @conversation`
	// closeUp gives the events behind number 2 the numbers before theirs, in every table. shift makes room behind number 3.
	closeUp = `UPDATE agent_execution_events SET sequence_number = sequence_number + 1000 WHERE conversation_id = @conversation AND sequence_number > 2;
		UPDATE agent_execution_events SET sequence_number = sequence_number - 1001 WHERE conversation_id = @conversation AND sequence_number > 1000;
		UPDATE execution_checkpoints SET sequence_number = sequence_number - 1, execution_state = jsonb_set(jsonb_set(execution_state,
			'{sequence_number}', to_jsonb((execution_state ->> 'sequence_number')::int - 1)), '{plan_sequence}', '3') WHERE run_id = @run;
		UPDATE messages SET sequence_number = sequence_number - 1 WHERE run_id = @run AND sequence_number > 2;
		UPDATE conversations SET last_sequence = last_sequence - 1 WHERE id = @conversation;
		UPDATE commands SET sequence_number = sequence_number - 1 WHERE run_id = @run`
	shift = `UPDATE agent_execution_events SET sequence_number = sequence_number + 1000 WHERE conversation_id = @conversation AND sequence_number > 3;
		UPDATE agent_execution_events SET sequence_number = sequence_number - 999 WHERE conversation_id = @conversation AND sequence_number > 1000;
		UPDATE execution_checkpoints SET sequence_number = sequence_number + 1, execution_state = jsonb_set(jsonb_set(execution_state,
			'{sequence_number}', to_jsonb((execution_state ->> 'sequence_number')::int + 1)), '{plan_sequence}', '5') WHERE run_id = @run;
		UPDATE messages SET sequence_number = sequence_number + 1 WHERE run_id = @run AND sequence_number > 3;
		UPDATE conversations SET last_sequence = last_sequence + 1 WHERE id = @conversation;
		UPDATE commands SET sequence_number = sequence_number + 1 WHERE run_id = @run`
)

func swapEvents(a, b int) string {
	return fmt.Sprintf(`UPDATE agent_execution_events SET sequence_number = -sequence_number + 1000 WHERE conversation_id = @conversation AND sequence_number IN (%[1]d, %[2]d);
		UPDATE agent_execution_events SET sequence_number = %[1]d + %[2]d - (1000 - sequence_number) WHERE conversation_id = @conversation AND sequence_number > 900`, a, b)
}

func insertEvent(number, kind string) string {
	return `INSERT INTO agent_execution_events (conversation_id, message_id, run_id, root_run_id, epoch, sequence_number, event_type, event_data)
		SELECT conversation_id, message_id, run_id, run_id, 1, ` + number + `, '` + kind + `', '{}' FROM agent_executions WHERE run_id = @run`
}

// TestTamperingIsFound changes what is on record of a run, one thing at a time, and wants the first difference named: with
// both witnesses; with the ledger alone; and with both when the ledger's chain was rewritten after the change.
//
// The run's events: 1 run_started, 2 message_added, 3 plan_started, 4 plan_generated, 5 to 9 node a (node_started, command_emitted,
// command_committed, node_finished, checkpoint_saved), 10 to 14 node b, 15 to 19 the answer, 20 message_added, 21 run_completed.
// The activities testify to 9, 14, 19 and 21.
func TestTamperingIsFound(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		return model.Reply{Finish: model.FinishStop, Text: "it is 8"}, nil
	}))
	type want struct {
		check    agent.Check
		sequence int64
		from     int64
		command  string
	}
	type seen struct{ both, alone, rewritten want }
	everywhere := func(check agent.Check, sequence int64, command string) seen {
		w := want{check, sequence, 0, command}
		return seen{w, w, w}
	}
	none := want{} // it cannot be seen
	wholeLog := want{check: agent.CheckChain, from: 1, sequence: 21}
	firstActivity := want{check: agent.CheckChain, from: 1, sequence: 9}
	for _, c := range []struct {
		name string
		sql  []string
		seen seen
	}{
		{name: "a result's byte", sql: []string{`UPDATE commands SET result = '{"n":5}' WHERE run_id = @run AND command_id = 'a'`},
			seen: everywhere(agent.CheckResult, 7, "a")},
		{name: "a result and its hash", sql: []string{`UPDATE commands SET result = '{"n":5}', result_hash = encode(sha256('{"n":5}'), 'hex')
			WHERE run_id = @run AND command_id = 'a'`},
			seen: everywhere(agent.CheckRow, 7, "a")},
		{name: "a result, its hash and the event's", sql: []string{
			`UPDATE commands SET result = '{"n":5}', result_hash = encode(sha256('{"n":5}'), 'hex') WHERE run_id = @run AND command_id = 'a'`,
			`UPDATE agent_execution_events SET event_data = jsonb_set(event_data, '{result_hash}', to_jsonb(encode(sha256('{"n":5}'), 'hex')))
				WHERE run_id = @run AND sequence_number = 7`},
			seen: seen{both: want{agent.CheckActivity, 7, 0, "a"}, alone: wholeLog, rewritten: want{agent.CheckActivity, 7, 0, "a"}}},
		{name: "an event's data", sql: []string{`UPDATE agent_execution_events SET event_data = jsonb_set(event_data, '{latency_ms}', '1000000')
			WHERE run_id = @run AND sequence_number = 12`},
			seen: seen{both: want{agent.CheckChain, 14, 10, ""}, alone: wholeLog, rewritten: want{agent.CheckChain, 14, 10, ""}}},
		{name: "an event's time", sql: []string{`UPDATE agent_execution_events SET created_at = created_at + interval '1 microsecond'
			WHERE run_id = @run AND sequence_number = 20`},
			seen: seen{both: want{agent.CheckChain, 21, 20, ""}, alone: wholeLog, rewritten: want{agent.CheckChain, 21, 20, ""}}},
		{name: "an event's attempt", sql: []string{`UPDATE agent_execution_events SET attempt = 2 WHERE run_id = @run AND sequence_number = 6`},
			seen: seen{both: firstActivity, alone: wholeLog, rewritten: firstActivity}},
		{name: "an event removed", sql: []string{`DELETE FROM agent_execution_events WHERE run_id = @run AND sequence_number = 8`},
			seen: everywhere(agent.CheckNumbers, 8, "")},
		{name: "the first event removed", sql: []string{`DELETE FROM agent_execution_events WHERE run_id = @run AND sequence_number = 1`},
			seen: everywhere(agent.CheckNumbers, 1, "")},
		{name: "the last event removed", sql: []string{`DELETE FROM agent_execution_events WHERE run_id = @run AND sequence_number = 21`},
			seen: everywhere(agent.CheckRun, 20, "")},
		{name: "an event removed with its row, and the numbers closed up", sql: []string{`DELETE FROM agent_execution_events WHERE run_id = @run AND sequence_number = 2`,
			`DELETE FROM messages WHERE run_id = @run AND sequence_number = 2`, closeUp},
			seen: seen{both: want{agent.CheckActivity, 7, 0, "a"}, alone: want{agent.CheckChain, 20, 1, ""}, rewritten: want{agent.CheckActivity, 7, 0, "a"}}},
		{name: "an event slipped in", sql: []string{shift, insertEvent("4", "progress")},
			seen: seen{both: want{agent.CheckActivity, 7, 0, "a"}, alone: want{agent.CheckChain, 22, 1, ""}, rewritten: want{agent.CheckActivity, 7, 0, "a"}}},
		{name: "an event added", sql: []string{insertEvent("22", "progress"), `UPDATE conversations SET last_sequence = 22 WHERE id = @conversation`},
			seen: everywhere(agent.CheckEnd, 22, "")},
		{name: "two events of a command swapped", sql: []string{swapEvents(5, 6)},
			seen: everywhere(agent.CheckNode, 5, "a")},
		{name: "committed before emitted", sql: []string{swapEvents(6, 7), `UPDATE commands SET sequence_number = 6 WHERE run_id = @run AND command_id = 'a'`},
			seen: everywhere(agent.CheckCommand, 6, "a")},
		{name: "finished before committed", sql: []string{swapEvents(7, 8), `UPDATE commands SET sequence_number = 8 WHERE run_id = @run AND command_id = 'a'`},
			seen: everywhere(agent.CheckNode, 7, "")},
		{name: "two commands' commits swapped", sql: []string{swapEvents(7, 12)},
			seen: everywhere(agent.CheckCommand, 7, "b")},
		{name: "two results swapped", sql: []string{`UPDATE commands c SET result = o.result, result_hash = o.result_hash, result_bytes = o.result_bytes FROM commands o
			WHERE c.run_id = @run AND o.run_id = @run AND (c.command_id, o.command_id) IN (('a', 'b'), ('b', 'a'))`},
			seen: everywhere(agent.CheckRow, 7, "a")},
		{name: "a checkpoint's state", sql: []string{`UPDATE execution_checkpoints SET execution_state = jsonb_set(execution_state, '{committed}', '7')
			WHERE run_id = @run AND sequence_number = 14`},
			seen: everywhere(agent.CheckFold, 14, "")},
		{name: "a checkpoint removed", sql: []string{`DELETE FROM execution_checkpoints WHERE run_id = @run AND sequence_number = 14`},
			seen: everywhere(agent.CheckCheckpoint, 14, "")},
		{name: "the final output", sql: []string{`UPDATE agent_executions SET final_output = 'it is 9' WHERE run_id = @run`},
			seen: everywhere(agent.CheckRun, 21, "")},
		{name: "the status", sql: []string{`UPDATE agent_executions SET status = 'failed' WHERE run_id = @run`},
			seen: everywhere(agent.CheckRun, 21, "")},
		{name: "the plan", sql: []string{`UPDATE agent_executions SET plan = jsonb_set(plan::jsonb, '{nodes,0,tool}', '"treble"')::json WHERE run_id = @run`},
			seen: everywhere(agent.CheckPlan, 4, "")},
		{name: "a message", sql: []string{`UPDATE messages SET content = 'double 3' WHERE run_id = @run AND role = 'user'`},
			seen: everywhere(agent.CheckMessage, 2, "")},
		{name: "the chain", sql: []string{`UPDATE conversations SET chain = sha256('x') WHERE id = @conversation`},
			seen: seen{both: want{agent.CheckChain, 21, 0, ""}, alone: wholeLog, rewritten: none}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := s.accept(t, agent.ModePlan, "double 2 twice", &agent.Plan{Nodes: []agent.Node{double("a", "2", nil), double("b", `{"$from": "/nodes/a/output/n"}`, nil)}})
			events := s.events(t, run)
			require.Len(t, events, 21)
			s.history(t, run) // to its end
			s.requireVerifies(t, run)
			for _, statement := range c.sql {
				s.tamper(t, run, statement)
			}
			first := func(v agent.Verification) want {
				t.Helper()
				require.Equal(t, len(v.Differences) == 0, v.OK)
				if v.OK {
					return none
				}
				d := v.Differences[0]
				return want{d.Check, d.Sequence, d.From, d.CommandID}
			}
			v := s.verify(t, run)
			require.Equal(t, c.seen.both, first(v), "%v", v.Differences)
			alone, err := (&verify.Verifier{Ledger: s.ledger}).Verify(t.Context(), run.RunID)
			require.NoError(t, err)
			require.Equal(t, agent.WitnessNotConfigured, alone.Temporal.Status)
			require.Equal(t, c.seen.alone, first(alone), "%v", alone.Differences)
			s.tamper(t, run, rewriteChain)
			v = s.verify(t, run)
			require.Equal(t, c.seen.rewritten, first(v), "%v", v.Differences)
		})
	}
}

// tamper runs the statements of a text, with the run's ids in the place of @run and @conversation.
func (s *stack) tamper(t testing.TB, run agent.Run, text string) {
	t.Helper()
	quoted := func(id string) string { return "'" + uuid.MustParse(id).String() + "'" }
	text = strings.NewReplacer("@run", quoted(run.RunID), "@conversation", quoted(run.ConversationID)).Replace(text)
	s.sql(t, strings.Split(text, ";")...)
}

// TestRunsOfOneConversationVerify: two runs side by side in one conversation, whose numbers interleave, and a third after them.
func TestRunsOfOneConversationVerify(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		return model.Reply{Finish: model.FinishStop, Text: "done"}, nil
	}))
	plan := func() *agent.Plan {
		return &agent.Plan{Nodes: []agent.Node{double("a", "1", nil), double("b", "2", nil), double("c", "13", func(n *agent.Node) { n.OnError = agent.OnErrorContinue }, "a")}}
	}
	one := s.accept(t, agent.ModePlan, "one", plan())
	two := s.acceptIn(t, one.ConversationID, plan())
	s.events(t, one)
	s.events(t, two)
	three := s.acceptIn(t, one.ConversationID, plan())
	s.events(t, three)
	for _, run := range []agent.Run{one, two, three} {
		s.history(t, run)
		s.requireVerifies(t, run)
	}
	// What is changed in one run shows in the chain that the others told of.
	s.tamper(t, two, `UPDATE agent_execution_events SET event_data = event_data || '{"x": 1}' WHERE run_id = @run AND event_type = 'run_completed'`)
	s.tamper(t, two, rewriteChain)
	require.False(t, s.verify(t, two).OK)
	v := s.verify(t, three)
	require.False(t, v.OK)
	require.Equal(t, agent.WitnessDiffers, v.Temporal.Status)
	require.Equal(t, agent.CheckChain, v.Differences[0].Check)
}

// TestVerifyWithoutTemporal: the ledger's own side is checked all the same, and the answer says what is missing.
func TestVerifyWithoutTemporal(t *testing.T) {
	t.Parallel()
	s := start(t, replies(func(model.Request) (model.Reply, error) {
		return model.Reply{Finish: model.FinishStop, Text: "done"}, nil
	}))
	run := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{double("a", "1", nil)}})
	s.events(t, run)
	s.history(t, run)

	away, err := client.NewLazyClient(client.Options{HostPort: "127.0.0.1:1"})
	require.NoError(t, err)
	t.Cleanup(away.Close)
	v, err := (&verify.Verifier{Ledger: s.ledger, Temporal: away, Patience: 100 * time.Millisecond}).Verify(t.Context(), run.RunID)
	require.NoError(t, err)
	require.True(t, v.OK)
	require.Equal(t, agent.WitnessUnreachable, v.Temporal.Status)
	require.NotEmpty(t, v.Temporal.Detail)

	s.stop() // nobody starts the next one
	waiting := s.accept(t, agent.ModePlan, "x", &agent.Plan{Nodes: []agent.Node{double("a", "1", nil)}})
	v = s.verify(t, waiting)
	require.True(t, v.OK, "%v", v.Differences)
	require.Equal(t, agent.WitnessGone, v.Temporal.Status)
	require.Zero(t, v.Temporal.Executions)

	var missing *agent.NotFoundError
	_, err = (&verify.Verifier{Ledger: s.ledger, Temporal: s.temporal}).Verify(t.Context(), uuid.NewString())
	require.ErrorAs(t, err, &missing)
}

// acceptIn makes a run durable in a conversation that is there.
func (s *stack) acceptIn(t testing.TB, conversationID string, plan *agent.Plan) agent.Run {
	t.Helper()
	return s.acceptBy(t, agent.ModePlan, "more", plan, func(a *agent.Acceptance) {
		a.NewConversation, a.Run.ConversationID = false, conversationID
	})
}
