package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PlanFault is one thing that is wrong with a plan. Pointer is the JSON Pointer of the place, from the plan's root.
type PlanFault struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

// PlanError lists what is wrong with a plan, in the order of its nodes.
type PlanError struct {
	Faults []PlanFault
}

func (e *PlanError) Error() string {
	parts := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		parts[i] = f.Pointer + ": " + f.Message
	}
	return "invalid plan: " + strings.Join(parts, "; ")
}

// CheckArguments checks a tool's arguments, references left in place, and returns the faults with pointers from the
// arguments' root. known is false when there is no such tool.
type CheckArguments func(toolName string, args json.RawMessage) (faults []PlanFault, known bool)

// PlanChecks are what Compile asks of those who know the tools and the language of conditions.
type PlanChecks struct {
	Arguments CheckArguments
	// Workflow reports whether the agent may start a workflow.
	Workflow func(taskQueue, name string) bool
	// When says which nodes a condition names, or what is wrong with it.
	When func(condition string) (nodes []string, err error)
}

// Compile checks a plan and returns it as the record keeps it: nodes in a topological order that follows the order they
// were written in, dependencies complete with those that references imply, defaults filled in, and the final answer last:
// the node that the plan names as its output, or the only sink when that is an llm node without a condition, else an appended llm node "answer" over all
// sinks.
//
// The error is a *PlanError that names every fault.
func Compile(p *Plan, check PlanChecks) (*Plan, error) {
	c := &compiler{plan: p, index: make(map[string]int, len(p.Nodes))}
	switch {
	case len(p.Nodes) == 0:
		c.fault("/nodes", "a plan needs at least one node")
	case len(p.Nodes) > MaxPlanNodes:
		c.fault("/nodes", "%d nodes; a plan may have %d", len(p.Nodes), MaxPlanNodes)
	}
	if len(c.faults) > 0 {
		return nil, &PlanError{Faults: c.faults}
	}
	for i, n := range p.Nodes {
		c.checkID(i, n.ID)
	}
	c.deps = make([][]int, len(p.Nodes))
	for i := range p.Nodes {
		c.checkNode(i, check)
		c.checkWhen(i, check.When)
	}
	c.checkOutput()
	order := c.order()
	if len(c.faults) > 0 {
		return nil, &PlanError{Faults: c.faults}
	}
	return c.compiled(order), nil
}

type nodeReference struct {
	node, target  int
	part, pointer string
}

type compiler struct {
	plan   *Plan
	index  map[string]int
	deps   [][]int
	refs   []nodeReference
	faults []PlanFault
}

