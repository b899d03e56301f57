package streams_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	follow "runledger/client"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
)

type object = stacktest.Object

var chaosSeed = flag.Uint64("chaos-seed", 1, "decides what happens to the connections of TestStreamsInChaos, and which API is killed when")

const (
	// eventsourceVersion pins the EventSource of programs on Node; it is the one that Node 18 runs.
	eventsourceVersion = "3.0.7"

	chaosRuns, chaosKills      = 20, 6
	chaosGoClients, chaosNpm   = 150, 50
	chaosWords, chaosLongWords = 90, 600 // of the tales a and c, and of b, whose text is too long for an event
)

// tale is what the model says for a node of a run, at one attempt. No two places of it are alike, so that nothing can be left out, come
// twice or come from elsewhere and still be its beginning.
func tale(run int, node string, attempt int) string {
	var b strings.Builder
	words := chaosWords
	if node == "b" {
		words = chaosLongWords
	}
	for i := range words {
		fmt.Fprintf(&b, "%d%s·%d·%d ", run, node, attempt, i)
	}
	return b.String()
}

// breaks says whether the first attempt at a tale breaks off in the middle.
func breaks(run int, node string) bool { return node == "b" && run%3 == 0 }

// teller is a model that takes its time. It begins when it is let begin, and ends the last tale of a run when it is let end.
type teller struct {
	begin, end chan struct{}
	mu         sync.Mutex
	attempts   map[string]int
}

var taleWanted = regexp.MustCompile(`tale (\d+)([abc])`)

func (m *teller) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	wanted := taleWanted.FindStringSubmatch(req.Messages[len(req.Messages)-1].Text)
	if wanted == nil {
		return model.Reply{}, agent.Failed(agent.CodeModelFailed, "no tale was asked for")
	}
	run, err := strconv.Atoi(wanted[1])
	if err != nil {
		return model.Reply{}, err
	}
	node := wanted[2]
	m.mu.Lock()
	m.attempts[req.Key]++
	attempt := m.attempts[req.Key]
	m.mu.Unlock()
	text := tale(run, node, attempt)
	words := strings.SplitAfter(strings.TrimSuffix(text, " "), " ")
	words[len(words)-1] += " "
	pace := time.NewTicker(25 * time.Millisecond)
	defer pace.Stop()
	for i, at := 0, 0; i < len(words); at++ {
		var next <-chan struct{}
		switch {
		case node == "a" && i == 0:
			next = m.begin
		case node == "c" && i == len(words)-1:
			next = m.end
		}
		if next != nil {
			select {
			case <-next:
			case <-ctx.Done():
				return model.Reply{}, model.ContextError(ctx)
			}
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return model.Reply{}, model.ContextError(ctx)
		}
		n := max(1, len(words)/100)
		if node == "c" && at%8 != 0 {
			n = 0 // it is told slowly
			select {
			case <-m.end:
				n = 1
			default:
			}
		}
		for range min(n, len(words)-i) {
			emit(model.Delta{Channel: model.Text, Text: words[i]})
			i++
		}
		if attempt == 1 && breaks(run, node) && i > len(words)/2 {
			return model.Reply{}, agent.Transient(agent.CodeModelStream, "the tale breaks off")
		}
	}
	return model.Reply{Text: text, Finish: model.FinishStop, Model: "teller"}, nil
}

// follower is a client, and what it has seen. The program on Node writes those of its own.
type follower struct {
	Numbers []int64                 `json:"numbers"`
	Texts   map[string]followedText `json:"texts"` // by command
	Wrong   []string                `json:"wrong"`
	// Pieces of output while it arrived, attempts whose output was discarded, connections that had to be made again, and long texts that
	// were read of the record because only their beginning was in an event.
	Pieces     int `json:"pieces"`
	Discarded  int `json:"discarded"`
	Reconnects int `json:"reconnects"`
	Fetched    int `json:"fetched"`
}

