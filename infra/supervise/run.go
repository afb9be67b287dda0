package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	// margin is what is kept of a window for stopping the children and writing the record.
	margin = 2 * time.Second
	// stopGrace is what children get between TERM and KILL.
	stopGrace = 10 * time.Second
	// recordPatience is how long the end of an attempt is tried to be recorded when no deadline is
	// nearer: only the record is missing, and whoever waits for it is served by the lease.
	recordPatience = 2 * time.Minute
	// reclaim is how often an unprotected supervisor tries to get hold of the job.
	reclaim = 3 * time.Second
)

// run is the time between claiming and exiting. Its fields belong to the goroutine of supervise,
// which never waits for the store while the child lives.
type run struct {
	*Supervisor
	hold  Hold // nil: unprotected
	job   handlers.Job
	child *Child
	sock  *Socket
	saver *saver

	heard     []events.Notice // notices of this attempt, however they came
	stop      *stopping
	done      atomic.Bool // the trainer said that it is finished
	cancelled bool        // by the person at the terminal

	records   chan record    // what a worker learnt from the record
	asked     chan error     // outcome of a trigger
	protected chan protected // the store came back
	workers   sync.WaitGroup
}

// stopping is what is under way once the children have to end.
type stopping struct {
	cause    string // a notice kind, or one of handlers.Cause*
	detail   string
	since    time.Time
	deadline time.Time      // zero: none
	asked    bool           // the trainer was asked for a checkpoint
	notice   *events.Notice // nil: a signal
	seq      int            // of the record that has the notice; 0: not written yet
}

// record is the job record as a worker last saw it.
type record struct {
	job handlers.Job
	err error
	seq int // not 0: the notice under way is in the record as of this transition
}

type protected struct {
	hold Hold
	job  handlers.Job
}

func (r *run) supervise(ctx context.Context, hold Hold, job handlers.Job) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer r.workers.Wait()
	defer cancel()
	r.records, r.asked, r.protected = make(chan record, 4), make(chan error, 4), make(chan protected, 1)

	var from resume
	var late *events.Notice
	if hold != nil {
		r.attach(ctx, hold, job)
		late = r.late(ctx)
		var err error
		if from, err = r.restore(ctx, hold); err != nil {
			return r.abandon(ctx, err)
		}
	} else {
		r.work(func() { r.reclaim(ctx) })
	}
	sock, err := Listen(r.socketPath(), Callbacks{
		Saved: func(Saved) { r.saver.look() },
		Done:  func() { r.done.Store(true) },
	})
	if err != nil {
		return r.abandon(ctx, err)
	}
	defer func() { _ = sock.Close() }()
	r.sock = sock
	watcher, err := WatchDir(r.Dir)
	if err != nil {
		return r.abandon(ctx, err)
	}
	r.saver = newSaver(r.Dir, r.Scanner, watcher, r.Transfer, func() []string { return WritersUnder(Descendants(os.Getpid()), r.Dir) }, r.Log)
	there, err := r.saver.scan(true)
	if err != nil {
		return r.abandon(ctx, err)
	}
	r.saver.ignore(there)
	r.child, err = StartChild(Spec{
		Argv: r.Argv, Env: r.environment(job, from, r.sock.Path()),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		return r.abandon(ctx, err)
	}
	r.work(func() { r.saver.run(ctx) })
	if hold != nil {
		r.saver.protect(hold, from.ref)
	}
	if late != nil {
		if e, err := notice.Event(*late, time.Now()); err == nil {
			r.hear(ctx, *late, &e)
		}
	}
	return r.loop(ctx)
}

