package supervise_test

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/infra/supervise"
)

// eventually waits, in bounded time, until ok says so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(15 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// job is a child whose output is read by the test.
type job struct {
	*supervise.Child
	lines *bufio.Scanner
}

// start runs a shell script as the child; whatever is left of it is killed when the test ends.
func start(t *testing.T, script string, env ...string) job {
	t.Helper()
	return startArgv(t, []string{"/bin/sh", "-c", script}, env...)
}

func startArgv(t *testing.T, argv []string, env ...string) job {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child, err := supervise.StartChild(supervise.Spec{Argv: argv, Env: append(os.Environ(), env...), Stdout: w, Stderr: os.Stderr})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := child.KillDescendants(ctx); err != nil {
			t.Error(err)
		}
		_ = r.Close()
	})
	return job{child, bufio.NewScanner(r)}
}

// line reads one line of output.
func (j job) line(t *testing.T) string {
	t.Helper()
	if !j.lines.Scan() {
		t.Fatalf("the child ended without a word: %v", j.lines.Err())
	}
	return j.lines.Text()
}

// pid reads one line of output with a pid.
func (j job) pid(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(j.line(t)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// running is false for what is gone and for zombies.
func running(pid int) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
