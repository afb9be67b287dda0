package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/reprieve-dev/reprieve/handlers"
)

// Spec is a command to start.
type Spec struct {
	Argv []string // the command, found in PATH, and its arguments
	Env  []string // the whole environment, KEY=VALUE
	Dir  string   // working directory; empty: ours
	// The child's descriptors 0, 1, 2. It inherits them as they are: nothing is copied, and
	// nothing is lost when we die. nil is /dev/null.
	Stdin, Stdout, Stderr *os.File
	ExtraFiles            []*os.File // descriptors 3 and up
}

// Exit is how a process ended.
type Exit struct {
	Code   int            // as a shell says it: the exit status, or 128 + n after signal n
	Signal syscall.Signal // 0 if it exited by itself
}

// String says it in words, as in "exit status 3" and "SIGKILL".
func (e Exit) String() string {
	if e.Signal != 0 {
		return unix.SignalName(e.Signal)
	}
	return "exit status " + strconv.Itoa(e.Code)
}

var (
	// ErrNoCommand: there is no such command. Shells exit 127 then.
	ErrNoCommand = fmt.Errorf("%w: no such command", handlers.ErrInvalid)
	// ErrNotExecutable: the command is there, but cannot be executed. Shells exit 126 then.
	ErrNotExecutable = fmt.Errorf("%w: not executable", handlers.ErrInvalid)
)

// Child is the training command and everything below it. All methods are safe for concurrent
// use. Whoever starts a child ends with Stop or KillDescendants: until then two goroutines belong
// to it.
type Child struct {
	proc *os.Process
	done chan struct{}
	exit Exit

	stopReaper func() // once; waits for the reaper
}

// StartChild starts a command in its own process group, and makes this process a child subreaper:
// what descendants leave behind becomes our child, however it was forked, and is reaped. Start
// one child at a time.
//
// If this process is killed the child is killed with it. Its own children then are not; they can
// be found by their environment (ProcessesWithEnv).
//
// The child's group is not the foreground group of a terminal, so that Ctrl-C reaches it through
// us and only once. The price: reading from the terminal gives it an I/O error (it is not stopped).
//
// Errors: ErrNoCommand, ErrNotExecutable, ErrInvalid for another fault of spec, else ErrUnavailable.
func StartChild(spec Spec) (*Child, error) {
	if err := checkCommand(spec); err != nil {
		return nil, err
	}
	path, err := resolve(spec.Argv[0], spec.Dir)
	if err != nil {
		return nil, err
	}
	files := []*os.File{spec.Stdin, spec.Stdout, spec.Stderr}
	for i, file := range files {
		if file != nil {
			continue
		}
		if files[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			return nil, fmt.Errorf("%w: open %s for the command: %w", handlers.ErrUnavailable, os.DevNull, err)
		}
		defer func() { _ = files[i].Close() }()
	}
	if spec.Stdin != nil && term.IsTerminal(int(spec.Stdin.Fd())) {
		signal.Ignore(unix.SIGTTIN, unix.SIGTTOU) // inherited
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("%w: become a child subreaper: %w", handlers.ErrUnavailable, err)
	}
	attr := &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   spec.Env,
		Files: append(files, spec.ExtraFiles...),
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	}
	c := &Child{done: make(chan struct{})}
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	started := make(chan error)
	go c.live(path, spec.Argv, attr, started)
	if err := <-started; err != nil {
		signal.Stop(sigchld)
		return nil, startError(spec.Argv[0], err)
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		defer signal.Stop(sigchld)
		reapOrphans(c.proc.Pid, sigchld, quit)
	}()
	c.stopReaper = sync.OnceFunc(func() {
		close(quit)
		<-gone
	})
	return c, nil
}

// live forks the child and waits for it. It keeps one thread for that long: the death signal is
// sent when the thread that forked ends, not the process.
func (c *Child) live(path string, argv []string, attr *os.ProcAttr, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	proc, err := os.StartProcess(path, argv, attr)
	if err != nil {
		started <- err
		return
	}
	c.proc = proc
	started <- nil
	state, err := proc.Wait()
	c.exit = Exit{Code: 255} // somebody else waited for it, against the rules
	if err == nil {
		c.exit.Code = state.ExitCode()
		if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			c.exit = Exit{Code: 128 + int(status.Signal()), Signal: status.Signal()}
		}
	}
	close(c.done)
}

