package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rule says what one package may import, apart from the standard library.
type rule struct {
	pkg  string
	may  []string // packages of this module
	uses []string // import paths of other modules, each with everything below it
	why  string
	pure bool // nothing from outside: no clock, randomness, network, files; its tests neither
}

const (
	temporal = "go.temporal.io/sdk/"
	pgx      = "github.com/jackc/pgx/v5"
	schema   = "github.com/google/jsonschema-go/jsonschema"
	uuid     = "github.com/google/uuid"
)

// table is the import table. A package that is not in it may not exist, so that a new one is placed by a decision.
var table = []rule{
	{
		pkg: "agent", pure: true,
		why: "the vocabulary of everything else; workflow code calls all of it, so it must replay",
	},
	{
		pkg: "policy", may: []string{"agent"}, pure: true,
		why: "decides inside the workflow from the run's record alone",
	},
	{
		pkg: "workflows", may: []string{"agent", "policy"}, pure: true,
		uses: []string{temporal + "workflow", temporal + "temporal", temporal + "log"},
		why:  "workflow code: everything it does must replay from history, so every effect is an activity called by name",
	},
	{
		pkg: "predicate", may: []string{"agent"}, uses: []string{"github.com/expr-lang/expr"},
		why: "the only package that knows the language of conditions; apart from policy, which workflow code calls",
	},
	{
		pkg: "activities", may: []string{"agent", "policy", "predicate", "model", "tool"},
		uses: []string{temporal + "activity", temporal + "temporal"},
		why:  "effects behind the gate; sees the ledger through interfaces of its own",
	},
	{
		pkg: "model", may: []string{"agent"},
		why: "the interface that every vendor is put behind",
	},
	{
		pkg: "model/wire", may: []string{"agent", "model"},
		why: "what clients of vendors share; knows no vendor",
	},
	{
		pkg: "model/openai", may: []string{"agent", "model", "model/wire"},
		uses: []string{"github.com/openai/openai-go/v3"},
		why:  "the only package that knows OpenAI's SDK",
	},
	{
		pkg: "model/anthropic", may: []string{"agent", "model", "model/wire"},
		uses: []string{"github.com/anthropics/anthropic-sdk-go"},
		why:  "the only package that knows Anthropic's SDK",
	},
	{
		pkg: "model/gemini", may: []string{"agent", "model", "model/wire"},
		uses: []string{"google.golang.org/genai"},
		why:  "the only package that knows Google's SDK",
	},
	{
		pkg: "model/scripted", may: []string{"agent", "model"},
		why: "a model that works without a network, a key or a vendor",
	},
	{
		pkg: "model/modeltest", may: []string{"agent", "model"},
		why: "for tests and benchmarks; imported by no production code",
	},
	{
		pkg: "tool", may: []string{"agent", "predicate"}, uses: []string{schema},
		why: "tools know neither the ledger nor Temporal",
	},
	{
		pkg: "tool/builtin", may: []string{"agent", "tool"}, uses: []string{schema},
		why: "tools like those that users write: made with what package tool offers",
	},
	{
		pkg: "tool/mcp", may: []string{"agent", "tool"},
		uses: []string{"github.com/modelcontextprotocol/go-sdk"},
		why:  "the only package that speaks MCP",
	},
	{
		pkg: "ledger", may: []string{"agent"},
		uses: []string{pgx, "github.com/pressly/goose/v3", uuid},
		why:  "the only package that knows SQL",
	},
	{
		pkg: "sse", may: []string{"agent"},
		why: "knows events and net/http: no database, no router, no API",
	},
	{
		pkg: "auth",
		why: "who calls, by which token; knows neither HTTP nor the configuration file",
	},
	{
		pkg: "api", may: []string{"agent", "auth", "sse"},
		uses: []string{"github.com/go-chi/chi/v5", uuid},
		why:  "the only package with routes; sees the ledger through an interface of its own and never Temporal",
	},
	{
		pkg: "dispatch", may: []string{"agent", "ledger"},
		uses: []string{temporal + "client", "go.temporal.io/api"},
		why:  "brings intents from the outbox to Temporal",
	},
	{
		pkg: "metrics", may: []string{"agent", "ledger", "sse"}, uses: []string{"github.com/prometheus/client_golang/prometheus"},
		why: "the only package that knows Prometheus",
	},
	{
		pkg: "verify", may: []string{"agent"},
		uses: []string{temporal + "client", temporal + "converter", "go.temporal.io/api"},
		why:  "reads the two witnesses of a run; sees the ledger through an interface of its own",
	},
	{
		pkg: "worker", may: []string{"activities", "agent", "dispatch", "ledger", "model", "policy", "tool", "workflows"},
		uses: []string{temporal + "activity", temporal + "client", temporal + "converter", temporal + "interceptor", temporal + "log",
			temporal + "temporal", temporal + "worker", temporal + "workflow", "go.temporal.io/api", uuid},
		why: "a library for users with tools and models of their own: no vendor, no configuration file, no API",
	},
	{
		pkg:  "devstack",
		uses: []string{temporal + "client", temporal + "log", "go.temporal.io/api", "github.com/fergusstrange/embedded-postgres", "golang.org/x/sync"},
		why:  "starts servers and knows nothing of what runs on them",
	},
	{
		pkg: "replay", may: []string{"activities", "agent", "workflows"},
		uses: []string{temporal + "activity", temporal + "client", temporal + "converter", temporal + "log", temporal + "temporal", temporal + "testsuite",
			temporal + "worker", temporal + "workflow", "go.temporal.io/api"},
		why: "runs the workflow against what is on record: writes nothing, executes nothing, and sees the ledger through an interface of its own",
	},
	{
		pkg: "agenttest", may: []string{"activities", "agent", "model", "policy", "predicate", "replay", "tool", "worker"},
		uses: []string{temporal + "log", temporal + "testsuite", temporal + "worker", uuid},
		why:  "for users' tests: the real workflow and activities without servers; imported by no production code",
	},
	{
		pkg: "client", may: []string{"agent"},
		why: "a program of its users' side: it knows the API and the vocabulary, nothing of how either is served",
	},
	{
		pkg: "cmd/runledger",
		may: []string{"agent", "api", "auth", "client", "devstack", "dispatch", "ledger", "metrics", "model", "model/anthropic", "model/gemini", "model/openai", "model/scripted", "policy", "predicate", "replay",
			"sse", "tool", "tool/builtin", "tool/mcp", "verify", "worker"},
		uses: []string{"github.com/alecthomas/kong", "go.yaml.in/yaml/v3", temporal + "client", "go.temporal.io/api", "golang.org/x/sys/unix"},
		why:  "puts the parts together; flags, environment and the configuration file are known here only",
	},
	{
		pkg: "bench", may: []string{"agent", "api", "devstack", "ledger", "model", "tool", "worker"},
		uses: []string{temporal + "client", "go.temporal.io/api", "google.golang.org/protobuf", pgx, uuid},
		why:  "what the benchmarks have in common: real servers and a worker; imported by no production code",
	},
	{
		pkg: "bench/history", may: []string{"agent", "bench", "model", "tool"},
		why: "measures what a long run leaves in Temporal",
	},
	{
		pkg: "bench/lanes", may: []string{"agent", "bench", "model/scripted", "tool"},
		why: "measures the fast lane beside the normal one",
	},
	{
		pkg: "bench/long", may: []string{"agent", "bench", "model", "tool", "verify"},
		why: "measures a run that outgrows one execution in Temporal",
	},
	{
		pkg: "bench/replay", may: []string{"agent", "api", "bench", "model/scripted", "tool"}, uses: []string{pgx},
		why: "measures how fast a long conversation is read, beside pgx itself",
	},
	{
		pkg: "bench/steps", may: []string{"agent", "bench", "model", "tool"},
		uses: []string{pgx, temporal + "activity", temporal + "client", temporal + "temporal", temporal + "worker", temporal + "workflow"},
		why:  "measures steps beside bare activities, which it therefore has",
	},
	{
		pkg: "bench/ledger", may: []string{"bench", "ledger"}, uses: []string{pgx, uuid},
		why: "measures the commit gate beside plain inserts",
	},
	{
		pkg: "bench/fanout", may: []string{"agent", "bench", "ledger"}, uses: []string{pgx},
		why: "measures streams beside a bare handler",
	},
	{
		pkg: "bench/latency", may: []string{"agent", "bench", "model"},
		why: "measures how soon watchers see what happens",
	},
	{
		pkg: "bench/sizes", may: []string{"agent", "bench", "model", "tool"},
		uses: []string{pgx, temporal + "client", temporal + "worker", temporal + "workflow"},
		why:  "weighs what a command leaves behind, beside a bare activity, which it therefore has",
	},
	{
		pkg: "bench/start", may: []string{"agent", "bench", "ledger", "model", "model/scripted", "tool", "worker"},
		why: "measures start and recovery, with the binary and with workers that it kills",
	},
	{
		pkg: "bench/all", may: []string{"bench"},
		why: "runs the others as processes and prints one table",
	},
	{
		pkg: "internal/pgtest", may: []string{"devstack"}, uses: []string{pgx},
		why: "for tests; imported by no production code",
	},
	{
		pkg: "internal/stacktest", may: []string{"agent", "devstack", "internal/pgtest", "ledger"}, uses: []string{"github.com/stretchr/testify/require"},
		why: "for tests; imported by no production code",
	},
	{pkg: "internal/rules", why: "holds tests only"},
	{pkg: "e2e", why: "holds tests only"},
	{pkg: "e2e/faults", why: "holds tests only"},
	{pkg: "e2e/streams", why: "holds tests only"},
	{
		pkg: "e2e/faultworker", may: []string{"agent", "ledger", "model", "model/scripted", "tool", "worker"}, uses: []string{temporal + "activity"},
		why: "a worker as users write theirs, that end-to-end tests hold and break",
	},
	{
		pkg: "e2e/soak", may: []string{"agent", "devstack"}, uses: []string{pgx},
		why: "a client of real processes: it reads over the API. Only whether the sessions of a killed process have ended, and what " +
			"they left dispatched at that moment, it asks Postgres itself",
	},
}

