package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"runledger/agent"
)

// Bounds of what a request may say.
const (
	maxAttachments  = 20
	maxName         = 200
	maxWait         = 600 * time.Second
	defaultWait     = 60 * time.Second
	maxKey          = 255
	defaultAgent    = "default"
	offlineProvider = "scripted"
)

// runBody is the body of a request that starts a run.
type runBody struct {
	Input          string             `json:"input"`
	Agent          string             `json:"agent"`
	Mode           agent.Mode         `json:"mode"`
	Plan           *agent.Plan        `json:"plan"`
	ConversationID string             `json:"conversation_id"`
	SessionID      string             `json:"session_id"`
	MessageID      string             `json:"message_id"`
	Attachments    []agent.Attachment `json:"attachments"`
	Metadata       json.RawMessage    `json:"metadata"`
	Limits         agent.Limits       `json:"limits"`
	Strategy       agent.Strategy     `json:"strategy"`
	Wait           *float64           `json:"wait"`
}

// chatBody is the body of a chat message.
type chatBody struct {
	Message        string         `json:"message"`
	ConversationID string         `json:"conversation_id"`
	Agent          string         `json:"agent"`
	Strategy       agent.Strategy `json:"strategy"`
}

// faults collects what is wrong with the values of a body.
type faults []fault

func (f *faults) add(pointer, format string, args ...any) {
	*f = append(*f, fault{pointer, fmt.Sprintf(format, args...)})
}

// check looks at each value by itself.
func (b *runBody) check() faults {
	var f faults
	if strings.TrimSpace(b.Input) == "" && b.Plan == nil {
		f.add("/input", "an input is needed, unless a plan is brought")
	}
	switch b.Mode {
	case "", agent.ModePlan:
	case agent.ModeReact:
		if b.Plan != nil {
			f.add("/plan", "a plan cannot be brought in mode react")
		}
	default:
		f.add("/mode", "%q: want plan or react", b.Mode)
	}
	f.checkID("/conversation_id", &b.ConversationID)
	f.checkID("/message_id", &b.MessageID)
	f.checkStrategy(b.Strategy)
	f.checkLimits("/limits", b.Limits)
	if len(b.SessionID) > maxName {
		f.add("/session_id", "longer than %d bytes", maxName)
	}
	f.checkAttachments(b.Attachments)
	if len(b.Metadata) > 0 && b.Metadata[0] != '{' {
		f.add("/metadata", "want an object")
	}
	if b.Wait != nil && (*b.Wait < 0 || *b.Wait > maxWait.Seconds()) {
		f.add("/wait", "%v: want 0 to %v seconds", *b.Wait, maxWait.Seconds())
	}
	return f
}

// checkID checks an id that the caller brought, and writes it as the ledger does.
func (f *faults) checkID(pointer string, id *string) {
	if *id == "" {
		return
	}
	parsed, err := uuid.Parse(*id)
	if err != nil || len(*id) != 36 {
		f.add(pointer, "%q is not a UUID", agent.Preview(*id, 64))
		return
	}
	*id = parsed.String()
}

func (f *faults) checkStrategy(s agent.Strategy) {
	switch s {
	case agent.SideBySide, agent.Reject, agent.Enqueue, agent.Interrupt, agent.Steer:
	default:
		f.add("/strategy", "%q: want reject, enqueue, interrupt or steer", agent.Preview(string(s), 64))
	}
}

func (f *faults) checkAttachments(attachments []agent.Attachment) {
	if len(attachments) > maxAttachments {
		f.add("/attachments", "%d attachments; there may be %d", len(attachments), maxAttachments)
	}
	for i, at := range attachments {
		place := fmt.Sprintf("/attachments/%d", i)
		if at.Name == "" || len(at.Name) > maxName {
			f.add(place+"/name", "a name of 1 to %d bytes is needed", maxName)
		}
		if at.MediaType == "" || len(at.MediaType) > maxName {
			f.add(place+"/media_type", "a media type of 1 to %d bytes is needed", maxName)
		}
		if at.Text != "" && at.Data != "" {
			f.add(place, "either text or data, not both")
		}
		if _, err := base64.StdEncoding.DecodeString(at.Data); err != nil {
			f.add(place+"/data", "not base64")
		}
	}
}

