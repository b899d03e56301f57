package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// handOver has an execution agree with the record on where the run stands, and another one continue it.
func (b *book) handOver(change func(h *agent.HandOver)) {
	state, err := agent.Fold(b.Events)
	if err != nil {
		panic(err)
	}
	h := agent.HandOver{EventID: 40, Epoch: b.Run.Epoch, Believed: state, Told: state, Next: state}
	if change != nil {
		change(&h)
	}
	b.testimony.HandOvers = append(b.testimony.HandOvers, h)
	b.testimony.Epochs = append(b.testimony.Epochs, b.Run.Epoch)
}

// TestHandOversAreHeldToTheFold: what the execution took the state to be, what the ledger told, and what the next one began with.
func TestHandOversAreHeldToTheFold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(h *agent.HandOver)
		found  string
	}{
		"all agree":                    {nil, ""},
		"the ledger told otherwise":    {func(h *agent.HandOver) { h.Told.Tokens++; h.Next.Tokens++ }, `"tokens":1`},
		"the next one began with more": {func(h *agent.HandOver) { h.Next.Finished = h.Next.Finished.With(1) }, `"finished":"03"`},
		"a node that had not finished": {func(h *agent.HandOver) { h.Believed.Finished = h.Believed.Finished.With(1) }, "node n1 finished: the execution had true, the fold false"},
		"a node that had":              {func(h *agent.HandOver) { h.Believed.Finished = "" }, "node n0 finished: the execution had false, the fold true"},
		"a node out of the plan":       {func(h *agent.HandOver) { h.Believed.Failed = h.Believed.Failed.With(9) }, "node 9 failed: the execution had true, the fold false"},
		"a tool call more":             {func(h *agent.HandOver) { h.Believed.ToolCalls++ }, "tool calls: the execution had 2, the fold 1"},
		"a tool call less":             {func(h *agent.HandOver) { h.Believed.ToolCalls--; h.Believed.Open, h.Began.Open = nil, []string{"n1"} }, "tool calls: the execution had 0, the fold 1"},
		"tokens":                       {func(h *agent.HandOver) { h.Believed.Tokens = 3 }, "tokens: the execution had 3, the fold 0"},
		"a turn":                       {func(h *agent.HandOver) { h.Believed.Turns = map[string]int{"n2": 3} }, "turns of n2: the execution had 3, the fold 0"},
		"a command at work":            {func(h *agent.HandOver) { h.Believed.Open = nil }, "command n1 is open in the fold, and the execution did not wait for it"},
		"a command at work before it":  {func(h *agent.HandOver) { h.Believed.Open, h.Began.Open = nil, []string{"n1"} }, ""},
		"a doubt that was resolved meanwhile": {func(h *agent.HandOver) { // the execution waited for n0, too
			h.Believed.Finished, h.Believed.ToolCalls, h.Believed.InDoubt = "", 0, []string{"n0"}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(3)
			b.start(0)
			b.commit(0)
			b.start(1)
			b.handOver(c.change)
			b.commit(1)
			b.close(agent.Completed)
			v := b.verify()
			require.Equal(t, 2, v.Temporal.Executions)
			require.Equal(t, 1, v.Temporal.Epochs)
			require.Equal(t, 1, v.Temporal.HandOvers)
			if c.found == "" {
				require.Empty(t, v.Differences)
				return
			}
			require.Len(t, v.Differences, 1)
			d := v.Differences[0]
			require.Equal(t, agent.CheckHandOver, d.Check)
			require.Equal(t, "hand-over at event 40 of Temporal's history of epoch 1", d.Activity)
			require.Contains(t, d.Found, c.found)
			require.Equal(t, agent.WitnessDiffers, v.Temporal.Status)
		})
	}
}
