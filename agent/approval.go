package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// DefaultApprovalTimeout is how long an approval is waited for unless somebody says otherwise.
const DefaultApprovalTimeout = Duration(24 * time.Hour)

// ApprovalState is what became of the question whether a call may be made.
type ApprovalState string

const (
	ApprovalOpen     ApprovalState = "open"
	ApprovalApproved ApprovalState = "approved"
	ApprovalDenied   ApprovalState = "denied"
	// ApprovalExpired: nobody answered in time. It is nobody's word.
	ApprovalExpired ApprovalState = "expired"
	// ApprovalWithdrawn: the run ended before anybody answered.
	ApprovalWithdrawn ApprovalState = "withdrawn"
)

// Approval is the question whether a tool may be called with certain arguments, and the answer. An answer holds for these
// arguments, for every try of the call, and for no other call.
type Approval struct {
	ApprovalID     string `json:"approval_id"`
	RunID          string `json:"run_id"`
	ConversationID string `json:"conversation_id"`
	NodeID         string `json:"node_id"`
	CommandID      string `json:"command_id"`
	Tool           string `json:"tool"`
	// Effect is the class of the call.
	Effect EffectClass `json:"effect_class"`
	// Arguments are those that the tool would be called with, in canonical form and without their secrets; ArgumentsHash is the
	// hash of their canonical form with them.
	Arguments     json.RawMessage `json:"arguments"`
	ArgumentsHash string          `json:"arguments_hash"`
	// Reason is why somebody is asked.
	Reason      string        `json:"reason,omitempty"`
	State       ApprovalState `json:"state"`
	RequestedAt time.Time     `json:"requested_at"`
	ExpiresAt   time.Time     `json:"expires_at"`
	DecidedAt   *time.Time    `json:"decided_at,omitempty"`
	By          string        `json:"by,omitempty"`
	Note        string        `json:"note,omitempty"`
	// Edited: the arguments are not those that were asked for.
	Edited bool `json:"edited,omitempty"`
}

// ApprovalAnswer is somebody's answer.
type ApprovalAnswer struct {
	Approve bool
	// Arguments, when not nil, are called with instead of those that were asked for. Shown is them without their secrets.
	Arguments json.RawMessage
	Shown     json.RawMessage
	By        string
	// Note is told to the model when the call is denied.
	Note string
}

// ApprovalRow is what the gate has to know of a command's approval.
type ApprovalRow struct {
	ApprovalID string
	State      ApprovalState
	// Asked is the hash of the canonical arguments that were asked for. Hash is the same, or that of what the answer has put in
	// their place: Edited, nil for none.
	Asked     string
	Hash      string
	Edited    json.RawMessage
	ExpiresAt time.Time
	By        string
	Note      string
}

// ApprovalFilter selects approvals; empty fields select all.
type ApprovalFilter struct {
	Owner string
	RunID string
	State ApprovalState
	// Before is the approval that the page goes on after (they are listed newest first); Limit bounds the page.
	Before string
	Limit  int
}

// The payloads of events about approvals.
type (
	// ApprovalRequestedData asks whether a call may be made.
	ApprovalRequestedData struct {
		ApprovalID    string      `json:"approval_id"`
		Tool          string      `json:"tool"`
		Effect        EffectClass `json:"effect_class"`
		Arguments     Value       `json:"arguments"`
		ArgumentsHash string      `json:"arguments_hash"`
		Reason        string      `json:"reason,omitempty"`
		ExpiresAt     time.Time   `json:"expires_at"`
	}

	// ApprovalResolvedData is the answer, or why there is none.
	ApprovalResolvedData struct {
		ApprovalID string        `json:"approval_id"`
		Outcome    ApprovalState `json:"outcome"`
		By         string        `json:"by,omitempty"`
		Note       string        `json:"note,omitempty"`
		// Arguments and ArgumentsHash are set when the answer has changed them.
		Arguments     *Value `json:"arguments,omitempty"`
		ArgumentsHash string `json:"arguments_hash,omitempty"`
	}
)

// CanonicalJSON writes a JSON document in one form for all that are equal: keys in order, no spaces, numbers as they stand. What
// is not JSON comes back as it is.
func CanonicalJSON(doc json.RawMessage) json.RawMessage {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil || dec.More() {
		return doc
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return doc
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// ArgumentsHash names arguments by their canonical form.
func ArgumentsHash(args json.RawMessage) string {
	sum := sha256.Sum256(CanonicalJSON(args))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Given is the approval as an answer to it would leave it. Arguments that are those that were asked for edit nothing.
func (a *ApprovalRow) Given(answer ApprovalAnswer) ApprovalRow {
	given := ApprovalRow{ApprovalID: a.ApprovalID, State: ApprovalDenied, Asked: a.Asked, Hash: a.Asked, ExpiresAt: a.ExpiresAt, By: answer.By, Note: answer.Note}
	if !answer.Approve {
		return given
	}
	given.State = ApprovalApproved
	if answer.Arguments == nil {
		return given
	}
	if hash := ArgumentsHash(answer.Arguments); hash != a.Asked {
		given.Edited, given.Hash = CanonicalJSON(answer.Arguments), hash
	}
	return given
}

// Same reports whether an answer says what was said before: the same word, on the same arguments.
func (a *ApprovalRow) Same(given ApprovalRow) bool {
	return a.State == given.State && a.Hash == given.Hash
}

// Refusal is why a command fails whose approval was denied or has expired, nil otherwise.
func (a *ApprovalRow) Refusal(nodeID, commandID string) *Error {
	if a.State != ApprovalDenied && a.State != ApprovalExpired {
		return nil
	}
	e := &Error{Code: CodeDenied, NodeID: nodeID, CommandID: commandID, Message: "denied by " + a.By}
	if a.State == ApprovalExpired {
		e.Code, e.Message = CodeExpired, "nobody answered in time whether the call may be made"
	}
	if a.Note != "" {
		e.Message = fmt.Sprintf("%s: %s", e.Message, a.Note)
	}
	return e
}
