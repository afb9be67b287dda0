package local_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/launch/local"
)

// Eight processes that launch one attempt and are killed at once start one command.
func TestLaunchersThatRace(t *testing.T) {
	dir := root(t)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			helper := exec.CommandContext(t.Context(), os.Args[0])
			helper.Env = append(os.Environ(), helperRoot+"="+dir)
			var exit *exec.ExitError
			if output, err := helper.CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Errorf("got %v, want it killed: %s", err, output)
			}
		})
	}
	wait.Wait()
	eventually(t, "the start", func() bool { _, err := os.Stat(filepath.Join(dir, "pipe-1")); return err == nil })
	release(t, dir, "raced")
	eventually(t, "the end", func() bool { return status(t, launcher(dir), job()) == handlers.LaunchFailed })
	if got, want := read(filepath.Join(dir, "j-1", "output.log")), "started\nraced\n"; got != want {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

// Somebody else's node of that name is nothing to wait for.
func TestStatusOfAForeignNode(t *testing.T) {
	dir := root(t)
	must(t, launcher(dir).Launch(t.Context(), job("sh", "-c", held)))
	later := job("true")
	later.UID = "another"
	if got := status(t, launcher(dir), later); got != handlers.LaunchGone {
		t.Errorf("another job: got %s, want %s", got, handlers.LaunchGone)
	}
	elsewhere := launcher(dir)
	elsewhere.StoreUID = "another"
	if got := status(t, elsewhere, job("true")); got != handlers.LaunchGone {
		t.Errorf("another store: got %s, want %s", got, handlers.LaunchGone)
	}
}

// What is refused when a job is submitted is what would be refused at its launch, without a node.
func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		template string
		says     string
	}{
		"all":           {`{"command": ["train", "{{.Dir}}/{{.Job}}-{{.Attempt}}-{{.Step}}-{{.Name}}"], "dir": "{{.Dir}}", "env": {"A": "b"}}`, ""},
		"not installed": {`{"command": ["no-such-program"]}`, ""}, // it may be there when it is launched
		"no command":    {`{"dir": "/"}`, "template.command is missing"},
		"unknown field": {`{"command": ["x"], "Command": ["y"]}`, "template.Command is unknown"},
		"variable":      {`{"command": ["x", "{{.Pool}}"]}`, "template.command[1]"},
		"number":        {`{"command": ["x"], "env": {"PORT": 80}}`, "template.env"},
	} {
		var template map[string]any
		must(t, json.Unmarshal([]byte(c.template), &template))
		err := local.Validate(handlers.Launch{Kind: "local", Template: template})
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (!errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: got %v, want invalid, saying %q", name, err, c.says)
		}
	}
}
