package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// question is an approval that the gate asks for, and what somebody answers.
type question struct {
	// answer comes after a time, to the ledger and as a signal; "" for none. early: it is there before the gate's reply is.
	answer agent.ApprovalState
	after  time.Duration
	early  bool
	// twice: the signal comes twice; lost: it never does.
	twice, lost bool
	// expires is how long it is waited for, a day when zero.
	expires time.Duration
	// while is called when the command has waited for an hour.
	while func(*world)

	state agent.ApprovalState
	over  time.Time
}

// ask is the gate's part of an approval. It reports true for a command that ends here, or waits.
func (w *world) ask(c agent.Call, row *agent.CommandRow, kind agent.CommandKind, e effect) (end commandEnd, waits bool) {
	q := e.asked
	if q == nil {
		return end, false
	}
	now := w.env.Now()
	if row == nil {
		if c.Opens {
			w.append(agent.NodeStarted, c.NodeID, "", agent.NodeStartedData{Index: c.NodeIndex})
		}
		w.append(agent.ApprovalRequested, c.NodeID, c.CommandID, agent.ApprovalRequestedData{})
		if q.expires == 0 {
			q.expires = 24 * time.Hour
		}
		q.state, q.over = agent.ApprovalOpen, now.Add(q.expires)
		row = &agent.CommandRow{CommandID: c.CommandID, NodeID: c.NodeID, Kind: kind, State: agent.CommandWaiting}
		w.rows[c.CommandID] = row
		switch {
		case q.answer != "" && q.early:
			w.answered(c.CommandID, q)
		case q.answer != "":
			w.env.RegisterDelayedCallback(func() { w.answered(c.CommandID, q) }, q.after)
		}
		if q.while != nil {
			w.env.RegisterDelayedCallback(func() { q.while(w) }, time.Hour)
		}
	}
	row.Owner = agent.Dispatch{Epoch: c.Epoch, Schedule: c.Schedule, Attempt: 1}
	if q.state == agent.ApprovalOpen && !now.Before(q.over) {
		q.state = agent.ApprovalExpired
		w.append(agent.ApprovalResolved, c.NodeID, c.CommandID, agent.ApprovalResolvedData{Outcome: q.state})
	}
	approval := agent.ApprovalRow{State: q.state, By: "ann"}
	switch failure := approval.Refusal(c.NodeID, c.CommandID); {
	case failure != nil:
		w.decide(row, agent.CommandFailed, failure)
	case q.state == agent.ApprovalApproved && !q.early || q.state == agent.ApprovalApproved && w.used[c.CommandID] > 1:
		return end, false
	default:
		row.Awaits = &agent.Awaited{For: agent.ForApproval, ApprovalID: "approval of " + c.CommandID, Remaining: agent.Duration(q.over.Sub(now))}
	}
	reply := replyOf(row)
	return commandEnd{end: func() (agent.Reply, effect, error) { return reply, e, nil }}, true
}

// answered takes somebody's answer into the ledger, and tells the execution.
func (w *world) answered(commandID string, q *question) {
	if q.state != agent.ApprovalOpen {
		return
	}
	q.state = q.answer
	if w.status == agent.Waiting {
		w.status = agent.Running
	}
	w.append(agent.ApprovalResolved, agent.CommandNodeID(commandID), commandID, agent.ApprovalResolvedData{Outcome: q.state})
	w.intents++
	intent := agent.Intent{ID: 1000 + w.intents, CommandID: commandID}
	for range map[bool]int{false: 1, true: 2}[q.twice] {
		if !q.lost {
			w.env.SignalWorkflow(agent.ApprovalSignal, intent)
		}
	}
}

// statuses are those that were recorded, in order.
func statuses(w *world) (found []agent.Status) {
	for _, c := range w.calls {
		if c.name == string(agent.Record) && c.status != "" {
			found = append(found, c.status)
		}
	}
	return found
}

// Waiting costs no activity: the run says once that it waits, and the answer's signal brings the command back to the gate.
func TestApprovalIsWaitedForWithoutActivities(t *testing.T) {
	t.Parallel()
	q := &question{answer: agent.ApprovalApproved, after: 20 * time.Hour}
	q.while = func(w *world) {
		require.Equal(w.t, []string{string(agent.CallTool), string(agent.Record)}, w.activities())
		require.Equal(w.t, agent.Waiting, w.status)
		s := w.snapshot()
		require.Equal(w.t, "waits for approval", s.Nodes[0].Status)
		require.Equal(w.t, "approval of a", s.Waits[0].ApprovalID)
		require.Equal(w.t, "a", s.Waits[0].CommandID)
	}
	w := run(t, input(graph(send("a"), say("b", "a"))), script{"a": {{asked: q}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"a", "a", "b"}, w.commands())
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.ApprovalRequested, agent.ApprovalResolved, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished}, w.types("a"))
	require.Equal(t, []agent.Status{agent.Waiting}, statuses(w), "the answer itself says that it goes on")
	require.Empty(t, w.snapshot().Waits)
}

