package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Attempt is one process's hold on one attempt of a job: everything that `reprieve run` says to
// the store. Every method that changes the record works only while the hold lasts, and otherwise
// returns handlers.ErrSuperseded. Safe for concurrent use.
type Attempt struct {
	catalog *Catalog
	job     string
	uid     string
	number  int
	claim   handlers.Claim
}

// deadlineSlack is how long after its deadline a machine must still be alive for its notice to count as not fulfilled.
const deadlineSlack = time.Minute

// Start is what a process asks for when it starts.
type Start struct {
	Job       string
	Attempt   int    // from the launcher; 0: none given
	UID       string // for a new job's record; random
	Restarter handlers.Restarter
	Launch    *handlers.Launch // nil: keep what the record has
	Claim     handlers.Claim
	Lease     time.Duration             // a heartbeat older than this has stopped
	Dead      func(handlers.Claim) bool // whether a claimant is known to be dead; nil: never known
}

// Number is the attempt's number.
func (a *Attempt) Number() int { return a.number }

// TryStart makes one try to get hold of the job: the attempt that was given, if it is still to be
// had; else, when no other attempt is alive or reserved, the next one. Errors: handlers.ErrHeld and
// handlers.ErrReserved (wait, try again), handlers.ErrEnded, ErrUnavailable.
func (c *Catalog) TryStart(ctx context.Context, s Start) (*Attempt, handlers.Job, error) {
	if s.Attempt > 0 {
		job, err := c.Update(ctx, s.Job, func(j handlers.Job) (handlers.Job, error) {
			return j.Claim(s.Attempt, s.Claim, c.Now())
		})
		switch {
		case err == nil, errors.Is(err, handlers.ErrIgnored):
			return c.hold(s, job), job, nil
		case !errors.Is(err, handlers.ErrConflict) && !errors.Is(err, handlers.ErrNotFound):
			return nil, job, err
		}
	}
	job, err := c.Get(ctx, s.Job)
	if errors.Is(err, handlers.ErrNotFound) {
		return c.startNew(ctx, s)
	}
	if err != nil {
		return nil, job, err
	}
	over, err := c.leaseOver(ctx, job, s)
	if err != nil {
		return nil, job, err
	}
	seen := job.Attempt
	job, err = c.Update(ctx, s.Job, func(j handlers.Job) (handlers.Job, error) {
		next, err := j.StartInPlace(s.Claim, over && j.Attempt == seen, c.Now())
		if err == nil && s.Launch != nil {
			next.Launch, next.Restarter = s.Launch, s.Restarter
		}
		return next, err
	})
	if err != nil && !errors.Is(err, handlers.ErrIgnored) {
		return nil, job, err
	}
	if !job.Current(s.Claim.ID) {
		return nil, job, fmt.Errorf("%w: %s %s: %s", handlers.ErrEnded, job.Name, job.State, job.Detail)
	}
	return c.hold(s, job), job, nil
}

// startNew creates the record of a job that nobody has submitted, claimed from the start.
func (c *Catalog) startNew(ctx context.Context, s Start) (*Attempt, handlers.Job, error) {
	now := c.Now()
	job, err := handlers.NewJob(s.Job, s.UID, s.Restarter, s.Launch, now).Claim(1, s.Claim, now)
	if err != nil {
		return nil, job, err
	}
	err = c.Create(ctx, job)
	switch {
	case err == nil:
		return c.hold(s, job), job, nil
	case errors.Is(err, handlers.ErrUnavailable), errors.Is(err, handlers.ErrConflict):
		have, readErr := c.Get(ctx, s.Job)
		if readErr == nil && have.Current(s.Claim.ID) {
			return c.hold(s, have), have, nil
		}
		if readErr == nil {
			return nil, have, fmt.Errorf("%w: attempt %d of %s", handlers.ErrHeld, have.Attempt, s.Job)
		}
	}
	return nil, job, err
}

func (c *Catalog) hold(s Start, job handlers.Job) *Attempt {
	return &Attempt{catalog: c, job: s.Job, uid: job.UID, number: job.Attempt, claim: s.Claim}
}

