package activities

import (
	"context"
	"sync"
	"time"

	"runledger/agent"
)

const (
	// progressEvery is between two reports of a call that are shown; of those in between the last one is kept.
	progressEvery = time.Second
	// maxProgressReports is how many reports of one dispatch are shown, and maxProgressBytes how much of each.
	maxProgressReports = 500
	maxProgressBytes   = 500
)

// liveProgress shows how far a tool's call has come while it is at work, the way model output is shown: it is no part of the log,
// and the result replaces it. A call that reports nothing costs nothing.
type liveProgress struct {
	write func(no int, message string)
	wake  chan struct{}
	quit  chan struct{}
	done  chan struct{} // nil until the first report

	mu     sync.Mutex
	closed bool
	latest string
}

func (a *Activities) showProgress(ctx context.Context, runID, commandID string, dispatch int) *liveProgress {
	p := &liveProgress{wake: make(chan struct{}, 1), quit: make(chan struct{})}
	p.write = func(no int, message string) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerTimeout)
		defer cancel()
		chunk := agent.OutputChunk{Chunk: no, Channel: agent.ProgressChannel, Text: message + "\n"}
		if err := a.ledger.AppendOutput(ctx, runID, commandID, dispatch, []agent.OutputChunk{chunk}); err != nil {
			a.log.WarnContext(ctx, "progress is not shown", "run_id", runID, "command_id", commandID, "error", err)
		}
	}
	return p
}

// report takes in what a tool says. It never waits, and does nothing once the call has ended.
func (p *liveProgress) report(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.latest = agent.Preview(message, maxProgressBytes)
	if p.done == nil {
		p.done = make(chan struct{})
		go p.run()
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *liveProgress) run() {
	defer close(p.done)
	for no := 1; no <= maxProgressReports; no++ {
		select {
		case <-p.wake:
		case <-p.quit:
			return
		}
		p.mu.Lock()
		message := p.latest
		p.mu.Unlock()
		p.write(no, message)
		timer := time.NewTimer(progressEvery)
		select {
		case <-timer.C:
		case <-p.quit:
			timer.Stop()
			return
		}
	}
}

// close returns when nothing is written any more. What was not shown yet is dropped: the result is about to replace it.
func (p *liveProgress) close() {
	p.mu.Lock()
	p.closed = true
	running := p.done
	p.mu.Unlock()
	close(p.quit)
	if running != nil {
		<-running
	}
}
