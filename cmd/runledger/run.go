package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"runledger/agent"
	"runledger/client"
)

type runCmd struct {
	apiFlags
	Question     string     `arg:"" optional:"" help:"What to ask."`
	Agent        string     `help:"The agent to ask; the configuration's default otherwise."`
	Mode         agent.Mode `help:"plan or react; the agent's own otherwise."`
	Plan         string     `help:"A file with a plan to execute, - for standard input." type:"path"`
	Conversation string     `help:"The conversation to go on with."`

	Plain bool `help:"Print line by line on a terminal too."`

	Strategy agent.Strategy `help:"reject, enqueue, interrupt or steer, where the conversation has a run that has not ended; it starts beside that otherwise."`
}

// Exit codes of run.
const (
	exitFailed    exitError = 3
	exitCancelled exitError = 4
)

// Run starts a run and prints it line by line. It exits with 0 when the run completed, 3 when it failed, 4 when it was
// cancelled, 1 when it could not be started or followed.
func (c *runCmd) Run(ctx context.Context) error {
	body := map[string]any{}
	set := func(key, value string) {
		if value != "" {
			body[key] = value
		}
	}
	set("input", c.Question)
	set("agent", c.Agent)
	set("mode", string(c.Mode))
	set("conversation_id", c.Conversation)
	set("strategy", string(c.Strategy))
	if c.Plan != "" {
		plan, err := readPlan(c.Plan)
		if err != nil {
			return err
		}
		body["plan"] = plan
	}
	if c.Question == "" && c.Plan == "" {
		return errors.New("run: a question or --plan is needed")
	}
	run, err := c.startRun(ctx, body)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "run %s\nconversation %s\n", run.RunID, run.ConversationID)
	end, err := c.show(ctx, run)
	if err != nil {
		return fmt.Errorf("follow run %s: %w", run.RunID, err)
	}
	switch end {
	case agent.RunFailed:
		return exitFailed
	case agent.RunCancelled:
		return exitCancelled
	default:
		return nil
	}
}

// show follows a run to its end: on a terminal as it stands, else line by line.
func (c *runCmd) show(ctx context.Context, run agent.Run) (agent.EventType, error) {
	updates := c.reader().Follow(ctx, client.Run(run.RunID), client.Options{Profile: "run"})
	if size := terminalSize(os.Stdout); size != nil && !c.Plain && os.Getenv("TERM") != "dumb" {
		v := newLiveView(os.Stdout, size, os.Getenv("NO_COLOR") == "", run.RunID)
		err := v.follow(updates)
		return v.end, err
	}
	out := &printer{out: os.Stdout, runID: run.RunID}
	for u, err := range updates {
		if err == nil {
			err = out.update(u)
		}
		if err != nil {
			return out.end, err
		}
	}
	return out.end, nil
}

