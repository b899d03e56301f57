package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// worker takes the nodes of a random plan through the gate, several at once, with every kind of fault on the way.
type worker struct {
	t    testing.TB
	b    *bench
	run  agent.Run
	plan *agent.Plan
	// others are further processes that write to the same run.
	others []*ledger.Ledger

	mu   sync.Mutex
	rand *rand.Rand
	fact int
}

func (w *worker) chance(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.IntN(n)
}

// somebody is one of the processes.
func (w *worker) somebody() *ledger.Ledger {
	if i := w.chance(2 * (len(w.others) + 1)); i < len(w.others) {
		return w.others[i]
	}
	return w.b.Ledger
}

// record writes one fact of the workflow. A workflow has one thread, so a number is taken and written at a time.
func (w *worker) record(typ agent.EventType, nodeID string, payload any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fact++
	_, err := w.b.Record(w.t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: w.run.RunID, Epoch: 1, Facts: []agent.Fact{fact(w.fact, typ, nodeID, payload)}}})
	if err != nil {
		w.t.Error(err)
	}
}

// node takes one node to its end: finished, failed, skipped, or left open.
func (w *worker) node(i int) {
	n := w.plan.Nodes[i]
	if w.chance(12) == 0 {
		w.record(agent.NodeSkipped, n.ID, agent.NodeSkippedData{Index: i})
		return
	}
	c := command{run: w.run, id: n.ID, index: i, kind: agent.ToolCommand, effect: agent.Idempotent}
	if n.Kind == agent.LLMNode {
		c.kind = agent.ModelCommand
	} else if w.chance(3) == 0 {
		c.effect = agent.External
	}
	for c.attempt = 1; ; c.attempt++ {
		begin := c.begin()
		if w.chance(4) == 0 {
			begin.Checkpoint = agent.ToolStart
		}
		begun, err := w.somebody().Begin(w.t.Context(), begin)
		if err != nil {
			w.t.Error(err)
			return
		}
		no := begun.DispatchNo
		if begun.Row != nil { // in doubt, or given up
			if begun.Row.State != agent.CommandInDoubt || w.chance(2) == 0 {
				return
			}
			owner := c
			owner.attempt = begun.Row.Owner.Attempt // the worker that was taken for lost comes back
			w.commit(owner, begun.Row.DispatchNo)
			return
		}
		switch w.chance(8) {
		case 0: // lost
			_, err = w.b.db.Exec(w.t.Context(), `UPDATE commands SET lease_until = now() - interval '1s' WHERE run_id = $1 AND command_id = $2`, w.run.RunID, c.id)
			if err != nil {
				w.t.Error(err)
				return
			}
			continue
		case 1:
			if _, err = w.b.Conclude(w.t.Context(), c.conclude(no, agent.Released, agent.Transient(agent.CodeToolFailed, "x"))); err != nil {
				w.t.Error(err)
				return
			}
			continue
		case 2:
			if _, err = w.b.Conclude(w.t.Context(), c.conclude(no, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "x"))); err != nil {
				w.t.Error(err)
			}
			w.record(agent.NodeFailed, n.ID, agent.NodeFailedData{Index: i})
			return
		case 3:
			return // left at work
		}
		w.commit(c, no)
		return
	}
}

func (w *worker) commit(c command, no int) {
	result := `{"text":"x"}`
	if w.chance(5) == 0 {
		result = `{"text":"` + strings.Repeat("x", 40<<10) + `"}`
	}
	commit := c.commit(no, result)
	if commit.Ends = w.chance(6) != 0; !commit.Ends && w.chance(2) == 0 {
		commit.Checkpoint = agent.LLMComplete
	}
	if _, err := w.somebody().Commit(w.t.Context(), commit); err != nil {
		w.t.Error(err)
	}
}

