package faults_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
)

type object = stacktest.Object

// faultConfig is that of the API; the worker brings its own tools.
const faultConfig = `
models:
  default: {provider: scripted}
agents:
  default: {mode: plan, tools: ["*"]}
`

// holds is the server that the worker of a lab asks. It holds every run once, at the boundary that its command is named for,
// and counts effects by idempotency key.
type holds struct {
	*httptest.Server
	mu      sync.Mutex
	held    map[string]bool
	effects map[string]int
	// inSegment are the idempotency keys of the commands that a segment has taken to the gate.
	inSegment map[string]bool
	reached   chan string
	// atGate and inEffect are closed to let go what is held at a boundary of the gate, or in the middle of an effect.
	atGate, inEffect chan struct{}
}

// heldAt is where a command is held: at the boundary it is named for, and the command after another before it begins.
var heldAt = map[string]boundary{
	string(agent.BeforeBegin) + " " + string(agent.BeforeBegin): agent.BeforeBegin,
	string(agent.AfterBegin) + " " + string(agent.AfterBegin):   agent.AfterBegin,
	string(during) + " " + string(during):                       during,
	string(agent.AfterEffect) + " " + string(agent.AfterEffect): agent.AfterEffect,
	string(agent.AfterCommit) + " " + string(agent.AfterCommit): agent.AfterCommit,
	string(agent.BeforeBegin) + " " + nextCommand:               returned,
}