// forTesting are packages that tests import, and no production code.
var forTesting = []string{"agenttest", "internal/pgtest", "internal/stacktest", "model/modeltest"}

// forTests is what test files may import beyond their package's rule.
var forTests = []string{
	"github.com/stretchr/testify/require", // not assert: a test that goes on after a failure reports its consequences
	"github.com/google/go-cmp",
	"pgregory.net/rapid",
	"go.uber.org/goleak",
	"github.com/getkin/kin-openapi",
	"go.yaml.in/yaml/v3",
}

// forTestsWithServers is for tests of packages that are not pure: those may look into the database and play Temporal.
var forTestsWithServers = []string{pgx, uuid, "go.temporal.io/sdk", "go.temporal.io/api", "google.golang.org/protobuf"}

// forWorkflowTests is the test environment of workflows.
var forWorkflowTests = []string{"go.temporal.io/sdk"}

// reserved are packages of the standard library with few users.
var reserved = []struct {
	imported string
	users    []string
	why      string
}{
	{"database/sql", []string{"ledger"}, "SQL has one home"},
	{"os/exec", []string{"devstack", "tool/mcp", "internal/pgtest", "internal/stacktest", "e2e/soak", "bench", "bench/ledger", "bench/start", "bench/all"}, "who starts processes must end them, whatever happens"},
	{"testing", forTesting, "test code in production brings its flags along"},
	{"unsafe", nil, "nothing here is worth it"},
	{"plugin", nil, "a plugin is built with the exact program or crashes"},
	{"C", nil, "the binary is static"},
}

