package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"runledger/agent"
)

// report is the outcome of a soak.
type report struct {
	OK   bool   `json:"ok"`
	Seed uint64 `json:"seed"`
	Runs int    `json:"runs"`
	// Fast are the runs in the fast lane.
	Fast int `json:"fast"`
	// Lost are runs that did not complete.
	Lost int `json:"lost"`
	// Kills are those that were carried out, by victim.
	Kills    map[victim]int `json:"kills"`
	Commands int            `json:"commands"`
	Commits  int            `json:"commits"`
	// Effects are the external effects that took place, as the tool server counted them.
	Effects int `json:"external_effects"`
	// Duplicates counts second commits, second external effects, and calls after a commit.
	Duplicates int `json:"duplicates"`
	// Gaps counts conversations and followed streams whose numbers are not 1, 2, 3 and so on.
	Gaps int `json:"gaps"`
	// InFlight are the external dispatches that died with a worker; InDoubt those that were called in doubt.
	InFlight int `json:"in_flight_at_kills"`
	InDoubt  int `json:"in_doubt"`
	// Resolved is what the operator said of them.
	Resolved map[agent.Outcome]int `json:"resolved"`
	// Repeated are calls of idempotent commands that were made again after the worker had died.
	Repeated int `json:"repeated_idempotent_calls"`
	// Cancelled are calls whose caller lived and went away.
	Cancelled int `json:"cancelled_effects"`
	// Followed are the streams that clients read to their end, over so many Connections.
	Followed    int  `json:"followed"`
	Connections int  `json:"connections"`
	Verified    bool `json:"verified"`
	// Witness counts the runs by what Temporal had to say of them when they were verified.
	Witness map[string]int `json:"temporal_witness"`
	// Standstill is the longest time in which nothing of a run went on.
	Standstill standstill  `json:"longest_standstill"`
	Seconds    float64     `json:"seconds"`
	Killed     []killed    `json:"killed"`
	Violations []violation `json:"violations"`
}

// standstill is a time between two events of a run.
type standstill struct {
	RunID   string    `json:"run_id"`
	Seconds float64   `json:"seconds"`
	From    time.Time `json:"from"`
	Before  string    `json:"before"`
	After   string    `json:"after"`
}

func counts[K ~string](of map[K]int) []string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%s %d", k, of[k]))
	}
	return all
}

// spanned is how many calls were at work when Temporal was stopped for ten seconds, and how many of them all the while.
func (r *report) spanned() (n, all int) {
	for _, k := range r.Killed {
		if k.Victim == stopTemporal {
			n, all = n+k.Serving, all+k.Lasting
		}
	}
	return n, all
}

// unseen is how many external dispatches died before they reached the tool server.
func (r *report) unseen() (n int) {
	for _, k := range r.Killed {
		n += k.Unseen
	}
	return n
}

func (r *report) allKills() (n int) {
	for v, count := range r.Kills {
		if v != byItself {
			n += count
		}
	}
	return n
}

// encode writes the report as JSON.
func (r *report) encode(to io.Writer) error {
	out := json.NewEncoder(to)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// print writes a table, the violations, and a last line for grep.
func (r *report) print(to io.Writer) error {
	atWork, allTheWhile := r.spanned()
	verified := "every run; Temporal's history: " + strings.Join(counts(r.Witness), ", ")
	if !r.Verified {
		verified = "no: the API has no such endpoint"
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"runs", fmt.Sprintf("%d, %d of them in the fast lane; lost %d", r.Runs, r.Fast, r.Lost)},
		{"kills", fmt.Sprintf("%d: %s", r.allKills(), strings.Join(counts(r.Kills), ", "))},
		{"commands", fmt.Sprintf("%d, commits %d", r.Commands, r.Commits)},
		{"duplicates", fmt.Sprint(r.Duplicates)},
		{"gaps", fmt.Sprint(r.Gaps)},
		{"external effects", fmt.Sprintf("%d, as the tool server counted them", r.Effects)},
		{"in flight at kills", fmt.Sprintf("%d external dispatches, %d of them had not reached the tool server", r.InFlight, r.unseen())},
		{"in doubt", fmt.Sprintf("%d; resolved: committed %d, retry %d", r.InDoubt, r.Resolved[agent.OutcomeCommitted], r.Resolved[agent.OutcomeRetry])},
		{"idempotent calls", fmt.Sprintf("%d repeated after their worker was killed", r.Repeated)},
		{"cancelled effects", fmt.Sprintf("%d; %d calls were at work when Temporal went away for 10 s, %d of them all the while", r.Cancelled, atWork, allTheWhile)},
		{"streams", fmt.Sprintf("%d followed over %d connections", r.Followed, r.Connections)},
		{"longest standstill", fmt.Sprintf("%.0f s, of run %s between %s and %s", r.Standstill.Seconds, r.Standstill.RunID, r.Standstill.Before, r.Standstill.After)},
		{"verified", verified},
	} {
		fmt.Fprintf(table, "%s\t%s\n", row[0], row[1])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, v := range r.Violations {
		fmt.Fprintf(to, "VIOLATION %s: run %s command %s: %s\n", v.What, v.RunID, v.CommandID, v.Detail)
	}
	word := "ok"
	if !r.OK {
		word = "FAILED"
	}
	_, err := fmt.Fprintf(to, "soak: runs=%d fast=%d kills=%d commands=%d duplicates=%d gaps=%d in_flight=%d in_doubt=%d lost=%d violations=%d seconds=%.0f seed=%d %s\n",
		r.Runs, r.Fast, r.allKills(), r.Commands, r.Duplicates, r.Gaps, r.InFlight, r.InDoubt, r.Lost, len(r.Violations), r.Seconds, r.Seed, word)
	return err
}
