package activities_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// A worker that was frozen between begin and effect wakes up in a world that may have gone on without it.
func TestProcessThatStoodStillAfterBegin(t *testing.T) {
	t.Parallel()
	const timeout = 30 * time.Second
	for name, c := range map[string]struct {
		still     time.Duration
		meanwhile func(row *agent.CommandRow)
		effects   int
		took      time.Duration // of the effect, until its deadline
		state     agent.CommandState
		code      agent.Code // of the activity's error
	}{
		"not for long":           {still: 14 * time.Second, effects: 1, took: 16 * time.Second, state: agent.CommandInDoubt},
		"nobody missed it":       {still: 20 * time.Second, effects: 1, took: 10 * time.Second, state: agent.CommandInDoubt},
		"its deadline is over":   {still: 40 * time.Second, state: agent.Released, code: agent.CodeTimeout},
		"it was called in doubt": {still: 20 * time.Second, meanwhile: func(row *agent.CommandRow) { row.State = agent.CommandInDoubt }, state: agent.Released, code: agent.CodeLeased},
		"a person said retry": {still: 20 * time.Second, meanwhile: func(row *agent.CommandRow) {
			row.DispatchNo, row.Owner.Attempt, row.LeaseUntil = 2, 2, time.Now().Add(time.Hour)
		}, state: agent.Dispatched, code: agent.CodeSuperseded},
		"a person said what became of it": {still: 20 * time.Second, meanwhile: func(row *agent.CommandRow) { row.State = agent.Committed }, state: agent.Committed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, stood := newMemory(agent.External), false
				m.at = func(_ context.Context, at agent.Boundary, _ agent.Call) {
					if at != agent.AfterBegin || stood {
						return
					}
					stood = true
					time.Sleep(c.still)
					if c.meanwhile != nil {
						m.set(func() { c.meanwhile(m.row) })
					}
				}
				e := inBubble(t, m, try{}, timeout, 0, stopped)
				require.Equal(t, c.effects, e.effects)
				require.Equal(t, c.took, e.took)
				require.Equal(t, c.state, m.row.State)
				if c.code == "" {
					require.NoError(t, e.err)
					return
				}
				requireCode(t, e.err, c.code, c.code != agent.CodeSuperseded)
			})
		})
	}
}

// The reply to begin is late: time that it took is not the effect's.
func TestDeadlineCountsFromTheQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(agent.Idempotent)
		m.at = func(_ context.Context, at agent.Boundary, _ agent.Call) {
			if at == agent.AfterBegin {
				time.Sleep(12 * time.Second)
			}
		}
		e := inBubble(t, m, try{}, 10*time.Second, 0, stopped)
		requireCode(t, e.err, agent.CodeTimeout, true)
		require.Zero(t, e.effects, "the deadline passed before it began")
		require.Equal(t, agent.Released, m.row.State)
	})
}
