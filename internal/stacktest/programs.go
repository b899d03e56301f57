package stacktest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"runledger/internal/pgtest"
	"runledger/ledger"
)

// programs is the folder with the programs under test; testing gives a TestMain no other place to keep it.
var programs string

// Main builds runledger and other programs of this module, named by their import paths, runs the tests of a binary, and ends the
// servers that they share. It returns the code to exit with.
func Main(m *testing.M, others ...string) int {
	dir, err := os.MkdirTemp("", "runledger-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs = dir
	build := exec.Command("go", append([]string{"build", "-o", dir, "runledger/cmd/runledger"}, others...)...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs under test:", err)
		return 1
	}
	return pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	})
}

// Program is where a program that Main has built stands, by the last part of its path.
func Program(t testing.TB, name string) string {
	t.Helper()
	if programs == "" {
		t.Fatal("stacktest: call stacktest.Main from TestMain")
	}
	return filepath.Join(programs, name)
}
