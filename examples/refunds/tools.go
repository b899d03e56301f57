package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"runledger/agent"
	"runledger/tool"
)

// shop knows orders. Yours would be a client of a service.
type shop map[string]order

type order struct {
	Order  string `json:"order"`
	Cents  int    `json:"cents"`
	Status string `json:"status"`
}

type orderIn struct {
	Order string `json:"order" jsonschema:"the number of the order"`
}

// lookup reads and changes nothing, so that a call whose answer was lost is simply made again.
func (s shop) lookup() tool.Tool {
	return tool.MustNew(tool.Spec{
		Name:        "order_lookup",
		Description: "Looks an order up: what was paid, and whether it was delivered.",
		Effect:      agent.Idempotent,
		Timeout:     5 * time.Second,
	}, func(_ context.Context, in orderIn, _ tool.Call) (order, error) {
		o, ok := s[in.Order]
		if !ok {
			return order{}, agent.Failed(agent.CodeToolFailed, "there is no order %s", in.Order)
		}
		return o, nil
	})
}

// provider moves money. Like real ones it takes an idempotency key, pays once for each, and can be asked what became of a key.
type provider struct {
	mu   sync.Mutex
	paid map[string]receipt
}

type refundIn struct {
	Order string `json:"order" jsonschema:"the number of the order"`
	Cents int    `json:"cents" jsonschema:"how much to pay back"`
	// CardToken is a secret: whatever the model writes here, no event and no stream shows it.
	CardToken string `json:"card_token,omitempty"`
}

type receipt struct {
	Receipt string `json:"receipt"`
	Cents   int    `json:"cents"`
}

func (p *provider) pay(key string, in refundIn) receipt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, again := p.paid[key]; again {
		return r
	}
	r := receipt{Receipt: fmt.Sprintf("R-%s-%d", in.Order, len(p.paid)+1), Cents: in.Cents}
	p.paid[key] = r
	return r
}

func (p *provider) find(key string) (receipt, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.paid[key]
	return r, ok
}

// refunds are the payments that were made, one for each key.
func (p *provider) refunds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paid)
}
