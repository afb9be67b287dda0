package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/launch/local"
)

// helperRoot makes the test binary a launcher of its own that launches one node and dies.
const helperRoot = "LAUNCH_TEST_ROOT"

func TestMain(m *testing.M) {
	root := os.Getenv(helperRoot)
	if root == "" {
		os.Exit(m.Run())
	}
	if err := launcher(root).Launch(context.Background(), job("sh", "-c", held)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	fmt.Fprintln(os.Stderr, "still alive:", err)
	os.Exit(2)
}

// held is a script that runs until its node gets a line through the pipe.
const held = `mkfifo ../pipe-$REPRIEVE_ATTEMPT && echo started && read line <../pipe-$REPRIEVE_ATTEMPT && echo "$line"`

func launcher(root string) *local.Launcher {
	return local.New(local.Config{Root: root, StoreUID: "store", Env: []string{"PATH=" + os.Getenv("PATH")}, Log: slog.New(slog.DiscardHandler)})
}

// job is the first attempt of a job with a command.
func job(command ...string) handlers.Job {
	return handlers.Job{Name: "j", UID: "uid", Attempt: 1, Launch: &handlers.Launch{Kind: "local", Template: map[string]any{"command": list(command...)}}}
}

// list is a list as a job record holds it.
func list(items ...string) []any {
	var l []any
	for _, item := range items {
		l = append(l, item)
	}
	return l
}

// root is a directory for nodes, all of which die with the test.
func root(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		for _, name := range []string{"j-1", "j-2"} {
			if err := launcher(dir).Kill(name); err != nil {
				t.Error(err)
			}
		}
	})
	return dir
}

// eventually waits until check holds.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !check() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func status(t *testing.T, l *local.Launcher, j handlers.Job) handlers.LaunchStatus {
	t.Helper()
	got, err := l.Status(t.Context(), j)
	must(t, err)
	return got
}

// read returns a file's content, nothing while there is no file.
func read(path string) string {
	data, _ := os.ReadFile(path)
	return string(data)
}

// living counts the processes of a node.
func living(name string) int {
	count := 0
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		if slices.Contains(strings.Split(read(path), "\x00"), local.NodeVariable+"="+name) {
			count++
		}
	}
	return count
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// release lets a held node end.
func release(t *testing.T, dir, word string) {
	t.Helper()
	pipe, err := os.OpenFile(filepath.Join(dir, "pipe-1"), os.O_WRONLY, 0)
	must(t, err)
	_, err = pipe.WriteString(word + "\n")
	must(t, err)
	must(t, pipe.Close())
}

