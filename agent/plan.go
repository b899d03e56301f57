package agent

import (
	"encoding/json"
)

// NodeKind says what a node of a plan does.
type NodeKind string

const (
	// LLMNode asks a model once.
	LLMNode NodeKind = "llm"
	// ToolNode calls a tool once.
	ToolNode NodeKind = "tool"
	// ReactNode lets a model call tools in turns until it answers. It is the one node of a react run; plans cannot name it.
	ReactNode NodeKind = "react"
	// WaitNode waits for a signal, or for a time.
	WaitNode NodeKind = "wait"
	// WorkflowNode executes a Temporal workflow of somebody else's and waits for its result.
	WorkflowNode NodeKind = "workflow"
	// RetrievalNode searches documents.
	RetrievalNode NodeKind = "retrieval"
)

// OnError says what a node's failure means for its plan.
type OnError string

const (
	// OnErrorFail fails the run. It is the default.
	OnErrorFail OnError = "fail"
	// OnErrorContinue goes on: dependents run and may refer to the error.
	OnErrorContinue OnError = "continue"
	// OnErrorSkip goes on without the nodes that depend on this one.
	OnErrorSkip OnError = "skip_dependents"
)

// Retry says how often a node is tried when its command failed for good.
type Retry struct {
	MaxAttempts int `json:"max_attempts"`
}

