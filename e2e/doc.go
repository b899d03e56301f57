// Package e2e tries Runledger as its users do: real processes, a real Postgres, a real Temporal, HTTP and SSE, and kills.
// It holds tests only.
package e2e
