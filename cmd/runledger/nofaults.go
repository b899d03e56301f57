//go:build !faults

package main

import (
	"context"

	"runledger/agent"
)

// boundary is nothing: see faults.go.
func boundary() func(context.Context, agent.Boundary, agent.Call) { return nil }
