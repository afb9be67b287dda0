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
	if !r.stop.asked {
		grace = askGrace // TERM may be how the command is asked
		if !r.stop.deadline.IsZero() {
			grace = min(grace, time.Until(r.stop.deadline)/2)
		}
	}
	if end := r.by(1); !end.IsZero() {
		grace = min(grace, time.Until(end))
	}
	r.end(ctx, max(grace, 0))
	return r.close(ctx)
}

// end ends the children, within grace and until nobody is left. A second signal, or the loss of the
// hold, cuts the grace short.
func (r *run) end(ctx context.Context, grace time.Duration) {
	end := time.Now().Add(grace)
	err := r.patiently(ctx, func() time.Time { return end }, func(ctx context.Context) error {
		return r.child.Stop(ctx, grace+killLimit)
	})
	if err != nil { // the grace is over, or was cut
		r.kill(ctx)
	}
}

// kill ends whatever is left of the command, at once.
func (r *run) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	if err := r.child.KillDescendants(ctx); err != nil {
		r.Log.Error("cannot end all of the command's processes", "error", err)
	}
}

// ended is called when the child has ended by itself.
func (r *run) ended(ctx context.Context) (int, error) {
	r.kill(ctx)
	return r.close(ctx)
}

// close makes the last checkpoint durable and records how the attempt ended. No process of the job
// is left. Signals still count: they limit the time.
func (r *run) close(ctx context.Context) (int, error) {
	exit, stopped := r.child.Exit(), r.stop != nil
	select {
	case p := <-r.protected:
		r.attach(ctx, p.hold, p.job)
		r.saver.protect(p.hold, resume{})
	default:
	}
	if r.hold == nil {
		r.Log.Warn("this run was never protected: its checkpoints are only in the directory", "dir", r.Dir)
		return exit.Code, nil
	}
	err := r.patiently(ctx, func() time.Time { return r.by(0.5) }, r.saver.flush)
	if errors.Is(err, handlers.ErrSuperseded) {
		return r.superseded(ctx, r.job)
	}
	if err != nil {
		r.Log.Error("the last checkpoint did not become durable", "error", err)
	}
	switch {
	case r.cancelled:
		return r.conclude(ctx, 128+int(syscall.SIGINT), func(ctx context.Context) (handlers.Job, error) {
			return r.hold.Cancel(ctx, "cancelled at its terminal")
		})
	case stopped && !(r.done.Load() && exit.Code == 0):
		code := r.preemptedCode()
		if err != nil {
			code = ExitNotDurable // nobody knows what the last look would have found
		}
		return r.conclude(ctx, code, func(ctx context.Context) (handlers.Job, error) {
			return r.hold.Interrupt(ctx, r.stop.cause, r.stop.detail)
		})
	}
	return r.conclude(ctx, exit.Code, func(ctx context.Context) (handlers.Job, error) {
		return r.hold.End(ctx, exit.Code, exit.String())
	})
}