func checkCommand(spec Spec) error {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return fmt.Errorf("%w: no command to run: give it behind --", handlers.ErrInvalid)
	}
	if spec.Dir != "" {
		if info, err := os.Stat(spec.Dir); err != nil || !info.IsDir() {
			return fmt.Errorf("%w: the working directory %s is not a directory", handlers.ErrInvalid, spec.Dir)
		}
	}
	return nil
}

// LookPath reports, as StartChild would, whether a command can be started from the current
// directory: nil, ErrNoCommand or ErrNotExecutable.
func LookPath(name string) error {
	_, err := resolve(name, "")
	return err
}

// resolve finds a command as the shell does: in PATH unless the name has a slash.
func resolve(name, dir string) (string, error) {
	at := name
	if !strings.Contains(name, "/") {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("%w: %q is not in PATH; check its spelling or give its full path", ErrNoCommand, name)
		}
		return path, nil
	}
	if !filepath.IsAbs(name) {
		at = filepath.Join(dir, name) // the kernel reads it from there too
	}
	info, err := os.Stat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w: %s does not exist", ErrNoCommand, at)
	case err != nil:
		return "", fmt.Errorf("%w: %s cannot be looked at: %w", ErrNotExecutable, at, err)
	case info.IsDir():
		return "", fmt.Errorf("%w: %s is a directory", ErrNotExecutable, at)
	case unix.Access(at, unix.X_OK) != nil:
		return "", fmt.Errorf("%w: %s; chmod +x it, or run it with its interpreter", ErrNotExecutable, at)
	}
	return name, nil
}

func startError(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("%w: %s is no program for this machine; a script needs a first line such as #!/bin/sh", ErrNotExecutable, name)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: the interpreter that %s names in its first line does not exist", ErrNoCommand, name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %s may not be executed by this user", ErrNotExecutable, name)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: the arguments and environment of %s are too long for this system", handlers.ErrInvalid, name)
	}
	return fmt.Errorf("%w: start %s: %w", handlers.ErrUnavailable, name, err)
}

// PID is the child's process id, and its process group's.
func (c *Child) PID() int { return c.proc.Pid }

// Done is closed when the child itself has ended. Its descendants may still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit waits until the child has ended and says how.
func (c *Child) Exit() Exit {
	<-c.done
	return c.exit
}

// Signal sends sig to the child alone, as it is, whether it is caught or not. A child that has
// ended is no error.
func (c *Child) Signal(sig syscall.Signal) error {
	if err := c.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%w: send %s to process %d: %w", handlers.ErrUnavailable, unix.SignalName(sig), c.proc.Pid, err)
	}
	return nil
}

// Stop ends the child and all of its descendants. Each process gets SIGTERM once, directly,
// because launchers do not pass it on; stopped ones are continued so that they can act on it.
// When the grace is over, or nobody is left, KillDescendants ends the rest.
//
// It returns when no descendant of this process is left, or with ErrLeftovers when ctx ends; a
// ctx that ends during the grace cuts the grace short, and the rest is still killed once.
func (c *Child) Stop(ctx context.Context, grace time.Duration) error {
	self := os.Getpid()
	asked := descendants(self)
	for _, p := range asked {
		if p.alive() {
			p.signal(unix.SIGTERM)
		}
	}
	for _, p := range asked {
		if p.stopped() {
			p.signal(unix.SIGCONT)
		}
	}
	over, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over.Err() == nil && len(Descendants(self)) > 0 {
		select {
		case <-over.Done():
		case <-tick.C:
		}
	}
	return c.KillDescendants(ctx)
}

// KillDescendants ends every process below this one, the child included, with SIGKILL, and
// returns when none is left, or with ErrLeftovers when ctx ends first. Orphans, daemons, stopped
// processes and such as go on forking are found too.
func (c *Child) KillDescendants(ctx context.Context) error {
	if err := killDescendants(ctx, c.proc.Pid); err != nil {
		return err
	}
	<-c.done
	c.stopReaper()
	return nil
}
