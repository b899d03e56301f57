package faults_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/internal/stacktest"
)

var update = flag.Bool("update", false, "write docs/faults.md from what this run has seen")

// class is how the gate treats an effect; also the name of the fault worker's tool of that kind.
type class string

const (
	deterministic class = "deterministic"
	idempotent    class = "idempotent"
	external      class = "external"
	reconciled    class = "reconciled"    // external, with a tool that can look a lost call up
	transactional class = "transactional" // in the ledger's own transaction
)

var classes = []class{deterministic, idempotent, external, reconciled, transactional}

// boundary is where a command is held: at a boundary of the gate, or at one that the gate does not know of.
type boundary = agent.Boundary

const (
	during   boundary = "during"   // the effect has taken place, its caller does not know yet
	returned boundary = "returned" // the activity has returned; the next command is held before it begins
)

// nextCommand is the command after one that is held when it has returned.
const nextCommand = "next"

var boundaries = []boundary{agent.BeforeBegin, agent.AfterBegin, during, agent.AfterEffect, agent.AfterCommit, returned}

// victim is what is broken while every run is held at its boundary.
type victim struct {
	name string
	how  string
	// lost: the dispatches that are held are given up.
	lost bool
	// timeouts of the commands, by class; the default is longer than any test.
	timeouts map[class]string
	// ownPostgres: the victim is Postgres.
	ownPostgres map[string]string
	strike      func(t testing.TB, l *lab, pg *pgtest.Instance)
}

// soon is the timeout of a command that can be looked up when its dispatch is lost: that it has not taken place is certain
// only after its deadline.
var soon = map[class]string{reconciled: "30s"}

// outage is how long Temporal is away.
const outage = 10 * time.Second

var (
	workerKilled = victim{name: "Worker killed", lost: true, timeouts: soon,
		how:    "SIGKILL; another worker starts. What is in doubt is resolved over the API, by what the tool server has seen.",
		strike: killWorker}
	postgresKilled = victim{name: "Postgres restarted", ownPostgres: map[string]string{"synchronous_commit": "on"},
		how:    "SIGKILL of the server; every run goes on while it is away; then it starts and recovers.",
		strike: killPostgres}
	connectionsCut = victim{name: "Connections cut",
		how: "Every connection between the worker and Postgres ends, transactions in the middle too; then the next transaction of every run " +
			"commits and its connection ends instead of the answer.",
		strike: cutConnections}
	temporalRestarted = victim{name: "Temporal restarted",
		how:    "Stopped for 10 s. What is held at the gate goes on while it is away; effects at work end when it is back.",
		strike: restartTemporal}
	workerStopped = victim{name: "Worker stopped", lost: true, timeouts: soon,
		how: "SIGINT, as at a deploy. What is held at the gate ends with it; effects at work are held for longer than the worker waits for " +
			"them. Then another worker starts. What is in doubt is resolved as above.",
		strike: stopWorker}
	workerFrozen = victim{name: "Worker frozen", lost: true, timeouts: soon,
		how: "SIGSTOP until Temporal has timed its activities out and another worker has taken over and has nothing left to do; then SIGCONT: " +
			"it finishes late. Nobody resolves anything.",
		strike: freezeWorker}
)

var victims = []victim{workerKilled, workerStopped, postgresKilled, connectionsCut, temporalRestarted, workerFrozen}

func killWorker(t testing.TB, l *lab, _ *pgtest.Instance) {
	t.Helper()
	l.worker.Kill(t)
	l.letGo()
	l.startFaultWorker(t)
	for _, c := range l.settle(t) {
		want := 1
		if c.boundary == agent.AfterBegin {
			want = 0
		}
		require.Equal(t, want, l.effectsOf(t, c), "%s, %s: effects when it was called in doubt", c.class, c.boundary)
		l.resolve(t, c)
	}
}

// stopPatience is how long a worker may take to stop.
const stopPatience = 15 * time.Second

func stopWorker(t testing.TB, l *lab, _ *pgtest.Instance) {
	t.Helper()
	began := time.Now()
	require.NoError(t, l.worker.Cmd.Process.Signal(os.Interrupt))
	l.letGateGo()
	select {
	case <-l.worker.Done:
	case <-time.After(stopPatience):
		t.Error("the worker does not stop")
	}
	t.Logf("the worker has stopped after %v", time.Since(began))
	l.letEffectsGo()
	l.startFaultWorker(t)
	for _, c := range l.settle(t) {
		l.resolve(t, c)
	}
}

