package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// looping is a react run at work, in a conversation of its own.
func (b *bench) looping(t testing.TB) agent.Run {
	t.Helper()
	run, _, err := b.Accept(t.Context(), message("", ""))
	require.NoError(t, err)
	b.exec(t, `UPDATE intents SET delivered_at = now(), attempts = 1 WHERE run_id = $1`, run.RunID)
	b.exec(t, `UPDATE agent_executions SET status = 'running', started_at = now() WHERE run_id = $1`, run.RunID)
	return run
}

// message is what a chat sends into a conversation, for the run at work there.
func message(conversationID, text string) agent.Acceptance {
	a := acceptance(nil)
	a.Plan, a.PlanSource, a.Run.Definition.Mode, a.Strategy = agent.ReactPlan(), "react", agent.ModeReact, agent.Steer
	if conversationID != "" {
		a.NewConversation, a.Run.ConversationID = false, conversationID
	}
	if text != "" {
		a.Run.Input = text
	}
	return a
}

// tells sends a message to a run at work.
func (b *bench) tells(t testing.TB, run agent.Run, text string) (sequence int64) {
	t.Helper()
	into, created, err := b.Accept(t.Context(), message(run.ConversationID, text))
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, run.RunID, into.RunID)
	require.Equal(t, b.last(t, run), into.Steered)
	return into.Steered
}

// turn is a turn of a loop.
func turn(run agent.Run, n int) command {
	return command{run: run, id: agent.TurnCommandID(agent.MainNodeID, n), kind: agent.ModelCommand, schedule: n}
}

func (c command) beginTurn(heard int64) agent.Begin {
	begin := c.begin()
	begin.Heard = heard
	if c.schedule > 1 {
		begin.Node = nil
	}
	return begin
}

func (c command) commitTurn(heard int64, result string) agent.Commit {
	commit := c.commit(1, result)
	commit.Turn, commit.Heard, commit.Checkpoint, commit.Event.Turn, commit.Event.Tool = c.schedule, heard, agent.LLMComplete, c.schedule, ""
	return commit
}

// answers takes a turn of a loop through the gate, with what it has heard.
func (b *bench) answers(t testing.TB, run agent.Run, n int, heard int64) agent.CommandRow {
	t.Helper()
	c := turn(run, n)
	_, err := b.Begin(t.Context(), c.beginTurn(heard))
	require.NoError(t, err)
	decided, err := b.Commit(t.Context(), c.commitTurn(heard, fmt.Sprintf(`{"text": "answer %d"}`, n)))
	require.NoError(t, err)
	return *decided.Row
}

// TestAnswerThatDoesNotKnowGoesOn: what is said before the answer that would have ended the loop keeps it going; what is said after is
// for another run.
func TestAnswerThatDoesNotKnowGoesOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.looping(t)
	first, second := b.tells(t, run, "in red"), b.tells(t, run, "no, blue")
	row := b.answers(t, run, 1, first)
	require.True(t, row.GoesOn)
	require.Equal(t, second, row.Said, "the signal may come later")
	begun, err := b.Begin(t.Context(), turn(run, 1).beginTurn(first))
	require.NoError(t, err)
	require.Equal(t, agent.Inject, begun.Verdict)
	require.True(t, begun.Row.GoesOn)
	require.Equal(t, second, begun.Row.Said)
	require.NotContains(t, b.types(t, run, 0), agent.NodeFinished)
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, second, in.Heard)

	require.False(t, b.answers(t, run, 2, second).GoesOn)
	a := message(run.ConversationID, "and a door")
	next, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created, "the loop has ended: the message begins a run")
	require.Zero(t, next.Steered)
	require.Len(t, b.ahead(t, next), 1)
	b.finish(t, run, agent.Completed)
	b.requireVerifies(t, run)
	require.Equal(t, 1, b.release(t))

	messages, err := b.History(t.Context(), run.ConversationID, b.last(t, run))
	require.NoError(t, err)
	var said []string
	for _, m := range messages {
		said = append(said, m.Content)
	}
	require.Equal(t, []string{"what the user said", "in red", "no, blue", "answer 1", "answer 2", "and a door"}, said)
}

