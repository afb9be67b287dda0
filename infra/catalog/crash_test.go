package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

// story is a job of three checkpoints that goes through one interruption, with everybody who takes
// part: supervisors, handlers, and where the job has one, a launcher. All run on one store and one
// after the other, so the operations have numbers, and a test can let any of them be somebody's last.
type story struct {
	*world
	t         *testing.T
	launcher  bool
	away      bool // the store is, now and then: watch may say so
	processes int
	alive     string          // claim of the process at work
	launches  []handlers.Job  // accepted by the platform and not started
	started   map[string]bool // launch names
	durable   handlers.Ref    // newest one that a Commit reported
	bus       []events.Event  // published and not consumed
	published map[string]bool // ids
	bases     []*handlers.Ref // what each attempt was restored from
	held      map[int]string  // attempt: claim
}

// crash ends the process that meets it.
type crash struct{}

const lastStep = 300

func newStory(t *testing.T, launcher bool) *story {
	return &story{world: newWorld(), t: t, launcher: launcher, started: map[string]bool{}, published: map[string]bool{}, held: map[int]string{}}
}

// process runs f until its end or its crash.
func (s *story) process(f func()) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crash); !ok {
				panic(p)
			}
		}
	}()
	f()
}

// insist repeats what a store that is away for a moment answers.
func insist(f func() error) error {
	var err error
	for range 5 {
		if err = f(); handlers.Class(err) != handlers.ErrUnavailable {
			return err
		}
	}
	return err
}

// supervise is the part of `reprieve run` that talks to the store. The machine goes away after step 200.
func (s *story) supervise(ctx context.Context, given int) {
	s.processes++
	id := fmt.Sprint("p", s.processes)
	start := catalog.Start{Job: "j", UID: "uid", Attempt: given, Lease: lease, Restarter: handlers.RestarterNone,
		Claim: handlers.Claim{ID: id, Node: n1}, Dead: func(c handlers.Claim) bool { return c.ID != s.alive }}
	if s.launcher {
		start.Restarter, start.Launch = handlers.RestarterReprieve, &handlers.Launch{Kind: "local"}
	}
	s.alive = id
	var hold *catalog.Attempt
	var job handlers.Job
	err := insist(func() (err error) { hold, job, err = s.TryStart(ctx, start); return err })
	if err != nil {
		if !errors.Is(err, handlers.ErrReserved) && !errors.Is(err, handlers.ErrEnded) {
			s.t.Fatalf("start of %s: %v", id, err)
		}
		return
	}
	if holder := s.held[hold.Number()]; holder != "" && holder != id {
		s.t.Fatalf("attempt %d is held by %s and by %s", hold.Number(), holder, id)
	}
	s.held[hold.Number()] = id
	if !job.Current(id) {
		s.t.Fatalf("%s starts although the record does not know it: %+v", id, job)
	}
	var candidates, found []handlers.Checkpoint
	s.need(insist(func() (err error) { candidates, found, err = hold.Candidates(ctx); return err }))
	var base *handlers.Ref
	step := int64(0)
	if len(candidates) > 0 {
		s.need(insist(func() error { return verify(ctx, s.Catalog, candidates[0]) }))
		base, step = &candidates[0].Ref, candidates[0].Step
	}
	if step < s.durable.Step {
		s.t.Fatalf("attempt %d goes on from %v although %s was reported durable", hold.Number(), base, s.durable)
	}
	s.need(insist(func() error { _, err := hold.Seal(ctx, base, found); return err }))
	s.bases = append(s.bases, base)
	for step < lastStep {
		step += 100
		s.need(insist(func() error {
			cp, err := hold.Commit(ctx, handlers.Manifest{Step: step, Base: base}, upload(s.spy, fmt.Sprint("state at ", step)))
			if err == nil {
				s.durable = cp.Ref
			}
			return err
		}))
		s.need(insist(func() error { _, err := hold.Beat(ctx); return err }))
		if step == 200 {
			s.need(insist(func() error {
				_, err := hold.Interrupt(ctx, string(events.KindTerminate), "the machine goes away")
				return err
			}))
			return
		}
	}
	s.need(insist(func() error { _, err := hold.End(ctx, 0, ""); return err }))
}

