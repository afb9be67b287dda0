package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// private is the directory inside a checkpoint directory that is ours. No trainer's file is in
// it, and no scan looks into it.
const private = ".reprieve"

// LockDir takes the checkpoint directory for this process, until the returned file is closed or
// the process ends, however it ends. The store's fence does not protect local files; this does.
// The directory is made if it is missing. Children do not inherit the lock.
//
// Errors: ErrConflict with the pid of the holder; ErrInvalid when dir cannot be used.
func LockDir(dir string) (*os.File, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%w: checkpoint directory %s is a file: give a directory", handlers.ErrInvalid, dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, private), 0o755); err != nil {
		return nil, fmt.Errorf("%w: checkpoint directory %s is not writable: %w", handlers.ErrInvalid, dir, err)
	}
	path := filepath.Join(dir, private, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%w: checkpoint directory %s is not writable: %w", handlers.ErrInvalid, dir, err)
	}
	if err := lock(f, dir); err != nil {
		_ = f.Close()
		return nil, err
	}
	// The pid is for people; a full disk is no reason not to hold the lock.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func lock(f *os.File, dir string) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			holder := "another process"
			raw, _ := io.ReadAll(io.LimitReader(f, 32))
			if pid := strings.TrimSpace(string(raw)); pid != "" {
				holder = "process " + pid
			}
			return fmt.Errorf("%w: checkpoint directory %s is in use by %s: end it, or give another --checkpoint-dir", handlers.ErrConflict, dir, holder)
		default:
			return fmt.Errorf("%w: lock checkpoint directory %s: %w; its file system has to support flock", handlers.ErrInvalid, dir, err)
		}
	}
}
