package activities

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"pgregory.net/rapid"

	"runledger/agent"
)

// ends is what judge made of a failure, as far as the record shows it.
func (e ending) ends() string {
	if e.lost {
		return "lost"
	}
	return string(e.state) + " " + string(e.reason.Code)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	definite := agent.Failed(agent.CodeToolFailed, "no")
	transient := agent.Transient(agent.CodeToolFailed, "busy")
	unknown := agent.Unknown(agent.CodeToolFailed, "cut off")
	untyped := errors.New("broken")
	const (
		failed, aborted  = "failed TOOL_FAILED", "aborted CANCELLED"
		again, doubt     = "released TOOL_FAILED", "in_doubt TOOL_FAILED"
		stoppedInDoubt   = "in_doubt COMMAND_IN_DOUBT"
		timeout, restart = "released TIMEOUT", "released WORKER_SHUTDOWN"
		lost             = "lost"
	)
	for _, c := range []struct {
		name  string
		err   error
		cause error
		// what it means for a deterministic, an idempotent and an external effect
		det, idem, ext string
	}{
		{"definite", definite, nil, failed, failed, failed},
		{"transient", transient, nil, again, again, again},
		{"unknown", unknown, nil, again, again, doubt},
		{"untyped", untyped, nil, failed, again, doubt},
		{"wrapped", fmt.Errorf("tool: %w", definite), nil, failed, failed, failed},

		{"definite, then cancelled", definite, errCancelled, failed, failed, failed},
		{"transient, cancelled", transient, errCancelled, aborted, aborted, aborted},
		{"unknown, cancelled", unknown, errCancelled, aborted, aborted, stoppedInDoubt},
		{"untyped, cancelled", context.Canceled, errCancelled, aborted, aborted, stoppedInDoubt},

		{"definite, past the deadline", definite, errDeadline, failed, failed, failed},
		{"transient, past the deadline", transient, errDeadline, timeout, timeout, timeout},
		{"unknown, past the deadline", unknown, errDeadline, timeout, timeout, stoppedInDoubt},
		{"untyped, past the deadline", context.DeadlineExceeded, errDeadline, timeout, timeout, stoppedInDoubt},

		{"definite, at shutdown", definite, errShutdown, failed, failed, failed},
		{"transient, at shutdown", transient, errShutdown, restart, restart, restart},
		{"unknown, at shutdown", unknown, errShutdown, restart, restart, stoppedInDoubt},
		{"untyped, at shutdown", context.Canceled, errShutdown, restart, restart, stoppedInDoubt},

		{"definite, overtaken", definite, errStale, failed, failed, failed},
		{"transient, overtaken", transient, errStale, lost, lost, lost},
		{"unknown, overtaken", unknown, errStale, lost, lost, lost},
		{"untyped, overtaken", context.Canceled, errStale, lost, lost, lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.det, judge(c.err, c.cause, agent.Deterministic, 1).ends(), "deterministic")
			require.Equal(t, c.idem, judge(c.err, c.cause, agent.Idempotent, 1).ends(), "idempotent")
			require.Equal(t, c.ext, judge(c.err, c.cause, agent.External, 1).ends(), "external")
		})
	}
}

func TestJudgeNeverRepeatsWhatMayHaveTakenPlace(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fault := rapid.SampledFrom([]agent.Fault{agent.FaultDefinite, agent.FaultTransient, agent.FaultUnknown, "", "odd"}).Draw(t, "fault")
		var err error = &agent.Error{Code: agent.CodeToolFailed, Message: "x", Fault: fault}
		if rapid.Bool().Draw(t, "untyped") {
			err, fault = errors.New("x"), agent.FaultUnknown
		}
		cause := rapid.SampledFrom([]error{nil, errCancelled, errStale, errDeadline, errShutdown, context.Canceled}).Draw(t, "cause")
		class := rapid.SampledFrom([]agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External}).Draw(t, "class")
		no := rapid.IntRange(1, 100).Draw(t, "dispatch")
		before := err.Error()
		end := judge(err, cause, class, no)
		require.Equal(t, before, err.Error())
		if class == agent.External && fault != agent.FaultDefinite && fault != agent.FaultTransient {
			require.True(t, end.lost || end.state == agent.CommandInDoubt, "%+v", end)
		}
		if class != agent.External {
			require.NotEqual(t, agent.CommandInDoubt, end.state, "what may be repeated is never in doubt")
		}
		require.GreaterOrEqual(t, end.retryAfter, time.Duration(0))
		require.LessOrEqual(t, end.retryAfter, longestBackoff)
		require.NotEmpty(t, end.reason.Code)
	})
}

func TestJudgeDoesNotChangeTheErrorOfATool(t *testing.T) {
	t.Parallel()
	shared := agent.Failed(agent.CodeToolFailed, "no") // as a tool that returns one value for ever
	end := judge(shared, nil, agent.External, 1)
	end.reason.NodeID, end.reason.CommandID = "a", "a"
	require.Empty(t, shared.NodeID)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for no, want := range map[int]time.Duration{1: 250 * time.Millisecond, 2: 500 * time.Millisecond, 3: time.Second, 5: 4 * time.Second,
		6: 8 * time.Second, 7: 10 * time.Second, 1000: 10 * time.Second} {
		require.Equal(t, want, backoff(no), no)
	}
}

func TestCrossing(t *testing.T) {
	t.Parallel()
	plain := errors.New("connection refused")
	for name, c := range map[string]struct {
		err   error
		code  string // "" for an error that crosses as it is
		final bool
	}{
		"a definite failure":    {fmt.Errorf("begin: %w", agent.Failed(agent.CodeStaleEpoch, "old")), "STALE_EPOCH", true},
		"a transient failure":   {agent.Transient(agent.CodeModelUnavailable, "busy"), "", false},
		"a run that is not":     {fmt.Errorf("begin: %w", &agent.NotFoundError{What: "run", ID: "x"}), "STALE_EPOCH", true},
		"a ledger that is away": {plain, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crossed := crossing(c.err)
			if c.code == "" {
				require.Equal(t, c.err, crossed)
				return
			}
			var app *temporal.ApplicationError
			require.ErrorAs(t, crossed, &app)
			require.Equal(t, c.code, app.Type())
			require.Equal(t, c.final, app.NonRetryable())
		})
	}
	require.NoError(t, crossing(nil))
}
