package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
)

// checkRun: the run's row says what its events say.
func (v *verifier) checkRun() {
	r := &v.Run
	if len(v.Events) == 0 {
		return
	}
	first, last := &v.Events[0], &v.Events[len(v.Events)-1]
	if r.StartSequence != first.Sequence {
		v.differAt(CheckRun, first, fmt.Sprintf("start_sequence %d", first.Sequence), fmt.Sprint(r.StartSequence))
	}
	var started RunStartedData
	if first.Type == RunStarted && decode(*first, &started) == nil && plain(started.Input) != plain(r.Input) {
		v.differAt(CheckRun, first, "the input "+quote(started.Input), quote(r.Input))
	}
	if r.Epoch != last.Epoch {
		v.differAt(CheckRun, last, fmt.Sprintf("epoch %d", last.Epoch), fmt.Sprint(r.Epoch))
	}
	v.checkPaused()
	v.checkEnd(last)
	v.checkPlan()
}

// checkEnd: status, output and error of the row are those of the terminal event.
func (v *verifier) checkEnd(last *Event) {
	r := &v.Run
	if v.ended == nil {
		if r.Status.Terminal() {
			v.differAt(CheckRun, last, "a terminal event, since the status is "+string(r.Status), describe(last))
		}
		return
	}
	want := endStatus(v.ended.Type)
	if r.Status != want {
		v.differAt(CheckRun, v.ended, "status "+string(want), string(r.Status))
	}
	switch v.ended.Type {
	case RunCompleted:
		var d RunCompletedData
		if decode(*v.ended, &d) != nil {
			v.differAt(CheckRun, v.ended, "data that can be read", quote(string(v.ended.Data)))
			return
		}
		switch {
		case r.FinalOutput == nil:
			v.differAt(CheckRun, v.ended, "final_output "+quote(d.FinalOutput), "none")
		case plain(*r.FinalOutput) != plain(d.FinalOutput):
			v.differAt(CheckRun, v.ended, "final_output "+quote(d.FinalOutput), quote(*r.FinalOutput))
		}
	case RunFailed:
		var d RunFailedData
		if decode(*v.ended, &d) != nil {
			v.differAt(CheckRun, v.ended, "data that can be read", quote(string(v.ended.Data)))
			return
		}
		if !sameError(r.Error, d.Error) {
			v.differAt(CheckRun, v.ended, "the error "+shown(d.Error), shown(r.Error))
		}
	default:
	}
}

// endStatus is the status of a run that ended with a terminal event of this type.
func endStatus(t EventType) Status {
	return map[EventType]Status{RunCompleted: Completed, RunFailed: FailedStatus, RunCancelled: Cancelled}[t]
}

// checkPlan: the row's plan is the one of the newest plan event.
func (v *verifier) checkPlan() {
	var planned *Event
	for i := range v.Events {
		switch v.Events[i].Type {
		case PlanGenerated, PlanRevised:
			planned = &v.Events[i]
		default:
		}
	}
	if planned == nil {
		if v.Plan != nil {
			v.differ(Difference{Check: CheckPlan, Expected: "no plan, since there is no plan_generated", Found: quote(string(v.Plan))})
		}
		return
	}
	var d struct {
		TaskGraph json.RawMessage `json:"task_graph"`
	}
	if decode(*planned, &d) != nil || !sameJSON(d.TaskGraph, v.Plan) {
		v.differAt(CheckPlan, planned, "the run's plan to be its task_graph", quote(string(v.Plan)))
	}
}

// checkCommands: rows and events tell the same of every command, and the stored bytes are those that were committed.
func (v *verifier) checkCommands() {
	for i := range v.Commands {
		c := &v.Commands[i]
		v.checkCommand(c, v.command(c.CommandID))
		v.checkResult(c)
	}
	missed := map[string]bool{}
	for i := range v.Events {
		e := &v.Events[i]
		switch e.Type {
		case CommandEmitted, CommandCommitted, TimerFired, UUIDRecorded, RandomRecorded:
			if v.rows[e.CommandID] == nil && !missed[e.CommandID] {
				v.differAt(CheckRow, e, "a row of command "+e.CommandID, "none")
				missed[e.CommandID] = true
			}
		default:
		}
	}
}

