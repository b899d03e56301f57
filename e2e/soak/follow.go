package main

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
)

// followed is what a client has seen of a run over all its connections.
type followed struct {
	RunID string
	// Numbers are the ids of the frames, in the order in which they came.
	Numbers     []int64
	Connections int
	// Over: the server said that nothing follows.
	Over bool
}

// follow reads a run's stream to its end over as many connections as it takes, as an EventSource does. It drops each
// connection by itself after so many frames.
func (c *client) follow(ctx context.Context, runID string, dropAfter int) followed {
	f := followed{RunID: runID}
	for !f.Over && ctx.Err() == nil {
		f.Connections++
		c.followOnce(ctx, &f, dropAfter)
		if !f.Over {
			pause(ctx, callPause)
		}
	}
	return f
}

func (c *client) followOnce(ctx context.Context, f *followed, dropAfter int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/api/v1/agent/runs/"+f.RunID+"/events", nil)
	if err != nil {
		return
	}
	req.Header.Set("Accept", "text/event-stream")
	if n := len(f.Numbers); n > 0 {
		req.Header.Set("Last-Event-Id", strconv.FormatInt(f.Numbers[n-1], 10))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		f.Over = res.StatusCode == http.StatusNoContent
		return
	}
	in := bufio.NewReader(res.Body)
	id := int64(0)
	for frames := 0; frames < dropAfter; {
		line, err := in.ReadString('\n')
		if err != nil {
			return // what came of an unfinished frame does not count
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "id:"):
			if id, err = strconv.ParseInt(strings.TrimSpace(line[len("id:"):]), 10, 64); err != nil {
				id = -1 // no number of any page
			}
		case line == "" && id != 0:
			f.Numbers = append(f.Numbers, id)
			frames++
			id = 0
		}
	}
}
