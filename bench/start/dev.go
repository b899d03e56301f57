package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"runledger/bench"
)

// measureDev starts dev a number of times.
func measureDev(ctx context.Context, report *bench.Report, starts int) (err error) {
	if starts == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "runledger-bench-dev-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "runledger")
	if said, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "runledger/cmd/runledger").CombinedOutput(); err != nil { //nolint:gosec // our own words
		return fmt.Errorf("build runledger: %w: %s", err, said)
	}
	var first, again []float64
	for range starts {
		data, err := bench.TempDir()
		if err != nil {
			return err
		}
		for _, times := range []*[]float64{&first, &again} {
			took, err := dev(ctx, binary, data)
			if err != nil {
				return errors.Join(err, os.RemoveAll(data))
			}
			*times = append(*times, took.Seconds())
		}
		if err := os.RemoveAll(data); err != nil {
			return err
		}
	}
	report.Add(bench.Figure{Name: "dev to ready, in an empty folder, median", Value: bench.Quantile(first, 0.5), Unit: "s"})
	report.Add(bench.Figure{Name: "dev to ready, again, median", Value: bench.Quantile(again, 0.5), Unit: "s"})
	return nil
}

// dev starts dev, waits until its API is ready, and stops it.
func dev(ctx context.Context, binary, data string) (took time.Duration, err error) {
	cmd := exec.CommandContext(ctx, binary, "--log-level", "warn", "dev", "--data-dir", data, "--listen", "127.0.0.1:0") //nolint:gosec // our own words
	cmd.Dir = data                                                                                                       // where it finds no configuration
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	scan := bufio.NewScanner(out)
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		for scan.Scan() {
		}
		err = errors.Join(err, cmd.Wait())
	}()
	for scan.Scan() {
		name, url, _ := strings.Cut(strings.TrimSpace(scan.Text()), " ")
		if name != "API" {
			continue
		}
		res, err := http.Get(strings.TrimSpace(url) + "/readyz") //nolint:noctx,gosec // it answers at once, and it is ours
		if err != nil {
			return 0, err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("dev says that it is up, and readyz says %s", res.Status)
		}
		return time.Since(began), nil
	}
	return 0, errors.Join(errors.New("dev said no address"), scan.Err())
}
