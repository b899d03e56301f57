package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"runledger/agent"
)

// commandsPerRun are the tool commands of a run; the answer of the model comes on top.
const commandsPerRun = 10

// schedule is everything that the seed decides.
type schedule struct {
	runs  []plannedRun
	kills []kill
	// every is the time between two posts: they last as long as the kills.
	every time.Duration
}

type plannedRun struct {
	nodes []plannedNode
	// joins is the run whose conversation this one is posted into, -1 for a new one.
	joins int
	// followed: a client follows it, and drops its connection after so many frames each time.
	followed  bool
	dropAfter int
	// fast: its tool calls are in the fast lane, slow and external ones too.
	fast bool
}

// plannedNode is a call of the calculator (Method ""), or of the tool server.
type plannedNode struct {
	method string
	a, b   int
	// took is how long the tool server takes, and late that the effect takes place at the end of it, if somebody still waits.
	takes time.Duration
	late  bool
	deps  []int
}

// victim is what is killed.
type victim string

const (
	killWorker   victim = "worker"
	killWorkers  victim = "all workers"
	killAPI      victim = "api"
	killTemporal victim = "temporal"
	stopTemporal victim = "temporal for 10 s"
	killPostgres victim = "postgres"
)

type kill struct {
	victim victim
	// after is the time since the last recovery.
	after time.Duration
	// worker is which one.
	worker int
	// away is how long the victim stays away before it is started again.
	away time.Duration
	// immediate asks Postgres for an immediate shutdown, instead of SIGKILL.
	immediate bool
}

const longStop = 10 * time.Second

func newSchedule(o options) *schedule {
	s := &schedule{}
	r := rand.New(rand.NewPCG(o.seed, 0))
	total := time.Duration(0)
	for _, v := range victims(o.kills, r) {
		k := kill{victim: v, worker: r.IntN(o.workers), after: o.gap/2 + time.Duration(r.Int64N(int64(o.gap))), immediate: r.IntN(2) == 0}
		if r.IntN(2) == 0 {
			k.away = time.Duration(r.Int64N(int64(1500 * time.Millisecond)))
		}
		if v == stopTemporal {
			k.away = longStop
		}
		total += k.after + k.away + 500*time.Millisecond
		s.kills = append(s.kills, k)
	}
	s.every = total / time.Duration(o.runs)
	for i := range o.runs {
		s.runs = append(s.runs, newPlannedRun(rand.New(rand.NewPCG(o.seed, uint64(i)+1)), i))
	}
	return s
}

// victims is a shuffled deck: most kills are of workers, and every kind is in it where there is room.
func victims(n int, r *rand.Rand) []victim {
	var deck []victim
	add := func(v victim, count int) {
		for range min(count, n-len(deck)) {
			deck = append(deck, v)
		}
	}
	add(killWorker, min(1, n))
	add(stopTemporal, max(1, n/25))
	add(killPostgres, max(1, n/8))
	add(killAPI, max(1, n/8))
	add(killTemporal, n/8)
	add(killWorkers, n/12)
	add(killWorker, n)
	r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

func newPlannedRun(r *rand.Rand, i int) plannedRun {
	p := plannedRun{joins: -1, followed: i%4 == 0, dropAfter: 5 + r.IntN(30)}
	if i > 0 && r.IntN(5) == 0 {
		p.joins = r.IntN(i)
	}
	for n := range commandsPerRun {
		node := plannedNode{a: r.IntN(90) + 10, b: r.IntN(90) + 10}
		switch pick := r.IntN(10); {
		case pick < 2:
		case pick < 5:
			node.method = "GET"
		default:
			node.method, node.late = "POST", r.IntN(3) == 0
		}
		node.takes = latency(r)
		if node.method == "GET" {
			node.takes = min(node.takes, longestRepeatable)
		}
		for d := range n {
			if len(node.deps) < 3 && r.IntN(4) == 0 {
				node.deps = append(node.deps, d)
			}
		}
		p.nodes = append(p.nodes, node)
	}
	p.fast = r.IntN(2) == 0
	return p
}

// longestRepeatable bounds the calls that may be repeated. The gate gives a command up after five dispatches; with a kill every
// few seconds a GET of twelve seconds can well lose five workers, and fails its run as it should.
const longestRepeatable = 3 * time.Second

// latency is mostly that of a healthy server; some calls last long enough for a kill to find them, a few longer than Temporal
// is ever away.
func latency(r *rand.Rand) time.Duration {
	between := func(low, high int) time.Duration { return time.Duration(low+r.IntN(high-low)) * time.Millisecond }
	switch pick := r.IntN(100); {
	case pick < 75:
		return between(2, 100)
	case pick < 92:
		return between(200, 1500)
	case pick < 97:
		return between(2000, 6000)
	}
	return between(11000, 13000)
}

type object = map[string]any

func nodeID(i int) string { return fmt.Sprintf("n%d", i) }

// body is the request that posts the run. Nodes use what those before them gave, where they can.
func (p plannedRun) body(tools, conversationID string) object {
	leaves := map[int]bool{}
	nodes := make([]object, 0, len(p.nodes)+1)
	for i, n := range p.nodes {
		leaves[i] = true
		deps := []string{}
		var from any // an expression, of the first dependency
		for _, d := range n.deps {
			delete(leaves, d)
			deps = append(deps, nodeID(d))
			if from == nil && p.nodes[d].method != "" {
				from = object{"$from": "/nodes/" + nodeID(d) + "/output/json/expression"}
			}
		}
		if from == nil {
			from = fmt.Sprintf("%d * %d", n.a, n.b)
		}
		node := object{"id": nodeID(i), "kind": "tool", "tool": "calculator", "depends_on": deps, "args": object{"expression": from}}
		if p.fast {
			node["lane"] = agent.FastLane
		}
		if n.method != "" {
			node["tool"] = "http_request"
			args := object{"method": n.method, "url": fmt.Sprintf("%s/do?ms=%d&late=%t&a=%d&b=%d", tools, n.takes.Milliseconds(), n.late, n.a, n.b)}
			if n.method == "POST" {
				args["json"] = object{"of": from}
			}
			node["args"] = args
		}
		nodes = append(nodes, node)
	}
	last := []string{}
	for i := range p.nodes {
		if leaves[i] {
			last = append(last, nodeID(i))
		}
	}
	nodes = append(nodes, object{"id": "say", "kind": "llm", "prompt": "Say in a sentence what was done.", "depends_on": last,
		"inputs": object{"last": object{"$from": "/nodes/" + nodeID(len(p.nodes)-1) + "/output"}}})
	body := object{"input": "soak", "plan": object{"nodes": nodes}, "wait": 0}
	if conversationID != "" {
		body["conversation_id"] = conversationID
	}
	return body
}
