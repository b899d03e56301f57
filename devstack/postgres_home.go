package devstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
)

// settle finds the folder for the database: in the data folder, or, where a is another user who cannot reach that, in
// a temporary directory. The last home is where it stood at the start before, if there was one.
func settle(ctx context.Context, dataDir, last string, a *account, log *slog.Logger) (string, error) {
	home := filepath.Join(dataDir, postgresName)
	if err := a.ownFolder(home); err != nil {
		return "", err
	}
	if a.canUse(ctx, home) {
		return home, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if a == nil {
		return "", fmt.Errorf("cannot write in %s, which is ours", home)
	}
	// A database that stands there and cannot be reached any more must not be replaced by an empty one elsewhere.
	if !isEmpty(home) {
		return "", fmt.Errorf("%v cannot reach the database in %s any more: open the folders above it (chmod o+x)", a, home)
	}
	if err := os.Remove(home); err != nil {
		return "", err
	}
	candidates := elsewhere(dataDir, last)
	for _, home := range candidates {
		if err := a.ownFolder(home); err != nil {
			return "", err
		}
		if a.canUse(ctx, home) {
			log.Warn("the database stands outside the data folder, which its user cannot reach",
				"user", a.name, "data_folder", dataDir, "database", home)
			return home, nil
		}
		if err := os.Remove(home); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%v can reach neither %s nor %v: choose a data folder that it can reach", a, dataDir, candidates)
}

// elsewhere is where the database of a data folder may stand outside of it, the same at every start. The temporary
// directory of the environment may be another one than last time, or as closed as the data folder; the last is open on
// every Unix system.
func elsewhere(dataDir, last string) []string {
	sum := sha256.Sum256([]byte(dataDir))
	name := "runledger-postgres-" + hex.EncodeToString(sum[:8])
	var homes []string
	if _, err := os.Lstat(last); err == nil && filepath.Base(last) == name {
		homes = append(homes, last)
	}
	for _, tmp := range []string{os.TempDir(), "/tmp"} {
		if home := filepath.Join(tmp, name); !slices.Contains(homes, home) {
			homes = append(homes, home)
		}
	}
	return homes
}

// removeElsewhere removes what settle may have put outside the data folder, and nothing that is not ours.
func removeElsewhere(dataDir, last string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	a, err := serverAccount()
	if err != nil {
		return err
	}
	for _, home := range elsewhere(dataDir, last) {
		info, err := os.Lstat(home)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() || !a.owns(info) {
			return fmt.Errorf("%s is not a folder of %v: not removed", home, a)
		}
		if err := os.RemoveAll(home); err != nil {
			return err
		}
	}
	return nil
}
