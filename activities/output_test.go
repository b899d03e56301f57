package activities

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
)

// shown is a ledger that keeps what is shown of a model's answer, with the time.
type shown struct {
	Ledger
	mu    sync.Mutex
	began time.Time
	at    []time.Duration
	texts []string
	all   []agent.OutputChunk
	slow  time.Duration
	err   error
}

func (s *shown) AppendOutput(_ context.Context, runID, commandID string, attempt int, chunks []agent.OutputChunk) error {
	if runID != "run" || commandID != "a" || attempt != 3 {
		return errors.New("another command's")
	}
	s.mu.Lock()
	s.at = append(s.at, time.Since(s.began))
	var texts []string
	for _, c := range chunks {
		texts = append(texts, c.Channel+":"+c.Text)
	}
	s.texts = append(s.texts, strings.Join(texts, " "))
	s.all = append(s.all, chunks...)
	s.mu.Unlock()
	<-time.After(s.slow)
	return s.err
}

func show(t *testing.T, s *shown) *liveOutput {
	a, err := New(Config{Ledger: s, Models: func(string) model.Client { return nil }, Tools: noTools(t)})
	require.NoError(t, err)
	s.began = time.Now()
	return a.showOutput(t.Context(), "run", "a", 3)
}

func text(s string) model.Delta { return model.Delta{Channel: model.Text, Text: s} }

func TestOutputIsShownAtOnceThenInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{}
		live := show(t, s)
		live.add(text("a"))
		synctest.Wait() // the first piece is out
		for range 6 {   // one every 19 ms
			<-time.After(19 * time.Millisecond)
			live.add(text("b"))
		}
		live.close()
		require.Equal(t, []string{"text:a", "text:bb", "text:bbb", "text:b"}, s.texts)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond, 114 * time.Millisecond}, s.at)
		for i, c := range s.all {
			require.Equal(t, i+1, c.Chunk, "chunks are numbered from 1")
		}
	})
}

func TestOutputKeepsItsChannelsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{}
		live := show(t, s)
		live.add(text("first"))
		synctest.Wait()
		for _, d := range []model.Delta{{Channel: model.Thinking, Text: "hm"}, {Channel: model.Thinking, Text: "m"}, text("so"), text(""), text("!"),
			{Channel: model.ToolArgs, Text: "{"}} {
			live.add(d)
		}
		live.close()
		require.Equal(t, []string{"text:first", "thinking:hmm text:so! tool_args:{"}, s.texts)
	})
}

func TestOutputThatCannotBeWrittenIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{err: errors.New("away")}
		live := show(t, s)
		live.add(text("a"))
		synctest.Wait()
		live.add(text("b"))
		live.close()
		require.Equal(t, []string{"text:a", "text:b"}, s.texts, "a piece is tried once")
	})
}

func TestSlowLedgerDoesNotHoldUpTheModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{slow: time.Second}
		live := show(t, s)
		for range 100 {
			live.add(text("x"))
			synctest.Wait()
		}
		require.Zero(t, time.Since(s.began))
		live.close()
		require.Equal(t, 2*time.Second, time.Since(s.began), "close returns when nothing is written any more")
		require.Equal(t, []string{"text:x", "text:" + strings.Repeat("x", 99)}, s.texts)
	})
}

func TestNothingIsShownOfNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{}
		live := show(t, s)
		live.add(text(""))
		live.close()
		require.Empty(t, s.texts)
	})
}
