// Package dispatch brings intents from the ledger's outbox to Temporal, in order per run and at least once, gives queued
// runs their turn, watches over runs that have gone quiet, and removes what is kept no longer. It runs in every worker; on each database one is at work at a
// time. It may import agent, ledger and Temporal's client.
package dispatch