func (c *compiler) fault(pointer, format string, args ...any) {
	c.faults = append(c.faults, PlanFault{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

func (c *compiler) checkID(i int, id string) {
	at := fmt.Sprintf("/nodes/%d/id", i)
	switch {
	case !ValidNodeID(id):
		c.fault(at, "%q is not a node id: want 1 to %d of A-Z a-z 0-9 _ -", id, maxNodeIDLength)
		return
	case id == PlanNodeID || id == AnswerNodeID || id == MainNodeID:
		c.fault(at, "%q is a reserved node id", id)
		return
	}
	if first, ok := c.index[id]; ok {
		c.fault(at, "%q is the id of node %d already", id, first)
		return
	}
	c.index[id] = i
}

// ValidNodeID reports whether id has the form of a node id. Reserved ids have it too.
func ValidNodeID(id string) bool {
	if len(id) == 0 || len(id) > maxNodeIDLength {
		return false
	}
	for _, r := range id {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return false
		}
	}
	return true
}

func (c *compiler) checkNode(i int, check PlanChecks) {
	n := &c.plan.Nodes[i]
	at := fmt.Sprintf("/nodes/%d", i)
	switch n.Kind {
	case LLMNode:
		c.checkLLM(i, n, at)
	case ToolNode:
		c.checkTool(i, n, at, check.Arguments)
	case WaitNode:
		c.checkWait(n, at)
	case WorkflowNode:
		c.checkWorkflow(i, n, at, check.Workflow)
	case RetrievalNode: // below
	case ReactNode:
		c.fault(at+"/kind", "%q cannot be part of a plan; want llm, tool, wait, workflow or retrieval", n.Kind)
	default:
		c.fault(at+"/kind", "%q is not a node kind; want llm, tool, wait, workflow or retrieval", n.Kind)
	}
	if n.Kind != WorkflowNode && (n.Workflow != "" || n.TaskQueue != "") {
		c.fault(at, "only a workflow node has a workflow or a task_queue")
	}
	c.checkRetrieval(i, n, at)
	if n.Kind != ToolNode && n.Lane != "" || !n.Lane.Valid() {
		c.fault(at+"/lane", "%q: want normal or fast, for a tool node", n.Lane)
	}
	if n.Kind != WaitNode && (n.Signal != "" || n.Duration != 0) {
		c.fault(at, "only a wait node has a signal or a duration")
	}
	for k, dep := range n.DependsOn {
		target, ok := c.index[dep]
		switch {
		case !ok:
			c.fault(fmt.Sprintf("%s/depends_on/%d", at, k), "there is no node %q", dep)
		case target == i:
			c.fault(fmt.Sprintf("%s/depends_on/%d", at, k), "a node cannot depend on itself")
		default:
			c.depend(i, target)
		}
	}
	longest := maxNodeTimeout
	if n.Kind == WaitNode {
		longest = maxWait
	}
	if n.Timeout > longest {
		c.fault(at+"/timeout", "%s is longer than %s", n.Timeout, longest)
	}
	if n.Retry != nil && (n.Retry.MaxAttempts < 1 || n.Retry.MaxAttempts > MaxNodeTries) {
		c.fault(at+"/retry/max_attempts", "%d: want 1 to %d", n.Retry.MaxAttempts, MaxNodeTries)
	}
	switch n.OnError {
	case "", OnErrorFail, OnErrorContinue, OnErrorSkip:
	default:
		c.fault(at+"/on_error", "%q: want fail, continue or skip_dependents", n.OnError)
	}
}

func (c *compiler) checkWhen(i int, check func(string) ([]string, error)) {
	n := &c.plan.Nodes[i]
	if n.When == "" {
		return
	}
	at := fmt.Sprintf("/nodes/%d/when", i)
	if n.ID == c.plan.Output {
		c.fault(at, "the plan's output cannot have a condition")
	}
	nodes, err := check(n.When)
	if err != nil {
		c.fault(at, "%v", err)
		return
	}
	for _, id := range nodes {
		target, ok := c.index[id]
		switch {
		case !ok:
			c.fault(at, "there is no node %q", id)
		case target == i:
			c.fault(at, "a node's condition cannot name the node itself")
		default:
			c.refs = append(c.refs, nodeReference{node: i, target: target, part: "output", pointer: at})
		}
	}
}

func (c *compiler) checkLLM(i int, n *Node, at string) {
	if strings.TrimSpace(n.Prompt) == "" {
		c.fault(at+"/prompt", "an llm node needs a prompt")
	}
	if n.Tool != "" {
		c.fault(at+"/tool", "an llm node has no tool")
	}
	if !absent(n.Args) {
		c.fault(at+"/args", "an llm node has no args; use inputs")
	}
	for _, name := range slices.Sorted(maps.Keys(n.Inputs)) {
		c.checkReferences(i, n.Inputs[name], at+"/inputs/"+EscapeToken(name))
	}
}

func (c *compiler) checkWait(n *Node, at string) {
	if n.Tool != "" || n.Prompt != "" || !absent(n.Args) || n.Inputs != nil {
		c.fault(at, "a wait node has a signal or a duration, and nothing to do")
	}
	switch {
	case (n.Signal == "") == (n.Duration == 0):
		c.fault(at, "a wait node needs either a signal or a duration")
	case n.Signal != "" && !ValidNodeID(n.Signal):
		c.fault(at+"/signal", "%q: want 1 to %d of A-Z a-z 0-9 _ -", n.Signal, maxNodeIDLength)
	case n.Duration != 0 && n.Timeout != 0:
		c.fault(at+"/timeout", "a wait for a duration has no timeout")
	case n.Duration < 0 || n.Duration > maxWait:
		c.fault(at+"/duration", "want more than nothing and at most %s", maxWait)
	}
}

func (c *compiler) checkWorkflow(i int, n *Node, at string, may func(taskQueue, name string) bool) {
	if n.Tool != "" || n.Prompt != "" || n.Inputs != nil {
		c.fault(at, "a workflow node has a workflow, a task_queue and args")
	}
	switch {
	case n.Workflow == "":
		c.fault(at+"/workflow", "a workflow node needs the name of a workflow")
	case n.TaskQueue == "":
		c.fault(at+"/task_queue", "a workflow node needs the task queue of its workers")
	case may == nil || !may(n.TaskQueue, n.Workflow):
		c.fault(at+"/workflow", "this agent may not start %q on %q", n.Workflow, n.TaskQueue)
	}
	if b := firstByte(n.Args); !absent(n.Args) && b != '{' && b != '[' {
		c.fault(at+"/args", "want an object, or a list of arguments")
		return
	}
	c.checkReferences(i, n.Args, at+"/args")
}

func (c *compiler) checkTool(i int, n *Node, at string, check CheckArguments) {
	if n.Prompt != "" {
		c.fault(at+"/prompt", "a tool node has no prompt")
	}
	if n.Inputs != nil {
		c.fault(at+"/inputs", "a tool node has no inputs; use args")
	}
	if n.Tool == "" {
		c.fault(at+"/tool", "a tool node needs a tool")
		return
	}
	args := n.Args
	if absent(args) {
		args = json.RawMessage("{}")
	}
	if firstByte(args) != '{' {
		c.fault(at+"/args", "want an object")
		return
	}
	before := len(c.faults)
	c.checkReferences(i, args, at+"/args")
	if len(c.faults) > before {
		return
	}
	faults, known := check(n.Tool, args)
	if !known {
		c.fault(at+"/tool", "there is no tool %q for this agent", n.Tool)
		return
	}
	for _, f := range faults {
		c.fault(at+"/args"+f.Pointer, "%s", f.Message)
	}
}

func (c *compiler) checkReferences(i int, value json.RawMessage, at string) {
	if deeperThan(value, MaxValueDepth) {
		c.fault(at, "nested deeper than %d levels", MaxValueDepth)
		return
	}
	EachReference(value, func(where string, ref Reference, err error) {
		pointer := at + where + "/$from"
		if err != nil {
			c.fault(pointer, "%v", err)
			return
		}
		if ref.Root != "nodes" {
			return
		}
		target, ok := c.index[ref.NodeID]
		switch {
		case !ok:
			c.fault(pointer, "there is no node %q", ref.NodeID)
		case target == i:
			c.fault(pointer, "a node cannot refer to itself")
		default:
			c.refs = append(c.refs, nodeReference{node: i, target: target, part: ref.Part, pointer: pointer})
		}
	})
}

// checkOutput holds the node that gives the run's output to be the last one.
func (c *compiler) checkOutput() {
	if c.plan.Output == "" {
		return
	}
	at, ok := c.index[c.plan.Output]
	if !ok {
		c.fault("/output", "there is no node %q", c.plan.Output)
		return
	}
	for i, deps := range c.deps {
		if slices.Contains(deps, at) || slices.ContainsFunc(c.refs, func(r nodeReference) bool { return r.node == i && r.target == at }) {
			c.fault("/output", "node %q depends on it; the output comes last", c.plan.Nodes[i].ID)
		}
	}
}

func (c *compiler) depend(node, on int) {
	if !slices.Contains(c.deps[node], on) {
		c.deps[node] = append(c.deps[node], on)
	}
}

// order adds what references imply to the dependencies and sorts the nodes topologically: of the nodes that may come next,
// always the one that was written first. A reference to a node that itself waits for the referring one is not to an
// ancestor, and is a fault where it stands; so is every node on a cycle of depends_on.
func (c *compiler) order() []int {
	for _, r := range c.refs {
		if c.reaches(r.target, r.node) {
			c.fault(r.pointer, "node %q is not an ancestor: it depends on this node", c.plan.Nodes[r.target].ID)
			continue
		}
		c.depend(r.node, r.target)
		if target := c.plan.Nodes[r.target]; r.part == "error" && target.OnError != OnErrorContinue {
			c.fault(r.pointer, "node %q has no error to refer to unless its on_error is continue", target.ID)
		}
	}
	n := len(c.plan.Nodes)
	order := make([]int, 0, n)
	placed := make([]bool, n)
	for len(order) < n {
		next := -1
		for i := range n {
			if last := c.plan.Nodes[i].ID == c.plan.Output && len(order) < n-1; last {
				continue
			}
			if !placed[i] && !slices.ContainsFunc(c.deps[i], func(d int) bool { return !placed[d] }) {
				next = i
				break
			}
		}
		if next < 0 {
			break
		}
		placed[next] = true
		order = append(order, next)
	}
	for i := range n {
		if !placed[i] && c.reaches(i, i) {
			c.fault(fmt.Sprintf("/nodes/%d/depends_on", i), "node %q is part of a cycle", c.plan.Nodes[i].ID)
		}
	}
	return order
}

// reaches reports whether node from depends on node to, directly or not.
func (c *compiler) reaches(from, to int) bool {
	seen := make([]bool, len(c.deps))
	stack := slices.Clone(c.deps[from])
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if i == to {
			return true
		}
		if !seen[i] {
			seen[i] = true
			stack = append(stack, c.deps[i]...)
		}
	}
	return false
}

func (c *compiler) compiled(order []int) *Plan {
	out := &Plan{Nodes: make([]Node, 0, len(order)+1), Constraints: c.plan.Constraints, Output: c.plan.Output}
	place := make([]int, len(order))
	for at, i := range order {
		place[i] = at
	}
	inner := make([]bool, len(order))
	for _, i := range order {
		n := c.plan.Nodes[i]
		deps := slices.SortedFunc(slices.Values(c.deps[i]), func(a, b int) int { return place[a] - place[b] })
		n.DependsOn = nil
		for _, d := range deps {
			n.DependsOn = append(n.DependsOn, c.plan.Nodes[d].ID)
			inner[place[d]] = true
		}
		if absent(n.Args) {
			n.Args = nil
			if n.Kind == ToolNode {
				n.Args = json.RawMessage("{}")
			}
		}
		n.Query, n.Filter = given(n.Query), given(n.Filter)
		if n.OnError == "" {
			n.OnError = OnErrorFail
		}
		out.Nodes = append(out.Nodes, n)
	}
	var sinks []int
	for at := range out.Nodes {
		if !inner[at] {
			sinks = append(sinks, at)
		}
	}
	if out.Output != "" || len(sinks) == 1 && out.Nodes[sinks[0]].Kind == LLMNode && out.Nodes[sinks[0]].When == "" {
		return out // the only sink comes last in any topological order
	}
	out.Nodes = append(out.Nodes, answerNode(out.Nodes, sinks))
	return out
}

func answerNode(nodes []Node, sinks []int) Node {
	answer := Node{ID: AnswerNodeID, Kind: LLMNode, OnError: OnErrorFail, Prompt: "Answer the user from these results.",
		Inputs: make(map[string]json.RawMessage, len(sinks))}
	for _, at := range sinks {
		id := nodes[at].ID
		answer.DependsOn = append(answer.DependsOn, id)
		answer.Inputs[id] = json.RawMessage(`{"$from":"/nodes/` + id + `/output"}`)
	}
	return answer
}
