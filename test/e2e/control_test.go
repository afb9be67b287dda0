package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/test/harness"
)

// control is a control plane of a world.
type control struct {
	*harness.Proc
	http, bus string
}

func (w *world) serve() control {
	w.t.Helper()
	p := harness.Start(w.t, w.env, harness.Reprieve(w.t), "serve", "--store", w.store, "--listen", "127.0.0.1:0", "--watch-interval", "1s", "--launch-deadline", "2s")
	m := p.WaitFor(`control plane is up: (\S+)\n.*--bus (\S+)`)
	return control{Proc: p, http: m[1], bus: m[2]}
}

// submit creates a job whose attempts run the trainer as local nodes.
func (w *world) submit(job string, trainer ...string) {
	w.t.Helper()
	quoted := make([]string, len(trainer))
	for i, arg := range trainer {
		quoted[i] = fmt.Sprintf("%q", arg)
	}
	spec := fmt.Sprintf("kind: local\ntemplate:\n  command: [%q, run, --job, '{{.Job}}', --store, %q, --checkpoint-dir, '{{.Dir}}/c', --, %q, -steps, %q, -out, %q, %s]\n",
		harness.Reprieve(w.t), w.store, harness.Trainer(w.t), steps, w.model(job), strings.Join(quoted, ", "))
	path := filepath.Join(w.dir, job+".yaml")
	if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if code, out := harness.Exec(w.t, w.env, "jobs", "submit", job, "--store", w.store, "--launch", path); code != 0 {
		w.t.Fatalf("submit: exit %d\n%s", code, out)
	}
	w.t.Cleanup(func() {
		for _, node := range []string{"-1", "-2", "-3"} {
			for _, pid := range harness.Survivors("REPRIEVE_LOCAL_NODE", job+node) {
				kill(pid)
			}
		}
	})
}

func kill(pid string) {
	var n int
	if _, err := fmt.Sscan(pid, &n); err == nil {
		_ = syscall.Kill(n, syscall.SIGKILL)
	}
}

// A drill: the notice goes over the bus, the job moves to a fresh node. The control plane is killed
// meanwhile, and started again.
func TestDrill(t *testing.T) {
	w := newWorld(t)
	want := w.reference()
	job := "drill-" + filepath.Base(w.dir)
	serve := w.serve()
	w.submit(job, "-step-time", "1ms", "-every", "300")
	harness.Until(t, "a checkpoint", func() bool { j, _ := harness.Job(t, w.store, job); return len(j.Checkpoints) > 0 })
	serve.Signal(syscall.SIGKILL)
	serve.Wait()
	serve = w.serve()
	code, out := harness.Exec(t, w.env, "notice", "send", "--bus", serve.bus, "--node", "local/"+job+"-1", "--in", "60s")
	if code != 0 {
		t.Fatalf("notice send: exit %d\n%s", code, out)
	}
	harness.Until(t, "the job's end", func() bool { j, _ := harness.Job(t, w.store, job); return j.State.Terminal() })
	j, _ := harness.Job(t, w.store, job)
	if j.State != "succeeded" || j.Attempt != 2 || j.Preemptions != 1 {
		t.Errorf("job: %s at attempt %d after %d preemptions, want succeeded at 2 after 1", j.State, j.Attempt, j.Preemptions)
	}
	w.same(job, want)
}

// A notice for an unknown node is acked and counted; what cannot be read is refused or dead-lettered
// with the reason; nothing is dropped silently.
func TestIntake(t *testing.T) {
	w := newWorld(t)
	serve := w.serve()
	spot := `{"version":"0","id":"1","detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":"2026-12-01T00:00:00Z","detail":{"instance-id":"i-unknown","instance-action":"terminate"}}`
	post(t, serve.http+"/notices/aws", "application/json", spot, http.StatusAccepted)
	metric(t, serve.http, `reprieve_events_total{handler="notice",outcome="ignored"} 1`)
	post(t, serve.http+"/notices/aws", "application/json", `{"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","detail":{}}`, http.StatusBadRequest)
	invalid := `{"specversion":"1.0","id":"x","source":"/test","type":"dev.reprieve.node.notice","datacontenttype":"application/json","data":{"provider":"aws","instance":"i-1","kind":"earthquake"}}`
	post(t, serve.http+"/events", "application/cloudevents+json", invalid, http.StatusAccepted)
	metric(t, serve.http, `reprieve_events_total{handler="notice",outcome="dead-lettered"} 1`)
	serve.WaitFor(`earthquake`)
}

func post(t *testing.T, url, contentType, body string, want int) {
	t.Helper()
	response, err := http.Post(url, contentType, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode != want {
		t.Errorf("POST %s: got %s, want %d: %s", url, response.Status, want, answer)
	}
}

func metric(t *testing.T, url, line string) {
	t.Helper()
	harness.Until(t, "metric "+line, func() bool {
		response, err := http.Get(url + "/metrics")
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		return strings.Contains(string(body), line)
	})
}

// A person cancels a running job and retries it.
func TestCancelAndRetry(t *testing.T) {
	w := newWorld(t)
	job := "retry-" + filepath.Base(w.dir)
	w.serve()
	w.submit(job, "-step-time", "1ms", "-every", "300")
	harness.Until(t, "a checkpoint", func() bool { j, _ := harness.Job(t, w.store, job); return len(j.Checkpoints) > 0 })
	if code, out := harness.Exec(t, w.env, "jobs", "cancel", job, "--store", w.store); code != 0 {
		t.Fatalf("cancel: exit %d\n%s", code, out)
	}
	harness.Until(t, "the node's end", func() bool { return len(harness.Survivors("REPRIEVE_LOCAL_NODE", job+"-1")) == 0 })
	if code, out := harness.Exec(t, w.env, "jobs", "retry", job, "--store", w.store); code != 0 {
		t.Fatalf("retry: exit %d\n%s", code, out)
	}
	harness.Until(t, "the job's end", func() bool { j, _ := harness.Job(t, w.store, job); return j.State.Terminal() })
	if j, _ := harness.Job(t, w.store, job); j.State != "succeeded" || j.Attempt != 2 {
		t.Errorf("job: %s at attempt %d, want succeeded at 2", j.State, j.Attempt)
	}
}
