package rules

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// A file that a reader can hold in mind has one subject. Tests are read case by case and may go on for longer.
	longest     = 450
	longestTest = 800
)

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		most := longest
		if s.test {
			most = longestTest
		}
		if s.lines > most && !ast.IsGenerated(s.file) {
			t.Errorf("%s has %d lines; at most %d: it has more than one subject", s.name, s.lines, most)
		}
	}
}

// A test that sleeps is slow on every machine and wrong on a slow one.
func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, n := range s.selects("time", "Sleep") {
			// Inside a bubble of testing/synctest time is the test's own.
			if !slices.Contains(s.imports, "testing/synctest") {
				t.Errorf("%s: time.Sleep in a test: wait for a signal, or own the clock with testing/synctest", s.at(n))
			}
		}
	}
}

// Pure packages run inside workflows: two replays of one history must see the same.
func TestPurePackagesHaveNoClockAndNoState(t *testing.T) {
	for _, s := range sources(t) {
		if r, _ := find(s.pkg); !r.pure || s.test {
			continue
		}
		for _, n := range s.selects("time", "Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation") {
			t.Errorf("%s: the clock or the machine's time zone, in a package that must replay", s.at(n))
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if name.Name != "_" {
						t.Errorf("%s: package variable %s: state that no history holds, and that all workflows share", s.at(name), name.Name)
					}
				}
			}
		}
	}
}

// Names that say nothing collect everything.
func TestPackagesAreNamedForWhatTheyDo(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "lib", "types", "models", "core"}
	for _, s := range sources(t) {
		for _, part := range strings.Split(s.pkg, "/") {
			if slices.Contains(empty, part) {
				t.Errorf("%s: a package named %q; name it for what it does", s.name, part)
			}
		}
	}
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	said := map[string]bool{}
	for _, s := range sources(t) {
		said[s.pkg] = said[s.pkg] || s.file.Doc != nil && !s.test
	}
	for pkg, ok := range said {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

// Users import this module: what it requires, they download.
func TestModuleStaysLean(t *testing.T) {
	forbidden := map[string]string{
		"go.temporal.io/server":            "a server is a process of its own; the CLI is built outside this module",
		"github.com/temporalio":            "a server is a process of its own; the CLI is built outside this module",
		"github.com/dbos-inc":              "other engines are measured in a module of their own, bench/peers",
		"github.com/restatedev":            "other engines are measured in a module of their own, bench/peers",
		"github.com/testcontainers":        "tests start real servers without Docker",
		"github.com/golangci":              "checkers are pinned in tools/go.mod",
		"honnef.co/go/tools":               "checkers are pinned in tools/go.mod",
		"go.temporal.io/sdk/contrib/tools": "checkers are pinned in tools/go.mod",
	}
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) == 0 {
			continue
		}
		require.NotContains(t, []string{"replace", "exclude"}, fields[0], "go install ignores it: %s", line)
		for name, why := range forbidden {
			require.False(t, within(fields[0], name), "go.mod requires %s: %s", fields[0], why)
		}
	}
	for _, name := range []string{"workflows", "activities", "api", "worker", "sse", "go.mod", "go.sum", "docker-compose.yml", "README.md"} {
		_, err := os.Stat(filepath.Join(root, path.Clean(name)))
		require.NoError(t, err, "users look for %s at the top", name)
	}
}
