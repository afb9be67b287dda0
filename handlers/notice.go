package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// Notice turns a notice about a machine into what it means for the jobs that run there.
// Consumes node.notice and node.notice.cancelled; produces checkpoint.requested, job.preempting,
// job.interrupted.
type Notice struct {
	Jobs  Jobs
	Nodes Nodes
	Now   func() time.Time
}

// Handle applies e to every job of its node. ErrIgnored if it changes nothing anywhere: an unknown
// machine, an attempt that does not run there any more, a copy, a notice that was cancelled before
// it came.
func (h *Notice) Handle(ctx context.Context, e events.Event) ([]events.Event, error) {
	n, err := events.Decode[events.Notice](e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if n.Cancelled != (e.Type() == events.TypeNodeNoticeCancelled) {
		return nil, fmt.Errorf("%w: notice %s: cancelled is %t in an event of type %s; make them agree", ErrInvalid, e.ID(), n.Cancelled, e.Type())
	}
	if n.Provider == "" || n.Instance == "" {
		return nil, fmt.Errorf("%w: notice %s: provider and instance are required", ErrInvalid, e.ID())
	}
	if n.Kind.Effect() == events.EffectNone {
		return nil, fmt.Errorf("%w: notice %s: kind %q is unknown; use one of %v", ErrInvalid, e.ID(), n.Kind, events.Kinds)
	}
	jobs, err := h.Nodes.Jobs(ctx, n.Node())
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: no job has run on %s", ErrIgnored, n.Node())
	}
	if err != nil {
		return nil, err
	}
	if err := h.Nodes.Note(ctx, n); err != nil {
		return nil, err
	}
	var out []events.Event
	for _, name := range jobs {
		job, err := h.Jobs.Update(ctx, name, func(j Job) (Job, error) {
			j.Trace = events.TraceOf(e)
			return j.ApplyNotice(n, h.Now())
		})
		switch {
		case err == nil:
			out = append(out, job.Outbox...)
		case errors.Is(err, ErrIgnored):
			// An earlier delivery may have been cut off between its write and its publication.
			out = append(out, outboxOf(job, e)...)
		case errors.Is(err, ErrNotFound):
		default:
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no attempt on %s is concerned", ErrIgnored, n.Node())
	}
	return out, nil
}

// outboxOf returns what is left in the outbox of a job that e has been applied to before.
func outboxOf(j Job, e events.Event) []events.Event {
	n, _ := events.Decode[events.Notice](e)
	if !seen(j.Seen, n) {
		return nil
	}
	return j.Outbox
}

// ApplyNotice applies a notice about a machine. It applies only to the attempt that runs there,
// and once: copies (SameNotice) and notices whose cancellation came first change nothing. Every
// notice is remembered in Seen for as long as the attempt stays on that machine. ErrIgnored if
// nothing changed.
func (j Job) ApplyNotice(n events.Notice, now time.Time) (Job, error) {
	switch {
	case j.State.Terminal():
		return j, fmt.Errorf("%w: %s has ended", ErrIgnored, j.Name)
	case !j.RunsOn(n.Node()):
		return j, fmt.Errorf("%w: attempt %d of %s does not run on %s", ErrIgnored, j.Attempt, j.Name, n.Node())
	case seen(j.Seen, n):
		return j, fmt.Errorf("%w: a copy of it was applied", ErrIgnored)
	case !n.Cancelled && seen(j.Seen, cancellation(n)):
		return j, fmt.Errorf("%w: it was cancelled before it came", ErrIgnored)
	}
	j = j.begin(now)
	j.Seen = append(j.Seen, n)
	if n.Cancelled {
		if j.State == Preempting && events.SameNotice(*j.Notice, n) {
			return j.standDown("the notice was withdrawn", now), nil
		}
		return j, nil
	}
	switch n.Kind.Effect() {
	case events.EffectCheckpoint:
		if j.State.Live() {
			return j.request(n), nil
		}
	case events.EffectStop:
		if j.State.Live() {
			return j.preempting(n), nil
		}
		return j.explained(n), nil
	case events.EffectGone:
		if j.State.Live() {
			return j.preempted(string(n.Kind), fmt.Sprintf("%s is gone", n.Node())), nil
		}
		return j.explained(n), nil
	}
	return j, nil
}

// preempting marks the job, or moves its deadline when another killer is earlier.
func (j Job) preempting(n events.Notice) Job {
	if j.State == Preempting && !earlier(n.Deadline, j.Notice.Deadline) {
		return j
	}
	first := j.State != Preempting
	j.Notice, j.Cause = &n, string(n.Kind)
	if first {
		j = j.moveTo(Preempting, string(n.Kind), "", events.TypeJobPreempting)
	}
	return j.request(n)
}

// standDown ends what the notice in force asks for: the earliest of the others that still stand
// takes its place, or the job returns to running.
func (j Job) standDown(why string, now time.Time) Job {
	var next *events.Notice
	for _, n := range j.Seen {
		stands := !n.Cancelled && n.Kind.Effect() == events.EffectStop && !events.SameNotice(n, *j.Notice) &&
			!seen(j.Seen, cancellation(n)) && (n.Deadline == nil || n.Deadline.After(now))
		if stands && (next == nil || earlier(n.Deadline, next.Deadline)) {
			next = &n
		}
	}
	if next == nil {
		return j.moveTo(Running, "", why, events.TypeJobResumed)
	}
	j.Notice, j.Cause = next, string(next.Kind)
	return j.request(*next)
}

func (j Job) request(n events.Notice) Job {
	return j.emit(events.TypeCheckpointRequested, events.Checkpoint{
		Job: j.Name, UID: j.UID, Attempt: j.Attempt, Seq: j.Seq, Node: j.node(), Kind: n.Kind, Deadline: n.Deadline,
	})
}

// explained tells why an interrupted job got its SIGTERM, if that was not known.
func (j Job) explained(n events.Notice) Job {
	if j.State != Interrupted || j.Cause != CauseSigterm {
		return j
	}
	return j.moveTo(Interrupted, string(n.Kind), fmt.Sprintf("the SIGTERM was a %s of %s", n.Kind, n.Node()), events.TypeJobInterrupted)
}

func seen(list []events.Notice, n events.Notice) bool {
	return slices.ContainsFunc(list, func(have events.Notice) bool {
		return have.Cancelled == n.Cancelled && events.SameNotice(have, n)
	})
}

func cancellation(n events.Notice) events.Notice {
	n.Cancelled = true
	return n
}

// earlier reports whether deadline a comes before b; no deadline is the latest.
func earlier(a, b *time.Time) bool { return a != nil && (b == nil || a.Before(*b)) }
