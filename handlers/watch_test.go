package handlers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// watched is one pass over one job: its record, its live object, and what came of it.
type watched struct {
	records  map[string]handlers.Job
	traces   *traces
	launched []string
	launcher *launcher
	jobs     *jobs
}

func newWatched(status handlers.LaunchStatus) *watched {
	w := &watched{records: map[string]handlers.Job{}, traces: &traces{live: map[handlers.Heartbeat]time.Duration{}, marks: map[handlers.OutboxMark]bool{}}}
	w.jobs = records(w.records)
	w.launcher = &launcher{
		launch: func(j handlers.Job) error { w.launched = append(w.launched, j.LaunchName()); return nil },
		status: func(handlers.Job) (handlers.LaunchStatus, error) { return status, nil },
	}
	return w
}

func (w *watched) add(j handlers.Job, attempt int, age time.Duration) {
	w.records[j.Name] = j
	w.traces.live[handlers.Heartbeat{Job: j.Name, Attempt: attempt}] = age
}

func (w *watched) pass(ctx context.Context) ([]events.Event, error) {
	h := &handlers.Watch{Jobs: w.jobs, Traces: w.traces, Launcher: w.launcher, Lease: 30 * time.Second, Launch: 10 * time.Minute,
		Now: func() time.Time { return t0 }}
	return h.Handle(ctx, events.Event{})
}

// Rules 3, 4 and 6: what watch makes of an old live object, by the state of the record behind it.
func TestWatch(t *testing.T) {
	const fresh, old, ancient = 30 * time.Second, 31 * time.Second, 11 * time.Minute
	sigterm := published(must(record(handlers.Running).Interrupt("me", handlers.CauseSigterm, "", t0)))
	for name, c := range map[string]struct {
		job      handlers.Job
		attempt  int // of the live object
		age      time.Duration
		status   handlers.LaunchStatus
		state    handlers.State
		grown    int
		events   string
		launched string
		live     bool          // the object is still there
		liveAge  time.Duration // of it
	}{
		"a living attempt":                 {job: record(handlers.Running), attempt: 2, age: fresh, state: handlers.Running, live: true, liveAge: fresh},
		"a dead attempt":                   {job: record(handlers.Running), attempt: 2, age: old, state: handlers.Interrupted, events: "job.interrupted", live: true, liveAge: old},
		"a dead attempt under a notice":    {job: record(handlers.Preempting), attempt: 2, age: old, state: handlers.Interrupted, events: "job.interrupted", live: true, liveAge: old},
		"an earlier attempt's object":      {job: record(handlers.Running), attempt: 1, age: old, state: handlers.Running},
		"one of an attempt not made":       {job: record(handlers.Running), attempt: 3, age: ancient, state: handlers.Running, live: true, liveAge: ancient},
		"an ended job's":                   {job: record(handlers.Succeeded), attempt: 2, age: old, state: handlers.Succeeded},
		"nobody resumed it":                {job: record(handlers.Interrupted), attempt: 2, age: old, state: handlers.Resuming, grown: 1, events: "job.resuming", launched: "j-3", live: true, liveAge: old},
		"SIGTERM waits for an explanation": {job: sigterm, attempt: 2, age: ancient, state: handlers.Interrupted, live: true, liveAge: ancient},
		"a reservation in time":            {job: record(handlers.Resuming), attempt: 2, age: 9 * time.Minute, status: handlers.LaunchGone, state: handlers.Resuming, live: true, liveAge: 9 * time.Minute},
		"a reservation, queued":            {job: record(handlers.Resuming), attempt: 2, age: ancient, status: handlers.LaunchQueued, state: handlers.Resuming, live: true},
		"a reservation, starting":          {job: record(handlers.Resuming), attempt: 2, age: ancient, status: handlers.LaunchRunning, state: handlers.Resuming, live: true},
		"a reservation, failed":            {job: record(handlers.Resuming), attempt: 2, age: ancient, status: handlers.LaunchFailed, state: handlers.Resuming, grown: 1, events: "job.resuming", launched: "j-3", live: true, liveAge: ancient},
		"a reservation, gone":              {job: record(handlers.Resuming), attempt: 2, age: ancient, status: handlers.LaunchGone, state: handlers.Resuming, grown: 1, events: "job.resuming", launched: "j-3", live: true, liveAge: ancient},
		"the first attempt, gone":          {job: record(handlers.Pending), attempt: 1, age: ancient, status: handlers.LaunchGone, state: handlers.Resuming, grown: 1, events: "job.resuming", launched: "j-2", live: true, liveAge: ancient},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(c.status)
			w.add(c.job, c.attempt, c.age)
			out, err := w.pass(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want(t, "state", w.records["j"].State, c.state)
			want(t, "attempts", w.records["j"].Attempt-c.job.Attempt, c.grown)
			want(t, "events", strings.Join(types(out), " "), c.events)
			want(t, "launched", strings.Join(w.launched, " "), c.launched)
			age, live := w.traces.live[handlers.Heartbeat{Job: "j", Attempt: c.attempt}]
			want(t, "live object", live, c.live)
			want(t, "its age", age, c.liveAge)
		})
	}
}

