package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	// stopGrace is what children get between TERM and KILL once they have saved, askGrace if TERM is
	// what asks them to.
	stopGrace, askGrace = 10 * time.Second, 2 * time.Minute
	// killLimit is how long SIGKILL may take: a process may sleep where signals do not reach it.
	killLimit = 10 * time.Second
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

	records   chan record    // the newest that a worker learnt from the record
	recorded  chan recorded  // a notice is in the record
	answers   chan answer    // outcomes of triggers
	kick      chan struct{}  // read the record now
	protected chan protected // the store came back
	quiet     func()         // ends the heartbeats
	workers   sync.WaitGroup
}

// stopping is what is under way once the children have to end.
type stopping struct {
	cause    string // a notice kind, or one of handlers.Cause*
	detail   string
	since    time.Time
	deadline time.Time      // zero: none
	asking   int            // triggers that have not answered yet
	asked    bool           // the trainer was asked for a checkpoint
	notice   *events.Notice // nil: a signal
	seq      int            // of the record that has the notice; 0: not written yet
}

// record is the job record as a worker last saw it.
type record struct {
	job handlers.Job
	err error
}

// recorded says that a notice is in the record, as of a transition.
type recorded struct {
	notice events.Notice
	job    handlers.Job
}

// answer is what became of a trigger that was fired for stop (nil: for no stop).
type answer struct {
	stop *stopping
	err  error
}

type protected struct {
	hold Hold
	job  handlers.Job
}

func (r *run) supervise(ctx context.Context, hold Hold, job handlers.Job) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer r.workers.Wait()
	defer cancel()
	r.records, r.recorded, r.answers = make(chan record, 1), make(chan recorded, 16), make(chan answer, 16)
	r.kick, r.protected, r.quiet = make(chan struct{}, 1), make(chan protected, 1), func() {}

	var from resume
	var late *events.Notice
	if hold != nil {
		r.attach(ctx, hold, job)
		late = r.late(ctx)
		var err error
		if from, err = r.restoring(ctx, hold); err != nil {
			return r.abandon(ctx, err)
		}
	} else {
		r.work(func() { r.reclaim(ctx) })
	}
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
	sock, err := Listen(r.socketPath(), Callbacks{
		Saved: func(Saved) { r.saver.look() },
		Done:  func() { r.done.Store(true) },
	})
	if err != nil {
		return r.abandon(ctx, err)
	}
	defer func() { _ = sock.Close() }()
	r.sock = sock
	r.child, err = StartChild(Spec{
		Argv: r.Argv, Env: r.environment(job, from, r.sock.Path()),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		return r.abandon(ctx, err)
	}
	r.work(func() { r.saver.run(ctx) })
	if hold != nil {
		r.saver.protect(hold, from)
	}
	if late != nil {
		if e, err := notice.Event(*late, time.Now()); err == nil {
			r.hear(ctx, *late, &e)
		}
	}
	return r.loop(ctx)
}

// restoring is restore, for as long as nobody asks to stop.
func (r *run) restoring(ctx context.Context, hold Hold) (from resume, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		from resume
		err  error
	}
	done := make(chan outcome, 1)
	r.work(func() {
		from, err := r.restore(ctx, hold)
		done <- outcome{from, err}
	})
	for {
		select {
		case o := <-done:
			return o.from, o.err
		case sig := <-r.Signals:
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				r.cancelled = sig == syscall.SIGINT
				r.stop = &stopping{cause: handlers.CauseSigterm, detail: sig.String() + " while restoring"}
			}
		case e := <-r.Notices:
			n, err := events.Decode[events.Notice](e)
			if err == nil && !n.Cancelled && n.Kind.Effect() == events.EffectStop {
				r.stop = &stopping{cause: string(n.Kind), detail: fmt.Sprintf("%s of %s", n.Kind, n.Node()), notice: &n}
			}
		case rec := <-r.records:
			if errors.Is(rec.err, handlers.ErrSuperseded) {
				r.job = rec.job
				cancel()
				<-done
				return from, rec.err
			}
		}
		if r.stop != nil {
			r.Log.Warn("asked to stop while restoring; the command is not started", "why", r.stop.detail)
			cancel()
			<-done
			return from, errStopped
		}
	}
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
			r.look()
		case rec := <-r.records:
			if errors.Is(rec.err, handlers.ErrSuperseded) {
				return r.superseded(ctx, rec.job)
			}
			r.learn(ctx, rec)
		case rec := <-r.recorded:
			r.Tell(rec.job)
			if r.stop != nil && r.stop.notice != nil && events.SameNotice(*r.stop.notice, rec.notice) {
				r.stop.seq = rec.job.Seq
			}
		case p := <-r.protected:
			r.attach(ctx, p.hold, p.job)
			r.saver.protect(p.hold, resume{})
		case a := <-r.answers:
			if r.stop == nil || a.stop != r.stop {
				continue
			}
			r.stop.asking--
			r.stop.asked = r.stop.asked || a.err == nil
			if !r.stop.asked && r.stop.asking == 0 && !r.keeps() {
				r.Log.Info("the command cannot be asked for a checkpoint; it is stopped, and what it leaves is made durable", "why", a.err)
				return r.handOver(ctx)
			}
		case s := <-r.saver.durable:
			if s.err != nil {
				return r.superseded(ctx, r.job)
			}
			r.look() // passes on the event of the commit
			if r.stop != nil && r.stop.asked && s.answers(r.stop.since) {
				if !r.keeps() {
					return r.handOver(ctx)
				}
				r.stop = nil
			}
		case <-r.lastMoment():
			newest := r.saver.state()
			if r.keeps() {
				r.stop = nil
				continue
			}
			if r.stop.notice == nil || newest == nil || newest.durable {
				return r.handOver(ctx)
			}
			r.Log.Warn("not durable yet; trying on until the machine is gone", "step", newest.step)
			r.stop.deadline = time.Time{}
		}
	}
}

// attach takes up the hold: heartbeats, notices, commits.
func (r *run) attach(ctx context.Context, hold Hold, job handlers.Job) {
	r.hold, r.job, r.heard = hold, job, job.Seen
	ctx, r.quiet = context.WithCancel(ctx)
	r.work(func() {
		tick := time.NewTicker(r.Lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-r.kick:
			}
			r.beat(ctx, hold)
		}
	})
}

// look asks for a heartbeat now, which also reads the record.
func (r *run) look() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// beat sends one heartbeat and leaves what the record says for whoever looks; only the newest counts,
// and nobody is waited for.
func (r *run) beat(ctx context.Context, hold Hold) {
	limited, cancel := context.WithTimeout(ctx, r.Lease)
	defer cancel()
	job, err := hold.Beat(limited)
	if ctx.Err() != nil {
		return
	}
	select {
	case <-r.records:
	default:
	}
	r.records <- record{job: job, err: err}
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
			r.stop = &stopping{cause: handlers.CauseSigterm, detail: "SIGTERM", since: time.Now(), deadline: deadline}
			r.ask(ctx, handlers.CauseSigterm, deadline)
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
