package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model/modeltest"
	"runledger/model/scripted"
)

// everythingVersion pins the MCP server that the tests call.
const everythingVersion = "2026.8.31"

// TestReactOverHTTP asks an OpenAI-compatible server that streams tool calls, and lets a real MCP server do one of them.
func TestReactOverHTTP(t *testing.T) {
	t.Parallel()
	vendor := modeltest.NewServer(t, scripted.New(scripted.Options{}))
	s := startServers(t, fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: react, tools: [calculator, clock, "everything/*"]}
mcp_servers:
  everything: {command: [node, %q], effects: {echo: idempotent}}
`, vendor.URL, everythingServer(t)))
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)

	run := c.Post(t, object{"input": question + " Use everything/echo to say hello."})
	frames := c.Stream(t, run.RunID, 0, "run")
	ids := stacktest.Numbered(t, frames)
	last := ids[len(ids)-1]
	require.Equal(t, "run_completed", last.Name, last.Data)
	require.Contains(t, last.Data, "391")
	inOrder(t, names(frames), "run_started", "plan_created", "step_started", "chat_completed", "tool_invoked", "tool_completed", "chat_completed",
		"step_completed", "run_completed")
	react := c.Stream(t, run.RunID, 0, "react")
	require.Len(t, stacktest.Numbered(t, react), len(ids), "each event is a frame with its number")
	inOrder(t, names(react), "run_started", "work_plan", "step_start", "thought", "act", "observe", "thought", "step_end", "complete")

	var list struct{ Commands []agent.Command }
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/commands", nil, &list))
	tools := map[string]agent.Command{}
	for _, command := range list.Commands {
		require.Equal(t, agent.Committed, command.State)
		tools[command.Tool] = command
	}
	require.Contains(t, tools, "calculator")
	require.Contains(t, tools, "clock")
	require.Contains(t, tools, "everything/echo")
	require.Equal(t, agent.Idempotent, tools["everything/echo"].Effect)
	var echo agent.Command
	path := "/api/v1/agent/runs/" + run.RunID + "/commands/" + strings.ReplaceAll(tools["everything/echo"].CommandID, "#", "%23")
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, path, nil, &echo))
	require.Contains(t, string(echo.Result), "hello")

	// Two turns, each asked once, under keys that do not depend on the attempt.
	keys := []string{}
	for _, call := range vendor.Calls() {
		keys = append(keys, call.Key)
	}
	require.Equal(t, []string{run.RunID + "/main#1", run.RunID + "/main#2"}, keys)
	c.Finished(t, run.RunID)
}

// everythingServer installs the MCP reference server from npm and returns its program.
func everythingServer(t testing.TB) string {
	t.Helper()
	dir := stacktest.NpmPackages(t, "mcp-everything-"+everythingVersion, "@modelcontextprotocol/server-everything@"+everythingVersion)
	return filepath.Join(dir, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// TestBadInput sends what must be refused, and finds nothing in the tables.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	node := func(n string) string { return `{"input": "x", "plan": {"nodes": [` + n + `]}}` }
	many := strings.Repeat(`{"id": "n", "kind": "llm", "prompt": "x"},`, 201)
	for name, bad := range map[string]struct {
		body    string
		status  int
		pointer string
	}{
		"not JSON":            {`{"input": `, 400, ""},
		"unknown field":       {`{"input": "x", "inptu": 1}`, 400, "/inptu"},
		"wrong type":          {`{"input": 1}`, 422, "/input"},
		"no input":            {`{}`, 422, "/input"},
		"unknown agent":       {`{"input": "x", "agent": "nobody"}`, 422, "/agent"},
		"plan in mode react":  {`{"input": "x", "mode": "react", "plan": {"nodes": []}}`, 422, "/plan"},
		"no nodes":            {node(""), 422, "/plan/nodes"},
		"too many nodes":      {node(strings.TrimSuffix(many, ",")), 422, "/plan/nodes"},
		"bad id":              {node(`{"id": "a b", "kind": "llm", "prompt": "x"}`), 422, "/plan/nodes/0/id"},
		"reserved id":         {node(`{"id": "answer", "kind": "llm", "prompt": "x"}`), 422, "/plan/nodes/0/id"},
		"unknown kind":        {node(`{"id": "a", "kind": "magic"}`), 422, "/plan/nodes/0/kind"},
		"unknown tool":        {node(`{"id": "a", "kind": "tool", "tool": "magic"}`), 422, "/plan/nodes/0/tool"},
		"wrong arguments":     {node(`{"id": "a", "kind": "tool", "tool": "calculator", "args": {"expression": 1}}`), 422, "/plan/nodes/0/args/expression"},
		"unknown dependency":  {node(`{"id": "a", "kind": "llm", "prompt": "x", "depends_on": ["b"]}`), 422, "/plan/nodes/0/depends_on/0"},
		"unknown reference":   {node(`{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"v": {"$from": "/nodes/b/output"}}}`), 422, "/plan/nodes/0/inputs/v/$from"},
		"malformed reference": {node(`{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"v": {"$from": "b"}}}`), 422, "/plan/nodes/0/inputs/v/$from"},
		"cycle":               {node(`{"id": "a", "kind": "llm", "prompt": "x", "depends_on": ["b"]}, {"id": "b", "kind": "llm", "prompt": "x", "depends_on": ["a"]}`), 422, "/plan/nodes/0/depends_on"},
		"not an ancestor": {node(`{"id": "a", "kind": "llm", "prompt": "x", "inputs": {"v": {"$from": "/nodes/b/output"}}},
			{"id": "b", "kind": "llm", "prompt": "x", "depends_on": ["a"]}`), 422, "/plan/nodes/0/inputs/v/$from"},
		"unknown conversation": {`{"input": "x", "conversation_id": "01890000-0000-7000-8000-000000000000"}`, 404, "/conversation_id"},
		"too large":            {`{"input": "` + strings.Repeat("x", 2<<20) + `"}`, 413, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res := c.Send(t.Context(), t, http.MethodPost, "/api/v1/agent/run", nil, bad.body)
			defer func() { _ = res.Body.Close() }()
			var p struct {
				Type, Pointer string
				Errors        []agent.PlanFault
			}
			require.NoError(t, json.NewDecoder(res.Body).Decode(&p))
			require.Equal(t, bad.status, res.StatusCode, "%+v", p)
			require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"))
			require.NotEmpty(t, p.Type)
			require.Equal(t, bad.pointer, p.Pointer, "%+v", p)
		})
	}
	store := s.open(t)
	runs, _, err := store.Runs(t.Context(), agent.RunFilter{Owner: "local", Limit: 10})
	require.NoError(t, err)
	require.Empty(t, runs)
	conversations, _, err := store.Conversations(t.Context(), "local", "", 10)
	require.NoError(t, err)
	require.Empty(t, conversations)
	claimed, err := store.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, claimed)
}
