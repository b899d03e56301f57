package sse

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func wholeRun() []agent.EventType {
	return []agent.EventType{agent.RunStarted, agent.MessageAdded, agent.PlanStarted, agent.PlanGenerated, agent.NodeStarted,
		agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved, agent.RunCompleted}
}

func TestStreamReplaysThenFollowsThenEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.MessageAdded)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Equal(t, http.StatusOK, f.status)
		require.Equal(t, http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-cache, no-transform"}, "X-Accel-Buffering": {"no"}}, f.header)
		require.Equal(t, []string{"1", "2"}, f.ids(t))
		log.publish("r", agent.PlanStarted)
		log.publish("other", agent.RunStarted)
		synctest.Wait()
		log.write("r", agent.RunCompleted)
		require.Equal(t, []string{"1", "2", "3"}, f.ids(t))
		log.wake()
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3", "5"}, f.ids(t), "event 4 is of another run")
		require.True(t, f.ended())
		require.NoError(t, f.err)
		require.Zero(t, log.watched())
	})
}

func TestFirstBytesComeBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, newServer(t, newFakeLog()), Request{Scope: agent.LogScope{ConversationID: "c"}}, newFakeClient())
		synctest.Wait()
		require.Equal(t, opening(), f.received())
	})
}

func TestResumeAtEveryNumberGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", wholeRun()...)
		for _, p := range Profiles() {
			for _, page := range []int{1, 3, 500} {
				s := newServer(t, log, func(c *Config) { c.PageSize = page })
				whole := follow(t, s, Request{Scope: runScope(), Profile: p}, newFakeClient())
				synctest.Wait()
				require.True(t, whole.ended())
				frames := strings.SplitAfter(whole.frames(t), "\n\n")
				require.Len(t, frames, len(wholeRun())+1)
				for after := range wholeRun() {
					f := follow(t, s, Request{Scope: runScope(), Profile: p, After: int64(after)}, newFakeClient())
					synctest.Wait()
					require.True(t, f.ended())
					require.Equal(t, strings.Join(frames[after:], ""), f.frames(t), "profile %s, page %d, after %d", p.Name, page, after)
				}
			}
		}
	})
}

func TestCommitBetweenReadAndWaitIsNotMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		left := []agent.EventType{agent.MessageAdded, agent.PlanStarted, agent.RunFailed}
		log.afterEvents = func() { // each read is followed at once by a commit that it did not see
			if len(left) > 0 {
				next := left[0]
				left = left[1:]
				log.publish("r", next)
			}
		}
		start := time.Now()
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3", "4"}, f.ids(t))
		require.True(t, f.ended())
		require.Zero(t, time.Since(start), "by wake-ups, not by the poll")
	})
}

func TestLastReadAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		ended := false
		log.afterExtent = func() { // the run ends after its extent was read: only the next extent may end the stream
			if !ended {
				ended = true
				log.publish("r", agent.RunFailed)
			}
		}
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Equal(t, []string{"1", "2"}, f.ids(t))
		require.True(t, f.ended())
	})
}

func TestReopenedRunGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.RunFailed, agent.RunReopened)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, f.ids(t))
		require.False(t, f.ended(), "an event follows the terminal one")
		log.publish("r", agent.RunCompleted)
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3", "4"}, f.ids(t))
		require.True(t, f.ended())
	})
}

func TestReopenedBetweenExtentAndRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.RunFailed)
		reopened := false
		log.afterExtent = func() {
			if !reopened {
				reopened = true
				log.publish("r", agent.RunReopened)
			}
		}
		f := follow(t, newServer(t, log), Request{Scope: runScope(), After: 2}, newFakeClient())
		synctest.Wait()
		require.False(t, f.ended())
		require.Equal(t, []string{"3"}, f.ids(t))
	})
}

func TestChildRunDoesNotEndItsParentsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		log.write("child", agent.RunStarted, agent.RunCompleted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, f.ids(t))
		require.False(t, f.ended())
		log.publish("r", agent.RunCancelled)
		synctest.Wait()
		require.True(t, f.ended())
	})
}

func TestConversationStaysOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted, agent.RunCompleted)
		conversation := Request{Scope: agent.LogScope{ConversationID: "c"}}
		untilIdle := conversation
		untilIdle.UntilIdle = true
		stays := follow(t, newServer(t, log), conversation, newFakeClient())
		idle := follow(t, newServer(t, log), untilIdle, newFakeClient())
		synctest.Wait()
		require.True(t, idle.ended(), "nothing is queued or at work")
		require.Equal(t, []string{"1", "2"}, idle.ids(t))
		require.False(t, stays.ended())

		log.publish("r2", agent.RunStarted)
		log.publish("r3", agent.RunStarted)
		idle = follow(t, newServer(t, log), untilIdle, newFakeClient())
		log.publish("r2", agent.RunCompleted)
		synctest.Wait()
		require.False(t, idle.ended(), "r3 is at work")
		log.publish("r3", agent.RunFailed)
		synctest.Wait()
		require.True(t, idle.ended())
		require.Equal(t, []string{"1", "2", "3", "4", "5", "6"}, idle.ids(t))
		require.Equal(t, idle.ids(t), stays.ids(t))
		require.False(t, stays.ended())
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		before := f.received()
		<-time.After(9999 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, before, f.received(), "silence is not filled before its time")
		<-time.After(2 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, before+heartbeat(), f.received())
		for range 4 { // traffic does not put it off: a proxy may hold a small frame back until the padding pushes it out
			<-time.After(5 * time.Second)
			log.publish("r", agent.Progress)
		}
		synctest.Wait()
		require.Equal(t, 3, strings.Count(strings.TrimPrefix(f.received(), opening()), heartbeat()))
	})
}

func TestLostWakeUpIsMadeUpForByThePoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		log.write("r", agent.MessageAdded, agent.RunCompleted)
		synctest.Wait()
		require.Equal(t, []string{"1"}, f.ids(t))
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, f.ids(t))
		require.True(t, f.ended())
	})
}

func TestWakeUpsCoalesce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		client := newFakeClient()
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, client)
		synctest.Wait()
		client.mu.Lock()
		client.takes = 100 * time.Millisecond
		client.mu.Unlock()
		before := log.reads
		log.publish("r", agent.Progress)
		synctest.Wait() // the stream is in the middle of a write
		for range 100 {
			log.publish("r", agent.Progress)
		}
		<-time.After(900 * time.Millisecond)
		synctest.Wait()
		require.Len(t, f.ids(t), 102)
		require.LessOrEqual(t, log.reads-before, 3)
	})
}

func TestUnreadableLedgerIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		quiet := func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) }
		f := follow(t, newServer(t, log, quiet), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		log.fail(errors.New("connection refused"))
		log.publish("r", agent.MessageAdded)
		<-time.After(59 * time.Second)
		synctest.Wait()
		require.False(t, f.ended())
		require.Equal(t, 5, strings.Count(strings.TrimPrefix(f.received(), opening()), heartbeat()), "the client is kept meanwhile")
		log.fail(nil)
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"1", "2"}, f.ids(t))

		log.fail(errors.New("connection refused"))
		<-time.After(59 * time.Second)
		synctest.Wait()
		require.False(t, f.ended(), "patience begins anew")
		<-time.After(3 * time.Second)
		synctest.Wait()
		require.True(t, f.ended())
		require.ErrorContains(t, f.err, "connection refused")
		require.NotErrorIs(t, f.err, ErrClient)
	})
}