// Node is a unit of a plan.
type Node struct {
	ID   string   `json:"id"`
	Kind NodeKind `json:"kind"`
	// Tool belongs to tool nodes, Workflow and TaskQueue to workflow nodes. Args of a tool is a JSON object; of a workflow an object, its
	// one argument, or a list of all its arguments. Both may hold references.
	Tool      string          `json:"tool,omitempty"`
	Workflow  string          `json:"workflow,omitempty"`
	TaskQueue string          `json:"task_queue,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	// Prompt and Inputs belong to llm nodes; the values of Inputs may hold references.
	Prompt string                     `json:"prompt,omitempty"`
	Inputs map[string]json.RawMessage `json:"inputs,omitempty"`
	// Signal is the name of the input that a wait node waits for, at most for its Timeout; its output is the input's value. A wait
	// node with a Duration instead goes on after that time.
	Signal   string   `json:"signal,omitempty"`
	Duration Duration `json:"duration,omitempty"`
	// Query, Limit and Filter belong to retrieval nodes. Query is a text or a reference to one, Filter an object that may hold
	// references; Limit 0 is DefaultRetrievalLimit.
	Query  json.RawMessage `json:"query,omitempty"`
	Limit  int             `json:"limit,omitempty"`
	Filter json.RawMessage `json:"filter,omitempty"`
	// DependsOn are the nodes that must have ended before this one starts. A reference implies the dependency, and so does a condition.
	DependsOn []string `json:"depends_on,omitempty"`
	// When is a condition in the language of package predicate, over input, metadata and nodes.ID.output and .error. A node whose
	// condition does not hold is skipped; those that depend on it run, unless all that they depend on was skipped so and they have
	// no condition of their own.
	When           string   `json:"when,omitempty"`
	ExpectedOutput string   `json:"expected_output,omitempty"`
	Timeout        Duration `json:"timeout,omitempty"`
	Retry          *Retry   `json:"retry,omitempty"`
	OnError        OnError  `json:"on_error,omitempty"`
	// Lane of a tool node; "" is the tool's.
	Lane Lane `json:"lane,omitempty"`
}

// Plan is a task graph: what a planner or a caller writes, and, once compiled, what the record keeps.
type Plan struct {
	Nodes []Node `json:"nodes"`
	// Constraints are what the planner wants the executor to hold to, in words.
	Constraints []string `json:"constraints,omitempty"`
	// Output is the node whose output is the run's, as it is. No other node depends on it. "" lets a model answer from what the plan gives.
	Output string `json:"output,omitempty"`
}

// Node finds a node by id.
func (p *Plan) Node(id string) (*Node, bool) {
	for i := range p.Nodes {
		if p.Nodes[i].ID == id {
			return &p.Nodes[i], true
		}
	}
	return nil, false
}

// Shape is a compiled plan as the workflow needs it: the graph without its content.
type Shape struct {
	Nodes []ShapeNode `json:"nodes"`
}

// ShapeNode is a node of a Shape. Dependencies are indexes into Shape.Nodes.
type ShapeNode struct {
	ID   string   `json:"id"`
	Kind NodeKind `json:"kind"`
	// Tool is that of a tool node, or the name of a workflow.
	Tool      string      `json:"tool,omitempty"`
	Effect    EffectClass `json:"effect_class"`
	DependsOn []int       `json:"depends_on,omitempty"`
	Timeout   Duration    `json:"timeout"`
	Tries     int         `json:"tries,omitempty"`
	OnError   OnError     `json:"on_error,omitempty"`
	// Signal is of a wait node; its Timeout is the timer's or the longest wait, 0 for ever.
	Signal string `json:"signal,omitempty"`
	// Fast: the node's call goes in the fast lane.
	Fast bool `json:"fast,omitempty"`
	// When: it has a condition, which an activity evaluates.
	When bool `json:"when,omitempty"`
}

// Handled reports whether the plan goes on when the node fails.
func (o OnError) Handled() bool { return o == OnErrorContinue || o == OnErrorSkip }

// Final is the index of the node whose output is the run's final output: the last one of a compiled plan.
func (s *Shape) Final() int { return len(s.Nodes) - 1 }

// Bounds of a plan.
const (
	MaxPlanNodes    = 200
	MaxNodeTries    = 10
	MaxValueDepth   = 100 // of the arguments and inputs of a node
	maxNodeTimeout  = Duration(24 * 60 * 60 * 1e9)
	maxWait         = Duration(366 * 24 * 60 * 60 * 1e9)
	maxNodeIDLength = 64
)

// Timeouts of a command when neither node nor tool names one.
const (
	DefaultModelTimeout     = Duration(60 * 1e9)
	DefaultToolTimeout      = Duration(300 * 1e9)
	DefaultRetrievalTimeout = Duration(30 * 1e9)
	// DefaultWorkflowTimeout is as long as one may take.
	DefaultWorkflowTimeout = maxNodeTimeout
)

// Shape reduces a compiled plan to what the workflow needs. The tools give effect classes and timeouts.
func (p *Plan) Shape(d *Definition) *Shape {
	index := make(map[string]int, len(p.Nodes))
	for i, n := range p.Nodes {
		index[n.ID] = i
	}
	s := &Shape{Nodes: make([]ShapeNode, len(p.Nodes))}
	for i, n := range p.Nodes {
		sn := ShapeNode{ID: n.ID, Kind: n.Kind, Tool: n.Tool, Effect: Idempotent, Timeout: n.Timeout, OnError: n.OnError, When: n.When != ""}
		if n.Retry != nil {
			sn.Tries = n.Retry.MaxAttempts
		}
		if n.Kind == WaitNode {
			sn.Effect, sn.Signal = Deterministic, n.Signal
			if n.Signal == "" {
				sn.Timeout = n.Duration
			}
		}
		fallback := DefaultModelTimeout
		if n.Kind == RetrievalNode {
			fallback = DefaultRetrievalTimeout
		}
		if n.Kind == WorkflowNode {
			sn.Tool, fallback = n.Workflow, DefaultWorkflowTimeout
		}
		if n.Kind == ToolNode {
			fallback = DefaultToolTimeout
			sn.Effect = External
			if t, ok := d.Tool(n.Tool); ok {
				sn.Effect = t.Effect
				if t.Timeout > 0 {
					fallback = t.Timeout
				}
				sn.Fast = d.Fast(n.Lane, t)
			}
		}
		if sn.Timeout == 0 && n.Kind != WaitNode {
			sn.Timeout = fallback
		}
		for _, dep := range n.DependsOn {
			sn.DependsOn = append(sn.DependsOn, index[dep])
		}
		s.Nodes[i] = sn
	}
	return s
}

// ReactPlan is the plan of a react run: one node, main.
func ReactPlan() *Plan {
	return &Plan{Nodes: []Node{{ID: MainNodeID, Kind: ReactNode}}}
}
