package activities

import (
	"context"
	"errors"
	"time"

	"runledger/agent"
)

// ending is how the gate ends a dispatch without a result.
type ending struct {
	state      agent.CommandState
	reason     *agent.Error
	retryAfter time.Duration
	// lost: the command belongs to somebody else already; there is nothing to write.
	lost bool
}

// judge decides what the failure of an effect means for its command: by why its context ended, if it did, then by what is
// known about the effect, then by the effect class.
func judge(err, cause error, effect agent.EffectClass, dispatchNo int) ending {
	stopped := cause != nil && !errors.Is(cause, context.Canceled)
	reason, typed := agent.AsError(err)
	if !typed {
		reason = agent.Unknown(agent.CodeToolFailed, "%w", err)
		if effect == agent.Deterministic && !stopped {
			reason.Fault = agent.FaultDefinite // it would fail the same way again
		}
	}
	copied := *reason.Cut(agent.MaxErrorBytes) // a tool may make its errors itself
	reason = &copied
	stopped = stopped && reason.Fault != agent.FaultDefinite
	// What may have taken place outside cannot be taken back or repeated.
	unsafe := effect == agent.External && reason.Fault != agent.FaultTransient
	switch {
	case stopped && errors.Is(cause, errStale):
		return ending{lost: true, reason: reason}
	case reason.Code == agent.CodeInDoubt && reason.Fault == agent.FaultUnknown:
		return ending{state: agent.CommandInDoubt, reason: reason} // an effect within it is, whatever the command's own class
	case stopped && unsafe:
		return ending{state: agent.CommandInDoubt, reason: &agent.Error{Code: agent.CodeInDoubt, Message: cause.Error() + "; " + reason.Message}}
	case stopped && errors.Is(cause, errCancelled):
		return ending{state: agent.CommandAborted, reason: &agent.Error{Code: agent.CodeCancelled, Message: cause.Error()}}
	case stopped && errors.Is(cause, errDeadline):
		return ending{state: agent.Released, reason: &agent.Error{Code: agent.CodeTimeout, Message: cause.Error()}, retryAfter: backoff(dispatchNo)}
	case stopped && errors.Is(cause, errShutdown):
		return ending{state: agent.Released, reason: &agent.Error{Code: agent.CodeShutdown, Message: cause.Error()}}
	case reason.Fault == agent.FaultDefinite:
		return ending{state: agent.CommandFailed, reason: reason}
	case unsafe:
		return ending{state: agent.CommandInDoubt, reason: reason}
	}
	return ending{state: agent.Released, reason: reason, retryAfter: max(reason.RetryAfter, backoff(dispatchNo))}
}

func backoff(dispatchNo int) time.Duration {
	return min(firstBackoff<<min(dispatchNo-1, 10), longestBackoff)
}
