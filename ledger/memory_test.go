package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// recalls says how many transactions do went by memory, and how many of them had to be done again.
func recalls(l *ledger.Ledger, do func()) (recalled, moved int64) {
	before := l.Stats()
	do()
	after := l.Stats()
	return after.Recalled - before.Recalled, after.Moved - before.Moved
}

// R3-12: a process that goes on with a run goes by what it remembers of it, and writes what it would have written anyway.
func TestStepsGoByMemory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `1`)
	recalled, moved := recalls(b.Ledger, func() {
		for i, id := range []string{"b", "c", "d"} {
			c := command{run: run, id: id, index: i + 1}
			result := `2`
			if id == "d" {
				c.kind, result = agent.ModelCommand, `{"text":"2"}`
			}
			b.runs(t, c, result)
		}
	})
	require.EqualValues(t, 6, recalled)
	require.Zero(t, moved)
	requireWholeRecord(t, b, run)
	b.requireChain(t, run)
	b.requireVerifies(t, run)
}

// Two processes that take steps of a run in turns get in each other's way at most so far that they ask again.
func TestMemoryOfTwoProcesses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := &bench{Ledger: open(t, b.url, 0), url: b.url, db: b.db}
	run := b.accepted(t, twoStep(t))
	for i, id := range []string{"a", "b", "c", "d", "e", "f"} {
		by := b
		if i%2 == 1 {
			by = other
		}
		by.runs(t, command{run: run, id: id, index: i}, `1`)
	}
	require.Positive(t, b.Stats().Recalled)
	requireWholeRecord(t, b, run)
	b.requireChain(t, run)
}

// Whatever has happened to a run since a process wrote to it last, its next step meets it as it is.
func TestMemoryIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		happens func(t *testing.T, b *bench, run agent.Run)
		next    func(t *testing.T, b *bench, run agent.Run)
	}{
		"paused": {
			func(t *testing.T, b *bench, run agent.Run) {
				b.exec(t, `UPDATE agent_executions SET pause_intent = 1 WHERE run_id = $1`, run.RunID)
			},
			func(t *testing.T, b *bench, run agent.Run) {
				require.Equal(t, agent.IsPaused, b.begin(t, command{run: run, id: "b"}).Verdict)
			},
		},
		"being cancelled": {
			func(t *testing.T, b *bench, run agent.Run) {
				b.exec(t, `UPDATE agent_executions SET status = 'cancelling' WHERE run_id = $1`, run.RunID)
			},
			func(t *testing.T, b *bench, run agent.Run) {
				_, err := b.Begin(t.Context(), command{run: run, id: "b"}.begin())
				requireCode(t, err, agent.CodeCancelled)
			},
		},
		"replaced": {
			func(t *testing.T, b *bench, run agent.Run) {
				b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, run.RunID)
			},
			func(t *testing.T, b *bench, run agent.Run) {
				_, err := b.Begin(t.Context(), command{run: run, id: "b"}.begin())
				requireCode(t, err, agent.CodeStaleEpoch)
			},
		},
		"ended": {
			func(t *testing.T, b *bench, run agent.Run) {
				(&bench{Ledger: open(t, b.url, 0), url: b.url, db: b.db}).finish(t, run, agent.FailedStatus)
			},
			func(t *testing.T, b *bench, run agent.Run) {
				_, err := b.Begin(t.Context(), command{run: run, id: "b"}.begin())
				requireCode(t, err, agent.CodeStaleEpoch)
			},
		},
		"the command was begun elsewhere": {
			func(t *testing.T, b *bench, run agent.Run) {
				_, err := open(t, b.url, 0).Begin(t.Context(), command{run: run, id: "b", schedule: 2}.begin())
				require.NoError(t, err)
			},
			func(t *testing.T, b *bench, run agent.Run) {
				require.Equal(t, agent.Refuse, b.begin(t, command{run: run, id: "b"}).Verdict)
			},
		},
		"the log was written to": {
			func(t *testing.T, b *bench, run agent.Run) {
				b.begins(t, command{run: run, id: "b", index: 1})
				other := &bench{Ledger: open(t, b.url, 0), url: b.url, db: b.db}
				other.runs(t, command{run: run, id: "c", index: 2}, `3`)
			},
			func(t *testing.T, b *bench, run agent.Run) {
				b.commits(t, command{run: run, id: "b", index: 1}, 1, `2`)
				requireWholeRecord(t, b, run)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			b.runs(t, command{run: run, id: "a"}, `1`)
			c.happens(t, b, run)
			_, moved := recalls(b.Ledger, func() { c.next(t, b, run) })
			require.Positive(t, moved)
			events := b.events(t, run)
			for i, e := range events {
				require.EqualValues(t, i+1, e.Sequence)
			}
			b.requireChain(t, run)
		})
	}
}

// begunByMemory is a command at work that its process remembers, and its dispatch.
func begunByMemory(t testing.TB) (*bench, command, int) {
	t.Helper()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `1`)
	c := command{run: run, id: "b", index: 1}
	return b, c, b.begins(t, c)
}

