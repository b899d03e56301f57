package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"runledger/agent"
)

// MemoryEffects are [Effects] that keep their record in memory, for tests of tools without a worker: a clock that starts at
// noon on 1 January 2026 and is a second later at every Now, UUIDs that count, random numbers of a fixed seed, and requests
// that a function answers. [MemoryEffects.Again] is what a tool meets that is executed again.
type MemoryEffects struct {
	// Serve answers requests; without it they fail. It is not asked for what is on record.
	Serve func(ctx context.Context, req HTTPRequest) (HTTPResponse, error)

	mu     sync.Mutex
	asked  map[agent.CommandKind]int
	values map[string]any
	http   map[string]*exchange
}

type exchange struct {
	once     sync.Once
	request  string
	response HTTPResponse
	err      error
}

// Again starts the numbering of Now, UUID and Random over, as a second execution of the same command does. The record stays.
func (m *MemoryEffects) Again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = nil
}

// recall gives the value on record under the next number of a kind, or records the one that next makes of that number.
func recall[T any](m *MemoryEffects, kind agent.CommandKind, next func(n int) T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil {
		m.asked = map[agent.CommandKind]int{}
	}
	if m.values == nil {
		m.values = map[string]any{}
	}
	m.asked[kind]++
	id := agent.ValueEffectID(kind, m.asked[kind])
	if recorded, ok := m.values[id].(T); ok {
		return recorded
	}
	value := next(m.asked[kind])
	m.values[id] = value
	return value
}

// Now implements [Effects].
func (m *MemoryEffects) Now(context.Context) (time.Time, error) {
	return recall(m, agent.NowCommand, func(n int) time.Time {
		return time.Date(2026, 1, 1, 12, 0, n-1, 0, time.UTC)
	}), nil
}

// UUID implements [Effects].
func (m *MemoryEffects) UUID(context.Context) (string, error) {
	return recall(m, agent.UUIDCommand, func(n int) string {
		return fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
	}), nil
}

// Random implements [Effects].
func (m *MemoryEffects) Random(context.Context) (float64, error) {
	return recall(m, agent.RandomCommand, func(n int) float64 {
		return rand.New(rand.NewPCG(1, uint64(n))).Float64()
	}), nil
}

// HTTP implements [Effects]. Definite failures are on record like responses; after any other error Serve is asked again.
func (m *MemoryEffects) HTTP(ctx context.Context, effectID string, req HTTPRequest) (HTTPResponse, error) {
	if err := agent.CheckEffectID(effectID); err != nil {
		return HTTPResponse{}, err
	}
	if m.Serve == nil {
		return HTTPResponse{}, agent.Failed(agent.CodeToolFailed, "effect %s: there is nobody to answer requests: set Serve", effectID)
	}
	request, err := json.Marshal(req.Public())
	if err != nil {
		return HTTPResponse{}, agent.Failed(agent.CodeInvalidArguments, "effect %s: %w", effectID, err)
	}
	m.mu.Lock()
	if m.http == nil {
		m.http = map[string]*exchange{}
	}
	x := m.http[effectID]
	if x == nil {
		x = &exchange{request: string(request)}
		m.http[effectID] = x
	}
	m.mu.Unlock()
	if x.request != string(request) {
		return HTTPResponse{}, agent.Failed(agent.CodeMismatch, "effect %s is on record with another request", effectID)
	}
	x.once.Do(func() { x.response, x.err = m.Serve(ctx, req) })
	if known, ok := errors.AsType[*agent.Error](x.err); x.err != nil && (!ok || known.Fault != agent.FaultDefinite) {
		m.mu.Lock()
		if m.http[effectID] == x {
			delete(m.http, effectID)
		}
		m.mu.Unlock()
	}
	return x.response, x.err
}
