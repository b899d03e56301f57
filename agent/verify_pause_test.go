package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func (b *book) pause() {
	b.event(agent.RunPaused, "", "", agent.PausedData{By: "ada"})
	b.Run.Pause, b.Run.Status = &agent.Pause{By: "ada", Since: time.Unix(1, 0)}, agent.Paused
}

func (b *book) unpause() {
	b.event(agent.RunUnpaused, "", "", agent.PausedData{By: "ada"})
	b.Run.Pause, b.Run.Status = nil, agent.Running
}

// discard ends an attempt that does not count.
func (b *book) discard(i, attempt int) {
	b.event(agent.AttemptDiscarded, nodeID(i), nodeID(i), agent.AttemptDiscardedData{Reason: "busy"})
	b.Events[len(b.Events)-1].Attempt = attempt
	b.chain()
}

// attempted is commit as the outcome of an attempt.
func (b *book) attempted(i, attempt int) {
	before := len(b.Events)
	b.commit(i)
	b.Events[before].Attempt = attempt
	b.chain()
	b.testimony.Statements[len(b.testimony.Statements)-1].Chain = b.Chain
}

func TestPausedRecordsVerify(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(b *book){
		"what is at work ends": func(b *book) {
			b.start(0)
			b.pause()
			b.commit(0)
			b.unpause()
			b.start(1)
			b.commit(1)
		},
		"paused still":          func(b *book) { b.start(0); b.commit(0); b.pause() },
		"paused twice":          func(b *book) { b.pause(); b.unpause(); b.pause(); b.unpause(); b.start(0) },
		"ended while paused":    func(b *book) { b.start(0); b.pause(); b.commit(0); b.Run.Pause = nil; b.close(agent.Completed) },
		"an attempt at work":    func(b *book) { b.start(0); b.discard(0, 1); b.pause(); b.attempted(0, 2); b.unpause() },
		"an attempt that waits": func(b *book) { b.start(0); b.pause(); b.discard(0, 1); b.unpause(); b.attempted(0, 2) },
		"an effect of a tool at work": func(b *book) {
			b.start(0)
			b.pause()
			b.Commands = append(b.Commands, agent.CommandRecord{CommandID: "n0/pay", NodeID: nodeID(0), State: agent.Dispatched, DispatchNo: 1})
			b.event(agent.CommandEmitted, nodeID(0), "n0/pay", agent.CommandEmittedData{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(3)
			write(b)
			require.Empty(t, b.verify().Differences)
		})
	}
}

// What the gate would have to have let through, or a hand has changed.
func TestNothingBeginsWhilePaused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write func(b *book)
		at    int64
	}{
		"a command":           {func(b *book) { b.pause(); b.start(0) }, 6},
		"a second command":    {func(b *book) { b.start(0); b.pause(); b.commit(0); b.start(1) }, 11},
		"a planner":           {func(b *book) { b.pause(); b.event(agent.PlanStarted, agent.PlanNodeID, "", struct{}{}) }, 6},
		"a question":          {func(b *book) { b.pause(); b.event(agent.ApprovalRequested, nodeID(0), nodeID(0), struct{}{}) }, 6},
		"an attempt":          {func(b *book) { b.start(0); b.pause(); b.discard(0, 1); b.attempted(0, 2) }, 9},
		"a pause in a pause":  {func(b *book) { b.pause(); b.pause() }, 6},
		"the end of no pause": {func(b *book) { b.unpause() }, 5},
		"a pause taken out":   {func(b *book) { b.pause(); b.Events, b.Last = b.Events[:4], 4; b.chain() }, 0},
		"a row that forgets":  {func(b *book) { b.pause(); b.Run.Pause = nil }, 5},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(3)
			c.write(b)
			v := b.verify()
			require.False(t, v.OK)
			require.Equal(t, agent.CheckPause, v.Differences[0].Check, "%v", v.Differences)
			require.Equal(t, c.at, v.Differences[0].Sequence, "%v", v.Differences)
		})
	}
}
