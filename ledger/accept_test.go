package ledger_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// R0-21, R3-2: accepted means durable, the intent to start included.
func TestAcceptMakesARunDurableInOneStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := acceptance(nil)
	a.Run.Attachments = []agent.Attachment{{Name: "a.txt", MediaType: "text/plain", Text: "x"}}
	a.Run.Metadata = json.RawMessage(`{"z": 1.0, "a": 1e400}`)
	a.Offline = true
	run, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, agent.Queued, run.Status)
	require.Equal(t, int64(1), run.StartSequence)

	events := b.events(t, run)
	require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded}, b.types(t, run, 1))
	started := data[agent.RunStartedData](t, events[0])
	require.Equal(t, "what the user said", started.Input)
	require.Equal(t, "default", started.Agent)
	require.Equal(t, []string{"a.txt"}, started.Attachments)
	require.True(t, started.Offline)
	for i, e := range events {
		require.Equal(t, int64(i+1), e.Sequence)
		require.Equal(t, run.RunID, e.RunID)
		require.Equal(t, run.RunID, e.RootRunID)
		require.Equal(t, run.MessageID, e.MessageID)
		require.Equal(t, run.ConversationID, e.ConversationID)
		require.Equal(t, 1, e.Epoch)
		require.Equal(t, time.UTC, e.CreatedAt.Location())
	}

	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, run, read, "what Accept tells is what is on record")
	require.Equal(t, `{"z": 1.0, "a": 1e400}`, string(read.Metadata), "byte for byte")
	require.Nil(t, read.StartedAt)

	intents, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, intents, 1)
	require.Equal(t, run.RunID, intents[0].RunID)

	messages, more, err := b.Messages(t.Context(), run.ConversationID, 0, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, messages, 1)
	require.Equal(t, agent.Message{MessageID: run.MessageID, RunID: run.RunID, Role: agent.UserMessage, Content: "what the user said", Sequence: 2,
		CreatedAt: run.CreatedAt}, messages[0])

	conversation, err := b.Conversation(t.Context(), owner, run.ConversationID)
	require.NoError(t, err)
	require.Equal(t, "what the user said", conversation.Title)
	require.Equal(t, int64(2), conversation.LastSequence)
}

func TestAcceptWithAPlanWritesThePlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	plan := twoStep(t)
	run, _, err := b.Accept(t.Context(), acceptance(plan))
	require.NoError(t, err)
	require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded, agent.PlanStarted, agent.PlanGenerated}, b.types(t, run, 1))
	events := b.events(t, run)
	require.Equal(t, "caller", data[agent.PlanStartedData](t, events[2]).Source)
	generated := data[agent.PlanGeneratedData](t, events[3])
	require.Equal(t, "caller", generated.Source)
	require.NotEmpty(t, generated.Hash)
	require.Len(t, generated.TaskGraph.Nodes, 2)

	read, err := b.RunPlan(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, `{"n":1.0}`, string(read.Nodes[0].Args), "the plan's exact bytes stand beside the event")
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, plan.Shape(&run.Definition), in.Plan)
	require.Equal(t, int64(4), in.State.PlanSequence)
	require.Equal(t, 2, in.State.PlanNodes)
	require.Equal(t, 1, in.Epoch)
}

func TestAcceptIsIdempotentByKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := acceptance(nil)
	a.Key, a.RequestHash, a.Strategy = "key \xff", "hash", agent.Reject
	first, created, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.True(t, created)

	again := acceptance(nil)
	again.Key, again.RequestHash, again.Strategy = a.Key, a.RequestHash, agent.Reject
	again.NewConversation, again.Run.ConversationID = false, first.ConversationID
	got, created, err := b.Accept(t.Context(), again)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, first, got)
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM agent_executions`))
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM intents`))

	again.RequestHash = "another"
	_, _, err = b.Accept(t.Context(), again)
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictKeyReused, conflict.Reason)

	again.Owner, again.NewConversation, again.Run.ConversationID = "team-b", true, newID()
	_, created, err = b.Accept(t.Context(), again)
	require.NoError(t, err, "a key is its owner's")
	require.True(t, created)
}

// Two requests with one key that arrive at once make one run, whatever they meet first: the key, the message id that both
// bring, or the run that the other has just opened.
func TestAcceptRacesWithOneKey(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(a *agent.Acceptance, messageID string){
		"new conversations":    func(a *agent.Acceptance, _ string) { a.NewConversation, a.Run.ConversationID = true, newID() },
		"one conversation":     func(*agent.Acceptance, string) {},
		"one message id":       func(a *agent.Acceptance, messageID string) { a.Run.MessageID = messageID },
		"the only run at work": func(a *agent.Acceptance, _ string) { a.Strategy = agent.Reject },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			opened := b.accepted(t, twoStep(t))
			b.finish(t, opened, agent.Cancelled)
			const racers = 4
			release := b.hold(t, opened.ConversationID)
			messageID := newID()
			ids, fresh := make([]string, racers), make([]bool, racers)
			var group sync.WaitGroup
			for i := range racers {
				a := acceptance(nil)
				a.Key, a.RequestHash, a.NewConversation, a.Run.ConversationID = "key", "hash", false, opened.ConversationID
				edit(&a, messageID)
				group.Go(func() {
					run, created, err := b.Accept(t.Context(), a)
					if err != nil {
						t.Error(err)
					}
					ids[i], fresh[i] = run.RunID, created
				})
			}
			if name != "new conversations" {
				b.awaitBlocked(t, racers)
			}
			release()
			group.Wait()
			made := 0
			for i := range racers {
				require.Equal(t, ids[0], ids[i])
				if fresh[i] {
					made++
				}
			}
			require.Equal(t, 1, made)
			require.Equal(t, 2, value[int](t, b, `SELECT count(*)::int FROM agent_executions`))
		})
	}
}

