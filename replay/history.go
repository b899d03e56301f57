package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/workflows"
)

// ReadHistory reads a history from a file, as `temporal workflow show --output json` and the download of the Temporal Web UI
// write it (not decoded).
func ReadHistory(path string) (*historypb.History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer func() { _ = file.Close() }()
	history, err := client.HistoryFromJSON(file, client.HistoryJSONOptions{})
	if err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	return history, nil
}

// FetchHistory reads the history of an execution from a server; of the newest one of the workflow id when runID is "".
func FetchHistory(ctx context.Context, c client.Client, workflowID, runID string) (*historypb.History, error) {
	history := &historypb.History{}
	events := c.GetWorkflowHistory(ctx, workflowID, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return nil, fmt.Errorf("history of run %s: %w", workflowID, err)
		}
		history.Events = append(history.Events, e)
	}
	return history, nil
}

// FetchHistories reads the histories of a run's executions, the newest first: those of a resumed run, and those that were continued
// as new ones. Earlier ones that the server keeps no longer are left out.
func FetchHistories(ctx context.Context, c client.Client, workflowID string) ([]*historypb.History, error) {
	newest, err := FetchHistory(ctx, c, workflowID, "")
	if err != nil {
		return nil, err
	}
	all := []*historypb.History{newest}
	for id := before(newest); id != ""; {
		history, err := FetchHistory(ctx, c, workflowID, id)
		var gone *serviceerror.NotFound
		if errors.As(err, &gone) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, history)
		id = before(history)
	}
	return all, nil
}

// before is the execution that came before that of a history; "" for none.
func before(h *historypb.History) (id string) {
	if len(h.Events) == 0 {
		return ""
	}
	started := h.Events[0].GetWorkflowExecutionStartedEventAttributes()
	if id = started.GetContinuedExecutionRunId(); id != "" {
		return id
	}
	if payload := started.GetMemo().GetFields()["resumed_from"]; payload != nil {
		_ = converter.GetDefaultDataConverter().FromPayload(payload, &id) // another data converter's: it is not known
	}
	return id
}

// Execution names an execution of a run in Temporal: its workflow id is the run's id.
type Execution struct {
	WorkflowID string
	RunID      string
	Started    time.Time
}

// Started lists the executions of runs that were started since a time, newest first, whatever became of them.
func Started(ctx context.Context, c client.Client, namespace string, since time.Time) ([]Execution, error) {
	var found []Execution
	request := &workflowservice.ListWorkflowExecutionsRequest{Namespace: namespace,
		Query: fmt.Sprintf("WorkflowType = '%s' AND StartTime >= '%s'", agent.WorkflowName, since.UTC().Format(time.RFC3339Nano))}
	for {
		page, err := c.ListWorkflow(ctx, request)
		if err != nil {
			return nil, fmt.Errorf("list runs started since %s: %w", since.Format(time.RFC3339), err)
		}
		for _, e := range page.GetExecutions() {
			found = append(found, Execution{WorkflowID: e.GetExecution().GetWorkflowId(), RunID: e.GetExecution().GetRunId(), Started: e.GetStartTime().AsTime()})
		}
		if request.NextPageToken = page.GetNextPageToken(); len(request.NextPageToken) == 0 {
			return found, nil
		}
	}
}

// Outcome is what a replay of a history gave.
type Outcome struct {
	// RunID is the run that the history is of, Epoch the execution of it.
	RunID string
	Epoch int
	// Events is the length of the history.
	Events int
	// Divergence is where the code first leaves the history, nil when it follows it to its end.
	Divergence *Divergence
}