// TestMessageWhereNoLoopReadsIt: begins a run of its own, or is refused.
func TestMessageWhereNoLoopReadsIt(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(t *testing.T, b *bench, run agent.Run){
		"ended": func(t *testing.T, b *bench, run agent.Run) { b.finish(t, run, agent.FailedStatus) },
		"cancelling": func(t *testing.T, b *bench, run agent.Run) {
			_, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "")
			require.NoError(t, err)
		},
		"its loop has failed": func(t *testing.T, b *bench, run agent.Run) {
			_, err := b.Begin(t.Context(), turn(run, 1).beginTurn(0))
			require.NoError(t, err)
			_, err = b.Conclude(t.Context(), turn(run, 1).conclude(1, agent.CommandFailed, &agent.Error{Code: agent.CodeModelFailed, Message: "no"}))
			require.NoError(t, err)
			_, err = b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{{No: 1, Type: agent.NodeFailed, NodeID: "main", Data: []byte(`{"node_index": 0}`)}}}})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.looping(t)
			ends(t, b, run)
			next, created, err := b.Accept(t.Context(), message(run.ConversationID, "x"))
			require.NoError(t, err)
			require.True(t, created)
			require.NotEqual(t, run.RunID, next.RunID)
			b.requireVerifies(t, run)
			b.requireVerifies(t, next)
		})
	}
	b := setup(t)
	planned := b.accepted(t, twoStep(t))
	_, _, err := b.Accept(t.Context(), message(planned.ConversationID, "x"))
	requireConflict(t, err, agent.ConflictSteer)
	run := b.looping(t)
	more := message(run.ConversationID, "x")
	more.Run.Attachments = []agent.Attachment{{Name: "a"}}
	_, _, err = b.Accept(t.Context(), more)
	requireConflict(t, err, agent.ConflictSteer)
	more = message(run.ConversationID, "x")
	more.Plan, more.PlanSource = twoStep(t), "caller"
	_, _, err = b.Accept(t.Context(), more)
	requireConflict(t, err, agent.ConflictSteer)
	more = message(run.ConversationID, "x")
	more.OwnLimits = true
	_, _, err = b.Accept(t.Context(), more)
	requireConflict(t, err, agent.ConflictSteer)
	more = message(run.ConversationID, "x")
	more.Run.Metadata = []byte(`{"ticket": 7}`)
	_, _, err = b.Accept(t.Context(), more)
	requireConflict(t, err, agent.ConflictSteer)
	more = message(run.ConversationID, "x")
	more.Agent = "another than " + run.Definition.Agent
	_, _, err = b.Accept(t.Context(), more)
	requireConflict(t, err, agent.ConflictSteer)
	taken := message(run.ConversationID, "x")
	taken.Run.MessageID = run.MessageID
	_, _, err = b.Accept(t.Context(), taken)
	requireConflict(t, err, agent.ConflictMessageID)
	require.Len(t, b.events(t, run), 4)
}

// TestMessageUnderAKeyIsSaidOnce, however often and at the same time it comes.
func TestMessageUnderAKeyIsSaidOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.looping(t)
	a := message(run.ConversationID, "in red")
	a.Key, a.RequestHash = "k", "h"
	said := make([]int64, 8)
	var group sync.WaitGroup
	for i := range said {
		group.Go(func() {
			mine := a
			if i%2 == 0 { // a client may bring the message's id, or leave it to the API
				mine.Run.MessageID = newID()
			}
			into, created, err := b.Accept(t.Context(), mine)
			if err != nil || created || into.RunID != run.RunID {
				t.Errorf("created %v, run %s: %v", created, into.RunID, err)
			}
			said[i] = into.Steered
		})
	}
	group.Wait()
	messages, _, err := b.Steered(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	for _, at := range said {
		require.Equal(t, messages[0].Sequence, at, "every answer begins at the message")
	}
	a.RequestHash = "other"
	_, _, err = b.Accept(t.Context(), a)
	requireConflict(t, err, agent.ConflictKeyReused)
	require.False(t, b.answers(t, run, 1, messages[0].Sequence).GoesOn)
	b.finish(t, run, agent.Completed)
	a.RequestHash = "h"
	into, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, messages[0].Sequence, into.Steered)
}

// loops plays the workers of a conversation: every run that is started answers until nobody says anything any more. An answer knows
// of what had been said when its turn began, as far as the news of it had come.
type loops struct {
	t testing.TB
	b *bench

	mu    sync.Mutex
	ended *sync.Cond
	heard map[string]int64 // of each run, by the answer that ended it
	done  int              // of the messages, how many are answered
}

func (l *loops) work(ctx context.Context, done <-chan struct{}) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-done:
			return
		default:
		}
		_, err := l.b.ReleaseQueued(ctx)
		l.fail(err)
		intents, err := l.b.ClaimIntents(ctx, 10)
		l.fail(err)
		for _, i := range intents {
			l.fail(l.b.IntentDelivered(ctx, i))
			if i.Kind == ledger.StartIntent {
				group.Go(func() { l.run(ctx, agent.Run{RunID: i.RunID, Epoch: 1}) })
			}
		}
	}
}

func (l *loops) fail(err error) {
	if err != nil {
		l.t.Error(err)
	}
}

