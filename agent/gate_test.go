package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

var allStates = []agent.CommandState{agent.Dispatched, agent.Released, agent.Fenced, agent.Committed, agent.CommandFailed, agent.CommandAborted, agent.CommandInDoubt}

// executes reports whether a verdict lets the effect be executed.
func executes(v agent.Verdict) bool {
	return v == agent.MayExecute || v == agent.MayExecuteAgain || v == agent.MayProceed
}

// TestAdmitTable goes through every state, every relation of the asking dispatch to the row's owner, both sides of the
// lease, both sides of the dispatch limit and every class of effect, and holds each answer to a rule that is written here
// a second time, as sentences.
func TestAdmitTable(t *testing.T) {
	t.Parallel()
	owner := agent.Dispatch{Epoch: 3, Schedule: 5, Attempt: 2}
	relations := map[string]agent.Dispatch{
		"an older epoch":                         {Epoch: 2, Schedule: 9, Attempt: 9},
		"an older schedule":                      {Epoch: 3, Schedule: 4, Attempt: 9},
		"an older attempt":                       {Epoch: 3, Schedule: 5, Attempt: 1},
		"the owner":                              owner,
		"a newer attempt":                        {Epoch: 3, Schedule: 5, Attempt: 3},
		"a newer schedule":                       {Epoch: 3, Schedule: 6, Attempt: 1},
		"a newer epoch that counts from 1 again": {Epoch: 4, Schedule: 1, Attempt: 1},
	}
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for relation, d := range relations {
		for _, state := range allStates {
			for _, effect := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
				for _, leased := range []bool{true, false} {
					for _, dispatches := range []int{1, agent.MaxDispatches} {
						name := fmt.Sprintf("%s meets %s %s, leased %v, dispatched %d times", relation, state, effect, leased, dispatches)
						row := &agent.CommandRow{State: state, Effect: effect, Owner: owner, DispatchNo: dispatches, InputHash: "h", LeaseUntil: now}
						if leased {
							row.LeaseUntil = now.Add(time.Nanosecond)
						}
						older := relation == "an older epoch" || relation == "an older schedule" || relation == "an older attempt"
						var want agent.Verdict
						switch state {
						case agent.Committed:
							want = agent.Inject
						case agent.CommandFailed:
							want = agent.InjectFailure
						case agent.CommandInDoubt:
							want = agent.IsInDoubt
						case agent.CommandAborted:
							want = agent.InjectFailure
							if d.Epoch > owner.Epoch {
								want = agent.MayExecute
							}
						case agent.Fenced:
							want = agent.MayExecute
							if older || relation == "the owner" || relation == "a newer attempt" {
								want = agent.Refuse
							}
						case agent.Released:
							switch {
							case older:
								want = agent.Refuse
							case dispatches >= agent.MaxDispatches:
								want = agent.GiveUp
							default:
								want = agent.MayExecute
							}
						case agent.Dispatched:
							switch {
							case relation == "the owner":
								want = agent.MayProceed
							case older:
								want = agent.Refuse
							case leased:
								want = agent.MustWait
							case effect == agent.External:
								want = agent.MustDoubt
							case dispatches >= agent.MaxDispatches:
								want = agent.GiveUp
							default:
								want = agent.MayExecuteAgain
							}
						}
						require.Equal(t, want, agent.Admit(row, agent.Ask{Dispatch: d, InputHash: "h"}, now), name)
						require.Equal(t, agent.Mismatch, agent.Admit(row, agent.Ask{Dispatch: d, InputHash: "other"}, now), name)
					}
				}
			}
		}
	}
	require.Equal(t, agent.MayExecute, agent.Admit(nil, agent.Ask{Dispatch: owner, InputHash: "h"}, now))
	require.Equal(t, agent.MayExecute, agent.Admit(&agent.CommandRow{State: agent.Fenced, Owner: owner}, agent.Ask{Dispatch: agent.Dispatch{Epoch: 3, Schedule: 6, Attempt: 1}, InputHash: "h"}, now),
		"a fence knows no input")
	require.Equal(t, agent.Refuse, agent.Admit(&agent.CommandRow{State: "a state of a later release", Owner: owner}, agent.Ask{Dispatch: owner, InputHash: "h"}, now), "the gate fails closed")
}

