package supervise_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

func TestDescendants(t *testing.T) {
	j := start(t, `sh -c 'sleep 100 & echo $$; echo $!; wait' & wait`)
	middle, leaf := j.pid(t), j.pid(t)
	if got, want := supervise.Descendants(j.PID()), []int{middle, leaf}; !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	all := supervise.Descendants(os.Getpid())
	if !slices.Contains(all, j.PID()) || !slices.Contains(all, leaf) {
		t.Errorf("of this process: got %v, want %d and %d among them", all, j.PID(), leaf)
	}
	if err := syscall.Kill(leaf, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a zombie does not count", func() bool { return !slices.Contains(supervise.Descendants(j.PID()), leaf) })
}

func TestCatches(t *testing.T) {
	j := start(t, `trap : USR1; trap "" USR2; echo up; while :; do sleep 100 & wait; done`)
	j.line(t)
	for _, tc := range []struct {
		sig  syscall.Signal
		want bool
	}{{syscall.SIGUSR1, true}, {syscall.SIGUSR2, false}, {syscall.SIGHUP, false}} {
		if got, err := supervise.Catches(j.PID(), tc.sig); err != nil || got != tc.want {
			t.Errorf("%v: got %v, %v, want %v", tc.sig, got, err, tc.want)
		}
	}
	if _, err := supervise.Catches(1<<30, syscall.SIGUSR1); !errors.Is(err, handlers.ErrNotFound) {
		t.Errorf("no such process: got %v, want ErrNotFound", err)
	}
	if _, err := supervise.Catches(j.PID(), 0); !errors.Is(err, handlers.ErrInvalid) {
		t.Errorf("signal 0: got %v, want ErrInvalid", err)
	}
}

func TestProcessesWithEnv(t *testing.T) {
	j := start(t, `sleep 100 & echo $!; wait`, "REPRIEVE_TEST_MARK=a b")
	want := []int{j.PID(), j.pid(t)}
	slices.Sort(want)
	eventually(t, "both are found", func() bool {
		return cmp.Equal(supervise.ProcessesWithEnv("REPRIEVE_TEST_MARK", "a b"), want)
	})
	if got := supervise.ProcessesWithEnv("REPRIEVE_TEST_MARK", "a"); len(got) > 0 {
		t.Errorf("half a value: got %v", got)
	}
}

func TestWritersUnder(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "ck")
	write(t, filepath.Join(dir, "read"), "x")
	write(t, filepath.Join(dir, "sub", "keep"), "x")
	link := filepath.Join(top, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	j := start(t, `exec 3>"$D/new" 4<"$D/read" 5>>"$D/sub/log" 6>"$D/gone" 7>"$D.outside"; rm "$D/gone"; echo up; exec sleep 100`, "D="+dir)
	j.line(t)
	for _, at := range []string{dir, link} {
		if got, want := supervise.WritersUnder([]int{j.PID(), 1 << 30}, at), []string{"new", "sub/log"}; !cmp.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", at, got, want)
		}
	}
	if got := supervise.WritersUnder([]int{j.PID()}, filepath.Join(top, "none")); len(got) > 0 {
		t.Errorf("no such directory: got %v", got)
	}
}