type followedText struct {
	Attempt int    `json:"attempt"`
	Text    string `json:"text"`
	State   string `json:"state"`
}

func (f *follower) wrong(format string, args ...any) {
	f.Wrong = append(f.Wrong, fmt.Sprintf(format, args...))
}

// goFollower is one that uses package client.
type goFollower struct {
	follower
	api *follow.Client
	run agent.Run
	// index is the number of the run in the test.
	index int
	log   follow.Log
	// late waits for this before it begins, leaves goes after so many events and comes back.
	late   <-chan struct{}
	leaves int
	opts   follow.Options
	// begun is called at the first event, midway when the second tale begins.
	begun, midway func()
}

func (f *goFollower) follow(ctx context.Context) {
	f.Texts = map[string]followedText{}
	if f.late != nil {
		select {
		case <-f.late:
		case <-ctx.Done():
			return
		}
	}
	for again := true; again; {
		again = false
		shown := map[string]string{} // a client that comes back begins with nothing
		for u, err := range f.api.Follow(ctx, f.log, f.opts) {
			if err != nil {
				f.wrong("after %d events: %v", len(f.Numbers), err)
				return
			}
			if u.Output != nil {
				f.output(u.Output, shown)
			}
			if u.Event == nil {
				continue
			}
			f.event(ctx, u)
			if f.leaves == len(f.Numbers) {
				f.opts.From, again = u.Event.Sequence+1, true
				break
			}
		}
	}
}

func (f *goFollower) event(ctx context.Context, u follow.Update) {
	f.Numbers = append(f.Numbers, u.Event.Sequence)
	f.begun()
	switch {
	case u.Event.Type == "step_started" && u.Event.NodeID == "b":
		f.midway()
	case u.Event.Type == "chat_completed" && u.Output == nil:
		f.read(ctx, u.Event)
	}
}

// read reads a text that was not shown while it arrived, and of which the event has only the beginning.
func (f *goFollower) read(ctx context.Context, e *follow.Event) {
	f.Fetched++
	var data struct{ Output struct{ Href string } }
	if err := json.Unmarshal(e.Data, &data); err != nil {
		f.wrong("%s: %v", e.Data, err)
	}
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		text, err := f.get(ctx, data.Output.Href)
		if err == nil {
			f.Texts[e.CommandID] = followedText{Attempt: e.Attempt, Text: text, State: "committed"}
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			f.wrong("%s: %v", data.Output.Href, err)
			return
		}
	}
}

func (f *goFollower) get(ctx context.Context, href string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, f.api.Silence)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.api.URL+href, nil)
	if err != nil {
		return "", err
	}
	res, err := f.api.HTTP.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	var command struct{ Result struct{ Text string } }
	if err := json.NewDecoder(res.Body).Decode(&command); err != nil {
		return "", err
	}
	return command.Result.Text, nil
}

func (f *goFollower) output(o *follow.Output, shown map[string]string) {
	if o.State == follow.Discarded {
		f.Discarded++
		delete(f.Texts, o.CommandID)
		delete(shown, o.CommandID)
		return
	}
	if o.Channel != "text" {
		f.wrong("output on channel %q", o.Channel)
	}
	if shown[o.CommandID] += o.Added; o.Replaces {
		shown[o.CommandID] = o.Text
	}
	f.Texts[o.CommandID] = followedText{Attempt: o.Attempt, Text: o.Text, State: string(o.State)}
	if shown[o.CommandID] != o.Text {
		f.wrong("%s: what was added gives %q, the text is %q", o.CommandID, shown[o.CommandID], o.Text)
	}
	if o.State == follow.Arriving {
		f.Pieces++
		if !strings.HasPrefix(tale(f.index, o.CommandID, o.Attempt), o.Text) {
			f.wrong("%s, attempt %d: %q", o.CommandID, o.Attempt, o.Text)
		}
	}
}

// streamCounter counts the streams that a client has asked for.
type streamCounter struct {
	http.RoundTripper
	streams atomic.Int64
}

