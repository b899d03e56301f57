package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
)

type eventsCmd struct {
	apiFlags
	RunID   string `arg:"" name:"run" help:"The run."`
	Follow  bool   `short:"f" help:"Go on until the run ends."`
	After   int64  `help:"Begin after this number."`
	Profile string `default:"ledger" help:"ledger (with tokens: for operators), run or react."`
}

const eventsPerPage = 1000

// Run prints a line for every event: its number, type, place and data.
func (c *eventsCmd) Run(ctx context.Context) error {
	if c.Follow {
		return c.follow(ctx, c.RunID, c.Profile, c.After, func(fr frame) error {
			if fr.id != "" {
				printEvent(fr.raw)
			}
			return nil
		})
	}
	after := c.After
	for {
		query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(eventsPerPage)}, "profile": {c.Profile}}
		res, err := c.do(ctx, http.MethodGet, "/runs/"+url.PathEscape(c.RunID)+"/events?"+query.Encode(), nil, nil)
		if err != nil {
			return fmt.Errorf("events of run %s: %w", c.RunID, err)
		}
		var page struct {
			Events  []json.RawMessage `json:"events"`
			HasMore bool              `json:"has_more"`
		}
		err = json.NewDecoder(res.Body).Decode(&page)
		_ = res.Body.Close()
		if err != nil {
			return fmt.Errorf("events of run %s: %w", c.RunID, err)
		}
		for _, raw := range page.Events {
			after = max(after, printEvent(string(raw)))
		}
		if !page.HasMore {
			return nil
		}
	}
}

func printEvent(raw string) (number int64) {
	var e struct {
		Sequence  int64           `json:"sequence_number"`
		Type      string          `json:"event_type"`
		NodeID    string          `json:"node_id"`
		CommandID string          `json:"command_id"`
		Data      json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		fmt.Fprintln(os.Stderr, "runledger: not an event:", raw)
		return 0
	}
	where := e.CommandID
	if where == "" {
		where = e.NodeID
	}
	fmt.Printf("%5d  %-18s %-12s %s\n", e.Sequence, e.Type, where, e.Data)
	return e.Sequence
}
