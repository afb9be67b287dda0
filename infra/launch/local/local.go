// Package local launches attempts on this machine, each as a "node" of its own: own directory, own
// session, own process tree. It is for laptops, demos and tests; it isolates nothing.
package local

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
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// NodeVariable is in the environment of every process of a node; its value is the node's name.
const NodeVariable = "REPRIEVE_LOCAL_NODE"

// Config of New. All fields but Env are required.
type Config struct {
	Root     string   // the nodes' directories are made in it
	StoreUID string   // of the store that the jobs are from
	Env      []string // what nodes inherit, as KEY=value
	Log      *slog.Logger
}

// Launcher implements handlers.Launcher. Safe for concurrent use by any number of processes.
type Launcher struct{ Config }

// New returns a launcher. It does nothing yet.
func New(c Config) *Launcher { return &Launcher{c} }

var _ handlers.Launcher = (*Launcher)(nil)

// spec is the template of a launch spec of kind local.
type spec struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
}

// launch is launch.json: who launched a node, and for whom.
type launch struct {
	StoreUID string  `json:"store_uid"`
	JobUID   string  `json:"job_uid"`
	By       process `json:"by"`
}

// process names one process of this machine for good.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
	Boot  string `json:"boot"`
}

const (
	launchFile  = "launch.json"
	processFile = "process.json"
	outputFile  = "output.log"
)

// Launch implements handlers.Launcher. The process outlives the launching one; its output is in
// Root/<name>/output.log.
func (l *Launcher) Launch(_ context.Context, job handlers.Job) error {
	name := job.LaunchName()
	dir := filepath.Join(l.Root, name)
	argv, env, err := render(job, name, dir)
	if err != nil {
		return err
	}
	self, err := identify(os.Getpid())
	if err != nil {
		return unavailable(err)
	}
	if err := os.MkdirAll(l.Root, 0o755); err != nil {
		return fmt.Errorf("%w: make room for nodes: %w", handlers.ErrInvalid, err)
	}
	// The directory appears with its launch.json in it, for exactly one of those who try.
	tmp, err := os.MkdirTemp(l.Root, ".launch-")
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := writeJSON(filepath.Join(tmp, launchFile), launch{StoreUID: l.StoreUID, JobUID: job.UID, By: self}); err != nil {
		return unavailable(err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			return unavailable(err)
		}
		return l.same(dir, job)
	}
	return l.start(name, dir, argv, env)
}

// same reports whether a node that is there already is this job's.
func (l *Launcher) same(dir string, job handlers.Job) error {
	var have launch
	if err := readJSON(filepath.Join(dir, launchFile), &have); err != nil {
		return unavailable(err)
	}
	if have.StoreUID != l.StoreUID || have.JobUID != job.UID {
		return fmt.Errorf("%w: %s belongs to another job of that name; remove it, or use another --state-dir", handlers.ErrConflict, dir)
	}
	return nil
}

func (l *Launcher) start(name, dir string, argv, env []string) error {
	output, err := os.OpenFile(filepath.Join(dir, outputFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(slices.Clone(l.Env), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: launch %s: template.command: %w", handlers.ErrInvalid, name, err)
	}
	started, err := identify(cmd.Process.Pid)
	if err == nil {
		err = writeJSON(filepath.Join(dir, processFile), started)
	}
	if err != nil {
		l.Log.Warn("a launched node is not on record; it is taken for gone", "node", name, "error", err)
	}
	go func() { // reaps it, if this process lives that long; nothing waits for that
		if err := cmd.Wait(); err != nil {
			l.Log.Info("a node has ended", "node", name, "error", err)
		}
	}()
	return nil
}

// Status implements handlers.Launcher.
func (l *Launcher) Status(_ context.Context, job handlers.Job) (handlers.LaunchStatus, error) {
	dir := filepath.Join(l.Root, job.LaunchName())
	var launched launch
	err := readJSON(filepath.Join(dir, launchFile), &launched)
	if errors.Is(err, os.ErrNotExist) {
		return handlers.LaunchGone, nil
	}
	if err != nil {
		return "", unavailable(err)
	}
	var p process
	err = readJSON(filepath.Join(dir, processFile), &p)
	switch {
	case err == nil && p.alive():
		return handlers.LaunchRunning, nil
	case err == nil:
		return handlers.LaunchFailed, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", unavailable(err)
	case launched.By.alive():
		return handlers.LaunchQueued, nil // its launcher is between two steps
	}
	return handlers.LaunchGone, nil
}

// Kill plays the death of a node: SIGKILL for everything that runs on it, until nothing does.
func (l *Launcher) Kill(name string) error {
	for range 200 {
		found := 0
		for _, pid := range onNode(name) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			found++
		}
		if found == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("%w: processes of node %s do not die", handlers.ErrUnavailable, name)
}

// onNode lists the living processes of a node.
func onNode(name string) []int {
	var found []int
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		env, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), NodeVariable+"="+name) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// render fills in the template of a job. ErrInvalid names the field.
func render(job handlers.Job, name, dir string) (argv, env []string, err error) {
	var s spec
	raw, err := json.Marshal(job.Launch.Template)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: template: %w", handlers.ErrInvalid, err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return nil, nil, fmt.Errorf("%w: template: %w; kind local has command (a list of strings) and env (a map)", handlers.ErrInvalid, err)
	}
	if len(s.Command) == 0 {
		return nil, nil, fmt.Errorf("%w: template.command is missing: give a list of strings", handlers.ErrInvalid)
	}
	values := map[string]any{"Job": job.Name, "Attempt": job.Attempt, "Name": name, "Dir": dir, "Step": int64(0)}
	if n := len(job.Checkpoints); n > 0 {
		values["Step"] = job.Checkpoints[n-1].Step
	}
	for i, text := range s.Command {
		filled, err := fill(text, values)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: template.command[%d]: %w", handlers.ErrInvalid, i, err)
		}
		argv = append(argv, filled)
	}
	for key, text := range s.Env {
		filled, err := fill(text, values)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: template.env.%s: %w", handlers.ErrInvalid, key, err)
		}
		env = append(env, key+"="+filled)
	}
	slices.Sort(env)
	return argv, append(env, "REPRIEVE_JOB="+job.Name, "REPRIEVE_ATTEMPT="+strconv.Itoa(job.Attempt), NodeVariable+"="+name), nil
}

func fill(text string, values map[string]any) (string, error) {
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, values)
	return b.String(), err
}
