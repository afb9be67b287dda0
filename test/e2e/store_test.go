package e2e

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/test/harness"
)

func TestS3(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	w.store = harness.BucketURL(harness.StartOutage(t).URL, "bucket")
	surviveOneSigterm(t, w, want)
}

func surviveOneSigterm(t *testing.T, w *world, want []byte) {
	t.Helper()
	first := w.run("j", "a", nil, "-step-time", "1ms")
	first.WaitFor(`checkpoint is durable`)
	first.Signal(syscall.SIGTERM)
	exits(t, first, 75)
	second := w.run("j", "b", nil)
	exits(t, second, 0)
	second.WaitFor(`resumed from step [1-9]`)
	w.same("j", want)
	if code, out := harness.Exec(t, w.env, "restore", "j", filepath.Join(w.dir, "restored"), "--store", w.store); code != 0 {
		t.Errorf("restore: exit %d\n%s", code, out)
	}
}

// The store goes away while the command runs: it goes on, and what it saves becomes durable later.
func TestStoreAwayWhileRunning(t *testing.T) {
	w := newWorld(t)
	w.env = append(w.env, "REPRIEVE_LEASE=30s")
	want := w.reference()
	s3 := harness.StartOutage(t)
	w.store = harness.BucketURL(s3.URL, "bucket")
	p := w.run("j", "a", nil, "-step-time", "1ms", "-every", "200")
	p.WaitFor(`checkpoint is durable`)
	s3.Down.Store(true)
	p.WaitFor(`not durable yet; trying again`)
	p.WaitFor(`step 2[0-9][0-9][0-9] `)
	s3.Down.Store(false)
	exits(t, p, 0)
	w.same("j", want)
	job, _ := harness.Job(t, w.store, "j")
	if n := len(job.Checkpoints); n == 0 || job.Checkpoints[n-1].Step != 4000 || job.State != "succeeded" {
		t.Errorf("job: %s with %d checkpoints, want succeeded with step 4000", job.State, n)
	}
}

// The store is away at the start: only --allow-unprotected starts the command; once the store
// answers, the job is protected.
func TestStoreAwayAtTheStart(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	s3 := harness.StartOutage(t)
	w.store = harness.BucketURL(s3.URL, "bucket")
	s3.Down.Store(true)
	exits(t, w.run("j", "a", nil), 69)
	p := w.run("j", "a", []string{"--allow-unprotected"}, "-step-time", "2ms")
	p.WaitFor(`UNPROTECTED`)
	p.WaitFor(`saved step 500`)
	s3.Down.Store(false)
	p.WaitFor(`the job is protected from now on`)
	p.WaitFor(`checkpoint is durable`)
	exits(t, p, 0)
	w.same("j", want)
	if job, _ := harness.Job(t, w.store, "j"); job.State != "succeeded" || len(job.Checkpoints) == 0 {
		t.Errorf("job: %s with %d checkpoints", job.State, len(job.Checkpoints))
	}
}
