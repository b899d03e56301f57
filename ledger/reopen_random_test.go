package ledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// contest is a run that several executions work at, of which only the newest may: the others do not know yet that they have
// been replaced.
type contest struct {
	t    testing.TB
	b    *bench
	run  agent.Run
	plan *agent.Plan

	mu   sync.Mutex
	rand *rand.Rand
	// taken counts the results that were taken, by command.
	taken map[string]int
	// steps says that an execution has begun a command.
	steps chan struct{}
	stale atomic.Int32 // writes that were refused
}

func (c *contest) chance(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// refused tells whether an execution has to stop; any error other than a refusal fails the test.
func (c *contest) refused(err error) bool {
	if err == nil {
		return false
	}
	failure, ok := agent.AsError(err)
	switch {
	case ok && failure.Code == agent.CodeStaleEpoch:
		c.stale.Add(1)
	case ok && failure.Code == agent.CodeCancelled:
	default:
		c.t.Error(err)
	}
	return true
}

// execution works through the plan in one epoch, from where the record stands, several nodes at once, and may end the run.
func (c *contest) execution(epoch int) {
	in, err := c.b.StartInput(c.t.Context(), c.run.RunID)
	if err != nil || in.Epoch != epoch {
		return // replaced before it began
	}
	var facts sync.Mutex
	no := 0
	record := func(typ agent.EventType, nodeID string, data any) bool {
		facts.Lock()
		defer facts.Unlock()
		no++
		_, err := c.b.Record(c.t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: c.run.RunID, Epoch: epoch, Facts: []agent.Fact{fact(no, typ, nodeID, data)}}})
		return !c.refused(err)
	}
	var schedule atomic.Int32
	var group sync.WaitGroup
	for i, n := range c.plan.Nodes {
		if in.State.Done(i) || c.chance(5) == 0 {
			continue
		}
		group.Go(func() {
			cmd := command{run: c.run, id: n.ID, index: i, epoch: epoch, schedule: int(schedule.Add(1)), effect: agent.Idempotent}
			if i%2 == 0 {
				cmd.effect = agent.External
			}
			c.node(cmd, in.State.Started.Has(i), record)
		})
	}
	group.Wait()
	if c.chance(3) == 0 {
		status := []agent.Status{agent.FailedStatus, agent.Cancelled}[c.chance(2)]
		_, err := c.b.Finish(c.t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: c.run.RunID, Epoch: epoch}, Status: status, Error: &agent.Error{Code: agent.CodeNodeFailed}})
		c.refused(err)
	}
}

func (c *contest) node(cmd command, started bool, record func(agent.EventType, string, any) bool) {
	for cmd.attempt = 1; cmd.attempt < 4; cmd.attempt++ {
		begin := cmd.begin()
		if started {
			begin.Node = nil
		}
		begun, err := c.b.Begin(c.t.Context(), begin)
		if c.refused(err) {
			return
		}
		switch begun.Verdict {
		case agent.MayExecute, agent.MayExecuteAgain:
			started = true
			c.steps <- struct{}{}
		case agent.MustWait:
			if _, err := c.b.db.Exec(c.t.Context(), `UPDATE commands SET lease_until = now() - interval '1s' WHERE run_id = $1 AND command_id = $2`, c.run.RunID, cmd.id); err != nil {
				c.t.Error(err)
			}
			continue
		case agent.InjectFailure:
			record(agent.NodeFailed, cmd.id, agent.NodeFailedData{Index: cmd.index, Error: begun.Row.Error})
			return
		default:
			return
		}
		switch c.chance(6) {
		case 0: // the worker is lost
			continue
		case 1:
			_, err = c.b.Conclude(c.t.Context(), cmd.conclude(begun.DispatchNo, agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, CommandID: cmd.id}))
			if c.refused(err) || c.chance(2) == 0 {
				return
			}
		case 2:
			_, err = c.b.Conclude(c.t.Context(), cmd.conclude(begun.DispatchNo, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "x")))
			if !c.refused(err) {
				record(agent.NodeFailed, cmd.id, agent.NodeFailedData{Index: cmd.index})
			}
			return
		}
		decided, err := c.b.Commit(c.t.Context(), cmd.commit(begun.DispatchNo, fmt.Sprintf(`{"by":%d}`, begun.DispatchNo)))
		if !c.refused(err) && decided.Mine {
			c.mu.Lock()
			c.taken[cmd.id]++
			c.mu.Unlock()
		}
		return
	}
}

// resolve says something of every command in doubt.
func (c *contest) resolve() {
	page, err := c.b.Commands(c.t.Context(), c.run.RunID)
	if err != nil {
		c.t.Error(err)
		return
	}
	for _, row := range page {
		if row.State != agent.CommandInDoubt || c.chance(2) == 0 {
			continue
		}
		outcome := []agent.Outcome{agent.OutcomeFailed, agent.OutcomeRetry}[c.chance(2)]
		_, err := c.b.Resolve(c.t.Context(), owner, c.run.RunID, row.CommandID, agent.Resolution{Outcome: outcome, By: "ada"})
		var conflict *agent.ConflictError
		if err != nil && !errors.As(err, &conflict) {
			c.t.Error(err)
		}
	}
}

// Whatever executions of several epochs do at once, the record keeps its rules: nothing of an earlier epoch is in a later one
// but late results, and no result is taken twice.
func TestExecutionsOfSeveralEpochsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	stale := 0
	for round := range 10 {
		plan := &agent.Plan{}
		for i := range 8 {
			plan.Nodes = append(plan.Nodes, agent.Node{ID: fmt.Sprint("n", i), Kind: agent.ToolNode, Tool: "put"})
		}
		c := &contest{t: t, b: b, run: b.accepted(t, plan), plan: plan, rand: rand.New(rand.NewPCG(seed, uint64(round))), taken: map[string]int{},
			steps: make(chan struct{}, 1000)}
		var group sync.WaitGroup
		for epoch := 1; epoch <= 4; epoch++ {
			done := make(chan struct{})
			group.Go(func() {
				defer close(done)
				c.execution(epoch)
			})
			for range c.chance(8) {
				select {
				case <-c.steps:
				case <-done:
				}
			}
			if c.chance(2) == 0 {
				c.resolve()
			}
			if epoch == 4 {
				break
			}
			lost := epoch
			if now := b.read(t, c.run); now.Status.Terminal() {
				lost = 0
			}
			_, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: c.run.RunID, Lost: lost})
			var conflict *agent.ConflictError
			if errors.As(err, &conflict) { // it has ended meanwhile
				_, err = b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: c.run.RunID})
			}
			require.NoError(t, err)
		}
		group.Wait()
		c.resolve()
		b.requireVerifies(t, c.run)
		requireFolds(t, b, c.run)
		committed := map[string]int{}
		for _, e := range b.events(t, c.run) {
			if e.Type == agent.CommandCommitted {
				committed[e.CommandID]++
			}
		}
		for id, n := range c.taken {
			require.LessOrEqual(t, n, 1, id)
			if n == 1 {
				// A result that came after the run's last end has no event yet.
				require.True(t, committed[id] == 1 || value[bool](t, b, `SELECT unannounced FROM commands WHERE run_id = $1 AND command_id = $2`, c.run.RunID, id), id)
			}
		}
		stale += int(c.stale.Load())
		if b.read(t, c.run).Status.Terminal() {
			b.resumes(t, c.run)
			requireFolds(t, b, c.run)
		}
	}
	require.Positive(t, stale, "no execution was replaced while it was at work")
}
