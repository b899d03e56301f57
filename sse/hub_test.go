package sse

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// crowd are so many clients that ask for the same.
func crowd(t testing.TB, s *Server, n int, req Request) (all []*following) {
	t.Helper()
	for range n {
		all = append(all, follow(t, s, req, newFakeClient()))
	}
	return all
}

// However many follow a conversation, it is watched once, read once after each wake-up, and each event is encoded once.
func TestOneReadAndOneEncodingForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		var shown atomic.Int64
		p := runProfile()
		p.Show = func(e agent.Event) agent.Event {
			shown.Add(1)
			return showRun(e)
		}
		s := newServer(t, log)
		all := crowd(t, s, 100, Request{Scope: runScope(), Profile: p, After: 1})
		ledger := follow(t, s, Request{Scope: runScope(), Profile: ledgerProfile(), After: 1}, newFakeClient())
		synctest.Wait()
		require.Equal(t, 1, log.watched())
		before := log.reads
		for range 10 {
			log.publish("r", agent.Progress)
			synctest.Wait()
		}
		require.EqualValues(t, 10, shown.Load())
		require.LessOrEqual(t, log.reads-before, 20, "two profiles")
		log.publish("r", agent.RunCompleted)
		synctest.Wait()
		for _, f := range append(all, ledger) {
			require.True(t, f.ended())
			require.Len(t, f.ids(t), 11)
			require.Equal(t, all[0].frames(t) == f.frames(t), f != ledger)
		}
		require.Zero(t, log.watched(), "nothing is left when the last one has gone")
	})
}

// The end of a run is asked for once, however many wait for it.
func TestOneQuestionForTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		s := newServer(t, log)
		all := crowd(t, s, 50, Request{Scope: runScope()})
		synctest.Wait()
		asked := 0
		log.afterExtent = func() { asked++ }
		log.publish("r", agent.RunCompleted)
		synctest.Wait()
		for _, f := range all {
			require.True(t, f.ended())
		}
		require.Equal(t, 1, asked)
	})
}

// A client that is further behind than the feed keeps reads the ledger until it has caught up, and then follows again.
func TestAClientFarBehindReadsTheLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		s := newServer(t, log, func(c *Config) { c.TailBytes, c.PageSize = 2000, 7 })
		slow := newFakeClient()
		behind, well := follow(t, s, Request{Scope: runScope()}, slow), follow(t, s, Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		slow.mu.Lock()
		slow.takes = time.Second
		slow.mu.Unlock()
		for range 100 {
			log.publish("r", agent.Progress)
			synctest.Wait()
		}
		require.Len(t, well.ids(t), 101)
		require.Less(t, len(behind.ids(t)), 5)
		f := s.hub.feeds["c"][0]
		f.mu.Lock()
		require.LessOrEqual(t, f.size, 2000)
		require.Less(t, len(f.entries), 20)
		f.mu.Unlock()
		slow.mu.Lock()
		slow.takes = 0
		slow.mu.Unlock()
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, well.ids(t), behind.ids(t))
		log.publish("r", agent.RunCompleted)
		synctest.Wait()
		require.True(t, behind.ended())
		require.Len(t, behind.ids(t), 102)
	})
}

// Those who come while somebody follows get what they lack from what is kept, whatever part of it they have, without a read of their own.
func TestThoseWhoComeLaterShareTheTail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		s := newServer(t, log)
		first := follow(t, s, Request{Scope: agent.LogScope{ConversationID: "c"}}, newFakeClient())
		synctest.Wait()
		for i := range 20 {
			log.publish([]string{"r", "other"}[i%2], agent.Progress)
			synctest.Wait()
		}
		log.say(1, 1, "text", "Hel")
		log.say(1, 2, "text", "lo")
		synctest.Wait()
		before := log.reads
		for after := range 21 {
			f := follow(t, s, Request{Scope: agent.LogScope{ConversationID: "c"}, After: int64(after)}, newFakeClient())
			of := follow(t, s, Request{Scope: runScope(), After: int64(after)}, newFakeClient())
			synctest.Wait()
			require.Equal(t, first.ids(t)[after:], f.ids(t))
			require.Len(t, of.ids(t), 10-after/2+max(0, 1-after))
			for _, f := range []*following{f, of} {
				require.Equal(t, []deltaData{{CommandID: "say", Attempt: 1, Channel: "text", Chunk: 2, Through: 2, Text: "Hello"}}, f.deltas(t))
			}
		}
		require.Equal(t, before, log.reads)
	})
}