func startHolds(t testing.TB) *holds {
	t.Helper()
	h := &holds{held: map[string]bool{}, effects: map[string]int{}, inSegment: map[string]bool{}, reached: make(chan string, 1024),
		atGate: make(chan struct{}), inEffect: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /at/{boundary}", func(_ http.ResponseWriter, r *http.Request) { h.hold(r, r.PathValue("boundary")) })
	mux.HandleFunc("POST /segment", func(_ http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.inSegment[r.Header.Get("Idempotency-Key")] = true
	})
	mux.HandleFunc("POST /effect", func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.effects[r.Header.Get("Idempotency-Key")]++
		h.mu.Unlock()
		h.hold(r, string(during))
		_, _ = fmt.Fprint(w, `{"done": true}`)
	})
	mux.HandleFunc("GET /effect", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"done": %t}`, h.count(r.Header.Get("Idempotency-Key")) > 0)
	})
	h.Server = httptest.NewServer(mux)
	t.Cleanup(h.Close)
	return h
}

func (h *holds) hold(r *http.Request, at string) {
	runID := r.URL.Query().Get("run")
	place, ok := heldAt[at+" "+r.URL.Query().Get("command")]
	if !ok {
		return
	}
	h.mu.Lock()
	first := !h.held[runID]
	h.held[runID] = true
	h.mu.Unlock()
	if !first {
		return
	}
	h.reached <- runID
	open := h.atGate
	if place == during {
		open = h.inEffect
	}
	select {
	case <-open:
	case <-r.Context().Done():
	}
}

func (h *holds) count(key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.effects[key]
}

func (h *holds) sharedSegment(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inSegment[key]
}

// place is that of the command that is held among those of its segment, normalLane when it has an activity of its own.
type place string

const (
	normalLane place = ""
	first      place = "first"
	middle     place = "middle"
	last       place = "last"
)

var places = []place{first, middle, last}

// cell is a run that is held at a boundary.
type cell struct {
	class    class
	boundary boundary
	place    place
	// tool is that of the command that is held, "" for that of its class; onError what becomes of its node's failure.
	tool    string
	onError agent.OnError
	run     agent.Run
}

func (c cell) commandID() string { return string(c.boundary) }

// commands are the run's, in their order, but for the model's: one in the normal lane, three that share a segment in the fast lane.
func (c cell) commands() []string {
	if c.place == normalLane {
		return []string{c.commandID()}
	}
	ids := []string{"n1", "n2", "n3"}
	ids[slices.Index(places, c.place)] = c.commandID()
	return ids
}

// plan has the cell's commands one after the other, and a model's answer after one that is held when it has returned.
func (c cell) plan(timeout string) object {
	var nodes []any
	before := []string{}
	add := func(node object) {
		node["depends_on"] = before
		nodes, before = append(nodes, node), []string{node["id"].(string)}
	}
	for _, id := range c.commands() {
		node := object{"id": id, "kind": "tool", "tool": string(c.class)}
		if c.place != normalLane {
			node["lane"] = agent.FastLane
		}
		if timeout != "" {
			node["timeout"] = timeout
		}
		if id == c.commandID() {
			node["tool"] = cmp.Or(c.tool, string(c.class))
			if c.onError != "" {
				node["on_error"] = c.onError
			}
		}
		add(node)
	}
	if c.boundary == returned {
		add(object{"id": nextCommand, "kind": "llm", "prompt": "go on"})
	}
	return object{"nodes": nodes}
}

// cellsOfMatrix are those of every class and boundary in both lanes, in the fast lane at every place of a segment. What a segment has
// returned its last command has; those before it have been followed by others of it.
func cellsOfMatrix() (cells []cell) {
	for _, class := range classes {
		for _, boundary := range boundaries {
			cells = append(cells, cell{class: class, boundary: boundary})
			for _, place := range places {
				if boundary != returned || place == last {
					cells = append(cells, cell{class: class, boundary: boundary, place: place})
				}
			}
		}
	}
	return cells
}

// lab is a stack with one run for every class and boundary.
type lab struct {
	*stacktest.Servers
	*stacktest.Client
	holds  *holds
	proxy  *proxy
	worker *stacktest.Process
	// workerEnv is that of the workers, which see the database by way of the proxy only.
	workerEnv []string
	cells     []cell
}

// startLab brings the run of every cell to its boundary and holds it there. Timeouts are the classes', for those that have one.
func startLab(t testing.TB, databaseURL string, cells []cell, timeouts map[class]string) *lab {
	t.Helper()
	l := &lab{Servers: stacktest.StartServersOn(t, databaseURL, faultConfig), holds: startHolds(t)}
	l.sql(t, `CREATE TABLE fault_effects (key text)`)
	var proxied string
	l.proxy, proxied = startProxy(t, databaseURL)
	l.Env = append(l.Env, "FAULTS_URL="+l.holds.URL)
	l.workerEnv = append(slices.Clone(l.Env), "DATABASE_URL="+proxied)
	l.worker = l.startFaultWorker(t)
	_, l.Client = l.StartAPI(t, 0)
	t.Cleanup(l.letGo) // before the worker is stopped, which would wait
	for _, c := range cells {
		c.run = l.Post(t, object{"input": "one effect", "plan": c.plan(timeouts[c.class])})
		l.cells = append(l.cells, c)
	}
	deadline := time.After(stacktest.Patience)
	for n := range l.cells {
		select {
		case <-l.holds.reached:
		case <-deadline:
			t.Fatalf("%d of %d runs have come to their boundary", n, len(l.cells))
		}
	}
	return l
}

func (l *lab) startFaultWorker(t testing.TB) *stacktest.Process {
	t.Helper()
	return stacktest.StartProgram(t, stacktest.Program(t, "faultworker"), l.Dir, l.workerEnv)
}

// letGo lets everything go on that is held.
func (l *lab) letGo() { l.letGateGo(); l.letEffectsGo() }

func (l *lab) letGateGo()    { closeOnce(l.holds.atGate) }
func (l *lab) letEffectsGo() { closeOnce(l.holds.inEffect) }

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// sql executes a statement and gives the one number it returns, if any.
func (l *lab) sql(t testing.TB, statement string, args ...any) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), l.DatabaseURL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	rows, err := conn.Query(t.Context(), statement, args...)
	require.NoError(t, err)
	for rows.Next() {
		require.NoError(t, rows.Scan(&n))
	}
	require.NoError(t, rows.Err())
	return n
}

// effectsOf counts the effects of the command of a cell that is held, where they have taken place and not in the record.
func (l *lab) effectsOf(t testing.TB, c cell) int {
	t.Helper()
	return l.effects(t, c, c.commandID())
}

// effects counts those of any command of a cell.
func (l *lab) effects(t testing.TB, c cell, commandID string) int {
	t.Helper()
	key := agent.IdempotencyKey(c.run.RunID, commandID)
	if c.class == transactional {
		return l.sql(t, `SELECT count(*)::int FROM fault_effects WHERE key = $1`, key)
	}
	return l.holds.count(key)
}

// settle waits until every run has ended, or is in doubt, and returns those that are in doubt.
func (l *lab) settle(t testing.TB) (inDoubt []cell) {
	t.Helper()
	for _, c := range l.cells {
		if l.ComesTo(t, c.run.RunID, append(slices.Clone(stacktest.Ends), agent.CommandDoubtType)...).Type == agent.CommandDoubtType {
			inDoubt = append(inDoubt, c)
		}
	}
	return inDoubt
}

// resolve answers for a person, who looks at what the server has seen.
func (l *lab) resolve(t testing.TB, c cell) {
	t.Helper()
	answer := object{"outcome": "retry", "by": "operator"}
	if l.effectsOf(t, c) > 0 {
		answer = object{"outcome": "committed", "result": object{"done": true}, "by": "operator"}
	}
	path := "/api/v1/agent/runs/" + c.run.RunID + "/commands/" + c.commandID() + "/resolve"
	require.Equal(t, http.StatusOK, l.Call(t, http.MethodPost, path, answer, nil))
}

// observe checks what holds for every run, and tells what became of a cell's command.
func (l *lab) observe(t testing.TB, c cell) outcome {
	t.Helper()
	runID := c.run.RunID
	require.Equal(t, agent.RunCompleted, l.ComesTo(t, runID, stacktest.Ends...).Type, "run %s", runID)
	frames := l.Finished(t, runID)
	require.Equal(t, "1", frames[0].ID)
	commands := c.commands()
	require.Equal(t, len(commands)+1, stacktest.Count(frames, agent.CommandCommitted)) // the effects, and the answer
	require.Equal(t, len(commands)+1, stacktest.Count(frames, agent.NodeFinished))
	require.Equal(t, 1, countEnds(frames))
	l.Verifies(t, runID)

	require.Equal(t, c.place != normalLane, l.holds.sharedSegment(agent.IdempotencyKey(runID, c.commandID())), "its lane")
	var command agent.Command
	for _, id := range commands {
		of := l.command(t, runID, id)
		require.Equal(t, agent.Committed, of.State, id)
		require.JSONEq(t, `{"done": true}`, string(of.Result), id)
		if id == c.commandID() {
			command = of
			continue
		}
		require.Equal(t, 1, of.Dispatches, "those that share its segment: %s", id)
		require.Equal(t, 1, l.effects(t, c, id), "those that share its segment: %s", id)
	}
	require.LessOrEqual(t, command.Dispatches, agent.MaxDispatches)

	effects := l.effectsOf(t, c)
	require.NotZero(t, effects)
	o := outcome{Repeated: effects > 1, Redispatched: command.Dispatches > 1}
	for _, f := range frames {
		if f.Event.CommandID != c.commandID() {
			continue
		}
		switch f.Event.Type {
		case agent.CommandDoubtType:
			require.False(t, o.InDoubt, "in doubt twice")
			o.InDoubt = true
		case agent.CommandResolved:
			var said agent.CommandResolvedData
			require.NoError(t, json.Unmarshal(f.Event.Data, &said))
			require.Empty(t, o.By, "resolved twice")
			o.By, o.Resolution = said.By, said.Outcome
		default:
		}
	}
	return o
}

func (l *lab) command(t testing.TB, runID, commandID string) (command agent.Command) {
	t.Helper()
	require.Equal(t, http.StatusOK, l.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/commands/"+commandID, nil, &command))
	return command
}

func countEnds(frames []stacktest.Frame) (n int) {
	for _, typ := range stacktest.Ends {
		n += stacktest.Count(frames, typ)
	}
	return n
}
