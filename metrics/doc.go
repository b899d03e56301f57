// Package metrics shows what a process of Runledger does, and what its database holds that is not over, in the text format of
// Prometheus. No name or value that a user brings becomes a label, so that there are few series, however much is done.
//
// It may import agent, ledger and sse, and is the only package that knows Prometheus.
package metrics