// acceptance makes everything that is written of a run from a body whose values have been checked one by one. raw is the
// body as it was sent.
func (a *API) acceptance(r *http.Request, b *runBody, raw json.RawMessage) (agent.Acceptance, error) {
	var none agent.Acceptance
	key, err := readKey(r)
	if err != nil {
		return none, err
	}
	if err := requireHome(caller(r), b.ConversationID); err != nil {
		return none, err
	}
	blueprint, ok := a.blueprint(b.Agent)
	if !ok {
		return none, faultyBody(http.StatusUnprocessableEntity, "unknown-agent", []fault{{"/agent", fmt.Sprintf("there is no agent %q", agent.Preview(b.Agent, 64))}})
	}
	def, err := a.resolve(r.Context(), blueprint)
	if err != nil {
		return none, err
	}
	var f faults
	if f.checkTighter(b.Limits, def.Limits); len(f) > 0 {
		return none, faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	def.Limits = b.Limits.Or(def.Limits)
	switch {
	case b.Plan != nil:
		def.Mode = agent.ModePlan
	case b.Mode != "":
		def.Mode = b.Mode
	}
	if err := requirePlan(&def, b.Plan); err != nil {
		return none, err
	}
	id := newID()
	out := agent.Acceptance{
		Owner: caller(r).Owner, Key: key, Offline: def.Model.Provider == offlineProvider,
		NewConversation: b.ConversationID == "", Strategy: b.Strategy, Agent: b.Agent, OwnLimits: b.Limits != (agent.Limits{}),
		Run: agent.Run{
			RunID: id, RootRunID: id, ConversationID: orNewID(b.ConversationID), MessageID: orNewID(b.MessageID),
			RequestID: requestID(r), SessionID: b.SessionID, Epoch: 1, Status: agent.Queued, Input: b.Input,
			Attachments: b.Attachments, Metadata: b.Metadata, Definition: def,
		},
	}
	if out.RequestHash, err = requestHash(raw); err != nil {
		return none, err
	}
	switch {
	case b.Plan != nil:
		out.PlanSource = "caller"
		if out.Plan, err = a.compile(b.Plan, &def); err != nil {
			return none, err
		}
		// The default of max_steps is about turns and about plans that a model makes.
		if n, most := len(b.Plan.Nodes), b.Limits.Or(blueprint.Limits).MaxSteps; most > 0 && n > most {
			return none, faultyBody(http.StatusUnprocessableEntity, "invalid-plan", []fault{{"/plan/nodes", fmt.Sprintf("%d nodes: the limit max_steps is %d", n, most)}})
		}
	case def.Mode == agent.ModeReact:
		out.PlanSource, out.Plan = "react", agent.ReactPlan()
	}
	return out, nil
}

func readKey(r *http.Request) (string, error) {
	key := r.Header.Get("Idempotency-Key")
	if !printable(key) {
		return "", badParameter("Idempotency-Key", "want up to %d printable ASCII characters", maxKey)
	}
	return key, nil
}

// requirePlan refuses a run without a plan of an agent that has to be given one.
func requirePlan(def *agent.Definition, plan *agent.Plan) error {
	if !def.RequirePlan || plan != nil {
		return nil
	}
	return faultyBody(http.StatusUnprocessableEntity, "plan-required", []fault{{"/plan", "agent " + def.Agent + " has to be given its plan"}})
}

func orNewID(id string) string {
	if id == "" {
		return newID()
	}
	return id
}

// blueprint finds the agent that a request names. A request that names none means "default", or the only one there is.
func (a *API) blueprint(name string) (agent.Blueprint, bool) {
	if name == "" && len(a.cfg.Agents) == 1 {
		return a.cfg.Agents[0], true
	}
	if name == "" {
		name = defaultAgent
	}
	i := slices.IndexFunc(a.cfg.Agents, func(b agent.Blueprint) bool { return b.Name == name })
	if i < 0 {
		return agent.Blueprint{}, false
	}
	return a.cfg.Agents[i], true
}

// resolve looks the agent's tools up in what workers have published.
func (a *API) resolve(ctx context.Context, b agent.Blueprint) (agent.Definition, error) {
	tools, err := a.cfg.Ledger.Tools(ctx)
	if err != nil {
		return agent.Definition{}, fmt.Errorf("read the tools: %w", err)
	}
	if len(tools) == 0 {
		return agent.Definition{}, unavailable("no-worker", "no worker has published its tools yet, so it is not known what agent %s can do; start a worker and try again", b.Name)
	}
	def, err := b.Resolve(tools)
	if err != nil {
		return agent.Definition{}, unavailable("agent-unavailable", "%s", err.Error())
	}
	return def, nil
}

// compile checks a plan that the caller brought. Its faults point into the body.
func (a *API) compile(p *agent.Plan, d *agent.Definition) (*agent.Plan, error) {
	check, err := a.cfg.CheckPlans(d.Tools)
	if err != nil {
		return nil, fmt.Errorf("a published tool has a schema that cannot be used: %w", err)
	}
	check.Workflow = d.MayStart
	compiled, err := agent.Compile(p, check)
	var invalid *agent.PlanError
	if errors.As(err, &invalid) {
		f := make([]fault, len(invalid.Faults))
		for i, at := range invalid.Faults {
			f[i] = fault{"/plan" + at.Pointer, at.Message}
		}
		return nil, faultyBody(http.StatusUnprocessableEntity, "invalid-plan", f)
	}
	return compiled, err
}

// requestHash tells two requests under one key apart. How long the caller waits is not part of what it asks for; neither
// is whether it reads the answer as a document or as a stream.
func requestHash(raw json.RawMessage) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var body map[string]any
	if err := dec.Decode(&body); err != nil {
		return "", fmt.Errorf("hash the request: %w", err)
	}
	delete(body, "wait")
	canonical, err := json.Marshal(body) // keys in order, no spaces
	if err != nil {
		return "", fmt.Errorf("hash the request: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
