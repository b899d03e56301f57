package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/policy"
	"runledger/tool"
)

// asking is an external tool that can be asked about its calls.
type asking struct {
	*probeTool
	mu    sync.Mutex
	asked []tool.Call
	find  func(try int) (tool.Finding, error)
}

func (a *asking) Reconcile(_ context.Context, call tool.Call) (tool.Finding, error) {
	a.mu.Lock()
	a.asked = append(a.asked, call)
	try := len(a.asked)
	a.mu.Unlock()
	return a.find(try)
}

func reconciling(t testing.TB, find func(try int) (tool.Finding, error)) (*lab, *asking, agent.Run) {
	t.Helper()
	l := setup(t)
	a := &asking{probeTool: l.probe.tool("mail", agent.External), find: find}
	var err error
	l.tools, err = tool.NewSet(a)
	require.NoError(t, err)
	return l, a, l.oneNode(t, agent.External)
}

// lose lets the first attempt of a run's command be lost in the middle of its effect, and its lease be over.
func (l *lab) lose(t testing.TB, run agent.Run) {
	t.Helper()
	_, err := l.callTool(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { crash(); return nil, nil }}},
		agent.ToolCall{Call: call(run, 1), Tool: "mail"})
	require.ErrorIs(t, err, errCrashed)
	l.expire(t, run)
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	found := tool.Finding{Found: true, Output: json.RawMessage(`{"id": 7.0}`)}
	past := `UPDATE commands SET deadline = now() - interval '1 ms'`
	for name, c := range map[string]struct {
		find    func(try int) (tool.Finding, error)
		before  string // the second attempt
		outcome agent.Outcome
		retried bool
		result  string
		effects []int
		record  []agent.EventType
		reason  string
	}{
		"found": {func(int) (tool.Finding, error) { return found, nil }, "", agent.OutcomeCommitted, false, `{"id": 7.0}`, []int{1},
			[]agent.EventType{agent.CommandResolved, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, ""},
		"found at the third question": {func(try int) (tool.Finding, error) {
			if try < 3 {
				return tool.Finding{}, errors.New("busy")
			}
			return found, nil
		}, "", agent.OutcomeCommitted, false, `{"id": 7.0}`, []int{1},
			[]agent.EventType{agent.CommandResolved, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, ""},
		"not found, which proves nothing": {func(int) (tool.Finding, error) { return tool.Finding{}, nil }, past, agent.OutcomeInDoubt, false, "", []int{1},
			[]agent.EventType{agent.CommandDoubtType}, "does not prove"},
		"nothing learned": {func(int) (tool.Finding, error) { return tool.Finding{}, errors.New("no route") }, past, agent.OutcomeInDoubt, false, "", []int{1},
			[]agent.EventType{agent.CommandDoubtType}, "could not find out: no route"},
		"a panic": {func(int) (tool.Finding, error) { panic("oh") }, past, agent.OutcomeInDoubt, false, "", []int{1},
			[]agent.EventType{agent.CommandDoubtType}, "could not find out: panic: oh"},
		"an output that is none": {func(int) (tool.Finding, error) { return tool.Finding{Found: true, Output: json.RawMessage("{")}, nil }, "", agent.OutcomeInDoubt,
			false, "", []int{1}, []agent.EventType{agent.CommandDoubtType}, "not JSON"},
		"certainly not, before the deadline": {func(int) (tool.Finding, error) { return tool.Finding{Conclusive: true}, nil }, "", "", true, "", []int{1}, nil, ""},
		"certainly not, after the deadline": {func(int) (tool.Finding, error) { return tool.Finding{Conclusive: true}, nil }, past, agent.OutcomeCommitted, false,
			`{"n":42}`, []int{1, 2}, []agent.EventType{agent.AttemptDiscarded, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, asked, run := reconciling(t, c.find)
			l.lose(t, run)
			if c.before != "" {
				l.exec(t, c.before)
			}
			known := len(l.events(t, run))
			reply, err := l.callTool(t, try{attempt: 2}, agent.ToolCall{Call: call(run, 1), Tool: "mail"})
			if c.retried {
				app := requireCode(t, err, agent.CodeLeased, true)
				require.Positive(t, app.NextRetryDelay())
			} else {
				require.NoError(t, err)
				require.Equal(t, c.outcome, reply.Outcome)
			}
			require.Equal(t, c.effects, l.probe.of(run, "a"))
			require.Equal(t, agent.IdempotencyKey(run.RunID, "a"), asked.asked[0].Key)
			require.JSONEq(t, `{"n": 21}`, string(asked.asked[0].Arguments))
			require.Equal(t, 1, asked.asked[0].Attempt, "the one that was lost")
			var record []agent.EventType
			for _, e := range l.events(t, run)[known:] {
				record = append(record, e.Type)
			}
			require.Equal(t, c.record, record)
			row := l.row(t, run, "a")
			require.Equal(t, c.result, string(row.Result))
			if c.reason != "" {
				require.Contains(t, row.Error.Message, c.reason)
			}
		})
	}
}

// An effect whose answer was lost is reconciled by the next attempt, as one whose worker was lost.
func TestReconcileAfterALostAnswer(t *testing.T) {
	t.Parallel()
	l, _, run := reconciling(t, func(int) (tool.Finding, error) {
		return tool.Finding{Found: true, Output: json.RawMessage(`1`)}, nil
	})
	in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
	_, err := l.callTool(t, try{hooks: hooks{after: says("", agent.Unknown(agent.CodeTimeout, "cut off"))}}, in)
	requireCode(t, err, agent.CodeTimeout, true)
	require.Equal(t, agent.Dispatched, l.row(t, run, "a").State)
	reply, err := l.callTool(t, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, []int{1}, l.probe.of(run, "a"))
}

// A command whose activity was given up is settled by what its tool knows.
func TestSettleReconciles(t *testing.T) {
	t.Parallel()
	for outcome, find := range map[agent.Outcome]func(int) (tool.Finding, error){
		agent.OutcomeCommitted: func(int) (tool.Finding, error) { return tool.Finding{Found: true, Output: json.RawMessage(`1`)}, nil },
		agent.OutcomeInDoubt:   func(int) (tool.Finding, error) { return tool.Finding{Conclusive: true}, nil },
	} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			l, asked, run := reconciling(t, find)
			l.lose(t, run)
			reply := l.settle(t, agent.SettleCall{Call: call(run, 1), Reason: agent.Failed(agent.CodeCancelled, "cancelled")})
			require.Equal(t, outcome, reply.Outcome)
			require.JSONEq(t, `{"n": 21}`, string(asked.asked[0].Arguments))
			require.Equal(t, []int{1}, l.probe.of(run, "a"))
			if outcome == agent.OutcomeCommitted {
				require.Equal(t, agent.NodeFinished, l.types(t, run)[5])
			}
		})
	}
}

