package api

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"runledger/agent"
	"runledger/auth"
	"runledger/sse"
)

// Config says what the API serves and to whom. Ledger, Agents, CheckPlans and EditArguments are required.
type Config struct {
	Ledger Ledger
	// Agents are those that a request may name.
	Agents []agent.Blueprint
	// Models are those that a fork may name; the agents' own need not be among them.
	Models []agent.ModelRef
	// CheckPlans makes the checks of plans, for the tools of an agent.
	CheckPlans func(tools []agent.ToolRef) (agent.PlanChecks, error)
	// EditArguments checks the arguments that somebody approves in the place of those that a tool was to be called with, and gives
	// them as they are called with and as they may be shown.
	EditArguments func(tool agent.ToolRef, asked, by json.RawMessage) (edited, shown json.RawMessage, faults []agent.PlanFault, err error)
	// Verifier verifies runs, with Temporal as the second witness. Without one the ledger's own side is all there is.
	Verifier Verifier
	// Tokens says who may call. Without it everybody is an operator, and the owner of everything is "local": serve nobody but
	// this machine then, see CheckListen.
	Tokens *auth.Keyring
	// AnyHost accepts requests without a token whatever name they were sent to. Leave it off: the Host header is what keeps a
	// foreign web page, whose name was made to point here, from being served.
	AnyHost bool
	// CORSOrigins are the origins whose pages a browser lets call the API and read its answers, none unless set. They need a token
	// like everybody else. CheckOrigin says what is one.
	CORSOrigins []string
	// MaxBody bounds request bodies, 1 MiB unless set.
	MaxBody int64
	// MaxStreams bounds the streams of one owner at a time, 1,000 unless set.
	MaxStreams int
	// Streams says how streams behave. Its Log and Logger are taken from here.
	Streams sse.Config
	// Metrics, if set, answers to GET /metrics.
	Metrics http.Handler
	// Logger is slog's default unless set.
	Logger *slog.Logger
}

// API is the HTTP handler. Drain ends its streams and waits.
type API struct {
	cfg     Config
	log     *slog.Logger
	streams *sse.Server
	slots   slots
	origin  http.CrossOriginProtection
	router  *chi.Mux
}

//go:embed openapi.yaml
var openAPI []byte

