package bench

import (
	"context"
	"sync"
	"time"

	"runledger/agent"
)

// Round is what a number of runs of one kind took.
type Round struct {
	// Times are those of each run, in milliseconds.
	Times []float64
	// Wall is the time of all of them together.
	Wall time.Duration
	// Used is what this process and its servers had of the processors meanwhile.
	Used ProcessorTime
}

// TakeRuns takes a number of runs, so many at a time. It ends at the first that fails, with its error.
func TakeRuns(ctx context.Context, at, runs int, do func(ctx context.Context) error) (r Round, err error) {
	before, err := ReadProcessorTime()
	if err != nil {
		return r, err
	}
	todo := make(chan struct{}, runs)
	for range runs {
		todo <- struct{}{}
	}
	close(todo)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for range at {
		all.Go(func() {
			for range todo {
				began := time.Now()
				if err := do(ctx); err != nil {
					cancel(err)
					return
				}
				took := time.Since(began)
				mu.Lock()
				r.Times = append(r.Times, float64(took.Microseconds())/1000)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	r.Wall = time.Since(began)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	after, err := ReadProcessorTime()
	r.Used = after.Since(before)
	return r, err
}

// ChainIn is a Chain whose nodes are in a lane. Its output is the last node's, so that no answer is appended to it.
func ChainIn(lane agent.Lane, n int) *agent.Plan {
	plan := Chain(n)
	for i := range plan.Nodes {
		plan.Nodes[i].Lane = lane
		plan.Output = plan.Nodes[i].ID // the last one
	}
	return plan
}
