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

var errAway = fmt.Errorf("%w: connection reset", handlers.ErrUnavailable)

func cancel(j handlers.Job) (handlers.Job, error) { return j.Cancel("", t0) }

func TestCreateAndGet(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		_, err := c.Get(t.Context(), "j")
		wantClass(t, "Get of no job", err, handlers.ErrNotFound)
		_, err = c.Update(t.Context(), "j", cancel)
		wantClass(t, "Update of no job", err, handlers.ErrNotFound)
		job := handlers.NewJob("j", "uid", handlers.RestarterReprieve, &handlers.Launch{
			Kind: "local", Template: map[string]any{"command": []any{"true"}}, Budget: handlers.Budget{Failures: ptr(0)},
			Backoff: handlers.Backoff{Initial: handlers.Duration(time.Second)},
		}, t0)
		if err := c.Create(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		want(t, "the record", get(t, c), job)
		wantClass(t, "Create again", c.Create(t.Context(), job), handlers.ErrConflict)
	})
}

// Rule 23: a conflict means read again and decide again.
func TestUpdateDecidesAgain(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		begin(t, c, start("a"))
		tries := 0
		j, err := c.Update(t.Context(), "j", func(j handlers.Job) (handlers.Job, error) {
			if tries++; tries <= 3 { // somebody else is faster
				if _, err := c.Update(t.Context(), "j", func(j handlers.Job) (handlers.Job, error) {
					return j.Commit("a", handlers.Checkpoint{Ref: handlers.Ref{Attempt: 1, Step: int64(tries)}}, t0)
				}); err != nil {
					t.Fatal(err)
				}
			}
			return j.Cancel("", t0)
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, "tries", tries, 4)
		want(t, "state, checkpoints", []any{j.State, refs(j.Checkpoints)}, []any{handlers.Cancelled, []string{"1-1", "1-2", "1-3"}})
		want(t, "the record", get(t, c).Seq, j.Seq)
	})
}

func TestUpdateGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		class  error
		effect bool
		want   error
	}{
		"always moved":            {handlers.ErrConflict, false, handlers.ErrConflict},
		"always away":             {handlers.ErrUnavailable, false, handlers.ErrUnavailable},
		"refused":                 {handlers.ErrPermanent, false, handlers.ErrPermanent},
		"away, but it had effect": {handlers.ErrUnavailable, true, handlers.ErrIgnored},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			begin(t, w.Catalog, start("a"))
			fail := func(_ int, op string) error {
				if strings.HasPrefix(op, "swap ") {
					return fmt.Errorf("%w: test", c.class)
				}
				return nil
			}
			if c.effect {
				w.spy.after = fail
			} else {
				w.spy.before = fail
			}
			n := len(w.spy.ops)
			_, err := w.Update(t.Context(), "j", cancel)
			wantClass(t, "error", err, c.want)
			if got := len(w.spy.ops) - n; got > 12*3 {
				t.Errorf("%d operations before it gave up", got)
			}
			want(t, "cancelled", get(t, w.truth).State == handlers.Cancelled, c.effect)
		})
	}
}

func TestUpdateEndsWithItsContext(t *testing.T) {
	w := newWorld()
	begin(t, w.Catalog, start("a"))
	ctx, stop := context.WithCancel(t.Context())
	w.spy.before = func(_ int, op string) error {
		if strings.HasPrefix(op, "swap ") {
			stop()
			return errAway
		}
		return nil
	}
	n := len(w.spy.ops)
	_, err := w.Update(ctx, "j", cancel)
	wantClass(t, "error", err, handlers.ErrUnavailable)
	want(t, "operations", w.spy.ops[n:], []string{"get jobs/j/job.json", "put outbox/j/3", "swap jobs/j/job.json"})
}