// A dispatch that was overtaken between its begin and its commit does not write, though its process remembers that it holds the command.
func TestMemoryOfALostCommand(t *testing.T) {
	t.Parallel()
	b, c, no := begunByMemory(t)
	b.expire(t, c)
	other := &bench{Ledger: open(t, b.url, 0), url: b.url, db: b.db}
	later := c
	later.attempt = 2
	taken := other.begins(t, later)
	decided, err := b.Commit(t.Context(), c.commit(no, `"lost"`))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, `"kept"`, string(other.commits(t, later, taken, `"kept"`).Result))
}

// Whoever holds a command stands in its row, whether the log tells of him or not.
func TestMemoryOfACommandThatHasAnotherOwner(t *testing.T) {
	t.Parallel()
	b, c, no := begunByMemory(t)
	b.exec(t, `UPDATE commands SET owner_attempt = 2 WHERE run_id = $1 AND command_id = 'b'`, c.run.RunID)
	decided, err := b.Commit(t.Context(), c.commit(no, `2`))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, agent.Dispatched, b.row(t, c).State)
}

// The database's clock is the one that counts. A process that takes it for another asks again.
func TestMemoryOfTheTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `1`)
	ledger.Misremember(b.Ledger, -time.Hour)
	_, moved := recalls(b.Ledger, func() { b.runs(t, command{run: run, id: "b", index: 1}, `2`) })
	require.EqualValues(t, 1, moved, "then it knows")
	row := b.row(t, command{run: run, id: "b"})
	require.WithinDuration(t, value[time.Time](t, b, `SELECT clock_timestamp()`), row.EmittedAt, time.Minute)
	events := b.events(t, run)
	for i := range events[1:] {
		require.False(t, events[i+1].CreatedAt.Before(events[i].CreatedAt))
	}
}

// Facts that were written by memory are not written again when the next activity carries them too.
func TestFactsByMemoryAreWrittenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	skipped := func(no int) agent.Fact {
		return fact(no, agent.NodeSkipped, fmt.Sprint("s", no), agent.NodeSkippedData{Index: 10 + no})
	}
	b.runs(t, command{run: run, id: "a", facts: []agent.Fact{skipped(1)}}, `1`)
	b.runs(t, command{run: run, id: "b", index: 1, facts: []agent.Fact{skipped(1), skipped(2)}}, `1`)
	recalled, moved := recalls(b.Ledger, func() {
		b.runs(t, command{run: run, id: "c", index: 2, facts: []agent.Fact{skipped(1), skipped(2), skipped(3)}}, `1`)
	})
	require.EqualValues(t, 2, recalled)
	require.Zero(t, moved)
	count := 0
	for _, e := range b.events(t, run) {
		if e.Type == agent.NodeSkipped {
			count++
		}
	}
	require.Equal(t, 3, count)
	requireWholeRecord(t, b, run)
}

// Facts that came on record by other ways than the gate's are not written again by memory, and the run goes on.
func TestFactsThatMemoryDoesNotKnowOf(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a", facts: []agent.Fact{skips(1)}}, `1`)
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{skips(1), skips(2), skips(3)}}})
	require.NoError(t, err)
	_, moved := recalls(b.Ledger, func() {
		b.begins(t, command{run: run, id: "b", index: 1}) // whatever the log holds by now
		b.begins(t, command{run: run, id: "c", index: 2, facts: []agent.Fact{skips(2), skips(3), skips(4)}})
	})
	require.Zero(t, moved)
	require.Equal(t, 4, value[int](t, b, `SELECT count(*)::int FROM agent_execution_events WHERE event_type = 'node_skipped'`))
	b.requireChain(t, run)
}

// What a process takes the database's clock to be is never behind it, however late the answer came by which it goes: a lease that is
// counted by it is not over before its worker takes it to be.
func TestMemoryOfTheTimeIsNotBehind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.begins(t, command{run: run, id: "a"})
	tx, err := b.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM commands WHERE run_id = $1 FOR UPDATE`, run.RunID)
	require.NoError(t, err)
	answered := make(chan error, 1)
	fresh := open(t, b.url, 0)
	go func() { // the clock is read before the command's row, for which this waits
		_, err := fresh.Begin(t.Context(), command{run: run, id: "a", schedule: 2}.begin())
		answered <- err
	}()
	require.Eventually(t, func() bool {
		return value[bool](t, b, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	}, 30*time.Second, 10*time.Millisecond)
	_, err = tx.Exec(t.Context(), `SELECT pg_sleep(0.3)`)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-answered)
	theirs := value[time.Time](t, b, `SELECT clock_timestamp()`)
	require.False(t, ledger.Now(fresh).Before(theirs))
	_, err = fresh.Begin(t.Context(), command{run: run, id: "a", schedule: 2}.begin()) // and it learns from a quicker one
	require.NoError(t, err)
	require.WithinDuration(t, value[time.Time](t, b, `SELECT clock_timestamp()`), ledger.Now(fresh), 250*time.Millisecond)
}
