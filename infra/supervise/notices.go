package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// late returns a stop notice that came between the look at this machine and the claim: it found no
// attempt here, and nobody will repeat it.
func (r *run) late(ctx context.Context) *events.Notice {
	ctx, cancel := context.WithTimeout(ctx, r.Lease/3)
	defer cancel()
	open, err := r.OpenStop(ctx)
	if err != nil {
		return nil
	}
	return open
}

// learn compares the record with what this process knows.
func (r *run) learn(ctx context.Context, rec record) {
	if rec.err != nil {
		r.Log.Warn("the store does not answer; the command goes on, and what it saves is made durable later", "error", rec.err)
		return
	}
	r.job = rec.job
	r.Tell(rec.job)
	for _, n := range rec.job.Seen {
		r.hear(ctx, n, nil)
	}
	if r.stop != nil && r.stop.notice != nil && r.stop.seq > 0 && rec.job.Seq > r.stop.seq && rec.job.State == handlers.Running {
		r.Log.Info("the notice is void; going on", "why", rec.job.Detail)
		r.stop = nil
		r.sock.Announce(Notice{Kind: "void", Action: ActionNone})
	}
}

// hear takes note of a notice about this machine, once, however often and from wherever it comes.
// e is nil if it comes from the record.
func (r *run) hear(ctx context.Context, n events.Notice, e *events.Event) {
	for _, have := range r.heard {
		if have.Cancelled == n.Cancelled && events.SameNotice(have, n) {
			return
		}
	}
	r.heard = append(r.heard, n)
	if n.Kind.Effect() == events.EffectGone {
		r.Log.Warn("this machine is said to be gone, but it runs", "kind", n.Kind)
		return
	}
	if n.Cancelled {
		if r.stop != nil && r.stop.notice != nil && n.Kind.Effect() == events.EffectStop {
			r.Log.Info("a notice was withdrawn", "kind", n.Kind)
			r.stop = nil
			r.sock.Announce(Notice{Kind: string(n.Kind), Action: ActionNone})
			r.standing(ctx)
		}
	} else {
		r.react(ctx, n)
	}
	if e != nil && r.hold != nil {
		hold := r.hold
		r.work(func() { r.record(ctx, hold, n, *e) })
	}
}

// standing takes up the stop notices that still stand when one of several was withdrawn.
func (r *run) standing(ctx context.Context) {
	for _, n := range r.heard {
		withdrawn := slices.ContainsFunc(r.heard, func(other events.Notice) bool { return other.Cancelled && events.SameNotice(other, n) })
		if !withdrawn && !n.Cancelled && n.Kind.Effect() == events.EffectStop && (n.Deadline == nil || time.Now().Before(*n.Deadline)) {
			r.react(ctx, n)
		}
	}
}

// react asks for a checkpoint before anything else: the record can wait.
func (r *run) react(ctx context.Context, n events.Notice) {
	stop := n.Kind.Effect() == events.EffectStop || r.StopSoft
	deadline, left := time.Time{}, "unknown"
	if n.Deadline != nil {
		deadline = *n.Deadline
		left = time.Until(deadline).Round(100 * time.Millisecond).String()
	}
	if stop && r.stop == nil {
		r.stop = &stopping{cause: string(n.Kind), detail: fmt.Sprintf("%s of %s", n.Kind, n.Node()), since: time.Now(), deadline: deadline, notice: &n}
	} else if stop && !deadline.IsZero() && (r.stop.deadline.IsZero() || deadline.Before(r.stop.deadline)) {
		r.stop.deadline = deadline
	}
	r.ask(ctx, string(n.Kind), deadline)
	r.Log.Warn("notice", "kind", n.Kind, "node", n.Node().String(), "left", left)
}

// keeps reports whether the command goes on after the checkpoint that is under way.
func (r *run) keeps() bool { return r.Keep && r.stop != nil && r.stop.notice != nil }

// ask fires the trigger.
func (r *run) ask(ctx context.Context, kind string, deadline time.Time) {
	stop, action := r.stop, ActionCheckpoint
	if stop != nil {
		stop.asking++
		if !r.keeps() {
			action = ActionCheckpointStop
		}
	}
	notice := Notice{Kind: kind, Deadline: deadline, Action: action}
	target := Target{PID: r.child.PID(), Socket: r.sock, Notice: notice}
	r.work(func() {
		how, err := r.Trigger.Fire(ctx, target)
		if err == nil {
			r.Log.Info("asked for a checkpoint", "how", how)
		}
		select {
		case r.answers <- answer{stop, err}:
		case <-ctx.Done():
		}
	})
}

// record writes a notice that was heard here into the job record, until it is there.
func (r *run) record(ctx context.Context, hold Hold, n events.Notice, e events.Event) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		job, err := hold.Notice(ctx, e)
		if errors.Is(err, handlers.ErrSuperseded) {
			r.look()
			return
		}
		if err == nil {
			select {
			case r.recorded <- recorded{n, job}:
			case <-ctx.Done():
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// by returns when of a window so many reserves are left; zero if there is no window. A reserve is
// what ending takes: two from the end the children are stopped, one from the end they are killed, half
// a one is for the last upload, and the rest is the record's.
func (r *run) by(reserves float64) time.Time {
	if r.stop == nil || r.stop.deadline.IsZero() {
		return time.Time{}
	}
	reserve := min(margin, r.stop.deadline.Sub(r.stop.since)/5)
	return r.stop.deadline.Add(-time.Duration(reserves * float64(reserve)))
}

// lastMoment fires when the window is nearly over.
func (r *run) lastMoment() <-chan time.Time { return at(r.by(2)) }

// at fires at t, and never if there is no t.
func at(t time.Time) <-chan time.Time {
	if t.IsZero() {
		return nil
	}
	return time.After(time.Until(t))
}

// left says how much of the window is left.
func (r *run) left() string {
	if r.stop == nil || r.stop.deadline.IsZero() {
		return "unknown"
	}
	return time.Until(r.stop.deadline).Round(100 * time.Millisecond).String()
}
