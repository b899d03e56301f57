package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"runledger/activities"
	"runledger/agent"
	"runledger/tool"
)

// memory is a ledger of one command, by the rules of the gate, on the clock of a synctest bubble.
type memory struct {
	activities.Ledger // what is not below is not called
	run               agent.Run
	plan              *agent.Plan

	mu       sync.Mutex
	row      *agent.CommandRow
	status   agent.Status
	away     bool // the database does not answer
	renewed  []time.Time
	discards []time.Duration
	stops    chan struct{}
	// at is called at the boundaries of the gate, nil for nothing.
	at func(context.Context, agent.Boundary, agent.Call)
}

func newMemory(class agent.EffectClass) *memory {
	m := &memory{status: agent.Running, stops: make(chan struct{}, 1), plan: &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: toolOf(class), Args: json.RawMessage(`{}`)}}}}
	m.run = agent.Run{RunID: "run", Epoch: 1, Definition: agent.Definition{Tools: []agent.ToolRef{{Name: toolOf(class), Effect: class}}}}
	return m
}

func (m *memory) SubscribeStops(string) (<-chan struct{}, func()) { return m.stops, func() {} }

var errAway = errors.New("no route to host")

func (m *memory) WorkerRun(context.Context, string) (agent.Run, *agent.Plan, error) {
	return m.run, m.plan, nil
}

func (m *memory) Begin(_ context.Context, b agent.Begin) (agent.Begun, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return agent.Begun{}, errAway
	}
	begun := agent.Begun{Verdict: agent.Admit(m.row, agent.Ask{Dispatch: b.Dispatch, InputHash: b.InputHash, Reconciles: b.Reconciles, VoidNo: b.VoidNo}, time.Now()), Row: m.row}
	switch begun.Verdict {
	case agent.MayExecute, agent.MayExecuteAgain:
		begun.DispatchNo, begun.Remaining = 1, time.Duration(b.Timeout)
		if m.row != nil {
			begun.DispatchNo = m.row.DispatchNo + 1
		}
		m.row = &agent.CommandRow{CommandID: b.CommandID, Kind: b.Kind, Effect: b.Effect, State: agent.Dispatched, InputHash: b.InputHash,
			DispatchNo: begun.DispatchNo, Owner: b.Dispatch, LeaseUntil: time.Now().Add(agent.Lease), Deadline: time.Now().Add(begun.Remaining)}
	case agent.MayProceed:
		begun.DispatchNo, begun.Remaining = m.row.DispatchNo, time.Until(m.row.Deadline)
	default:
	}
	return begun, nil
}

func (m *memory) Renew(ctx context.Context, _, _ string, _, dispatchNo int) (agent.Status, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return "", false, errAway
	}
	m.renewed = append(m.renewed, time.Now())
	owned := m.open(dispatchNo)
	if owned {
		m.row.LeaseUntil = time.Now().Add(agent.Lease)
	}
	return m.status, owned, nil
}

func (m *memory) Commit(_ context.Context, c agent.Commit) (agent.Decided, error) {
	return m.decide(c.DispatchNo, agent.Committed, nil, c.Result)
}

func (m *memory) Conclude(_ context.Context, c agent.Conclude) (agent.Decided, error) {
	decided, err := m.decide(c.DispatchNo, c.State, c.Error, nil)
	if err == nil && c.State == agent.Released {
		m.discards = append(m.discards, c.RetryAfter)
	}
	return decided, err
}

func (m *memory) decide(dispatchNo int, state agent.CommandState, reason *agent.Error, result json.RawMessage) (agent.Decided, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return agent.Decided{}, errAway
	}
	if !m.open(dispatchNo) {
		return agent.Decided{Row: m.row}, nil
	}
	m.row.State, m.row.Error, m.row.Result = state, reason, result
	return agent.Decided{Row: m.row, Mine: true}, nil
}

