package e2e_test

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

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "runledger-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "runledger")
	build := exec.Command("go", "build", "-o", binary, "runledger/cmd/runledger")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build runledger:", err)
		return 1
	}
	return pgtest.Main(m, func(ctx context.Context, url string) error {
		_, err := ledger.Migrate(ctx, url)
		return err
	})
}
