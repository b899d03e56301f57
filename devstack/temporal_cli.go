package devstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	temporalVersion = "v1.5.1"
	temporalModule  = "github.com/temporalio/cli/cmd/temporal@" + temporalVersion
	buildReport     = 15 * time.Second
)

// temporalFinder knows where the Temporal CLI may be, and how to make it.
type temporalFinder struct {
	lookPath func(name string) (string, error)
	cache    string        // folder of this version; empty: nowhere to keep a build
	report   time.Duration // how often a build says that it is alive
}

func installedTemporal() temporalFinder {
	f := temporalFinder{lookPath: exec.LookPath, report: buildReport}
	if dir, err := os.UserCacheDir(); err == nil {
		f.cache = filepath.Join(dir, "runledger", "temporal-"+temporalVersion)
	}
	return f
}

// find returns the path of the CLI: of PATH, of an earlier build, or of one made now.
func (f temporalFinder) find(ctx context.Context, progress io.Writer) (string, error) {
	if path, err := f.lookPath("temporal"); err == nil {
		return filepath.Abs(path)
	}
	built := filepath.Join(f.cache, "temporal")
	if f.cache != "" && isExecutable(built) {
		return built, nil
	}
	goTool, err := f.lookPath("go")
	if err != nil || f.cache == "" {
		return "", fmt.Errorf("the Temporal CLI is %w: found no temporal in PATH and no Go to build it with: "+
			"install the CLI (https://docs.temporal.io/cli; macOS: brew install temporal), "+
			"or install Go and start again, which builds it once; or set TEMPORAL_ADDRESS to a server that runs",
			ErrNotInstalled)
	}
	if err := os.MkdirAll(f.cache, 0o755); err != nil {
		return "", err
	}
	l, err := lockWait(ctx, filepath.Join(f.cache, "lock"), func() {
		fmt.Fprintln(progress, "Another process is building the Temporal CLI; waiting for it.")
	})
	if err != nil {
		return "", err
	}
	defer l.release()
	if isExecutable(built) {
		return built, nil
	}
	return built, f.build(ctx, goTool, built, progress)
}

// build compiles the CLI. It appears under its name when it is whole.
func (f temporalFinder) build(ctx context.Context, goTool, built string, progress io.Writer) error {
	tmp, err := os.MkdirTemp(f.cache, "build-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintf(progress, "Building the Temporal CLI %s, once; it takes 4 to 6 minutes on two cores and 250 MB in %s.\n",
		temporalVersion, f.cache)

	began := time.Now()
	done := make(chan struct{})
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		tick := time.NewTicker(f.report)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(progress, "Still building the Temporal CLI: %v so far.\n", time.Since(began).Round(time.Second))
			}
		}
	}()
	// A module's settings of the place we were started in must not decide how the CLI is built.
	env := append(os.Environ(), "GOBIN="+tmp, "GOFLAGS=", "GOWORK=off")
	out, err := run(ctx, command{path: goTool, args: []string{"install", temporalModule}, dir: tmp, env: env}, "")
	close(done)
	<-reported
	if err != nil {
		return fmt.Errorf("build the Temporal CLI with go install %s: %w\n%s", temporalModule, err, lastBytes(out, logTail))
	}
	if err := os.Rename(filepath.Join(tmp, "temporal"), built); err != nil {
		return fmt.Errorf("keep the Temporal CLI: %w", err)
	}
	fmt.Fprintf(progress, "Built the Temporal CLI in %v.\n", time.Since(began).Round(time.Second))
	return nil
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func lastBytes(s string, n int) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-n):]
}