// leaseOver reports whether the live attempt of job is over: its claimant is known dead, its
// heartbeat has run out, or there is none.
func (c *Catalog) leaseOver(ctx context.Context, job handlers.Job, s Start) (bool, error) {
	if !job.State.Live() {
		return false, nil
	}
	for _, claim := range job.Claims {
		if s.Dead != nil && s.Dead(claim) {
			return true, nil
		}
		age, found, err := c.age(ctx, job.Name, job.Attempt, claim.Rank)
		if err != nil {
			return false, err
		}
		if !found || age > s.Lease {
			return true, nil
		}
	}
	return false, nil
}

// Beat reads the record and, if the hold lasts, puts the heartbeat. A job that outlived its notice
// returns to running. The record comes back in any case.
func (a *Attempt) Beat(ctx context.Context) (handlers.Job, error) {
	job, err := a.catalog.Get(ctx, a.job)
	if err != nil {
		return job, err
	}
	if !job.Current(a.claim.ID) {
		return job, fmt.Errorf("%w: %s is %s at attempt %d", handlers.ErrSuperseded, a.job, job.State, job.Attempt)
	}
	if err := a.catalog.Touch(ctx, handlers.Heartbeat{Job: a.job, Attempt: a.number, Rank: a.claim.Rank}); err != nil {
		return job, err
	}
	if job.State != handlers.Preempting {
		return job, nil
	}
	return a.update(ctx, func(j handlers.Job) (handlers.Job, error) {
		return j.DeadlinePassed(a.claim.ID, deadlineSlack, a.catalog.Now())
	})
}

// Notice applies a notice that this process heard itself, and notes it for those that start on this machine later.
func (a *Attempt) Notice(ctx context.Context, e events.Event) (handlers.Job, error) {
	n, err := events.Decode[events.Notice](e)
	if err != nil {
		return handlers.Job{}, fmt.Errorf("%w: %w", handlers.ErrInvalid, err)
	}
	if err := a.catalog.Note(ctx, n); err != nil {
		return handlers.Job{}, err
	}
	return a.update(ctx, func(j handlers.Job) (handlers.Job, error) {
		j.Trace = events.TraceOf(e)
		return j.ApplyNotice(n, a.catalog.Now())
	})
}

// Interrupt hands the job over; see handlers.Job.Interrupt.
func (a *Attempt) Interrupt(ctx context.Context, cause, detail string) (handlers.Job, error) {
	return a.update(ctx, func(j handlers.Job) (handlers.Job, error) {
		return j.Interrupt(a.claim.ID, cause, detail, a.catalog.Now())
	})
}

// End records how the child ended; see handlers.Job.End.
func (a *Attempt) End(ctx context.Context, code int, detail string) (handlers.Job, error) {
	return a.update(ctx, func(j handlers.Job) (handlers.Job, error) {
		return j.End(a.claim.ID, code, detail, a.catalog.Now())
	})
}

// Cancel ends the job by the will of the person at this process's terminal.
func (a *Attempt) Cancel(ctx context.Context, detail string) (handlers.Job, error) {
	return a.update(ctx, func(j handlers.Job) (handlers.Job, error) {
		if !j.Current(a.claim.ID) {
			return j, fmt.Errorf("%w: %s is %s at attempt %d", handlers.ErrSuperseded, j.Name, j.State, j.Attempt)
		}
		return j.Cancel(detail, a.catalog.Now())
	})
}

// update is Update where "it is so already" is success.
func (a *Attempt) update(ctx context.Context, decide func(handlers.Job) (handlers.Job, error)) (handlers.Job, error) {
	job, err := a.catalog.Update(ctx, a.job, func(j handlers.Job) (handlers.Job, error) {
		if j.UID != a.uid {
			return j, fmt.Errorf("%w: %s is another job of that name", handlers.ErrSuperseded, j.Name)
		}
		return decide(j)
	})
	if errors.Is(err, handlers.ErrIgnored) {
		return job, nil
	}
	return job, err
}