func (v *verifier) checkCommand(c *CommandRecord, said *commandStory) {
	differ := func(sequence int64, expected, found string) {
		v.differ(Difference{Check: CheckRow, Sequence: sequence, NodeID: c.NodeID, CommandID: c.CommandID, Expected: expected, Found: found})
	}
	if c.DispatchNo > 0 && said.emitted == nil && !said.recorded {
		differ(c.Sequence, "command_emitted, since the row was dispatched", "none")
	}
	var emitted CommandEmittedData
	if said.emitted != nil && decode(*said.emitted, &emitted) == nil {
		want, have := commandOf(emitted.Kind, emitted.Tool, emitted.Effect, emitted.InputHash), commandOf(c.Kind, c.Tool, c.Effect, c.InputHash)
		if c.DispatchNo > 1 { // the class is the worker's word at each dispatch
			have = commandOf(c.Kind, c.Tool, emitted.Effect, c.InputHash)
		}
		if said.asked != nil && said.asked.requested.Sequence > said.emitted.Sequence { // the answer says what it is called with from then on
			have = commandOf(c.Kind, c.Tool, emitted.Effect, emitted.InputHash)
		}
		if v.copied(said.emitted) { // the run may come to another input, and has the result all the same
			want, have = commandOf(emitted.Kind, emitted.Tool, emitted.Effect, ""), commandOf(c.Kind, c.Tool, c.Effect, "")
		}
		if plain(want) != plain(have) {
			differ(said.emitted.Sequence, want, have)
		}
	}
	found := fmt.Sprintf("a row that is %s by event %d", c.State, c.Sequence)
	if said.committed != nil {
		switch {
		case c.State != Committed || c.Sequence != said.committed.Sequence:
			differ(said.committed.Sequence, fmt.Sprintf("a row that is committed by event %d", said.committed.Sequence), found)
		case c.ResultHash != said.hash:
			differ(said.committed.Sequence, "result_hash "+quote(said.hash)+", as its event says", quote(c.ResultHash))
		}
		return
	}
	if c.Unannounced {
		if v.ended == nil || said.outcome == nil || said.outcome.Type != CommandDoubtType || c.Sequence != 0 {
			differ(c.Sequence, "a row that was in doubt at the run's end, since nothing has announced its outcome", found)
		}
		return
	}
	if !c.decided() {
		if said.outcome != nil && said.reopened == nil && said.resolved == nil && v.Run.Epoch == said.outcome.Epoch {
			differ(said.outcome.Sequence, "a row that was decided by "+describe(said.outcome), found)
		}
		return
	}
	want := map[CommandState]EventType{CommandFailed: CommandFailedType, CommandAborted: CommandAbortType, CommandInDoubt: CommandDoubtType}[c.State]
	switch {
	case said.outcome == nil:
		differ(c.Sequence, "an event that decided the command", "none, and "+found)
	case said.resolved != nil && c.Sequence == said.resolved.Sequence:
	case said.outcome.Type != want || said.outcome.Sequence != c.Sequence:
		differ(said.outcome.Sequence, "a row that was decided by "+describe(said.outcome), found)
	case c.State == CommandFailed:
		v.checkFailure(c, said.outcome)
	}
}

func commandOf(kind CommandKind, tool string, effect EffectClass, inputHash string) string {
	return fmt.Sprintf("a %s command, tool %q, %s, input %q", kind, tool, effect, inputHash)
}

// checkFailure: the row keeps the error that the event shows.
func (v *verifier) checkFailure(c *CommandRecord, e *Event) {
	var event CommandFailedData
	var row *Error
	if decode(*e, &event) != nil || json.Unmarshal(c.Error, &row) != nil || !sameError(event.Error, row) {
		v.differAt(CheckRow, e, "the error "+shown(event.Error), quote(string(c.Error)))
	}
}

func (v *verifier) checkResult(c *CommandRecord) {
	if c.State != Committed {
		return
	}
	differ := func(expected, found string) {
		v.differ(Difference{Check: CheckResult, Sequence: c.Sequence, NodeID: c.NodeID, CommandID: c.CommandID, Expected: expected, Found: found})
	}
	switch {
	case c.StoredHash == "" && v.without().payloads:
	case c.StoredHash == "":
		differ("the bytes of result "+quote(c.ResultHash), "none")
	case c.StoredHash != c.ResultHash:
		differ("bytes with the hash "+quote(c.ResultHash), quote(c.StoredHash))
	case c.StoredBytes != c.ResultBytes:
		differ(fmt.Sprintf("%d bytes", c.ResultBytes), fmt.Sprint(c.StoredBytes))
	}
}

