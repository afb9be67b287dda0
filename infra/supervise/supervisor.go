package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Exit codes of `reprieve run` beside the child's own.
const (
	ExitPreempted  = 75 // the newest state is durable
	ExitNotDurable = 76 // preempted, and the newest state is not
	ExitHeld       = 73 // another attempt holds the job, or this one was superseded
)

// storeTries is how often something that the job cannot start without is tried: about 25 s.
const storeTries = 8

// Supervisor runs one attempt of a job around the training command: it claims, restores, supervises,
// makes checkpoints durable, reacts to notices and signals, and hands over. The zero value of a
// field is an error unless its comment says otherwise. Run may be called once.
type Supervisor struct {
	Job     string
	Argv    []string
	Dir     string // checkpoint directory, absolute
	State   string // directory for the socket
	Node    events.Node
	Claim   handlers.Claim
	Trigger Trigger
	Grace   time.Duration // what SIGTERM leaves until SIGKILL
	Lease   time.Duration // heartbeats are sent at a third of it

	// AllowUnprotected starts the command also when the store is away.
	AllowUnprotected bool
	// Keep: checkpoint on a stop notice, but do not end the children.
	Keep bool
	// StopSoft: end the children also on a notice that only asks for a checkpoint.
	StopSoft bool

	// Start makes one try to get hold of the job; see catalog.TryStart for its errors.
	Start func(ctx context.Context) (Hold, handlers.Job, error)
	// OpenStop returns the stop notice that the node is under; nil if there is none.
	OpenStop func(ctx context.Context) (*events.Notice, error)
	// Tell passes on a record whose outbox may hold events. It must not block.
	Tell     func(handlers.Job)
	Scanner  Scanner
	Transfer Transfer

	Notices <-chan events.Event // about this node, as they are heard
	Wake    <-chan struct{}     // something happened to the job: read the record now
	Signals <-chan os.Signal    // HUP, INT, QUIT, TERM, USR1, USR2, WINCH, CONT

	Log *slog.Logger
}

// Run supervises the command to its end and returns the exit code of `reprieve run`. An error
// means that the command was not started, or could not be kept; its class decides the exit code.
func (s *Supervisor) Run(ctx context.Context) (int, error) {
	lock, err := LockDir(s.Dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = lock.Close() }()
	if err := s.clear(); err != nil {
		return 0, err
	}
	if err := LookPath(s.Argv[0]); err != nil {
		return 0, err
	}
	hold, job, err := s.claim(ctx)
	switch {
	case err == nil:
	case errors.Is(err, errDoomed):
		s.Log.Warn("not starting: this machine is going away", "error", err)
		return ExitPreempted, nil
	case errors.Is(err, handlers.ErrEnded) && job.State == handlers.Succeeded:
		s.Log.Info("the job has succeeded already; nothing to do", "job", s.Job)
		return 0, nil
	case handlers.Class(err) == handlers.ErrUnavailable && s.AllowUnprotected && ctx.Err() == nil:
		s.Log.Warn("the store is away: the command runs UNPROTECTED until it answers", "error", err)
	default:
		return 0, err
	}

	r := &run{Supervisor: s}
	return r.supervise(ctx, hold, job)
}

// clear removes what a supervisor that was killed has left: captures, and processes of its job,
// which must not write beside the new attempt. The directory is locked, so they are orphans.
func (s *Supervisor) clear() error {
	if err := errors.Join(CleanCaptures(s.Dir), s.Transfer.Clean(s.Dir)); err != nil {
		return err
	}
	for {
		orphans := ProcessesWithEnv(marker, s.Dir)
		killed := 0
		for _, pid := range orphans {
			if p, ok := readProcess(pid); ok && pid != os.Getpid() && !ancestor(pid) && p.signal(syscall.SIGKILL) {
				killed++
			}
		}
		if killed == 0 {
			return nil
		}
		s.Log.Warn("killed processes that an earlier attempt left behind", "count", killed, "dir", s.Dir)
	}
}

// errDoomed: the node is under an open stop notice.
var errDoomed = fmt.Errorf("%w: the node is under a stop notice", handlers.ErrConflict)

// claim gets hold of the job. It waits two leases for a live attempt to prove dead, and one for a
// reservation to be claimed.
func (s *Supervisor) claim(ctx context.Context) (Hold, handlers.Job, error) {
	started := time.Now()
	tries, said := 0, false
	for {
		if open, err := s.OpenStop(ctx); err == nil && open != nil {
			return nil, handlers.Job{}, fmt.Errorf("%w: %s of %s", errDoomed, open.Kind, s.Node)
		}
		hold, job, err := s.Start(ctx)
		if err == nil {
			s.Tell(job)
			s.Log.Info("claimed", "job", s.Job, "attempt", job.Attempt)
			return hold, job, nil
		}
		wait := time.Duration(0)
		switch {
		case errors.Is(err, handlers.ErrHeld):
			wait = 2 * s.Lease
		case errors.Is(err, handlers.ErrReserved):
			wait = s.Lease
		case handlers.Class(err) == handlers.ErrUnavailable && !s.AllowUnprotected:
			if tries++; tries < 3 {
				wait = time.Hour // the number of tries is the limit
			}
		}
		pause := min(max(s.Lease/20, 50*time.Millisecond), time.Second)
		if time.Since(started)+pause > wait || ctx.Err() != nil {
			return nil, job, err
		}
		if !said {
			s.Log.Info("waiting", "for", wait.Round(time.Second), "why", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, job, fmt.Errorf("%w: %w", handlers.ErrUnavailable, context.Cause(ctx))
		case sig := <-s.Signals:
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				return nil, job, fmt.Errorf("%w: ended by %s while waiting: %w", handlers.ErrConflict, sig, err)
			}
		case <-time.After(pause):
		}
	}
}

// marker is the variable by which a later supervisor knows this one's processes. It is not one
// that people set.
const marker = "REPRIEVE_SUPERVISED"

// environment is what the child sees: what this process sees, and what it was told to say.
func (s *Supervisor) environment(job handlers.Job, from resume, socket string) []string {
	resumed, step := "0", ""
	if from.path != "" {
		resumed, step = "1", strconv.FormatInt(from.step, 10)
	}
	ours := []string{
		marker + "=" + s.Dir,
		"REPRIEVE_JOB=" + s.Job,
		"REPRIEVE_RUN_ID=" + job.UID,
		"REPRIEVE_ATTEMPT=" + strconv.Itoa(job.Attempt),
		"REPRIEVE_CHECKPOINT_DIR=" + s.Dir,
		"REPRIEVE_RESUMED=" + resumed,
		"REPRIEVE_RESUME_PATH=" + from.path,
		"REPRIEVE_RESUME_STEP=" + step,
		"REPRIEVE_SOCKET=" + socket,
	}
	env := slices.DeleteFunc(os.Environ(), func(have string) bool {
		name, _, _ := strings.Cut(have, "=")
		return slices.ContainsFunc(ours, func(own string) bool { return strings.HasPrefix(own, name+"=") })
	})
	return append(env, ours...)
}

// ancestor reports whether pid is one of this process's parents.
func ancestor(pid int) bool {
	for p := os.Getppid(); p > 1; {
		if p == pid {
			return true
		}
		parent, err := parentOf(p)
		if err != nil {
			return false
		}
		p = parent
	}
	return false
}

func (s *Supervisor) socketPath() string {
	path := filepath.Join(s.State, strconv.Itoa(os.Getpid())+".sock")
	if len(path) > maxSocketPath {
		path = filepath.Join(os.TempDir(), "reprieve-"+strconv.Itoa(os.Getpid())+".sock")
	}
	return path
}
