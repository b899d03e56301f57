package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"runledger/agent"
)

// exitDiffers is the exit status of a verification that found a difference.
const exitDiffers exitError = 3

type verifyCmd struct {
	apiFlags
	RunID string `arg:"" name:"run" help:"The run."`
}

// Run asks the API to verify a run and prints what was found, the first difference first.
func (c *verifyCmd) Run(ctx context.Context) error {
	res, err := c.do(ctx, http.MethodGet, "/runs/"+url.PathEscape(c.RunID)+"/verify", nil, nil)
	if err != nil {
		return fmt.Errorf("verify run %s: %w", c.RunID, err)
	}
	defer func() { _ = res.Body.Close() }()
	var v agent.Verification
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		return fmt.Errorf("verify run %s: %w", c.RunID, err)
	}
	report(os.Stdout, v)
	if !v.OK {
		return exitDiffers
	}
	return nil
}

// report prints a verification for people.
func report(out io.Writer, v agent.Verification) {
	var b strings.Builder
	switch {
	case v.OK:
		fmt.Fprintf(&b, "run %s: no difference\n", v.RunID)
	case v.HasMore:
		fmt.Fprintf(&b, "run %s: more than %d differences\n", v.RunID, len(v.Differences))
	default:
		fmt.Fprintf(&b, "run %s: differences: %d\n", v.RunID, len(v.Differences))
	}
	for _, d := range v.Differences {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	if r := v.Removed; r != nil && r.EventsAt != nil {
		fmt.Fprintf(&b, "  its events were removed at %s: only the conversation's numbers and chain were checked\n", r.EventsAt.Format(time.RFC3339))
	} else if r != nil && r.PayloadsAt != nil {
		fmt.Fprintf(&b, "  its payloads were removed at %s: results were not checked\n", r.PayloadsAt.Format(time.RFC3339))
	}
	n := v.Checked
	fmt.Fprintf(&b, "  ledger: %d events, %d commands, %d results, %d checkpoints\n", n.Events, n.Commands, n.Results, n.Checkpoints)
	said := map[agent.WitnessStatus]string{
		agent.WitnessAgrees:        "agrees",
		agent.WitnessDiffers:       "DIFFERS",
		agent.WitnessGone:          "a witness is missing, no history is kept",
		agent.WitnessNotConfigured: "a witness is missing, the API has no TEMPORAL_ADDRESS",
		agent.WitnessUnreachable:   "a witness is missing, it cannot be reached",
		agent.WitnessNotCompared:   "not compared",
	}[v.Temporal.Status]
	fmt.Fprintf(&b, "  Temporal: %s", said)
	if v.Temporal.Executions > 0 {
		fmt.Fprintf(&b, " (%s, %s, %s)", counted(v.Temporal.Epochs, "epoch", "epochs"),
			counted(v.Temporal.Executions, "execution", "executions"), counted(v.Temporal.Activities, "activity", "activities"))
	}
	if v.Temporal.Detail != "" {
		fmt.Fprintf(&b, "; %s", v.Temporal.Detail)
	}
	b.WriteString("\n")
	_, _ = io.WriteString(out, b.String())
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