// It may ask a tool for longer than a lost worker is given.
func TestSettleTellsThatItLives(t *testing.T) {
	t.Parallel()
	beat := make(chan struct{})
	l, _, run := reconciling(t, func(int) (tool.Finding, error) {
		<-beat
		return tool.Finding{Found: true, Output: json.RawMessage(`1`)}, nil
	})
	l.lose(t, run)
	reply, err := attempt(t, l, try{heartbeats: sync.OnceFunc(func() { close(beat) })}, func(a *activities.Activities) func(context.Context, agent.SettleCall) (agent.SettleReply, error) {
		return a.SettleCommand
	}, agent.SettleCall{Call: call(run, 1), Reason: agent.Failed(agent.CodeCancelled, "cancelled")})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
}

// writing is a tool that works in the ledger's transaction.
type writing struct {
	*probeTool
	call func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error)
}

func (w *writing) CallTx(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
	return w.call(ctx, tx, call)
}

func writingLab(t testing.TB, do func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error)) (*lab, agent.Run) {
	t.Helper()
	l := setup(t)
	l.exec(t, `CREATE TABLE account (balance int)`)
	l.exec(t, `INSERT INTO account VALUES (100)`)
	var err error
	l.tools, err = tool.NewSet(&writing{l.probe.tool("mail", agent.External), do})
	require.NoError(t, err)
	return l, l.oneNode(t, agent.External)
}

