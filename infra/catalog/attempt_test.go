package catalog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

// prepare brings job j, whose first attempt is held by "a" on n1, into a state.
func prepare(t *testing.T, w *world, state string) {
	t.Helper()
	if state == "none" {
		return
	}
	update := func(decide func(handlers.Job) (handlers.Job, error)) {
		t.Helper()
		if _, err := w.Update(t.Context(), "j", decide); err != nil {
			t.Fatal(err)
		}
	}
	if state == "pending" {
		if err := w.Create(t.Context(), handlers.NewJob("j", "uid", handlers.RestarterReprieve, &handlers.Launch{Kind: "local"}, t0)); err != nil {
			t.Fatal(err)
		}
		return
	}
	s := start("a")
	s.Restarter, s.Launch = handlers.RestarterReprieve, &handlers.Launch{Kind: "local"}
	a := begin(t, w.Catalog, s)
	end := func(code int) {
		if _, err := a.End(t.Context(), code, "exit"); err != nil {
			t.Fatal(err)
		}
	}
	switch state {
	case "running":
	case "out of preemptions":
		update(func(j handlers.Job) (handlers.Job, error) {
			j.Launch.Budget.Preemptions = ptr(0)
			return j, nil
		})
	case "interrupted":
		end(1)
	case "resuming":
		end(1)
		update(func(j handlers.Job) (handlers.Job, error) { return j.Reserve(t0.Add(time.Hour)) })
	case "succeeded":
		end(0)
	default:
		t.Fatalf("state %s", state)
	}
}