func TestWatchReadsTheRecordAgain(t *testing.T) {
	w := newWatched("")
	w.add(record(handlers.Running), 2, time.Hour)
	update := w.jobs.update
	w.jobs.update = func(ctx context.Context, job string, decide func(handlers.Job) (handlers.Job, error)) (handlers.Job, error) {
		// Between the reading and the write, the attempt went over to another process.
		w.records["j"] = must(must(record(handlers.Running).LoseLease(t0)).StartInPlace(claimOn("x", n3), false, t0))
		return update(ctx, job, decide)
	}
	out, err := w.pass(t.Context())
	if err != nil || len(out) > 0 {
		t.Fatalf("events %v, error %v", types(out), err)
	}
	want(t, "state, attempt", []any{w.records["j"].State, w.records["j"].Attempt}, []any{handlers.Running, 3})
}

// One job that cannot be looked after does not stop the others; it becomes an alert.
func TestWatchGoesOn(t *testing.T) {
	w := newWatched("")
	for i, name := range []string{"a", "b", "c", "d"} {
		j := record(handlers.Running)
		j.Name = name
		w.add(j, 2, time.Duration(i+1)*time.Hour)
	}
	delete(w.records, "c") // its writer died before the record
	get := w.jobs.get
	w.jobs.get = func(ctx context.Context, job string) (handlers.Job, error) {
		if job == "b" {
			return handlers.Job{}, fmt.Errorf("%w: broken", handlers.ErrPermanent)
		}
		return get(ctx, job)
	}
	out, err := w.pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "events", types(out), []string{"job.interrupted", "alert.raised", "job.interrupted"})
	alert, err := events.Decode[events.Alert](out[1])
	if err != nil || alert.Job != "b" || alert.Code != "watch-failed" || !strings.Contains(alert.Detail, "broken") {
		t.Errorf("alert %+v, error %v", alert, err)
	}
	want(t, "live object without a record", w.traces.live[handlers.Heartbeat{Job: "c", Attempt: 2}], 3*time.Hour)
}

func TestWatchErrors(t *testing.T) {
	w := newWatched(handlers.LaunchGone)
	w.add(record(handlers.Resuming), 2, time.Hour)
	w.launcher.status = func(handlers.Job) (handlers.LaunchStatus, error) { return "", handlers.ErrUnavailable }
	out, err := w.pass(t.Context())
	want(t, "the platform does not answer", types(out), []string{"alert.raised"})
	want(t, "state, error", []any{w.records["j"].Attempt, err}, []any{2, error(nil)})

	w = newWatched("")
	w.add(record(handlers.Interrupted), 2, time.Hour)
	w.launcher.launch = func(handlers.Job) error { return fmt.Errorf("%w: template.command is missing", handlers.ErrInvalid) }
	out, err = w.pass(t.Context())
	want(t, "refused launch", types(out), []string{"job.resuming", "alert.raised"})
	want(t, "error", err, error(nil))

	w = newWatched("")
	w.add(record(handlers.Succeeded), 2, time.Hour)
	w.traces.dropErr = handlers.ErrUnavailable
	out, err = w.pass(t.Context())
	want(t, "a live object that cannot be deleted", types(out), []string{"alert.raised"})
	want(t, "error", err, error(nil))

	w = newWatched("")
	w.traces.listErr = handlers.ErrUnavailable
	_, err = w.pass(t.Context())
	wantClass(t, "listing", err, handlers.ErrUnavailable)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newWatched("").pass(ctx)
	wantClass(t, "cancelled", err, context.Canceled)
}

// Rule 24: what a transition wrote and nobody published comes out; then its mark goes.
func TestWatchPublishesOutboxes(t *testing.T) {
	unpublished := must(record(handlers.Running).LoseLease(t0))
	for name, c := range map[string]struct {
		job    handlers.Job
		seq    int // of the mark, beyond the record's
		events []string
		mark   bool // still there
	}{
		"unpublished":                     {unpublished, 0, []string{"job.interrupted"}, true},
		"published":                       {published(unpublished), 0, nil, false},
		"of an earlier transition":        {published(unpublished), -1, nil, false},
		"of a transition not yet written": {published(unpublished), 1, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched("")
			w.records["j"] = c.job
			mark := handlers.OutboxMark{Job: "j", Seq: c.job.Seq + c.seq}
			w.traces.marks[mark] = true
			out, err := w.pass(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want(t, "events", types(out), c.events)
			want(t, "mark", w.traces.marks[mark], c.mark)
		})
	}
	w := newWatched("")
	w.records["j"] = unpublished
	for back := range 3 { // one outbox, a mark for each transition that put something there
		w.traces.marks[handlers.OutboxMark{Job: "j", Seq: unpublished.Seq - back}] = true
	}
	out, err := w.pass(t.Context())
	want(t, "events of several marks", types(out), []string{"job.interrupted"})
	want(t, "error", err, error(nil))

	w = newWatched("")
	w.traces.marks[handlers.OutboxMark{Job: "nobody", Seq: 1}] = true
	out, err = w.pass(t.Context())
	if err != nil || len(out) > 0 || len(w.traces.marks) != 1 {
		t.Errorf("a mark without a record: events %v, error %v, marks %v", types(out), err, w.traces.marks)
	}
}