func (l *lab) balance(t testing.TB) (balance int) {
	t.Helper()
	require.NoError(t, l.db.QueryRow(t.Context(), `SELECT balance FROM account`).Scan(&balance))
	return balance
}

func withdraw(ctx context.Context, tx tool.Tx, _ tool.Call) (json.RawMessage, error) {
	_, err := tx.Exec(ctx, `UPDATE account SET balance = balance - 30`)
	return json.RawMessage(`"withdrawn"`), err
}

// A same-transaction tool happens exactly once, wherever its worker is lost.
func TestTxToolHappensOnce(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]agent.Boundary{"before begin": agent.BeforeBegin, "after begin": agent.AfterBegin, "after the effect": agent.AfterEffect,
		"after commit": agent.AfterCommit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, run := writingLab(t, withdraw)
			in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
			_, err := attemptAt(t, l, func(b agent.Boundary) {
				if b == at {
					crash()
				}
			}, in)
			require.ErrorIs(t, err, errCrashed)
			if at != agent.BeforeBegin {
				l.expire(t, run)
			}
			reply, err := l.callTool(t, try{attempt: 2}, in)
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
			require.Equal(t, 70, l.balance(t))
			require.Equal(t, agent.Idempotent, l.row(t, run, "a").Effect, "never in doubt")
		})
	}
}

func TestTxToolFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do      func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error)
		code    agent.Code
		retried bool
	}{
		"definitely": {func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
			_, _ = withdraw(ctx, tx, call)
			return nil, agent.Failed(agent.CodeToolFailed, "overdrawn")
		}, agent.CodeToolFailed, false},
		"somehow": {func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
			_, _ = withdraw(ctx, tx, call)
			return nil, errors.New("no idea")
		}, agent.CodeToolFailed, true},
		"in SQL": {func(ctx context.Context, tx tool.Tx, _ tool.Call) (json.RawMessage, error) {
			_, err := tx.Exec(ctx, `UPDATE nowhere SET x = 1`)
			return nil, err
		}, agent.CodeToolFailed, true},
		"by a panic": {func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
			_, _ = withdraw(ctx, tx, call)
			panic("oh")
		}, agent.CodeToolFailed, true},
		"with an output that is none": {func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
			_, _ = withdraw(ctx, tx, call)
			return json.RawMessage(`{`), nil
		}, agent.CodeToolFailed, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, run := writingLab(t, c.do)
			reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "mail"})
			if c.retried {
				requireCode(t, err, c.code, true)
				require.Equal(t, agent.Released, l.row(t, run, "a").State)
			} else {
				require.NoError(t, err)
				require.Equal(t, agent.OutcomeFailed, reply.Outcome)
				require.Equal(t, c.code, reply.Error.Code)
			}
			require.Equal(t, 100, l.balance(t), "undone")
		})
	}
}

// attemptAt runs a tool's attempt and calls at on the way through the gate.
func attemptAt(t testing.TB, l *lab, at func(agent.Boundary), in agent.ToolCall) (agent.Reply, error) {
	t.Helper()
	return attemptWith(t, activities.Config{Ledger: l.Ledger, Tools: l.tools, At: func(_ context.Context, b agent.Boundary, _ agent.Call) { at(b) }}, try{}, callTool, in)
}

