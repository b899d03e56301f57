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

// The programs under test, built once: binary is runledger, faultWorker a worker that can be held and broken.
var binary, faultWorker string

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
	binary, faultWorker = filepath.Join(dir, "runledger"), filepath.Join(dir, "faultworker")
	build := exec.Command("go", "build", "-o", dir, "runledger/cmd/runledger", "runledger/e2e/faultworker")
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