// requireWholeRecord holds a run's record to what is said of every record: the numbers, the fold at every checkpoint, and
// the order of each command's events.
func requireWholeRecord(t testing.TB, b *bench, run agent.Run) {
	t.Helper()
	events := b.events(t, run)
	all, err := agent.Fold(events)
	require.NoError(t, err)
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, all, state, "the latest checkpoint and what came after")
	rc, err := b.ReplayContext(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, all, rc.State)

	checkpoints, err := b.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	at := map[int64]agent.Checkpoint{}
	for _, c := range checkpoints {
		at[c.Sequence] = c
	}
	place := map[string]int64{}
	var fold agent.State
	saved := 0
	for i, e := range events {
		require.True(t, i == 0 || e.Sequence > events[i-1].Sequence)
		if e.Type == agent.CheckpointSaved {
			saved++
			c := at[e.Sequence]
			require.Equal(t, fold, c.State, "checkpoint %d", e.Sequence)
			require.Equal(t, fold.Step(), c.Step)
			require.Equal(t, data[agent.CheckpointSavedData](t, e), agent.CheckpointSavedData{CheckpointID: c.CheckpointID, Type: c.Type, Step: c.Step})
			if c.Type == agent.NodeBoundary {
				require.Equal(t, agent.NodeFinished, events[i-1].Type, "node_finished precedes its checkpoint")
			}
		}
		if fold, err = agent.Apply(fold, e); err != nil {
			require.NoError(t, err)
		}
		mark := string(e.Type) + " " + e.NodeID
		switch e.Type {
		case agent.CommandCommitted:
			require.Positive(t, place["command_emitted "+e.NodeID], "emitted before committed")
			require.Zero(t, place[mark], "committed once")
		case agent.CommandEmitted:
			require.Positive(t, place["node_started "+e.NodeID])
			require.Zero(t, place[mark], "emitted once")
		case agent.NodeFinished:
			require.Positive(t, place["command_committed "+e.NodeID], "committed before finished")
			require.Zero(t, place[mark], "finished once")
		default:
		}
		place[mark] = e.Sequence
	}
	require.Len(t, checkpoints, saved)
}

// R1-5, R1-7, R1-8, R3-15: whatever happens in a run, each checkpoint's state is the fold of the events before it.
func TestEveryCheckpointIsTheFoldOfTheEventsBeforeIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	others := []*ledger.Ledger{open(t, b.url, 0)}
	for round := range 8 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		plan := &agent.Plan{}
		for i := range 4 + random.IntN(20) {
			n := agent.Node{ID: fmt.Sprint("n", i), Kind: agent.ToolNode, Tool: "put"}
			if random.IntN(2) == 0 {
				n = agent.Node{ID: n.ID, Kind: agent.LLMNode, Prompt: "x"}
			}
			plan.Nodes = append(plan.Nodes, n)
		}
		// Two runs of one conversation share its numbers.
		first := b.accepted(t, plan)
		runs := []agent.Run{first, b.acceptedIn(t, first.ConversationID, plan)}
		var group sync.WaitGroup
		for r, run := range runs {
			w := &worker{t: t, b: b, run: run, plan: plan, others: others[:round%2], rand: rand.New(rand.NewPCG(seed, uint64(100*round+r)))}
			slots := make(chan struct{}, 6)
			for i := range plan.Nodes {
				group.Go(func() {
					slots <- struct{}{}
					w.node(i)
					<-slots
				})
			}
		}
		group.Wait()
		for _, run := range runs {
			if random.IntN(2) == 0 {
				b.finish(t, run, agent.FailedStatus)
			}
			requireWholeRecord(t, b, run)
		}
		require.Equal(t, int(b.last(t, first)), len(b.events(t, runs[0]))+len(b.events(t, runs[1])), "no gaps")
		b.requireChain(t, first)
	}
	for _, l := range append(others, b.Ledger) {
		require.Positive(t, l.Stats().Recalled, "some go by memory")
		require.Positive(t, l.Stats().Moved, "and some of these find that it is not so")
	}
}