// R0-3, R1-11, R2-5: what is committed is never executed again; an external effect that was dispatched neither.
func TestAdmitNeverRepeats(t *testing.T) {
	t.Parallel()
	dispatch := rapid.Custom(func(t *rapid.T) agent.Dispatch {
		return agent.Dispatch{Epoch: rapid.IntRange(1, 3).Draw(t, "epoch"), Schedule: rapid.IntRange(1, 3).Draw(t, "schedule"),
			Attempt: rapid.Int32Range(1, 3).Draw(t, "attempt")}
	})
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		row := &agent.CommandRow{State: rapid.SampledFrom(allStates).Draw(t, "state"), Owner: dispatch.Draw(t, "owner"), InputHash: "h",
			Effect:     rapid.SampledFrom([]agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External}).Draw(t, "effect"),
			DispatchNo: rapid.IntRange(0, 2*agent.MaxDispatches).Draw(t, "dispatches"),
			LeaseUntil: now.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, "lease")) * time.Second),
			Deadline:   now.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, "deadline")) * time.Second)}
		row.BaseNo = rapid.IntRange(0, row.DispatchNo).Draw(t, "base")
		d := dispatch.Draw(t, "dispatch")
		ask := agent.Ask{Dispatch: d, InputHash: rapid.SampledFrom([]string{"h", "i"}).Draw(t, "hash"), Reconciles: rapid.Bool().Draw(t, "reconciles"),
			VoidNo: rapid.IntRange(0, row.DispatchNo).Draw(t, "void")}
		v := agent.Admit(row, ask, now)
		if row.State == agent.Committed || row.State == agent.CommandFailed || row.State == agent.CommandInDoubt {
			require.False(t, executes(v), "decided, and executed again")
		}
		void := ask.VoidNo == row.DispatchNo && !now.Before(row.Deadline)
		if row.State == agent.Dispatched && row.Effect == agent.External && d != row.Owner && !void {
			require.False(t, executes(v), "external, dispatched, and executed again")
		}
		if row.State == agent.Dispatched && row.Effect != agent.External {
			require.NotContains(t, []agent.Verdict{agent.MustDoubt, agent.MustReconcile}, v, "only an external effect is ever in doubt")
		}
		if d.Before(row.Owner) {
			require.False(t, executes(v), "an older dispatch got past a newer one")
		}
		if row.State == agent.Dispatched && now.Before(row.LeaseUntil) && d != row.Owner {
			require.False(t, executes(v), "two at work at once")
		}
		if row.DispatchNo-row.BaseNo >= agent.MaxDispatches && (row.State == agent.Released || row.State == agent.Dispatched && d != row.Owner) {
			require.False(t, executes(v), "dispatched more often than allowed")
		}
	})
}