// open tells whether a dispatch may still say how it ended.
func (m *memory) open(dispatchNo int) bool {
	return (m.row.State == agent.Dispatched || m.row.State == agent.CommandInDoubt) && m.row.DispatchNo == dispatchNo
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// ended is what became of an attempt in a bubble.
type ended struct {
	reply agent.Reply
	err   error
	cause error         // of the effect's context, nil while it was alive
	took  time.Duration // until the effect's context ended, or the effect did
	// effects is how often it took place.
	effects int
}

// inBubble runs a tool's attempt on a clock of its own. The effect works until its context ends, or for lasts, if that is not
// zero, and then ends as then says.
func inBubble(t *testing.T, m *memory, how try, timeout, lasts time.Duration, then hook) ended {
	t.Helper()
	var e ended
	probe := &probe{}
	tools, err := tool.NewSet(probe.tool(m.plan.Nodes[0].Tool, m.run.Definition.Tools[0].Effect))
	require.NoError(t, err)
	how.hooks.after = func(ctx context.Context, call tool.Call) (json.RawMessage, error) {
		began := time.Now()
		var over <-chan time.Time
		if lasts > 0 {
			over = time.After(lasts)
		}
		select {
		case <-ctx.Done():
		case <-over:
		}
		e.took, e.cause = time.Since(began), context.Cause(ctx)
		if then == nil {
			return json.RawMessage(`{}`), nil
		}
		return then(ctx, call)
	}
	c := agent.Call{Scope: agent.Scope{RunID: "run", Epoch: 1}, CommandID: "a", NodeID: "a", Schedule: 1, Ends: true, Timeout: agent.Duration(timeout)}
	cfg := activities.Config{Ledger: m, Tools: tools, At: m.at, Stopping: how.leaves}
	e.reply, e.err = attemptWith(t, cfg, how, callTool, agent.ToolCall{Call: c, Tool: m.plan.Nodes[0].Tool})
	e.effects = len(probe.effects["run/a"])
	return e
}

// stopped is what an effect says that was stopped in the middle.
func stopped(ctx context.Context, _ tool.Call) (json.RawMessage, error) { return nil, ctx.Err() }

// after ends an activity's context after a time, as Temporal does, for a cause.
func after(d time.Duration, cause error) func(context.Context) context.Context {
	return func(ctx context.Context) context.Context {
		ctx, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(d, func() { cancel(cause) })
		return ctx
	}
}

func TestWhatEndsAnEffect(t *testing.T) {
	t.Parallel()
	stopSoon := func() chan struct{} {
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		return stop
	}
	for name, c := range map[string]struct {
		how   func(*memory) try
		took  time.Duration
		cause string // "" when nothing ended it
		idem  agent.Outcome
		code  agent.Code // of the activity's error, when it is to be tried again
		ext   agent.Outcome
	}{
		"the user cancels, says Temporal": {how: func(*memory) try { return try{context: after(3*time.Second, temporal.NewCanceledError())} },
			took: 3 * time.Second, cause: "the run is being cancelled", idem: agent.OutcomeAborted, ext: agent.OutcomeInDoubt},
		"the user cancels, says the record": {how: func(m *memory) try {
			time.AfterFunc(time.Second, func() { m.set(func() { m.status = agent.Cancelling }) })
			return try{}
		}, took: 5 * time.Second, cause: "the run is being cancelled", idem: agent.OutcomeAborted, ext: agent.OutcomeInDoubt},
		"the user cancels, says the ledger's news": {how: func(m *memory) try {
			time.AfterFunc(time.Second, func() { m.set(func() { m.status = agent.Cancelling }); m.stops <- struct{}{} })
			return try{}
		}, took: time.Second, cause: "the run is being cancelled", idem: agent.OutcomeAborted, ext: agent.OutcomeInDoubt},
		"the run has ended, says the ledger's news": {how: func(m *memory) try {
			time.AfterFunc(time.Second, func() { m.set(func() { m.row.State = agent.CommandAborted }); m.stops <- struct{}{} })
			return try{}
		}, took: time.Second, cause: "another execution has taken the command over", code: agent.CodeSuperseded},
		"the news comes for nothing": {how: func(m *memory) try {
			time.AfterFunc(time.Second, func() { m.stops <- struct{}{} })
			return try{}
		}, took: 30 * time.Second, idem: agent.OutcomeCommitted, ext: agent.OutcomeCommitted},
		"a heartbeat is lost": {how: func(*memory) try { return try{context: after(3*time.Second, errors.New("rpc: unavailable"))} },
			took: 30 * time.Second, idem: agent.OutcomeCommitted, ext: agent.OutcomeCommitted},
		"a heartbeat is lost, then the user cancels": {how: func(m *memory) try {
			time.AfterFunc(8*time.Second, func() { m.set(func() { m.status = agent.Cancelling }) })
			return try{context: after(3*time.Second, errors.New("rpc: unavailable"))}
		}, took: 10 * time.Second, cause: "the run is being cancelled", idem: agent.OutcomeAborted, ext: agent.OutcomeInDoubt},
		"the activity is paused": {how: func(*memory) try { return try{context: after(3*time.Second, errors.New("activity paused"))} },
			took: 30 * time.Second, idem: agent.OutcomeCommitted, ext: agent.OutcomeCommitted},
		"the worker stops": {how: func(*memory) try { return try{stop: stopSoon()} },
			took: 9 * time.Second, cause: "the worker is stopping", code: agent.CodeShutdown, ext: agent.OutcomeInDoubt},
		"the worker is about to stop": {how: func(*memory) try { return try{leaves: stopSoon()} },
			took: 9 * time.Second, cause: "the worker is stopping", code: agent.CodeShutdown, ext: agent.OutcomeInDoubt},
		"the deadline passes": {how: func(*memory) try { return try{} },
			took: 20 * time.Second, cause: "the command's deadline has passed", code: agent.CodeTimeout, ext: agent.OutcomeInDoubt},
		"another dispatch takes over": {how: func(m *memory) try {
			time.AfterFunc(6*time.Second, func() { m.set(func() { m.row.DispatchNo++ }) })
			return try{}
		}, took: 10 * time.Second, cause: "another execution has taken the command over", code: agent.CodeSuperseded},
		"the ledger is away for a while": {how: func(m *memory) try {
			time.AfterFunc(4*time.Second, func() { m.set(func() { m.away = true }) })
			time.AfterFunc(29*time.Second, func() { m.set(func() { m.away = false }) })
			return try{}
		}, took: 30 * time.Second, idem: agent.OutcomeCommitted, ext: agent.OutcomeCommitted},
		"it is called in doubt": {how: func(m *memory) try {
			time.AfterFunc(6*time.Second, func() { m.set(func() { m.row.State = agent.CommandInDoubt }) })
			return try{}
		}, took: 30 * time.Second, idem: agent.OutcomeCommitted, ext: agent.OutcomeCommitted},
		"nothing": {how: func(*memory) try { return try{} }, took: 30 * time.Second, idem: agent.OutcomeCommitted, ext: agent.OutcomeCommitted},
	} {
		for _, class := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
			t.Run(name+"/"+string(class), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					m := newMemory(class)
					timeout, lasts := time.Minute, 30*time.Second
					then := stopped
					if c.cause == "" {
						then = nil
					}
					if name == "the deadline passes" {
						timeout = 20 * time.Second
					}
					e := inBubble(t, m, c.how(m), timeout, lasts, then)
					require.Equal(t, c.took, e.took)
					if c.cause == "" {
						require.NoError(t, e.cause)
					} else {
						require.EqualError(t, e.cause, c.cause)
					}
					want := c.idem
					if class == agent.External {
						want = c.ext
					}
					if want == "" {
						requireCode(t, e.err, c.code, c.code != agent.CodeSuperseded)
						return
					}
					require.NoError(t, e.err)
					require.Equal(t, want, e.reply.Outcome)
				})
			})
		}
	}
}

