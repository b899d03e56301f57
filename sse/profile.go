package sse

import "runledger/agent"

// Profile is a view of the ledger's log: the same events with the same numbers, under the names and with the data that
// its readers expect. A profile is one file: a function that returns it, and a line in [Profiles].
type Profile struct {
	// Name selects the profile, as in ?profile=run.
	Name string
	// Show gives the event that the profile's readers see. Every event of the ledger is shown, under its own number. Show
	// depends on nothing but the event, so that a client which resumes anywhere gets the bytes it would have got before.
	Show func(agent.Event) agent.Event
	// OutputEvent names the frame of a piece of model output by its channel while it arrives, "" to leave the channel out.
	// Nil when the profile shows no output before it is committed.
	OutputEvent func(channel string) string
}

// Profiles are the profiles that there are, the default first.
func Profiles() []Profile {
	return []Profile{runProfile(), reactProfile(), ledgerProfile()}
}

// FindProfile finds a profile by name; the empty name means the default.
func FindProfile(name string) (Profile, bool) {
	for _, p := range Profiles() {
		if name == "" || p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}
