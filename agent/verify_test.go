package agent_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// book keeps a run's record as the ledger does, and what its activities would tell Temporal.
type book struct {
	agent.RunRecord
	testimony agent.Testimony
	saved     int
}

const runInput = "what the user said"

// newBook is a run with a plan of n tool nodes.
func newBook(n int) *book {
	b := &book{RunRecord: agent.RunRecord{Run: agent.Run{RunID: "r", Epoch: 1, Status: agent.Running, Input: runInput, StartSequence: 1}}}
	b.testimony.Epochs = []int{1}
	b.event(agent.RunStarted, "", "", agent.RunStartedData{Input: runInput})
	b.event(agent.MessageAdded, "", "", agent.MessageAddedData{Role: agent.UserMessage, Content: runInput})
	b.Messages = append(b.Messages, agent.MessageRecord{Message: agent.Message{Role: agent.UserMessage, Content: runInput, Sequence: 2}})
	b.event(agent.PlanStarted, agent.PlanNodeID, "", struct{}{})
	plan := &agent.Plan{}
	for i := range n {
		plan.Nodes = append(plan.Nodes, agent.Node{ID: nodeID(i), Kind: agent.ToolNode, Tool: "t", Args: json.RawMessage(`{"n": 1.50}`)})
	}
	b.event(agent.PlanGenerated, agent.PlanNodeID, "", agent.PlanGeneratedData{TaskGraph: plan})
	b.Plan, _ = json.Marshal(plan)
	return b
}

func nodeID(i int) string { return "n" + strconv.Itoa(i) }

func (b *book) event(typ agent.EventType, node, command string, data any) int64 {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	b.Last++
	b.Events = append(b.Events, agent.Event{Sequence: b.Last, Type: typ, RunID: "r", NodeID: node, CommandID: command, Epoch: b.Run.Epoch, Data: raw})
	b.chain()
	return b.Last
}

// chain computes the chain anew.
func (b *book) chain() {
	b.Log, b.Chain = nil, ""
	for _, e := range b.Events {
		sum := sha256.Sum256(fmt.Append(nil, b.Chain, e.Sequence, e.Type, e.NodeID, e.CommandID, string(e.Data)))
		b.Chain = hex.EncodeToString(sum[:])
		b.Log = append(b.Log, agent.Link{Sequence: e.Sequence, Chain: b.Chain})
	}
}

// tell notes what an activity told of a command.
func (b *book) tell(activity, command string, outcome agent.Outcome, sequence int64, hash string, size int64) {
	b.testimony.Statements = append(b.testimony.Statements, agent.Statement{Activity: activity, EventID: int64(len(b.testimony.Statements)), Epoch: b.Run.Epoch,
		CommandID: command, Outcome: outcome, Sequence: sequence, Hash: hash, Bytes: size, Witness: agent.Witness{Head: b.Last, Chain: b.Chain}})
}

func (b *book) start(i int) string {
	id := nodeID(i)
	b.event(agent.NodeStarted, id, "", agent.NodeStartedData{Index: i})
	b.event(agent.CommandEmitted, id, id, agent.CommandEmittedData{Kind: agent.ToolCommand})
	b.Commands = append(b.Commands, agent.CommandRecord{CommandID: id, NodeID: id, Kind: agent.ToolCommand, State: agent.Dispatched, DispatchNo: 1})
	return id
}

func (b *book) row(id string) *agent.CommandRecord {
	return &b.Commands[slices.IndexFunc(b.Commands, func(c agent.CommandRecord) bool { return c.CommandID == id })]
}