// R2-10: a policy in Go code sees the arguments, is asked before the effect, and fails closed.
func TestPolicyInCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		decide  policy.Func
		message string
	}{
		"execute": {func(context.Context, policy.Command) (agent.Decision, string, error) { return policy.Execute, "", nil }, ""},
		"forbid": {func(context.Context, policy.Command) (agent.Decision, string, error) {
			return policy.Forbid, "too much", nil
		}, "the policy says forbid: too much"},
		"an error": {func(context.Context, policy.Command) (agent.Decision, string, error) {
			return policy.Execute, "", errors.New("away")
		},
			"the policy says forbid: the policy could not decide: away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := setup(t)
			run := l.oneNode(t, agent.External)
			var asked []policy.Command
			cfg := activities.Config{Ledger: l.Ledger, Tools: l.tools, Policy: func(ctx context.Context, c2 policy.Command) (agent.Decision, string, error) {
				asked = append(asked, c2)
				require.Empty(t, l.probe.of(run, "a"), "asked before the effect")
				return c.decide(ctx, c2)
			}}
			in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
			reply, err := attemptWith(t, cfg, try{}, callTool, in)
			require.NoError(t, err)
			require.Equal(t, policy.Command{RunID: run.RunID, Agent: "default", NodeID: "a", CommandID: "a", Kind: agent.ToolCommand, Tool: "mail",
				Effect: agent.External, Arguments: json.RawMessage(`{"n":21}`)}, asked[0])
			if c.message == "" {
				require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
				return
			}
			require.Equal(t, agent.OutcomeFailed, reply.Outcome)
			require.Equal(t, agent.CodeRefused, reply.Error.Code)
			require.Equal(t, c.message, reply.Error.Message)
			require.Empty(t, l.probe.of(run, "a"))
			require.Equal(t, []agent.EventType{agent.NodeStarted, agent.PolicyDecided, agent.CommandFailedType}, l.types(t, run))
		})
	}
}

// A rule of the run's record has the first word.
func TestRefusalOfTheWorkflow(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.Idempotent)
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	in.Refusal = &agent.Refusal{Decision: policy.Forbid, Reason: "read only"}
	cfg := activities.Config{Ledger: l.Ledger, Tools: l.tools, Policy: func(context.Context, policy.Command) (agent.Decision, string, error) {
		t.Error("asked")
		return policy.Execute, "", nil
	}}
	reply, err := attemptWith(t, cfg, try{}, callTool, in)
	require.NoError(t, err)
	require.Equal(t, "the policy says forbid: read only", reply.Error.Message)
	require.Empty(t, l.probe.of(run, "a"))
	require.WithinDuration(t, time.Now(), *l.row(t, run, "a").DecidedAt, time.Hour)
}

// A rule about a class is about the class of this very call: a tool that can do worse is not refused for it.
func TestRulesGoByTheClassOfTheCall(t *testing.T) {
	t.Parallel()
	l := setup(t)
	var err error
	l.tools, err = tool.NewSet(graded{l.probe.tool("mail", agent.External)})
	require.NoError(t, err)
	l.policy = &agent.Policy{Rules: []agent.PolicyRule{{Effects: []agent.EffectClass{agent.External}, Decision: policy.Forbid, Reason: "read only"}}}
	for n, outcome := range map[string]agent.Outcome{"1": agent.OutcomeCommitted, "2": agent.OutcomeFailed} {
		run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "mail", "args": {"n": `+n+`}}]}`)
		in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
		in.Refusal = &agent.Refusal{Decision: policy.Forbid, Reason: "read only"} // by the gravest class, which is all that the workflow knows
		reply, err := l.callTool(t, try{}, in)
		require.NoError(t, err)
		require.Equal(t, outcome, reply.Outcome, n)
	}
}

// graded is external for even numbers only.
type graded struct{ *probeTool }

func (graded) EffectOf(arguments json.RawMessage) agent.EffectClass {
	var in said
	if json.Unmarshal(arguments, &in) != nil || in.N%2 == 0 {
		return agent.External
	}
	return agent.Idempotent
}
