// Package chaos kills processes of a whole installation (control plane, supervisor, trainer) with
// SIGKILL at random moments, many times, and then looks at everything that is left.
package chaos

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/test/harness"
)

var (
	runs = flag.Int("chaos.runs", 6, "how many installations to torment")
	seed = flag.Uint64("chaos.seed", 0, "seed of the moments and victims (0: a new one, printed)")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	harness.Clean()
	os.Exit(code)
}

// steps of the trainer, and how long each takes at least: a run without a kill takes about 1.5 s.
const steps, stepTime = "1500", "1ms"

// TestKill9 makes -chaos.runs installations, kills up to three of their processes each, restarts the
// control plane as an init system would, and requires that the job ends with the right model and
// that the store holds nothing that is committed but incomplete.
func TestKill9(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-chaos.seed=%d", *seed)
	want := reference(t)
	slots := make(chan struct{}, 3) // runs mostly wait for leases
	for i := range *runs {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			torment(t, rand.New(rand.NewPCG(*seed, uint64(i))), want)
		})
	}
}

func reference(t *testing.T) []byte {
	dir := t.TempDir()
	p := harness.Start(t, nil, harness.Trainer(t), "-steps", steps, "-dir", filepath.Join(dir, "c"), "-out", filepath.Join(dir, "model"))
	if code := p.Wait(); code != 0 {
		t.Fatalf("reference run: exit %d", code)
	}
	data, err := os.ReadFile(filepath.Join(dir, "model"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// installation is one control plane with one job.
type installation struct {
	t     *testing.T
	dir   string
	state string
	job   string
	serve *harness.Proc
}

func torment(t *testing.T, random *rand.Rand, want []byte) {
	state, err := os.MkdirTemp("", "rp")
	if err != nil {
		t.Fatal(err)
	}
	in := &installation{t: t, dir: t.TempDir(), state: state, job: fmt.Sprintf("chaos-%d-%d", os.Getpid(), random.Uint32())}
	t.Cleanup(in.end)
	in.start()
	in.submit()
	for range 1 + random.IntN(3) {
		in.kill(random)
	}
	harness.Until(t, "the end of the job", func() bool {
		if in.serve.Done() {
			in.start()
		}
		job, ok := in.record()
		return ok && job.State.Terminal()
	})
	in.examine(want)
}

func (in *installation) env() []string {
	return []string{"REPRIEVE_STATE_DIR=" + in.state, "REPRIEVE_STORE=file://" + in.store(), "REPRIEVE_LEASE=1s", "REPRIEVE_LOG_FORMAT=text"}
}

func (in *installation) store() string { return filepath.Join(in.dir, "store") }

func (in *installation) start() {
	in.serve = harness.Start(in.t, in.env(), harness.Reprieve(in.t), "serve", "--listen", "127.0.0.1:0",
		"--watch-interval", "1s", "--launch-deadline", "2s")
}

func (in *installation) submit() {
	spec := fmt.Sprintf(`
kind: local
template:
  command: [%q, run, --job, "{{.Job}}", --checkpoint-dir, "{{.Dir}}/c", --provider, none, --, %q, -steps, %q, -step-time, %q, -every, "100", -out, %q]
budget: {failures: 1000}
backoff: {initial: 10ms, max: 10ms}
`, harness.Reprieve(in.t), harness.Trainer(in.t), steps, stepTime, filepath.Join(in.dir, "model"))
	path := filepath.Join(in.dir, "launch.yaml")
	if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
		in.t.Fatal(err)
	}
	if code, out := harness.Exec(in.t, in.env(), "jobs", "submit", in.job, "--launch", path); code != 0 {
		in.t.Fatalf("submit: exit %d\n%s", code, out)
	}
}

// kill waits a random moment, kills a random process of the installation, and restarts the control
// plane if that was it.
func (in *installation) kill(random *rand.Rand) {
	timer := time.NewTimer(time.Duration(random.IntN(1500)) * time.Millisecond)
	<-timer.C
	victims := []int{in.serve.PID()}
	for _, pid := range harness.Survivors("REPRIEVE_STATE_DIR", in.state) {
		if n, _ := strconv.Atoi(pid); n != in.serve.PID() {
			victims = append(victims, n)
		}
	}
	victim := victims[random.IntN(len(victims))]
	_ = syscall.Kill(victim, syscall.SIGKILL)
	if victim == in.serve.PID() {
		in.serve.Wait()
		in.start()
	}
}

func (in *installation) record() (handlers.Job, bool) {
	var job handlers.Job
	data, err := os.ReadFile(filepath.Join(in.store(), "jobs", in.job, "job.json"))
	return job, err == nil && json.Unmarshal(data, &job) == nil
}

// end kills whatever is left and, after a failure, prints what the nodes printed.
func (in *installation) end() {
	if in.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(in.state, "local", "*", "output.log"))
		for _, path := range logs {
			data, _ := os.ReadFile(path)
			in.t.Logf("%s:\n%s", path, data)
		}
		if job, ok := in.record(); ok {
			data, _ := json.MarshalIndent(job, "", " ")
			in.t.Logf("record: %s", data)
		}
	}
	_ = syscall.Kill(in.serve.PID(), syscall.SIGKILL)
	for _, pid := range harness.Survivors("REPRIEVE_STATE_DIR", in.state) {
		n, _ := strconv.Atoi(pid)
		_ = syscall.Kill(n, syscall.SIGKILL)
	}
	_ = os.RemoveAll(in.state)
}