// commit commits the command of a node and ends the node.
func (b *book) commit(i int) {
	id := nodeID(i)
	row := b.row(id)
	sum := sha256.Sum256([]byte(id))
	hash := hex.EncodeToString(sum[:])
	row.State, row.ResultHash, row.StoredHash, row.ResultBytes, row.StoredBytes = agent.Committed, hash, hash, 2, 2
	row.Sequence = b.event(agent.CommandCommitted, id, id, agent.CommandCommittedData{Kind: agent.ToolCommand, Hash: hash})
	b.event(agent.NodeFinished, id, "", agent.NodeFinishedData{Index: i, ResultCommand: id})
	b.checkpoint(agent.NodeBoundary, id)
	b.tell("CallTool", id, agent.OutcomeCommitted, row.Sequence, hash, 2)
}

func (b *book) checkpoint(typ agent.CheckpointType, node string) {
	state, err := agent.Fold(b.Events)
	if err != nil {
		panic(err)
	}
	raw, err := json.Marshal(state)
	if err != nil {
		panic(err)
	}
	b.saved++
	c := agent.CheckpointRecord{CheckpointID: strconv.Itoa(b.saved), Type: typ, Step: state.Step(), State: raw}
	c.Sequence = b.event(agent.CheckpointSaved, node, "", agent.CheckpointSavedData{CheckpointID: c.CheckpointID, Type: typ, Step: c.Step})
	b.Checkpoints = append(b.Checkpoints, c)
}

// end gives a command an outcome other than a result.
func (b *book) end(i int, state agent.CommandState) {
	id := nodeID(i)
	row := b.row(id)
	failure := &agent.Error{Code: agent.CodeToolFailed, Message: "no"}
	row.State = state
	row.Error, _ = json.Marshal(failure)
	switch state {
	case agent.CommandFailed:
		row.Sequence = b.event(agent.CommandFailedType, id, id, agent.CommandFailedData{Error: failure})
		b.tell("CallTool", id, agent.OutcomeFailed, row.Sequence, "", 0)
		b.event(agent.NodeFailed, id, "", agent.NodeFailedData{Index: i, Error: failure, Handled: true})
	case agent.CommandAborted:
		row.Sequence = b.event(agent.CommandAbortType, id, id, agent.CommandAbortedData{})
		b.tell("SettleCommand", id, agent.OutcomeAborted, row.Sequence, "", 0)
	case agent.CommandInDoubt:
		row.Sequence = b.event(agent.CommandDoubtType, id, id, agent.CommandInDoubtData{})
		b.tell("CallTool", id, agent.OutcomeInDoubt, row.Sequence, "", 0)
	default:
		panic(state)
	}
}

// close ends the run.
func (b *book) close(status agent.Status) {
	b.Run.Status = status
	switch status {
	case agent.Completed:
		output := "done"
		b.Run.FinalOutput = &output
		n := b.event(agent.MessageAdded, "", "", agent.MessageAddedData{Role: agent.AssistantMessage, Content: output})
		b.Messages = append(b.Messages, agent.MessageRecord{Message: agent.Message{Role: agent.AssistantMessage, Content: output, Sequence: n}})
		b.event(agent.RunCompleted, "", "", agent.RunCompletedData{FinalOutput: output})
	case agent.FailedStatus:
		b.Run.Error = &agent.Error{Code: agent.CodeNodeFailed, Message: "because"}
		b.event(agent.RunFailed, "", "", agent.RunFailedData{Error: b.Run.Error})
	default:
		b.event(agent.RunCancelled, "", "", agent.RunCancelledData{})
	}
	b.testimony.Statements = append(b.testimony.Statements, agent.Statement{Activity: "Finish", Status: status, Sequence: b.Last,
		Witness: agent.Witness{Head: b.Last, Chain: b.Chain}})
}

// value records a value under a command of its own.
func (b *book) value(id string) {
	b.Commands = append(b.Commands, agent.CommandRecord{CommandID: id, NodeID: nodeID(0), Kind: agent.NowCommand, Effect: agent.Deterministic, InputHash: "now",
		State: agent.Committed, DispatchNo: 1, ResultHash: "h", StoredHash: "h"})
	n := b.event(agent.TimerFired, nodeID(0), id, agent.ValueRecordedData{Kind: agent.NowCommand, Value: json.RawMessage("7"), Hash: "h"})
	b.row(id).Sequence = n
	b.tell("RecordEffect", id, agent.OutcomeCommitted, n, "h", 0)
}

