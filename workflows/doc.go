// Package workflows holds AgentExecution, the Temporal workflow of a run, one file per node kind.
//
// It holds no content: prompts, arguments and results stay in the ledger, and what crosses Temporal are ids, sizes, hashes
// and the few facts it branches on. It may import agent, policy and Temporal's workflow packages; never activities, a
// ledger, a client or a vendor's SDK. Everything in it is deterministic: no clock, no randomness, no map order, no
// goroutines, no package variables, and nodes are dispatched by a switch over named functions.
package workflows
