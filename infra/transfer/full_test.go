//go:build integration

package transfer_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

const fullDir = "TRANSFER_TEST_FULL"

// The child has a mount namespace of its own, with a small tmpfs in it.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(fullDir); dir != "" {
		restoreToFullDisk(t, dir)
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$")
	child.Env = append(os.Environ(), fullDir+"="+t.TempDir())
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		child.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		child.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		child.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if output, err := child.CombinedOutput(); err != nil {
		t.Errorf("restore to a full disk (needs the right to mount): %v\n%s", err, output)
	}
}

func restoreToFullDisk(t *testing.T, dir string) {
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	write(t, dir, map[string][]byte{"step-5/a": []byte("older")})
	was := tree(t, dir)
	s := mem.New(nil)
	m := upload(t, s, "step-5", map[string][]byte{"step-5/a": []byte("a"), "step-5/b": content("b", 3<<20)})
	err := transfer.Download(t.Context(), s, key, m, dir)
	wantClass(t, err, handlers.ErrInvalid)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "not enough space in "+dir) || !strings.Contains(err.Error(), "3145729 bytes") {
		t.Errorf("got %v, want it to say how much space is needed where", err)
	}
	wantUntouched(t, dir, was)
	must(t, os.RemoveAll(filepath.Join(dir, "step-5")))
}
