package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// The record's attempt 1 ran as "c1" on n1, attempt 2 as "me" on n2.
var (
	n1 = events.Node{Provider: "aws", Instance: "i-1"}
	n2 = events.Node{Provider: "aws", Instance: "i-2"}
	n3 = events.Node{Provider: "aws", Instance: "i-3"}
)

func ptr[T any](v T) *T { return &v }

func must(j handlers.Job, err error) handlers.Job {
	if err != nil {
		panic(err)
	}
	return j
}

func claimOn(id string, n events.Node) handlers.Claim { return handlers.Claim{ID: id, Node: n, At: t0} }

func ref(attempt int, step int64) handlers.Ref { return handlers.Ref{Attempt: attempt, Step: step} }

func checkpoint(attempt int, step int64) handlers.Checkpoint {
	r := ref(attempt, step)
	return handlers.Checkpoint{Ref: r, Key: "jobs/j/checkpoints/" + r.String() + "/", Bytes: step, Files: 1, Committed: t0}
}

func stop(n events.Node, kind events.Kind, after time.Duration) events.Notice {
	return events.Notice{Provider: n.Provider, Instance: n.Instance, Kind: kind, Deadline: ptr(t0.Add(after))}
}

func withdrawn(n events.Notice) events.Notice {
	n.Cancelled = true
	return n
}

func spec() *handlers.Launch { return &handlers.Launch{Kind: "local", Template: map[string]any{}} }

// record returns a job in state, at attempt 2 (pending: 1) with checkpoint 1-100 and nothing in the
// outbox. It got there by transitions alone.
func record(state handlers.State) handlers.Job {
	pending := handlers.NewJob("j", "uid", handlers.RestarterReprieve, spec(), t0)
	first := must(must(pending.Claim(1, claimOn("c1", n1), t0)).Commit("c1", checkpoint(1, 100), t0))
	running := must(must(must(first.LoseLease(t0)).Reserve(t0)).Claim(2, claimOn("me", n2), t0))
	running = must(running.Seal("me", ptr(ref(1, 100)), nil, t0))
	strict := running
	strict.Launch = &handlers.Launch{Kind: "local", Budget: handlers.Budget{Failures: ptr(0)}}
	j := map[handlers.State]func() handlers.Job{
		handlers.Pending: func() handlers.Job { return pending },
		handlers.Running: func() handlers.Job { return running },
		handlers.Preempting: func() handlers.Job {
			return must(running.ApplyNotice(stop(n2, events.KindTerminate, 2*time.Minute), t0))
		},
		handlers.Interrupted: func() handlers.Job { return must(running.LoseLease(t0)) },
		handlers.Resuming:    func() handlers.Job { return must(must(first.LoseLease(t0)).Reserve(t0)) },
		handlers.Succeeded:   func() handlers.Job { return must(running.End("me", 0, "", t0)) },
		handlers.Failed:      func() handlers.Job { return must(strict.End("me", 1, "", t0)) },
		handlers.Cancelled:   func() handlers.Job { return must(running.Cancel("", t0)) },
	}[state]()
	if j.State != state {
		panic("fixture is " + j.State)
	}
	return published(j)
}

func published(j handlers.Job) handlers.Job {
	if len(j.Outbox) == 0 {
		return j
	}
	ids := make([]string, len(j.Outbox))
	for i, e := range j.Outbox {
		ids[i] = e.ID()
	}
	return must(j.Published(ids))
}

// types are the short types of events: without dev.reprieve.
func types(evs []events.Event) []string {
	var out []string
	for _, e := range evs {
		out = append(out, e.Type()[len("dev.reprieve."):])
	}
	return out
}

