// Package api is the HTTP surface: it accepts runs, shows what the ledger holds, and streams it. Routes are chi's, errors
// are problem documents (RFC 9457), and openapi.yaml, written by hand, says what goes in and out; a test compares the two.
//
// A handler checks its input, asks the ledger through the small interfaces of this package, and writes the answer. It
// talks neither to Postgres nor to Temporal: accepting a run means that it is durable, not that it has begun, and
// waiting for one means reading its log.
//
// The package may import agent, sse, chi and uuid.
package api