// outside is what pure packages do without.
var outside = []string{
	"bufio", "crypto/rand", "database/sql", "embed", "io/fs", "io/ioutil", "log", "math/rand", "net/http", "net/rpc", "net/smtp", "os",
	"path/filepath", "plugin", "reflect", "runtime", "sync", "syscall", "testing", "unsafe",
}

// refuse returns what is wrong with an import of a file of r's package; empty if nothing.
func (r rule) refuse(imported string, test bool) string {
	first, _, _ := strings.Cut(imported, "/")
	switch {
	case imported == module || first == module:
		return r.refuseOwn(strings.TrimPrefix(imported, module+"/"), test)
	case strings.Contains(first, "."):
		return r.refuseForeign(imported, test)
	}
	if test {
		return ""
	}
	for _, res := range reserved {
		if imported == res.imported && !slices.Contains(res.users, r.pkg) {
			return res.why
		}
	}
	if r.pure && (imported == "net" || slices.ContainsFunc(outside, func(o string) bool { return within(imported, o) })) {
		return "the package is pure: " + r.why
	}
	return ""
}

func (r rule) refuseOwn(imported string, test bool) string {
	if slices.Contains(r.may, imported) {
		return ""
	}
	// Tests may bring in whatever they need to see their package at work; a pure one needs only itself.
	if test && (imported == r.pkg || !r.pure) {
		return ""
	}
	return "may import only [" + strings.Join(r.may, " ") + "] of this module: " + r.why
}

