package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"syscall"
)

// Main is the main function of a benchmark, whose own flags are defined by then. It measures and prints the report, what there is of it
// after an error too; the exit code is then 1. A figure that is not where it should be is for the reader to judge: the report says so
// and the code does not, since that depends on what else the machine does.
func Main(measure func(ctx context.Context) (*Report, error)) {
	asJSON := JSONFlag()
	profile := flag.String("profile", "", "a file for a profile of this process' processor time")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	report, err := profiled(*profile, func() (*Report, error) { return measure(ctx) })
	stop()
	if report != nil {
		err = errors.Join(err, report.Print(*asJSON))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
}

func profiled(path string, measure func() (*Report, error)) (*Report, error) {
	stop, err := Profile(path)
	if err != nil {
		return nil, err
	}
	report, err := measure()
	return report, errors.Join(err, stop())
}

// Profile writes a profile of this process' processor time to a file until stop is called; none without a path.
func Profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
