package streams_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
)

// playwrightVersion pins what drives the browser: the last one that runs on Node 18.
const playwrightVersion = "1.56.1"

// userToken is what the page brings.
const userToken = "s3cret-user-of-team-a"

// halting is a model that stops in the middle of an answer to whoever asks it to halt, until it is let go on.
type halting struct{ release chan struct{} }

func (h halting) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	halts := slices.ContainsFunc(req.Messages, func(m model.Message) bool { return strings.Contains(m.Text, "halt") })
	reply := model.Reply{Finish: model.FinishStop, Model: "halting"}
	for i, text := range []string{"It is ", "391, ", "as anybody can see."} {
		if i == 2 && halts {
			select {
			case <-h.release:
			case <-ctx.Done():
				return model.Reply{}, model.ContextError(ctx)
			}
		}
		emit(model.Delta{Channel: model.Text, Text: text})
		reply.Text += text
	}
	return reply, nil
}

// TestBrowser shows conversations in Chromium with the TypeScript client, over an API that wants a token: a page that is reloaded in
// the middle of a run shows a whole timeline, and A -> B -> A shows A right while A goes on. A page of another origin follows A itself,
// if the API knows its origin.
func TestBrowser(t *testing.T) {
	t.Parallel()
	chromium := browser(t)
	compiler := typescriptVersion(t)
	modules := stacktest.NpmPackages(t, "browser-"+playwrightVersion+"-"+compiler, "playwright-core@"+playwrightVersion, "typescript@"+compiler)
	dist := t.TempDir()
	sources, err := filepath.Abs(filepath.Join("..", "..", "clients", "typescript"))
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), filepath.Join(modules, "node_modules", ".bin", "tsc"), "-p", sources, "--outDir", dist).CombinedOutput()
	require.NoError(t, err, "%s", out)

	// Pages of other origins: the API knows one of them.
	empty := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") })
	friend, stranger := httptest.NewServer(empty), httptest.NewServer(empty)
	t.Cleanup(friend.Close)
	t.Cleanup(stranger.Close)
	held := halting{make(chan struct{})}
	sum := sha256.Sum256([]byte(userToken))
	s := stacktest.StartServers(t, fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: plan, tools: [calculator]}
auth:
  tokens: [{token_sha256: %s, owner: team-a, role: user}]
api: {cors_origins: [%q]}
`, modeltest.NewServer(t, held).URL, hex.EncodeToString(sum[:]), friend.URL))
	s.StartWorker(t)
	_, c := s.StartAPI(t, 0)
	post := func(wait int, nodes string) (run agent.Run) {
		ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
		defer cancel()
		res := c.Send(ctx, t, http.MethodPost, "/api/v1/agent/run", http.Header{"Authorization": {"Bearer " + userToken}},
			fmt.Sprintf(`{"input": "17 * 23?", "wait": %d, "plan": {"nodes": [%s]}}`, wait, nodes))
		defer func() { _ = res.Body.Close() }()
		answer, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusOK, http.StatusAccepted}, res.StatusCode, "%s", answer)
		require.NoError(t, json.Unmarshal(answer, &run))
		return run
	}
	calculate := `{"id": "calculate", "kind": "tool", "tool": "calculator", "args": {"expression": "17 * 23"}}`
	a := post(0, calculate+`, {"id": "go", "kind": "wait", "signal": "go", "depends_on": ["calculate"]},
		{"id": "say", "kind": "llm", "prompt": "Say it, and halt", "depends_on": ["go"]}`)
	b := post(60, calculate)
	require.Equal(t, agent.Completed, b.Status)

	page := httptest.NewServer(pages(t, c.URL, dist, held.release))
	t.Cleanup(page.Close)
	drive, err := filepath.Abs(filepath.Join("testdata", "browser", "drive.mjs"))
	require.NoError(t, err)
	p := stacktest.StartProgram(t, "node", t.TempDir(), []string{"MODULES=" + modules, "CHROMIUM=" + chromium, "PAGE=" + page.URL, "TOKEN=" + userToken,
		"A=" + a.ConversationID, "B=" + b.ConversationID, "RUN=" + a.RunID, "API=" + c.URL, "FRIEND=" + friend.URL, "STRANGER=" + stranger.URL}, drive)
	select {
	case <-p.Done:
		require.Zero(t, p.Cmd.ProcessState.ExitCode(), "what the browser showed stands above")
	case <-time.After(3 * stacktest.Patience):
		require.Fail(t, "the browser does not come to an end")
	}
}

// pages serves the page and the client from the API's own origin, as a proxy of a site does.
func pages(t testing.TB, apiURL, dist string, release chan struct{}) http.Handler {
	upstream, err := url.Parse(apiURL)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) }}
	var left sync.Map // conversation to a channel that is closed when its latest stream is
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join("testdata", "browser", "page.html"))
	})
	mux.Handle("GET /client/", http.StripPrefix("/client/", http.FileServer(http.Dir(dist))))
	mux.HandleFunc("POST /release", func(http.ResponseWriter, *http.Request) { close(release) })
	mux.HandleFunc("POST /left/{conversation}", func(w http.ResponseWriter, r *http.Request) {
		closed, ok := left.Load(r.PathValue("conversation"))
		if !ok {
			http.Error(w, "no stream of it was ever open", http.StatusNotFound)
			return
		}
		select {
		case <-closed.(chan struct{}):
		case <-time.After(stacktest.Patience / 3):
			http.Error(w, "a stream of it is still open", http.StatusConflict)
		}
	})
	mux.Handle("/api/", proxy)
	mux.HandleFunc("GET /api/v1/agent/conversations/{conversation}/events", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			closed := make(chan struct{})
			left.Store(r.PathValue("conversation"), closed)
			defer close(closed)
		}
		proxy.ServeHTTP(w, r)
	})
	return mux
}

// browser finds Chromium.
func browser(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.Empty(t, os.Getenv("CI"), "CI has to have Chromium")
	t.Skip("Chromium is not installed (Debian: apt-get install chromium), so there is no browser to look with")
	return ""
}

// typescriptVersion is the one that the client is built with.
func typescriptVersion(t testing.TB) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "clients", "typescript", "package.json"))
	require.NoError(t, err)
	var manifest struct {
		DevDependencies map[string]string `json:"devDependencies"`
	}
	require.NoError(t, json.Unmarshal(raw, &manifest))
	require.Len(t, manifest.DevDependencies, 1, "the client needs a compiler and nothing else")
	return manifest.DevDependencies["typescript"]
}
