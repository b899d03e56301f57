package sse

import "runledger/agent"

// The names that the react profile gives to events. Other events keep the ledger's name.
const (
	workPlan     agent.EventType = "work_plan"
	stepStart    agent.EventType = "step_start"
	stepEnd      agent.EventType = "step_end"
	thought      agent.EventType = "thought"
	act          agent.EventType = "act"
	observe      agent.EventType = "observe"
	complete     agent.EventType = "complete"
	thoughtDelta agent.EventType = "thought_delta"
	textDelta    agent.EventType = "text_delta"
)

// reactProfile shows a run as a loop of thoughts, acts and observations. What it tells of an event is what the run profile
// tells of it; only the names differ, and a step has one kind of end, which says how it ended.
func reactProfile() Profile {
	return Profile{Name: "react", Show: showReact, OutputEvent: reactOutput}
}

func showReact(e agent.Event) agent.Event {
	e = showRun(e)
	switch e.Type {
	case planCreated:
		e.Type = workPlan
	case stepStarted:
		e.Type = stepStart
	case stepCompleted:
		e.Type, e.Data = stepEnd, withOutcome(e.Data, "finished")
	case stepFailed:
		e.Type, e.Data = stepEnd, withOutcome(e.Data, "failed")
	case toolInvoked:
		e.Type = act
	case toolCompleted:
		e.Type = observe
	case chatCompleted:
		e.Type = thought
	case agent.RunCompleted:
		e.Type = complete
	}
	return e
}

func withOutcome(object []byte, outcome string) []byte {
	of, _ := members(nil, object)
	return appendObject(nil, append(of, member{[]byte("outcome"), appendQuoted(nil, outcome)}))
}

// reactOutput leaves the arguments of tool calls out: act shows them, whole and without secrets.
func reactOutput(channel string) string {
	switch channel {
	case "text":
		return string(textDelta)
	case "thinking":
		return string(thoughtDelta)
	case agent.ProgressChannel:
		return string(progressDelta)
	}
	return ""
}