// loop is the life of the child.
func (r *run) loop(ctx context.Context) (int, error) {
	for {
		select {
		case <-ctx.Done():
			r.stop = &stopping{cause: handlers.CauseSigterm, detail: "the supervisor was told to end", since: time.Now(), deadline: time.Now().Add(r.Grace)}
			return r.handOver(context.WithoutCancel(ctx))
		case <-r.child.Done():
			return r.ended(ctx)
		case sig := <-r.Signals:
			if r.signal(ctx, sig) {
				return r.handOver(ctx)
			}
		case e := <-r.Notices:
			n, err := events.Decode[events.Notice](e)
			if err != nil {
				r.Log.Warn("a notice cannot be read", "error", err)
				continue
			}
			r.hear(ctx, n, &e)
		case <-r.Wake:
			r.work(func() { r.beat(ctx) })
		case rec := <-r.records:
			if errors.Is(rec.err, handlers.ErrSuperseded) {
				return r.superseded(ctx, rec.job)
			}
			r.learn(ctx, rec)
		case p := <-r.protected:
			r.attach(ctx, p.hold, p.job)
			r.saver.protect(p.hold, nil)
		case err := <-r.asked:
			if r.stop == nil {
				continue
			}
			if r.stop.asked = err == nil; err != nil && !r.Keep {
				r.Log.Info("the command cannot be asked for a checkpoint; it is stopped, and what it leaves is made durable", "why", err)
				return r.handOver(ctx)
			}
		case s := <-r.saver.durable:
			if s.err != nil {
				return r.superseded(ctx, r.job)
			}
			r.work(func() { r.beat(ctx) }) // passes on the event of the commit
			if r.stop != nil && r.stop.asked && !s.seen.Before(r.stop.since) {
				if !r.Keep || r.stop.notice == nil {
					return r.handOver(ctx)
				}
				r.stop = nil
			}
		case <-r.lastMoment():
			newest := r.saver.state()
			if r.stop.notice == nil || newest == nil || newest.durable {
				return r.handOver(ctx)
			}
			r.Log.Warn("not durable yet; trying on until the machine is gone", "step", newest.step)
			r.stop.deadline = time.Time{}
		}
	}
}

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

// attach takes up the hold: heartbeats, notices, commits.
func (r *run) attach(ctx context.Context, hold Hold, job handlers.Job) {
	r.hold, r.job, r.heard = hold, job, job.Seen
	r.work(func() {
		tick := time.NewTicker(r.Lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.beat(ctx)
			}
		}
	})
}

// beat sends one heartbeat and passes on what the record says.
func (r *run) beat(ctx context.Context) {
	if r.hold == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.Lease)
	defer cancel()
	job, err := r.hold.Beat(ctx)
	r.pass(ctx, record{job: job, err: err})
}

func (r *run) pass(ctx context.Context, rec record) {
	select {
	case r.records <- rec:
	case <-ctx.Done():
	}
}

// learn compares the record with what this process knows.
func (r *run) learn(ctx context.Context, rec record) {
	if rec.err != nil {
		r.Log.Warn("the store does not answer; the command goes on, and what it saves is made durable later", "error", rec.err)
		return
	}
	r.job = rec.job
	r.Tell(rec.job)
	if rec.seq > 0 && r.stop != nil {
		r.stop.seq = rec.seq
	}
	for _, n := range rec.job.Seen {
		r.hear(ctx, n, nil)
	}
	if r.stop != nil && r.stop.notice != nil && r.stop.seq > 0 && rec.job.Seq > r.stop.seq && rec.job.State == handlers.Running {
		r.Log.Info("the notice is void; going on", "why", rec.job.Detail)
		r.stop = nil
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
		if r.stop != nil && r.stop.notice != nil && events.SameNotice(*r.stop.notice, n) {
			r.Log.Info("the notice was withdrawn", "kind", n.Kind)
			r.stop = nil
			r.sock.Announce(Notice{Kind: string(n.Kind), Action: ActionNone})
			r.standing(ctx)
		}
	} else {
		r.react(ctx, n)
	}
	if e != nil && r.hold != nil {
		r.work(func() { r.record(ctx, *e) })
	}
}

// standing takes up the stop notices that still stand when one of several was withdrawn.
func (r *run) standing(ctx context.Context) {
	for _, n := range r.heard {
		withdrawn := slices.ContainsFunc(r.heard, func(other events.Notice) bool { return other.Cancelled && events.SameNotice(other, n) })
		if !withdrawn && !n.Cancelled && n.Kind.Effect() == events.EffectStop {
			r.react(ctx, n)
		}
	}
}

// react asks for a checkpoint before anything else: the record can wait.
func (r *run) react(ctx context.Context, n events.Notice) {
	stop := n.Kind.Effect() == events.EffectStop || r.StopSoft
	deadline := time.Time{}
	if n.Deadline != nil {
		deadline = *n.Deadline
	}
	r.ask(ctx, string(n.Kind), deadline, stop && !r.Keep)
	left := "unknown"
	if !deadline.IsZero() {
		left = time.Until(deadline).Round(100 * time.Millisecond).String()
	}
	r.Log.Warn("notice", "kind", n.Kind, "node", n.Node().String(), "left", left)
	if !stop {
		return
	}
	if r.stop == nil {
		r.stop = &stopping{cause: string(n.Kind), detail: fmt.Sprintf("%s of %s", n.Kind, n.Node()), since: time.Now(), deadline: deadline, notice: &n}
	} else if !deadline.IsZero() && (r.stop.deadline.IsZero() || deadline.Before(r.stop.deadline)) {
		r.stop.deadline = deadline
	}
}