// reopen begins another epoch.
func (b *book) reopen() {
	state, err := agent.Fold(b.Events)
	if err != nil {
		panic(err)
	}
	b.reopenAs(agent.RunReopenedData{Epoch: b.Run.Epoch + 1, Status: b.Run.Status, Step: state.Step()})
}

// reopenAs begins another epoch with an event that may say anything.
func (b *book) reopenAs(said agent.RunReopenedData) {
	b.Run.Epoch++
	b.Run.Status, b.Run.FinalOutput, b.Run.Error = agent.Running, nil, nil
	b.testimony.Epochs = append(b.testimony.Epochs, b.Run.Epoch)
	b.event(agent.RunReopened, "", "", said)
}

func (b *book) verify() agent.Verification { return agent.VerifyRun(&b.RunRecord, b.testimony) }

// TestGoodRecordsVerify: every way in which a command can end is legal.
func TestGoodRecordsVerify(t *testing.T) {
	t.Parallel()
	resolved := func(outcome string) map[string]string { return map[string]string{"outcome": outcome} }
	for name, write := range map[string]func(b *book){
		"queued":    func(*book) {},
		"at work":   func(b *book) { b.start(0) },
		"completed": func(b *book) { b.start(0); b.start(1); b.commit(1); b.commit(0); b.close(agent.Completed) },
		"failed":    func(b *book) { b.start(0); b.end(0, agent.CommandFailed); b.close(agent.FailedStatus) },
		"cancelled": func(b *book) { b.start(0); b.end(0, agent.CommandAborted); b.close(agent.Cancelled) },
		"in doubt":  func(b *book) { b.start(0); b.end(0, agent.CommandInDoubt) },
		"tried again": func(b *book) {
			b.start(0)
			b.event(agent.AttemptDiscarded, nodeID(0), nodeID(0), struct{}{})
			b.commit(0)
		},
		"a doubt resolved": func(b *book) {
			b.start(0)
			b.end(0, agent.CommandInDoubt)
			b.event(agent.CommandResolved, nodeID(0), nodeID(0), resolved("committed"))
			b.commit(0)
			b.close(agent.Completed)
		},
		"a doubt resolved by another try": func(b *book) {
			b.start(0)
			b.end(0, agent.CommandInDoubt)
			b.event(agent.CommandResolved, nodeID(0), nodeID(0), resolved("retry"))
			b.row(nodeID(0)).State, b.row(nodeID(0)).Sequence = agent.Released, 0
			require.True(t, b.verify().OK)
			b.end(0, agent.CommandInDoubt)
			b.event(agent.CommandResolved, nodeID(0), nodeID(0), resolved("failed"))
			b.end(0, agent.CommandFailed)
		},
		"a doubt resolved after the end": func(b *book) {
			b.start(0)
			b.end(0, agent.CommandInDoubt)
			b.close(agent.Cancelled)
			row := b.row(nodeID(0))
			row.State, row.Sequence, row.Unannounced, row.ResultHash, row.StoredHash = agent.Committed, 0, true, "h", "h"
			require.True(t, b.verify().OK)
			row.State = agent.Released // to be tried again
			require.True(t, b.verify().OK)
			row.Unannounced = false
			b.reopen()
			b.event(agent.CommandResolved, nodeID(0), nodeID(0), resolved("committed"))
			b.commit(0)
		},
		"resumed after an abort": func(b *book) {
			b.start(0)
			b.end(0, agent.CommandAborted)
			b.close(agent.Cancelled)
			b.reopen()
			b.row(nodeID(0)).State, b.row(nodeID(0)).Sequence = agent.Dispatched, 0
			require.True(t, b.verify().OK)
			b.commit(0)
			b.close(agent.Completed)
		},
		"resumed after a failure": func(b *book) {
			b.start(0)
			b.end(0, agent.CommandFailed)
			b.close(agent.FailedStatus)
			b.reopen()
			b.event(agent.CommandReopened, nodeID(0), nodeID(0), struct{}{})
			b.commit(0)
			b.close(agent.Completed)
		},
		"resumed although it has not ended": func(b *book) {
			b.start(0)
			b.Run.Status = agent.Stuck
			b.reopen()
			b.commit(0)
			b.close(agent.Completed)
		},
		"a failed node tried again": func(b *book) {
			b.start(0)
			b.end(0, agent.CommandFailed)
			b.close(agent.FailedStatus)
			b.reopenAs(agent.RunReopenedData{Epoch: 2, Status: agent.FailedStatus, Nodes: []int{0}, NodeIDs: []string{nodeID(0)}})
			b.event(agent.CommandReopened, nodeID(0), nodeID(0), struct{}{})
			b.commit(0)
			b.close(agent.Completed)
		},
		"an effect of a workflow's code": func(b *book) {
			b.Commands = append(b.Commands, agent.CommandRecord{CommandID: "n0/pay", NodeID: nodeID(0), State: agent.Dispatched, DispatchNo: 1})
			b.event(agent.CommandEmitted, nodeID(0), "n0/pay", agent.CommandEmittedData{})
		},
		"a recorded value": func(b *book) {
			b.start(0)
			b.event(agent.AttemptDiscarded, nodeID(0), nodeID(0), struct{}{})
			b.value("n0/at")
			b.commit(0)
		},
		"forbidden by the policy": func(b *book) {
			b.event(agent.NodeStarted, nodeID(0), "", agent.NodeStartedData{})
			b.event(agent.PolicyDecided, nodeID(0), nodeID(0), agent.PolicyDecidedData{Decision: "forbid"})
			b.Commands = append(b.Commands, agent.CommandRecord{CommandID: nodeID(0), NodeID: nodeID(0), State: agent.Fenced})
			b.end(0, agent.CommandFailed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(3)
			write(b)
			v := b.verify()
			require.Empty(t, v.Differences)
			require.True(t, v.OK)
			require.Equal(t, agent.WitnessAgrees, v.Temporal.Status)
		})
	}
}

