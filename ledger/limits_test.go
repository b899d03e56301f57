package ledger_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// limited is a command whose calls are limited, with the slot that its dispatch asks for.
type limited struct {
	command
	slot agent.Slot
}

func (b *bench) limited(t testing.TB, limit agent.CallLimit) limited {
	t.Helper()
	c := command{run: b.accepted(t, twoStep(t)), id: "a"}
	return limited{c, agent.Slot{Limit: limit, RunID: c.run.RunID, CommandID: c.id, Epoch: 1, Token: newID(), Attempt: 1}}
}

// begins has the command dispatched by the holder of its slot.
func (l limited) begins(t testing.TB, b *bench) {
	t.Helper()
	begin := l.begin()
	begin.Dispatch.Token = l.slot.Token
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	require.Equal(t, agent.MayExecute, begun.Verdict)
}

// takes asks for a slot and gives how long to wait for it.
func takes(t testing.TB, l *ledger.Ledger, s agent.Slot) time.Duration {
	t.Helper()
	wait, err := l.TakeSlot(t.Context(), s)
	require.NoError(t, err)
	return wait
}

// askAtOnce asks for a slot for each of n commands at the same time, by two ledgers on the database, and gives those that have one and
// how long the others are to wait, shortest first.
func (b *bench) askAtOnce(t *testing.T, limit agent.CallLimit, n int) (have []limited, waits []time.Duration) {
	t.Helper()
	stores := []*ledger.Ledger{b.Ledger, open(t, b.url, 0)}
	commands := make([]limited, n)
	for i := range commands {
		commands[i] = b.limited(t, limit)
	}
	took := make([]time.Duration, n)
	failed := make([]error, n)
	var group sync.WaitGroup
	for i, c := range commands {
		group.Go(func() { took[i], failed[i] = stores[i%2].TakeSlot(t.Context(), c.slot) })
	}
	group.Wait()
	for i, c := range commands {
		require.NoError(t, failed[i])
		if took[i] == 0 {
			have = append(have, c)
		} else {
			waits = append(waits, took[i])
		}
	}
	slices.Sort(waits)
	return have, waits
}

func TestConcurrentCallsOfTwoLedgers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limit := agent.CallLimit{Name: "put", MaxConcurrent: 3}
	have, waits := b.askAtOnce(t, limit, 12)
	require.Len(t, have, 3)
	require.Less(t, waits[len(waits)-1], time.Second, "a slot may be free at any time")
	other := b.limited(t, agent.CallLimit{Name: "another", MaxConcurrent: 1})
	require.Zero(t, takes(t, b.Ledger, other.slot), "another limit")

	next := b.limited(t, limit)
	busy := func(why string) {
		t.Helper()
		require.Positive(t, takes(t, b.Ledger, next.slot), why)
	}
	free := func(why string) {
		t.Helper()
		require.Zero(t, takes(t, b.Ledger, next.slot), why)
		next = b.limited(t, limit)
	}
	busy("all three are held")
	for _, c := range have {
		c.begins(t, b)
	}
	busy("all three are at work")
	b.exec(t, `UPDATE tool_slots SET taken_at = taken_at - interval '1 hour'`)
	busy("they are at work as long as their leases last")
	done := have[0].commit(1, `{"n": 1}`)
	done.Dispatch.Token = have[0].slot.Token
	decided, err := b.Commit(t.Context(), done)
	require.NoError(t, err)
	require.True(t, decided.Mine)
	free("one has ended")
	busy("somebody has it")
	b.expire(t, have[1].command)
	free("the lease of one is over")
	failed := have[2].conclude(1, agent.Released, agent.Transient(agent.CodeToolFailed, "not now"))
	failed.Dispatch.Token = have[2].slot.Token
	_, err = b.Conclude(t.Context(), failed)
	require.NoError(t, err)
	unused := next
	free("one was released")
	busy("again all are held")
	require.NoError(t, b.ReturnSlot(t.Context(), unused.slot))
	free("one was given back")
	b.exec(t, `UPDATE tool_slots SET taken_at = taken_at - interval '15 s'`)
	free("who took the others never began: their workers are lost")
}

// A dispatch that asks twice, since the reply was lost, has one slot.
func TestSlotIsTakenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limit := agent.CallLimit{Name: "put", MaxConcurrent: 1, Rate: agent.Rate{Calls: 1, Per: time.Hour}}
	c := b.limited(t, limit)
	require.Zero(t, takes(t, b.Ledger, c.slot))
	require.Zero(t, takes(t, b.Ledger, c.slot))
	require.EqualValues(t, 1, value[int64](t, b, `SELECT count(*) FROM tool_slots`))
}

func TestRateOfTwoLedgers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limit := agent.CallLimit{Name: "put", Rate: agent.Rate{Calls: 4, Per: time.Hour}}
	have, waits := b.askAtOnce(t, limit, 10)
	require.Len(t, have, 4)
	require.InDelta(t, time.Hour, waits[0], float64(time.Minute))
	for i := 1; i < len(waits); i++ {
		require.InDelta(t, 15*time.Minute, waits[i]-waits[i-1], float64(time.Second), "one comes back after the other")
	}

	later := func(d time.Duration) {
		b.exec(t, `UPDATE tool_slots SET taken_at = taken_at - $1::bigint * interval '1 microsecond'`, d.Microseconds())
		b.exec(t, `UPDATE tool_limits SET queued_until = queued_until - $1::bigint * interval '1 microsecond'`, d.Microseconds())
	}
	later(59 * time.Minute)
	waiting := b.limited(t, limit)
	waiting.slot.Attempt = 2
	require.Positive(t, takes(t, b.Ledger, waiting.slot), "the hour is not over")
	later(time.Minute)
	fresh := b.limited(t, limit)
	require.Greater(t, takes(t, b.Ledger, fresh.slot), time.Hour, "six wait already")
	require.Zero(t, takes(t, b.Ledger, waiting.slot), "who has waited may begin")
	later(10 * time.Hour)
	require.Zero(t, takes(t, b.Ledger, fresh.slot))
	require.EqualValues(t, 1, value[int64](t, b, `SELECT count(*) FROM tool_slots`), "what no longer counts is removed")
}

// What would not be executed anyway does not wait: its begin tells why.
func TestNoSlotForWhatIsNotExecuted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limit := agent.CallLimit{Name: "put", MaxConcurrent: 1, Rate: agent.Rate{Calls: 1, Per: time.Hour}}
	require.Zero(t, takes(t, b.Ledger, b.limited(t, limit).slot))
	cases := map[string]func(c limited){
		"committed": func(c limited) { b.runs(t, c.command, `{"n": 1}`) },
		"at work":   func(c limited) { c.begins(t, b) },
		"cancelling": func(c limited) {
			b.exec(t, `UPDATE agent_executions SET status = 'cancelling' WHERE run_id = $1`, c.run.RunID)
		},
		"paused": func(c limited) {
			b.exec(t, `UPDATE agent_executions SET pause_intent = 1 WHERE run_id = $1`, c.run.RunID)
		},
		"stale": func(c limited) { b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, c.run.RunID) },
	}
	for name, prepare := range cases {
		c := b.limited(t, limit)
		require.Positive(t, takes(t, b.Ledger, c.slot), name)
		prepare(c)
		require.Zero(t, takes(t, b.Ledger, c.slot), name)
	}
	require.EqualValues(t, 1, value[int64](t, b, `SELECT count(*) FROM tool_slots`))
}
