package activities

import (
	"context"
	"sync"
	"time"

	"runledger/agent"
	"runledger/model"
)

// flushEvery is how long model output is gathered before it is shown.
const flushEvery = 50 * time.Millisecond

// liveOutput shows a model's answer while it arrives. The first piece goes out at once, the rest in batches. It is a
// courtesy: what cannot be written is dropped, and the committed answer replaces it all.
type liveOutput struct {
	write func(chunks []agent.OutputChunk)
	wake  chan struct{}
	quit  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	pending []agent.OutputChunk
	next    int
}

func (a *Activities) showOutput(ctx context.Context, runID, commandID string, attempt int) *liveOutput {
	o := &liveOutput{wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	o.write = func(chunks []agent.OutputChunk) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerTimeout)
		defer cancel()
		if err := a.ledger.AppendOutput(ctx, runID, commandID, attempt, chunks); err != nil {
			a.log.WarnContext(ctx, "model output is not shown", "run_id", runID, "command_id", commandID, "error", err)
		}
	}
	go o.run()
	return o
}

func (o *liveOutput) add(d model.Delta) {
	if d.Text == "" {
		return
	}
	o.mu.Lock()
	if n := len(o.pending); n > 0 && o.pending[n-1].Channel == string(d.Channel) {
		o.pending[n-1].Text += d.Text
	} else {
		o.next++
		o.pending = append(o.pending, agent.OutputChunk{Chunk: o.next, Channel: string(d.Channel), Text: d.Text})
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *liveOutput) run() {
	defer close(o.done)
	for {
		select {
		case <-o.wake:
			o.flush()
		case <-o.quit:
			o.flush()
			return
		}
		select {
		case <-time.After(flushEvery):
		case <-o.quit:
		}
	}
}

func (o *liveOutput) flush() {
	o.mu.Lock()
	chunks := o.pending
	o.pending = nil
	o.mu.Unlock()
	if len(chunks) > 0 {
		o.write(chunks)
	}
}

// close shows what is left and returns when nothing is written any more.
func (o *liveOutput) close() {
	close(o.quit)
	<-o.done
}
