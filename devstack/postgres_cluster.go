package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cluster is a Postgres data directory and the binaries that serve it.
type cluster struct {
	server   *server
	account  *account
	home     string // the folder that belongs to account; data stands in it
	bin      string
	settings []string
	log      *slog.Logger
}

// newCluster finds the place of the data and binaries that fit it.
func newCluster(ctx context.Context, s *server, settings []string, cfg PostgresConfig, binaries postgresFinder) (*cluster, error) {
	c := &cluster{server: s, settings: settings, log: cfg.Log}
	var err error
	if c.account, err = serverAccount(); err != nil {
		return nil, err
	}
	if c.home, err = settle(ctx, s.dir, s.rec.Home, c.account, cfg.Log); err != nil {
		return nil, err
	}
	major, err := dataMajor(c.data())
	if err != nil {
		return nil, err
	}
	c.bin, err = binaries.find(ctx, c.account, major, cfg)
	return c, err
}

func (c *cluster) data() string { return filepath.Join(c.home, "data") }

func (c *cluster) command(name string, args ...string) command {
	return command{
		path:    filepath.Join(c.bin, name),
		args:    args,
		dir:     c.home, // the current directory may be closed to the account, which Postgres minds
		env:     postgresEnv(),
		account: c.account,
	}
}

// serve is the server itself.
func (c *cluster) serve(ports []int) command {
	return c.command("postgres", append([]string{"-D", c.data(), "-p", strconv.Itoa(ports[0])}, c.settings...)...)
}

// prepare makes the database if there is none, and sees to it that we know the password.
func (c *cluster) prepare(ctx context.Context) error {
	rec := &c.server.rec
	rec.Home = c.home
	_, err := os.Stat(c.data())
	if err == nil && rec.Password != "" {
		return nil
	}
	if err == nil {
		// The data folder was removed by hand while the data stood elsewhere.
		rec.Password = newPassword()
		if err := c.setPassword(ctx, c.data()); err != nil {
			return err
		}
		return c.server.save()
	}

	// Under another name first: a database that was made halfway must not be found at the next start.
	unfinished := c.data() + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	c.log.Info("making a new Postgres database", "data", c.data())
	// With sockets off, "peer" lets nobody in who is not this very system user; everybody else needs the password.
	args := []string{
		"-D", unfinished, "-U", databaseName, "--encoding=UTF8", "--locale=C",
		"--auth-local=peer", "--auth-host=scram-sha-256",
	}
	if slices.Contains(c.settings, "fsync=off") {
		args = append(args, "--no-sync")
	}
	if out, err := run(ctx, c.command("initdb", args...), ""); err != nil {
		return fmt.Errorf("initdb %s: %w\n%s", unfinished, err, strings.TrimSpace(out))
	}
	rec.Password = newPassword()
	if err := c.setPassword(ctx, unfinished, "CREATE DATABASE "+databaseName); err != nil {
		return err
	}
	if err := c.server.save(); err != nil {
		return err
	}
	return os.Rename(unfinished, c.data())
}

// setPassword gives the superuser the record's password and executes more statements, in a Postgres of its own that
// listens to nobody. They go in as its input: arguments can be read by every user of the machine.
func (c *cluster) setPassword(ctx context.Context, data string, more ...string) error {
	statements := append([]string{"ALTER ROLE " + databaseName + " PASSWORD '" + c.server.rec.Password + "'"}, more...)
	args := append([]string{"--single", "-D", data}, c.settings...)
	out, err := run(ctx, c.command("postgres", append(args, "postgres")...), strings.Join(statements, ";\n")+";\n")
	// A statement that fails does not end single-user mode, nor show in how it exits.
	if err == nil && strings.Contains(out, "ERROR:") {
		err = errors.New("a statement failed")
	}
	if err != nil {
		out = strings.ReplaceAll(out, c.server.rec.Password, "***")
		return fmt.Errorf("set the password of %s: %w\n%s", data, err, strings.TrimSpace(out))
	}
	return nil
}

// dataMajor is the major version that made a data directory, 0 if there is none yet.
func dataMajor(data string) (int, error) {
	file := filepath.Join(data, "PG_VERSION")
	said, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(said)))
	if err != nil {
		return 0, fmt.Errorf("%s does not hold a version of Postgres", file)
	}
	return major, nil
}

// postgresEnv is ours without what would steer Postgres, and with messages in the language that we look for words in.
func postgresEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") })
	return append(env, "LC_ALL=C")
}
