package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// await is Await, by the rules of the ledger: one input for each wait.
func (w *world) await(in agent.WaitCall) pending[agent.Reply] {
	if said := w.next(in.CommandID); said.begun != nil {
		said.begun(w)
	}
	return pending[agent.Reply]{end: func() (agent.Reply, error) {
		if err := w.check(in.Scope); err != nil {
			return agent.Reply{}, err
		}
		if w.status == agent.Cancelling {
			return agent.Reply{}, agent.Failed(agent.CodeCancelled, "the run is being cancelled")
		}
		w.facts(in.Scope)
		row := w.rows[in.CommandID]
		if row == nil {
			row = &agent.CommandRow{CommandID: in.CommandID, NodeID: in.NodeID, Kind: agent.WaitCommand, Effect: agent.Deterministic, State: agent.CommandWaiting, DispatchNo: 1}
			if in.For > 0 {
				row.Deadline = w.env.Now().Add(time.Duration(in.For))
			}
			w.rows[in.CommandID] = row
			if in.Opens {
				w.append(agent.NodeStarted, in.NodeID, "", agent.NodeStartedData{Index: in.NodeIndex})
			}
			w.append(agent.CommandEmitted, in.NodeID, in.CommandID, agent.CommandEmittedData{Kind: agent.WaitCommand})
		}
		over := !row.Deadline.IsZero() && !w.env.Now().Before(row.Deadline)
		switch {
		case row.State != agent.CommandWaiting:
		case in.Signal != "" && w.inputs[in.Signal] > 0 || in.Signal == "" && over:
			w.inputs[in.Signal]--
			if w.status == agent.Waiting {
				w.status = agent.Running
			}
			w.decide(row, agent.Committed, nil)
			w.append(agent.CommandCommitted, in.NodeID, in.CommandID, agent.CommandCommittedData{Kind: agent.WaitCommand})
			w.append(agent.NodeFinished, in.NodeID, "", agent.NodeFinishedData{Index: in.NodeIndex, ResultCommand: in.CommandID})
		case over:
			w.decide(row, agent.CommandFailed, &agent.Error{Code: agent.CodeTimeout, Message: "nobody came", NodeID: in.NodeID, CommandID: in.CommandID})
		}
		reply := replyOf(row)
		if row.State == agent.CommandWaiting {
			reply.Awaits = &agent.Awaited{For: agent.ForSignal, Signal: in.Signal}
			if !row.Deadline.IsZero() {
				reply.Awaits.Remaining = agent.Duration(row.Deadline.Sub(w.env.Now()))
			}
		}
		return reply, nil
	}}
}

// sends is an input that comes some time after the start, whose news comes twice.
func (w *world) sends(after time.Duration, name string) {
	w.env.RegisterDelayedCallback(func() {
		w.inputs[name]++
		w.tells(agent.InputSignal, agent.Intent{Name: name})
	}, after)
}

// tells brings an intent, twice, as the outbox may.
func (w *world) tells(signal string, i agent.Intent) {
	w.intents++
	i.ID = w.intents
	w.env.SignalWorkflow(signal, i)
	w.env.SignalWorkflow(signal, i)
}

// waits is a node that waits for a signal, for a time when that is "".
func waits(id, signal string, longest time.Duration, after ...string) step {
	s := work(id, after...)
	s.Kind, s.Tool, s.Effect, s.Signal, s.Timeout = agent.WaitNode, "", agent.Deterministic, signal, agent.Duration(longest)
	return s
}

// awaits are the wait commands that were asked about, in order, again for each time.
func (w *world) awaits() (ids []string) {
	for _, c := range w.calls {
		if c.name == string(agent.Await) {
			ids = append(ids, c.command)
		}
	}
	return ids
}

// statuses are those that the execution has told the ledger.
func (w *world) statuses() (told []agent.Status) {
	for _, c := range w.calls {
		if c.name == string(agent.Record) && c.status != "" {
			told = append(told, c.status)
		}
	}
	return told
}

