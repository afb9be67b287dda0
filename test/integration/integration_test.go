//go:build integration

// Package integration runs the real binaries against real servers and kernel features that a fresh
// machine may not offer. It needs root, as CI has it.
package integration

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/test/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	harness.Clean()
	os.Exit(code)
}

const steps = "3000"

// train is `reprieve run` around the trainer; it returns the running process and its model's path.
func train(t *testing.T, env []string, store, dir string, flags ...string) (*harness.Proc, string) {
	t.Helper()
	model := filepath.Join(dir, "model")
	argv := append([]string{harness.Reprieve(t), "run", "--job", "j", "--store", store, "--checkpoint-dir", filepath.Join(dir, "c"),
		"--state-dir", t.TempDir(), "--log-format", "text", "--lease", "3s"}, flags...)
	argv = append(argv, "--", harness.Trainer(t), "-steps", steps, "-every", "300", "-step-time", "1ms", "-out", model)
	return harness.Start(t, env, argv...), model
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// Amazon's own mock of the metadata service interrupts the machine; versitygw is the store.
func TestSpotInterruptionOnRealParts(t *testing.T) {
	mock := os.Getenv("EC2_METADATA_MOCK")
	if mock == "" {
		t.Fatal("EC2_METADATA_MOCK is not set: give it the path of an ec2-metadata-mock binary")
	}
	harness.Reprieve(t) // built before the mock's clock starts
	endpoint := harness.RealS3(t)
	harness.MakeBucket(t, endpoint, "bucket")
	store := harness.BucketURL(endpoint, "bucket")
	port := freePort(t)
	imds := harness.Start(t, nil, mock, "spot", "--hostname", "127.0.0.1", "--port", port, "-d", "3", "--imdsv2")
	url := "http://127.0.0.1:" + port
	harness.Until(t, "the metadata mock", func() bool {
		response, err := http.Get(url + "/latest/meta-data/instance-id")
		if err == nil {
			_ = response.Body.Close()
		}
		return err == nil || imds.Done()
	})
	dir := t.TempDir()
	first, _ := train(t, nil, store, filepath.Join(dir, "a"), "--provider", "aws", "--metadata-endpoint", url)
	if code := first.Wait(); code != 75 {
		t.Fatalf("exit %d, want 75\n%s", code, first.Output())
	}
	first.WaitFor(`notice kind=preempt`)
	first.WaitFor(`durable in time`)
	second, model := train(t, nil, store, filepath.Join(dir, "b"), "--provider", "none")
	if code := second.Wait(); code != 0 {
		t.Fatalf("exit %d, want 0\n%s", code, second.Output())
	}
	second.WaitFor(`resumed from step [1-9]`)
	if got, want := read(t, model), reference(t); !bytes.Equal(got, want) {
		t.Error("the model differs from the uninterrupted run's")
	}
}

func reference(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	p := harness.Start(t, nil, harness.Trainer(t), "-steps", steps, "-dir", filepath.Join(dir, "c"), "-out", filepath.Join(dir, "model"))
	if code := p.Wait(); code != 0 {
		t.Fatalf("reference run: exit %d", code)
	}
	return read(t, filepath.Join(dir, "model"))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// As PID 1 of a pid namespace: signals arrive although they have no default action there, orphans
// are reaped, and the exit code comes through.
func TestPID1(t *testing.T) {
	dir := t.TempDir()
	p := harness.Start(t, nil, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		harness.Reprieve(t), "run", "--job", "j", "--store", "file://"+filepath.Join(dir, "store"), "--checkpoint-dir", filepath.Join(dir, "c"),
		"--state-dir", filepath.Join(dir, "s"), "--provider", "none", "--log-format", "text", "--",
		"sh", "-c", `for i in 1 2 3 4 5; do (sh -c 'exit 0' &) ; done; `+
			`n=0; while ps -e -o stat= | grep -q Z; do n=$((n+1)); sleep 0.02; [ $n -gt 500 ] && { echo zombies; exit 9; }; done; `+
			`trap 'exit 7' USR1; echo ready as child of $(ps -o ppid= -p $$); while :; do sleep 0.02; done`)
	p.WaitFor(`ready as child of +1\b`)
	signalInside(t, p.PID(), syscall.SIGUSR1)
	if code := p.Wait(); code != 7 {
		t.Errorf("exit %d, want 7\n%s", code, p.Output())
	}
}

// signalInside sends a signal to the child of unshare, which is PID 1 of the namespace.
func signalInside(t *testing.T, unshare int, sig syscall.Signal) {
	t.Helper()
	children := strings.Fields(string(read(t, fmt.Sprintf("/proc/%d/task/%d/children", unshare, unshare))))
	var pid int
	if len(children) != 1 {
		t.Fatalf("children of unshare: %v", children)
	}
	if _, err := fmt.Sscan(children[0], &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// A full store: the command goes on, the log says what is wrong, and nothing half-written counts.
func TestFullStore(t *testing.T) {
	dir := t.TempDir()
	small := filepath.Join(dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=400k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) })
	store := "file://" + filepath.Join(small, "store")
	p, model := train(t, nil, store, filepath.Join(dir, "a"), "--provider", "none")
	p.WaitFor(`not durable yet; trying again.*(no space|full)`)
	p.WaitFor(`accuracy .* after 3000 steps`)
	if !bytes.Equal(read(t, model), reference(t)) {
		t.Error("the model differs from the uninterrupted run's")
	}
	p.Signal(syscall.SIGTERM) // stop waiting for space
	p.Wait()
	if err := syscall.Mount("tmpfs", small, "tmpfs", syscall.MS_REMOUNT, "size=10m"); err != nil {
		t.Fatal(err)
	}
	if code, out := harness.Exec(t, nil, "restore", "j", filepath.Join(dir, "restored"), "--store", store); code != 0 {
		t.Errorf("restore: exit %d\n%s", code, out)
	}
}
