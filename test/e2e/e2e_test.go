// Package e2e runs the real binaries as a user would: one test for each promise that the README and
// the command line contract make.
package e2e

import (
	"bytes"
	"fmt"
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

// world is a store, a state directory and a reference model.
type world struct {
	t     *testing.T
	dir   string
	store string
	env   []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, dir: dir, store: "file://" + filepath.Join(dir, "store")}
	w.env = []string{"REPRIEVE_STATE_DIR=" + shortDir(t), "REPRIEVE_PROVIDER=none", "REPRIEVE_LEASE=2s", "REPRIEVE_LOG_FORMAT=text"}
	return w
}

// shortDir is a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

const steps = "4000"

// run starts `reprieve run` of job around the trainer on a checkpoint directory of its own.
func (w *world) run(job, node string, flags []string, trainer ...string) *harness.Proc {
	w.t.Helper()
	argv := []string{harness.Reprieve(w.t), "run", "--job", job, "--store", w.store, "--checkpoint-dir", w.ckpt(node)}
	argv = append(append(argv, flags...), "--", harness.Trainer(w.t), "-steps", steps, "-every", "500", "-out", w.model(job))
	return harness.Start(w.t, w.env, append(argv, trainer...)...)
}

func (w *world) ckpt(node string) string { return filepath.Join(w.dir, node) }

func (w *world) model(name string) string { return filepath.Join(w.dir, name+".model") }

// reference trains without Reprieve.
func (w *world) reference() []byte {
	w.t.Helper()
	p := harness.Start(w.t, nil, harness.Trainer(w.t), "-steps", steps, "-dir", w.ckpt("reference"), "-out", w.model("reference"))
	if code := p.Wait(); code != 0 {
		w.t.Fatalf("reference run: exit %d", code)
	}
	return w.read("reference")
}