func TestNode(t *testing.T) {
	dir := root(t)
	l := launcher(dir)
	j := job("sh", "-c", `echo "job {{.Job}} attempt {{.Attempt}} name {{.Name}} dir {{.Dir}} step {{.Step}} arg $1"; pwd; env; echo oops >&2; exit 3`, "sh", "a b {{.Step}} $HOME")
	j.Attempt = 2
	j.Checkpoints = []handlers.Checkpoint{{Ref: handlers.Ref{Attempt: 1, Step: 5}}, {Ref: handlers.Ref{Attempt: 1, Step: 70}}}
	j.Launch.Template["env"] = map[string]any{"DATA": "{{.Dir}}/data", "REPRIEVE_JOB": "forged", "PATH": "/bin:/usr/bin"}
	must(t, l.Launch(t.Context(), j))
	eventually(t, "the end", func() bool { return status(t, l, j) == handlers.LaunchFailed })
	node := filepath.Join(dir, "j-2")
	output := strings.Split(strings.TrimSpace(read(filepath.Join(node, "output.log"))), "\n")
	var got []string
	for _, line := range output {
		if name, _, isEnv := strings.Cut(line, "="); !isEnv || !slices.Contains([]string{"PWD", "OLDPWD", "SHLVL", "_"}, name) {
			got = append(got, line)
		}
	}
	want := []string{
		"job j attempt 2 name j-2 dir " + node + " step 70 arg a b 70 $HOME", node, "oops",
		"DATA=" + node + "/data", "PATH=/bin:/usr/bin", "REPRIEVE_ATTEMPT=2", "REPRIEVE_JOB=j", local.NodeVariable + "=j-2", "REPRIEVE_LOCAL_DIR=" + node,
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWorkingDirectory(t *testing.T) {
	dir := root(t)
	must(t, os.MkdirAll(filepath.Join(dir, "code"), 0o755))
	for given, want := range map[string]string{"": dir + "/j-1", ".": dir + "/j-1", "../code": dir + "/code", "{{.Dir}}/../code": dir + "/code"} {
		l := launcher(dir)
		j := job("pwd")
		j.Launch.Template["dir"] = given
		must(t, l.Launch(t.Context(), j))
		eventually(t, "the end", func() bool { return status(t, l, j) == handlers.LaunchFailed })
		if got := strings.TrimSpace(read(filepath.Join(dir, "j-1", "output.log"))); got != want {
			t.Errorf("dir %q: got %q, want %q", given, got, want)
		}
		must(t, os.RemoveAll(filepath.Join(dir, "j-1")))
	}
}

// A launcher whose root is relative tells nodes a directory that means the same to them.
func TestRelativeRoot(t *testing.T) {
	t.Chdir(root(t))
	l := launcher("nodes")
	j := job("sh", "-c", `cd {{.Dir}} && pwd`)
	must(t, l.Launch(t.Context(), j))
	eventually(t, "the end", func() bool { return status(t, l, j) == handlers.LaunchFailed })
	want, err := filepath.Abs("nodes/j-1")
	must(t, err)
	if got := strings.TrimSpace(read("nodes/j-1/output.log")); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLaunchTwiceIsLaunchOnce(t *testing.T) {
	dir := root(t)
	j := job("sh", "-c", "echo started >>../lines; "+held)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if err := launcher(dir).Launch(t.Context(), j); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	must(t, launcher(dir).Launch(t.Context(), j))
	eventually(t, "the start", func() bool { _, err := os.Stat(filepath.Join(dir, "pipe-1")); return err == nil })
	release(t, dir, "bye")
	eventually(t, "the end", func() bool { return living("j-1") == 0 })
	must(t, launcher(dir).Launch(t.Context(), j)) // also when it has ended
	if got, want := read(filepath.Join(dir, "lines")), "started\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := read(filepath.Join(dir, "j-1", "output.log")), "started\nbye\n"; got != want {
		t.Errorf("output: got %q, want %q", got, want)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("got %v left behind", left)
	}
}

func TestNameThatIsTaken(t *testing.T) {
	dir := root(t)
	must(t, launcher(dir).Launch(t.Context(), job("true")))
	later := job("true")
	later.UID = "another"
	elsewhere := launcher(dir)
	elsewhere.StoreUID = "another"
	for name, err := range map[string]error{
		"another job":   launcher(dir).Launch(t.Context(), later),
		"another store": elsewhere.Launch(t.Context(), job("true")),
	} {
		if !errors.Is(err, handlers.ErrConflict) {
			t.Errorf("%s: got %v, want a conflict", name, err)
		} else if !strings.Contains(err.Error(), filepath.Join(dir, "j-1")) {
			t.Errorf("%s: got %q, want it to name the directory", name, err)
		}
	}
}

// doc is launch.json or process.json.
func doc(t *testing.T, path string) map[string]any {
	t.Helper()
	var d map[string]any
	must(t, json.Unmarshal([]byte(read(path)), &d))
	return d
}

func put(t *testing.T, path string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, data, 0o600))
}

