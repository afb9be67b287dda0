package supervise_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

func TestLockDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	lock, err := supervise.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	holder := "process " + strconv.Itoa(os.Getpid())
	if _, err := supervise.LockDir(dir); !errors.Is(err, handlers.ErrConflict) || !strings.Contains(err.Error(), holder) {
		t.Errorf("held: got %v, want ErrConflict by %s", err, holder)
	}
	// A child does not take the lock along.
	j := start(t, "echo up; exec sleep 100")
	j.line(t)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := supervise.LockDir(dir)
	if err != nil {
		t.Fatalf("released: %v", err)
	}
	_ = again.Close()
}

func TestLockDirRefuses(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "file"), "")
	for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/none"} {
		if _, err := supervise.LockDir(dir); !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want ErrInvalid", dir, err)
		}
	}
}