func killPostgres(t testing.TB, l *lab, pg *pgtest.Instance) {
	t.Helper()
	pg.Kill(t)
	l.letGo()
	for range len(l.cells) {
		stacktest.Receive(t, l.proxy.refused, "the worker does not miss its database")
	}
	pg.Start(t)
}

func cutConnections(t testing.TB, l *lab, _ *pgtest.Instance) {
	t.Helper()
	for _, c := range l.cells {
		l.proxy.loseCommits(c.run.RunID)
	}
	l.proxy.cut()
	l.letGo()
	for range l.cells {
		stacktest.Receive(t, l.proxy.lost, "a run does not lose the answer to its commit")
	}
}

func restartTemporal(t testing.TB, l *lab, _ *pgtest.Instance) {
	t.Helper()
	require.NoError(t, l.Temporal.Stop(t.Context()))
	away := time.NewTimer(outage)
	l.letGateGo()
	<-away.C
	l.StartTemporal(t)
	l.letEffectsGo()
}

func freezeWorker(t testing.TB, l *lab, _ *pgtest.Instance) {
	t.Helper()
	l.worker.Freeze(t)
	l.startFaultWorker(t)
	l.settle(t)
	l.letGo()
	l.worker.Thaw(t)
	for _, c := range l.cells {
		l.ComesTo(t, c.run.RunID, stacktest.Ends...)
	}
	l.worker.Stop(t) // it has finished what it had begun
}

// outcome is what became of a command, as far as it is the same every time: how often exactly a repeatable effect was
// repeated is not.
type outcome struct {
	Repeated     bool // the effect took place more than once, under the same key
	Redispatched bool
	InDoubt      bool
	By           string // who resolved it, and how
	Resolution   agent.Outcome
}

func (o outcome) String() string {
	s := "once"
	switch {
	case o.Repeated:
		s = "repeated under the same key"
	case o.Redispatched:
		s = "once, at a later dispatch"
	}
	switch {
	case o.By == agent.ByReconcile:
		s = "looked up: " + s
	case o.InDoubt && o.By == agent.ByLateResult && o.Resolution == agent.OutcomeRetry:
		s = "in doubt until the worker said that it had not begun: " + s
	case o.InDoubt && o.By == agent.ByLateResult:
		s = "in doubt until the late result: " + s
	case o.InDoubt:
		s = fmt.Sprintf("in doubt, resolved with %s: %s", o.Resolution, s)
	}
	return s
}

// expected is what must become of a command of a class that is held at a boundary while the victim is broken.
func expected(v victim, c class, at boundary) outcome {
	begun := at == agent.AfterBegin                  // dispatched, and nothing has happened
	acted := at == during || at == agent.AfterEffect // it has happened, and is not on record
	if v.name == workerStopped.name {
		begun, acted = false, at == during
	}
	if !v.lost || !begun && !acted { // nobody gives the dispatch up, or there is nothing to repeat
		return outcome{}
	}
	frozen := v.name == workerFrozen.name
	switch {
	case c == transactional: // what was done is undone
		return outcome{Redispatched: true}
	case c == reconciled && acted:
		return outcome{By: agent.ByReconcile, Resolution: agent.OutcomeCommitted}
	case c == reconciled:
		return outcome{Redispatched: true}
	case c == external && frozen && acted:
		return outcome{InDoubt: true, By: agent.ByLateResult, Resolution: agent.OutcomeCommitted}
	case c == external && frozen:
		return outcome{InDoubt: true, By: agent.ByLateResult, Resolution: agent.OutcomeRetry, Redispatched: true}
	case c == external && acted:
		return outcome{InDoubt: true, By: "operator", Resolution: agent.OutcomeCommitted}
	case c == external:
		return outcome{InDoubt: true, By: "operator", Resolution: agent.OutcomeRetry, Redispatched: true}
	}
	return outcome{Redispatched: true, Repeated: acted}
}