func TestWaits(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		plan     *agent.Shape
		script   script
		sends    map[time.Duration]string
		awaits   []string
		statuses []agent.Status
		fails    agent.Code
	}{
		"early": {plan: graph(waits("a", "go", 0), say("b", "a")), sends: map[time.Duration]string{time.Second: "go"}, awaits: []string{"a"}},
		"while it waits": {plan: graph(waits("a", "go", 0), say("b", "a")), sends: map[time.Duration]string{day: "go"}, awaits: []string{"a", "a"},
			statuses: []agent.Status{agent.Waiting}},
		"of another name": {plan: graph(waits("a", "go", 0), say("b", "a")), sends: map[time.Duration]string{day: "stop", 2 * day: "go"}, awaits: []string{"a", "a"},
			statuses: []agent.Status{agent.Waiting}},
		"two of a name": {plan: graph(waits("a", "go", 0), waits("c", "go", 0), say("b", "a", "c")), sends: map[time.Duration]string{day: "go", 2 * day: "go"},
			awaits: []string{"a", "c", "a", "c", "c"}, statuses: []agent.Status{agent.Waiting, agent.Waiting}},
		"a timer":               {plan: graph(waits("a", "", 40*day), say("b", "a")), awaits: []string{"a", "a"}, statuses: []agent.Status{agent.Waiting}},
		"next to nodes at work": {plan: graph(waits("a", "", time.Hour), work("c"), say("b", "a", "c")), script: script{"c": {{takes: day}}}, awaits: []string{"a", "a"}},
		"too late":              {plan: graph(waits("a", "go", day), say("b", "a")), sends: map[time.Duration]string{2 * day: "go"}, awaits: []string{"a", "a"}, statuses: []agent.Status{agent.Waiting}, fails: agent.CodeTimeout},
		"too late, and tried again": {plan: graph(waits("a", "go", day).tries(2), say("b", "a")), sends: map[time.Duration]string{36 * time.Hour: "go"},
			awaits: []string{"a", "a", "a~2", "a~2"}, statuses: []agent.Status{agent.Waiting, agent.Waiting}},
		"too late, and gone on": {plan: graph(waits("a", "go", day).onError(agent.OnErrorContinue), say("b", "a")), awaits: []string{"a", "a"}, statuses: []agent.Status{agent.Waiting}},
		"too late, and skipped": {plan: graph(waits("a", "go", day).onError(agent.OnErrorSkip), work("c", "a"), say("b")), awaits: []string{"a", "a"}, statuses: []agent.Status{agent.Waiting}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := parallel(input(c.plan), 1)
			in.Limits.Timeout, in.Limits.OnLimit = agent.Duration(2*day), agent.OnLimitPark // time in which it waits does not count
			w := newWorld(t, in, c.script)
			for after, name := range c.sends {
				w.sends(after, name)
			}
			w.run()
			require.Equal(t, c.awaits, w.awaits())
			require.Equal(t, c.statuses, w.statuses())
			if c.fails != "" {
				require.Equal(t, c.fails, w.failure())
				return
			}
			require.NoError(t, w.err)
			state := w.snapshot().State
			require.Equal(t, w.fold().Finished, state.Finished)
			require.Equal(t, w.fold().Failed, state.Failed)
		})
	}
}

// TestWaitInAPausedRun: what comes meanwhile is taken when the run goes on, and a timer that is over by then is over.
func TestWaitInAPausedRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(waits("a", "go", 0), waits("c", "", 5*time.Hour), say("b", "a", "c"))), nil)
	at := map[string]time.Time{}
	began := w.env.Now()
	w.script = script{}
	for _, id := range []string{"a", "c"} {
		w.script[id] = []effect{{}, {begun: func(w *world) { at[id] = w.env.Now() }}}
	}
	w.env.RegisterDelayedCallback(func() { w.tells(agent.PauseSignal, agent.Intent{}) }, time.Hour)
	w.sends(2*time.Hour, "go")
	w.env.RegisterDelayedCallback(func() { w.tells(agent.UnpauseSignal, agent.Intent{}) }, 10*time.Hour)
	w.run()
	require.NoError(t, w.err)
	require.ElementsMatch(t, []string{"a", "c", "a", "c"}, w.awaits())
	for _, id := range []string{"a", "c"} {
		require.GreaterOrEqual(t, at[id].Sub(began), 10*time.Hour, id)
	}
}

func TestCancelWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		late   time.Duration // of the signal, after the record
		awaits []string
	}{
		"at once":                       {time.Second, []string{"a"}},
		"the record knows of it before": {48 * time.Hour, []string{"a", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, input(graph(waits("a", "go", 100*time.Hour), say("b", "a"))), nil)
			w.env.RegisterDelayedCallback(func() { w.cancel(c.late) }, time.Hour)
			w.sends(2*time.Hour, "go") // the ledger would not take it; its news may be on the way
			w.run()
			w.requireCancelled()
			require.Equal(t, c.awaits, w.awaits(), "the run is not asked about again until it hears of it")
		})
	}
}

// TestTurnHearsWhatWasSaid: with the signal's number, with what an answer that goes on tells, and after it was held back.
func TestTurnHearsWhatWasSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, react(), script{"main#1": {asks(1)}, "main#1.0": {{begun: func(w *world) {
		w.env.RegisterDelayedCallback(func() { w.tells(agent.MessageSignal, agent.Intent{Sequence: 7}) }, time.Minute)
	}}}, "main#2": {{said: 9}}, "main#3": {{ends: unheard, said: 12}}})
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{"main#1", "main#1.0", "main#2", "main#3", "main#4"}, w.commands())
	require.Equal(t, map[string][]int64{"main#1": {0}, "main#2": {7}, "main#3": {9}, "main#4": {12}}, w.heard)

	held := newWorld(t, react(), script{"main#1": {asks(1)}, "main#1.0": {{begun: func(w *world) {
		w.tells(agent.PauseSignal, agent.Intent{})
		w.env.RegisterDelayedCallback(func() { w.tells(agent.MessageSignal, agent.Intent{Sequence: 7}) }, 10*time.Hour)
		w.env.RegisterDelayedCallback(func() { w.tells(agent.UnpauseSignal, agent.Intent{}) }, 20*time.Hour)
	}}}})
	held.run()
	require.NoError(t, held.err)
	require.Equal(t, map[string][]int64{"main#1": {0}, "main#2": {7}}, held.heard, "said while it was paused, and before it was asked")

	resumed := react()
	resumed.Heard, resumed.State = 9, agent.State{Status: agent.Running, Epoch: 1, Sequence: 1, Turns: map[string]int{agent.MainNodeID: 2}}
	again := run(t, resumed, script{"main#2": {{said: 9}}})
	require.Equal(t, map[string][]int64{"main#2": {9}, "main#3": {9}}, again.heard)
}
