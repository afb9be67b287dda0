package supervise

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// handOver ends the children, makes durable what they leave, and records the interruption.
func (r *run) handOver(ctx context.Context) (int, error) {
	grace := stopGrace
	if !r.stop.deadline.IsZero() {
		// TERM may be how the command is asked: half of what is left is for it to save.
		grace = max(time.Until(r.stop.deadline)/2, margin)
		if r.stop.asked {
			grace = min(grace, stopGrace)
		}
	}
	if err := r.child.Stop(ctx, grace); err != nil {
		r.Log.Error("cannot end all of the command's processes", "error", err)
	}
	return r.close(ctx)
}

// ended is called when the child has ended by itself.
func (r *run) ended(ctx context.Context) (int, error) {
	if err := r.child.KillDescendants(ctx); err != nil {
		r.Log.Error("cannot end all of the command's processes", "error", err)
	}
	return r.close(ctx)
}

// close makes the last checkpoint durable and records how the attempt ended. No process of the job
// is left. Signals and notices still count: they limit the time.
func (r *run) close(ctx context.Context) (int, error) {
	exit, stopped := r.child.Exit(), r.stop != nil
	if r.hold == nil {
		r.Log.Warn("this run was never protected: its checkpoints are only in the directory", "dir", r.Dir)
		return exit.Code, nil
	}
	err := r.patiently(ctx, func(ctx context.Context) error { return r.saver.flush(ctx) })
	if errors.Is(err, handlers.ErrSuperseded) {
		return r.superseded(ctx, r.job)
	}
	if err != nil {
		r.Log.Error("the last checkpoint did not become durable", "error", err)
	}
	var code int
	var write func(ctx context.Context) (handlers.Job, error)
	switch {
	case r.cancelled:
		code = 128 + int(syscall.SIGINT)
		write = func(ctx context.Context) (handlers.Job, error) {
			return r.hold.Cancel(ctx, "cancelled at its terminal")
		}
	case stopped && !(r.done.Load() && exit.Code == 0):
		code = r.preemptedCode()
		write = func(ctx context.Context) (handlers.Job, error) {
			return r.hold.Interrupt(ctx, r.stop.cause, r.stop.detail)
		}
	default:
		code = exit.Code
		write = func(ctx context.Context) (handlers.Job, error) { return r.hold.End(ctx, exit.Code, exit.String()) }
	}
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	job := r.job
	err = r.patiently(ctx, func(ctx context.Context) error {
		return r.retry(ctx, "record how the attempt ended", func() (err error) {
			job, err = write(ctx)
			return err
		})
	})
	if errors.Is(err, handlers.ErrSuperseded) {
		return r.superseded(ctx, job)
	}
	if err != nil {
		r.Log.Error("how the attempt ended is not recorded; others find out when the lease runs out", "error", err)
		return code, nil
	}
	r.Tell(job)
	r.Log.Info("ended", "job", r.Job, "attempt", job.Attempt, "state", job.State, "cause", job.Cause, "exit", code)
	return code, nil
}

// preemptedCode says whether the newest state is durable.
func (r *run) preemptedCode() int {
	newest := r.saver.state()
	if newest == nil || !newest.durable {
		return ExitNotDurable
	}
	r.Log.Info("durable in time", "step", newest.step, "left", r.left())
	if r.stop.asked && newest.seen.Before(r.stop.since) {
		return ExitNotDurable
	}
	return ExitPreempted
}

// superseded ends everything at once: nothing that this attempt does counts any more.
func (r *run) superseded(ctx context.Context, job handlers.Job) (int, error) {
	if r.child != nil {
		if err := r.child.Stop(ctx, margin); err != nil {
			r.Log.Error("cannot end all of the command's processes", "error", err)
		}
	}
	r.Log.Error("superseded: stopping", "job", r.Job, "state", job.State, "attempt", job.Attempt, "detail", job.Detail)
	if job.State == handlers.Interrupted && job.Claimed(r.Claim.ID) && r.saver != nil {
		if newest := r.saver.state(); newest != nil && newest.durable {
			return ExitPreempted, nil // what it committed stands
		}
	}
	return ExitHeld, nil
}

// abandon gives the job back when the child could not be started.
func (r *run) abandon(ctx context.Context, err error) (int, error) {
	if errors.Is(err, handlers.ErrSuperseded) {
		return r.superseded(ctx, r.job)
	}
	if r.hold != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), margin)
		defer cancel()
		if job, endErr := r.hold.End(ctx, 1, fmt.Sprintf("the command was not started: %v", err)); endErr == nil {
			r.Tell(job)
		}
	}
	return 0, err
}

// patiently runs f, which may take as long as it needs until a window is over: one that is open
// already, or one that a SIGTERM, a notice or a second Ctrl-C opens meanwhile.
func (r *run) patiently(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	r.work(func() { result <- f(ctx) })
	for {
		select {
		case err := <-result:
			return err
		case sig := <-r.Signals:
			deadline := time.Now()
			if sig == syscall.SIGTERM {
				deadline = deadline.Add(r.Grace)
			} else if sig != syscall.SIGINT {
				continue
			}
			if r.stop == nil {
				r.stop = &stopping{cause: handlers.CauseSigterm, detail: "SIGTERM while closing", since: time.Now(), deadline: deadline}
			} else if r.stop.deadline.IsZero() || deadline.Before(r.stop.deadline) {
				r.stop.deadline = deadline
			}
		case rec := <-r.records:
			if errors.Is(rec.err, handlers.ErrSuperseded) {
				cancel()
				return errors.Join(rec.err, <-result)
			}
		case s := <-r.saver.durable:
			if s.err != nil {
				return s.err
			}
		case err := <-r.asked:
			r.Log.Debug("asked for a checkpoint while closing", "error", err)
		case <-r.lastMoment():
			cancel()
			return <-result
		}
	}
}