func (s *story) need(err error) {
	if err != nil {
		s.t.Fatalf("after %s: %v", s.spy.ops[len(s.spy.ops)-1], err)
	}
}

// run is what the runner does with what a handler returned.
func (s *story) run(ctx context.Context, handle func(context.Context, events.Event) ([]events.Event, error), e events.Event) error {
	out, err := handle(ctx, e)
	if err != nil {
		return err
	}
	for _, e := range out {
		if !s.published[e.ID()] {
			s.published[e.ID()] = true
			s.bus = append(s.bus, e)
		}
	}
	return s.Published(ctx, out)
}

// control is one round of the control plane: what is on the bus, then a watch pass.
func (s *story) control(ctx context.Context) {
	now := func() time.Time { return s.now }
	platform := platform{s}
	for len(s.bus) > 0 {
		e := s.bus[0]
		s.bus = s.bus[1:]
		if e.Type() == events.TypeAlertRaised && !s.away {
			s.t.Fatalf("alert: %s", e.Data())
		}
		resume := &handlers.Resume{Jobs: s.Catalog, Launcher: platform, Now: now}
		if e.Type() == events.TypeJobInterrupted {
			if err := insist(func() error { return s.run(ctx, resume.Handle, e) }); err != nil && !errors.Is(err, handlers.ErrIgnored) {
				s.t.Fatalf("resume: %v", err)
			}
		}
	}
	watch := &handlers.Watch{Jobs: s.Catalog, Traces: s.Catalog, Launcher: platform, Lease: lease, Launch: 5 * time.Minute, Now: now}
	s.need(insist(func() error { return s.run(ctx, watch.Handle, events.Event{}) }))
}

// platform starts what it is told to, once per name.
type platform struct{ s *story }

func (p platform) Launch(_ context.Context, j handlers.Job) error {
	if name := j.LaunchName(); !p.s.started[name] {
		p.s.started[name] = true
		p.s.launches = append(p.s.launches, j)
	}
	return nil
}

func (p platform) Status(_ context.Context, j handlers.Job) (handlers.LaunchStatus, error) {
	if p.s.started[j.LaunchName()] {
		return handlers.LaunchFailed, nil
	}
	return handlers.LaunchGone, nil
}

// tell plays the story to its end. Each process that dies is followed by others, some time later.
func (s *story) tell() {
	ctx := s.t.Context()
	if s.launcher {
		s.process(func() { s.supervise(ctx, 0) }) // `reprieve run` with a launch spec starts the first attempt
	}
	for range 12 {
		if s.launcher {
			s.process(func() { s.control(ctx) })
			for len(s.launches) > 0 {
				j := s.launches[0]
				s.launches = s.launches[1:]
				s.process(func() { s.supervise(ctx, j.Attempt) })
			}
			if _, err := s.truth.Get(ctx, "j"); errors.Is(err, handlers.ErrNotFound) {
				s.process(func() { s.supervise(ctx, 0) }) // died before there was a job: the person types again
			}
		} else {
			s.process(func() { s.supervise(ctx, 0) })
			s.process(func() { s.control(ctx) })
		}
		s.check(ctx)
		s.now = s.now.Add(7 * time.Minute)
		if j, err := s.truth.Get(ctx, "j"); err == nil && j.State.Terminal() {
			break
		}
	}
	for range 4 { // the watch pass goes on, and one of them is nobody's last
		s.process(func() { s.control(ctx) })
		s.now = s.now.Add(7 * time.Minute)
	}
	s.end(ctx)
}

// check: nothing that counts is incomplete.
func (s *story) check(ctx context.Context) {
	j, err := s.truth.Get(ctx, "j")
	if errors.Is(err, handlers.ErrNotFound) {
		return
	}
	s.need(err)
	for _, cp := range j.Checkpoints {
		if err := verify(ctx, s.truth, cp); err != nil {
			s.t.Fatalf("checkpoint %s is committed and not whole: %v", cp, err)
		}
	}
}