// TestDifferencesAreNamed: rules that a change by hand, or a fault of the gate, would break.
func TestDifferencesAreNamed(t *testing.T) {
	t.Parallel()
	id := nodeID(0)
	done := func(b *book) { b.start(0); b.commit(0); b.close(agent.Completed) } // 5 to 9 the node, 10 the message, 11 the end
	for name, c := range map[string]struct {
		write func(b *book)
		check agent.Check
		at    int64
	}{
		"committed twice": {func(b *book) {
			b.start(0)
			b.commit(0)
			b.event(agent.CommandCommitted, id, id, agent.CommandCommittedData{})
		}, agent.CheckCommand, 10},
		"emitted twice":            {func(b *book) { b.start(0); b.event(agent.CommandEmitted, id, id, struct{}{}) }, agent.CheckCommand, 7},
		"failed after a commit":    {func(b *book) { b.start(0); b.commit(0); b.event(agent.CommandFailedType, id, id, struct{}{}) }, agent.CheckCommand, 10},
		"discarded after a commit": {func(b *book) { b.start(0); b.commit(0); b.event(agent.AttemptDiscarded, id, id, struct{}{}) }, agent.CheckCommand, 10},
		"a doubt never resolved":   {func(b *book) { b.start(0); b.end(0, agent.CommandInDoubt); b.commit(0) }, agent.CheckCommand, 8},
		"a failure never reopened": {func(b *book) { b.start(0); b.end(0, agent.CommandFailed); b.commit(0) }, agent.CheckCommand, 9},
		"never emitted": {func(b *book) {
			b.event(agent.NodeStarted, id, "", agent.NodeStartedData{})
			b.Commands = append(b.Commands, agent.CommandRecord{CommandID: id, NodeID: id})
			b.commit(0)
		}, agent.CheckCommand, 6},
		"two ends":                       {func(b *book) { done(b); b.event(agent.RunFailed, "", "", agent.RunFailedData{Error: &agent.Error{}}) }, agent.CheckEnd, 12},
		"something after the end":        {func(b *book) { done(b); b.event(agent.Progress, "", "", struct{}{}) }, agent.CheckEnd, 12},
		"started twice":                  {func(b *book) { b.event(agent.RunStarted, "", "", agent.RunStartedData{Input: runInput}) }, agent.CheckStart, 5},
		"an epoch that nobody opened":    {func(b *book) { b.Run.Epoch = 2; b.event(agent.Progress, "", "", struct{}{}) }, agent.CheckEpoch, 5},
		"an epoch that was opened twice": {func(b *book) { b.event(agent.RunReopened, "", "", struct{}{}) }, agent.CheckEpoch, 5},
		"resumed after success":          {func(b *book) { done(b); b.reopenAs(agent.RunReopenedData{Epoch: 2, Status: agent.Completed, Step: 1}) }, agent.CheckEnd, 12},
		"resumed as what it was not": {func(b *book) {
			b.close(agent.Cancelled)
			b.reopenAs(agent.RunReopenedData{Epoch: 2, Status: agent.FailedStatus})
		}, agent.CheckEnd, 6},
		"resumed from another step":  {func(b *book) { b.reopenAs(agent.RunReopenedData{Epoch: 2, Status: agent.Stuck, Step: 1}) }, agent.CheckFold, 5},
		"resumed in another epoch":   {func(b *book) { b.reopenAs(agent.RunReopenedData{Epoch: 3, Status: agent.Stuck}) }, agent.CheckEpoch, 5},
		"a node that has not failed": {func(b *book) { b.reopenAs(agent.RunReopenedData{Epoch: 2, Status: agent.Stuck, Nodes: []int{0}}) }, agent.CheckFold, 5},
		"nothing to reopen":          {func(b *book) { b.start(0); b.event(agent.CommandReopened, id, id, struct{}{}) }, agent.CheckCommand, 7},
		"a node that begins twice":   {func(b *book) { b.start(0); b.event(agent.NodeStarted, id, "", agent.NodeStartedData{}) }, agent.CheckNode, 7},
		"a node after its end":       {func(b *book) { b.start(0); b.commit(0); b.event(agent.NodeStarted, id, "", agent.NodeStartedData{}) }, agent.CheckNode, 10},
		"a checkpoint before its node": {func(b *book) {
			b.start(0)
			b.checkpoint(agent.NodeBoundary, id)
			b.row(id).State = agent.Dispatched
		}, agent.CheckCheckpoint, 7},
		"an end and no status": {func(b *book) { done(b); b.Run.Status = agent.Running }, agent.CheckRun, 11},
		"a status and no end":  {func(b *book) { b.Run.Status = agent.Cancelled }, agent.CheckRun, 4},
		"another error":        {func(b *book) { b.close(agent.FailedStatus); b.Run.Error = &agent.Error{Message: "x"} }, agent.CheckRun, 5},
		"no final output":      {func(b *book) { done(b); b.Run.FinalOutput = nil }, agent.CheckRun, 11},
		"another epoch":        {func(b *book) { b.Run.Epoch = 2; b.testimony.Epochs = []int{1, 2} }, agent.CheckRun, 4},
		"another start":        {func(b *book) { b.Run.StartSequence = 2 }, agent.CheckRun, 1},
		"another input":        {func(b *book) { b.Run.Input = "x" }, agent.CheckRun, 1},
		"no plan":              {func(b *book) { b.Plan = nil }, agent.CheckPlan, 4},
		"a plan of another":    {func(b *book) { b.Plan = json.RawMessage(`{"nodes": []}`) }, agent.CheckPlan, 4},
		"no bytes":             {func(b *book) { done(b); b.row(id).StoredHash = "" }, agent.CheckResult, 7},
		"cut bytes":            {func(b *book) { done(b); b.row(id).ResultBytes = 3 }, agent.CheckResult, 7},
		"a row not committed":  {func(b *book) { done(b); b.row(id).State = agent.Dispatched }, agent.CheckRow, 7},
		"a row by another":     {func(b *book) { done(b); b.row(id).Sequence = 0 }, agent.CheckRow, 7},
		"a row no event knows": {func(b *book) {
			b.Commands = append(b.Commands, agent.CommandRecord{CommandID: "x", State: agent.Committed, StoredHash: "h", ResultHash: "h", Sequence: 3})
		}, agent.CheckRow, 3},
		"no row": {func(b *book) { b.start(0); b.Commands = nil }, agent.CheckRow, 6},
		"a failure of another": {func(b *book) {
			b.start(0)
			b.end(0, agent.CommandFailed)
			b.row(id).Error = json.RawMessage(`{"code": "X"}`)
		}, agent.CheckRow, 7},
		"a value recorded twice": {func(b *book) { b.value("v"); b.event(agent.TimerFired, id, "v", agent.ValueRecordedData{}) }, agent.CheckCommand, 6},
		"a value of a call":      {func(b *book) { b.start(0); b.event(agent.TimerFired, id, id, agent.ValueRecordedData{}) }, agent.CheckCommand, 7},
		"a value without a row":  {func(b *book) { b.event(agent.TimerFired, id, "v", agent.ValueRecordedData{}) }, agent.CheckRow, 5},
		"a value of another":     {func(b *book) { b.value("v"); b.row("v").StoredHash = "x" }, agent.CheckResult, 5},
		"an http exchange alone": {func(b *book) { b.event(agent.HTTPRecorded, id, "v", struct{}{}) }, agent.CheckCommand, 5},
		"a row of another tool":  {func(b *book) { done(b); b.row(id).Tool = "x" }, agent.CheckRow, 6},
		"a row of another class": {func(b *book) { done(b); b.row(id).Effect = agent.External }, agent.CheckRow, 6},
		"a row of another input": {func(b *book) { done(b); b.row(id).InputHash = "x" }, agent.CheckRow, 6},
		"an outcome nobody announces": {func(b *book) {
			b.start(0)
			b.end(0, agent.CommandAborted)
			b.close(agent.Cancelled)
			row := b.row(id)
			row.State, row.Sequence, row.Unannounced, row.ResultHash, row.StoredHash = agent.Committed, 0, true, "h", "h"
		}, agent.CheckRow, 0},
		"a failure turned":    {func(b *book) { b.start(0); b.end(0, agent.CommandFailed); b.row(id).State = agent.CommandAborted }, agent.CheckRow, 7},
		"a failure forgotten": {func(b *book) { b.start(0); b.end(0, agent.CommandFailed); b.row(id).State = agent.Released }, agent.CheckRow, 7},
		"no message":          {func(b *book) { b.Messages = nil }, agent.CheckMessage, 2},
		"two messages":        {func(b *book) { b.Messages = append(b.Messages, b.Messages[0]) }, agent.CheckMessage, 2},
		"a message of nobody": {func(b *book) {
			b.Messages = append(b.Messages, agent.MessageRecord{Message: agent.Message{Sequence: 3}})
		}, agent.CheckMessage, 3},
		"a checkpoint too many": {func(b *book) { done(b); b.Checkpoints = append(b.Checkpoints, b.Checkpoints[0]) }, agent.CheckCheckpoint, 9},
		"a checkpoint renamed":  {func(b *book) { done(b); b.Checkpoints[0].CheckpointID = "x" }, agent.CheckCheckpoint, 9},
		"a state that is none":  {func(b *book) { done(b); b.Checkpoints[0].State = json.RawMessage(`7`) }, agent.CheckFold, 9},
		"data that is none": {func(b *book) {
			b.start(0)
			b.event(agent.NodeFailed, id, "", map[string]string{"node_index": "x"})
		}, agent.CheckFold, 7},
		"a number too many":    {func(b *book) { b.Last++ }, agent.CheckNumbers, 5},
		"a number too few":     {func(b *book) { b.Last-- }, agent.CheckNumbers, 4},
		"nothing":              {func(b *book) { b.Events = nil }, agent.CheckStart, 1},
		"told another number":  {func(b *book) { done(b); b.testimony.Statements[0].Sequence = 6 }, agent.CheckActivity, 6},
		"told another size":    {func(b *book) { done(b); b.testimony.Statements[0].Bytes = 3 }, agent.CheckActivity, 7},
		"told another outcome": {func(b *book) { done(b); b.testimony.Statements[0].Outcome = agent.OutcomeFailed }, agent.CheckActivity, 7},
		"told another end":     {func(b *book) { done(b); b.testimony.Statements[1].Status = agent.Cancelled }, agent.CheckActivity, 11},
		"told of more": {func(b *book) {
			b.tell("Record", "", "", 0, "", 0)
			b.testimony.Statements[0].Head = 9
		}, agent.CheckChain, 9},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(3)
			c.write(b)
			v := b.verify()
			require.False(t, v.OK)
			require.Equal(t, c.check, v.Differences[0].Check, "%v", v.Differences)
			require.Equal(t, c.at, v.Differences[0].Sequence, "%v", v.Differences)
			require.Contains(t, agent.Checks(), c.check)
			require.Contains(t, v.Differences[0].String(), string(c.check)+": expected ")
		})
	}
}