// TestFaultMatrix holds a command of every class at every boundary, breaks each victim there, and looks at what became of it. One
// victim after the other: a lab holds some hundred runs whose heartbeats have to arrive, and two of them are too many for a small machine.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	var segments []string
	t.Run("Segments", func(t *testing.T) { segments = interruptSegments(t, pgtest.Database(t)) })
	for _, v := range victims {
		t.Run(v.name, func(t *testing.T) {
			var pg *pgtest.Instance
			var url string
			if v.ownPostgres != nil {
				pg = pgtest.Server(t, v.ownPostgres)
				url = pg.URL()
			} else {
				url = pgtest.Database(t)
			}
			l := startLab(t, url, cellsOfMatrix(), v.timeouts)
			v.strike(t, l, pg)
			rows := map[cellKey]string{}
			for _, c := range l.cells {
				t.Run(strings.TrimSpace(fmt.Sprintf("%s %s %s", c.class, c.boundary, c.place)), func(t *testing.T) {
					got := l.observe(t, c)
					require.Equal(t, expected(v, c.class, c.boundary), got, "run %s", c.run.RunID)
					rows[cellKey{c.class, c.boundary, c.place}] = got.String()
				})
			}
			seen[v.name] = table(rows)
		})
	}
	if t.Failed() || len(seen) < len(victims) || segments == nil { // or only some were asked for
		return
	}
	file := filepath.Join("..", "..", "docs", "faults.md")
	want := document(seen, segments)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(have), want, "docs/faults.md tells otherwise: write it with go test ./e2e/faults -run TestFaultMatrix -update")
}

type cellKey struct {
	class    class
	boundary boundary
	place    place
}

// table shows a victim's outcomes, a line for each boundary in either lane. Places of a segment with the same outcomes share theirs.
func table(cells map[cellKey]string) string {
	var b strings.Builder
	b.WriteString("| lane | held |")
	for _, c := range classes {
		fmt.Fprintf(&b, " %s |", c)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(classes)) + "\n")
	for _, lane := range [][]place{{normalLane}, places} {
		for _, at := range boundaries {
			held := strings.ReplaceAll(string(at), "_", " ")
			var lines []string
			var of [][]string // the places of each line
			for _, p := range lane {
				line := ""
				for _, c := range classes {
					line += fmt.Sprintf(" %s |", cells[cellKey{c, at, p}])
				}
				switch known := slices.Index(lines, line); {
				case cells[cellKey{classes[0], at, p}] == "": // there is no such cell
				case known < 0:
					lines, of = append(lines, line), append(of, []string{string(p)})
				default:
					of[known] = append(of[known], string(p))
				}
			}
			for i, line := range lines {
				name := "normal"
				if lane[0] != normalLane {
					name = "fast: " + strings.Join(of[i], ", ")
				}
				fmt.Fprintf(&b, "| %s | %s |%s\n", name, held, line)
			}
		}
	}
	return b.String()
}

func document(tables map[string]string, segments []string) string {
	var b strings.Builder
	b.WriteString(`# What becomes of a command when something breaks

Written by a test from what it has seen; do not edit. Make it again with

    go test ./e2e/faults -run TestFaultMatrix -update

Without -update the test compares what it sees with this file.

For every victim, a run of every class is held at every boundary of the commit gate, all at once; then the victim is broken,
and everything is let go. Real processes: an API, workers, Postgres, Temporal, and a server that counts effects by
idempotency key. Effects are counted there, not in the record (those of class transactional in their table).

Held: before begin (nothing is on record); after begin (dispatched, the effect has not begun); during (the effect has taken
place, the tool has not answered); after effect (the worker has the result, the record does not); after commit (the record
has the result, Temporal does not); returned (the next command is about to begin).

Classes: deterministic, idempotent and external as in the design; reconciled is external, with a tool that can look a lost
call up by its key; transactional has its effect in the transaction that commits its result.

Lanes: in the normal lane the command has an activity of its own. In the fast lane it is the first, the middle or the last one of a
segment of three; a segment has returned when its last command has.

In every cell: the run completes, its numbers have no gap, verify finds no difference, the command has one command_committed, in
order, and at most five dispatches. The others of its segment are dispatched once and have their effect once. "Once" is exactly
once, at the first dispatch if nothing else is said.
`)
	for _, v := range victims {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s", v.name, v.how, tables[v.name])
	}
	b.WriteString(`
## Between the commands of a segment

Nothing is killed: something comes while the first, the middle or the last of three commands is in the middle of its effect, or
that effect has no result. Those before it stay committed, each after one execution. Verify finds no difference.

| what | class | the command | those after it | the run's end |
|---|---|---|---|---|
` + strings.Join(segments, "\n") + "\n")
	return b.String()
}
