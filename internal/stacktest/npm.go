package stacktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// NpmPackages installs packages from npm, once per user, and returns the folder whose node_modules has them. name says which they
// are, versions included.
func NpmPackages(t testing.TB, name string, packages ...string) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		require.Empty(t, os.Getenv("CI"), "CI has to have npm")
		t.Skip("npm is not installed, so that what this test needs of it cannot be had")
	}
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir := filepath.Join(cache, "runledger", name)
	installed := filepath.Join(dir, "installed")
	if _, err := os.Stat(installed); err == nil {
		return dir
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	install := exec.Command("npm", append([]string{"install", "--no-audit", "--no-fund", "--prefix", dir}, packages...)...)
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(installed, nil, 0o600)) // what an install that was cut short has left does not count
	return dir
}
