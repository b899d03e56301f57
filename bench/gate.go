package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"runledger/agent"
	"runledger/ledger"
	"runledger/tool"
)

// Adder is a tool that adds two numbers, and returns at once.
func Adder() (tool.Tool, error) {
	return tool.New(tool.Spec{Name: "add", Description: "Adds two numbers.", Effect: agent.Idempotent},
		func(_ context.Context, in struct{ A, B int }, _ tool.Call) (int, error) { return in.A + in.B, nil })
}

// Additions is a plan of so many additions that do not depend on each other: n0, n1 and so on.
func Additions(n int) *agent.Plan {
	plan := &agent.Plan{}
	for i := range n {
		plan.Nodes = append(plan.Nodes, agent.Node{ID: fmt.Sprintf("n%d", i), Kind: agent.ToolNode, Tool: "add", Args: json.RawMessage(fmt.Sprintf(`{"A": %d, "B": 1}`, i))})
	}
	return plan
}

// Chain is Additions one after the other.
func Chain(n int) *agent.Plan {
	plan := Additions(n)
	for i := 1; i < n; i++ {
		plan.Nodes[i].DependsOn = []string{plan.Nodes[i-1].ID}
	}
	return plan
}

// Accepter puts runs on record that no worker takes, for benchmarks that write their commands themselves.
type Accepter struct {
	ledger *ledger.Ledger
	as     agent.Acceptance
}

// NewAccepter makes one for runs of a number of additions.
func NewAccepter(l *ledger.Ledger, additions int) (*Accepter, error) {
	add, err := Adder()
	if err != nil {
		return nil, err
	}
	set, err := tool.NewSet(add)
	if err != nil {
		return nil, err
	}
	a, err := Acceptance(Run{Input: "Add all of them.", Mode: agent.ModePlan, Plan: Additions(additions)}, set)
	return &Accepter{l, a}, err
}

// Accept accepts a run, in a conversation with the id that is given or, with "", of any. creates: it is not there yet.
func (a *Accepter) Accept(ctx context.Context, conversationID string, creates bool) (agent.Run, error) {
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	as := a.as
	as.NewConversation = creates
	as.Run.RunID, as.Run.MessageID, as.Run.RequestID, as.Run.ConversationID = id(), id(), id(), conversationID
	as.Run.RootRunID = as.Run.RunID
	if conversationID == "" {
		as.Run.ConversationID = id()
	}
	run, _, err := a.ledger.Accept(ctx, as)
	return run, err
}

// SetToWork lets all runs that are accepted be at work, as if Temporal had them.
func SetToWork(ctx context.Context, pool *pgxpool.Pool) error {
	for _, statement := range []string{`UPDATE intents SET delivered_at = now(), attempts = 1 WHERE delivered_at IS NULL`,
		`UPDATE agent_executions SET status = 'running', started_at = now() WHERE status = 'queued'`} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("set runs to work: %w", err)
		}
	}
	return nil
}

// Addition is the command of the node n<Index> of a run of additions.
type Addition struct {
	Run   agent.Run
	Index int
}

func (a Addition) id() string { return fmt.Sprintf("n%d", a.Index) }

func (a Addition) call() (agent.Call, agent.Dispatch) {
	return agent.Call{Scope: agent.Scope{RunID: a.Run.RunID, Epoch: 1}, CommandID: a.id(), NodeID: a.id(), NodeIndex: a.Index, Schedule: a.Index + 1,
		Opens: true, Ends: true, Timeout: agent.Duration(2 * time.Minute)}, agent.Dispatch{Epoch: 1, Schedule: a.Index + 1, Attempt: 1, Token: "c9b1b0d2a4f34a3e"}
}

// Begin takes the command to the gate, with what an activity brings along.
func (a Addition) Begin(ctx context.Context, l *ledger.Ledger) error {
	call, dispatch := a.call()
	input := json.RawMessage(fmt.Sprintf(`{"A":%d,"B":1}`, a.Index))
	begun, err := l.Begin(ctx, agent.Begin{Call: call, Dispatch: dispatch, Kind: agent.ToolCommand, Tool: "add", Effect: agent.Idempotent,
		InputHash: agent.ArgumentsHash(input), ArgumentsHash: agent.ArgumentsHash(input), Input: input, Shown: input,
		Node: &agent.NodeStartedData{Kind: agent.ToolNode, Tool: "add", Index: a.Index}})
	if err == nil && begun.Verdict != agent.MayExecute {
		err = fmt.Errorf("command %s of run %s: %v", a.id(), a.Run.RunID, begun.Verdict)
	}
	return err
}

// Commit puts its result on record, which ends the node.
func (a Addition) Commit(ctx context.Context, l *ledger.Ledger) error {
	call, dispatch := a.call()
	result := json.RawMessage(fmt.Sprint(a.Index + 1))
	decided, err := l.Commit(ctx, agent.Commit{Call: call, Dispatch: dispatch, DispatchNo: 1, Result: result,
		Event: agent.CommandCommittedData{Kind: agent.ToolCommand, Tool: "add", Output: agent.ShowValue(result), LatencyMS: 1}})
	if err == nil && !decided.Mine {
		err = fmt.Errorf("command %s of run %s was decided by somebody else", a.id(), a.Run.RunID)
	}
	return err
}