// ask fires the trigger.
func (r *run) ask(ctx context.Context, kind string, deadline time.Time, stop bool) {
	action := ActionCheckpoint
	if stop {
		action = ActionCheckpointStop
	}
	notice := Notice{Kind: kind, Deadline: deadline, Action: action}
	r.work(func() {
		how, err := r.Trigger.Fire(ctx, Target{PID: r.child.PID(), Socket: r.sock, Notice: notice})
		if err == nil {
			r.Log.Info("asked for a checkpoint", "how", how)
		}
		select {
		case r.asked <- err:
		case <-ctx.Done():
		}
	})
}

// record writes a notice that was heard here into the job record, until it is there.
func (r *run) record(ctx context.Context, e events.Event) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		job, err := r.hold.Notice(ctx, e)
		if err == nil || errors.Is(err, handlers.ErrSuperseded) {
			r.pass(ctx, record{job: job, err: err, seq: job.Seq})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// signal reacts to a signal of this process. True: stop the children now.
func (r *run) signal(ctx context.Context, sig os.Signal) bool {
	switch sig {
	case syscall.SIGTERM:
		if r.stop != nil && r.stop.notice == nil {
			return true
		}
		deadline := time.Now().Add(r.Grace)
		r.Log.Warn("SIGTERM: checkpoint now, cause unknown", "grace", r.Grace)
		if r.stop == nil {
			r.stop = &stopping{cause: handlers.CauseSigterm, detail: "SIGTERM", since: time.Now()}
			r.ask(ctx, handlers.CauseSigterm, deadline, true)
		}
		if r.stop.deadline.IsZero() || deadline.Before(r.stop.deadline) {
			r.stop.deadline = deadline
		}
		r.stop.notice = nil // whoever sent it will not wait for a notice's deadline
	case syscall.SIGINT:
		r.Log.Warn("interrupted from the terminal: the job is cancelled")
		r.cancelled = true
		r.stop = &stopping{cause: handlers.CausePerson, detail: "Ctrl-C", since: time.Now(), deadline: time.Now().Add(r.Grace)}
		return true
	default:
		if s, ok := sig.(syscall.Signal); ok {
			_ = r.child.Signal(s)
		}
	}
	return false
}

// lastMoment fires when the window is nearly over.
func (r *run) lastMoment() <-chan time.Time {
	if r.stop == nil || r.stop.deadline.IsZero() {
		return nil
	}
	return time.After(time.Until(r.stop.deadline) - margin)
}

// left says how much of the window is left.
func (r *run) left() string {
	if r.stop == nil || r.stop.deadline.IsZero() {
		return "unknown"
	}
	return time.Until(r.stop.deadline).Round(100 * time.Millisecond).String()
}

// reclaim gets hold of the job once the store answers, if the job has nothing that this run did not start from.
func (r *run) reclaim(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reclaim):
		}
		hold, job, err := r.Start(ctx)
		if err != nil {
			if handlers.Class(err) != handlers.ErrUnavailable {
				r.Log.Error("still UNPROTECTED: the job cannot be claimed", "error", err)
			}
			continue
		}
		candidates, _, err := hold.Candidates(ctx)
		if err == nil && len(candidates) == 0 {
			_, err = hold.Seal(ctx, nil, nil)
		} else if err == nil {
			err = fmt.Errorf("%w: the job has checkpoints, and this run did not start from them", handlers.ErrPermanent)
		}
		if err != nil {
			r.Log.Error("still UNPROTECTED: stop the command and start it again, so that it resumes", "error", err)
			_, _ = hold.Interrupt(ctx, handlers.CauseSigterm, "an unprotected run could not join the job")
			return
		}
		r.Log.Info("the store answers: the job is protected from now on", "attempt", job.Attempt)
		r.protected <- protected{hold: hold, job: job}
		return
	}
}

func (r *run) work(f func()) { r.workers.Go(f) }
