// Package activities executes the commands of runs: one file per activity, and commit.go, the only place where an effect is
// executed and committed.
//
// It may import agent, policy, model, tool and Temporal's activity package; it sees the ledger through the small interfaces
// declared in activities.go.
package activities