// TestWhatAWitnessLeavesOpen is said with the answer, and is no difference.
func TestWhatAWitnessLeavesOpen(t *testing.T) {
	t.Parallel()
	b := newBook(1)
	b.start(0)
	b.commit(0)
	b.close(agent.FailedStatus)
	b.reopen()
	b.close(agent.Completed)
	b.testimony.Epochs = []int{2}
	for i := range b.testimony.Statements[:2] {
		b.testimony.Statements[i].Witness = agent.Witness{}
	}
	b.testimony.Unread = 1
	v := b.verify()
	require.True(t, v.OK, "%v", v.Differences)
	require.Equal(t, agent.Corroborated{Status: agent.WitnessAgrees, Epochs: 1, Executions: 1, Activities: 3,
		Detail: "no history of epoch 1; 2 of 3 activities told no chain; the results of 1 activities cannot be read"}, v.Temporal)
	gone := agent.VerifyRun(&b.RunRecord, agent.Testimony{Absent: agent.WitnessGone, Detail: "why"})
	require.True(t, gone.OK)
	require.Equal(t, agent.Corroborated{Status: agent.WitnessGone, Detail: "why"}, gone.Temporal)
}

// TestManyDifferencesAreBounded: the answer names the first ones.
func TestManyDifferencesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBook(1)
	b.close(agent.Completed)
	for range 200 {
		b.event(agent.Progress, "", "", struct{}{})
	}
	v := b.verify()
	require.Len(t, v.Differences, 100)
	require.True(t, v.HasMore)
	require.EqualValues(t, 7, v.Differences[0].Sequence)
}

