package agent

// Lane is the way of a command to its worker.
type Lane string

const (
	// NormalLane gives every command an activity of its own.
	NormalLane Lane = "normal"
	// FastLane lets commands that are due after or beside each other share a segment: one local activity, whose results Temporal's
	// history keeps in one marker. Each of them passes the commit gate all the same.
	FastLane Lane = "fast"
)

// Valid reports whether l is a lane, or "" for what the tool or the agent says.
func (l Lane) Valid() bool { return l == "" || l == NormalLane || l == FastLane }

// Bounds of a segment.
const (
	// MaxSegment is how many commands it has.
	MaxSegment = 50
	// SegmentTime is how long after its start it begins another one.
	SegmentTime = Duration(4e9)
)

// SegmentCall asks for several tool calls of a run. Each begins when those that it waits for are committed.
type SegmentCall struct {
	Scope
	Steps []SegmentStep `json:"steps"`
	// MaxParallel bounds how many are at work at once.
	MaxParallel int `json:"max_parallel"`
}

// SegmentStep is a tool call of a segment, and the places of those that it waits for.
type SegmentStep struct {
	ToolCall
	After []int `json:"after,omitempty"`
}

// SegmentReply tells of the calls that were begun; a call of which nothing can be said yet has no outcome.
type SegmentReply struct {
	Commands []CommandReply `json:"commands"`
}

// CommandReply is the reply of one call of a segment.
type CommandReply struct {
	CommandID string `json:"command_id"`
	Reply
}

// Fast reports whether a call of a tool goes in the fast lane: what a node says wins over the tool, and that over the agent, who can ask
// for it only where repeating a call is safe.
func (d *Definition) Fast(node Lane, t ToolRef) bool {
	switch {
	case node != "":
		return node == FastLane
	case t.Lane != "":
		return t.Lane == FastLane
	}
	return d.Lane == FastLane && (t.Effect == Idempotent || t.Effect == Deterministic)
}