// A drain spreads those who come back.
func TestDrainSpreadsTheReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		s := newServer(t, log)
		all := crowd(t, s, 100, Request{Scope: runScope()})
		synctest.Wait()
		s.Drain()
		synctest.Wait()
		waits := map[int]bool{}
		for _, f := range all {
			got := f.received()
			last := got[strings.LastIndex(got, "retry: ")+len("retry: "):]
			ms, err := strconv.Atoi(strings.TrimSuffix(last, "\n\n"))
			require.NoError(t, err)
			require.GreaterOrEqual(t, ms, 1000)
			require.Less(t, ms, 5000)
			waits[ms] = true
		}
		require.Greater(t, len(waits), 80)
	})
}

// anyStep is a step of a history that streams have to bear.
type anyStep struct {
	what, takes, passes int
	after               int64
	scope               agent.LogScope
	settles             bool
}

// Whoever comes when, is slow or goes away, with wake-ups that get lost and reads that fail: every client gets each event of its
// scope once, in order, and of the model output the whole text of what is being said.
func TestEveryClientGetsEverything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := make([]anyStep, rapid.IntRange(1, 60).Draw(rt, "steps"))
		for i := range steps {
			steps[i] = anyStep{
				what:    rapid.IntRange(0, 9).Draw(rt, "what"),
				takes:   rapid.IntRange(0, 3).Draw(rt, "takes"),
				passes:  rapid.IntRange(0, 2000).Draw(rt, "passes"),
				after:   rapid.Int64Range(0, 60).Draw(rt, "after"),
				scope:   rapid.SampledFrom([]agent.LogScope{runScope(), {ConversationID: "c"}}).Draw(rt, "scope"),
				settles: rapid.Bool().Draw(rt, "settles"),
			}
		}
		tail, page := rapid.IntRange(1, 4000).Draw(rt, "tail"), rapid.IntRange(1, 9).Draw(rt, "page")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = anyHistory(t, steps, tail, page) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// anyHistory says what was not as it has to be.
func anyHistory(t *testing.T, steps []anyStep, tail, page int) string {
	log := newFakeLog()
	log.write("r", agent.RunStarted)
	s := newServer(t, log, func(c *Config) { c.TailBytes, c.PageSize, c.Logger = tail, page, quiet() })
	var clients []*following
	var asked []anyStep
	said, attempt := "", 0
	for _, step := range steps {
		switch step.what {
		case 0, 1:
			log.publish("r", agent.Progress)
		case 2:
			log.write("other", agent.Progress)
		case 3:
			log.publish("child", agent.Progress)
		case 4:
			log.forget()
			log.publish("r", []agent.EventType{agent.CommandEmitted, agent.AttemptDiscarded}[min(attempt, 1)])
			attempt, said = 1, said+"|"
			synctest.Wait()
		case 5, 6:
			if said != "" && !strings.Contains(said[1:], "|") {
				said += "x"
				log.say(1, len(said)-1, "text", "x")
			}
		case 7:
			step.after = min(step.after, int64(len(log.events)))
			c := newFakeClient()
			c.takes = time.Duration(step.takes) * time.Second
			clients, asked = append(clients, follow(t, s, Request{Scope: step.scope, After: step.after}, c)), append(asked, step)
		case 8:
			log.fail(fmt.Errorf("connection refused"))
			<-time.After(1500 * time.Millisecond)
			log.fail(nil)
		case 9:
			<-time.After(time.Duration(step.passes) * time.Millisecond)
		}
		if step.settles {
			synctest.Wait()
		}
	}
	<-time.After(10 * time.Minute)
	synctest.Wait()
	for i, f := range clients {
		var want []string
		for _, e := range log.events {
			if e.Sequence > asked[i].after && inScope(asked[i].scope, e) {
				want = append(want, fmt.Sprint(e.Sequence))
			}
		}
		if got := f.ids(t); !slices.Equal(want, got) {
			return fmt.Sprintf("client %d of %+v got %v, want %v", i, asked[i], got, want)
		}
		text := "|"
		for _, d := range f.deltas(t) {
			switch {
			case d.Through > 0:
				text = "|" + d.Text
			case d.Chunk != len(text):
				return fmt.Sprintf("client %d got chunk %d after %d bytes", i, d.Chunk, len(text)-1)
			default:
				text += d.Text
			}
		}
		if strings.Count(said, "|") == 1 && text != said {
			return fmt.Sprintf("client %d has %q, want %q", i, text, said)
		}
	}
	log.publish("r", agent.RunCompleted)
	<-time.After(10 * time.Minute)
	synctest.Wait()
	for i, f := range clients {
		if f.ended() != (asked[i].scope.RunID != "") {
			return fmt.Sprintf("client %d: ended is %t", i, f.ended())
		}
	}
	return ""
}
