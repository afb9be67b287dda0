package supervise_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

func read(t *testing.T, s supervise.Source) string {
	t.Helper()
	f, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestCaptureSurvivesRotation(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ck-1", "model.pt"), "weights")
	write(t, filepath.Join(dir, "ck-1", "sub", "rng"), "dice")
	c, err := supervise.Capture(dir, "ck-1", []string{"ck-1/model.pt", "ck-1/sub/rng"})
	if err != nil {
		t.Fatal(err)
	}
	if c.HeldOpen() {
		t.Error("held by descriptors where links work")
	}
	if _, err := supervise.Capture(dir, "ck-1", []string{"ck-1/model.pt"}); !errors.Is(err, handlers.ErrConflict) {
		t.Errorf("captured twice: got %v, want ErrConflict", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "ck-1")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "ck-1", "model.pt"), "of another branch")
	sources := c.Sources()
	for i, want := range []supervise.Source{{Path: "ck-1/model.pt"}, {Path: "ck-1/sub/rng"}} {
		content := []string{"weights", "dice"}[i]
		for range 2 {
			if got := read(t, sources[i]); sources[i].Path != want.Path || got != content {
				t.Errorf("got %s %q, want %s %q", sources[i].Path, got, want.Path, content)
			}
		}
	}
	if err := c.Verify(); err != nil {
		t.Errorf("verify: %v", err)
	}
	for range 2 {
		if err := c.Release(); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(dir, ".reprieve", "capture")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCaptureSeesChanges(t *testing.T) {
	change := map[string]func(path string) error{
		"same size, in place": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("WEIGHTS")
			return err
		},
		"appended": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("x")
			return err
		},
		"truncated": func(path string) error { return os.Truncate(path, 0) },
		"mapped": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			m, err := syscall.Mmap(int(f.Fd()), 0, 7, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
			if err != nil {
				return err
			}
			m[0] = 'W'
			return syscall.Munmap(m)
		},
	}
	for name, f := range change {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := write(t, filepath.Join(dir, "model.pt"), "weights") // written just now: the clock's grain matters
			c, err := supervise.Capture(dir, "model.pt", []string{"model.pt"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Release() }()
			if err := f(path); err != nil {
				t.Fatal(err)
			}
			if err := c.Verify(); !errors.Is(err, supervise.ErrChanged) || !errors.Is(err, handlers.ErrConflict) || !strings.Contains(err.Error(), "model.pt") {
				t.Errorf("got %v, want ErrChanged that names the file", err)
			}
		})
	}
}

