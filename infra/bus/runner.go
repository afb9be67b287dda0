package bus

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	inFlight      = 16 // messages of one handler that are worked on at a time
	conflictTries = 5  // runs of a handler on one delivery while it answers ErrConflict
	firstBackoff  = 250 * time.Millisecond
	maxBackoff    = time.Minute
	drainWait     = 5 * time.Second // for handlers at work when Run's context ends
)

// Outcomes, as Runner.Count is given them.
const (
	OutcomeHandled     = "handled"
	OutcomeIgnored     = "ignored"
	OutcomeDead        = "dead-lettered"
	OutcomeRetried     = "retried"
	OutcomeInterrupted = "interrupted" // the runner was stopped; another one gets the message
)

// Handler does what an event asks for and returns the events that follow from it; only Runner
// publishes. The class of its error decides what becomes of the event. Events that come with an
// error other than ErrIgnored are dropped: the next run returns them again.
type Handler = func(context.Context, events.Event) ([]events.Event, error)

// Runner consumes events. All fields are required.
type Runner struct {
	Bus Bus
	Log *slog.Logger
	// Settle is called with the events that a handler returned once they are published, before
	// the message is acked: it clears the outboxes they came from.
	Settle func(context.Context, []events.Event) error
	// Count is called once per delivery.
	Count func(handler, outcome string)
}

// Run feeds the events of types to h, up to 16 at a time and in no particular order, as the
// durable group name, until ctx ends; then it takes no more, gives the handlers at work 5 seconds,
// cancels their contexts, waits for them, and returns nil. A bus that is away is subscribed to
// again for ever; the error is ErrInvalid or ErrPermanent: it cannot work.
func (r *Runner) Run(ctx context.Context, name string, types []string, h Handler) error {
	sub := Subscription{Name: name, Types: types, FromStart: true}
	if name == "" {
		return fmt.Errorf("%w: a handler needs a name: its group would not be durable", handlers.ErrInvalid)
	}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	var running sync.WaitGroup
	slots := make(chan struct{}, inFlight)
	defer drain(&running, cancel)

	for failures := 1; ; failures++ {
		began, err := r.consume(ctx, sub, slots, func(m Message) {
			running.Go(func() {
				defer func() { <-slots }()
				r.process(work, sub, m, h)
			})
		})
		if ctx.Err() != nil {
			return nil
		}
		switch handlers.Class(err) {
		case handlers.ErrInvalid, handlers.ErrPermanent:
			return fmt.Errorf("consume as %s: %w", name, err)
		}
		if began {
			failures = 1
		}
		wait := backoff(failures)
		r.Log.Warn("lost the bus", "handler", name, "retry_in", wait, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// drain waits for the handlers at work, and cancels them when they take too long.
func drain(running *sync.WaitGroup, cancel context.CancelCauseFunc) {
	timer := time.AfterFunc(drainWait, func() {
		cancel(fmt.Errorf("the runner was stopped: %w", context.Canceled))
	})
	defer timer.Stop()
	running.Wait()
}

// consume hands message after message to start, each with a slot taken. It reports whether it got
// so far as to be subscribed.
func (r *Runner) consume(ctx context.Context, sub Subscription, slots chan struct{}, start func(Message)) (bool, error) {
	feed, err := r.Bus.Subscribe(ctx, sub)
	if err != nil {
		return false, err
	}
	defer feed.Close()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
		m, err := feed.Next(ctx)
		if err != nil {
			<-slots
			return true, err
		}
		start(m)
	}
}

// process runs h on one message and settles it: the result table.
func (r *Runner) process(ctx context.Context, sub Subscription, m Message, h Handler) {
	log := r.Log.With("handler", sub.Name, "event", m.Event.ID(), "type", m.Event.Type(), "delivery", m.Deliveries)
	release := keep(ctx, m, log)
	err := m.Err
	if err == nil {
		err = r.attempt(ctx, sub, m.Event, h)
	}
	if err != nil && ctx.Err() != nil {
		release()
		r.Count(sub.Name, OutcomeInterrupted)
		return
	}

	outcome := OutcomeHandled
	switch handlers.Class(err) {
	case nil:
	case handlers.ErrIgnored:
		outcome = OutcomeIgnored
		log.Debug("ignored", "reason", err)
	case handlers.ErrInvalid, handlers.ErrPermanent, handlers.ErrNotFound:
		outcome = OutcomeDead
		log.Error("dead-lettered", "error", err)
		if deadErr := r.Bus.DeadLetter(ctx, m.Raw, fmt.Sprintf("%s: %v", sub.Name, err)); deadErr != nil {
			outcome = OutcomeRetried
			log.Error("cannot dead-letter", "error", deadErr)
		}
	default: // ErrConflict, ErrUnavailable and what has no class
		outcome = OutcomeRetried
		log.Warn("will retry", "error", err)
	}

	release()
	if outcome == OutcomeRetried {
		err = m.Nak(ctx, backoff(m.Deliveries))
	} else {
		err = m.Ack(ctx)
	}
	if err != nil {
		log.Warn("cannot settle; it will be delivered again", "outcome", outcome, "error", err)
	}
	r.Count(sub.Name, outcome)
}

// attempt runs h, again at once while it answers ErrConflict, publishes what it returned and has
// that settled.
func (r *Runner) attempt(ctx context.Context, sub Subscription, e events.Event, h Handler) error {
	if !sub.Wants(e.Type()) {
		return fmt.Errorf("%w: event %s has type %q, which is not for this handler", handlers.ErrInvalid, e.ID(), e.Type())
	}
	if err := checkData(e); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := r.once(ctx, e, h)
		if handlers.Class(err) != handlers.ErrConflict || try == conflictTries || ctx.Err() != nil {
			return err
		}
	}
}

func (r *Runner) once(ctx context.Context, e events.Event, h Handler) error {
	out, err := call(ctx, e, h)
	if class := handlers.Class(err); class != nil && class != handlers.ErrIgnored || len(out) == 0 {
		return err
	}
	if pubErr := r.Bus.Publish(ctx, out...); pubErr != nil {
		return fmt.Errorf("publish what followed: %w", pubErr)
	}
	if setErr := r.Settle(ctx, out); setErr != nil {
		return fmt.Errorf("settle what followed: %w", setErr)
	}
	return err
}

// call runs h; a panic becomes an ErrPermanent, so that one poison message cannot stop the others.
func call(ctx context.Context, e events.Event, h Handler) (out []events.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("%w: panic: %v\n%s", handlers.ErrPermanent, p, debug.Stack())
		}
	}()
	return h(ctx, e)
}

// keep extends the ack deadline of m until the returned function is called.
func keep(ctx context.Context, m Message, log *slog.Logger) (release func()) {
	if m.AckWait <= 0 {
		return func() {}
	}
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(m.AckWait / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if err := m.Extend(ctx); err != nil {
					log.Warn("cannot extend the ack deadline", "error", err)
				}
			case <-stop:
				return
			}
		}
	})
	return func() {
		close(stop)
		done.Wait()
	}
}

// backoff is how long to wait after failure n (from 1): exponential with full jitter, at most a
// minute. Source: Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
func backoff(n int) time.Duration {
	limit := maxBackoff
	if n < 9 { // firstBackoff << 8 is past maxBackoff
		limit = min(maxBackoff, firstBackoff<<(n-1))
	}
	return rand.N(limit) + 1
}
