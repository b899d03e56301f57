package api

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"runledger/agent"
	"runledger/sse"
)

// Config says what the API serves and to whom. Ledger, Agents and CheckArguments are required.
type Config struct {
	Ledger Ledger
	// Agents are those that a request may name.
	Agents []agent.Blueprint
	// CheckArguments makes the check of tool arguments in plans, for the tools of an agent.
	CheckArguments func(tools []agent.ToolRef) (agent.CheckArguments, error)
	// Verifier verifies runs, with Temporal as the second witness. Without one the ledger's own side is all there is.
	Verifier Verifier
	// Owner says whose request it is. Everybody is "local" unless set.
	Owner func(*http.Request) string
	// AnyHost accepts requests whatever name they were sent to. Leave it off where callers are not authenticated: the Host
	// header is then what keeps a foreign web page, whose name was made to point here, from being served.
	AnyHost bool
	// MaxBody bounds request bodies, 1 MiB unless set.
	MaxBody int64
	// MaxStreams bounds the streams of one owner at a time, 1,000 unless set.
	MaxStreams int
	// Streams says how streams behave. Its Log and Logger are taken from here.
	Streams sse.Config
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
	case cfg.CheckArguments == nil:
		return nil, errors.New("api: a check of tool arguments is needed")
	}
	seen := map[string]bool{}
	for _, b := range cfg.Agents {
		if b.Name == "" || seen[b.Name] {
			return nil, fmt.Errorf("api: agent %q: names must be there and differ", b.Name)
		}
		seen[b.Name] = true
	}
	if cfg.Owner == nil {
		cfg.Owner = func(*http.Request) string { return "local" }
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
	a.router = a.routes()
	return a, nil
}

// ServeHTTP answers a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.router.ServeHTTP(w, r) }

// Drain ends streams, and answers those who wait for a run with what there is, so that http.Server.Shutdown, which does
// neither, can finish: give it Drain by RegisterOnShutdown. It does not wait, and calling it twice is fine.
func (a *API) Drain() { a.streams.Drain() }

// root is where the API stands. Runs can be started under a second name too, without the version.
const root = "/api/v1/agent"

// readTimeout bounds what a request may ask of the ledger, apart from streams and waits.
const readTimeout = 30 * time.Second

func (a *API) routes() *chi.Mux {
	r := chi.NewRouter()
	r.Use(a.identify, a.observe, a.guard)
	r.NotFound(a.handle(func(_ http.ResponseWriter, r *http.Request) error {
		return newProblem(http.StatusNotFound, "not-found", "there is nothing at %s", r.URL.Path)
	}))
	r.MethodNotAllowed(a.handle(a.methodNotAllowed))

	// These may last: runs are waited for, streams are followed.
	for _, prefix := range []string{root, "/api/agent"} {
		r.Post(prefix+"/run", a.handle(a.postRun))
		r.Post(prefix+"/run/stream", a.handle(a.postRunStream))
	}
	r.Post(root+"/chat", a.handle(a.postChat))
	r.Post(root+"/runs/{run_id}/cancel", a.handle(a.postCancel))
	r.Get(root+"/runs/{run_id}/events", a.handle(a.getRunEvents))
	r.Get(root+"/conversations/{conversation_id}/events", a.handle(a.getConversationEvents))

	r.Group(func(r chi.Router) {
		r.Use(boundTime)
		for path, h := range map[string]handler{
			root + "/runs":                                             a.getRuns,
			root + "/runs/{run_id}":                                    a.getRun,
			root + "/runs/{run_id}/commands":                           a.getCommands,
			root + "/runs/{run_id}/commands/{command_id}":              a.getCommand,
			root + "/runs/{run_id}/checkpoints":                        a.getCheckpoints,
			root + "/runs/{run_id}/replay-context":                     a.getReplayContext,
			root + "/runs/{run_id}/trace":                              a.getTrace,
			root + "/runs/{run_id}/verify":                             a.getVerification,
			root + "/conversations":                                    a.getConversations,
			root + "/conversations/{conversation_id}":                  a.getConversation,
			root + "/conversations/{conversation_id}/execution-status": a.getExecutionStatus,
			root + "/conversations/{conversation_id}/messages":         a.getMessages,
			root + "/tools":                                            a.getTools,
			root + "/agents":                                           a.getAgents,
			"/healthz":                                                 a.getHealth,
			"/readyz":                                                  a.getReady,
			"/openapi.yaml":                                            a.getOpenAPI,
		} {
			r.Get(path, a.handle(h))
		}
		r.Post(root+"/runs/{run_id}/commands/{command_id}/resolve", a.handle(a.postResolve))
		r.Post(root+"/runs/{run_id}/resume", a.handle(a.postResume))
		r.Post(root+"/conversations/{conversation_id}/resume", a.handle(a.postConversationResume))
	})
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
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if a.router.Match(chi.NewRouteContext(), method, path) {
			w.Header().Add("Allow", method)
		}
	}
	return newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "%s does not answer to %s", r.URL.Path, r.Method)
}