// checkCheckpoints: there is one row for every checkpoint_saved, and it says the same.
func (v *verifier) checkCheckpoints() {
	rows := map[int64]bool{}
	for _, c := range v.Checkpoints {
		e, ok := v.at[c.Sequence]
		var d CheckpointSavedData
		switch {
		case !ok || e.Type != CheckpointSaved || rows[c.Sequence]:
			v.differ(Difference{Check: CheckCheckpoint, Sequence: c.Sequence, Expected: "checkpoint_saved for checkpoint " + c.CheckpointID, Found: v.describe(c.Sequence)})
		case decode(*e, &d) == nil && (d.CheckpointID != c.CheckpointID || d.Type != c.Type || d.Step != c.Step):
			v.differAt(CheckCheckpoint, e, fmt.Sprintf("checkpoint %s, %s, step %d", d.CheckpointID, d.Type, d.Step),
				fmt.Sprintf("%s, %s, step %d", c.CheckpointID, c.Type, c.Step))
		}
		rows[c.Sequence] = true
	}
	for i := range v.Events {
		if e := &v.Events[i]; e.Type == CheckpointSaved && !rows[e.Sequence] {
			v.differAt(CheckCheckpoint, e, "a row with its state", "none")
		}
	}
}

// checkMessages: every message_added has its row, and every row says what its event, or its command's result, says.
func (v *verifier) checkMessages() {
	rows := map[int64]bool{}
	for _, m := range v.Messages {
		want, known := v.content(m)
		switch {
		case !known:
			v.differ(Difference{Check: CheckMessage, Sequence: m.Sequence, CommandID: m.CommandID, Expected: "an event that brought message " + m.MessageID,
				Found: v.describe(m.Sequence)})
		case plain(want) != plain(m.Content):
			v.differ(Difference{Check: CheckMessage, Sequence: m.Sequence, CommandID: m.CommandID, Expected: quote(want), Found: quote(m.Content)})
		case rows[m.Sequence]:
			v.differ(Difference{Check: CheckMessage, Sequence: m.Sequence, CommandID: m.CommandID, Expected: "one message", Found: "a second one"})
		}
		rows[m.Sequence] = true
	}
	for i := range v.Events {
		if e := &v.Events[i]; e.Type == MessageAdded && !rows[e.Sequence] {
			v.differAt(CheckMessage, e, "its message", "none")
		}
	}
}

// content is what a message has to say; known is false when no event can have brought it.
func (v *verifier) content(m MessageRecord) (text string, known bool) {
	e, ok := v.at[m.Sequence]
	if !ok {
		return "", false
	}
	switch e.Type {
	case MessageAdded:
		var d MessageAddedData
		return d.Content, decode(*e, &d) == nil && d.Role == m.Role
	case CommandCommitted:
		if m.Result == nil && v.without().payloads {
			return m.Content, m.Role == ToolMessage || m.Role == AssistantMessage
		}
		if m.Kind == ToolCommand {
			return string(m.Result), m.Role == ToolMessage
		}
		output, err := NodeOutput(m.Kind, m.Result)
		if err != nil || json.Unmarshal(output, &text) != nil {
			return "", false
		}
		return text, m.Role == AssistantMessage
	case CommandFailedType:
		var d CommandFailedData
		if decode(*e, &d) != nil || d.Error == nil {
			return "", false
		}
		return d.Error.Error(), m.Role == ToolMessage
	default:
		return "", false
	}
}

// plain makes texts comparable that took different ways into the record: what a column or a document cannot hold was
// replaced on each way, by one mark or by one for each byte.
func plain(s string) string {
	const mark = "\uFFFD"
	s = strings.ReplaceAll(strings.ToValidUTF8(s, mark), "\x00", mark)
	for strings.Contains(s, mark+mark) {
		s = strings.ReplaceAll(s, mark+mark, mark)
	}
	return s
}

func quote(s string) string { return fmt.Sprintf("%q", Preview(s, maxPreviewBytes)) }

// sameError: an error that was never set reads as none from one place and as an empty one from another.
func sameError(a, b *Error) bool {
	if a == nil {
		a = &Error{}
	}
	if b == nil {
		b = &Error{}
	}
	return plain(a.Error()) == plain(b.Error())
}

func shown(e *Error) string {
	if e == nil {
		return "none"
	}
	return quote(e.Error())
}

// sameJSON reports whether two documents have the same value. Postgres reorders keys and writes numbers in its own way.
func sameJSON(a, b json.RawMessage) bool {
	x, okX := value(a)
	y, okY := value(b)
	return okX && okY && sameValue(x, y)
}

func value(doc json.RawMessage) (v any, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	return v, dec.Decode(&v) == nil
}

func sameValue(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for key, item := range a {
			other, ok := b[key]
			if !ok || !sameValue(item, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !sameValue(a[i], b[i]) {
				return false
			}
		}
		return true
	case json.Number:
		b, ok := b.(json.Number)
		return ok && (a == b || sameNumber(a.String(), b.String()))
	}
	return a == b
}

func sameNumber(a, b string) bool {
	x, okX := new(big.Rat).SetString(a)
	y, okY := new(big.Rat).SetString(b)
	return okX && okY && x.Cmp(y) == 0
}