func readPlan(path string) (json.RawMessage, error) {
	raw, err := io.ReadAll(os.Stdin)
	if path != "-" {
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if !json.Valid(raw) {
		return nil, fmt.Errorf("plan %s is not JSON", path)
	}
	return raw, nil
}

// printer prints the frames of a run, a line each, and the answer as it streams.
type printer struct {
	out   io.Writer
	runID string
	end   agent.EventType
	// streaming is the command whose text stands on the unfinished line.
	streaming string
	// answer is the last whole text that has been printed.
	answer string
}

// update prints an event, and what a model says while it says it.
func (p *printer) update(u client.Update) error {
	if u.Output != nil {
		p.output(*u.Output)
	}
	if u.Event == nil {
		return nil
	}
	return p.event(u.Event.Event)
}

func (p *printer) event(e agent.Event) error {
	var d frameData
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
	}
	switch e.Type {
	case "run_started":
		note := ""
		if d.Offline {
			note = " (offline model: no key is set)"
		}
		p.line(e, "run started in %s mode%s", d.Mode, note)
	case "plan_created":
		p.line(e, "plan: %d nodes", len(d.Nodes))
	case "step_started":
		p.line(e, "> %s %s %s", e.NodeID, d.Kind, d.Tool)
	case "step_completed":
		p.line(e, "< %s done", e.NodeID)
	case "step_failed":
		p.line(e, "! %s failed: %v", e.NodeID, d.Error)
	case "tool_invoked":
		p.line(e, "  %s calls %s %s", e.CommandID, d.Tool, shown(d.Input))
	case "tool_completed":
		p.line(e, "  %s gave %s (%d ms)", e.CommandID, shown(d.Output), d.LatencyMS)
	case "command_failed":
		p.line(e, "  %s failed: %v", e.CommandID, d.Error)
	case "attempt_discarded":
		p.line(e, "  %s attempt %d does not count: %s", e.CommandID, e.Attempt, d.Reason)
	case "command_in_doubt":
		p.line(e, "? %s is in doubt: %s", e.CommandID, d.Reason)
	case agent.ApprovalRequested:
		p.line(e, "? %s would call %s %s: approval %s is waited for", e.CommandID, d.Tool, shown(d.Arguments), d.ApprovalID)
	case agent.ApprovalResolved:
		by := ""
		if d.By != "" {
			by = " by " + d.By
		}
		p.line(e, "  %s is %s%s", e.CommandID, d.Outcome, by)
	case agent.LimitReachedType:
		if d.Parked {
			p.line(e, "? %s is reached: the run waits for more", d.Limit)
		}
	case agent.RunPaused:
		p.line(e, "? paused by %s", d.By)
	case agent.RunUnpaused:
		p.line(e, "  goes on")
	case agent.NodeSkipped:
		p.line(e, "- %s skipped: %s", e.NodeID, d.Reason)
	case agent.RunCompleted:
		if p.answer == d.FinalOutput {
			p.line(e, "run completed")
		} else {
			p.line(e, "run completed\n\n%s", d.FinalOutput)
		}
	case agent.RunFailed:
		p.line(e, "run failed: %v", d.Error)
	case agent.RunCancelled:
		p.line(e, "run cancelled: %s", d.Reason)
	default:
		// The rest is for `runledger events`.
	}
	if e.RunID == p.runID && e.Type.Terminal() {
		p.end = e.Type
	}
	return nil
}

// frameData is what is shown of the data of events, of whatever type they are.
type frameData struct {
	Kind        string `json:"kind"`
	Tool        string `json:"tool"`
	Reason      string `json:"reason"`
	LatencyMS   int64  `json:"latency_ms"`
	FinalOutput string `json:"final_output"`
	Offline     bool   `json:"offline_model"`
	Mode        string `json:"mode"`
	Nodes       []struct {
		ID   string `json:"id"`
		Kind string `json:"kind"`
		Tool string `json:"tool"`
	} `json:"nodes"`
	Error  *agent.Error    `json:"error"`
	Input  json.RawMessage `json:"input"`
	Output json.RawMessage `json:"output"`

	ApprovalID string              `json:"approval_id"`
	Arguments  json.RawMessage     `json:"arguments"`
	Outcome    agent.ApprovalState `json:"outcome"`
	By         string              `json:"by"`
	Limit      string              `json:"limit"`
	Parked     bool                `json:"parked"`
}

// line ends what is streaming and prints a line that begins with the event's number.
func (p *printer) line(e agent.Event, format string, args ...any) {
	if p.streaming != "" {
		fmt.Fprintln(p.out)
		p.streaming = ""
	}
	fmt.Fprintf(p.out, "%4d  %s\n", e.Sequence, fmt.Sprintf(format, args...))
}

// output prints what is new of an answer. The committed text is the truth: where it is not what streamed, it is printed anew.
func (p *printer) output(o client.Output) {
	if o.State == client.Discarded || o.State == client.Committed && p.streaming != o.CommandID || o.State == client.Arriving && o.Channel != "text" {
		return
	}
	if p.streaming != o.CommandID || o.Replaces {
		if p.streaming != "" {
			fmt.Fprintln(p.out)
		}
		fmt.Fprintf(p.out, "      %s: ", o.CommandID)
		p.streaming = o.CommandID
	}
	text := o.Added
	if o.Replaces {
		text = o.Text
	}
	fmt.Fprint(p.out, text)
	if o.State == client.Committed {
		p.answer = o.Text
	}
}

const shownBytes = 160

// shown is a tool's input or output on one line.
func shown(raw json.RawMessage) string {
	var v agent.Value
	if json.Unmarshal(raw, &v) != nil {
		return ""
	}
	if v.JSON != nil {
		return agent.Preview(string(v.JSON), shownBytes)
	}
	return fmt.Sprintf("%s (%d bytes)", agent.Preview(v.Preview, shownBytes), v.Bytes)
}
