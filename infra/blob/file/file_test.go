package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/blobtest"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
)

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		root := t.TempDir()
		t.Cleanup(func() { wantNoTemps(t, root) })
		return open(t, root)
	})
}

func open(t *testing.T, root string) *file.Store {
	t.Helper()
	s, err := file.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func temps(t *testing.T, root string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, ".reprieve", "tmp", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func wantNoTemps(t *testing.T, root string) {
	t.Helper()
	if left := temps(t, root); len(left) != 0 {
		t.Errorf("temporary files left: %q", left)
	}
}

func put(t *testing.T, s *file.Store, key, text string, cond blob.Cond) blob.Info {
	t.Helper()
	info, err := blob.PutBytes(t.Context(), s, key, []byte(text), cond)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestDataStaysPlain(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	put(t, s, "jobs/j/data/model.pt", "weights", blob.Cond{})
	got, err := os.ReadFile(filepath.Join(root, "jobs/j/data/model.pt"))
	if err != nil || string(got) != "weights" {
		t.Errorf("the plain file has %q, error %v", got, err)
	}
	if err := s.Delete(t.Context(), "jobs/j/data/model.pt"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || entries[0].Name() != ".reprieve" {
		t.Errorf("after the last object is deleted the directory has %v, error %v; want only .reprieve", entries, err)
	}
}

// A version must not come back even though inodes are used again at once and the clock of the file
// system ticks every few milliseconds only.
func TestVersionsNeverComeBack(t *testing.T) {
	s := open(t, t.TempDir())
	seen := map[blob.Version]int{}
	for i := range 300 {
		cond := blob.Cond{Absent: i%3 == 0}
		info := put(t, s, "k", "same", cond)
		if before, ok := seen[info.Version]; ok {
			t.Fatalf("put %d has version %q of put %d", i, info.Version, before)
		}
		seen[info.Version] = i
		if i%3 == 2 {
			if err := s.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The clock may also run backwards between two writes.
func TestVersionAfterAClockThatRanAhead(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	first := put(t, s, "k", "one", blob.Cond{})
	ahead := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(root, "k"), time.Time{}, ahead); err != nil {
		t.Fatal(err)
	}
	_, err := blob.PutBytes(t.Context(), s, "k", []byte("two"), blob.Cond{Version: first.Version})
	if !errors.Is(err, handlers.ErrConflict) {
		t.Errorf("swap on a file that was touched: error = %v, want conflict", err)
	}
	if got := put(t, s, "k", "two", blob.Cond{}).ModTime; !got.After(ahead) {
		t.Errorf("overwritten: ModTime = %v, want one behind %v", got, ahead)
	}
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := put(t, s, "k", "three", blob.Cond{Absent: true}).ModTime; !got.After(ahead) {
		t.Errorf("created after a delete: ModTime = %v, want one behind %v", got, ahead)
	}
}

// A stopped process keeps its lock: others must fail at their deadline, and create-only must not care.
func TestHeldLock(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	info := put(t, s, "k", "old", blob.Cond{})
	locks, err := filepath.Glob(filepath.Join(root, ".reprieve", "lock", "*"))
	if err != nil || len(locks) != 1 {
		t.Fatalf("lock files = %q, error %v; want the one of the key", locks, err)
	}
	f, err := os.Open(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		call func(context.Context) error
	}{
		{"put", func(ctx context.Context) error {
			_, err := blob.PutBytes(ctx, s, "k", []byte("new"), blob.Cond{})
			return err
		}},
		{"swap", func(ctx context.Context) error {
			_, err := blob.PutBytes(ctx, s, "k", []byte("new"), blob.Cond{Version: info.Version})
			return err
		}},
		{"delete", func(ctx context.Context) error { return s.Delete(ctx, "k") }},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := c.call(ctx)
		cancel()
		if handlers.Class(err) != handlers.ErrUnavailable || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), locks[0]) {
			t.Errorf("%s under a held lock: error = %v, want unavailable at the deadline, naming the lock", c.name, err)
		}
	}
	_, err = blob.PutBytes(t.Context(), s, "k", []byte("new"), blob.Cond{Absent: true})
	if !errors.Is(err, handlers.ErrConflict) {
		t.Errorf("create-only under a held lock: error = %v, want conflict at once", err)
	}
	wantNoTemps(t, root)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	put(t, s, "k", "new", blob.Cond{Version: info.Version})
}

func TestOpenRemovesOldTemporaryFiles(t *testing.T) {
	root := t.TempDir()
	open(t, root)
	tmp := filepath.Join(root, ".reprieve", "tmp")
	for name, age := range map[string]time.Duration{"old": 25 * time.Hour, "young": 23 * time.Hour} {
		if err := os.WriteFile(filepath.Join(tmp, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(tmp, name), time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	open(t, root)
	if got, want := fmt.Sprint(temps(t, root)), fmt.Sprint([]string{filepath.Join(tmp, "young")}); got != want {
		t.Errorf("temporary files = %s, want %s", got, want)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, root, want string
	}{
		{"a file", plain, "is a file, or lies below one: give --store a directory"},
		{"below a file", filepath.Join(plain, "sub"), "is a file, or lies below one: give --store a directory"},
		{"a dangling link", dangling, "is a file, or lies below one: give --store a directory"},
	} {
		_, err := file.Open(c.root)
		if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.root) {
			t.Errorf("Open of %s: error = %v, want invalid with %q and the path", c.name, err, c.want)
		}
	}
}

func TestOverwriteOfTheLongestName(t *testing.T) {
	s := open(t, t.TempDir())
	key := "d/" + strings.Repeat("x", 255)
	info := put(t, s, key, "one", blob.Cond{Absent: true})
	put(t, s, key, "two", blob.Cond{Version: info.Version})
}

func TestKeysThatCannotBeBoth(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	put(t, s, "a", "object", blob.Cond{})
	put(t, s, "d/x", "object", blob.Cond{})
	for _, cond := range []blob.Cond{{}, {Absent: true}} {
		for _, key := range []string{"a/b", "a/b/c", "d"} {
			_, err := blob.PutBytes(t.Context(), s, key, nil, cond)
			if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), "rename one of them") {
				t.Errorf("Put(%q, %+v): error = %v, want invalid", key, cond, err)
			}
		}
	}
	wantNoTemps(t, root)
	// An empty directory, as a killed process leaves it, is nothing.
	if err := os.MkdirAll(filepath.Join(root, "empty"), 0o777); err != nil {
		t.Fatal(err)
	}
	put(t, s, "empty", "object", blob.Cond{Absent: true})
}

func TestOnlyRegularFilesAreObjects(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	put(t, s, "real", "x", blob.Cond{})
	if err := os.Symlink("real", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bad\nname"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"link", "pipe"} {
		if _, _, err := s.Get(t.Context(), key); !errors.Is(err, handlers.ErrNotFound) {
			t.Errorf("Get(%q): error = %v, want not found", key, err)
		}
		if _, err := s.Stat(t.Context(), key); !errors.Is(err, handlers.ErrNotFound) {
			t.Errorf("Stat(%q): error = %v, want not found", key, err)
		}
	}
	page, err := s.List(t.Context(), "", "", 10)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "real" {
		t.Errorf("List = %+v, error %v; want the regular file alone", page.Objects, err)
	}
}

func TestUnwritableDirectory(t *testing.T) {
	root := t.TempDir()
	if err := os.Chmod(root, 0o555); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		// Root may write everywhere, so the thread gives up its capabilities. It is not unlocked, so
		// it ends with the goroutine.
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			done <- fmt.Errorf("give up capabilities: %w", err)
			return
		}
		_, err := file.Open(root)
		done <- err
	}()
	err := <-done
	if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), "cannot be written") || !strings.Contains(err.Error(), root) {
		t.Errorf("Open: error = %v, want invalid, cannot be written, and the path", err)
	}
}
