package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/test/harness"
)

// save is a shell function that renames a checkpoint into place and waits until the supervisor has
// taken it (the socket's file is not needed for that: the store is looked at).
const save = `save() { echo "$2" > "$REPRIEVE_CHECKPOINT_DIR/.t"; mv "$REPRIEVE_CHECKPOINT_DIR/.t" "$REPRIEVE_CHECKPOINT_DIR/$1"; sleep 0.4; }; `

func (w *world) shell(script string, flags ...string) *harness.Proc {
	w.t.Helper()
	argv := append([]string{harness.Reprieve(w.t), "run", "--job", "j", "--store", w.store, "--checkpoint-dir", w.ckpt("a")}, flags...)
	return harness.Start(w.t, w.env, append(argv, "--", "sh", "-c", save+script)...)
}

// contents returns what the listed checkpoints hold, oldest first.
func (w *world) contents() []string {
	w.t.Helper()
	job, _ := harness.Job(w.t, w.store, "j")
	var all []string
	for _, c := range job.Checkpoints {
		found, _ := filepath.Glob(filepath.Join(w.dir, "store", c.Key, "data", "0", "*"))
		for _, path := range found {
			data, err := os.ReadFile(path)
			if err != nil {
				w.t.Fatal(err)
			}
			all = append(all, strings.TrimSpace(string(data)))
		}
	}
	return all
}

// Whatever the names say: every version that is reported durable is in the store as it was.
func TestNamesOfCheckpoints(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"no number", "save state one; save state two; save state three", []string{"one", "two", "three"}},
		{"always the same number", "save resnet50 one; save resnet50 two; save resnet50 three", []string{"one", "two", "three"}},
		{"one step twice", "save x-5 one; save y-5 two", []string{"one", "two"}},
		{"best beside numbers", "save epoch-1 one; save best one; save epoch-2 two; save best two; save epoch-3 three; save best three", []string{"one", "two", "three"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			exits(t, w.shell(c.script), 0)
			if got := w.contents(); fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("in the store: got %v, want %v", got, c.want)
			}
		})
	}
}

// What the user had in the directory and what the command saves next are two checkpoints.
func TestAdoptedWithoutANumber(t *testing.T) {
	w := newWorld(t)
	if err := os.MkdirAll(w.ckpt("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.ckpt("a"), "state"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	exits(t, w.shell("save state new"), 0)
	if got := w.contents(); fmt.Sprint(got) != "[old new]" {
		t.Errorf("in the store: got %v, want [old new]", got)
	}
}

// A directory that the command removes and makes again is watched again.
func TestReplacedDirectory(t *testing.T) {
	w := newWorld(t)
	p := w.shell(`save step-1 one; rm -rf "$REPRIEVE_CHECKPOINT_DIR"; mkdir "$REPRIEVE_CHECKPOINT_DIR"; i=2; while :; do save step-$i s$i; i=$((i+1)); done`)
	p.WaitFor(`removed or replaced`)
	p.WaitFor(`checkpoint is durable checkpoint=step-([3-9]|\d\d)`)
	p.Signal(syscall.SIGINT)
	p.Wait()
}

// However short the grace, and whatever the command does with SIGTERM: the record says how it ended.
func TestShortGrace(t *testing.T) {
	for _, grace := range []string{"1s", "4s"} {
		for name, script := range map[string]string{
			"ignored": `trap "" TERM; echo ready; while :; do sleep 0.05; done`,
			"saves":   `trap 'save step-7 seven; exit 0' TERM; echo ready; while :; do sleep 0.05; done`,
		} {
			t.Run(name+grace, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				p := w.shell(script, "--grace", grace, "--on-notice", "keep")
				p.WaitFor(`(?m)^ready`)
				p.Signal(syscall.SIGTERM)
				if code := p.Wait(); code != 75 && code != 76 || code == 75 && len(w.contents()) == 0 {
					t.Errorf("exit %d with %v in the store", code, w.contents())
				}
				if job, _ := harness.Job(t, w.store, "j"); job.State != "interrupted" {
					t.Errorf("job: got %s, want interrupted", job.State)
				}
			})
		}
	}
}

// A second Ctrl-C makes it quicker, and the job is cancelled all the same.
func TestSecondInterrupt(t *testing.T) {
	w := newWorld(t)
	p := w.shell(`trap "" TERM INT; echo ready; while :; do sleep 0.05; done`)
	p.WaitFor(`(?m)^ready`)
	p.Signal(syscall.SIGINT)
	p.WaitFor(`the job is cancelled`)
	p.Signal(syscall.SIGINT)
	exits(t, p, 130)
	if job, _ := harness.Job(t, w.store, "j"); job.State != "cancelled" {
		t.Errorf("job: got %s, want cancelled", job.State)
	}
}
