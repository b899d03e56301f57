package sse

import "runledger/agent"

// ledgerProfile shows the log as it is, to operators.
func ledgerProfile() Profile {
	return Profile{Name: "ledger", Show: func(e agent.Event) agent.Event { return e }}
}