// end: the job has ended as it should, and nothing is left over.
func (s *story) end(ctx context.Context) {
	j, err := s.truth.Get(ctx, "j")
	s.need(err)
	if j.State != handlers.Succeeded || j.Checkpoints[len(j.Checkpoints)-1].Step != lastStep {
		s.t.Fatalf("the job is %s at attempt %d with %v: %s", j.State, j.Attempt, refs(j.Checkpoints), j.Detail)
	}
	if len(j.Outbox) > 0 {
		s.t.Fatalf("%d events are not published", len(j.Outbox))
	}
	for o, err := range blob.All(ctx, s.truth.Store, "") {
		s.need(err)
		left := strings.HasPrefix(o.Key, "outbox/") || strings.HasPrefix(o.Key, "live/")
		// The attempt or the transition that a dead process was about to make may not have come.
		if left && !strings.HasPrefix(o.Key, fmt.Sprintf("live/j/%d-", j.Attempt+1)) && o.Key != fmt.Sprintf("outbox/j/%d", j.Seq+1) {
			s.t.Fatalf("%s is left over at attempt %d, transition %d", o.Key, j.Attempt, j.Seq)
		}
	}
}

func stories(t *testing.T, f func(t *testing.T, tell func(func(*story)) *story)) {
	for name, launcher := range map[string]bool{"in place": false, "launched": true} {
		t.Run(name, func(t *testing.T) {
			f(t, func(prepare func(*story)) *story {
				s := newStory(t, launcher)
				prepare(s)
				defer func() {
					if t.Failed() {
						t.Logf("operations:\n%s", strings.Join(s.spy.ops, "\n"))
					}
				}()
				s.tell()
				return s
			})
		})
	}
}

// TestCrashes kills whoever does operation k, for every k, and for pairs of them: the job ends as it
// should, what is committed is whole, what was reported durable is where the next attempt goes on.
func TestCrashes(t *testing.T) {
	stories(t, func(t *testing.T, tell func(func(*story)) *story) {
		total := len(tell(func(*story) {}).spy.ops)
		killing := func(at ...int) func(*story) {
			return func(s *story) {
				s.spy.before = func(n int, op string) error {
					if slices.Contains(at, n) {
						panic(crash{})
					}
					return nil
				}
			}
		}
		pairs := 0
		for first := range total {
			tell(killing(first))
			for second := first + 1; second < first+40; second += 11 + pairs%7 {
				tell(killing(first, second))
				pairs++
			}
		}
		t.Logf("%d operations, %d pairs", total, pairs)
	})
}

// TestAmbiguousWrites answers "unavailable" to operation k, with and without its effect, for every
// k: whoever asks again gets there, and the story is the one without the fault.
func TestAmbiguousWrites(t *testing.T) {
	away := fmt.Errorf("%w: connection reset", handlers.ErrUnavailable)
	stories(t, func(t *testing.T, tell func(func(*story)) *story) {
		calm := tell(func(*story) {})
		wantJob, err := calm.truth.Get(t.Context(), "j")
		if err != nil {
			t.Fatal(err)
		}
		for k := range len(calm.spy.ops) {
			once := func(n int, _ string) error {
				if n == k {
					return away
				}
				return nil
			}
			for _, prepare := range []func(*story){func(s *story) { s.spy.before, s.away = once, true }, func(s *story) { s.spy.after, s.away = once, true }} {
				s := tell(prepare)
				got, err := s.truth.Get(t.Context(), "j")
				if err != nil {
					t.Fatal(err)
				}
				if got.Attempt != wantJob.Attempt || !slices.Equal(refs(got.Checkpoints), refs(wantJob.Checkpoints)) ||
					got.Preemptions != wantJob.Preemptions || got.Seq != wantJob.Seq {
					t.Errorf("operation %d (%s): attempt %d, %d preemptions, %v, seq %d; want attempt %d, %d, %v, %d", k, calm.spy.ops[k],
						got.Attempt, got.Preemptions, refs(got.Checkpoints), got.Seq, wantJob.Attempt, wantJob.Preemptions, refs(wantJob.Checkpoints), wantJob.Seq)
				}
			}
		}
	})
}
