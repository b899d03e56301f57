package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is an unprivileged user that a server runs as.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount is the user to run Postgres as: nil, which means ourselves, unless we are root, whom Postgres refuses.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 != nil || err2 != nil || uid == 0 {
			continue
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("Postgres does not run as root, and there is no user postgres or nobody to run it as: " +
		"start as an ordinary user, or create the user postgres")
}

func (a *account) String() string {
	if a == nil {
		return "user " + strconv.Itoa(os.Geteuid())
	}
	return "user " + a.name
}

// owns reports whether the file described by info belongs to a, or to us where a is nil.
func (a *account) owns(info os.FileInfo) bool {
	return ownerOf(info) == a.id()
}

func (a *account) id() uint32 {
	if a == nil {
		return uint32(os.Geteuid())
	}
	return a.uid
}

// canUse reports whether a can enter dir and write there. The kernel is asked, as that user: permissions of every
// folder on the way, access lists and mount options all count.
func (a *account) canUse(ctx context.Context, dir string) bool {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "test -w .")
	cmd.Dir = dir
	cmd.SysProcAttr = command{account: a}.attributes()
	return cmd.Run() == nil
}

func ownerOf(info os.FileInfo) uint32 {
	return info.Sys().(*syscall.Stat_t).Uid
}

// ownFolder makes sure that dir is a folder that belongs to a and is closed to everyone else. One that stands there
// already is trusted only if both hold: in a shared temporary directory anyone could have put it, or a link, in our way.
func (a *account) ownFolder(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder: remove it, or choose another data folder", dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to other users (mode %04o): close it (chmod 700), or choose another data folder",
			dir, info.Mode().Perm())
	case a.owns(info):
		return nil
	case ownerOf(info) == uint32(os.Geteuid()) && isEmpty(dir):
		// Ours and new: made just now, or by a start that was killed right here.
		return os.Lchown(dir, int(a.uid), int(a.gid))
	default:
		return fmt.Errorf("%s belongs to user %d, not to %v: remove it, or choose another data folder",
			dir, ownerOf(info), a)
	}
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}
