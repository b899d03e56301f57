package devstack

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoPostgresAnywhere(t *testing.T) {
	t.Parallel()
	_, err := startPostgres(t.Context(), quick(dataFolder(t)), postgresFinder{})
	require.ErrorIs(t, err, ErrNotInstalled)
	require.ErrorContains(t, err, "found no Postgres server")
	require.ErrorContains(t, err, "apt-get install postgresql")
	require.ErrorContains(t, err, "brew install")
	require.ErrorContains(t, err, "DATABASE_URL")
}

func TestFindPostgres(t *testing.T) {
	t.Parallel()
	root := openFolder(t)
	install := func(dir, version string) string {
		dir = filepath.Join(root, dir)
		script(t, filepath.Join(dir, "postgres"), "echo 'postgres (PostgreSQL) %s'", version)
		script(t, filepath.Join(dir, "initdb"), "exit 0")
		return dir
	}
	nine := install("lib/9/bin", "9.6.24")
	fifteen := install("lib/15/bin", "15.8 (Debian 15.8-0+deb12u1)")
	seventeen := install("lib/17/bin", "17beta1")
	onPath := install("path", "16.2")
	cached := install("cache/postgres-14.1.0/bin", "14.1")
	linked := filepath.Join(root, "links")
	require.NoError(t, os.Mkdir(linked, 0o755))
	for _, name := range []string{"postgres", "initdb"} {
		require.NoError(t, os.Symlink(filepath.Join(fifteen, name), filepath.Join(linked, name)))
	}
	broken := filepath.Join(root, "broken")
	script(t, filepath.Join(broken, "postgres"), "exit 1")
	script(t, filepath.Join(broken, "initdb"), "exit 0")
	openAll(t, root)
	libs := []string{filepath.Join(root, "lib", "*", "bin")}
	account, err := serverAccount()
	require.NoError(t, err)

	cases := map[string]struct {
		finder postgresFinder
		major  int
		want   string
	}{
		"PATH goes first":                   {finder: postgresFinder{path: onPath, globs: libs}, want: onPath},
		"then the newest installed":         {finder: postgresFinder{path: "/nowhere", globs: libs}, want: seventeen},
		"a link leads to its installation":  {finder: postgresFinder{path: linked}, want: fifteen},
		"what cannot run is passed over":    {finder: postgresFinder{path: broken, globs: libs}, want: seventeen},
		"then what was downloaded":          {finder: postgresFinder{cache: filepath.Join(root, "cache")}, want: cached},
		"data wants its own version":        {finder: postgresFinder{path: onPath, globs: libs}, major: 15, want: fifteen},
		"even one that is too old for new":  {finder: postgresFinder{path: onPath, globs: libs}, major: 9, want: nine},
		"relative folders are not searched": {finder: postgresFinder{path: ".:" + onPath}, want: onPath},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.finder.find(t.Context(), account, c.major, PostgresConfig{})
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}

	_, err = postgresFinder{path: nine}.find(t.Context(), account, 0, PostgresConfig{})
	require.ErrorContains(t, err, "only 9 in "+nine)
}