// News may come early, twice, or never: then the time is over, and the gate knows of the answer.
func TestApprovalNews(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asked     question
		schedules int
		code      agent.Code
	}{
		"early":            {question{answer: agent.ApprovalApproved, early: true}, 2, ""},
		"early and denied": {question{answer: agent.ApprovalDenied, early: true}, 1, agent.CodeDenied},
		"twice":            {question{answer: agent.ApprovalApproved, after: time.Hour, twice: true}, 2, ""},
		"denied":           {question{answer: agent.ApprovalDenied, after: time.Hour}, 2, agent.CodeDenied},
		"never":            {question{expires: 2 * time.Hour}, 2, agent.CodeExpired},
		"lost":             {question{answer: agent.ApprovalApproved, after: time.Hour, lost: true, expires: 2 * time.Hour}, 2, ""},
		"too late":         {question{answer: agent.ApprovalApproved, after: 3 * time.Hour, expires: 2 * time.Hour}, 2, agent.CodeExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(graph(send("a").onError(agent.OnErrorContinue), say("b", "a"))), script{"a": {{asked: &c.asked}}})
			require.NoError(t, w.err)
			require.Equal(t, c.schedules+1, len(w.commands()), "%v", w.activities())
			if c.code == "" {
				require.Equal(t, agent.Committed, w.rows["a"].State)
				return
			}
			require.Equal(t, agent.CommandFailed, w.rows["a"].State)
			require.Equal(t, c.code, w.rows["a"].Error.Code)
			if c.code == agent.CodeExpired {
				require.Equal(t, []agent.Status{agent.Waiting, agent.Running}, statuses(w), "nobody's answer says that it goes on")
			}
		})
	}
}

// What does not depend on the answer goes on meanwhile, and the run waits only when nothing else can.
func TestOthersGoOnWhileAnApprovalIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 8} {
		q := &question{answer: agent.ApprovalApproved, after: 100 * time.Hour, expires: 200 * time.Hour}
		w := run(t, parallel(input(graph(send("a"), work("b"), work("c", "b"), say("d", "a", "c"))), limit), script{"a": {{asked: q}}})
		require.NoError(t, w.err)
		require.Equal(t, []string{"a", "b", "c", "a", "d"}, w.commands())
		require.Equal(t, []agent.Status{agent.Waiting}, statuses(w))
		require.Less(t, w.at(agent.NodeFinished, "c"), w.at(agent.ApprovalResolved, "a"))
	}
}

// Several calls of a turn wait side by side, whatever the limit; each answer brings its own call back.
func TestApprovalsOfATurn(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 8} {
		w := run(t, parallel(react(), limit), script{"main#1": {asks(3)},
			"main#1.0": {{asked: &question{answer: agent.ApprovalDenied, after: 50 * time.Hour, expires: 90 * time.Hour}}},
			"main#1.1": {{asked: &question{answer: agent.ApprovalApproved, after: 10 * time.Hour}}},
			"main#1.2": {{asked: &question{expires: 70 * time.Hour}}}})
		require.NoError(t, w.err)
		require.Equal(t, []string{"main#1", "main#1.0", "main#1.1", "main#1.2", "main#1.1", "main#1.0", "main#1.2", "main#2"}, w.commands(), "limit %d", limit)
		require.Equal(t, agent.CodeDenied, w.rows["main#1.0"].Error.Code)
		require.Equal(t, agent.Committed, w.rows["main#1.1"].State)
		require.Equal(t, agent.CodeExpired, w.rows["main#1.2"].Error.Code)
		told := statuses(w)
		require.Equal(t, agent.Waiting, told[0])
	}
}

// A cancellation does not wait for an answer.
func TestCancelWhileAnApprovalIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]agent.RunInput{"a node": input(graph(send("main#1.0"), say("b", "main#1.0"))), "a turn": react()} {
		q := &question{while: func(w *world) { w.cancel(time.Second) }}
		s := script{"main#1": {asks(1)}, "main#1.0": {{asked: q}}}
		w := run(t, in, s)
		w.requireCancelled()
		require.Equal(t, agent.CommandWaiting, w.rows["main#1.0"].State, "%s: settled with the run's end", name)
		require.Equal(t, 1, w.used["main#1.0"])
	}
}

// The cancellation is on record before its signal comes: the command that is answered in between is not tried over and over.
func TestCancelThatMeetsAnAnswer(t *testing.T) {
	t.Parallel()
	q := &question{answer: agent.ApprovalApproved, after: 2 * time.Hour}
	q.while = func(w *world) { w.cancel(50 * time.Hour) }
	w := run(t, input(graph(send("a"), say("b", "a"))), script{"a": {{asked: q}}})
	w.requireCancelled()
	require.Equal(t, 2, w.used["a"], "%v", w.activities())
}

// The time for which a run waits for somebody does not count against its limit, when it may be parked.
func TestTimeOfAnApprovalDoesNotCount(t *testing.T) {
	t.Parallel()
	q := func() *question { return &question{answer: agent.ApprovalApproved, after: 20 * time.Hour} }
	in := limited(input(graph(send("a"), say("b", "a"))), 5*time.Hour)
	in.Limits.OnLimit = agent.OnLimitFail
	w := run(t, in, script{"a": {{asked: q()}}})
	require.NoError(t, w.err)

	in.Limits.OnLimit = "" // a run from before there was such a thing
	w = run(t, in, script{"a": {{asked: q()}}})
	require.Equal(t, agent.CodeLimit, w.failure())
}