func (w *world) read(name string) []byte {
	w.t.Helper()
	data, err := os.ReadFile(w.model(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

// same fails unless the job's model is bit for bit the uninterrupted one.
func (w *world) same(job string, want []byte) {
	w.t.Helper()
	if got := w.read(job); !bytes.Equal(got, want) {
		w.t.Errorf("the model of %s differs from the uninterrupted run's", job)
	}
}

func exits(t *testing.T, p *harness.Proc, want int) {
	t.Helper()
	if got := p.Wait(); got != want {
		t.Errorf("exit code: got %d, want %d\n%s", got, want, p.Output())
	}
}

// A job without a launcher that is preempted exits 75 and goes on where it was when the same
// command is run again on another directory.
func TestSigtermThenRunAgainElsewhere(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	first := w.run("j", "a", nil, "-step-time", "1ms")
	first.WaitFor(`checkpoint is durable`)
	first.Signal(syscall.SIGTERM)
	exits(t, first, 75)
	second := w.run("j", "b", nil)
	exits(t, second, 0)
	second.WaitFor(`resumed from step [1-9]`)
	w.same("j", want)
	job, _ := harness.Job(t, w.store, "j")
	if job.State != "succeeded" || job.Attempt != 2 {
		t.Errorf("job: got %s at attempt %d, want succeeded at attempt 2", job.State, job.Attempt)
	}
}

func TestUninterrupted(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	p := w.run("j", "a", nil)
	exits(t, p, 0)
	w.same("j", want)
	if code, out := harness.Exec(t, w.env, "checkpoints", "list", "j", "--store", w.store); code != 0 || !strings.Contains(out, "1-"+steps) {
		t.Errorf("checkpoints list: exit %d, want the final step %s in\n%s", code, steps, out)
	}
	again := w.run("j", "a", nil)
	exits(t, again, 0) // succeeded already: a platform that restarts it must stop doing so
	again.WaitFor("succeeded already")
}

// kill -9 of the supervisor: the trainer dies with it, and the next run takes over at once, because
// it sees on the same host that the claimant is dead.
func TestSupervisorKilled(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	first := w.run("j", "a", nil, "-step-time", "1ms")
	first.WaitFor(`checkpoint is durable`)
	first.Signal(syscall.SIGKILL)
	exits(t, first, 128+9)
	second := w.run("j", "a", nil)
	exits(t, second, 0)
	second.WaitFor(`resumed from step`)
	w.same("j", want)
}

// A bit flipped in the newest checkpoint's data makes the resume take the one before, and say so.
func TestRottenCheckpoint(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	first := w.run("j", "a", nil, "-step-time", "1ms")
	first.WaitFor(`checkpoint is durable.*step=500(?s:.*)checkpoint is durable.*step=1000`)
	first.Signal(syscall.SIGTERM)
	exits(t, first, 75)
	job, _ := harness.Job(t, w.store, "j")
	newest, before := job.Checkpoints[len(job.Checkpoints)-1], job.Checkpoints[len(job.Checkpoints)-2]
	flip(t, filepath.Join(w.dir, "store", newest.Key, "data"))
	second := w.run("j", "b", nil)
	exits(t, second, 0)
	second.WaitFor(fmt.Sprintf(`does not verify.*step=%d`, newest.Step))
	second.WaitFor(fmt.Sprintf(`resumed from step %d`, before.Step))
	w.same("j", want)
}

// flip flips one bit in the middle of the first file below dir.
func flip(t *testing.T, dir string) {
	t.Helper()
	var path string
	_ = filepath.WalkDir(dir, func(p string, e os.DirEntry, _ error) error {
		if e.Type().IsRegular() {
			path = p
		}
		return nil
	})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// An attempt that was superseded while it was stopped cannot commit, heartbeat or end the job.
func TestStoppedOldAttempt(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	first := w.run("j", "a", nil, "-step-time", "1ms", "-every", "100")
	first.WaitFor(`checkpoint is durable`)
	first.Signal(syscall.SIGSTOP)
	// Another host, as far as the claim can tell: only the lease can end the first attempt.
	second := w.run("j", "b", nil, "-step-time", "1ms")
	second.WaitFor(`claimed job=j attempt=2`)
	first.Signal(syscall.SIGCONT)
	exits(t, first, 73)
	exits(t, second, 0)
	w.same("j", want)
	job, _ := harness.Job(t, w.store, "j")
	for i, c := range job.Checkpoints[1:] {
		if c.Compare(job.Checkpoints[i].Ref) <= 0 || c.Attempt == 1 && job.Base != nil && c.Compare(*job.Base) > 0 {
			t.Errorf("checkpoint %s is listed behind %s with base %v", c.Ref, job.Checkpoints[i].Ref, job.Base)
		}
	}
}

func TestMistakes(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := filepath.Join(w.dir, "ok")
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"missing command", []string{"--job", "j", "--checkpoint-dir", ok, "--", "no-such-command"}, 127, "no-such-command"},
		{"not executable", []string{"--job", "j", "--checkpoint-dir", ok, "--", file}, 126, file},
		{"job name with a slash", []string{"--job", "a/b", "--checkpoint-dir", ok, "--", "true"}, 64, `job name "a/b"`},
		{"no job", []string{"--checkpoint-dir", ok, "--", "true"}, 64, "--job is missing"},
		{"no command", []string{"--job", "j", "--checkpoint-dir", ok}, 64, "COMMAND is missing"},
		{"checkpoint dir is a file", []string{"--job", "j", "--checkpoint-dir", file, "--", "true"}, 64, "is a file"},
		{"checkpoint dir cannot be made", []string{"--job", "j", "--checkpoint-dir", "/proc/no/such", "--", "true"}, 64, "/proc/no/such"},
		{"unknown flag", []string{"--jbo", "j", "--", "true"}, 64, "unknown flag: --jbo"},
		{"unknown trigger", []string{"--job", "j", "--checkpoint-dir", ok, "--trigger", "shout", "--", "true"}, 64, "--trigger"},
		{"unknown framework", []string{"--job", "j", "--checkpoint-dir", ok, "--framework", "abacus", "--", "true"}, 64, "--framework"},
		{"store with a fragment", []string{"--job", "j", "--checkpoint-dir", ok, "--store", "file:///tmp/x#y", "--", "true"}, 64, "%23"},
		{"unknown store", []string{"--job", "j", "--checkpoint-dir", ok, "--store", "ftp://x", "--", "true"}, 64, "--store"},
		{"store is a file", []string{"--job", "j", "--checkpoint-dir", ok, "--store", "file://" + file, "--", "true"}, 64, file},
		{"store away", []string{"--job", "j", "--checkpoint-dir", ok, "--store", "s3://b/p?endpoint=http://127.0.0.1:1&region=x&path_style=true", "--", "true"}, 69, "127.0.0.1:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run"}, c.args...)
			code, out := harness.Exec(t, append(w.env, "REPRIEVE_STORE="+w.store), args...)
			if code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("got exit %d, want %d, saying %q:\n%s", code, c.code, c.says, out)
			}
			if lines := strings.Count(strings.TrimSpace(out), "\n"); lines > 0 {
				t.Errorf("want one line, got %d:\n%s", lines+1, out)
			}
		})
	}
	if job, found := harness.Job(t, w.store, "j"); found {
		t.Errorf("a mistake must not use up an attempt, but the job is %s at attempt %d", job.State, job.Attempt)
	}
}

// The child's exit code and output come through untouched, and every descendant is gone afterwards.
func TestTransparent(t *testing.T) {
	w := newWorld(t)
	marker := filepath.Join(w.dir, "marker")
	p := harness.Start(t, w.env, harness.Reprieve(t), "run", "--job", "t", "--store", w.store, "--checkpoint-dir", w.ckpt("a"), "--log-level", "error", "--",
		"sh", "-c", `printf 'out\n'; printf 'err\n' >&2; (trap "" TERM HUP; echo $$ > `+marker+`; setsid sh -c 'trap "" TERM HUP; while :; do sleep 0.1; done') & while [ ! -s `+marker+` ]; do :; done; exit 42`)
	exits(t, p, 42)
	if got := p.Output(); !strings.Contains(got, "out\n") || !strings.Contains(got, "err\n") {
		t.Errorf("output: got %q", got)
	}
	if left := harness.Survivors("REPRIEVE_SUPERVISED", w.ckpt("a")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