func text(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// scribble writes over everything that out shares with whoever made it, as far as that is a slice.
func scribble(out handlers.Job) {
	for i := range out.Outbox[:cap(out.Outbox)] {
		out.Outbox[:cap(out.Outbox)][i] = events.Event{}
	}
	for i := range out.Seen[:cap(out.Seen)] {
		out.Seen[:cap(out.Seen)][i] = events.Notice{}
	}
	for i := range out.Checkpoints[:cap(out.Checkpoints)] {
		out.Checkpoints[:cap(out.Checkpoints)][i] = handlers.Checkpoint{}
	}
}

// clone is a deep copy: the record as the store would give it back.
func clone(t *testing.T, j handlers.Job) handlers.Job {
	t.Helper()
	var out handlers.Job
	if err := json.Unmarshal([]byte(text(t, j)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func wantClass(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error = %v, want %v", what, got, want)
	}
}

// jobs is a port whose methods a test can replace; records gives those that it does not.
type jobs struct {
	get    func(context.Context, string) (handlers.Job, error)
	update func(context.Context, string, func(handlers.Job) (handlers.Job, error)) (handlers.Job, error)
}

func (f *jobs) Get(ctx context.Context, job string) (handlers.Job, error) { return f.get(ctx, job) }

func (f *jobs) Update(ctx context.Context, job string, decide func(handlers.Job) (handlers.Job, error)) (handlers.Job, error) {
	return f.update(ctx, job, decide)
}

func records(m map[string]handlers.Job) *jobs {
	get := func(_ context.Context, job string) (handlers.Job, error) {
		j, ok := m[job]
		if !ok {
			return j, handlers.ErrNotFound
		}
		return j, nil
	}
	return &jobs{get: get, update: func(ctx context.Context, job string, decide func(handlers.Job) (handlers.Job, error)) (handlers.Job, error) {
		j, err := get(ctx, job)
		if err != nil {
			return j, err
		}
		next, err := decide(j)
		if err != nil {
			return j, err
		}
		m[job] = next
		return next, nil
	}}
}

type nodes struct {
	jobs func(events.Node) ([]string, error)
	note func(events.Notice) error
}

func (f *nodes) Jobs(_ context.Context, n events.Node) ([]string, error) { return f.jobs(n) }
func (f *nodes) Note(_ context.Context, n events.Notice) error           { return f.note(n) }

type launcher struct {
	launch func(handlers.Job) error
	status func(handlers.Job) (handlers.LaunchStatus, error)
}

func (f *launcher) Launch(_ context.Context, j handlers.Job) error { return f.launch(j) }
func (f *launcher) Status(_ context.Context, j handlers.Job) (handlers.LaunchStatus, error) {
	return f.status(j)
}

// traces keeps live objects and outbox marks; listErr ends a listing.
type traces struct {
	live    map[handlers.Heartbeat]time.Duration // ages, by the heartbeat without its age
	marks   map[handlers.OutboxMark]bool
	listErr error
	dropErr error
}

func (f *traces) Live(context.Context) iter.Seq2[handlers.Heartbeat, error] {
	return func(yield func(handlers.Heartbeat, error) bool) {
		keys := slices.SortedFunc(maps.Keys(f.live), func(a, b handlers.Heartbeat) int {
			return 2*compare(a.Job, b.Job) + compare(a.Attempt, b.Attempt)
		})
		for _, h := range keys {
			h.Age = f.live[h]
			if !yield(h, nil) {
				return
			}
		}
		if f.listErr != nil {
			yield(handlers.Heartbeat{}, f.listErr)
		}
	}
}

func compare[T int | string](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (f *traces) Touch(_ context.Context, h handlers.Heartbeat) error {
	h.Age = 0
	f.live[h] = 0
	return nil
}

func (f *traces) DropLive(_ context.Context, h handlers.Heartbeat) error {
	h.Age = 0
	delete(f.live, h)
	return f.dropErr
}

func (f *traces) Outboxes(context.Context) iter.Seq2[handlers.OutboxMark, error] {
	return func(yield func(handlers.OutboxMark, error) bool) {
		for m := range maps.Clone(f.marks) {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func (f *traces) DropOutbox(_ context.Context, m handlers.OutboxMark) error {
	delete(f.marks, m)
	return nil
}