// Rules 1, 2, 3 and 5.
func TestTryStart(t *testing.T) {
	for name, c := range map[string]struct {
		state   string
		given   int
		id      string // "b" if empty
		age     time.Duration
		dead    bool // the claimant is known to be
		noBeat  bool // no heartbeat object
		attempt int
		err     error
	}{
		"a new job":                               {state: "none", attempt: 1},
		"a new job, given an attempt":             {state: "none", given: 4, attempt: 1},
		"given the first":                         {state: "pending", given: 1, attempt: 1},
		"given the reserved":                      {state: "resuming", given: 2, attempt: 2},
		"given an older, reserved":                {state: "resuming", given: 1, err: handlers.ErrReserved},
		"given a later, reserved":                 {state: "resuming", given: 3, err: handlers.ErrReserved},
		"given none, pending":                     {state: "pending", err: handlers.ErrReserved},
		"given none, resuming":                    {state: "resuming", err: handlers.ErrReserved},
		"given none, resuming, for long":          {state: "resuming", age: time.Hour, err: handlers.ErrReserved},
		"given what is taken, alive":              {state: "running", given: 1, age: lease, err: handlers.ErrHeld},
		"given what is taken, no heartbeat since": {state: "running", given: 1, age: lease + 1, attempt: 2},
		"alive":                        {state: "running", age: lease, err: handlers.ErrHeld},
		"lease over":                   {state: "running", age: lease + 1, attempt: 2},
		"claimant known dead":          {state: "running", dead: true, attempt: 2},
		"no heartbeat object":          {state: "running", noBeat: true, attempt: 2},
		"its own":                      {state: "running", id: "a", attempt: 1},
		"its own, given":               {state: "running", id: "a", given: 1, attempt: 1},
		"interrupted":                  {state: "interrupted", attempt: 2},
		"interrupted, given the ended": {state: "interrupted", given: 1, attempt: 2},
		"ended":                        {state: "succeeded", err: handlers.ErrEnded},
		"ended, given its attempt":     {state: "succeeded", given: 1, err: handlers.ErrEnded},
		"the death was one too many":   {state: "out of preemptions", dead: true, err: handlers.ErrEnded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			prepare(t, w, c.state)
			w.now = w.now.Add(c.age)
			if c.noBeat {
				if err := w.DropLive(t.Context(), handlers.Heartbeat{Job: "j", Attempt: 1}); err != nil {
					t.Fatal(err)
				}
			}
			id := c.id
			if id == "" {
				id = "b"
			}
			s := start(id)
			s.Attempt = c.given
			s.Dead = func(claim handlers.Claim) bool { return c.dead && claim.ID == "a" }
			before, _ := w.Get(t.Context(), "j")
			a, job, err := w.TryStart(t.Context(), s)
			if c.err != nil {
				wantClass(t, "error", err, c.err)
				if c.state != "out of preemptions" {
					want(t, "seq", get(t, w.Catalog).Seq, before.Seq)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want(t, "attempt", []int{a.Number(), job.Attempt}, []int{c.attempt, c.attempt})
			if !get(t, w.Catalog).Current(id) {
				t.Errorf("the record does not know %s: %+v", id, get(t, w.Catalog))
			}
			for h, err := range w.Live(t.Context()) {
				if err != nil || h.Attempt == c.attempt && h.Age > 0 && id != "a" {
					t.Errorf("live object %+v after the claim, error %v", h, err)
				}
			}
		})
	}
}

func TestTryStartTakesTheLaunchSpec(t *testing.T) {
	w := newWorld()
	begin(t, w.Catalog, start("a"))
	s := start("b")
	s.Dead = func(handlers.Claim) bool { return true }
	s.Restarter, s.Launch = handlers.RestarterReprieve, &handlers.Launch{Kind: "local"}
	begin(t, w.Catalog, s)
	j := get(t, w.Catalog)
	want(t, "restarter, kind", []string{string(j.Restarter), j.Launch.Kind}, []string{"reprieve", "local"})
	s = start("c")
	s.Dead = func(handlers.Claim) bool { return true }
	begin(t, w.Catalog, s)
	want(t, "without one it keeps what it has", get(t, w.Catalog).Launch.Kind, "local")
}

// Two processes that start the same new job: one gets it.
func TestTryStartRace(t *testing.T) {
	w := newWorld()
	raced := false
	w.spy.before = func(_ int, op string) error {
		if strings.HasPrefix(op, "create jobs/j/job.json") && !raced {
			raced = true
			begin(t, w.truth, start("fast"))
		}
		return nil
	}
	_, _, err := w.TryStart(t.Context(), start("slow"))
	wantClass(t, "the slow one", err, handlers.ErrHeld)
	want(t, "held by the fast one", get(t, w.truth).Claims[0].ID, "fast")
}

func TestBeat(t *testing.T) {
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	w.now = w.now.Add(time.Minute)
	if _, err := a.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	for h, err := range w.Live(t.Context()) {
		want(t, "heartbeat", []any{h, err}, []any{handlers.Heartbeat{Job: "j", Attempt: 1}, error(nil)})
	}
	// A notice that is never fulfilled.
	e, err := notice.Event(events.Notice{Provider: "aws", Instance: "i-1", Kind: events.KindTerminate, Deadline: ptr(w.now.Add(time.Minute))}, t0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		job, err := a.Notice(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "state", job.State, handlers.Preempting)
	}
	w.now = w.now.Add(2*time.Minute - 1)
	job, err := a.Beat(t.Context())
	want(t, "before the deadline and a minute", []any{job.State, err}, []any{handlers.Preempting, error(nil)})
	w.now = w.now.Add(1)
	job, err = a.Beat(t.Context())
	want(t, "after", []any{job.State, err}, []any{handlers.Running, error(nil)})

	w.spy.before = func(_ int, op string) error {
		if strings.HasPrefix(op, "put live/") {
			return errAway
		}
		return nil
	}
	_, err = a.Beat(t.Context())
	wantClass(t, "store away", err, handlers.ErrUnavailable)
}

// Rule 2: an attempt that was superseded can change nothing.
func TestSuperseded(t *testing.T) {
	ctx := t.Context()
	for name, take := range map[string]func(t *testing.T, w *world){
		"another attempt": func(t *testing.T, w *world) {
			s := start("b")
			s.Dead = func(handlers.Claim) bool { return true }
			begin(t, w.Catalog, s)
		},
		"declared dead": func(t *testing.T, w *world) {
			if _, err := w.Update(ctx, "j", func(j handlers.Job) (handlers.Job, error) { return j.LoseLease(t0) }); err != nil {
				t.Fatal(err)
			}
		},
		"cancelled": func(t *testing.T, w *world) {
			if _, err := w.Update(ctx, "j", cancel); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a := begin(t, w.Catalog, start("a"))
			commit(t, w.Catalog, a, 5)
			take(t, w)
			before := get(t, w.Catalog)
			n := len(w.spy.ops)
			_, err := a.Beat(ctx)
			wantClass(t, "Beat", err, handlers.ErrSuperseded)
			want(t, "writes of the heartbeat", w.spy.writes(n), []string{})
			_, err = a.Commit(ctx, handlers.Manifest{Step: 6}, upload(w.spy, "x"))
			wantClass(t, "Commit", err, handlers.ErrSuperseded)
			_, err = a.Seal(ctx, nil, nil)
			wantClass(t, "Seal", err, handlers.ErrSuperseded)
			_, err = a.End(ctx, 1, "")
			wantClass(t, "End with 1", err, handlers.ErrSuperseded)
			_, err = a.Cancel(ctx, "")
			wantClass(t, "Cancel", err, handlers.ErrSuperseded)
			if name != "declared dead" { // then both are still true
				_, err = a.Interrupt(ctx, "preempt", "")
				wantClass(t, "Interrupt", err, handlers.ErrSuperseded)
				_, err = a.End(ctx, 0, "")
				wantClass(t, "End with 0", err, handlers.ErrSuperseded)
			}
			want(t, "the record", get(t, w.Catalog), before)
		})
	}
}

