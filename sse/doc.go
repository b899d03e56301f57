// Package sse shows the ledger as Server-Sent Events: the wire format, the profiles that say under which names and with
// which data an event is shown, the rules for where a stream begins, and the loop that replays a log and then follows it.
//
// A stream is a reader and nothing more: it subscribes to the wake-up first, then reads, then waits. A client that goes
// away stops nothing, a client that is slow costs only its own time, and a client that comes back says the number of the
// last event it has and misses none.
//
// The package knows events and net/http. It may import agent and the standard library; it knows no database, no router
// and no API. It sees the ledger through [Log].
package sse