func TestPostgresFromADownload(t *testing.T) {
	t.Parallel()
	archive := serverArchive(t)
	sum := sha256.Sum256(archive)
	fetched := 0
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ".jar"):
			fetched++
			_, _ = w.Write(archive)
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
		default:
			http.NotFound(w, r)
		}
	}))
	defer repository.Close()

	finder := postgresFinder{cache: filepath.Join(openFolder(t), "cache")}
	said := newLines()
	cfg := quick(dataFolder(t))
	cfg.DownloadURL, cfg.Progress = repository.URL, said
	pg, err := startPostgres(t.Context(), cfg, finder)
	require.NoError(t, err)
	require.Equal(t, "1", query(t, pg.URL(), "SELECT '1'"))
	require.Contains(t, said.String(), "downloading Postgres")
	require.NoError(t, pg.Stop(t.Context()))

	other, err := startPostgres(t.Context(), quick(dataFolder(t)), finder)
	require.NoError(t, err)
	require.NoError(t, other.Stop(t.Context()))
	require.Equal(t, 1, fetched, "kept")
	left, err := filepath.Glob(filepath.Join(finder.cache, "download-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestPostgresDownloadThatFails(t *testing.T) {
	t.Parallel()
	archive := serverArchive(t)
	account, err := serverAccount()
	require.NoError(t, err)
	cases := map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"nothing there": {http.NotFound, "no version found"},
		"another sum": {func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".jar") {
				_, _ = w.Write(archive)
				return
			}
			_, _ = w.Write([]byte("0000"))
		}, "checksums do not match"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := httptest.NewServer(c.handler)
			defer repository.Close()
			finder := postgresFinder{cache: filepath.Join(openFolder(t), "cache")}
			_, err := finder.find(t.Context(), account, 0, PostgresConfig{DownloadURL: repository.URL, Progress: newLines()})
			require.ErrorIs(t, err, ErrNotInstalled)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "DATABASE_URL")
			require.Empty(t, finder.candidates())
		})
	}
}

func TestPostgresDownloadThatIsCalledOff(t *testing.T) {
	t.Parallel()
	asked, hang := make(chan struct{}), make(chan struct{})
	repository := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-hang
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	finder := postgresFinder{cache: filepath.Join(openFolder(t), "cache")}
	_, err := finder.download(ctx, nil, PostgresConfig{DownloadURL: repository.URL, Progress: newLines()})
	require.ErrorIs(t, err, context.Canceled)

	// The lock is free when what was cut off has cleaned up behind itself.
	close(hang)
	repository.Close()
	l, err := lockWait(t.Context(), filepath.Join(finder.cache, "postgres-"+string(downloadedPostgres)+".lock"), func() {})
	require.NoError(t, err)
	l.release()
	left, err := filepath.Glob(filepath.Join(finder.cache, "download-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// serverArchive packs the installed server as a repository serves it: a jar that holds a tar.xz. What is not in it the
// server finds by the paths it was built with.
func serverArchive(t *testing.T) []byte {
	t.Helper()
	xz, err := exec.LookPath("xz")
	if err != nil {
		t.Skip("no xz to pack an archive with")
	}
	account, err := serverAccount()
	require.NoError(t, err)
	bin, err := installedPostgres().find(t.Context(), account, 0, PostgresConfig{Progress: newLines()})
	require.NoError(t, err)

	var tarball bytes.Buffer
	tw := tar.NewWriter(&tarball)
	pack := func(path string) {
		name, err := filepath.Rel(filepath.Dir(bin), path)
		require.NoError(t, err)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		// Closed to others, which must not matter.
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: name, Mode: 0o700, Size: int64(len(content)), Typeflag: tar.TypeReg}))
		_, err = tw.Write(content)
		require.NoError(t, err)
	}
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		pack(filepath.Join(bin, name))
	}
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(bin), "lib", "*.*"))
	require.NoError(t, err)
	for _, path := range libraries {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			pack(path)
		}
	}
	require.NoError(t, tw.Close())
	cmd := exec.CommandContext(t.Context(), xz, "-0", "-c")
	cmd.Stdin = &tarball
	packed, err := cmd.Output()
	require.NoError(t, err)

	var jar bytes.Buffer
	zw := zip.NewWriter(&jar)
	w, err := zw.Create("postgres.txz")
	require.NoError(t, err)
	_, err = w.Write(packed)
	require.NoError(t, err)
	require.NoError(t, zw.Close())
	return jar.Bytes()
}

// openFolder is a directory that every user can read.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devstack-test-*")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// openAll lets every user read dir and what is in it, whatever the umask was.
func openAll(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chmod(path, 0o755)
	}))
}
