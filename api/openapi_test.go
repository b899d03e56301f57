package api

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/sse"
	"runledger/tool"
)

func TestRoutesAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var served, specified []string
	require.NoError(t, chi.Walk(b.api.router, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		served = append(served, method+" "+route)
		return nil
	}))
	for path, item := range b.spec.Paths.Map() {
		for method := range item.Operations() {
			specified = append(specified, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(specified)
	require.Equal(t, specified, served)
}

// enum gives the values that a schema of the specification allows.
func (b *bench) enum(schema string) []string {
	return values(b.spec.Components.Schemas[schema].Value.Enum)
}

func values(enum []any) []string {
	var texts []string
	for _, v := range enum {
		texts = append(texts, v.(string))
	}
	return texts
}

func TestVocabularyIsThatOfTheSpecification(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	types := map[string]bool{}
	for _, p := range sse.Profiles() {
		for _, kind := range agent.EventTypes() {
			for _, command := range []string{"tool", "llm", "plan"} {
				types[string(p.Show(agent.Event{Type: kind, Data: []byte(`{"kind":"` + command + `"}`)}).Type)] = true
			}
		}
	}
	var shown []string
	for kind := range types {
		shown = append(shown, kind)
	}
	require.ElementsMatch(t, shown, b.enum("EventType"))
	var want []string
	for _, s := range statuses() {
		want = append(want, string(s))
	}
	require.ElementsMatch(t, want, b.enum("Status"))
	var checks []string
	for _, c := range agent.Checks() {
		checks = append(checks, string(c))
	}
	require.Equal(t, checks, values(b.spec.Components.Schemas["Difference"].Value.Properties["check"].Value.Enum))
	var profiles []string
	for _, p := range sse.Profiles() {
		profiles = append(profiles, p.Name)
	}
	var named []string
	for _, v := range b.spec.Components.Parameters["Profile"].Value.Schema.Value.Enum {
		named = append(named, v.(string))
	}
	require.ElementsMatch(t, profiles, named)
}

// TestProblemTypesAreThoseOfTheSpecification reads the kinds of problems from the source: a test that met each would have
// to be told of a new one.
func TestProblemTypesAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	kinds := map[string]bool{agent.ConflictKeyReused: true, agent.ConflictMessageID: true, agent.ConflictRunEnded: true, agent.ConflictRunOpen: true, agent.ConflictQueueFull: true, agent.ConflictNotBegun: true, agent.ConflictNotPaused: true, agent.ConflictSteer: true, agent.ConflictNotInDoubt: true,
		agent.ConflictInputReused: true, agent.ConflictInputs: true, agent.ConflictForked: true, agent.ConflictDocument: true,
		agent.ConflictApprovalDecided: true, agent.ConflictApprovalExpired: true,
		"invalid-parameter": true}
	call := regexp.MustCompile(`(?:newProblem|faultyBody|unavailable)\((?:http\.Status\w+, )?"([a-z-]+)"`)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range call.FindAllSubmatch(source, -1) {
			kinds[string(m[1])] = true
		}
	}
	var want []string
	for kind := range kinds {
		want = append(want, "/problems/"+kind)
	}
	var have []string
	for _, v := range b.spec.Components.Schemas["Problem"].Value.Properties["type"].Value.Enum {
		have = append(have, v.(string))
	}
	require.ElementsMatch(t, want, have)
}

func TestSpecificationIsServed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.do("GET", "/openapi.yaml", "")
	require.Equal(t, 200, w.Code)
	require.Equal(t, openAPI, w.Body.Bytes())
}

func TestNewWantsWhatItNeeds(t *testing.T) {
	t.Parallel()
	good := Config{Ledger: newFakeLedger(), Agents: testAgents(), CheckPlans: checkCalculator, EditArguments: tool.EditCall}
	_, err := New(good)
	require.NoError(t, err)
	for name, change := range map[string]func(*Config){
		"ledger":   func(c *Config) { c.Ledger = nil },
		"agent":    func(c *Config) { c.Agents = nil },
		"check":    func(c *Config) { c.CheckPlans = nil },
		"edited":   func(c *Config) { c.EditArguments = nil },
		"differ":   func(c *Config) { c.Agents = append(testAgents(), testAgents()...) },
		`agent ""`: func(c *Config) { c.Agents = []agent.Blueprint{{}} },
	} {
		cfg := good
		change(&cfg)
		_, err := New(cfg)
		require.ErrorContains(t, err, name)
	}
}

func TestCheckListen(t *testing.T) {
	t.Parallel()
	for addr, ok := range map[string]bool{
		"127.0.0.1:8080": true, "127.9.9.9:0": true, "[::1]:8080": true, "localhost:8080": true, "[::ffff:127.0.0.1]:80": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "192.168.1.4:8080": false, "example.org:80": false, "127.0.0.1": false, "": false,
		"localhost.evil.example:80": false,
	} {
		err := CheckListen(addr)
		require.Equal(t, ok, err == nil, "%s: %v", addr, err)
	}
}