func (c *streamCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Accept") == "text/event-stream" {
		c.streams.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// TestStreamsInChaos: 200 clients, of package client and of "eventsource" from npm, follow 20 runs by way of proxies that break what can
// be broken, to two API processes that are killed again and again while models speak. Some come late, some leave and come back. Each has
// every number once and in order, and the texts that are on record; what it showed of them meanwhile was never anything else than the
// beginning of what was being said.
func TestStreamsInChaos(t *testing.T) {
	t.Parallel()
	modules := stacktest.NpmPackages(t, "eventsource-"+eventsourceVersion, "eventsource@"+eventsourceVersion)
	t.Logf("-chaos-seed %d", *chaosSeed)
	speaker := &teller{begin: make(chan struct{}), end: make(chan struct{}), attempts: map[string]int{}}
	s := stacktest.StartServers(t, fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: plan, tools: [calculator]}
`, modeltest.NewServer(t, speaker).URL))
	s.StartWorker(t)
	var ports [2]int
	var apis [2]*stacktest.Process
	var c *stacktest.Client
	var backends []string
	for i := range apis {
		ports[i] = stacktest.FreePort(t)
		apis[i], c = s.StartAPI(t, ports[i])
		backends = append(backends, net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])))
	}
	// An EventSource does not mind silence. A client of ours is left in a dead connection until it does.
	forGo, forNpm := startUnruly(t, *chaosSeed, 0, backends...), startUnruly(t, *chaosSeed+1, 3*time.Second, backends...)

	var runs []agent.Run
	for i := range chaosRuns {
		runs = append(runs, c.Post(t, object{"input": "tales", "plan": object{"nodes": []any{
			calculation("start", ""), say(i, "a", "start"), calculation("then", "a"), say(i, "b", "then"), calculation("last", "b"), say(i, "c", "last"),
		}}}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*stacktest.Patience)
	defer cancel()
	fromGo, begun, ended := startGoFollowers(ctx, forGo.url(), runs)
	results := filepath.Join(t.TempDir(), "results.json")
	node := stacktest.StartProgram(t, "node", t.TempDir(), []string{"MODULES=" + modules, "ASSIGNMENT=" + npmAssignment(t, forNpm.url(), runs), "RESULTS=" + results},
		absolute(t, "testdata", "eventsource", "follow.mjs"))
	wait(ctx, t, begun, "the clients see nothing")
	node.Line(t, "half of them follow")
	close(speaker.begin)

	r := rand.New(rand.NewPCG(*chaosSeed, 0))
	for n := range chaosKills {
		for range chaosGoClients / 2 { // they come back, and some of them again
			wait(ctx, t, forGo.accepted, "the clients do not come back")
		}
		victims := []int{r.IntN(2)}
		if r.IntN(3) == 0 {
			victims = []int{0, 1}
		}
		how := syscall.SIGKILL
		if n%3 == 2 {
			how = syscall.SIGTERM // and some are told to go
		}
		t.Logf("APIs %v: %v", victims, how)
		for _, i := range victims {
			apis[i].End(t, how)
		}
		for _, i := range victims {
			apis[i], _ = s.StartAPI(t, ports[i])
		}
	}
	close(speaker.end)
	close(forGo.calm)
	close(forNpm.calm)
	wait(ctx, t, ended, "not all clients of package client come to an end")
	wait(ctx, t, node.Done, "not all clients of eventsource come to an end")
	require.Zero(t, node.Cmd.ProcessState.ExitCode(), "what it says stands above")
	raw, err := os.ReadFile(results)
	require.NoError(t, err)
	var fromNpm []*follower
	require.NoError(t, json.Unmarshal(raw, &fromNpm))
	require.Len(t, fromNpm, chaosNpm)

	last := make([]int64, len(runs))
	texts := make([]map[string]followedText, len(runs))
	for i, run := range runs {
		frames := c.Finished(t, run.RunID)
		last[i], texts[i] = frames[len(frames)-1].Event.Sequence, told(t, c, i, run, frames)
	}
	for i, f := range fromGo {
		f.check(t, fmt.Sprintf("client %d", i), last[f.index], texts[f.index])
	}
	for i, f := range fromNpm {
		f.check(t, fmt.Sprintf("EventSource %d", i), last[i%chaosRuns], texts[i%chaosRuns])
	}
	all := make([]*follower, 0, len(fromGo))
	for _, f := range fromGo {
		f.Reconnects = int(f.api.HTTP.Transport.(*streamCounter).streams.Load()) - 1
		all = append(all, &f.follower)
	}
	happened(t, "package client", forGo, all)
	happened(t, "eventsource", forNpm, fromNpm)
	require.Positive(t, forGo.midRequest.Load()+forNpm.midRequest.Load())
}

func calculation(id, after string) object {
	n := object{"id": id, "kind": "tool", "tool": "calculator", "args": object{"expression": "17 * 23"}}
	if after != "" {
		n["depends_on"] = []string{after}
	}
	return n
}

func say(run int, node, after string) object {
	return object{"id": node, "kind": "llm", "prompt": fmt.Sprintf("Tell tale %d%s", run, node), "depends_on": []string{after}}
}

func absolute(t testing.TB, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(parts...))
	require.NoError(t, err)
	return path
}

func wait[T any](ctx context.Context, t testing.TB, signal <-chan T, otherwise string) {
	t.Helper()
	select {
	case <-signal:
	case <-ctx.Done():
		require.Fail(t, otherwise)
	}
}

// startGoFollowers starts the clients of package client. begun is closed when half of those that come at once have seen an event (the
// others may have to wait long before they try again), ended when all are done.
func startGoFollowers(ctx context.Context, address string, runs []agent.Run) (all []*goFollower, begun, ended chan struct{}) {
	begun, ended = make(chan struct{}), make(chan struct{})
	midway := make([]chan struct{}, len(runs))
	var reached []func()
	for i := range midway {
		midway[i] = make(chan struct{})
		reached = append(reached, sync.OnceFunc(func() { close(midway[i]) }))
	}
	var done sync.WaitGroup
	early, seen := 0, make(chan struct{}, chaosGoClients)
	for i := range chaosGoClients {
		index := i % len(runs)
		f := &goFollower{index: index, run: runs[index], log: follow.Conversation(runs[index].ConversationID), begun: func() {}, midway: func() {}}
		f.api = &follow.Client{URL: address, Silence: 12 * time.Second, // a server's heartbeat comes every 10 s
			HTTP: &http.Client{Transport: &streamCounter{RoundTripper: http.DefaultTransport.(*http.Transport).Clone()}}}
		if i%2 == 0 {
			f.log = follow.Run(f.run.RunID)
		}
		switch i / len(runs) {
		case 1:
			f.leaves = 4 + index
		case 2, 3:
			f.late, f.opts.PageSize = midway[index], 1+i%7
		default:
			early++
			f.begun = sync.OnceFunc(func() { seen <- struct{}{} })
			f.midway = reached[index]
		}
		all = append(all, f)
		done.Go(func() { f.follow(ctx) })
	}
	go func() {
		for range early / 2 {
			<-seen
		}
		close(begun)
	}()
	go func() { done.Wait(); close(ended) }()
	return all, begun, ended
}

// npmAssignment says to the program on Node who follows what, and what may be said, and returns the file in which it stands.
func npmAssignment(t testing.TB, address string, runs []agent.Run) string {
	t.Helper()
	type task struct {
		Run    int    `json:"run"`
		Path   string `json:"path"`
		Late   bool   `json:"late"`
		Leaves int    `json:"leaves"`
	}
	var tasks []task
	for i := range chaosNpm {
		n := task{Run: i % len(runs), Late: i/len(runs) == 1}
		n.Path = "/api/v1/agent/runs/" + runs[n.Run].RunID + "/events"
		if i%2 == 0 {
			n.Path = "/api/v1/agent/conversations/" + runs[n.Run].ConversationID + "/events?until=idle"
		}
		if i/len(runs) == 2 {
			n.Leaves = 4 + n.Run
		}
		tasks = append(tasks, n)
	}
	tales := map[string][]string{}
	for i := range runs {
		for _, node := range []string{"a", "b", "c"} {
			for attempt := range 8 { // on a busy machine a call may take too long
				tales[strconv.Itoa(i)+node] = append(tales[strconv.Itoa(i)+node], tale(i, node, attempt+1))
			}
		}
	}
	raw, err := json.Marshal(object{"url": address, "followers": tasks, "tales": tales})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "assignment.json")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	return path
}

// told reads the texts on record of a run, by command. A model whose call took too long on a busy machine was asked once more.
func told(t testing.TB, c *stacktest.Client, index int, run agent.Run, frames []stacktest.Frame) map[string]followedText {
	t.Helper()
	texts := map[string]followedText{}
	for _, f := range frames {
		e := f.Event
		if e.Type != agent.CommandCommitted || !strings.Contains("abc", e.NodeID) {
			continue
		}
		var command struct{ Result struct{ Text string } }
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/commands/"+url.PathEscape(e.CommandID), nil, &command))
		require.Equal(t, tale(index, e.NodeID, e.Attempt), command.Result.Text)
		texts[e.CommandID] = followedText{Attempt: e.Attempt, Text: command.Result.Text, State: "committed"}
		if breaks(index, e.NodeID) {
			require.Greater(t, e.Attempt, 1)
		}
	}
	require.Len(t, texts, 3)
	return texts
}

// check compares what a client has seen with the record.
func (f *follower) check(t testing.TB, who string, last int64, texts map[string]followedText) {
	t.Helper()
	require.Empty(t, f.Wrong, who)
	require.Len(t, f.Numbers, int(last), "%s has %v", who, f.Numbers)
	for i, n := range f.Numbers {
		require.EqualValues(t, i+1, n, "%s has %v", who, f.Numbers)
	}
	require.Len(t, f.Texts, len(texts), who)
	for command, want := range texts {
		require.Equal(t, want, f.Texts[command], "%s, %s", who, command)
	}
}

// happened requires that what the test is about has happened, and tells how often.
func happened(t testing.TB, who string, u *unruly, all []*follower) {
	t.Helper()
	var pieces, discarded, reconnects, reconnected, fetched int
	for _, f := range all {
		pieces, discarded, reconnects, fetched = pieces+f.Pieces, discarded+f.Discarded, reconnects+f.Reconnects, fetched+f.Fetched
		if f.Reconnects > 0 {
			reconnected++
		}
	}
	t.Logf("%s: %d clients, %d of which connected again, %d times; %d pieces of output, %d times discarded, %d long texts read of the record; "+
		"connections %d, refused %d, cut %d, in the middle of a frame %d, of a request %d, client not told %d, server not told %d, delays %d, bursts %d",
		who, len(all), reconnected, reconnects, pieces, discarded, fetched, u.connections.Load(), u.refused.Load(), u.cuts.Load(), u.midFrame.Load(),
		u.midRequest.Load(), u.clientHalf.Load(), u.serverHalf.Load(), u.delays.Load(), u.bursts.Load())
	for what, n := range map[string]int64{"refused": u.refused.Load(), "cut": u.cuts.Load(), "in the middle of a frame": u.midFrame.Load(), "client not told": u.clientHalf.Load(),
		"server not told": u.serverHalf.Load(), "delays": u.delays.Load(), "bursts": u.bursts.Load(), "pieces": int64(pieces), "discarded": int64(discarded), "connected again": int64(reconnects)} {
		require.Positive(t, n, "%s: %s", who, what)
	}
	require.Greater(t, reconnected, len(all)/2, who)
}