func (r rule) refuseForeign(imported string, test bool) string {
	allowed := slices.Clone(r.uses)
	if test {
		allowed = append(allowed, forTests...)
		switch {
		case !r.pure:
			allowed = append(allowed, forTestsWithServers...)
		case r.pkg == "workflows":
			allowed = append(allowed, forWorkflowTests...)
		}
	}
	if slices.ContainsFunc(allowed, func(a string) bool { return within(imported, a) }) {
		return ""
	}
	return "may import only [" + strings.Join(allowed, " ") + "] of other modules: " + r.why
}

func find(pkg string) (rule, bool) {
	i := slices.IndexFunc(table, func(r rule) bool { return r.pkg == pkg })
	if i < 0 {
		return rule{}, false
	}
	return table[i], true
}

func TestImports(t *testing.T) {
	used := map[string]bool{}
	seen := map[string]bool{}
	for _, s := range sources(t) {
		r, ok := find(s.pkg)
		if !ok {
			if !seen[s.pkg] {
				t.Errorf("package %s is not in the import table: say there what it may import, and why", s.pkg)
			}
			seen[s.pkg] = true
			continue
		}
		seen[s.pkg] = true
		for _, imported := range s.imports {
			if fault := r.refuse(imported, s.test); fault != "" {
				t.Errorf("%s imports %s: %s %s", s.name, imported, s.pkg, fault)
			}
			for _, u := range r.uses {
				if !s.test && within(imported, u) {
					used[s.pkg+" "+u] = true
				}
			}
		}
	}
	// A rule about what is no longer there guards nothing.
	for _, r := range table {
		if !seen[r.pkg] {
			t.Errorf("the import table has a rule for %s, which does not exist: rename or remove it", r.pkg)
			continue
		}
		for _, u := range r.uses {
			// Its three packages of Temporal are the workflow's by design, used at the moment or not.
			if !used[r.pkg+" "+u] && r.pkg != "workflows" {
				t.Errorf("the import table lets %s import %s, which it does not: remove that", r.pkg, u)
			}
		}
	}
}