func TestAnotherJobOfTheName(t *testing.T) {
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	if err := w.Store.Delete(t.Context(), "jobs/j/job.json"); err != nil {
		t.Fatal(err)
	}
	begin(t, w.Catalog, catalog.Start{Job: "j", UID: "later", Restarter: handlers.RestarterNone, Claim: handlers.Claim{ID: "a", Node: n1}, Lease: lease})
	_, err := a.End(t.Context(), 0, "")
	wantClass(t, "End", err, handlers.ErrSuperseded)
	_, err = a.Cancel(t.Context(), "")
	wantClass(t, "Cancel", err, handlers.ErrSuperseded)
}

func TestAttemptEnds(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(t *testing.T, a *catalog.Attempt) (handlers.Job, error)
		state handlers.State
		cause string
	}{
		"success": {func(t *testing.T, a *catalog.Attempt) (handlers.Job, error) { return a.End(t.Context(), 0, "") }, handlers.Succeeded, handlers.CauseExit},
		"crash":   {func(t *testing.T, a *catalog.Attempt) (handlers.Job, error) { return a.End(t.Context(), 3, "exit 3") }, handlers.Interrupted, handlers.CauseExit},
		"hand over": {func(t *testing.T, a *catalog.Attempt) (handlers.Job, error) {
			return a.Interrupt(t.Context(), "preempt", "")
		}, handlers.Interrupted, "preempt"},
		"at terminal": {func(t *testing.T, a *catalog.Attempt) (handlers.Job, error) { return a.Cancel(t.Context(), "Ctrl-C") }, handlers.Cancelled, handlers.CausePerson},
	} {
		t.Run(name, func(t *testing.T) {
			onStores(t, func(t *testing.T, store *catalog.Catalog) {
				a := begin(t, store, start("a"))
				job, err := c.do(t, a)
				if err != nil {
					t.Fatal(err)
				}
				want(t, "state, cause", []string{string(job.State), job.Cause}, []string{string(c.state), c.cause})
				if name != "at terminal" {
					again, err := c.do(t, a)
					want(t, "again", []any{again.Seq, err}, []any{job.Seq, error(nil)})
				}
			})
		})
	}
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	e, err := events.New(events.TypeNodeNotice, "/x", "x", "x", t0, "not a notice")
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Notice(t.Context(), e)
	wantClass(t, "a malformed notice", err, handlers.ErrInvalid)
}

// That an attempt is dead says nothing about the one that took its place meanwhile.
func TestTryStartLooksAgain(t *testing.T) {
	w := newWorld()
	begin(t, w.Catalog, start("dead"))
	w.now = w.now.Add(time.Hour)
	raced := false
	w.spy.after = func(_ int, op string) error {
		if strings.HasPrefix(op, "list live/") && !raced { // its heartbeat has been looked at
			raced = true
			begin(t, w.truth, start("fast"))
		}
		return nil
	}
	_, _, err := w.TryStart(t.Context(), start("slow"))
	wantClass(t, "the slow one", err, handlers.ErrHeld)
	j := get(t, w.truth)
	want(t, "holder, attempt", []any{j.Claims[0].ID, j.Attempt}, []any{"fast", 2})
}
