package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"runledger/agent"
)

// effectContext is the context of an effect. A failed heartbeat ends the activity's context, so it is not derived from it:
// the gate decides by itself when an effect has to stop.
func (a *Activities) effectContext(ctx context.Context, c command, begun agent.Begun) (effect context.Context, end func()) {
	effect, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		deadline := time.NewTimer(begun.Remaining)
		defer deadline.Stop()
		renew := time.NewTicker(renewEvery)
		defer renew.Stop()
		ended, stopping, leaving := ctx.Done(), activity.GetWorkerStopChannel(ctx), a.stopping
		var grace <-chan time.Time
		stop := func() { // whoever says so first
			stopping, leaving = nil, nil
			grace = time.After(shutdownGrace)
		}
		for {
			select {
			case <-effect.Done():
				return
			case <-deadline.C:
				cancel(errDeadline)
			case <-ended:
				ended = nil
				if why := endOf(ctx); why != nil {
					cancel(why)
				}
			case <-stopping:
				stop()
			case <-leaving:
				stop()
			case <-grace:
				cancel(errShutdown)
			case <-c.stops:
				a.renew(effect, c, begun, cancel)
			case <-renew.C:
				a.renew(effect, c, begun, cancel)
			}
		}
	}()
	return effect, func() { cancel(nil); <-done }
}

// renew prolongs the lease and looks where the run stands. A ledger that does not answer ends nothing: the lease may run
// out, and the commit will tell.
func (a *Activities) renew(ctx context.Context, c command, begun agent.Begun, cancel context.CancelCauseFunc) {
	ctx, stop := context.WithTimeout(ctx, renewEvery)
	defer stop()
	status, owned, err := a.ledger.Renew(ctx, c.call.RunID, c.call.CommandID, c.call.Epoch, begun.DispatchNo)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			a.log.WarnContext(ctx, "renew failed", "run_id", c.call.RunID, "command_id", c.call.CommandID, "error", err)
		}
	case !owned:
		cancel(errStale)
	case status == agent.Cancelling:
		cancel(errCancelled)
	}
}

// heartbeat tells Temporal that the activity lives. The first one is not sent at once: most activities are over before, Temporal counts
// the time to the first from the start, and each is a request. It is recorded on a context that a failed call
// cannot end, since one lost heartbeat must not look like a cancellation for ever after.
func heartbeat(ctx context.Context) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(heartbeatEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				activity.RecordHeartbeat(ctx)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-stopped }
}
