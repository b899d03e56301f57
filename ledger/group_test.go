package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// atWork are runs of conversations of their own, each with a command b at work that its process remembers.
func atWork(t testing.TB, b *bench, n int) (of []command, dispatches []int) {
	t.Helper()
	for len(of) < n {
		run := b.accepted(t, twoStep(t))
		b.runs(t, command{run: run, id: "a", facts: []agent.Fact{skips(1)}}, `1`)
		c := command{run: run, id: "b", index: 1}
		no := b.begins(t, c)
		if ledger.Remembers(b.Ledger, run.RunID) { // on a slow machine one may have gone the general way
			of, dispatches = append(of, c), append(dispatches, no)
		}
	}
	return of, dispatches
}

func skips(no int) agent.Fact {
	return fact(no, agent.NodeSkipped, fmt.Sprint("s", no), agent.NodeSkippedData{Index: 20 + no})
}

// together lets transactions that go by memory leave in one group, and gives how many round trips they took.
func together(t testing.TB, b *bench, meanwhile func(), do ...func(context.Context) error) (trips int64, errs []error) {
	t.Helper()
	before := b.Stats().Trips
	waiting, release := ledger.HoldGroups(b.Ledger)
	errs = make([]error, len(do))
	var all sync.WaitGroup
	for i, f := range do {
		all.Go(func() { errs[i] = f(t.Context()) })
	}
	require.Eventually(t, func() bool { return waiting() == len(do) }, soon, time.Millisecond)
	meanwhile()
	release()
	all.Wait()
	return b.Stats().Trips - before, errs
}

func nothing() {}

func committing(b *bench, commit agent.Commit, decided *agent.Decided) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		*decided, err = b.Commit(ctx, commit)
		return err
	}
}