// zombie is the pid and the start time of a process that has ended and is not waited for.
func zombie(t *testing.T) (pid int, start string) {
	t.Helper()
	cmd := exec.Command("true")
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	var fields []string
	eventually(t, "a zombie", func() bool {
		stat := read(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		fields = strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		return fields[0] == "Z"
	})
	return cmd.Process.Pid, fields[19]
}

func TestStatus(t *testing.T) {
	dir := root(t)
	l := launcher(dir)
	j := job("sh", "-c", held)
	want := func(what string, j handlers.Job, want handlers.LaunchStatus) {
		t.Helper()
		if got := status(t, l, j); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	want("before", j, handlers.LaunchGone)
	must(t, l.Launch(t.Context(), j))
	want("launched", j, handlers.LaunchRunning)
	must(t, l.Launch(t.Context(), j))
	want("launched twice", j, handlers.LaunchRunning)

	// What a launcher leaves that died, or still is, between two steps.
	launched, process := doc(t, filepath.Join(dir, "j-1", "launch.json")), doc(t, filepath.Join(dir, "j-1", "process.json"))
	next := j
	next.Attempt = 2
	file := func(name string) string { return filepath.Join(dir, "j-2", name) }
	put(t, file("launch.json"), launched)
	want("its launcher lives", next, handlers.LaunchQueued)

	changed := func(of map[string]any, field string, value any) map[string]any {
		c := map[string]any{}
		for k, v := range of {
			c[k] = v
		}
		c[field] = value
		return c
	}
	by := launched["by"].(map[string]any)
	leader := int(process["pid"].(float64))
	if session, err := unix.Getsid(leader); err != nil || session != leader {
		t.Errorf("session of %d: got %d, %v, want one of its own", leader, session, err)
	}
	put(t, file("launch.json"), changed(launched, "by", changed(by, "start", "1")))
	want("its launcher's pid is another process", next, handlers.LaunchGone)
	put(t, file("launch.json"), changed(launched, "by", changed(by, "boot", "before")))
	want("its launcher ran before the last boot", next, handlers.LaunchGone)

	put(t, file("launch.json"), launched)
	put(t, file("process.json"), process)
	want("a living process", next, handlers.LaunchRunning)
	put(t, file("process.json"), changed(process, "start", "1"))
	want("its pid is another process", next, handlers.LaunchFailed)
	put(t, file("process.json"), changed(process, "boot", "before"))
	want("it ran before the last boot", next, handlers.LaunchFailed)
	pid, start := zombie(t)
	put(t, file("process.json"), changed(changed(process, "pid", pid), "start", start))
	want("it has ended, and nobody took notice", next, handlers.LaunchFailed)

	foreign := j
	foreign.UID = "another"
	want("another job's node of that name", foreign, handlers.LaunchGone)

	// A launcher that dies before it has written down what it started.
	must(t, os.Remove(filepath.Join(dir, "j-1", "process.json")))
	put(t, filepath.Join(dir, "j-1", "launch.json"), changed(launched, "by", changed(by, "start", "1")))
	want("not on record, but running", j, handlers.LaunchRunning)
	put(t, filepath.Join(dir, "j-1", "launch.json"), launched)
	put(t, filepath.Join(dir, "j-1", "process.json"), process)

	eventually(t, "the start", func() bool { _, err := os.Stat(filepath.Join(dir, "pipe-1")); return err == nil })
	release(t, dir, "bye")
	eventually(t, "the end", func() bool { return status(t, l, j) == handlers.LaunchFailed })
	put(t, file("launch.json"), changed(launched, "by", process))
	must(t, os.Remove(file("process.json")))
	want("its launcher has ended", next, handlers.LaunchGone)

	must(t, os.WriteFile(file("launch.json"), []byte("{"), 0o600))
	if got, err := l.Status(t.Context(), next); handlers.Class(err) != handlers.ErrUnavailable {
		t.Errorf("half a document: got %s, %v, want unavailable", got, err)
	}
}

func TestSpecErrors(t *testing.T) {
	for name, c := range map[string]struct {
		template map[string]any
		says     []string
	}{
		"no command":        {map[string]any{"env": map[string]any{}}, []string{"template.command is missing"}},
		"empty command":     {map[string]any{"command": []any{}}, []string{"template.command is missing"}},
		"command a text":    {map[string]any{"command": "train --fast"}, []string{"template", "command", "list of strings"}},
		"command a number":  {map[string]any{"command": []any{"train", 60000}}, []string{"template", "command", "list of strings"}},
		"unknown field":     {map[string]any{"command": []any{"x"}, "image": "y"}, []string{"template.image"}},
		"dir a number":      {map[string]any{"command": []any{"true"}, "dir": 5}, []string{"template.dir"}},
		"dir missing":       {map[string]any{"command": []any{"true"}, "dir": "not/made"}, []string{"template.dir", "not/made"}},
		"unknown in dir":    {map[string]any{"command": []any{"true"}, "dir": "{{.Home}}"}, []string{"template.dir", "Home"}},
		"env a list":        {map[string]any{"command": []any{"x"}, "env": []any{"A=b"}}, []string{"template", "env"}},
		"unknown variable":  {map[string]any{"command": []any{"x", "{{.Rank}}"}}, []string{"template.command[1]", "Rank"}},
		"unknown in env":    {map[string]any{"command": []any{"x"}, "env": map[string]any{"A": "{{.Rank}}"}}, []string{"template.env.A", "Rank"}},
		"half a variable":   {map[string]any{"command": []any{"x", "y", "{{.Job"}}, []string{"template.command[2]"}},
		"field of a text":   {map[string]any{"command": []any{"{{.Job.UID}}"}}, []string{"template.command[0]"}},
		"no such program":   {map[string]any{"command": []any{"no-such-program-anywhere"}}, []string{"template.command", "no-such-program-anywhere"}},
		"no program":        {map[string]any{"command": []any{""}}, []string{"template.command"}},
		"not executable":    {map[string]any{"command": []any{"/etc/hostname"}}, []string{"template.command", "/etc/hostname"}},
		"name with an =":    {map[string]any{"command": []any{"true"}, "env": map[string]any{"A=B": "x"}}, []string{"template.env"}},
		"name empty":        {map[string]any{"command": []any{"true"}, "env": map[string]any{"": "x"}}, []string{"template.env"}},
		"a zero byte":       {map[string]any{"command": []any{"true", "a\x00b"}}, []string{"template.command[1]"}},
		"a zero byte (env)": {map[string]any{"command": []any{"true"}, "env": map[string]any{"A": "\x00"}}, []string{"template.env.A"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := root(t)
			l := launcher(dir)
			j := job()
			j.Launch.Template = c.template
			for range 2 { // the second time is no success either
				err := l.Launch(t.Context(), j)
				if !errors.Is(err, handlers.ErrInvalid) {
					t.Fatalf("got %v, want invalid", err)
				}
				for _, says := range c.says {
					if !strings.Contains(err.Error(), says) {
						t.Errorf("got %q, want it to say %q", err, says)
					}
				}
			}
			// The next attempt must not wait for this one.
			if got := status(t, l, j); got != handlers.LaunchGone {
				t.Errorf("status: got %s, want %s", got, handlers.LaunchGone)
			}
			left, err := os.ReadDir(dir)
			must(t, err)
			if len(left) > 0 {
				t.Errorf("got %v left behind", left)
			}
		})
	}
}

func TestRootThatIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	err := launcher(path).Launch(t.Context(), job("true"))
	if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want invalid and the path", err)
	}
}

