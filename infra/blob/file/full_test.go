//go:build integration

package file_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
)

func init() { programs["full"] = fullDisk }

// The child has a mount namespace of its own, with a small tmpfs in it.
func TestFullDisk(t *testing.T) {
	cmd := child(t, "full", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("put on a full disk (needs the right to mount): %v", err)
	}
}

func fullDisk(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	ctx := context.Background()
	s, err := file.Open(root)
	if err != nil {
		return err
	}
	old, err := blob.PutBytes(ctx, s, "k", []byte("old"), blob.Cond{})
	if err != nil {
		return err
	}
	_, err = s.Put(ctx, "k", bytes.NewReader(make([]byte, 4<<20)), 4<<20, blob.Cond{})
	if handlers.Class(err) != handlers.ErrUnavailable || !strings.Contains(err.Error(), "is full") || !strings.Contains(err.Error(), root) {
		return fmt.Errorf("put: error = %v, want unavailable, naming the full disk", err)
	}
	if left, err := os.ReadDir(filepath.Join(root, ".reprieve", "tmp")); err != nil || len(left) != 0 {
		return fmt.Errorf("temporary files left: %v, error %w", left, err)
	}
	data, info, err := blob.ReadAll(ctx, s, "k")
	if err != nil || string(data) != "old" || info.Version != old.Version {
		return fmt.Errorf("after the failed put: %q, version %q, error %w; want the old content", data, info.Version, err)
	}
	return nil
}