// Repeated requests ask for one connection at a time: as many of them as the pool has connections do not wait for each other.
func TestAcceptRepeatedNeedsOneConnection(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := acceptance(nil)
	a.Key, a.RequestHash = "key", "hash"
	_, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	one := open(t, b.url, 1)
	_, created, err := one.Accept(t.Context(), a)
	require.NoError(t, err)
	require.False(t, created)
}

func TestAcceptRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.accepted(t, nil)
	var conflict *agent.ConflictError
	var missing *agent.NotFoundError

	taken := acceptance(nil)
	taken.NewConversation, taken.Run.ConversationID, taken.Run.MessageID = false, first.ConversationID, first.MessageID
	_, _, err := b.Accept(t.Context(), taken)
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictMessageID, conflict.Reason)

	for name, edit := range map[string]func(*agent.Acceptance){
		"a stranger's conversation": func(a *agent.Acceptance) { a.Owner, a.Run.ConversationID = "team-b", first.ConversationID },
		"no conversation":           func(a *agent.Acceptance) { a.Run.ConversationID = newID() },
	} {
		a := acceptance(nil)
		a.NewConversation = false
		edit(&a)
		_, _, err = b.Accept(t.Context(), a)
		require.ErrorAs(t, err, &missing, name)
		require.Equal(t, "conversation", missing.What)
	}

	second := acceptance(nil)
	second.NewConversation, second.Run.ConversationID, second.Strategy = false, first.ConversationID, agent.Reject
	_, _, err = b.Accept(t.Context(), second)
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictRunOpen, conflict.Reason)
	require.Contains(t, conflict.Detail, first.RunID)

	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM agent_executions`), "nothing was stored")
	require.Equal(t, 2, value[int](t, b, `SELECT count(*)::int FROM agent_execution_events`))
	require.Equal(t, int64(2), b.last(t, first), "no number was lost")

	second.Strategy = agent.SideBySide
	_, _, err = b.Accept(t.Context(), second)
	require.NoError(t, err, "runs of a conversation may be at work side by side")
	b.finish(t, first, agent.Cancelled)
	b.finish(t, second.Run, agent.Cancelled)
	third := acceptance(nil)
	third.NewConversation, third.Run.ConversationID, third.Strategy = false, first.ConversationID, agent.Reject
	_, _, err = b.Accept(t.Context(), third)
	require.NoError(t, err)
}

// What people send is text of any kind. Postgres takes neither NUL nor what is not UTF-8.
func TestAcceptTakesAnyText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nasty := "a\x00b\xff\xed\xa0\x80c"
	const tamed = "a\uFFFDb\uFFFDc"
	a := acceptance(compiled(t, `{"nodes": [{"id": "a", "kind": "llm", "prompt": "x\u0000\ud800", "inputs": {"k\u0000": 1e200000}}]}`))
	a.Run.Input, a.Run.RequestID, a.Run.SessionID, a.Key = nasty, nasty, nasty, nasty
	a.Run.Metadata = json.RawMessage("{\"k\\u0000\": \"\\ud800 \xff\"}")
	a.Run.Attachments = []agent.Attachment{{Name: nasty, Text: nasty}}
	a.Run.Definition.Agent, a.Run.Definition.Instructions = nasty, nasty
	a.Run.Definition.Tools[0].InputSchema = json.RawMessage("{\"title\": \"\\u0000\xff\"}")
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, tamed, run.Input)
	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, tamed, read.Input)
	require.Equal(t, tamed, data[agent.RunStartedData](t, b.events(t, run)[0]).Input)

	// Selecting runs by agent reads no text that text cannot hold.
	listed, _, err := b.Runs(t.Context(), agent.RunFilter{Owner: owner, Agent: tamed, Limit: 10})
	require.NoError(t, err)
	require.Len(t, listed, 1)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, nasty, nasty)
	require.NoError(t, err)
	started := b.accepted(t, nil)
	_, err = b.RequestCancel(t.Context(), owner, started.RunID, nasty, nasty)
	require.NoError(t, err)
}

func TestAcceptTitlesAConversationByItsFirstInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := acceptance(nil)
	a.Run.Input = strings.Repeat("ä", 100)
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	conversation, err := b.Conversation(t.Context(), owner, run.ConversationID)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ä", 40)+"…", conversation.Title)

	b.acceptedIn(t, run.ConversationID, nil)
	again, err := b.Conversation(t.Context(), owner, run.ConversationID)
	require.NoError(t, err)
	require.Equal(t, conversation.Title, again.Title)
}

func TestRunIsItsOwners(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	var missing *agent.NotFoundError
	for _, id := range []string{run.RunID, newID(), "no-uuid", ""} {
		_, err := b.Run(t.Context(), "team-b", id)
		require.ErrorAs(t, err, &missing, id)
		_, err = b.RequestCancel(t.Context(), "team-b", id, "", "")
		require.ErrorAs(t, err, &missing, id)
	}
	for _, id := range []string{run.ConversationID, newID(), "no-uuid", ""} {
		_, err := b.Conversation(t.Context(), "team-b", id)
		require.True(t, errors.As(err, &missing), id)
	}
	_, err := b.RequestCancel(t.Context(), "team-b", run.RunID, "x", "x")
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded}, b.types(t, run, 1))
}