func TestNodeOutlivesItsLauncher(t *testing.T) {
	dir := root(t)
	helper := exec.CommandContext(t.Context(), os.Args[0])
	helper.Env = append(os.Environ(), helperRoot+"="+dir)
	output, err := helper.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("got %v, want it killed: %s", err, output)
	}
	l, j := launcher(dir), job("sh", "-c", held)
	eventually(t, "the start", func() bool { _, err := os.Stat(filepath.Join(dir, "pipe-1")); return err == nil })
	if got := status(t, l, j); got != handlers.LaunchRunning {
		t.Errorf("got %s, want %s", got, handlers.LaunchRunning)
	}
	must(t, l.Launch(t.Context(), j))
	release(t, dir, "bye")
	eventually(t, "the end", func() bool { return status(t, l, j) == handlers.LaunchFailed })
	if got, want := read(filepath.Join(dir, "j-1", "output.log")), "started\nbye\n"; got != want {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

func TestKill(t *testing.T) {
	dir := root(t)
	l := launcher(dir)
	// A child, a child that ignores TERM, and a grandchild in a session of its own whose parents are gone.
	j := job("sh", "-c", `mkfifo pipe
		(trap '' TERM HUP INT; echo stubborn; read line <pipe) &
		(setsid sh -c '(echo orphan; read line <pipe) &' &)
		echo parent; read line <pipe`)
	other := job("sh", "-c", `echo other; `+held)
	other.Attempt = 2
	must(t, l.Launch(t.Context(), j))
	must(t, l.Launch(t.Context(), other))
	eventually(t, "everything to run", func() bool {
		lines := strings.Fields(read(filepath.Join(dir, "j-1", "output.log")))
		slices.Sort(lines)
		return slices.Equal(lines, []string{"orphan", "parent", "stubborn"}) && strings.Contains(read(filepath.Join(dir, "j-2", "output.log")), "other")
	})
	if got := living("j-1"); got < 3 {
		t.Fatalf("got %d processes, want at least 3", got)
	}
	must(t, l.Kill("j-1"))
	if got := living("j-1"); got != 0 {
		t.Errorf("got %d processes after the kill", got)
	}
	eventually(t, "the status", func() bool { return status(t, l, j) == handlers.LaunchFailed })
	if got := status(t, l, other); got != handlers.LaunchRunning {
		t.Errorf("the other node: got %s, want %s", got, handlers.LaunchRunning)
	}
	must(t, l.Kill("j-1")) // nothing is left to kill
}

// Two control planes on one machine may have a job of the same name.
func TestKillLeavesNodesOfThatNameElsewhere(t *testing.T) {
	mine, other := root(t), root(t)
	j := job("sh", "-c", held)
	must(t, launcher(mine).Launch(t.Context(), j))
	must(t, launcher(other).Launch(t.Context(), j))
	must(t, launcher(mine).Kill("j-1"))
	eventually(t, "the kill", func() bool { return status(t, launcher(mine), j) == handlers.LaunchFailed })
	if got := status(t, launcher(other), j); got != handlers.LaunchRunning {
		t.Errorf("got %s, want %s", got, handlers.LaunchRunning)
	}
}