// Rules 3 and 24: the traces come before the write that they are traces of.
func TestOrderOfWrites(t *testing.T) {
	w := newWorld()
	var a *catalog.Attempt
	for _, c := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"a new job", func() (err error) { a, _, err = w.TryStart(t.Context(), start("a")); return err },
			[]string{"put live/j/1-0", "put outbox/j/2", "create jobs/j/job.json"}},
		{"a commit", func() error {
			_, err := a.Commit(t.Context(), handlers.Manifest{Step: 5}, upload(w.spy, "x"))
			return err
		}, []string{"put expiry/2026030312/j/1-5.json", "create jobs/j/checkpoints/1-5/state.json", "put jobs/j/checkpoints/1-5/data/0/model.pt",
			"create jobs/j/checkpoints/1-5/node-0.json", "create jobs/j/checkpoints/1-5/manifest.json", "put outbox/j/3", "swap jobs/j/job.json"}},
		{"a heartbeat", func() error { _, err := a.Beat(t.Context()); return err }, []string{"put live/j/1-0"}},
		{"an interruption", func() error { _, err := a.Interrupt(t.Context(), "preempt", ""); return err },
			[]string{"put outbox/j/4", "swap jobs/j/job.json"}},
		{"a start in place", func() (err error) { a, _, err = w.TryStart(t.Context(), start("b")); return err },
			[]string{"put live/j/2-0", "put outbox/j/5", "swap jobs/j/job.json"}},
		{"a cancellation", func() error { _, err := w.Update(t.Context(), "j", cancel); return err },
			[]string{"put outbox/j/6", "swap jobs/j/job.json"}},
		{"a retry", func() error {
			_, err := w.Update(t.Context(), "j", func(j handlers.Job) (handlers.Job, error) {
				j.Restarter = handlers.RestarterReprieve
				return j.Retry(t0)
			})
			return err
		}, []string{"put live/j/3-0", "put outbox/j/7", "swap jobs/j/job.json"}},
		{"a claim: the reservation may have aged", func() (err error) {
			s := start("c")
			s.Attempt = 3
			a, _, err = w.TryStart(t.Context(), s)
			return err
		}, []string{"put live/j/3-0", "put outbox/j/8", "swap jobs/j/job.json"}},
		{"a seal", func() error { _, err := a.Seal(t.Context(), &handlers.Ref{Attempt: 1, Step: 5}, nil); return err },
			[]string{"put outbox/j/9", "swap jobs/j/job.json"}},
	} {
		n := len(w.spy.ops)
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		want(t, c.name, w.spy.writes(n), c.want)
	}
}

// A trace that cannot be put stops the transition.
func TestNoTransitionWithoutItsTraces(t *testing.T) {
	for _, trace := range []string{"live/", "outbox/"} {
		w := newWorld()
		begin(t, w.Catalog, start("a"))
		w.spy.before = func(_ int, op string) error {
			if strings.HasPrefix(op, "put "+trace) {
				return handlers.ErrPermanent
			}
			return nil
		}
		before := get(t, w.truth)
		s := start("b")
		s.Dead = func(handlers.Claim) bool { return true }
		_, _, err := w.TryStart(t.Context(), s)
		wantClass(t, trace, err, handlers.ErrPermanent)
		want(t, trace+": seq", get(t, w.truth).Seq, before.Seq)
	}
}

func TestUnreadableRecords(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		for name, content := range map[string]string{
			"a newer format": `{"format": 2}`, "no format": `{}`, "no JSON": "job:\n", "empty": "", "another shape": `[1]`,
		} {
			put(t, c.Store, "jobs/j/job.json", content)
			_, err := c.Get(t.Context(), "j")
			wantClass(t, name, err, handlers.ErrPermanent)
			_, _, err = c.TryStart(t.Context(), start("a"))
			wantClass(t, name+": TryStart", err, handlers.ErrPermanent)
			data, _, err := blob.ReadAll(t.Context(), c.Store, "jobs/j/job.json")
			if err != nil || string(data) != content {
				t.Errorf("%s: the document is now %q, error %v", name, data, err)
			}
		}
	})
}

