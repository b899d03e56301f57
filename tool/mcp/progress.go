package mcp

import (
	"context"
	"fmt"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// progressReports leads progress notifications to the calls they belong to.
type progressReports struct {
	mu    sync.Mutex
	last  int64
	calls map[string]*progressReport
}

type progressReport struct {
	mu     sync.Mutex
	report func(string)
}

// open registers a call. Once the returned function has returned, report is not called any more.
func (p *progressReports) open(report func(string)) (token string, done func()) {
	r := &progressReport{report: report}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	token = fmt.Sprintf("runledger-%d", p.last)
	if p.calls == nil {
		p.calls = map[string]*progressReport{}
	}
	p.calls[token] = r
	return token, func() {
		p.mu.Lock()
		delete(p.calls, token)
		p.mu.Unlock()
		r.mu.Lock()
		r.report = nil
		r.mu.Unlock()
	}
}

func (p *progressReports) handle(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
	token, _ := n.Params.ProgressToken.(string)
	p.mu.Lock()
	r := p.calls[token]
	p.mu.Unlock()
	if r == nil {
		return
	}
	message := n.Params.Message
	if message == "" {
		if message = fmt.Sprintf("%g", n.Params.Progress); n.Params.Total > 0 {
			message = fmt.Sprintf("%g of %g", n.Params.Progress, n.Params.Total)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report != nil {
		r.report(clip(message, maxProgress))
	}
}
