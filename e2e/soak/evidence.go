package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"runledger/agent"
)

// evidence is everything that was found out, before it is judged.
type evidence struct {
	runs []runEvidence
	// conversations are the numbers of their events, as the pages give them.
	conversations map[string][]int64
	followed      []followed
	// calls are what the tool server has counted, by idempotency key; deadAt is when the process behind each of its doors was
	// killed, zero for those that lived.
	calls  map[string][]call
	deadAt []time.Time
	kills  []killed
	// lost are the external dispatches that died with a worker.
	lost     map[dispatch]int
	resolved map[agent.Outcome]int
	// wanted is how many runs there should be; found how many there are; refused are the posts that were not accepted.
	wanted, found int
	refused       []string
	unverified    bool // there is no verify endpoint
}

// runEvidence is a run as the API shows it.
type runEvidence struct {
	ID, Conversation string
	Fast             bool
	Status           agent.Status
	Commands         []agent.Command
	Events           []agent.Event
	Verified         verification
}

// verification is what the API finds when it holds a run's record against its own rules and against Temporal's history.
type verification struct {
	OK          bool              `json:"ok"`
	Differences []json.RawMessage `json:"differences"`
	Temporal    struct {
		Status string `json:"status"`
	} `json:"temporal"`
}

// gather reads everything back over the API, as any client could.
func gather(ctx context.Context, c *client, w *workload, k *killer) (*evidence, error) {
	statuses, err := w.statuses(ctx)
	if err != nil {
		return nil, err
	}
	e := &evidence{conversations: map[string][]int64{}, wanted: len(w.plan.runs), found: len(statuses)}
	w.mu.Lock()
	posted := w.posted
	e.refused, e.resolved = w.failed, w.resolved
	w.mu.Unlock()
	for _, p := range posted {
		run := runEvidence{ID: p.RunID, Conversation: p.ConversationID, Fast: p.fast, Status: statuses[p.RunID]}
		path := "/api/v1/agent/runs/" + p.RunID
		var commands struct{ Commands []agent.Command }
		if err := c.get(ctx, path+"/commands", &commands); err != nil {
			return nil, err
		}
		run.Commands = commands.Commands
		if run.Events, err = c.events(ctx, path+"/events?profile=ledger"); err != nil {
			return nil, err
		}
		if _, known := e.conversations[p.ConversationID]; !known {
			all, err := c.events(ctx, "/api/v1/agent/conversations/"+url.PathEscape(p.ConversationID)+"/events?profile=ledger")
			if err != nil {
				return nil, err
			}
			numbers := make([]int64, len(all))
			for i, event := range all {
				numbers[i] = event.Sequence
			}
			e.conversations[p.ConversationID] = numbers
		}
		if !e.unverified {
			var answer *answerError
			err := c.get(ctx, path+"/verify", &run.Verified)
			if errors.As(err, &answer) && answer.status == http.StatusNotFound {
				e.unverified = true
			} else if err != nil {
				return nil, err
			}
		}
		e.runs = append(e.runs, run)
	}
	if len(statuses) == len(posted) && !anyOpen(statuses) {
		w.followers.Wait() // every stream ends after its run
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.followed = w.seen
	e.calls, e.deadAt = w.tools.record()
	e.kills, e.lost = k.record()
	return e, nil
}

func anyOpen(statuses map[string]agent.Status) bool {
	for _, s := range statuses {
		if !s.Terminal() {
			return true
		}
	}
	return false
}

// events reads all pages of a log.
func (c *client) events(ctx context.Context, path string) ([]agent.Event, error) {
	var all []agent.Event
	after := int64(0)
	for {
		var page struct {
			Events  []agent.Event `json:"events"`
			HasMore bool          `json:"has_more"`
		}
		if err := c.get(ctx, path+"&limit=500&after="+strconv.FormatInt(after, 10), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Events...)
		if !page.HasMore || len(page.Events) == 0 {
			return all, nil
		}
		after = page.Events[len(page.Events)-1].Sequence
	}
}
