package main

import (
	"context"
	"fmt"
	"time"

	"runledger/client"
)

type eventsCmd struct {
	apiFlags
	RunID   string `arg:"" name:"run" help:"The run."`
	Follow  bool   `short:"f" help:"Go on until the run ends."`
	After   int64  `help:"Begin after this number."`
	Profile string `default:"ledger" help:"ledger (with tokens: for operators) or run."`
}

const (
	eventsPerPage = 1000
	// eventsPatience is how long the API may be away from somebody who waits for a list.
	eventsPatience = 3 * time.Second
)

// Run prints a line for every event: its number, type, place and data.
func (c *eventsCmd) Run(ctx context.Context) error {
	options := client.Options{Profile: c.Profile, PageSize: eventsPerPage}
	if c.After > 0 {
		options.From = c.After + 1
	}
	read := c.reader().Follow
	if !c.Follow {
		read, options.Patience = c.reader().Replay, eventsPatience
	}
	for u, err := range read(ctx, client.Run(c.RunID), options) {
		if err != nil {
			return fmt.Errorf("events of run %s: %w", c.RunID, err)
		}
		if u.Event != nil {
			printEvent(*u.Event)
		}
	}
	return nil
}

func printEvent(e client.Event) {
	where := e.CommandID
	if where == "" {
		where = e.NodeID
	}
	fmt.Printf("%5d  %-18s %-12s %s\n", e.Sequence, e.Type, where, e.Data)
}
