package e2e

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/infra/metadata"
	"github.com/reprieve-dev/reprieve/test/harness"
)

// A spot interruption is heard from the metadata service without any server: checkpoint, hand over,
// exit 75. The same machine does not start again while the notice stands; another one goes on.
func TestSpotInterruption(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	w.env = append(w.env, "REPRIEVE_PROVIDER=aws")
	doomed, fresh := metadata.NewStandIn("i-doomed"), metadata.NewStandIn("i-fresh")
	first, second := httptest.NewServer(doomed), httptest.NewServer(fresh)
	t.Cleanup(first.Close)
	t.Cleanup(second.Close)
	p := w.run("j", "a", []string{"--metadata-endpoint", first.URL}, "-step-time", "1ms")
	p.WaitFor(`step 1[0-9][0-9][0-9] `)
	doomed.Interrupt("terminate", time.Now().Add(2*time.Minute))
	exits(t, p, 75)
	p.WaitFor(`durable in time`)
	job, _ := harness.Job(t, w.store, "j")
	if job.State != "interrupted" || job.Cause != "preempt" || job.Preemptions != 1 {
		t.Errorf("job: got %s (%s), %d preemptions", job.State, job.Cause, job.Preemptions)
	}
	exits(t, w.run("j", "a", []string{"--metadata-endpoint", first.URL}), 75)
	exits(t, w.run("j", "b", []string{"--metadata-endpoint", second.URL}), 0)
	w.same("j", want)
}

// A rebalance recommendation means: checkpoint now, keep running.
func TestRebalance(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	w.env = append(w.env, "REPRIEVE_PROVIDER=aws")
	standIn := metadata.NewStandIn("i-1")
	server := httptest.NewServer(standIn)
	t.Cleanup(server.Close)
	p := w.run("j", "a", []string{"--metadata-endpoint", server.URL}, "-step-time", "1ms", "-every", "100000")
	p.WaitFor(`step [1-9][0-9][0-9] `)
	standIn.Rebalance(time.Now())
	p.WaitFor(`saved step`)
	p.WaitFor(`checkpoint is durable`)
	exits(t, p, 0)
	w.same("j", want)
}

// The ways to ask, each with a command that can be asked in that way only.
func TestTriggers(t *testing.T) {
	script := `echo ready; trap 'save=1' USR1; n=0; while :; do n=$((n+1)); ` +
		`[ -e "$REPRIEVE_CHECKPOINT_DIR/../please" ] && { rm -f "$REPRIEVE_CHECKPOINT_DIR/../please"; save=1; }; ` +
		`if [ -n "$save" ]; then save=; echo $n > "$REPRIEVE_CHECKPOINT_DIR/.tmp"; mv "$REPRIEVE_CHECKPOINT_DIR/.tmp" "$REPRIEVE_CHECKPOINT_DIR/state-$n"; fi; sleep 0.02; done`
	for name, trigger := range map[string]string{
		"signal": "signal:USR1",
		"exec":   `exec:touch "$REPRIEVE_CHECKPOINT_DIR/../please"`,
		"file":   "file:",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if trigger == "file:" {
				trigger += filepath.Join(w.dir, "please")
			}
			p := harness.Start(t, w.env, harness.Reprieve(t), "run", "--job", "j", "--store", w.store, "--checkpoint-dir", w.ckpt("a"),
				"--trigger", trigger, "--", "sh", "-c", script)
			p.WaitFor(`(?m)^ready`)
			p.Signal(syscall.SIGTERM)
			exits(t, p, 75)
			if job, _ := harness.Job(t, w.store, "j"); len(job.Checkpoints) != 1 {
				t.Errorf("got %d checkpoints, want 1", len(job.Checkpoints))
			}
		})
	}
}

// A signal is never sent to a process that does not catch it: it would kill it.
func TestNoSignalToTheUnprepared(t *testing.T) {
	w := newWorld(t)
	p := harness.Start(t, w.env, harness.Reprieve(t), "run", "--job", "j", "--store", w.store, "--checkpoint-dir", w.ckpt("a"),
		"--trigger", "signal:USR1", "--", "sh", "-c", `echo ready; trap 'echo termed; exit 0' TERM; while :; do sleep 0.02; done`)
	p.WaitFor(`(?m)^ready`)
	p.Signal(syscall.SIGTERM)
	exits(t, p, 76) // nothing could be saved
	p.WaitFor(`USR1`)
	p.WaitFor(`termed`)
}

// Exit 0 after a stop was asked for is a preemption, unless the trainer said that it was done.
func TestExitZeroAfterStop(t *testing.T) {
	w := newWorld(t)
	p := harness.Start(t, w.env, harness.Reprieve(t), "run", "--job", "j", "--store", w.store, "--checkpoint-dir", w.ckpt("a"),
		"--", "sh", "-c", `trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done`)
	p.WaitFor(`(?m)^ready`)
	p.Signal(syscall.SIGTERM)
	exits(t, p, 76)
	if job, _ := harness.Job(t, w.store, "j"); job.State != "interrupted" {
		t.Errorf("job: got %s, want interrupted", job.State)
	}
}

// Ctrl-C cancels the job.
func TestInterruptFromTheTerminal(t *testing.T) {
	w := newWorld(t)
	p := w.run("j", "a", nil, "-step-time", "1ms")
	p.WaitFor(`checkpoint is durable`)
	p.Signal(syscall.SIGINT)
	exits(t, p, 130)
	if job, _ := harness.Job(t, w.store, "j"); job.State != "cancelled" {
		t.Errorf("job: got %s, want cancelled", job.State)
	}
	code, out := harness.Exec(t, w.env, "run", "--job", "j", "--store", w.store, "--checkpoint-dir", w.ckpt("a"), "--", "true")
	if code != 73 || !regexp.MustCompile(`cancelled`).MatchString(out) {
		t.Errorf("run again: exit %d, want 73, saying that it was cancelled:\n%s", code, out)
	}
}

// What is in the directory at a job's first attempt is the user's: nothing is moved, and the newest
// complete checkpoint becomes the job's first.
func TestFirstAttemptAdoptsWhatIsThere(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	own := harness.Start(t, nil, harness.Trainer(t), "-steps", "1000", "-every", "500", "-dir", w.ckpt("a"))
	exits(t, own, 0)
	p := w.run("j", "a", nil)
	exits(t, p, 0)
	p.WaitFor(`the job's first checkpoint.*step=1000`)
	p.WaitFor(`resumed from step 1000`)
	w.same("j", want)
	job, _ := harness.Job(t, w.store, "j")
	if len(job.Checkpoints) < 2 || job.Checkpoints[0].Step != 1000 {
		t.Errorf("checkpoints: %v, want step 1000 first", job.Checkpoints)
	}
}

// Two supervisors on one directory would overwrite each other's files.
func TestDirectoryIsLocked(t *testing.T) {
	w := newWorld(t)
	first := w.run("j", "a", nil, "-step-time", "5ms")
	first.WaitFor(`claimed`)
	second := w.run("k", "a", nil)
	exits(t, second, 73)
	second.WaitFor(strconv.Itoa(first.PID()))
	if code, out := harness.Exec(t, w.env, "restore", "j", w.ckpt("a"), "--store", w.store); code != 73 {
		t.Errorf("restore into it: exit %d, want 73\n%s", code, out)
	}
	if _, found := harness.Job(t, w.store, "k"); found {
		t.Error("the second job was claimed although its directory is taken")
	}
	if entries, err := os.ReadDir(w.ckpt("a")); err != nil || len(entries) == 0 {
		t.Errorf("the first job's directory: %v (%v)", entries, err)
	}
}