func TestNames(t *testing.T) {
	w := newWorld()
	for _, name := range []string{"b", "a", "a-b", "a.b", "a0"} {
		put(t, w.Store, "jobs/"+name+"/job.json", "{}")
		for i := range 50 {
			put(t, w.Store, fmt.Sprintf("jobs/%s/checkpoints/1-%d/data/0/f", name, i), "x")
		}
	}
	put(t, w.Store, "jobs/stray", "a file by hand")
	n := w.spy.lists()
	var names []string
	for name, err := range w.Names(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	want(t, "names, as the keys are ordered", names, []string{"a-b", "a.b", "a", "a0", "b"})
	if lists := w.spy.lists() - n; lists > 7 {
		t.Errorf("%d listings for 5 jobs", lists)
	}
	for name, err := range w.Names(t.Context()) {
		want(t, "the first alone", []any{name, err}, []any{"a-b", error(nil)})
		break
	}
	w.spy.before = func(int, string) error { return errAway }
	for _, err := range w.Names(t.Context()) {
		wantClass(t, "listing", err, handlers.ErrUnavailable)
	}
}

// Rule 24: what is published leaves the outbox, and a mark goes when nothing is left.
func TestPublished(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		ctx := t.Context()
		a := begin(t, c, start("a"))
		commit(t, c, a, 5)
		marks := func() []int {
			var out []int
			for m, err := range c.Outboxes(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				want(t, "job of a mark", m.Job, "j")
				out = append(out, m.Seq)
			}
			return out
		}
		want(t, "marks", marks(), []int{2, 3})
		evs := get(t, c).Outbox
		if err := c.Published(ctx, evs[:1]); err != nil {
			t.Fatal(err)
		}
		want(t, "left in the outbox", len(get(t, c).Outbox), 1)
		want(t, "marks while something is left", marks(), []int{2, 3})
		foreign := evs[0].Clone()
		foreign.SetSource("/other")
		foreign.SetSubject("nobody")
		alert, err := events.New(events.TypeAlertRaised, events.Source, "nobody", "id", t0, events.Alert{Job: "nobody"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Published(ctx, []events.Event{foreign, evs[1], alert}); err != nil {
			t.Fatal(err)
		}
		want(t, "left in the outbox", len(get(t, c).Outbox), 0)
		want(t, "marks", marks(), []int{2})
		if err := c.Published(ctx, evs); err != nil {
			t.Fatal(err)
		}
		want(t, "marks once all is told again", marks(), []int(nil))
		want(t, "seq: publishing is no transition", get(t, c).Seq, 3)
	})
}

func TestTraces(t *testing.T) {
	w := newWorld()
	ctx := t.Context()
	beat := handlers.Heartbeat{Job: "j", Attempt: 12, Rank: 1}
	if err := w.Touch(ctx, beat); err != nil {
		t.Fatal(err)
	}
	put(t, w.Store, "live/j/x", "stray")
	put(t, w.Store, "live/j", "stray")
	put(t, w.Store, "outbox/j/x", "stray")
	w.now = w.now.Add(time.Minute)
	live := func() []handlers.Heartbeat {
		var out []handlers.Heartbeat
		for h, err := range w.Live(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, h)
		}
		return out
	}
	beat.Age = time.Minute
	want(t, "live", live(), []handlers.Heartbeat{beat})
	if err := w.Touch(ctx, beat); err != nil {
		t.Fatal(err)
	}
	beat.Age = 0
	want(t, "live", live(), []handlers.Heartbeat{beat})
	for range 2 {
		if err := w.DropLive(ctx, beat); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "live", live(), []handlers.Heartbeat(nil))
	for mark, err := range w.Outboxes(ctx) {
		t.Errorf("a stray file is no mark, but got %+v, error %v", mark, err)
	}
	w.spy.before = func(int, string) error { return errAway }
	for _, err := range w.Live(ctx) {
		wantClass(t, "listing of live/", err, handlers.ErrUnavailable)
	}
	for _, err := range w.Outboxes(ctx) {
		wantClass(t, "listing of outbox/", err, handlers.ErrUnavailable)
	}
}

func TestLiveGoesOverPages(t *testing.T) {
	w := newWorld()
	for i := range 2500 {
		if err := w.Touch(t.Context(), handlers.Heartbeat{Job: fmt.Sprint("j", i), Attempt: 1}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for h, err := range w.Live(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		seen[h.Job] = true
	}
	want(t, "jobs", len(seen), 2500)
	want(t, "listings", w.spy.lists(), 3)
}

// The writers of a record that is fought over all get their turn.
func TestConcurrentUpdates(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		if s, ok := c.Store.(*spy); ok {
			c.Store = s.Store // the spy is for one process
		}
		begin(t, c, start("a"))
		const writers, each = 4, 5
		errs := make(chan error, writers)
		for w := range writers {
			go func() {
				var err error
				for i := range each {
					for again := true; again; {
						_, err = c.Update(t.Context(), "j", func(j handlers.Job) (handlers.Job, error) {
							return j.Commit("a", handlers.Checkpoint{Ref: handlers.Ref{Attempt: 1, Step: int64(w*each + i)}}, t0)
						})
						again = errors.Is(err, handlers.ErrConflict)
					}
					if err != nil {
						break
					}
				}
				errs <- err
			}()
		}
		for range writers {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		j := get(t, c)
		want(t, "checkpoints, seq", []int{len(j.Checkpoints), j.Seq}, []int{writers * each, 2 + writers*each})
		if !slices.IsSortedFunc(j.Checkpoints, func(a, b handlers.Checkpoint) int { return a.Compare(b.Ref) }) {
			t.Errorf("not in order: %v", refs(j.Checkpoints))
		}
	})
}