// A trainer that rotates and overwrites all the time: each capture is refused, or is one version.
func TestCaptureIsNeverAMixture(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c"}
	files := []string{"ck/a", "ck/b", "ck/c"}
	save := func(version int) {
		tmp := filepath.Join(dir, "tmp")
		for _, name := range names {
			_ = os.MkdirAll(tmp, 0o755)
			_ = os.WriteFile(filepath.Join(tmp, name), []byte(strconv.Itoa(version)), 0o644)
		}
		_ = os.RemoveAll(filepath.Join(dir, "ck"))
		_ = os.Rename(tmp, filepath.Join(dir, "ck"))
	}
	save(0)
	quit := make(chan struct{})
	var trainer sync.WaitGroup
	trainer.Go(func() {
		for version := 1; ; version++ {
			select {
			case <-quit:
				return
			default:
				save(version)
			}
		}
	})
	whole := 0
	for i := 0; i < 100; i++ {
		c, err := supervise.Capture(dir, "ck", files)
		if err != nil {
			if !errors.Is(err, supervise.ErrChanged) && !errors.Is(err, handlers.ErrNotFound) {
				t.Fatal(err)
			}
			continue
		}
		whole++
		first := read(t, c.Sources()[0])
		for _, s := range c.Sources() {
			if got := read(t, s); got != first {
				t.Errorf("a mixture: %s has %s, %s has %s", files[0], first, s.Path, got)
			}
		}
		if err := c.Verify(); err != nil {
			t.Error(err)
		}
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	}
	close(quit)
	trainer.Wait()
	t.Logf("%d of 100 captures were whole", whole)
	if left, _ := os.ReadDir(filepath.Join(dir, ".reprieve", "capture")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCaptureRefuses(t *testing.T) {
	dir := t.TempDir()
	outside := write(t, filepath.Join(t.TempDir(), "secret"), "s")
	write(t, filepath.Join(dir, "ck", "real"), "r")
	for link, target := range map[string]string{"out": outside, "in": "real", "dangling": "none"} {
		if err := os.Symlink(target, filepath.Join(dir, "ck", link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "ck", "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, file string
		want       error
	}{
		{"ck", "ck/in", nil},
		{"ck", "ck/out", handlers.ErrInvalid},
		{"ck", "../x", handlers.ErrInvalid},
		{"ck", "ck", handlers.ErrInvalid},
		{"ck", "ck/pipe", handlers.ErrInvalid},
		{"ck", "ck/none", handlers.ErrNotFound},
		{"ck", "ck/dangling", handlers.ErrNotFound},
		{"../ck", "ck/real", handlers.ErrInvalid},
		{"a/b", "ck/real", handlers.ErrInvalid},
		{"..", "ck/real", handlers.ErrInvalid},
		{".", "ck/real", handlers.ErrInvalid},
		{"", "ck/real", handlers.ErrInvalid},
	} {
		c, err := supervise.Capture(dir, tc.name, []string{"ck/real", tc.file})
		if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("%s of %s: got %v, want %v", tc.file, tc.name, err, tc.want)
		}
		if c != nil {
			if got := read(t, c.Sources()[1]); got != "r" {
				t.Errorf("%s: got %q", tc.file, got)
			}
			_ = c.Release()
		}
		if left, _ := os.ReadDir(filepath.Join(dir, ".reprieve", "capture")); len(left) > 0 {
			t.Fatalf("%s of %s: left behind %v", tc.file, tc.name, left)
		}
	}
	if _, err := supervise.Capture(filepath.Join(dir, "none"), "ck", nil); !errors.Is(err, handlers.ErrUnavailable) {
		t.Errorf("no such directory: got %v", err)
	}
}

// Where a hard link cannot be made the descriptor is held instead.
func TestCaptureWithoutLinks(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "capture")
	if err != nil {
		t.Skip("no second file system here")
	}
	defer os.RemoveAll(shm)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".reprieve", "capture"), 0o755); err != nil {
		t.Fatal(err)
	}
	// What is linked into there crosses devices.
	swapped := filepath.Join(dir, ".reprieve", "capture")
	if err := syscall.Mount(shm, swapped, "", syscall.MS_BIND, ""); err != nil {
		t.Skip("this user may not mount")
	}
	defer func() { _ = syscall.Unmount(swapped, syscall.MNT_DETACH) }()
	path := write(t, filepath.Join(dir, "model.pt"), "weights")
	c, err := supervise.Capture(dir, "model.pt", []string{"model.pt"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Release() }()
	if !c.HeldOpen() {
		t.Error("linked across devices?")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := read(t, c.Sources()[0]); got != "weights" {
			t.Errorf("got %q", got)
		}
	}
	if err := c.Verify(); err != nil {
		t.Error(err)
	}
}

func TestCleanCaptures(t *testing.T) {
	dir := t.TempDir()
	if err := supervise.CleanCaptures(dir); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	keep := write(t, filepath.Join(dir, "model.pt"), "weights")
	if _, err := supervise.Capture(dir, "model.pt", []string{"model.pt"}); err != nil { // and then it was killed
		t.Fatal(err)
	}
	if err := supervise.CleanCaptures(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, ".reprieve", "capture")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if got, _ := os.ReadFile(keep); string(got) != "weights" {
		t.Errorf("the checkpoint: got %q", got)
	}
}
