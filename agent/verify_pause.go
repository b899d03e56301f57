package agent

// pauseStory is what the events say of the pause that a run is in.
type pauseStory struct {
	began *Event
	// discarded are the newest attempts, by command, that the pause has seen come to nothing.
	discarded map[string]int
}

// walkPause: between run_paused and run_unpaused, or the end of the run, nothing begins. What was at work ends; the effects that a
// tool at work asks for are part of that.
func (v *verifier) walkPause(e *Event) {
	p := v.paused
	switch e.Type {
	case RunPaused:
		if p != nil {
			v.differAt(CheckPause, e, "run_unpaused after "+describe(p.began), describe(e))
		}
		v.paused = &pauseStory{began: e, discarded: map[string]int{}}
		return
	case RunUnpaused:
		if p == nil {
			v.differAt(CheckPause, e, "run_paused before it", "none")
		}
		v.paused = nil
		return
	case RunCompleted, RunFailed, RunCancelled:
		v.paused = nil
		return
	}
	if _, inner := OwnerCommandID(e.CommandID); p == nil || inner {
		return
	}
	switch e.Type {
	case PlanStarted, NodeStarted, CommandEmitted, ApprovalRequested:
		v.differAt(CheckPause, e, "nothing to begin after "+describe(p.began), describe(e))
	case CommandCommitted, CommandFailedType, CommandAbortType, CommandDoubtType, AttemptDiscarded:
		if last, seen := p.discarded[e.CommandID]; seen && e.Attempt > last {
			v.differAt(CheckPause, e, "no attempt to begin after "+describe(p.began), describe(e))
		}
		if e.Type == AttemptDiscarded {
			p.discarded[e.CommandID] = e.Attempt
		}
	default:
	}
}

// checkPaused: the run's row says that it is paused while its events do.
func (v *verifier) checkPaused() {
	switch {
	case v.paused != nil && v.Run.Pause == nil:
		v.differAt(CheckPause, v.paused.began, "a run that is paused", "status "+string(v.Run.Status))
	case v.paused == nil && v.Run.Pause != nil:
		v.differ(Difference{Check: CheckPause, Expected: "a run that is not paused", Found: "one that says it was paused by " + quote(v.Run.Pause.By)})
	}
}
