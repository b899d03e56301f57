// Package ledger is the Postgres projection of every run: events, commands, checkpoints, messages, the outbox of intents
// and the tool catalogue. It is the only package that knows SQL and pgx; apart from them it imports agent.
//
// Two rules hold everything together. Numbers come from a counter on the conversation's row, locked in the event's own
// transaction, so that commit order is number order and there are no gaps. And every transaction of a worker locks in the
// order run, conversation, command, and requires the run's epoch, so that an execution that has been replaced can write
// nothing.
//
// The gate's transactions are decided by what the process remembers of the run, where it can, and written in one round trip
// if that still holds; else they are done again the general way. See memory.go.
package ledger