// The table itself: every package of it is known, has a reason, and imports run one way.
func TestImportTable(t *testing.T) {
	for i, r := range table {
		require.NotEmpty(t, r.why, r.pkg)
		require.False(t, slices.ContainsFunc(table[:i], func(o rule) bool { return o.pkg == r.pkg }), "%s stands twice", r.pkg)
		for _, m := range r.may {
			_, ok := find(m)
			require.True(t, ok, "%s may import %s, which has no rule", r.pkg, m)
			require.NotEqual(t, "cmd/runledger", m)
			require.False(t, slices.Contains(forTesting, m) && !slices.Contains(forTesting, r.pkg), "%s is for tests", m)
		}
	}
	for _, r := range table {
		require.NotContains(t, reach(r.pkg), r.pkg, "%s can reach itself", r.pkg)
	}
	require.ElementsMatch(t, []string{"agent", "policy"}, reach("workflows"))
	for _, r := range table {
		if !slices.Contains([]string{"ledger", "internal/pgtest", "e2e/soak"}, r.pkg) && !strings.HasPrefix(r.pkg, "bench") { // a benchmark measures beside pgx
			require.NotContains(t, r.uses, pgx)
		}
	}
}

// reach returns every package that pkg may import, directly or through others.
func reach(pkg string) []string {
	var all []string
	var walk func(string)
	walk = func(p string) {
		r, _ := find(p)
		for _, m := range r.may {
			if !slices.Contains(all, m) {
				all = append(all, m)
				walk(m)
			}
		}
	}
	walk(pkg)
	return all
}

// A checker that refuses nothing passes on every tree.
func TestImportRulesRefuse(t *testing.T) {
	tests := []struct {
		pkg, imported string
		test, refused bool
	}{
		{pkg: "agent", imported: "time"},
		{pkg: "agent", imported: "os", refused: true},
		{pkg: "agent", imported: "math/rand/v2", refused: true},
		{pkg: "agent", imported: "net/http", refused: true},
		{pkg: "agent", imported: "runledger/policy", refused: true},
		{pkg: "agent", imported: "github.com/google/uuid", refused: true},
		{pkg: "agent", imported: "github.com/jackc/pgx/v5", test: true, refused: true},
		{pkg: "agent", imported: "pgregory.net/rapid", test: true},
		{pkg: "agent", imported: "pgregory.net/rapid", refused: true},
		{pkg: "policy", imported: "net/netip"},
		{pkg: "policy", imported: "net", refused: true},
		{pkg: "workflows", imported: "go.temporal.io/sdk/workflow"},
		{pkg: "workflows", imported: "go.temporal.io/sdk/worker", refused: true},
		{pkg: "workflows", imported: "go.temporal.io/sdk/workflowx", refused: true},
		{pkg: "workflows", imported: "go.temporal.io/sdk/client", refused: true},
		{pkg: "workflows", imported: "go.temporal.io/sdk/testsuite", test: true},
		{pkg: "workflows", imported: "runledger/activities", refused: true},
		{pkg: "workflows", imported: "runledger/ledger", test: true, refused: true},
		{pkg: "activities", imported: "runledger/ledger", refused: true},
		{pkg: "activities", imported: "runledger/ledger", test: true},
		{pkg: "activities", imported: "github.com/jackc/pgx/v5/pgxpool", refused: true},
		{pkg: "sse", imported: "github.com/go-chi/chi/v5", refused: true},
		{pkg: "api", imported: "github.com/go-chi/chi/v5/middleware"},
		{pkg: "api", imported: "github.com/getkin/kin-openapi/openapi3", refused: true},
		{pkg: "api", imported: "github.com/stretchr/testify/assert", test: true, refused: true},
		{pkg: "worker", imported: "runledger/model/openai", refused: true},
		{pkg: "worker", imported: "os/exec", refused: true},
		{pkg: "cmd/runledger", imported: "github.com/jackc/pgx/v5", refused: true},
		{pkg: "cmd/runledger", imported: "runledger/internal/pgtest", refused: true},
		{pkg: "ledger", imported: "database/sql"},
		{pkg: "dispatch", imported: "database/sql", refused: true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s imports %s, test %t", tt.pkg, tt.imported, tt.test), func(t *testing.T) {
			r, ok := find(tt.pkg)
			require.True(t, ok)
			require.Equal(t, tt.refused, r.refuse(tt.imported, tt.test) != "", cmp.Or(r.refuse(tt.imported, tt.test), "allowed"))
		})
	}
}