// An external effect that never began is not in doubt.
func TestCancelledBeforeTheEffectBegan(t *testing.T) {
	t.Parallel()
	for _, class := range []agent.EffectClass{agent.Idempotent, agent.External} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(class)
			e := inBubble(t, m, try{context: func(ctx context.Context) context.Context {
				ctx, cancel := context.WithCancelCause(ctx)
				cancel(temporal.NewCanceledError())
				return ctx
			}}, time.Minute, 0, stopped)
			requireCode(t, e.err, agent.CodeCancelled, true)
			require.Zero(t, e.effects)
			require.Equal(t, agent.Released, m.row.State)
		})
	}
}

func TestShutdownGraceLetsAnEffectEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		e := inBubble(t, newMemory(agent.External), try{stop: stop}, time.Minute, 7*time.Second, nil)
		require.NoError(t, e.err)
		require.Equal(t, agent.OutcomeCommitted, e.reply.Outcome)
		require.Equal(t, 7*time.Second, e.took)
	})
}

func TestShutdownIsTriedAgainAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(agent.Idempotent)
		stop := make(chan struct{})
		close(stop)
		e := inBubble(t, m, try{stop: stop}, time.Minute, 0, stopped)
		require.Equal(t, time.Millisecond, requireCode(t, e.err, agent.CodeShutdown, true).NextRetryDelay())
		require.Equal(t, agent.Released, m.row.State)
		require.Equal(t, []time.Duration{0}, m.discards)
	})
}

