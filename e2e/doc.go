// Package e2e tries Runledger as its users do: real processes, a real Postgres, a real Temporal, HTTP and SSE, and kills.
// It holds tests only, as do the folders faults, which breaks everything at every boundary of the commit gate, and streams, which looks
// at what clients see. The program in folder soak does the same at random, for as long as it is asked to.
package e2e
