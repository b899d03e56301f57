package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"runledger/agent"
)

// workload posts the runs, follows some of them, and answers for commands in doubt.
type workload struct {
	client *client
	plan   *schedule
	tools  *toolServer

	followers sync.WaitGroup

	mu       sync.Mutex
	posted   []postedRun
	failed   []string // posts that were refused
	all      bool     // everything is posted
	ended    map[string]agent.Status
	moved    time.Time // when the last run ended, or was resolved
	seen     []followed
	resolved map[agent.Outcome]int
}

// postedRun is a run that the API has accepted.
type postedRun struct {
	RunID          string `json:"run_id"`
	ConversationID string `json:"conversation_id"`
	fast           bool
}

// stall is how long nothing may happen before the runs that have not ended count as lost. A killed worker's command is given to
// another after 20 s, at most five times.
const stall = 2 * time.Minute

func newWorkload(c *client, plan *schedule, tools *toolServer) *workload {
	return &workload{client: c, plan: plan, tools: tools, ended: map[string]agent.Status{}, resolved: map[agent.Outcome]int{}, moved: time.Now()}
}

// post posts the runs at a steady pace, whatever is being killed.
func (w *workload) post(ctx context.Context) {
	tick := time.NewTicker(max(w.plan.every, 10*time.Millisecond))
	defer tick.Stop()
	// Where the calls go: to a door that no worker has, though all come through those that workers have.
	const toolURL = "http://127.0.0.1:9"
	for i, p := range w.plan.runs {
		conversation := ""
		if p.joins >= 0 && p.joins < len(w.posted) {
			conversation = w.posted[p.joins].ConversationID
		}
		var run postedRun
		key := http.Header{"Idempotency-Key": {fmt.Sprintf("soak-%d", i)}}
		err := w.client.call(ctx, http.MethodPost, "/api/v1/agent/run", key, p.body(toolURL, conversation), &run)
		w.mu.Lock()
		if err != nil {
			w.failed = append(w.failed, err.Error())
		} else {
			run.fast = p.fast
			w.posted = append(w.posted, run)
		}
		w.mu.Unlock()
		if err == nil && p.followed {
			w.followers.Go(func() {
				f := w.client.follow(ctx, run.RunID, p.dropAfter)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.seen = append(w.seen, f)
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = true
}

// operate answers for commands in doubt until ctx ends, by what the tool server knows.
func (w *workload) operate(ctx context.Context) {
	for ctx.Err() == nil {
		var page struct{ Runs []postedRun }
		if err := w.client.get(ctx, "/api/v1/agent/runs?limit=500&status=in_doubt", &page); err != nil {
			w.complain(ctx, err)
		}
		for _, run := range page.Runs {
			if err := w.answer(ctx, run.RunID); err != nil {
				w.complain(ctx, err)
			}
		}
		pause(ctx, 500*time.Millisecond)
	}
}

func (w *workload) complain(ctx context.Context, err error) {
	if ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "soak: operator:", err)
	}
}

// answer resolves what a run waits for, where that can be known yet.
func (w *workload) answer(ctx context.Context, runID string) error {
	var run struct {
		InDoubt []struct {
			CommandID string `json:"command_id"`
		} `json:"in_doubt"`
	}
	if err := w.client.get(ctx, "/api/v1/agent/runs/"+runID, &run); err != nil {
		return err
	}
	for _, d := range run.InDoubt {
		found, answer := w.tools.find(agent.IdempotencyKey(runID, d.CommandID))
		body := object{"outcome": agent.OutcomeRetry, "by": "soak", "note": "it never arrived, or was given up before it took place"}
		switch found {
		case open:
			continue
		case took:
			// As http_request would have given it.
			body = object{"outcome": agent.OutcomeCommitted, "by": "soak", "note": "the tool server has done it", "result": object{
				"status": http.StatusOK, "headers": object{"content-type": "application/json"}, "json": answer, "bytes": len(answer)}}
		case never:
		}
		path := "/api/v1/agent/runs/" + runID + "/commands/" + url.PathEscape(d.CommandID) + "/resolve"
		var command agent.Command
		if err := w.client.call(ctx, http.MethodPost, path, nil, body, &command); err != nil {
			return err
		}
		w.mu.Lock()
		w.resolved[body["outcome"].(agent.Outcome)]++
		w.moved = time.Now()
		w.mu.Unlock()
	}
	return nil
}

// over reports whether every run has ended, or none will.
func (w *workload) over(ctx context.Context) bool {
	statuses, err := w.statuses(ctx)
	if err != nil {
		return ctx.Err() != nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := map[string]agent.Status{}
	for id, status := range statuses {
		if status.Terminal() {
			ended[id] = status
		}
	}
	if len(ended) > len(w.ended) {
		w.ended, w.moved = ended, time.Now()
	}
	return w.all && len(w.ended) >= len(w.posted) || time.Since(w.moved) > stall
}

// statuses lists every run that there is.
func (w *workload) statuses(ctx context.Context) (map[string]agent.Status, error) {
	all := map[string]agent.Status{}
	before := ""
	for {
		var page struct {
			Runs []struct {
				RunID  string       `json:"run_id"`
				Status agent.Status `json:"status"`
			} `json:"runs"`
			HasMore bool `json:"has_more"`
		}
		if err := w.client.get(ctx, "/api/v1/agent/runs?limit=500"+before, &page); err != nil {
			return nil, err
		}
		for _, r := range page.Runs {
			all[r.RunID] = r.Status
			before = "&before=" + r.RunID
		}
		if !page.HasMore {
			return all, nil
		}
	}
}

func (w *workload) standing() (posted, ended, resolved int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.resolved {
		resolved += n
	}
	return len(w.posted), len(w.ended), resolved
}