// New makes the API. The error says what the configuration lacks.
func New(cfg Config) (*API, error) {
	switch {
	case cfg.Ledger == nil:
		return nil, errors.New("api: a ledger is needed")
	case len(cfg.Agents) == 0:
		return nil, errors.New("api: at least one agent is needed")
	case cfg.CheckPlans == nil:
		return nil, errors.New("api: a check of tool arguments is needed")
	case cfg.EditArguments == nil:
		return nil, errors.New("api: a check of edited arguments is needed")
	}
	seen := map[string]bool{}
	for _, b := range cfg.Agents {
		if b.Name == "" || seen[b.Name] {
			return nil, fmt.Errorf("api: agent %q: names must be there and differ", b.Name)
		}
		seen[b.Name] = true
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = 1 << 20
	}
	if cfg.MaxStreams <= 0 {
		cfg.MaxStreams = 1000
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Streams.Log, cfg.Streams.Logger = cfg.Ledger, cfg.Logger
	streams, err := sse.NewServer(cfg.Streams)
	if err != nil {
		return nil, err
	}
	a := &API{cfg: cfg, log: cfg.Logger, streams: streams, slots: slots{limit: cfg.MaxStreams}}
	for _, origin := range cfg.CORSOrigins {
		err := CheckOrigin(origin)
		if err == nil {
			err = a.origin.AddTrustedOrigin(origin)
		}
		if err != nil {
			return nil, fmt.Errorf("api: %w", err)
		}
	}
	a.router = a.routes()
	return a, nil
}

// ServeHTTP answers a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.router.ServeHTTP(w, r) }

// Drain ends streams, and answers those who wait for a run with what there is, so that http.Server.Shutdown, which does
// neither, can finish: give it Drain by RegisterOnShutdown. It does not wait, and calling it twice is fine.
func (a *API) Drain() { a.streams.Drain() }

// Streams tells what the streams have done.
func (a *API) Streams() sse.Stats { return a.streams.Stats() }

// root is where the API stands. Runs can be started under a second name too, without the version.
const root = "/api/v1/agent"

// readTimeout bounds what a request may ask of the ledger, apart from streams and waits.
const readTimeout = 30 * time.Second

// route is an endpoint and the role that it needs.
type route struct {
	method, path string
	role         auth.Role
	pace         pace
	serve        handler
}

// pace says how long an answer may take.
type pace bool

const (
	brief pace = false
	// lasting is for what waits for runs or follows streams.
	lasting pace = true
)

// endpoints are all that is served. What reads needs a viewer, what acts a user, what is not for users an operator. A route
// whose role was forgotten lets nobody in.
func (a *API) endpoints() []route {
	const (
		run          = root + "/runs/{run_id}"
		command      = run + "/commands/{command_id}"
		conversation = root + "/conversations/{conversation_id}"
		unversioned  = "/api/agent"
		documents    = "/api/v1/documents"
	)
	return []route{
		{"POST", root + "/run", auth.User, lasting, a.postRun},
		{"POST", unversioned + "/run", auth.User, lasting, a.postRun},
		{"POST", root + "/run/stream", auth.User, lasting, a.follows(a.postRunStream)},
		{"POST", unversioned + "/run/stream", auth.User, lasting, a.follows(a.postRunStream)},
		{"POST", root + "/chat", auth.User, lasting, a.follows(a.postChat)},

		{"GET", root + "/runs", auth.Viewer, brief, a.getRuns},
		{"GET", run, auth.Viewer, brief, a.getRun},
		{"GET", run + "/events", auth.Viewer, lasting, a.follows(a.getRunEvents)},
		{"GET", run + "/commands", auth.Viewer, brief, a.getCommands},
		{"GET", command, auth.Viewer, brief, a.getCommand},
		{"POST", command + "/resolve", auth.User, brief, a.postResolve},
		{"GET", run + "/checkpoints", auth.Viewer, brief, a.getCheckpoints},
		{"GET", run + "/replay-context", auth.Viewer, brief, a.getReplayContext},
		{"GET", run + "/trace", auth.Viewer, brief, a.getTrace},
		{"GET", run + "/verify", auth.Operator, brief, a.getVerification},
		{"POST", run + "/cancel", auth.User, lasting, a.postCancel},
		{"POST", run + "/resume", auth.User, brief, a.postResume},
		{"POST", run + "/signal", auth.User, brief, a.postSignal},
		{"POST", run + "/pause", auth.Operator, brief, a.postPause},
		{"POST", run + "/unpause", auth.Operator, brief, a.postUnpause},
		{"POST", run + "/limits", auth.User, brief, a.postLimits},
		{"POST", run + "/fork", auth.User, lasting, a.postFork},

		{"POST", run + "/approvals/{approval_id}", auth.User, brief, a.postApproval},

		{"GET", root + "/approvals", auth.Viewer, brief, a.getApprovals},
		{"GET", root + "/approvals/{approval_id}", auth.Viewer, brief, a.getApproval},
		{"POST", root + "/approvals/{approval_id}", auth.User, brief, a.postApproval},

		{"GET", root + "/conversations", auth.Viewer, brief, a.getConversations},
		{"GET", conversation, auth.Viewer, brief, a.getConversation},
		{"DELETE", conversation, auth.User, lasting, a.deleteConversation},
		{"GET", conversation + "/events", auth.Viewer, lasting, a.follows(a.getConversationEvents)},
		{"GET", conversation + "/execution-status", auth.Viewer, brief, a.getExecutionStatus},
		{"GET", conversation + "/messages", auth.Viewer, brief, a.getMessages},
		{"POST", conversation + "/resume", auth.User, brief, a.postConversationResume},

		{"POST", documents, auth.User, brief, a.postDocuments},
		{"GET", documents + "/{document_id}", auth.Viewer, brief, a.getDocument},
		{"DELETE", documents + "/{document_id}", auth.User, brief, a.deleteDocument},

		{"GET", root + "/tools", auth.Viewer, brief, a.getTools},
		{"GET", root + "/agents", auth.Viewer, brief, a.getAgents},
		{"GET", "/healthz", anyone, brief, a.getHealth},
		{"GET", "/readyz", anyone, brief, a.getReady},
		{"GET", "/metrics", auth.Operator, brief, a.getMetrics},
		{"GET", "/openapi.yaml", anyone, brief, a.getOpenAPI},
	}
}

func (a *API) routes() *chi.Mux {
	r := chi.NewRouter()
	r.Use(a.identify, a.observe, a.share, a.guard)
	r.NotFound(a.handle(func(_ http.ResponseWriter, r *http.Request) error {
		return newProblem(http.StatusNotFound, "not-found", "there is nothing at %s", r.URL.Path)
	}))
	r.MethodNotAllowed(a.handle(a.methodNotAllowed))
	for _, e := range a.endpoints() {
		var h http.Handler = a.handle(e.serve)
		if e.pace == brief {
			h = boundTime(h)
		}
		r.Method(e.method, e.path, a.permit(e.role, h))
	}
	return r
}

func boundTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// methodNotAllowed says which methods there are, as RFC 9110 wants it.
func (a *API) methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if a.router.Match(chi.NewRouteContext(), method, path) {
			w.Header().Add("Allow", method)
		}
	}
	return newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "%s does not answer to %s", r.URL.Path, r.Method)
}
