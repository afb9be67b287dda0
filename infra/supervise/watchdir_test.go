package supervise_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

func watch(t *testing.T, dir string) *supervise.Watcher {
	t.Helper()
	w, err := supervise.WatchDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func next(t *testing.T, w *supervise.Watcher) supervise.Change {
	t.Helper()
	select {
	case c, ok := <-w.Events():
		if !ok {
			t.Fatal("the watcher has ended")
		}
		return c
	case <-time.After(15 * time.Second):
		t.Fatal("no change was reported")
	}
	panic("unreachable")
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestWatchDir(t *testing.T) {
	dir := t.TempDir()
	elsewhere := write(t, filepath.Join(t.TempDir(), "x"), "")
	w := watch(t, dir)
	if w.Polling() != "" {
		t.Skipf("no inotify here: %s", w.Polling())
	}
	write(t, filepath.Join(dir, ".reprieve", "lock"), "") // ours: not reported
	write(t, filepath.Join(dir, "a.tmp"), "x")
	rename(t, filepath.Join(dir, "a.tmp"), filepath.Join(dir, "a.pt"))
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tmp", "inside"), "x") // below: not reported
	rename(t, filepath.Join(dir, "tmp"), filepath.Join(dir, "ck-1"))
	rename(t, elsewhere, filepath.Join(dir, "moved in"))
	if err := os.Link(filepath.Join(dir, "a.pt"), filepath.Join(dir, "linked")); err != nil {
		t.Fatal(err)
	}
	var got []supervise.Change
	want := []supervise.Change{
		{Name: "a.tmp"}, {Name: "a.tmp"}, // made, closed
		{Name: "a.pt", Renamed: true},
		{Name: "tmp", Dir: true}, {Name: "ck-1", Renamed: true, Dir: true},
		{Name: "moved in", Renamed: true},
		{Name: "linked"},
	}
	for range want {
		got = append(got, next(t, w))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWatchDirGone(t *testing.T) {
	for name, f := range map[string]func(dir string) error{
		"removed": os.Remove,
		"moved":   func(dir string) error { return os.Rename(dir, dir+"-old") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ck")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			w := watch(t, dir)
			if err := f(dir); err != nil {
				t.Fatal(err)
			}
			if got, want := next(t, w), (supervise.Change{Gone: true}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if c, ok := <-w.Events(); ok {
				t.Errorf("behind the last: %+v", c)
			}
		})
	}
}

func TestWatchDirOverflow(t *testing.T) {
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip("no inotify here")
	}
	limit, err := strconv.Atoi(string(raw[:len(raw)-1]))
	if err != nil || limit > 100_000 {
		t.Skipf("the queue is too long to be filled: %s", raw)
	}
	dir := t.TempDir()
	w := watch(t, dir)
	a, b := write(t, filepath.Join(dir, "a"), ""), filepath.Join(dir, "b")
	for range limit + 10_000 { // nobody reads meanwhile
		rename(t, a, b)
		a, b = b, a
	}
	for c := next(t, w); !c.Rescan; c = next(t, w) {
	}
	write(t, filepath.Join(dir, "after"), "") // and it goes on
	for c := next(t, w); c.Name != "after"; c = next(t, w) {
	}
}

func TestWatchDirRefuses(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "file"), "")
	for _, dir := range []string{file, filepath.Join(file, "below"), filepath.Join(t.TempDir(), "none")} {
		if _, err := supervise.WatchDir(dir); !errors.Is(err, handlers.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", dir, err)
		}
	}
}

func TestWatcherCloses(t *testing.T) {
	w := watch(t, t.TempDir())
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := <-w.Events(); ok {
		t.Error("a change after Close")
	}
}

func TestWatchByPolling(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ck")
	write(t, filepath.Join(dir, "old"), "")
	tick := make(chan time.Time)
	w, err := supervise.WatchByPolling(dir, tick)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, tc := range []struct {
		name string
		do   func()
		want []supervise.Change
	}{
		{"made", func() { write(t, filepath.Join(dir, "a.tmp"), "x") }, []supervise.Change{{Name: "a.tmp"}}},
		{"renamed", func() { rename(t, filepath.Join(dir, "a.tmp"), filepath.Join(dir, "a.pt")) }, []supervise.Change{{Name: "a.pt", Renamed: true}}},
		{"linked", func() { _ = os.Link(filepath.Join(dir, "a.pt"), filepath.Join(dir, "b.pt")) }, []supervise.Change{{Name: "b.pt"}}},
		{"written to; ours and a removal do not count", func() {
			write(t, filepath.Join(dir, "old"), "new")
			write(t, filepath.Join(dir, ".reprieve", "lock"), "")
			_ = os.Remove(filepath.Join(dir, "b.pt"))
		}, []supervise.Change{{Name: "old"}}},
		{"a directory", func() { write(t, filepath.Join(dir, "d", "x"), "") }, []supervise.Change{{Name: "d", Dir: true}}},
		{"gone", func() { rename(t, dir, dir+"-old") }, []supervise.Change{{Gone: true}}},
	} {
		tc.do()
		tick <- time.Time{}
		for _, want := range tc.want {
			if got := next(t, w); got != want {
				t.Errorf("%s: got %+v, want %+v", tc.name, got, want)
			}
		}
	}
	if c, ok := <-w.Events(); ok {
		t.Errorf("behind the last: %+v", c)
	}
}
