package ledger_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// An external command is in doubt; the dispatch that was given up ends without knowing anything, and says so in the way
// the gate says it of a tool that can reconcile: Conclude(Dispatched). That is no word for another dispatch.
func TestLateUnknownOfAReconcilerIsNoRetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, doubtful := b.inDoubt(t, "a")
	from := b.last(t, run) + 1
	decided, err := b.Conclude(t.Context(), doubtful.conclude(1, agent.Dispatched, agent.Unknown(agent.CodeTimeout, "cut off")))
	require.NoError(t, err)
	require.Equal(t, agent.CommandInDoubt, decided.Row.State)
	require.Empty(t, b.types(t, run, from))
	require.Equal(t, agent.IsInDoubt, b.begin(t, command{run: run, id: "a", effect: agent.External, schedule: 2}).Verdict)
}

// A late conclusion settles an inner effect, and with it the tool that is in doubt because of it.
func TestLateConclusionOfAnEffectReleasesItsTool(t *testing.T) {
	t.Parallel()
	for _, state := range []agent.CommandState{agent.CommandFailed, agent.Released} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run, outer, inner := b.innerInDoubt(t)
			b.doubtBecauseOf(t, outer, inner)
			_, err := b.Conclude(t.Context(), inner.conclude(1, state, agent.Failed(agent.CodeToolFailed, "no")))
			require.NoError(t, err)
			require.Equal(t, state, b.row(t, inner).State)
			require.Equal(t, agent.Released, b.row(t, outer).State, "as after Commit and after Resolve")
			require.Len(t, b.news(t, run), 1, "the workflow waits for it")
		})
	}
}

// The inner effect is resolved before its tool has written that it is in doubt because of it.
func TestEffectResolvedBeforeItsToolIsInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, outer, inner := b.innerInDoubt(t)
	b.resolve(t, inner, agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"status": 200}`), By: "ada"})
	decided := b.doubtBecauseOf(t, outer, inner)
	require.Equal(t, agent.Released, decided.Row.State, "nothing is in doubt any more that it could be in doubt for")
}

// SettleCommand is an activity: it may be repeated when its reply is lost. In between a person says retry.
func TestRepeatedSettleLeavesARetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a", effect: agent.External}
	b.begins(t, a)
	call := agent.SettleCall{Call: a.call(), Reason: agent.Failed(agent.CodeInternal, "gone")}
	row, err := b.Settle(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, agent.CommandInDoubt, row.State)
	require.Equal(t, agent.Released, b.resolve(t, a, agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"}).State)
	row, err = b.Settle(t.Context(), call) // the reply to the first one was lost
	require.NoError(t, err)
	require.Equal(t, agent.Released, row.State, "a person has said that it may be dispatched again")
}

// A tool whose doubt was resolved is not put in doubt again under the same dispatch.
func TestSameDispatchInDoubtTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	outer := command{run: run, id: "a"}
	b.begins(t, outer)
	inner := command{run: run, id: "a/charge", effect: agent.External, inner: true, kind: agent.HTTPCommand}
	b.begins(t, inner)
	call := agent.SettleCall{Call: outer.call(), Reason: agent.Failed(agent.CodeInternal, "gone")}
	row, err := b.Settle(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, agent.CommandInDoubt, row.State)
	b.resolve(t, outer, agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"})
	told := b.news(t, run)
	require.Len(t, told, 1)
	// The next schedule ends before it begins and is settled.
	later := outer
	later.schedule = 2
	row, err = b.Settle(t.Context(), agent.SettleCall{Call: later.call(), Reason: agent.Failed(agent.CodeInternal, "gone")})
	require.NoError(t, err)
	require.False(t, row.State == agent.CommandInDoubt && row.DispatchNo <= told[0].DispatchNo,
		"in doubt again as dispatch %d, which the workflow was told is resolved", row.DispatchNo)
}
