package workflows

import "go.temporal.io/sdk/workflow"

// changePlaces names in histories that a node which goes on waits for a place. Executions in which more than the limit of them had
// gone on before go on as they did.
const changePlaces = "places"

// places counts those that are taken.
func (e *execution) places() int {
	return e.working.Count() - e.waiting.Count() + e.goingOn.Count() - e.packed
}

// mayBegin reports whether there is a place for another node. Those that were parked and go on come first.
func (e *execution) mayBegin(ctx workflow.Context) bool {
	if e.working.Count()-e.waiting.Count()-e.packed >= e.limits.MaxParallel {
		return false
	}
	return e.places()+e.queued < e.limits.MaxParallel || !keepsPlaces(ctx)
}

// takePlace gives a node that was parked a place among those at work, as soon as there is one. Where the run fails meanwhile it does
// not go on; where it is stopped it does, to its end.
func (e *execution) takePlace(ctx workflow.Context, i int) {
	if e.places() >= e.limits.MaxParallel && keepsPlaces(ctx) {
		e.queued++
		_ = workflow.Await(ctx, func() bool { return e.failure == nil && e.places() < e.limits.MaxParallel })
		e.queued--
	}
	e.goingOn = e.goingOn.With(i)
}

// keepsPlaces is asked only where it makes a difference, so that most histories do without its marker.
func keepsPlaces(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, changePlaces, workflow.DefaultVersion, 1) != workflow.DefaultVersion
}