// conclude writes how the attempt ended. The heartbeats end first: the record that they would read
// next is one that this attempt does not hold any more.
func (r *run) conclude(ctx context.Context, code int, write func(context.Context) (handlers.Job, error)) (int, error) {
	r.quiet()
	limit := time.Now().Add(recordPatience)
	if !r.by(0).IsZero() {
		limit = r.by(0)
		if soon := time.Now().Add(margin / 2); limit.Before(soon) {
			limit = soon
		}
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		job, err := write(ctx)
		switch class := handlers.Class(err); {
		case err == nil:
			r.Tell(job)
			r.Log.Info("ended", "job", r.Job, "attempt", job.Attempt, "state", job.State, "cause", job.Cause, "exit", code)
			return code, nil
		case errors.Is(err, handlers.ErrSuperseded):
			return r.superseded(ctx, job)
		case ctx.Err() != nil, class != handlers.ErrUnavailable && class != handlers.ErrConflict:
			r.Log.Error("how the attempt ended is not recorded; others find out when the lease runs out", "error", err)
			return code, nil
		}
		r.Log.Warn("cannot record how the attempt ended; trying again", "in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// preemptedCode says whether the newest state is durable.
func (r *run) preemptedCode() int {
	newest := r.saver.state()
	if newest == nil || !newest.durable {
		return ExitNotDurable
	}
	r.Log.Info("durable in time", "step", newest.step, "left", r.left())
	if r.stop.asked && !newest.answers(r.stop.since) {
		return ExitNotDurable
	}
	return ExitPreempted
}

// superseded ends everything at once: nothing that this attempt does counts any more.
func (r *run) superseded(ctx context.Context, job handlers.Job) (int, error) {
	r.quiet()
	if r.child != nil {
		r.kill(context.WithoutCancel(ctx))
	}
	r.Log.Error("superseded: stopping", "job", r.Job, "state", job.State, "attempt", job.Attempt, "detail", job.Detail)
	if job.State == handlers.Interrupted && job.Claimed(r.Claim.ID) && r.saver != nil {
		if newest := r.saver.state(); newest != nil && newest.durable {
			return ExitPreempted, nil // what it committed stands
		}
	}
	return ExitHeld, nil
}

// errStopped: the attempt was asked to stop before its command was started.
var errStopped = fmt.Errorf("%w: asked to stop", handlers.ErrConflict)

// abandon gives the job back when the child could not, or must not, be started. Nothing is lost: what
// is durable is as it was.
func (r *run) abandon(ctx context.Context, err error) (int, error) {
	if errors.Is(err, handlers.ErrSuperseded) {
		return r.superseded(ctx, r.job)
	}
	r.quiet()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), margin)
	defer cancel()
	if r.hold != nil {
		cause, detail := handlers.CauseStart, fmt.Sprintf("the command was not started: %v", err)
		if r.stop != nil {
			cause, detail = r.stop.cause, r.stop.detail
		}
		write := r.hold.Interrupt
		if r.cancelled {
			write = func(ctx context.Context, _, detail string) (handlers.Job, error) { return r.hold.Cancel(ctx, detail) }
		}
		if job, writeErr := write(ctx, cause, detail); writeErr == nil {
			r.Tell(job)
		}
	}
	switch {
	case r.cancelled:
		return 128 + int(syscall.SIGINT), nil
	case errors.Is(err, errStopped):
		return ExitPreempted, nil
	}
	return 0, err
}

// patiently runs f, which may take until the time that until gives (zero: as long as it needs). A
// SIGTERM or Ctrl-C opens a window or shortens the one that is open; the loss of the hold ends it.
func (r *run) patiently(ctx context.Context, until func() time.Time, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	r.work(func() { result <- f(ctx) })
	var fromSaver chan saved
	if r.saver != nil {
		fromSaver = r.saver.durable
	}
	for {
		select {
		case err := <-result:
			return err
		case sig := <-r.Signals:
			again := r.stop != nil && r.stop.notice == nil
			if sig != syscall.SIGTERM && sig != syscall.SIGINT {
				continue
			}
			r.cancelled = r.cancelled || sig == syscall.SIGINT
			deadline := time.Now().Add(r.Grace)
			if r.stop == nil {
				r.stop = &stopping{cause: handlers.CauseSigterm, detail: sig.String(), since: time.Now(), deadline: deadline}
			}
			if r.stop.deadline.IsZero() || deadline.Before(r.stop.deadline) {
				r.stop.deadline = deadline
			}
			r.stop.notice = nil
			if again {
				cancel()
				return errors.Join(<-result, errStopped)
			}
		case rec := <-r.records:
			if errors.Is(rec.err, handlers.ErrSuperseded) {
				r.job = rec.job
				cancel()
				return errors.Join(rec.err, <-result)
			}
		case s := <-fromSaver:
			if s.err != nil {
				cancel()
				return errors.Join(s.err, <-result)
			}
		case <-at(until()):
			cancel()
			if err := <-result; err != nil {
				return err
			}
			return nil
		}
	}
}