// A lost external dispatch is reconciled where that is possible, and dispatched again only on the tool's conclusive word, given
// after its deadline.
func TestAdmitReconciles(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	lost := agent.CommandRow{State: agent.Dispatched, Effect: agent.External, InputHash: "h", DispatchNo: 2, Owner: agent.Dispatch{Epoch: 1, Schedule: 1, Attempt: 1},
		LeaseUntil: now.Add(-time.Second), Deadline: now}
	for name, c := range map[string]struct {
		change func(*agent.CommandRow, *agent.Ask)
		want   agent.Verdict
	}{
		"cannot be reconciled":      {func(*agent.CommandRow, *agent.Ask) {}, agent.MustDoubt},
		"can be":                    {func(_ *agent.CommandRow, a *agent.Ask) { a.Reconciles = true }, agent.MustReconcile},
		"its lease is not over":     {func(r *agent.CommandRow, a *agent.Ask) { a.Reconciles, r.LeaseUntil = true, now.Add(1) }, agent.MustWait},
		"found void":                {func(_ *agent.CommandRow, a *agent.Ask) { a.Reconciles, a.VoidNo = true, 2 }, agent.MayExecuteAgain},
		"found void too early":      {func(r *agent.CommandRow, a *agent.Ask) { a.Reconciles, a.VoidNo, r.Deadline = true, 2, now.Add(1) }, agent.MustReconcile},
		"an earlier one found void": {func(_ *agent.CommandRow, a *agent.Ask) { a.VoidNo = 1 }, agent.MustDoubt},
		"void, and often enough": {func(r *agent.CommandRow, a *agent.Ask) {
			r.DispatchNo, a.VoidNo = agent.MaxDispatches, agent.MaxDispatches
		}, agent.GiveUp},
		"void, and reopened": {func(r *agent.CommandRow, a *agent.Ask) {
			r.DispatchNo, r.BaseNo, a.VoidNo = agent.MaxDispatches, 1, agent.MaxDispatches
		}, agent.MayExecuteAgain},
		"idempotent": {func(r *agent.CommandRow, a *agent.Ask) { r.Effect, a.Reconciles = agent.Idempotent, true }, agent.MayExecuteAgain},
		"settled":    {func(r *agent.CommandRow, a *agent.Ask) { r.State, a.Reconciles = agent.CommandInDoubt, true }, agent.IsInDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row, ask := lost, agent.Ask{Dispatch: agent.Dispatch{Epoch: 1, Schedule: 1, Attempt: 2}, InputHash: "h"}
			c.change(&row, &ask)
			require.Equal(t, c.want, agent.Admit(&row, ask, now))
		})
	}
}

func TestTurnTool(t *testing.T) {
	t.Parallel()
	model, index, ok := agent.TurnTool(agent.TurnToolCommandID("main", 3, 12))
	require.True(t, ok)
	require.Equal(t, "main#3", model)
	require.Equal(t, 12, index)
	for _, id := range []string{"a", "a~2", "main#1", "main#1.x", "main#1.-1", "plan", ""} {
		_, _, ok := agent.TurnTool(id)
		require.False(t, ok, id)
	}
}

func TestDispatchOrder(t *testing.T) {
	t.Parallel()
	d := func(epoch, schedule int, attempt int32) agent.Dispatch {
		return agent.Dispatch{Epoch: epoch, Schedule: schedule, Attempt: attempt}
	}
	ordered := []agent.Dispatch{d(1, 1, 1), d(1, 1, 2), d(1, 2, 1), d(1, 10, 1), d(2, 1, 1), d(2, 1, 3), d(10, 1, 1)}
	for i, a := range ordered {
		for j, b := range ordered {
			require.Equal(t, i < j, a.Before(b), "%v before %v", a, b)
		}
	}
}

func TestCommandIDs(t *testing.T) {
	t.Parallel()
	require.Equal(t, "main#1", agent.TurnCommandID(agent.MainNodeID, 1))
	require.Equal(t, "main#12.0", agent.TurnToolCommandID(agent.MainNodeID, 12, 0))
	require.Equal(t, "a", agent.RetryCommandID("a", 1))
	require.Equal(t, "a~2", agent.RetryCommandID("a", 2))
	for id, node := range map[string]string{"a": "a", "a~2": "a", "main#1": "main", "main#1.3": "main", "plan#2": "plan", "a/get": "a", "main#1.0/get": "main"} {
		require.Equal(t, node, agent.CommandNodeID(id))
	}
	require.Equal(t, "r/a~2", agent.IdempotencyKey("r", "a~2"), "a node-level retry is another effect; an attempt is not")
}
