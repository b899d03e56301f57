package rules

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRequirements holds docs/requirements.md to the documents' ids and to the tests of the tree: every id once, in order,
// and with every row tests that exist, or a word on what is open, where the tests that it names exist too.
func TestRequirements(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "requirements.md"))
	require.NoError(t, err)
	var want []string
	for _, part := range []struct {
		prefix string
		n      int
	}{{"R0-", 23}, {"R1-", 16}, {"R2-", 19}, {"R3-", 30}, {"R4-", 25}, {"C-", 8}, {"D", 9}} {
		for i := range part.n {
			want = append(want, fmt.Sprint(part.prefix, i+1))
		}
	}
	tests := testNames(t)
	var have []string
	documented, named := regexp.MustCompile(`^([RC]\d?-|D)\d+$`), regexp.MustCompile(`\b\w+\.Test\w+`)
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(string(raw), -1) {
		id, shown := m[1], m[3]
		if documented.MatchString(id) {
			have = append(have, id)
		}
		names := strings.Split(shown, ", ")
		if strings.HasPrefix(shown, "open: ") {
			names = named.FindAllString(shown, -1)
		}
		for _, name := range names {
			require.True(t, tests[name], "%s names %s, which does not exist", id, name)
		}
	}
	require.Equal(t, want, have)
}

// testNames are all tests of the tree, as package.Test by the last part of the package's path.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}}
{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}}
{{end}}`, "runledger/...").Output()
	require.NoError(t, err)
	names := map[string]bool{}
	for path := range strings.FieldsSeq(string(out)) {
		src, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(src, -1) {
			names[filepath.Base(filepath.Dir(path))+"."+string(m[1])] = true
		}
	}
	return names
}