// TestAStreamWhoseLogIsGoneEnds: there is nothing to wait for, and whoever comes back is told why.
func TestAStreamWhoseLogIsGoneEnds(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]error{"deleted": &agent.NotFoundError{What: "conversation", ID: "c"}, "removed": &agent.GoneError{Oldest: 9}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := newFakeLog()
				log.write("r", wholeRun()...)
				log.afterEvents = func() { log.fail(gone) } // behind the first page
				small := func(c *Config) { c.PageSize = 1 }
				f := follow(t, newServer(t, log, small), Request{Scope: runScope()}, newFakeClient())
				synctest.Wait()
				require.True(t, f.ended())
				require.NoError(t, f.err)
				require.Less(t, len(f.ids(t)), len(wholeRun()))
			})
		})
	}
}

func TestUnreadableLedgerAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", wholeRun()...)
		broken := false
		log.afterEvents = func() { // the first page, with the terminal event, is the last thing that can be read for a while
			if !broken {
				broken = true
				log.fail(errors.New("connection reset"))
			}
		}
		quiet := func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) }
		f := follow(t, newServer(t, log, quiet), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		require.False(t, f.ended())
		log.fail(nil)
		<-time.After(time.Second)
		synctest.Wait()
		require.True(t, f.ended())
		require.NoError(t, f.err)
		require.Len(t, f.ids(t), len(wholeRun()))
	})
}

func TestClientThatTakesNothingIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		s := newServer(t, log)
		slow := newFakeClient()
		stuck, well := follow(t, s, Request{Scope: runScope()}, slow), follow(t, s, Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		slow.mu.Lock()
		slow.takes = time.Hour
		slow.mu.Unlock()
		start := time.Now()
		log.publish("r", agent.Progress)
		synctest.Wait()
		log.publish("r", agent.Progress)
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, well.ids(t), "nobody waits for the slow one")
		<-stuck.done
		require.Equal(t, 10*time.Second, time.Since(start))
		require.ErrorIs(t, stuck.err, ErrClient)
		require.ErrorIs(t, stuck.err, os.ErrDeadlineExceeded)
		require.False(t, well.ended())
		require.Equal(t, 1, log.watched())
	})
}

func TestEachWriteHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		for range 2000 {
			log.write("r", agent.Progress)
		}
		log.write("r", agent.RunCompleted)
		client := newFakeClient()
		client.takes = 9 * time.Second
		start := time.Now()
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, client)
		<-f.done
		require.NoError(t, f.err)
		require.Len(t, f.ids(t), 2002)
		require.Greater(t, client.writes, 10)
		require.Equal(t, time.Duration(client.writes)*9*time.Second, time.Since(start), "a client that reads slowly all the time is served")
		require.False(t, client.deadline.IsZero(), "what net/http writes last has a deadline too")
	})
}

func TestNoDeadlineIsLeftWhileIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		require.True(t, f.deadline.IsZero(), "HTTP/2 resets a stream whose deadline passes while nothing is written")
	})
}

func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		f := follow(t, newServer(t, log), Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		f.cancel()
		synctest.Wait()
		require.True(t, f.ended())
		require.NoError(t, f.err)
		require.Zero(t, log.watched())
		require.True(t, log.open["r"], "the run goes on")
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.write("r", agent.RunStarted)
		s := newServer(t, log)
		first, second := follow(t, s, Request{Scope: runScope()}, newFakeClient()), follow(t, s, Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		select {
		case <-s.Draining():
			t.Fatal("not yet")
		default:
		}
		s.Drain()
		s.Drain()
		<-s.Draining()
		late := follow(t, s, Request{Scope: runScope()}, newFakeClient())
		synctest.Wait()
		for _, f := range []*following{first, second, late} {
			require.True(t, f.ended())
			require.NoError(t, f.err)
		}
		require.True(t, strings.HasSuffix(first.received(), "\n\n"), "the last frame is whole")
		require.Zero(t, log.watched())
	})
}

func TestServerNeedsALog(t *testing.T) {
	t.Parallel()
	_, err := NewServer(Config{})
	require.Error(t, err)
}