// History replays a history. The error says why it is not one of a run; a history that the code does not follow is an outcome,
// not an error.
func History(h *historypb.History) (Outcome, error) {
	in, err := startOf(h)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{RunID: in.RunID, Epoch: in.Epoch, Events: len(h.Events)}
	if len(h.Events) < firstTask {
		return out, nil
	}
	// On a busy machine a workflow task may take its time; that is no fault of the workflow.
	replayer, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{DisableDeadlockDetection: true})
	if err != nil {
		return out, fmt.Errorf("replay run %s: %w", in.RunID, err)
	}
	// The replayer itself looks at how the code ended only where the history says that it completed.
	var end *ending
	replayer.RegisterWorkflowWithOptions(func(ctx workflow.Context, in agent.RunInput) (agent.RunOutput, error) {
		out, err := workflows.AgentExecution(ctx, in)
		end = &ending{out: out, err: err}
		return out, err
	}, workflow.RegisterOptions{Name: agent.WorkflowName})
	if err := replayer.ReplayWorkflowHistory(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), h); err != nil {
		out.Divergence = divergence(h, err)
		return out, nil
	}
	out.Divergence = end.compare(h.Events[len(h.Events)-1])
	return out, nil
}

// firstTask is the length of the shortest history with a workflow task that the code can be held to: started, scheduled, at work.
const firstTask = 3

// startOf reads what an execution was started with.
func startOf(h *historypb.History) (in agent.RunInput, err error) {
	if len(h.GetEvents()) == 0 {
		return in, errors.New("the history has no events")
	}
	started := h.Events[0].GetWorkflowExecutionStartedEventAttributes()
	if started == nil {
		return in, fmt.Errorf("the history begins with %s; it is not whole", h.Events[0].GetEventType())
	}
	if name := started.GetWorkflowType().GetName(); name != agent.WorkflowName {
		return in, fmt.Errorf("the history is of a %s; want %s", name, agent.WorkflowName)
	}
	if err := convert(started.GetInput(), &in); err != nil {
		return in, fmt.Errorf("the history's input: %w", err)
	}
	return in, nil
}

// ending is how the replayed code ended.
type ending struct {
	out agent.RunOutput
	err error
}

// compare holds the end of the code to the last event of the history, where that is an end that the code chose.
func (end *ending) compare(last *historypb.HistoryEvent) *Divergence {
	var recorded string
	switch last.GetEventType() {
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
		var out agent.RunOutput
		if err := convert(last.GetWorkflowExecutionCompletedEventAttributes().GetResult(), &out); err != nil {
			return &Divergence{EventID: last.GetEventId(), Message: "the recorded result cannot be read: " + err.Error()}
		}
		recorded = (&ending{out: out}).String()
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
		failure := last.GetWorkflowExecutionFailedEventAttributes().GetFailure()
		recorded = failed(failure.GetApplicationFailureInfo().GetType(), failure.GetMessage())
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
		recorded = cancelled
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
		recorded = goesOn(last.GetWorkflowExecutionContinuedAsNewEventAttributes().GetInput())
	default: // at work, or ended from outside
		return nil
	}
	if wanted := end.String(); wanted != recorded {
		return &Divergence{EventID: last.GetEventId(), Recorded: recorded, Wanted: wanted, Message: "the run ended in another way"}
	}
	return nil
}

const cancelled = "the run is cancelled"

func failed(code, message string) string { return "the run fails: " + code + ": " + message }

// goesOn tells what matters of the input of the execution that continues one. Times are as they were, and an older worker knew less.
func goesOn(input *commonpb.Payloads) string {
	const said = "the run goes on in a new execution"
	var in agent.RunInput
	if err := convert(input, &in); err != nil || in.Carried == nil {
		return said
	}
	shown, err := json.Marshal(map[string]any{"epoch": in.Epoch, "state": in.State, "paused_by": in.PausedBy, "heard": in.Heard,
		"last_fact": in.Carried.LastFact, "schedule_no": in.Carried.Schedule, "loops": in.Carried.Loops})
	if err != nil {
		return said
	}
	return said + " with " + string(shown)
}

// String says how the code ended, in the words that compare uses of a history.
func (end *ending) String() string {
	var app *temporal.ApplicationError
	var handed *workflow.ContinueAsNewError
	switch {
	case end == nil:
		return ""
	case errors.As(end.err, &handed):
		return goesOn(handed.Input)
	case temporal.IsCanceledError(end.err):
		return cancelled
	case errors.As(end.err, &app):
		return failed(app.Type(), app.Message())
	case end.err != nil:
		return failed("", end.err.Error())
	}
	return fmt.Sprintf("the run ends: %s, event %d", end.out.Status, end.out.Sequence)
}