// Everything at once on the same few runs: whoever loses gets an answer that he can act on, and nobody a deadlock.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := open(t, b.url, 24)
	const rounds, callers, iterations = 3, 12, 40
	for round := range rounds {
		first := b.accepted(t, twoStep(t))
		queued := acceptance(twoStep(t))
		queued.NewConversation, queued.Run.ConversationID = false, first.ConversationID
		fresh, _, err := b.Accept(t.Context(), queued)
		require.NoError(t, err)
		runs := []agent.Run{first, b.acceptedIn(t, first.ConversationID, twoStep(t)), b.accepted(t, twoStep(t)), fresh}
		var group sync.WaitGroup
		for caller := range callers {
			random := rand.New(rand.NewPCG(uint64(round), uint64(caller)))
			group.Go(func() {
				for i := range iterations {
					if err := anything(t.Context(), b, l, runs[random.IntN(len(runs))], random, i, i == iterations-1); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		for _, run := range runs {
			requireNumbersOnce(t, b, run)
		}
	}
}

// anything makes one random call. The commands go on with i, so that callers meet ones that are just beginning. What it
// returns is an error that nobody can act on.
func anything(ctx context.Context, b *bench, l *ledger.Ledger, run agent.Run, random *rand.Rand, i int, end bool) error {
	c := command{run: run, id: fmt.Sprint("c", i/6+random.IntN(2)), schedule: 1 + random.IntN(2), attempt: 1 + random.Int32N(2), inner: random.IntN(2) == 0,
		effect: []agent.EffectClass{agent.Idempotent, agent.External}[random.IntN(2)]}
	no := 1 + random.IntN(3)
	var err error
	switch pick := random.IntN(14); {
	case end:
		_, err = l.Finish(ctx, agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.FailedStatus})
	case pick < 4:
		begin := c.begin()
		if random.IntN(3) == 0 {
			begin.Checkpoint = agent.ToolStart
		}
		_, err = l.Begin(ctx, begin)
	case pick < 6:
		commit := c.commit(no, `"`+strings.Repeat("x", random.IntN(2)*40<<10)+`"`)
		if random.IntN(3) == 0 {
			commit.Plan = &agent.PlanGeneratedData{TaskGraph: &agent.Plan{Nodes: []agent.Node{{ID: "a"}}}}
		}
		_, err = l.Commit(ctx, commit)
	case pick == 6:
		state := []agent.CommandState{agent.Released, agent.CommandFailed, agent.CommandInDoubt}[random.IntN(3)]
		_, err = l.Conclude(ctx, c.conclude(no, state, agent.Transient(agent.CodeToolFailed, "x")))
	case pick == 7:
		_, err = l.Settle(ctx, agent.SettleCall{Call: c.call()})
	case pick == 8:
		_, _, err = l.Renew(ctx, run.RunID, c.id, 1, no)
	case pick == 9:
		err = l.AppendOutput(ctx, run.RunID, c.id, no, []agent.OutputChunk{{Chunk: random.IntN(9), Channel: "text", Text: "x"}})
	case pick == 10:
		_, err = l.RequestCancel(ctx, owner, run.RunID, "", "")
	case pick == 11:
		return claimAndMark(ctx, b, random)
	case pick == 12:
		_, err = l.Record(ctx, agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: []agent.Status{"", agent.Waiting, agent.Running}[random.IntN(3)]})
	case pick == 13:
		_, err = b.db.Exec(ctx, `UPDATE commands SET lease_until = now() WHERE run_id = $1 AND command_id = $2`, run.RunID, c.id)
	}
	var conflict *agent.ConflictError
	if _, ok := agent.AsError(err); ok || errors.As(err, &conflict) || err != nil && strings.Contains(err.Error(), "never dispatched") {
		return nil
	}
	if deadlocked(err) {
		return fmt.Errorf("deadlock: %w", err)
	}
	return err
}

func claimAndMark(ctx context.Context, b *bench, random *rand.Rand) error {
	intents, err := b.ClaimIntents(ctx, 3)
	if err != nil {
		return err
	}
	for _, i := range intents {
		if random.IntN(2) == 0 {
			err = b.IntentDelivered(ctx, i)
		} else {
			err = b.IntentFailed(ctx, i, 0, errors.New("x"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func requireNumbersOnce(t testing.TB, b *bench, run agent.Run) {
	t.Helper()
	events, err := b.Events(t.Context(), agent.LogScope{ConversationID: run.ConversationID}, 0, 100_000)
	require.NoError(t, err)
	ended := map[string]bool{}
	for i, e := range events {
		require.Equal(t, int64(i+1), e.Sequence)
		require.False(t, ended[e.RunID], "%s of a run that has ended", e.Type)
		ended[e.RunID] = e.Type.Terminal()
	}
	commits := map[string]int{}
	for _, e := range events {
		if e.Type == agent.CommandCommitted {
			commits[e.RunID+"/"+e.CommandID]++
			require.Equal(t, 1, commits[e.RunID+"/"+e.CommandID], "committed once")
		}
	}
}