// TestAnyRunVerifiesAndAnyChangeIsFound: runs of random commands in random order verify. An event that is taken out with the
// numbers closed up, or two of one command that change places, break a rule of the order, with the chain written anew and
// nobody to testify.
func TestAnyRunVerifiesAndAnyChangeIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "nodes")
		b := newBook(n)
		open := []int{}
		for next := 0; next < n || len(open) > 0; {
			if next < n && (len(open) == 0 || rapid.Bool().Draw(t, "start")) {
				b.start(next)
				open = append(open, next)
				next++
				continue
			}
			at := rapid.IntRange(0, len(open)-1).Draw(t, "which")
			if i := open[at]; rapid.IntRange(0, 3).Draw(t, "how") == 0 {
				b.end(i, agent.CommandFailed)
			} else {
				b.commit(i)
			}
			open = slices.Delete(open, at, at+1)
		}
		b.close(agent.Completed)
		if v := b.verify(); !v.OK {
			t.Fatalf("a good run: %v", v.Differences)
		}
		victim := rapid.IntRange(0, len(b.Events)-1).Draw(t, "victim")
		if e := b.Events[victim]; rapid.Bool().Draw(t, "swap") && e.NodeID != "" {
			other := slices.IndexFunc(b.Events[victim+1:], func(o agent.Event) bool { return o.NodeID == e.NodeID }) + victim + 1
			if other == victim || b.Events[other].NodeID != e.NodeID {
				return
			}
			b.Events[victim], b.Events[other] = b.Events[other], b.Events[victim]
			b.Events[victim].Sequence, b.Events[other].Sequence = b.Events[other].Sequence, b.Events[victim].Sequence
		} else {
			switch e.Type {
			case agent.NodeFailed:
				return // nothing but the chain knows of it
			}
			b.remove(victim)
		}
		b.chain()
		if v := agent.VerifyRun(&b.RunRecord, agent.Testimony{Absent: agent.WitnessGone}); v.OK {
			t.Fatalf("not found; events %v", b.Events)
		}
	})
}

