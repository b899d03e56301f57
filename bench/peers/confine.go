package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"runledger/bench"
)

// restateVariable tells the program, when it has become one without a network, where Restate's server is.
const restateVariable = "RUNLEDGER_BENCH_RESTATE"

// confine gets what has to come over the network, then lets this process begin again, with its arguments and the same process id, in a
// network namespace of its own. There it brings loopback up and gives the path of Restate's server.
func confine() (restate string, err error) {
	if restate := os.Getenv(restateVariable); restate != "" {
		return restate, loopbackOnly()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if restate, err = install(ctx); err != nil {
		return "", err
	}
	// Whether Postgres and the Temporal CLI are here, or have to be fetched, shows when they start.
	servers, err := bench.Start(ctx, bench.Config{NoWorker: true, Progress: os.Stderr})
	if err != nil {
		return "", err
	}
	if err := servers.Stop(); err != nil {
		return "", err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return "", fmt.Errorf("a namespace without a network: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	args := []string{unshare, "--net"}
	if os.Geteuid() != 0 { // only in a namespace of users of its own may others have one of networks
		args = append(args, "--user", "--map-current-user", "--keep-caps")
	}
	args = append(append(args, "--", self), os.Args[1:]...)
	return "", fmt.Errorf("%s: %w", unshare, syscall.Exec(unshare, args, append(os.Environ(), restateVariable+"="+restate))) //nolint:gosec // our own words
}

// loopbackOnly brings loopback up, and fails where there is another network.
func loopbackOnly() error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return fmt.Errorf("this process is to have no network, and has %s", i.Name)
		}
	}
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, loopback); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}

// restateVersion is that of npm/package.json, whose lock file pins it by its digest.
const restateVersion = "1.7.12"

//go:embed npm/package.json npm/package-lock.json
var npm embed.FS

// install installs Restate's server, once per user, and gives the path of its program. The scripts of npm's packages are not run: one of
// them reports the installation.
func install(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "runledger", "restate-server-"+restateVersion)
	installed := filepath.Join(dir, "installed") // what an install that was cut short has left does not count
	if _, err := os.Stat(installed); err != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		for _, name := range []string{"package.json", "package-lock.json"} {
			text, err := npm.ReadFile("npm/" + name)
			if err != nil {
				return "", err
			}
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				return "", err
			}
		}
		ci := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		ci.Dir = dir
		if said, err := ci.CombinedOutput(); err != nil {
			return "", fmt.Errorf("install Restate's server: npm ci in %s: %w\n%s", dir, err, said)
		}
		if err := os.WriteFile(installed, nil, 0o600); err != nil {
			return "", err
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "node_modules", "@restatedev", "restate-server-*", "bin", "restate-server"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", errors.New("npm has no server of Restate for this kind of machine")
	}
	return found[0], nil
}
