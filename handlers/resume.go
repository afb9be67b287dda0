package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// Resume starts an interrupted job again. Consumes job.interrupted; produces job.resuming,
// job.failed, alert.raised.
type Resume struct {
	Jobs     Jobs
	Launcher Launcher
	Now      func() time.Time
}

// Handle reserves the next attempt of the job and launches it. A delivery whose predecessor was
// cut off between the two launches again, under the same name. ErrIgnored if the job is not
// interrupted, or is somebody else's to restart, or not yet.
func (h *Resume) Handle(ctx context.Context, e events.Event) ([]events.Event, error) {
	data, err := events.Decode[events.Job](e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	job, err := h.Jobs.Update(ctx, data.Job, func(j Job) (Job, error) {
		if j.UID != data.UID {
			return j, fmt.Errorf("%w: %s is another job of that name", ErrIgnored, j.Name)
		}
		return j.Reserve(h.Now())
	})
	again := errors.Is(err, ErrIgnored) && job.UID == data.UID && job.State == Resuming && len(job.Claims) == 0 && job.Attempt == data.Attempt+1
	if err != nil && !again {
		return nil, err
	}
	return launch(ctx, h.Launcher, job, h.Now())
}

// launch starts the reserved attempt of job and returns the events to publish. What a retry cannot
// mend becomes an alert: the watch pass goes on passing the reservation over, within its bounds.
func launch(ctx context.Context, l Launcher, job Job, now time.Time) ([]events.Event, error) {
	if !job.State.Reserved() {
		return job.Outbox, nil
	}
	err := l.Launch(ctx, job)
	switch Class(err) {
	case nil:
		return job.Outbox, nil
	case ErrInvalid, ErrPermanent, ErrConflict, ErrNotFound:
		return append(job.Outbox, alert(job, "launch-refused", fmt.Sprintf("%s could not be launched: %v", job.LaunchName(), err), now)), nil
	}
	return nil, fmt.Errorf("launch %s: %w", job.LaunchName(), err)
}

// alert tells a person about job, once per transition.
func alert(job Job, code, detail string, now time.Time) events.Event {
	e, err := events.New(events.TypeAlertRaised, events.Source, job.Name, events.JobEventID(job.UID, job.Name, job.Seq, code), now,
		events.Alert{Job: job.Name, Code: code, Detail: detail})
	if err != nil {
		panic(err) // data is our own struct
	}
	return events.WithTrace(e, job.Trace)
}
