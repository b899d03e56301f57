package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	// oldestPostgres is the oldest major version that has what Runledger's migrations use.
	oldestPostgres = 13
	// downloadedPostgres is the version that is fetched where none is installed.
	downloadedPostgres = embeddedpostgres.V17
	downloadURLEnv     = "RUNLEDGER_POSTGRES_DOWNLOAD_URL"
)

// postgresFinder knows where server binaries may be.
type postgresFinder struct {
	path  string   // folders, as in $PATH
	globs []string // folders where packagers put each version
	cache string   // where downloaded ones are kept; empty: no download
}

// installedPostgres looks where Debian, Red Hat and Homebrew put Postgres.
func installedPostgres() postgresFinder {
	return postgresFinder{
		path: os.Getenv("PATH"),
		globs: []string{
			"/usr/lib/postgresql/*/bin",
			"/usr/pgsql-*/bin",
			"/opt/homebrew/opt/postgresql*/bin",
			"/usr/local/opt/postgresql*/bin",
			"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		},
		cache: binaryCache(),
	}
}

// binaryCache is where downloaded binaries are kept. Root's own cache is closed to the user that Postgres runs as.
func binaryCache() string {
	if os.Geteuid() == 0 {
		return "/var/cache/runledger"
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "runledger")
}

// find returns a folder with binaries that a can execute: of the given major version, or where that is 0 of any that
// is new enough. What is installed goes before what has been downloaded, and that before a download.
func (f postgresFinder) find(ctx context.Context, a *account, major int, cfg PostgresConfig) (string, error) {
	var seen []string
	for _, dir := range f.candidates() {
		have, err := postgresMajor(ctx, a, dir)
		if err != nil {
			continue
		}
		if have == major || major == 0 && have >= oldestPostgres {
			return dir, nil
		}
		seen = append(seen, fmt.Sprintf("%d in %s", have, dir))
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	var err error
	if f.cache != "" && (major == 0 || strings.HasPrefix(string(downloadedPostgres), strconv.Itoa(major)+".")) {
		var bin string
		if bin, err = f.download(ctx, a, cfg); err == nil {
			return bin, nil
		}
		err = fmt.Errorf("a download failed: %w", err)
	}
	return "", notFound(major, seen, err)
}

func notFound(major int, seen []string, err error) error {
	text := "found no Postgres server"
	if major != 0 {
		text = fmt.Sprintf("the database was made by Postgres %d, and none of that version was found", major)
	}
	if len(seen) > 0 {
		text += " (only " + strings.Join(seen, ", ") + ")"
	}
	if err != nil {
		text += "; " + err.Error()
	}
	advice := "install Postgres (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17), " +
		"or set DATABASE_URL to one that runs"
	if major != 0 {
		advice = fmt.Sprintf("install Postgres %d, or start afresh by removing the database (dev --reset)", major)
	}
	return fmt.Errorf("Postgres %w: %s: %s", ErrNotInstalled, text, advice)
}

// candidates lists folders that hold postgres and initdb, the preferred first.
func (f postgresFinder) candidates() []string {
	var dirs []string
	add := func(dir string) {
		for _, name := range []string{"postgres", "initdb"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
				return
			}
		}
		// A link in PATH leads to the folder that has the rest of the installation beside it.
		real, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err == nil && filepath.Dir(real) != dir {
			if _, err := os.Stat(filepath.Join(filepath.Dir(real), "initdb")); err == nil {
				dir = filepath.Dir(real)
			}
		}
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range filepath.SplitList(f.path) {
		if filepath.IsAbs(dir) {
			add(dir)
		}
	}
	globs := f.globs
	if f.cache != "" {
		globs = append(slices.Clip(globs), filepath.Join(f.cache, "postgres-*", "bin"))
	}
	for _, glob := range globs {
		found, _ := filepath.Glob(glob) // fails on a bad pattern only
		slices.SortFunc(found, func(a, b string) int { return versionIn(b) - versionIn(a) })
		for _, dir := range found {
			add(dir)
		}
	}
	return dirs
}

var (
	firstNumber   = regexp.MustCompile(`\d+`)
	versionOutput = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)
)

// versionIn reads the version out of the name of an installation's folder, 0 where there is none.
func versionIn(bin string) int {
	n, _ := strconv.Atoi(firstNumber.FindString(filepath.Base(filepath.Dir(bin))))
	return n
}

// postgresMajor asks the server binary, as the user who is to run it and who may not be able to reach it.
func postgresMajor(ctx context.Context, a *account, dir string) (int, error) {
	path := filepath.Join(dir, "postgres")
	out, err := run(ctx, command{path: path, args: []string{"--version"}, dir: "/", env: postgresEnv(), account: a}, "")
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", path, err)
	}
	match := versionOutput.FindStringSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s --version: %q names no version", path, out)
	}
	return strconv.Atoi(match[1])
}

// download fetches and unpacks server binaries into the cache.
func (f postgresFinder) download(ctx context.Context, a *account, cfg PostgresConfig) (string, error) {
	if err := os.MkdirAll(f.cache, 0o755); err != nil {
		return "", err
	}
	if a != nil { // the umask may have closed it to the user that is to read there
		if err := os.Chmod(f.cache, 0o755); err != nil {
			return "", err
		}
	}
	home := filepath.Join(f.cache, "postgres-"+string(downloadedPostgres))
	l, err := lockWait(ctx, home+".lock", func() {
		fmt.Fprintln(cfg.Progress, "Another process is downloading Postgres; waiting for it.")
	})
	if err != nil {
		return "", err
	}
	bin := filepath.Join(home, "bin")
	if _, err := postgresMajor(ctx, a, bin); err == nil {
		l.release()
		return bin, nil
	}
	fmt.Fprintf(cfg.Progress, "No Postgres server is installed; downloading Postgres %s (about 30 MB).\n", downloadedPostgres)
	done := make(chan error, 1)
	go func() {
		// The library's download heeds no context. Cut off, it ends by itself and cleans up; the lock is its own.
		defer l.release()
		done <- fetchPostgres(cfg.DownloadURL, home)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return "", err
	}
	if _, err := postgresMajor(ctx, a, bin); err != nil {
		return "", err
	}
	return bin, nil
}

// fetchPostgres puts the server's files into home, all or nothing.
func fetchPostgres(repository, home string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(home), "download-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	unpacked := filepath.Join(tmp, "unpacked")
	cfg := embeddedpostgres.DefaultConfig().Version(downloadedPostgres).Logger(io.Discard).Port(0).
		CachePath(filepath.Join(tmp, "archive")).RuntimePath(filepath.Join(tmp, "runtime")).BinariesPath(unpacked).
		// The library has no call that only fetches. Its Start fetches, checks the sum, unpacks, and would then make
		// a database and serve it as the current user, perhaps root. A data path that ends in a dot is one that
		// os.RemoveAll refuses, which ends Start right after unpacking, before it executes anything.
		DataPath(tmp + string(filepath.Separator) + ".")
	if repository == "" {
		repository = os.Getenv(downloadURLEnv)
	}
	if repository != "" {
		cfg = cfg.BinaryRepositoryURL(strings.TrimSuffix(repository, "/"))
	}
	startErr := embeddedpostgres.NewDatabase(cfg).Start()
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(unpacked, "bin", name)); err != nil {
			return errors.Join(startErr, err)
		}
	}
	// Readable to the user that Postgres runs as, whatever our umask.
	err = filepath.WalkDir(tmp, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	return os.Rename(unpacked, home)
}
