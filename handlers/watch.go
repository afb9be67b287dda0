package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// Watch is the periodic pass that re-derives from the store whatever an event should have caused
// and did not: attempts whose heartbeat stopped, reservations that nobody claimed, interrupted
// jobs that nobody resumed, outboxes that nobody published. It is cheap: one listing of live/
// and outbox/, one read for each object that is old. Consumes watch.due.
type Watch struct {
	Jobs     Jobs
	Traces   Traces
	Launcher Launcher
	Lease    time.Duration // a heartbeat older than this has stopped
	Launch   time.Duration // a reservation older than this is looked at
	Now      func() time.Time
}

// Handle makes one pass. What goes wrong with one job does not stop the others: it becomes an alert.
// An error is returned only when the listing itself fails.
func (h *Watch) Handle(ctx context.Context, e events.Event) ([]events.Event, error) {
	var out []events.Event
	pass := func(job string, evs []events.Event, err error) {
		out = append(out, evs...)
		if err != nil && !errors.Is(err, ErrIgnored) && !errors.Is(err, ErrConflict) {
			out = append(out, alert(Job{Name: job, UID: e.ID()}, "watch-failed", fmt.Sprintf("watch could not look after %s: %v; it tries again on the next pass", job, err), h.Now()))
		}
	}
	for beat, err := range h.Traces.Live(ctx) {
		if err != nil {
			return nil, fmt.Errorf("list live attempts: %w", err)
		}
		if beat.Age > h.Lease {
			evs, err := h.look(ctx, beat)
			pass(beat.Job, evs, err)
		}
	}
	told := map[string]bool{} // jobs whose outbox is in out: one job has a mark for each transition
	for mark, err := range h.Traces.Outboxes(ctx) {
		if err != nil {
			return nil, fmt.Errorf("list outboxes: %w", err)
		}
		if told[mark.Job] {
			continue
		}
		evs, err := h.publish(ctx, mark)
		told[mark.Job] = len(evs) > 0
		pass(mark.Job, evs, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// look does what the record behind an old live object asks for.
func (h *Watch) look(ctx context.Context, beat Heartbeat) ([]events.Event, error) {
	job, err := h.Jobs.Get(ctx, beat.Job)
	if errors.Is(err, ErrNotFound) {
		return nil, nil // its writer has not created the record yet, or never will
	}
	if err != nil {
		return nil, err
	}
	switch {
	case beat.Attempt < job.Attempt, beat.Attempt == job.Attempt && job.State.Terminal():
		return nil, h.Traces.DropLive(ctx, beat)
	case beat.Attempt > job.Attempt:
		return nil, nil // its writer has not made the attempt yet, or never will
	case job.State.Live():
		job, err = h.Jobs.Update(ctx, beat.Job, func(j Job) (Job, error) {
			if j.Attempt != beat.Attempt {
				return j, fmt.Errorf("%w: attempt %d is over", ErrIgnored, beat.Attempt)
			}
			return j.LoseLease(h.Now())
		})
		return outbox(job, err)
	case job.State == Interrupted:
		job, err = h.Jobs.Update(ctx, beat.Job, func(j Job) (Job, error) { return j.Reserve(h.Now()) })
	case job.State.Reserved() && beat.Age > h.Launch:
		job, err = h.unclaimed(ctx, beat, job)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return launch(ctx, h.Launcher, job, h.Now())
}

// unclaimed asks the platform what became of a reservation, and passes it over if nothing will.
func (h *Watch) unclaimed(ctx context.Context, beat Heartbeat, job Job) (Job, error) {
	status, err := h.Launcher.Status(ctx, job)
	if err != nil {
		return job, fmt.Errorf("ask for %s: %w", job.LaunchName(), err)
	}
	if status == LaunchQueued || status == LaunchRunning {
		if err := h.Traces.Touch(ctx, beat); err != nil {
			return job, err
		}
		return job, fmt.Errorf("%w: %s is %s", ErrIgnored, job.LaunchName(), status)
	}
	return h.Jobs.Update(ctx, job.Name, func(j Job) (Job, error) { return j.PassOver(beat.Attempt, h.Now()) })
}

// publish returns what the transition behind a mark wrote and nobody published, and removes the
// mark once there is nothing left.
func (h *Watch) publish(ctx context.Context, mark OutboxMark) ([]events.Event, error) {
	job, err := h.Jobs.Get(ctx, mark.Job)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if job.Seq >= mark.Seq && len(job.Outbox) == 0 {
		return nil, h.Traces.DropOutbox(ctx, mark)
	}
	return job.Outbox, nil
}

func outbox(job Job, err error) ([]events.Event, error) {
	if err != nil {
		return nil, err
	}
	return job.Outbox, nil
}
