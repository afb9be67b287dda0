// Package harness runs the real binaries for tests: what a user would do in a shell, with what it
// printed and how it ended.
package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// Patience bounds every wait of a test: it is reached only when something is broken.
const Patience = 60 * time.Second

var binaries = sync.OnceValues(func() (string, error) {
	_, self, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(self), "..", "..")
	dir, err := os.MkdirTemp("", "reprieve-bin-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir+"/", "./functions/reprieve", "./examples/trainer")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

// Reprieve and Trainer return the paths of the binaries, built once a test process.
func Reprieve(t testing.TB) string { return binary(t, "reprieve") }

// Trainer is examples/trainer.
func Trainer(t testing.TB) string { return binary(t, "trainer") }

func binary(t testing.TB, name string) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Clean removes the binaries; call it from TestMain.
func Clean() {
	if dir, err := binaries(); err == nil {
		_ = os.RemoveAll(dir)
	}
}

// Proc is a running program.
type Proc struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer // stdout and stderr, as they came
}

// Start runs a program with env added to a clean environment. It is killed at the end of the test.
func Start(t testing.TB, env []string, argv ...string) *Proc {
	t.Helper()
	p := &Proc{t: t, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "AWS_EC2_METADATA_DISABLED=true",
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test-secret"}, env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("output of %s:\n%s", strings.Join(argv, " "), p.Output())
		}
	})
	return p
}

// Write implements io.Writer for what the program prints.
func (p *Proc) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// Output is what the program printed so far.
func (p *Proc) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// PID is the program's process id.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Proc) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// Done reports whether the program has ended.
func (p *Proc) Done() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait returns the exit code; 128+n for a signal.
func (p *Proc) Wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(Patience):
		p.t.Fatalf("%s did not end within %s", p.cmd.Path, Patience)
	}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// WaitFor waits until the output matches pattern, and returns the submatches.
func (p *Proc) WaitFor(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var m []string
	Until(p.t, "output "+pattern, func() bool {
		m = re.FindStringSubmatch(p.Output())
		return m != nil || p.Done()
	})
	if m == nil {
		if m = re.FindStringSubmatch(p.Output()); m == nil {
			p.t.Fatalf("%s ended without printing %q", p.cmd.Path, pattern)
		}
	}
	return m
}

// Until polls a condition until it holds, for at most Patience.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(Patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited %s in vain for %s", Patience, what)
		}
	}
}

// Exec runs reprieve to its end and returns its code and output.
func Exec(t testing.TB, env []string, args ...string) (int, string) {
	t.Helper()
	p := Start(t, env, append([]string{Reprieve(t)}, args...)...)
	code := p.Wait()
	return code, p.Output()
}

// Job reads a job record the way a user would.
func Job(t testing.TB, store, name string) (handlers.Job, bool) {
	t.Helper()
	cmd := exec.Command(Reprieve(t), "jobs", "show", name, "--store", store, "-o", "json", "--log-level", "error")
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test-secret")
	out, err := cmd.Output()
	if err != nil {
		return handlers.Job{}, false
	}
	var job handlers.Job
	if err := json.Unmarshal(out, &job); err != nil {
		t.Fatalf("jobs show: %v\n%s", err, out)
	}
	return job, true
}

// Survivors lists the processes that have key=value in their environment.
func Survivors(key, value string) []string {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		env, err := os.ReadFile(path)
		if err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+key+"="+value+"\x00")) {
			found = append(found, filepath.Base(filepath.Dir(path)))
		}
	}
	return found
}
