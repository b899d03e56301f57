// Package agent holds the words of Runledger: runs, plans, nodes, commands, events, the state of a run and the fold that
// derives it, and the contracts between the workflow and its activities.
//
// It is pure: standard library only, no clock, no randomness, no package-level variables, so that workflow code may call
// everything in it. Every other package may import it; it imports none of them.
package agent