func (l *loops) run(ctx context.Context, run agent.Run) {
	var known int64
	for n := 1; ; n++ {
		messages, _, err := l.b.Steered(ctx, run.RunID)
		l.fail(err)
		if n%2 == 0 && len(messages) > 0 { // else the signals are late
			known = max(known, messages[len(messages)-1].Sequence)
		}
		c := turn(run, n)
		_, err = l.b.Begin(ctx, c.beginTurn(known))
		l.fail(err)
		decided, err := l.b.Commit(ctx, c.commitTurn(known, fmt.Sprintf(`{"text": "answer %d"}`, n)))
		l.fail(err)
		if err != nil {
			l.end(run, 0, 0)
			return
		}
		if decided.Row.GoesOn {
			if decided.Row.Said <= known {
				l.fail(errors.New("an answer goes on, and nothing was said that it does not know of"))
			}
			known = decided.Row.Said
			continue
		}
		_, err = l.b.Finish(ctx, agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Completed})
		l.fail(err)
		messages, _, err = l.b.Steered(ctx, run.RunID)
		l.fail(err)
		l.end(run, known, 1+len(messages))
		return
	}
}

func (l *loops) end(run agent.Run, heard int64, answered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[run.RunID], l.done = heard, l.done+answered
	l.ended.Broadcast()
}

// await waits until a run has ended.
func (l *loops) await(runID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ok := l.heard[runID]; !ok; _, ok = l.heard[runID] {
		l.ended.Wait()
	}
}

// TestNothingSaidIsLostOrAnsweredTwice: many clients talk into a conversation whose loops end all the time. Every message is either one
// that a loop was told, and whose last answer knows of it, or the beginning of a run of its own.
func TestNothingSaidIsLostOrAnsweredTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, created, err := b.Accept(t.Context(), message("", "hello"))
	require.NoError(t, err)
	require.True(t, created)
	const clients, each = 6, 25
	l := &loops{t: t, b: b, heard: map[string]int64{}}
	l.ended = sync.NewCond(&l.mu)
	done := make(chan struct{})
	var workers, talkers sync.WaitGroup
	workers.Go(func() { l.work(t.Context(), done) })
	var mu sync.Mutex
	said, begun := map[string][]int64{}, 1
	for k := range clients {
		talkers.Go(func() {
			for i := range each {
				run, created, err := b.Accept(t.Context(), message(first.ConversationID, "x"))
				l.fail(err)
				mu.Lock()
				if created {
					begun++
				} else {
					said[run.RunID] = append(said[run.RunID], run.Steered)
				}
				mu.Unlock()
				if i%(k+2) == 0 { // nobody talks all the time: loops come to their ends
					l.await(run.RunID)
				}
			}
		})
	}
	talkers.Wait()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.done >= clients*each+1
	}, soon, soon/1000)
	close(done)
	workers.Wait()
	require.Equal(t, clients*each+1, l.done)
	require.Len(t, l.heard, begun)
	steered := 0
	for runID, numbers := range said {
		steered += len(numbers)
		for _, at := range numbers {
			require.LessOrEqual(t, at, l.heard[runID], "the answer knows of it")
		}
	}
	require.Equal(t, clients*each+1, steered+begun)
	require.NotZero(t, steered)
	t.Logf("%d of %d messages were told to a loop at work", steered, clients*each)
	for runID := range l.heard {
		b.requireVerifies(t, agent.Run{RunID: runID})
	}
}

// TestTamperedLoopsAreFound changes what is on record of what a loop has heard.
func TestTamperedLoopsAreFound(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"the row does not go on":   `UPDATE commands SET goes_on = false WHERE command_id = 'main#1'`,
		"the row has heard it":     `UPDATE commands SET heard = 100 WHERE command_id = 'main#1'`,
		"the event does not go on": `UPDATE agent_execution_events SET event_data = event_data - 'goes_on' WHERE event_type = 'command_committed' AND command_id = 'main#1'`,
		"nobody has said anything": `UPDATE agent_execution_events SET event_data = event_data - 'steers' WHERE event_data ->> 'content' = 'in red'`,
		"it has ended the loop":    `UPDATE agent_execution_events SET event_data = jsonb_set(event_data, '{result_command}', '"main#1"') WHERE event_type = 'node_finished'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.looping(t)
			said := b.tells(t, run, "in red")
			require.True(t, b.answers(t, run, 1, 0).GoesOn)
			require.False(t, b.answers(t, run, 2, said).GoesOn)
			b.finish(t, run, agent.Completed)
			b.requireVerifies(t, run)
			b.exec(t, sql)
			require.True(t, containsCheck(b.differences(t, run), agent.CheckSteer), "%v", b.differences(t, run))
		})
	}
}
