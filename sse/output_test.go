package sse

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// deltas are the frames of model output that the client has got, each as its data.
func (c *fakeClient) deltas(t testing.TB) []deltaData {
	t.Helper()
	var got []deltaData
	for _, r := range readStream(t, []byte(c.frames(t))) {
		var object struct {
			deltaObject
			Sequence *int64 `json:"sequence_number"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.data), &object))
		if object.Sequence == nil {
			require.Equal(t, object.Type, r.event)
			got = append(got, object.Data)
		}
	}
	return got
}

func delta(attempt, chunk int, text string) deltaData {
	return deltaData{CommandID: "say", Attempt: attempt, Channel: "text", Chunk: chunk, Text: text}
}

func TestDeltaBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.open["r"] = true
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		log.say(1, 1, "text", "a\n<b>")
		synctest.Wait()
		require.Equal(t, `event: chat_delta
data: {"event_type":"chat_delta","conversation_id":"c","run_id":"r","root_run_id":"r","node_id":"say","command_id":"say","attempt":1,`+
			`"data":{"command_id":"say","attempt":1,"channel":"text","chunk":1,"text":"a\n<b>"}}`+"\n\n", f.frames(t))
		late := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Contains(t, late.frames(t), `"data":{"command_id":"say","attempt":1,"channel":"text","chunk":1,"through":1,"text":"a\n<b>"}`)
	})
}

func TestDeltasFollowOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		log.publish("r", agent.CommandEmitted)
		log.say(1, 1, "text", "Hel")
		synctest.Wait()
		log.say(1, 2, "text", "lo")
		log.say(1, 3, "text", "!")
		synctest.Wait()
		require.Equal(t, []deltaData{delta(1, 1, "Hel"), delta(1, 2, "lo"), delta(1, 3, "!")}, f.deltas(t))
		log.forget()
		log.publish("r", agent.CommandCommitted)
		synctest.Wait()
		require.Len(t, f.deltas(t), 3)
		require.Equal(t, []string{"1", "2", "3"}, f.ids(t), "output has no numbers of its own")
	})
}

func TestClientThatJoinsGetsTheWholeTextOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.CommandEmitted)
		log.say(1, 1, "thinking", "hm, ")
		log.say(1, 2, "text", "Hel")
		log.say(1, 3, "thinking", "yes")
		log.say(1, 4, "text", "lo")
		f := follow(t, newServer(t, log), Request{Scope: runScope(), After: 2}, newFakeClient())
		synctest.Wait()
		require.Equal(t, []deltaData{
			{CommandID: "say", Attempt: 1, Channel: "thinking", Chunk: 3, Through: 3, Text: "hm, yes"},
			{CommandID: "say", Attempt: 1, Channel: "text", Chunk: 4, Through: 4, Text: "Hello"},
		}, f.deltas(t))
		log.say(1, 5, "text", "!")
		synctest.Wait()
		require.Equal(t, delta(1, 5, "!"), f.deltas(t)[2])
	})
}

func TestANewAttemptReplacesTheOldOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.CommandEmitted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		log.say(1, 1, "text", "Hel")
		synctest.Wait()
		log.publish("r", agent.AttemptDiscarded)
		log.say(1, 2, "text", "of a writer that does not know yet")
		synctest.Wait()
		log.say(2, 1, "text", "Hi")
		synctest.Wait()
		require.Equal(t, []deltaData{delta(1, 1, "Hel"), delta(2, 1, "Hi")}, f.deltas(t))

		late := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Equal(t, []deltaData{{CommandID: "say", Attempt: 2, Channel: "text", Chunk: 1, Through: 1, Text: "Hi"}}, late.deltas(t))
	})
}

func TestOutputStandsBetweenItsCommandsEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		// The command is opened, says something and is decided, each right before a read of the stream.
		log.write("r", agent.CommandEmitted)
		log.afterOutput = func() {
			log.afterOutput = nil
			log.forget()
			log.write("r", agent.CommandCommitted)
		}
		log.say(1, 1, "text", "late")
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, f.ids(t))
		require.Empty(t, f.deltas(t), "the committed text replaces what was streamed")

		log.write("r", agent.CommandEmitted)
		log.say(2, 1, "text", "now")
		synctest.Wait()
		require.True(t, strings.Index(f.frames(t), "id: 4\n") < strings.Index(f.frames(t), "now"), "output follows what opened its command")
	})
}

// A client that has read further than the feed gets no output of a command whose end it has: it waits until the feed has caught up.
func TestWhoIsAheadOfTheFeedWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.CommandEmitted)
		s := newServer(t, log)
		first := follow(t, s, Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		log.say(1, 1, "text", "Hel")
		synctest.Wait()
		require.Len(t, first.deltas(t), 1)

		began := time.Now()
		log.forget()
		log.write("r", agent.CommandCommitted) // nobody is woken
		holds := make(chan struct{})
		log.afterOutput = func() { <-holds }
		back, reads := follow(t, s, Request{Scope: runScope(), After: 3}, newFakeClient()), follow(t, s, Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Empty(t, back.ids(t))
		close(holds)
		synctest.Wait()
		require.Zero(t, time.Since(began), "the poll is not waited for")
		require.Empty(t, back.deltas(t))
		require.Empty(t, back.ids(t))
		require.Equal(t, []string{"1", "2", "3"}, reads.ids(t))
		require.Equal(t, []string{"1", "2", "3"}, first.ids(t))
		log.write("r", agent.CommandEmitted)
		log.say(2, 1, "text", "next")
		log.publish("r", agent.RunCompleted)
		synctest.Wait()
		require.Equal(t, []deltaData{delta(2, 1, "next")}, back.deltas(t))
		require.Equal(t, []string{"4", "5"}, back.ids(t))
		require.True(t, back.ended())
	})
}

func TestLedgerProfileShowsNoOutput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.CommandEmitted)
		log.say(1, 1, "text", "Hel")
		f := follow(t, newServer(t, log), Request{Scope: runScope(), Profile: ledgerProfile()}, newFakeClient())
		synctest.Wait()
		log.say(1, 2, "text", "lo")
		synctest.Wait()
		require.Empty(t, f.deltas(t))
		require.Equal(t, []string{"1", "2"}, f.ids(t))
	})
}

func TestReactProfileTellsThoughtsFromText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.open["r"] = true
		s := newServer(t, log)
		f := follow(t, s, Request{Scope: runScope(), Profile: reactProfile()}, newFakeClient())
		synctest.Wait()
		log.say(1, 1, "thinking", "hm")
		log.say(1, 2, "tool_args", "{")
		log.say(1, 3, "text", "Hi")
		synctest.Wait()
		late := follow(t, s, Request{Scope: runScope(), Profile: reactProfile()}, newFakeClient())
		synctest.Wait()
		for _, c := range []*following{f, late} {
			var got []string
			for _, r := range readStream(t, []byte(c.frames(t))) {
				require.Empty(t, r.id)
				got = append(got, r.event)
			}
			require.Equal(t, []string{"thought_delta", "text_delta"}, got, "the arguments of a call come with act")
		}
		require.Equal(t, []deltaData{{CommandID: "say", Attempt: 1, Channel: "thinking", Chunk: 1, Text: "hm"}, delta(1, 3, "Hi")}, f.deltas(t))
		require.Equal(t, []deltaData{{CommandID: "say", Attempt: 1, Channel: "thinking", Chunk: 1, Through: 1, Text: "hm"},
			{CommandID: "say", Attempt: 1, Channel: "text", Chunk: 3, Through: 3, Text: "Hi"}}, late.deltas(t))
	})
}

// What a tool says of its progress has a name of its own, the same in both profiles.
func TestProgressOfAToolIsShown(t *testing.T) {
	t.Parallel()
	for _, profile := range []string{"run", "react"} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := newFakeLog()
				log.write("r", agent.RunStarted, agent.CommandEmitted)
				p, ok := FindProfile(profile)
				require.True(t, ok)
				c := newFakeClient()
				f := follow(t, newServer(t, log), Request{Scope: runScope(), After: 2, Profile: p}, c)
				synctest.Wait()
				log.say(1, 1, agent.ProgressChannel, "half way\n")
				synctest.Wait()
				require.Equal(t, []deltaData{{CommandID: "say", Attempt: 1, Channel: "progress", Chunk: 1, Text: "half way\n"}}, f.deltas(t))
				frames := readStream(t, []byte(c.frames(t)))
				require.Equal(t, "progress_delta", frames[len(frames)-1].event)
				log.publish("r", agent.CommandCommitted)
				synctest.Wait()
				require.Len(t, f.deltas(t), 1)
			})
		})
	}
}

// FuzzDeltaStaysOneFrame holds that whatever a model says is one frame without an id, and comes out as it went in.
func FuzzDeltaStaysOneFrame(f *testing.F) {
	f.Add("say", "text", "Hi", 1)
	f.Add("a#1\n", "thinking", "\r\n\nid: 7\n\ndata: x", 3)
	f.Add("", "text", "\u2028\xff\x00</script>", 0)
	f.Fuzz(func(t *testing.T, command, channel, text string, through int) {
		for _, p := range Profiles() {
			if p.OutputEvent == nil {
				continue
			}
			entries := newOutput(p.OutputEvent).appendDelta(nil, agent.OutputChunk{ConversationID: "c", RunID: "r", CommandID: command, Attempt: 1, Chunk: 2, Channel: channel, Text: text}, through)
			if p.OutputEvent(channel) == "" {
				require.Empty(t, entries)
				continue
			}
			require.Len(t, entries, 1)
			require.Zero(t, entries[0].sequence)
			got := readStream(t, entries[0].frame)
			require.Len(t, got, 1)
			require.Empty(t, got[0].id)
			require.Equal(t, p.OutputEvent(channel), got[0].event)
			var object deltaObject
			require.NoError(t, json.Unmarshal([]byte(got[0].data), &object))
			valid := func(s string) string { return string([]rune(s)) } // bytes that are no UTF-8 are replaced one by one
			require.Equal(t, deltaData{CommandID: valid(command), Attempt: 1, Channel: valid(channel), Chunk: 2, Through: through, Text: valid(text)}, object.Data)
		}
	})
}
