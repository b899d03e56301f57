package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

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
	reached chan string
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
	h := &holds{held: map[string]bool{}, effects: map[string]int{}, reached: make(chan string, 1024),
		atGate: make(chan struct{}), inEffect: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /at/{boundary}", func(_ http.ResponseWriter, r *http.Request) { h.hold(r, r.PathValue("boundary")) })
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

// cell is a run that is held at a boundary.
type cell struct {
	class    class
	boundary boundary
	run      agent.Run
}

func (c cell) commandID() string { return string(c.boundary) }

// lab is a stack with one run for every class and boundary.
type lab struct {
	*servers
	*client
	holds  *holds
	proxy  *proxy
	worker *process
	// workerEnv is that of the workers, which see the database by way of the proxy only.
	workerEnv []string
	cells     []cell
}

// startLab brings one run of every class to every boundary and holds it there. Timeouts are the classes', for those that
// have one.
func startLab(t testing.TB, databaseURL string, timeouts map[class]string) *lab {
	t.Helper()
	l := &lab{servers: startServersOn(t, databaseURL, faultConfig), holds: startHolds(t)}
	l.sql(t, `CREATE TABLE fault_effects (key text)`)
	var proxied string
	l.proxy, proxied = startProxy(t, databaseURL)
	l.env = append(l.env, "FAULTS_URL="+l.holds.URL)
	l.workerEnv = append(slices.Clone(l.env), "DATABASE_URL="+proxied)
	l.worker = l.startFaultWorker(t)
	_, l.client = l.startAPI(t, 0)
	t.Cleanup(l.letGo) // before the worker is stopped, which would wait
	for _, class := range classes {
		for _, boundary := range boundaries {
			node := object{"id": string(boundary), "kind": "tool", "tool": string(class)}
			if timeout := timeouts[class]; timeout != "" {
				node["timeout"] = timeout
			}
			nodes := []any{node}
			if boundary == returned {
				nodes = append(nodes, object{"id": nextCommand, "kind": "llm", "prompt": "go on", "depends_on": []string{string(boundary)}})
			}
			run := l.post(t, object{"input": "one effect", "plan": object{"nodes": nodes}})
			l.cells = append(l.cells, cell{class, boundary, run})
		}
	}
	deadline := time.After(patience)
	for n := range l.cells {
		select {
		case <-l.holds.reached:
		case <-deadline:
			t.Fatalf("%d of %d runs have come to their boundary", n, len(l.cells))
		}
	}
	return l
}

func (l *lab) startFaultWorker(t testing.TB) *process {
	t.Helper()
	return startProgram(t, faultWorker, l.dir, l.workerEnv)
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

// freeze stops a process where it stands; thaw lets it go on.
func (p *process) freeze(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) })
}

func (p *process) thaw(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// sql executes a statement and gives the one number it returns, if any.
func (l *lab) sql(t testing.TB, statement string, args ...any) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), l.databaseURL)
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

// effectsOf counts the effects of a cell's command, where they have taken place and not in the record.
func (l *lab) effectsOf(t testing.TB, c cell) int {
	t.Helper()
	key := agent.IdempotencyKey(c.run.RunID, c.commandID())
	if c.class == transactional {
		return l.sql(t, `SELECT count(*)::int FROM fault_effects WHERE key = $1`, key)
	}
	return l.holds.count(key)
}

// comesTo follows a run until it has an event of one of the types, over as many connections as it takes, and returns it.
func (c *client) comesTo(t testing.TB, runID string, types ...agent.EventType) agent.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	var after int64
	for {
		if e := c.next(ctx, runID, &after, types); e != nil {
			return *e
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("run %s does not come to %v; its last event is number %d", runID, types, after)
		}
	}
}

// next reads one connection's events after a number up to one of the types, nil when it ends before.
func (c *client) next(ctx context.Context, runID string, after *int64, types []agent.EventType) *agent.Event {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/api/v1/agent/runs/"+runID+"/events?profile=ledger", nil)
	if err != nil {
		return nil
	}
	req.Header.Set("Accept", "text/event-stream")
	if *after > 0 {
		req.Header.Set("Last-Event-Id", strconv.FormatInt(*after, 10))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil
	}
	for in := bufio.NewReader(res.Body); ; {
		f, err := readFrame(in)
		if err != nil {
			return nil
		}
		if f.ID != "" {
			*after = f.Event.Sequence
		}
		if slices.Contains(types, f.Event.Type) {
			return &f.Event
		}
	}
}

// ends are the terminal events.
var ends = []agent.EventType{agent.RunCompleted, agent.RunFailed, agent.RunCancelled}

// settle waits until every run has ended, or is in doubt, and returns those that are in doubt.
func (l *lab) settle(t testing.TB) (inDoubt []cell) {
	t.Helper()
	for _, c := range l.cells {
		if l.comesTo(t, c.run.RunID, append(slices.Clone(ends), agent.CommandDoubtType)...).Type == agent.CommandDoubtType {
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
	require.Equal(t, http.StatusOK, l.call(t, http.MethodPost, path, answer, nil))
}

// observe checks what holds for every run, and tells what became of a cell's command.
func (l *lab) observe(t testing.TB, c cell) outcome {
	t.Helper()
	runID := c.run.RunID
	require.Equal(t, agent.RunCompleted, l.comesTo(t, runID, ends...).Type, "run %s", runID)
	frames := l.finished(t, runID)
	require.Equal(t, "1", frames[0].ID)
	require.Equal(t, 2, count(frames, agent.CommandCommitted)) // the effect, and the answer
	require.Equal(t, 2, count(frames, agent.NodeFinished))
	require.Equal(t, 1, countEnds(frames))

	var command agent.Command
	require.Equal(t, http.StatusOK, l.call(t, http.MethodGet, "/api/v1/agent/runs/"+runID+"/commands/"+c.commandID(), nil, &command))
	require.Equal(t, agent.Committed, command.State)
	require.JSONEq(t, `{"done": true}`, string(command.Result))
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

func countEnds(frames []frame) (n int) {
	for _, typ := range ends {
		n += count(frames, typ)
	}
	return n
}