// Transactions of different runs that go together write what each of them would have written by itself: whatever it is.
func TestTransactionsGoTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of, dispatches := atWork(t, b, 4)
	begins := func(c command) func(context.Context) error {
		begin := c.begin()
		begin.Facts = []agent.Fact{skips(1), skips(2)}
		return func(ctx context.Context) error {
			begun, err := b.Begin(ctx, begin)
			if err == nil {
				require.Equal(t, agent.MayExecute, begun.Verdict)
			}
			return err
		}
	}
	decided := make([]agent.Decided, len(of))
	long := `"` + strings.Repeat("x", 40<<10) + `"`
	message := of[2].commit(dispatches[2], `3`)
	message.Message, message.Checkpoint, message.Ends = &agent.Message{Role: "tool", Content: "3", ToolCallID: "call"}, agent.ToolComplete, false
	trips, errs := together(t, b, nothing,
		committing(b, of[0].commit(dispatches[0], `2`), &decided[0]),
		committing(b, of[1].commit(dispatches[1], long), &decided[1]),
		committing(b, message, &decided[2]),
		begins(command{run: of[3].run, id: "c", index: 2}),
	)
	require.Equal(t, []error{nil, nil, nil, nil}, errs)
	require.EqualValues(t, 1, trips)
	for i, c := range of[:3] {
		require.True(t, decided[i].Mine)
		row := b.row(t, c)
		require.Equal(t, agent.Committed, row.State)
		require.Equal(t, string(decided[i].Row.Result), string(row.Result))
	}
	// A model's answer has output to be forgotten.
	say := command{run: of[0].run, id: "d", index: 3, kind: agent.ModelCommand}
	no := b.begins(t, say)
	require.NoError(t, b.AppendOutput(t.Context(), say.run.RunID, "d", no, []agent.OutputChunk{{Chunk: 1, Channel: "text", Text: "he"}}))
	also := command{run: of[1].run, id: "c", index: 2}
	trips, errs = together(t, b, nothing,
		committing(b, say.commit(no, `{"text":"hello"}`), &decided[0]),
		begins(also),
		committing(b, command{run: of[3].run, id: "c", index: 2}.commit(1, `4`), &decided[3]),
	)
	require.Equal(t, []error{nil, nil, nil}, errs)
	require.EqualValues(t, 1, trips)
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM model_output`))
	require.Equal(t, agent.Dispatched, b.row(t, also).State)
	require.Equal(t, "3", value[string](t, b, `SELECT content FROM messages WHERE run_id = $1 AND tool_call_id = 'call'`, of[2].run.RunID))
	for i, c := range of {
		requireWholeRecord(t, b, c.run)
		b.requireChain(t, c.run)
		if i != 2 { // a plan's tools have no messages
			b.requireVerifies(t, c.run)
		}
	}
}

// When one of a group is not as its process remembers it, the others are written all the same, and it learns the truth.
func TestOneOfAGroupIsNotAsRemembered(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(t *testing.T, b *bench, c command){
		"the command has another owner": func(t *testing.T, b *bench, c command) {
			b.exec(t, `UPDATE commands SET owner_attempt = 2 WHERE run_id = $1 AND command_id = 'b'`, c.run.RunID)
		},
		"the command was decided": func(t *testing.T, b *bench, c command) {
			later := c
			later.attempt = 2
			b.expire(t, c)
			other := &bench{Ledger: open(t, b.url, 0), url: b.url, db: b.db}
			other.runs(t, later, `"by another"`)
		},
		"the run is in another epoch": func(t *testing.T, b *bench, c command) {
			b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, c.run.RunID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			of, dispatches := atWork(t, b, 3)
			decided := make([]agent.Decided, len(of))
			var do []func(context.Context) error
			for i, c := range of {
				do = append(do, committing(b, c.commit(dispatches[i], `2`), &decided[i]))
			}
			trips, errs := together(t, b, func() { happens(t, b, of[1]) }, do...)
			require.EqualValues(t, 4, trips, "one together, and each alone")
			require.False(t, decided[1].Mine)
			for _, i := range []int{0, 2} {
				require.NoError(t, errs[i])
				require.True(t, decided[i].Mine)
				requireWholeRecord(t, b, of[i].run)
			}
			for _, c := range of {
				b.requireChain(t, c.run)
			}
		})
	}
}

// What others have written to one of the logs since is not written over, and none of the group is lost.
func TestOneLogOfAGroupHasMoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of, dispatches := atWork(t, b, 3)
	decided := make([]agent.Decided, len(of))
	var do []func(context.Context) error
	for i, c := range of {
		do = append(do, committing(b, c.commit(dispatches[i], `2`), &decided[i]))
	}
	other := &bench{Ledger: open(t, b.url, 0), url: b.url, db: b.db}
	_, errs := together(t, b, func() { other.runs(t, command{run: of[1].run, id: "c", index: 2}, `3`) }, do...)
	require.Equal(t, []error{nil, nil, nil}, errs)
	for i, c := range of {
		require.True(t, decided[i].Mine)
		requireWholeRecord(t, b, c.run)
		b.requireChain(t, c.run)
	}
}

// Whoever holds one conversation does not hold up the others of a group.
func TestGroupDoesNotWaitForOneConversation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of, dispatches := atWork(t, b, 3)
	decided := make([]agent.Decided, len(of))
	release := b.hold(t, of[1].run.ConversationID)
	held := make(chan error, 1)
	others := make(chan error, 2)
	var do []func(context.Context) error
	for i, c := range of {
		commit := committing(b, c.commit(dispatches[i], `2`), &decided[i])
		do = append(do, func(ctx context.Context) error {
			err := commit(ctx)
			if i == 1 {
				held <- err
			} else {
				others <- err
			}
			return err
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		together(t, b, nothing, do...)
	}()
	require.NoError(t, <-others)
	require.NoError(t, <-others)
	require.Empty(t, held)
	release()
	require.NoError(t, <-held)
	<-done
	for _, c := range of {
		requireWholeRecord(t, b, c.run)
	}
}

// Whoever gives up while a transaction waits for its group has written nothing.
func TestGivenUpBeforeItsGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of, dispatches := atWork(t, b, 2)
	ctx, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	decided := make([]agent.Decided, len(of))
	waiting, release := ledger.HoldGroups(b.Ledger)
	go func() {
		_, err := b.Commit(ctx, of[0].commit(dispatches[0], `2`))
		gaveUp <- err
	}()
	require.Eventually(t, func() bool { return waiting() == 1 }, soon, time.Millisecond)
	giveUp()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	require.Zero(t, waiting())
	release()
	require.NoError(t, committing(b, of[1].commit(dispatches[1], `2`), &decided[1])(t.Context()))
	require.Equal(t, agent.Dispatched, b.row(t, of[0]).State)
	require.NoError(t, committing(b, of[0].commit(dispatches[0], `2`), &decided[0])(t.Context()))
	require.True(t, decided[0].Mine)
}

// Many runs of two processes, some of them in the same conversation: every record is whole, whoever went with whom.
func TestManyWritersOfManyConversations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const conversations, commands = 12, 8
	processes := []*ledger.Ledger{open(t, b.url, 4), open(t, b.url, 4)}
	var runs []agent.Run
	for range conversations {
		first := b.accepted(t, twoStep(t))
		runs = append(runs, first, b.acceptedIn(t, first.ConversationID, twoStep(t)))
	}
	var all sync.WaitGroup
	for i, run := range runs {
		by := processes[i%3%2]
		all.Go(func() {
			for j := range commands {
				c := command{run: run, id: fmt.Sprint("n", j), index: j}
				if j%3 == 2 {
					c.kind = agent.ModelCommand
				}
				begun, err := by.Begin(t.Context(), c.begin())
				if err == nil {
					_, err = by.Commit(t.Context(), c.commit(begun.DispatchNo, string(must(json.Marshal(map[string]int{"v": j})))))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	together := false
	for _, p := range processes {
		s := p.Stats()
		together = together || s.Trips < s.Recalled
	}
	require.True(t, together, "some went together")
	for _, run := range runs {
		requireWholeRecord(t, b, run)
		b.requireVerifies(t, run)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