func TestResultCountsWhateverStoppedItsEffect(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(*memory) try{
		"cancelled": func(*memory) try { return try{context: after(time.Second, temporal.NewCanceledError())} },
		"deadline":  func(*memory) try { return try{} },
		"shutdown": func(*memory) try {
			stop := make(chan struct{})
			close(stop)
			return try{stop: stop}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(agent.External)
				e := inBubble(t, m, how(m), 20*time.Second, 0, nil)
				require.NoError(t, e.err)
				require.Error(t, e.cause)
				require.Equal(t, agent.OutcomeCommitted, e.reply.Outcome, "what has taken place is put on record")
			})
		})
	}
}

func TestLeaseIsRenewedWhileAnEffectIsAtWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(agent.Idempotent)
		began, beats := time.Now(), 0
		e := inBubble(t, m, try{heartbeats: func() { beats++ }}, time.Minute, 22*time.Second, nil)
		require.NoError(t, e.err)
		var at []time.Duration
		for _, r := range m.renewed {
			at = append(at, r.Sub(began))
		}
		require.Equal(t, []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second}, at)
		require.Equal(t, 14, beats, "every second and a half")
	})
}

func TestShortEffectRenewsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(agent.Idempotent)
		require.NoError(t, inBubble(t, m, try{}, time.Minute, 4*time.Second, nil).err)
		require.Empty(t, m.renewed)
	})
}

func TestLeaseOfACrashedEffectIsNotRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(agent.Idempotent)
		e := inBubble(t, m, try{hooks: hooks{before: func(context.Context, tool.Call) (json.RawMessage, error) { crash(); return nil, nil }}},
			time.Minute, 0, nil)
		require.ErrorIs(t, e.err, errCrashed)
		// The bubble does not end while anything of the attempt is at work.
		require.Empty(t, m.renewed)
	})
}

func TestLedgerThatStaysAwayEndsTheAttempt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from  time.Duration
		waits time.Duration // at least, before the attempt is given up
		state agent.CommandState
	}{
		"from the beginning": {0, 12 * time.Second, ""},
		"at the commit":      {time.Second, 40 * time.Second, agent.Dispatched},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(agent.External)
				began := time.Now()
				m.away = c.from == 0
				time.AfterFunc(c.from, func() { m.set(func() { m.away = true }) })
				e := inBubble(t, m, try{}, time.Minute, 2*time.Second, nil)
				app := requireCode(t, e.err, "wrapError", true)
				require.ErrorContains(t, app, "the ledger does not answer")
				require.ErrorContains(t, app, errAway.Error())
				require.Greater(t, time.Since(began), c.waits)
				if c.state != "" {
					require.Equal(t, c.state, m.row.State, "nothing is claimed of it")
				}
			})
		})
	}
}
