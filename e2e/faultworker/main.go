// Command faultworker is a worker as users write theirs, with a tool of each kind, built to be broken: at every boundary of
// the commit gate and in the middle of every effect it asks a server whether it may go on. The server is the test's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.temporal.io/sdk/activity"

	"runledger/agent"
	"runledger/ledger"
	"runledger/model"
	"runledger/model/scripted"
	"runledger/tool"
	"runledger/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "faultworker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, log *slog.Logger) error {
	asker := asker{server: os.Getenv("FAULTS_URL")}
	if asker.server == "" {
		return errors.New("FAULTS_URL is not set")
	}
	store, err := ledger.Open(ctx, os.Getenv("DATABASE_URL"), ledger.Options{Log: log})
	if err != nil {
		return err
	}
	defer store.Close()
	temporal, err := worker.Dial(ctx, os.Getenv("TEMPORAL_ADDRESS"), "", log)
	if err != nil {
		return err
	}
	defer temporal.Close()
	tools, err := asker.tools()
	if err != nil {
		return err
	}
	offline := scripted.New(scripted.Options{})
	return worker.Run(ctx, worker.Config{Ledger: store, Temporal: temporal, Tools: tools, Log: log, At: asker.at,
		Models: func(string) model.Client { return offline }})
}

// asker asks the test's server.
type asker struct{ server string }

// at asks for leave to go beyond a boundary of the gate, and says when it is in a segment. The activity's context does not end the
// wait: a worker that hangs does not hear of anything.
func (a asker) at(ctx context.Context, at agent.Boundary, call agent.Call) {
	if at == agent.BeforeBegin && activity.GetInfo(ctx).IsLocalActivity {
		_ = a.ask(context.WithoutCancel(ctx), http.MethodPost, "/segment", call.RunID, call.CommandID, nil)
	}
	_ = a.ask(context.WithoutCancel(ctx), http.MethodGet, "/at/"+string(at), call.RunID, call.CommandID, nil)
}

// ask is one request to the server; into, if not nil, receives its answer.
func (a asker) ask(ctx context.Context, method, path, runID, commandID string, into any) error {
	about := url.Values{"run": {runID}, "command": {commandID}}
	req, err := http.NewRequestWithContext(ctx, method, a.server+path+"?"+about.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", agent.IdempotencyKey(runID, commandID))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(body, into)
}

type nothing struct{}

// Done is what every tool gives.
type Done struct {
	Done bool `json:"done"`
}

// tools are one for each way in which the gate treats an effect, which all but the transactional one have at the server, and two that end
// without a result: one has failed, of the other nobody knows.
func (a asker) tools() (*tool.Set, error) {
	call := func(ctx context.Context, _ nothing, call tool.Call) (done Done, err error) {
		err = a.ask(ctx, http.MethodPost, "/effect", call.RunID, call.CommandID, &done)
		return done, err
	}
	spec := func(name string, effect agent.EffectClass) tool.Spec {
		return tool.Spec{Name: name, Description: "has an effect that is counted", Effect: effect}
	}
	return tool.NewSet(
		tool.MustNew(spec("deterministic", agent.Deterministic), call),
		tool.MustNew(spec("idempotent", agent.Idempotent), call),
		tool.MustNew(spec("external", agent.External), call),
		reconciled{tool.MustNew(spec("reconciled", agent.External), call), a},
		transactional{tool.MustNew(spec("transactional", agent.External), call), a},
		tool.MustNew(spec("failing", agent.Idempotent), ending(call, agent.Failed(agent.CodeToolFailed, "it went wrong"))),
		tool.MustNew(spec("doubtful", agent.External), ending(call, agent.Unknown(agent.CodeToolFailed, "the answer was lost"))),
	)
}

// ending is a call that has its effect and gives an error.
func ending(call func(context.Context, nothing, tool.Call) (Done, error), end error) func(context.Context, nothing, tool.Call) (Done, error) {
	return func(ctx context.Context, in nothing, c tool.Call) (Done, error) {
		if done, err := call(ctx, in, c); err != nil {
			return done, err
		}
		return Done{}, end
	}
}

// reconciled can find out whether a lost call has had its effect.
type reconciled struct {
	tool.Tool
	asker
}

func (r reconciled) Reconcile(ctx context.Context, call tool.Call) (tool.Finding, error) {
	var done Done
	if err := r.ask(ctx, http.MethodGet, "/effect", call.RunID, call.CommandID, &done); err != nil {
		return tool.Finding{}, err
	}
	if !done.Done {
		return tool.Finding{Conclusive: true}, nil
	}
	output, err := json.Marshal(done)
	return tool.Finding{Found: true, Output: output}, err
}

// transactional has its effect in the ledger's own database: a row of a table that the test has made.
type transactional struct {
	tool.Tool
	asker
}

func (t transactional) CallTx(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
	if _, err := tx.Exec(ctx, `INSERT INTO fault_effects (key) VALUES ($1)`, call.Key); err != nil {
		return nil, err
	}
	if err := t.ask(ctx, http.MethodGet, "/at/during", call.RunID, call.CommandID, nil); err != nil {
		return nil, err
	}
	return json.Marshal(Done{Done: true})
}
