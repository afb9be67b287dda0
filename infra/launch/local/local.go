// Package local launches attempts on this machine, each as a "node" of its own: own directory, own
// session, own process tree. It is for laptops, demos and tests; it isolates nothing.
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	// NodeVariable is in the environment of every process of a node; its value is the node's name.
	NodeVariable = "REPRIEVE_LOCAL_NODE"
	// dirVariable is there, too: its value, the node's directory, tells nodes of one name apart.
	dirVariable = "REPRIEVE_LOCAL_DIR"
)

// Config of New. All fields but Env are required to launch; Kill needs only Root.
type Config struct {
	Root     string   // the nodes' directories are made in it
	StoreUID string   // of the store that the jobs are from
	Env      []string // what nodes inherit, as KEY=value
	Log      *slog.Logger
}

// Launcher implements handlers.Launcher. Safe for concurrent use by any number of processes.
type Launcher struct{ Config }

// New returns a launcher. It does nothing yet, and needs no closing: nodes outlive it.
func New(c Config) *Launcher {
	if abs, err := filepath.Abs(c.Root); err == nil {
		c.Root = abs
	}
	return &Launcher{c}
}

var _ handlers.Launcher = (*Launcher)(nil)

// launch is launch.json: who launched a node, and for whom.
type launch struct {
	StoreUID string  `json:"store_uid"`
	JobUID   string  `json:"job_uid"`
	By       process `json:"by"`
}

const (
	launchFile  = "launch.json"
	processFile = "process.json" // of the command that was started
	outputFile  = "output.log"
)

// Launch implements handlers.Launcher. The command runs in the directory Root/<name>, with its
// output in output.log there; it outlives the launching process. A launch that failed leaves
// nothing behind.
func (l *Launcher) Launch(_ context.Context, job handlers.Job) error {
	dir := filepath.Join(l.Root, job.LaunchName())
	c, err := render(job, dir)
	if err != nil {
		return err
	}
	self, err := identify(os.Getpid())
	if err != nil {
		return unavailable(err)
	}
	if err := os.MkdirAll(l.Root, 0o755); err != nil {
		return fmt.Errorf("%w: make room for nodes: mend that, or use another --state-dir: %w", handlers.ErrInvalid, err)
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
		if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) && !errors.Is(err, syscall.ENOTDIR) {
			return unavailable(err)
		}
		return l.same(dir, job)
	}
	if err := l.start(job.LaunchName(), dir, c); err != nil {
		_ = os.Rename(dir, tmp) // in one step: whoever looks finds all of it or nothing
		return err
	}
	return nil
}

// same returns nil if the node that is there already is this job's.
func (l *Launcher) same(dir string, job handlers.Job) error {
	var have launch
	err := readJSON(filepath.Join(dir, launchFile), &have)
	if err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return unavailable(err) // it may be going away just now
	}
	if err != nil || !l.launched(have, job) {
		return fmt.Errorf("%w: %s belongs to another job of that name: remove it, or use another --state-dir", handlers.ErrConflict, dir)
	}
	return nil
}

func (l *Launcher) launched(have launch, job handlers.Job) bool {
	return have.StoreUID == l.StoreUID && have.JobUID == job.UID
}

func (l *Launcher) start(name, dir string, c command) error {
	if info, err := os.Stat(c.dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: launch %s: template.dir: there is no directory %s: make it, or name another", handlers.ErrInvalid, name, c.dir)
	}
	output, err := os.OpenFile(filepath.Join(dir, outputFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, output, output
	cmd.Env = append(slices.Clone(l.Env), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("launch %s: template.command: %w: %w", name, startClass(err), err)
	}
	started, err := identify(cmd.Process.Pid)
	if err == nil {
		err = writeJSON(filepath.Join(dir, processFile), started)
	}
	if err != nil { // nobody could say what becomes of it
		_ = l.Kill(name)
		_ = cmd.Wait()
		return unavailable(err)
	}
	// Reaps the command, if this process lives that long. Nothing waits for that, and nothing has to:
	// the node is not this process's, whose end it outlives.
	go func() {
		err := cmd.Wait()
		l.Log.Info("a node has ended", "node", name, "error", err)
	}()
	return nil
}

// startClass tells a command that cannot be started from a machine that is short of something.
func startClass(err error) error {
	for _, wrong := range []error{exec.ErrNotFound, exec.ErrDot, fs.ErrNotExist, fs.ErrPermission, syscall.ENOEXEC, syscall.ENOTDIR, syscall.E2BIG, syscall.ENAMETOOLONG, syscall.ELOOP} {
		if errors.Is(err, wrong) {
			return handlers.ErrInvalid
		}
	}
	return handlers.ErrUnavailable
}

// Status implements handlers.Launcher. A node of that name that is another job's does not count: it is gone.
func (l *Launcher) Status(_ context.Context, job handlers.Job) (handlers.LaunchStatus, error) {
	dir := filepath.Join(l.Root, job.LaunchName())
	var have launch
	err := readJSON(filepath.Join(dir, launchFile), &have)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), err == nil && !l.launched(have, job):
		return handlers.LaunchGone, nil
	case err != nil:
		return "", unavailable(err)
	}
	var p process
	err = readJSON(filepath.Join(dir, processFile), &p)
	switch {
	case err == nil && p.alive():
		return handlers.LaunchRunning, nil
	case err == nil:
		return handlers.LaunchFailed, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", unavailable(err)
	case have.By.alive():
		return handlers.LaunchQueued, nil // its launcher is between two steps
	case len(onNode(dir)) > 0:
		return handlers.LaunchRunning, nil // its launcher died right after it had started it
	}
	return handlers.LaunchGone, nil
}

// Kill plays the death of a machine: SIGKILL for everything on the node called name, until nothing
// runs there. What belongs to a node is told by its environment, so that neither a session of its
// own nor a dead parent hides a process. ErrUnavailable if something does not die.
func (l *Launcher) Kill(name string) error {
	return kill(filepath.Join(l.Root, name))
}

func unavailable(err error) error {
	return fmt.Errorf("local launcher: %w: %w", handlers.ErrUnavailable, err)
}