var claimed = regexp.MustCompile(`claimed job=\S+ attempt=(\d+)`)

func (in *installation) examine(want []byte) {
	in.t.Helper()
	job, _ := in.record()
	if job.State != handlers.Succeeded {
		in.t.Fatalf("the job is %s (%s): %s", job.State, job.Cause, job.Detail)
	}
	if got, err := os.ReadFile(filepath.Join(in.dir, "model")); err != nil || !bytes.Equal(got, want) {
		in.t.Errorf("the model differs from the uninterrupted run's (%v)", err)
	}
	claims := map[string]int{}
	logs, _ := filepath.Glob(filepath.Join(in.state, "local", "*", "output.log"))
	for _, path := range logs {
		data, _ := os.ReadFile(path)
		for _, m := range claimed.FindAllStringSubmatch(string(data), -1) {
			if claims[m[1]]++; claims[m[1]] > 1 {
				in.t.Errorf("attempt %s was claimed more than once", m[1])
			}
		}
	}
	_ = filepath.WalkDir(in.store(), func(path string, e fs.DirEntry, _ error) error {
		if strings.HasSuffix(path, "/manifest.json") {
			in.whole(path)
		}
		return nil
	})
	for i, c := range job.Checkpoints {
		if _, err := os.Stat(filepath.Join(in.store(), c.Key, "manifest.json")); err != nil {
			in.t.Errorf("the record lists %s without a manifest: %v", c.Ref, err)
		}
		if i > 0 && c.Compare(job.Checkpoints[i-1].Ref) <= 0 {
			in.t.Errorf("the record lists %s behind %s", c.Ref, job.Checkpoints[i-1].Ref)
		}
	}
}

// whole requires that everything that a manifest names is there, with its digest.
func (in *installation) whole(path string) {
	in.t.Helper()
	var m handlers.Manifest
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		in.t.Errorf("%s: %v", path, err)
		return
	}
	for _, f := range m.Files {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "data", strconv.Itoa(f.Node), f.Path))
		sum := sha256.Sum256(data)
		if err != nil || int64(len(data)) != f.Size || hex.EncodeToString(sum[:]) != f.SHA256 {
			in.t.Errorf("%s is committed, but %s is not what it says (%v)", path, f.Path, err)
		}
	}
}