// remove takes an event out and closes up the numbers behind it in every row, as a careful hand would.
func (b *book) remove(victim int) {
	gone := b.Events[victim].Sequence
	b.Events = slices.Delete(b.Events, victim, victim+1)
	closeUp := func(n *int64) {
		if *n > gone {
			*n--
		}
	}
	for i := range b.Events {
		closeUp(&b.Events[i].Sequence)
	}
	for i := range b.Commands {
		closeUp(&b.Commands[i].Sequence)
	}
	for i := range b.Messages {
		closeUp(&b.Messages[i].Sequence)
	}
	for i := range b.Checkpoints {
		closeUp(&b.Checkpoints[i].Sequence)
		state, err := agent.Fold(b.Events[:b.Checkpoints[i].Sequence-1])
		if err != nil {
			panic(err)
		}
		b.Checkpoints[i].State, _ = json.Marshal(state)
	}
	b.Last--
}

// A run that waits in the queue of its conversation has no events, which of any other run is a difference.
func TestVerifyOfARunThatWaits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(b *book)
		want   agent.Check // "" for no difference
	}{
		"as it is":         {func(*book) {}, ""},
		"not in the queue": {func(b *book) { b.Enqueued = false }, agent.CheckStart},
		"another status":   {func(b *book) { b.Run.Status = agent.Cancelled }, agent.CheckRun},
		"with an event":    {func(b *book) { b.event(agent.Progress, "", "", struct{}{}) }, agent.CheckStart},
	} {
		b := newBook(1)
		before := b.Log
		b.Events, b.Messages, b.Enqueued, b.Run.Status, b.Run.StartSequence = nil, nil, true, agent.Queued, b.Last+1
		tc.change(b)
		b.Log = append(before, b.Log[len(b.Log)-len(b.Events):]...)
		b.Chain = b.Log[len(b.Log)-1].Chain
		found := agent.VerifyRun(&b.RunRecord, agent.Testimony{Absent: agent.WitnessNotConfigured}).Differences
		if tc.want == "" {
			require.Empty(t, found, name)
			continue
		}
		require.NotEmpty(t, found, name)
		require.Equal(t, tc.want, found[0].Check, name)
	}
}
